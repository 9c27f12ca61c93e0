"""The worker process: messages in and out, the computing thread, checkpoints, limits."""
