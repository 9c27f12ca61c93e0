"""Lanes: the parallel ways of one link."""

from enum import IntEnum


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
