"""Weights that a job starts from, between agents: whoever has some of a stage hands them to those who have not.

::

    asks                                         has
      WeightsAsk(unit None)        control ->      which units are here
                                 <- control      WeightsGive(unit None) + one bit a unit
      WeightsAsk(unit u, begin b)  control ->      a piece of a unit
                                 <- bulk         WeightsGive(unit u, begin b) + bytes, or found False

Units (``protocol.models.weights.units``) follow from the job's weight index and the stage's layers, so both sides count them
alike. Each tensor is held against its digest in that index, so a wrong one is known with its giver.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from protocol.codec import encode
from protocol.ids import JobId
from protocol.models.weights import MAX_FILE_BYTES
from protocol.plan import Layers

PREFIX = b"cottage-weights/"
PIECE_BYTES = 256 << 10  # Several askers share an uplink: an eighth of one of 10 Mbit/s carries it in 1.7 s.
MAX_UNITS = 1 << 18  # More than tensors that an index can have.

UnitIndex = Annotated[int, Meta(ge=0, lt=MAX_UNITS)]


class WeightsAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="ask"):
    """``unit`` None: which units are there. Else the piece of it that begins at byte ``begin``."""

    job: JobId
    layers: Layers
    unit: UnitIndex | None = None
    begin: Annotated[int, Meta(ge=0, le=MAX_FILE_BYTES)] = 0


class WeightsGive(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="give"):
    """The payload is what was asked for; ``found`` False: it is not here (yet), or the asker is none of the job."""

    job: JobId
    layers: Layers
    unit: UnitIndex | None = None
    begin: Annotated[int, Meta(ge=0, le=MAX_FILE_BYTES)] = 0
    found: bool = True


WeightsMessage = WeightsAsk | WeightsGive


def header(message: WeightsMessage) -> bytes:
    """A message as the header of a peer's message."""
    return PREFIX + encode(message)


def bits(units: set[int], count: int) -> bytes:
    """Which of ``count`` units are there: one bit each, the first of a byte its lowest."""
    found = bytearray(-(-count // 8))
    for unit in units:
        found[unit // 8] |= 1 << unit % 8
    return bytes(found)


def units_in(data: bytes, count: int) -> frozenset[int]:
    """The same backwards; of other lengths, or with units that cannot be: none."""
    if len(data) != -(-count // 8):
        return frozenset()
    return frozenset(unit for unit in range(count) if data[unit // 8] >> unit % 8 & 1)
