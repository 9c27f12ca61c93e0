"""See ``av``."""


class Packet:
    """Not built in."""
