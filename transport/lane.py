"""Lanes: the parallel ways of one link, behind an interface so that the data path beneath can be replaced."""

from collections.abc import Callable
from enum import IntEnum
from typing import Protocol


class Lane(IntEnum):
    """What a message is for; its number is that of the data channel.

    CONTROL is small and soon there, ACTIVATIONS is what the next pipeline stage waits for, BULK is everything that may take
    its time. Each lane keeps its own order; a stalled lane does not stop another.
    """

    CONTROL = 0
    ACTIVATIONS = 1
    BULK = 2


WEIGHTS = {Lane.ACTIVATIONS: 4, Lane.BULK: 1}
"""Shares of the bytes when both have something to send, so that neither starves; CONTROL goes before both."""


class LaneTransport(Protocol):
    """One ordered, reliable way for datagrams of up to ``framing.MAX_FRAME`` bytes."""

    @property
    def buffered(self) -> int:
        """Bytes handed over and not yet on the wire."""

    def send(self, frame: bytes) -> None:
        """Queue one frame.

        Raises:
            ConnectError: the lane is closed.
        """

    def attach(self, on_frame: Callable[[bytes], None], on_low: Callable[[], None]) -> None:
        """Hand every received frame to ``on_frame`` and tell ``on_low`` when ``buffered`` has fallen low."""
