"""Sessions that go past the coordinator: their messages, and what clients sign."""
