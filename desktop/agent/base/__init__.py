"""What the agent's rooms stand on: configuration, log, locks, sockets, GPUs."""
