"""Array jobs: which element runs where, whose results hold, what they are worth. Pure."""
