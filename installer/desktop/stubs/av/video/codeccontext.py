"""See ``av``."""


class VideoCodecContext:
    """Not built in."""
