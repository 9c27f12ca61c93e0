"""What this computer is doing: who sits at it, what it runs on, how hot it is. A sensor that cannot tell says None."""
