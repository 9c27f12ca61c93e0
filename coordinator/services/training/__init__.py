"""Runs: staffing seats, rounds, pauses, and the held-out loss."""
