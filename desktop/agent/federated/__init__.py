"""Federated jobs: what their owners agreed to, what is counted, and the door of workers that read owners' data."""
