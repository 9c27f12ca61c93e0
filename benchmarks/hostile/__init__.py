"""Bytes and calls of strangers, by the million."""
