"""A worker that is made after another one died: it knows that one's rounds from their records, and opens them."""

import logging
from collections.abc import Iterable

from protocol.worker import RestoredPart
from trainer.errors import RoundRecordError
from trainer.outer import outer_method
from trainer.stage.stage import Stage
from trainer.worker.inbox import RoundKey
from trainer.worker.opening_service import OpeningService
from trainer.worker.round_record import RoundBeginning, read_outer_record, read_steps

LOG = logging.getLogger("cottage.worker")

Parts = dict[str, bytes | bytearray]


def restore(openings: OpeningService, stage: Stage, parts: Iterable[tuple[RestoredPart, bytes | bytearray]]) -> int:
    """Keep what the records give of rounds and outer steps; returns how many of both.

    Args:
        stage: as the job begins: an untrained one.
    """
    rounds: dict[RoundKey, Parts] = {}
    for part, data in parts:
        rounds.setdefault((part.epoch, part.round), {})[part.kind] = data
    return sum(_restore(openings, stage, key, found) for key, found in sorted(rounds.items()))


def _restore(openings: OpeningService, stage: Stage, key: RoundKey, parts: Parts) -> int:
    """One round. A record that cannot be used is none: what it is of is not shown, rather than shown falsely."""
    kept = 0
    try:
        beginning = RoundBeginning.read(stage, parts.get("state", b""), parts.get("moments", b""), key[1])
        if "outer" in parts:
            openings.keep_outer(key, beginning.outer, read_outer_record(parts["outer"], beginning))
            kept += 1
        if "steps" in parts:
            method = outer_method(stage.training, stage.slots, stage.size)
            openings.keep(key, *read_steps(parts["steps"], beginning, method, key[1]))
            kept += 1
    except RoundRecordError as error:
        LOG.warning("round %d cannot be restored: %s", key[1] + 1, error)
    return kept
