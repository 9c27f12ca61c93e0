"""From text and rows to batches of tokens."""
