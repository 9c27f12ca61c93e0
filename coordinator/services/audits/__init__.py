"""Audits: sampling, running steps again, disputes, and what follows for shares and stakes."""
