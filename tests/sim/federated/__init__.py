"""Federations in simulated worlds: owners, updates that leave noised, and sums that nobody sees into."""
