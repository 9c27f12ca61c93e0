"""JSON as it streams by, value by value, in bounded memory: brackets and quotes are seen, and nothing within."""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Final

from trainer.errors import DataError
from trainer.formats.rows import shown
from trainer.formats.source import BLOCK, SourceStream

MAX_KEY_BYTES = 1 << 16
_WRITTEN: Final = re.compile(rb"[^ \t\r\n\x1e]")  # The last one stands before each record of a sequence (RFC 7464).
_STRUCTURE: Final = re.compile(rb'["{}\[\]]')
_INSIDE: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_SCALAR_END: Final = re.compile(rb"[,\]}\s]")


class JsonScanner:
    """Goes through JSON value by value, without looking at what is within."""

    def __init__(self, stream: SourceStream, name: str) -> None:
        """Begin where ``stream`` stands; ``name``: what people call the file."""
        self.stream, self._name = stream, name
        self._held, self._at = b"", 0
        self._passed = 0

    def peek(self) -> bytes:
        """The next byte that is no blank; empty at the end."""
        while True:
            found = _WRITTEN.search(self._held, self._at)
            if found is not None:
                self._at = found.start()
                if found[0] != BOM_UTF8[:1] or not self._mark():
                    return found[0]
                continue
            if not self._more():
                return b""

    def _mark(self) -> bool:
        """Go past the mark that a file had before it was joined to another; whether one stands here."""
        if len(self._held) - self._at < len(BOM_UTF8):
            rest, passed = self._held[self._at :], self._passed + self._at
            self._held, self._at, self._passed = rest + self.stream.read(BLOCK), 0, passed
        found = self._held.startswith(BOM_UTF8, self._at)
        self._at += len(BOM_UTF8) if found else 0
        return found

    def expect(self, wanted: bytes) -> bytes:
        """The next byte, which must be one of those that are wanted; it stays."""
        found = self.peek()
        if not found or found not in wanted:
            raise self.wrong(" or ".join(chr(byte) for byte in wanted))
        return found

    def take(self, wanted: bytes) -> bytes:
        """As ``expect``, and go past it."""
        found = self.expect(wanted)
        self._at += 1
        return found

    def value(self, most: int, *, cut: bool = False) -> bytes | None:
        """Go past one value; returns it, unless it has more bytes than ``most``: then as many of them (``cut``), or nothing."""
        kept = _Kept(most, cut)
        begin = self.peek()
        if not begin or begin in b",:]}":
            raise self.wrong("a value")
        if begin not in b'"{[':
            self._scalar(kept)
            return kept.whole()
        depth = 0
        while True:
            found = self._to(kept)
            if found == b'"':
                self._string(kept)
            else:
                depth += 1 if found in b"{[" else -1
            if depth <= 0:
                return kept.whole()

    def rest(self) -> None:
        """Go past what is left of a list."""
        if self.peek() == b"]":
            self.take(b"]")
            return
        while True:
            self.value(0)
            if self.take(b",]") == b"]":
                return
            if self.peek() == b"]":
                self.take(b"]")
                return

    def _to(self, kept: "_Kept") -> bytes:
        """Go past the next quote or bracket, and return it."""
        while True:
            found = _STRUCTURE.search(self._held, self._at)
            stop = len(self._held) if found is None else found.end()
            kept.add(self._held[self._at : stop])
            self._at = stop
            if found is not None:
                return found[0]
            if not self._more():
                raise self.wrong("the end of an object or a list")

    def _string(self, kept: "_Kept") -> None:
        """Go past the rest of a string, whose first quote is behind."""
        while True:
            inside = _INSIDE.match(self._held, self._at)
            assert inside is not None, "it matches nothing, too"
            stop = inside.end()
            closed = self._held[stop : stop + 1] == b'"'
            # The last byte that is here: what it escapes comes with more.
            escaped = self._held[stop : stop + 1] == b"\\"
            kept.add(self._held[self._at : stop + closed + escaped])
            self._at = stop + closed + escaped
            if closed:
                return
            if not self._more():
                raise self.wrong('the end of a text (")')
            if escaped:
                kept.add(self._held[:1])
                self._at = 1

    def _scalar(self, kept: "_Kept") -> None:
        while True:
            found = _SCALAR_END.search(self._held, self._at)
            stop = len(self._held) if found is None else found.start()
            kept.add(self._held[self._at : stop])
            self._at = stop
            if found is not None or not self._more():
                return

    def _more(self) -> bool:
        self._passed += len(self._held)
        self._held, self._at = self.stream.read(BLOCK), 0
        return bool(self._held)

    def wrong(self, wanted: str) -> DataError:
        """What stands here is not what JSON has there."""
        here = self._held[self._at : self._at + 40].decode("utf-8", "replace")
        stands = f"stands {shown(here)}" if here else "the file ends"
        where = f"at byte {self._passed + self._at + 1:,} {stands}, where {wanted} should be"
        return DataError(
            "bad-json",
            f"{self._name} is not JSON: {where}; write it anew, or as JSON lines, or choose the format text if it is none",
        )


class _Kept:
    """The bytes of a value, as long as they are not too many."""

    def __init__(self, most: int, cut: bool) -> None:
        self._most, self._cut = most, cut
        self._bytes: bytearray | None = bytearray()

    def add(self, part: bytes) -> None:
        if self._bytes is None or (self._cut and len(self._bytes) >= self._most):
            return
        self._bytes += part
        if len(self._bytes) > self._most and not self._cut:
            self._bytes = None

    def whole(self) -> bytes | None:
        return None if self._bytes is None else bytes(self._bytes)


def keys(scanner: JsonScanner) -> Iterator[str]:
    """The keys of an object; whoever asks goes past each value before the next."""
    scanner.take(b"{")
    if scanner.peek() == b"}":
        scanner.take(b"}")
        return
    while True:
        scanner.expect(b'"')
        key = scanner.value(MAX_KEY_BYTES)
        scanner.take(b":")
        yield "" if key is None else _string(key)
        if scanner.take(b",}") == b"}":
            return


def _string(value: bytes) -> str:
    try:
        return str(json.loads(value, strict=False))
    except ValueError:
        return ""
