"""What requests begin with alike: whose pages have which tokens. The first stage's book, which all others follow.

Pages that are full never change, so a request may read another one's, and begins behind them. Those of a request that has ended
stay until somebody needs the room. Words are told apart by a digest of all tokens from the first on, and of the adapter.

Source: automatic prefix caching of vLLM (hashes of blocks), here over stages.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.serve.stages.pages import PAGE

MOST_KEPT = 256  # Requests that have ended.


@dataclass(frozen=True)
class SharedPages:
    """The first ``count`` pages of request ``number``."""

    number: int
    count: int


class PrefixBook:
    """Full pages of requests, under way or kept, by their words."""

    def __init__(self) -> None:
        self._chains: dict[int, list[bytes]] = {}
        self._owners: dict[bytes, int] = {}
        self._kept: dict[int, None] = {}
        """Requests that have ended, those first that nobody has asked for the longest."""

    def note(self, number: int, tokens: Sequence[int], adapter: int, places: int) -> None:
        """So many places of a request are computed, of these tokens."""
        chain = self._chains.setdefault(number, [])
        for page in range(len(chain), places // PAGE):
            chain.append(_digest(chain[-1] if chain else _root(adapter), tokens[page * PAGE : (page + 1) * PAGE]))
            self._owners[chain[-1]] = number

    def find(self, tokens: Sequence[int], adapter: int) -> SharedPages | None:
        """Pages that begin as these tokens do, and leave one of them at least; None: there are none."""
        found, digest = None, _root(adapter)
        for page in range((len(tokens) - 1) // PAGE):
            digest = _digest(digest, tokens[page * PAGE : (page + 1) * PAGE])
            if (owner := self._owners.get(digest)) is None:
                break
            found = SharedPages(owner, page + 1)
        if found is not None and found.number in self._kept:
            self._kept[found.number] = self._kept.pop(found.number)
        return found

    def keep(self, number: int) -> None:
        """A request has ended, and its full pages stay."""
        self._kept[number] = None

    def oldest(self, spared: int | None = None) -> int | None:
        """Which of those that have ended gives its pages next; None: there is none but ``spared``."""
        return next((one for one in self._kept if one != spared), None)

    @property
    def full(self) -> bool:
        """Whether more requests have ended than are worth being kept."""
        return len(self._kept) > MOST_KEPT

    def forget(self, number: int) -> None:
        """A request's pages are no longer its own."""
        self._kept.pop(number, None)
        for digest in self._chains.pop(number, ()):
            if self._owners.get(digest) == number:
                del self._owners[digest]


def _root(adapter: int) -> bytes:
    return struct.pack("<I", adapter)


def _digest(before: bytes, tokens: Sequence[int]) -> bytes:
    return hashlib.blake2b(before + struct.pack(f"<{len(tokens)}I", *tokens), digest_size=16).digest()
