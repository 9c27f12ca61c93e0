"""Finding a path between two homes: candidates, checks, relays, and what is measured of the path."""
