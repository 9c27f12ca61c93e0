"""Lanes: the parallel ways of one link."""

from enum import IntEnum


class Lane(IntEnum):
    """What a message is for; its number is that of the data channel.

    CONTROL is small and soon there, ACTIVATIONS is what the next pipeline stage waits for, BULK is everything that may take
    its time. A stalled lane does not stop another. CONTROL keeps its order; a message of another lane is handed on as soon as
    all of it is there, whatever was sent before it.
    """

    CONTROL = 0
    ACTIVATIONS = 1
    BULK = 2

    @property
    def ordered(self) -> bool:
        """Whether frames arrive as they were sent. Where they need not, a lost packet holds up one message and no other."""
        return self is Lane.CONTROL


WEIGHTS = {Lane.ACTIVATIONS: 4, Lane.BULK: 1}
"""Shares of the bytes when both have something to send, so that neither starves; CONTROL goes before both."""
