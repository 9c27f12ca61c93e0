"""The owner's commands."""
