"""Accounts and sign-in: who calls, how they prove it, and how much a stranger may ask for."""
