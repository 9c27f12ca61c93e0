"""See ``av``."""


class VideoFrame:
    """Not built in."""


class PictureType:
    """Named by a default argument of aiortc's encoders."""

    NONE = 0
    I = 1  # noqa: E741  # PyAV's name.
