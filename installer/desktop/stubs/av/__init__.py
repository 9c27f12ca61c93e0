"""Stands in for PyAV (104 MB of media codecs), which aiortc imports although data channels need none of it.

Every use says so instead of doing something else.
"""


class _Media:
    def __init__(self, *_: object, **__: object) -> None:
        raise RuntimeError("this program carries data channels only: media codecs are not built in")

    @classmethod
    def create(cls, *_: object, **__: object) -> "_Media":
        """Refuse, as a constructor does."""
        return cls()


class AudioFrame(_Media):
    """Not built in."""


class VideoFrame(_Media):
    """Not built in."""


class AudioResampler(_Media):
    """Not built in."""


class CodecContext(_Media):
    """Not built in."""


class FFmpegError(Exception):
    """Never raised here."""
