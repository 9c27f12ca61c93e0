"""Signing in through an identity provider: honest ones, and one that lies as it is told."""
