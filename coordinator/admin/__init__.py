"""What an operator does at the machine itself."""
