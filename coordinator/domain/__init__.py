"""What is decided: pure functions over frozen values. No I/O, no clock, no randomness."""
