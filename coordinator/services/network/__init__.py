"""Nodes, relays and links: who is here, how they reach each other, what work costs."""
