"""Files in another encoding than UTF-8: which one it may be, shown by how a row reads in it."""

from collections.abc import Mapping
from typing import Final

SAMPLE_BYTES = 64 << 10  # Of the rows that cannot be read: as much as it takes to tell languages apart.
OFFERS = 3
SHOWN = 60
_CODECS: Final[Mapping[str, str]] = {
    "windows-1252": "cp1252",
    "windows-1250": "cp1250",
    "windows-1251": "cp1251",
    "windows-1253": "cp1253",
    "windows-1254": "cp1254",
    "windows-1255": "cp1255",
    "windows-1256": "cp1256",
    "iso-8859-2": "iso8859_2",
    "iso-8859-15": "iso8859_15",
    "koi8-r": "koi8_r",
    "mac-roman": "mac_roman",
    "shift_jis": "shift_jis",
    "euc-jp": "euc_jp",
    "euc-kr": "euc_kr",
    "gb18030": "gb18030",
    "big5": "big5",
}
"""What a job document calls an encoding: what the detector calls it. The first of those that read the same is offered."""


class Foreign:
    """Counts rows with letters beyond ASCII that are UTF-8, and those that are not, and keeps some of the latter."""

    def __init__(self) -> None:
        self._good = 0
        self._sample = bytearray()

    def good(self, text: str) -> None:
        """A row that could be read."""
        self._good += not text.isascii()

    def bad(self, raw: bytes) -> None:
        """The beginning of one whose characters could not be; nothing where something else was wrong."""
        if raw and len(self._sample) < SAMPLE_BYTES:
            self._sample += raw + b"\n"

    def readings(self, bad: int) -> str:
        """How ``bad`` rows read in the encodings that they may be in, where most rows with such letters are not UTF-8.

        A few bad rows among many good ones are damage.
        """
        if bad <= self._good or not self._sample:
            return ""
        found = _readings(bytes(self._sample))
        return "; ".join(f"in {encoding} one reads {reading!r}" for encoding, reading in found.items())


def _readings(sample: bytes) -> dict[str, str]:
    """The likeliest encodings of a sample, with what a row of it is in each; of those that read the same, one."""
    from charset_normalizer import from_bytes  # Only where a file is not UTF-8.

    ranked = from_bytes(sample, cp_isolation=list(_CODECS.values()), threshold=0.3)
    names = list(_CODECS)  # The commonest first: of two that are as likely it is that one.
    likely = []
    for one in ranked:
        name = next(name for name, codec in _CODECS.items() if codec in one.could_be_from_charset)
        likely.append((round(one.chaos, 2), -round(one.coherence, 1), names.index(name), name, one))
    found: dict[str, str] = {}
    for *_, name, one in sorted(likely, key=lambda entry: entry[:3]):
        reading = _letters(sample.decode(one.encoding, "replace"))
        if reading not in found.values():
            found[name] = reading
        if len(found) == OFFERS:
            break
    return found


def _letters(text: str) -> str:
    """The first letters beyond ASCII, with what stands around them."""
    at = next((index for index, character in enumerate(text) if character > "\x7f"), 0)
    begin = max(text.rfind("\n", 0, at) + 1, at - SHOWN // 2)
    return " ".join(text[begin : begin + SHOWN].split("\n")[0].split())
