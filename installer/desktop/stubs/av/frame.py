"""See ``av``."""


class Frame:
    """Not built in."""
