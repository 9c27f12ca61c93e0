"""See ``av``."""


class AVRational:
    """Not built in."""
