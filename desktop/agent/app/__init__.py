"""The agent as a program: start, settings, status, and the owner's socket."""
