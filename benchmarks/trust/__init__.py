"""What committing, re-running and judging cost, and what becomes of every cheat."""
