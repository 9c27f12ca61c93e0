"""By what coordinators of one network know each other: a word that follows from the key that all of them have."""

import hmac
import re
from collections.abc import Mapping
from typing import Final

FRONT: Final = "X-Cottage-Front"
"""The header in which a front proves that it is one. Whoever asks is then told by X-Forwarded-For."""
STANDS_BY: Final = "X-Cottage-Stands-By"
"""In the answer of a coordinator that was taken for the one at work, and is not: nothing was done."""
NONCE: Final = "X-Cottage-Nonce"
"""In a node's connection that a front leads: the challenge that it has put to the node already, in hexadecimal."""
CELL: Final = "X-Cottage-Cell"
"""In an answer with the status 421: the number of the cell that has what was asked for. Nothing was done."""
_NONCE: Final = re.compile("[0-9a-f]{64}")
_PURPOSE: Final = b"cottage: a coordinator that stands by leads this to the one at work"


class FrontSeal:
    """Makes and knows the word. ``seed``: of the coordinator's key, 32 bytes."""

    def __init__(self, seed: bytes) -> None:
        self._word = hmac.digest(seed, _PURPOSE, "sha256").hex()

    @property
    def headers(self) -> Mapping[str, str]:
        """What a front adds to its requests."""
        return {FRONT: self._word}

    def is_on(self, headers: Mapping[str, str]) -> bool:
        """Whether a request comes from a front."""
        return hmac.compare_digest(headers.get(FRONT, "").encode(errors="replace"), self._word.encode())

    def nonce_of(self, headers: Mapping[str, str]) -> bytes | None:
        """What a front has challenged the node with whose connection it leads; None: nothing, or no front says so."""
        text = headers.get(NONCE, "")
        return bytes.fromhex(text) if self.is_on(headers) and _NONCE.fullmatch(text) is not None else None
