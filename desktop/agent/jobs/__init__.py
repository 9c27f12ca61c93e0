"""Leases and the tasks on them: the worker, its peers, weights, states and audits."""
