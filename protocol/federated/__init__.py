"""Federations: what owners' nodes and the coordinator say to each other."""
