"""See ``av``."""


class AudioFrame:
    """Not built in."""
