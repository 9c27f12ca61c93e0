"""Zstandard, unpacked in bounded pieces as the standard library unpacks bzip2 and xz; it comes with Python 3.14."""

from typing import Final

WINDOW: Final = 1 << 27  # As much memory as zstd's own program takes without being asked.


class ZstdDataError(Exception):
    """The data are damaged, or want more memory than ``WINDOW``."""


class Zstd:
    """One frame. ``unused_data``: what comes after it."""

    input_bytes: Final = 512
    """As much as is unpacked at once; of the emptiest content it becomes 16 MB."""

    def __init__(self) -> None:
        """Begin a frame; raises ImportError where zstandard is not installed."""
        import zstandard

        self._errors = zstandard.ZstdError
        self._one = zstandard.ZstdDecompressor(max_window_size=WINDOW).decompressobj()
        self._packed, self._made = memoryview(b""), b""

    @property
    def eof(self) -> bool:
        """All of the frame was handed out."""
        return bool(self._one.eof) and not self._made

    @property
    def needs_input(self) -> bool:
        """More comes only of more data."""
        return not self._made and not self._packed and not self._one.eof

    @property
    def unused_data(self) -> bytes:
        """What comes after the frame, as far as it was handed in."""
        return self._one.unused_data + bytes(self._packed) if self._one.eof else b""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """At most so many bytes of what is unpacked.

        Raises:
            ZstdDataError: damaged.
        """
        self._packed = memoryview(bytes(self._packed) + data)
        while len(self._made) < max_length and self._packed and not self._one.eof:
            part, self._packed = self._packed[: self.input_bytes], self._packed[self.input_bytes :]
            try:
                self._made += self._one.decompress(part)
            except self._errors as error:
                raise ZstdDataError(str(error)) from error
        found, self._made = self._made[:max_length], self._made[max_length:]
        return found
