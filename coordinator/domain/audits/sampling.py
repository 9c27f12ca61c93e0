"""Which steps of a round are audited: a pure function of the commitments and of the first ledger block after them.

    seed  = SHA-256(domain, job, epoch, round, Merkle root of the commitments, block hash)
    lot   = SHA-256(seed, "member", replica, stage)      one for each commitment
    drawn : the first 8 bytes of the lot, modulo 10^6, lie below the member's rate
    step  : the round's last one where the third 8 bytes are a multiple of LAST, else the second 8 bytes modulo the steps
    outer : SHA-256(seed, "outer", replica, stage) below the rate divided by OUTER; everybody's of a stage whose members differ

The commitments and the rates were stored before the block existed, so nobody can know the draw before it is too late to change
anything, and everybody can repeat it afterwards. Where rates leave fewer than ``least`` steps, the rest is drawn uniformly.
"""

import hashlib
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from protocol.ids import Digest
from protocol.merkle import merkle_root

WHOLE = 1_000_000  # Rates are in millionths: integers, so that every machine draws the same.
# An outer step is shown with 8 bytes a parameter; nobody saves work by a false one, so half of the rate will do.
OUTER = 2
LAST = 4  # One draw in four takes the last step: it alone shows whether the contribution is what the round gives.
_DOMAIN = b"cottage-draw-1"


class Drawable(msgspec.Struct, frozen=True):
    """A commitment that can be drawn.

    Attributes:
        leaves: steps under ``root``.
        rate: probability that one of them is drawn, in millionths.
        outer: what the member says of the outer step; None: nothing, so that cannot be drawn.
    """

    stage: int
    replica: int
    root: Digest
    leaves: int
    rate: Annotated[int, Meta(ge=0, le=WHOLE)] = 0
    outer: Digest | None = None


class Drawn(msgspec.Struct, frozen=True):
    """A step that is audited; the number of the member's steps stands for the outer step after them.

    ``twice``: two auditors of different owners have to find it right.
    """

    stage: int
    replica: int
    step: int
    twice: bool = False


class Beacon(msgspec.Struct, frozen=True):
    """Where a round's draw comes from, kept so that anyone can repeat it.

    Attributes:
        after: the ledger's slot in which the root of the commitments and rates was written; None before that is known.
        slot, block: of the first final block after it; None and empty before it is known.
        least: steps that are drawn whatever the rates say.
        twice: how often a drawn step goes to two auditors, in millionths.
        rates: of each commitment, in the order of ``ordered``.
    """

    after: int | None = None
    slot: int | None = None
    block: str = ""
    least: int = 1
    twice: int = 0
    rates: tuple[int, ...] = ()


def ordered(commitments: Sequence[Drawable]) -> list[Drawable]:
    """The order in which everything is counted: by replica, then by stage."""
    return sorted(commitments, key=lambda c: (c.replica, c.stage))


def commitments_root(commitments: Sequence[Drawable]) -> bytes:
    """Merkle root over what the round's members committed to; 32 bytes."""
    return merkle_root(f"{c.replica}:{c.stage}:{c.leaves}:{c.root}".encode() for c in ordered(commitments))


def seed_of(job: str, epoch: int, number: int, commitments: Sequence[Drawable], block: str) -> bytes:
    """The 32 bytes from which everything about the audits of a round follows.

    Args:
        block: the ledger's block hash, in base 58 as the ledger writes it.
    """
    text = f"{job}:{epoch}:{number}:{block}".encode()
    return hashlib.sha256(_DOMAIN + commitments_root(commitments) + text).digest()


def draw(seed: bytes, commitments: Sequence[Drawable], least: int, twice: int = 0) -> tuple[Drawn, ...]:
    """Each commitment by its own rate; at least ``least`` steps, fewer only where there are not as many.

    Args:
        seed: of ``seed_of``.
        twice: how often a drawn step goes to two auditors, in millionths.
    """
    able = [c for c in ordered(commitments) if c.leaves > 0]
    picked: list[tuple[int, int, int]] = []
    for member in able:
        lot = lot_of(seed, member)
        if lot is not None:
            picked.append((member.stage, member.replica, lot.step))
    picked += _fill(seed, able, picked, least)
    picked += [(member.stage, member.replica, member.leaves) for member in able if _is_outer(seed, member, able)]
    return tuple(Drawn(*place, twice=_is_twice(seed, place, twice)) for place in picked)


class Lot(msgspec.Struct, frozen=True):
    """What a member's own rate has drawn of it. ``last``: the last step, because it is that, and not because any would do."""

    step: int
    last: bool


def lot_of(seed: bytes, member: Drawable) -> Lot | None:
    """The step that a member's own rate draws; None: none."""
    lot = hashlib.sha256(seed + f"member:{member.replica}:{member.stage}".encode()).digest()
    if member.leaves == 0 or _number(lot, 0) % WHOLE >= member.rate:
        return None
    last = _number(lot, 16) % LAST == 0
    return Lot(member.leaves - 1 if last else _number(lot, 8) % member.leaves, last)


def _is_outer(seed: bytes, member: Drawable, able: Sequence[Drawable]) -> bool:
    """Whether the member's outer step is drawn. All replicas of a stage do the same one: where they differ, all are looked at."""
    if member.outer is None:
        return False
    if any(other.stage == member.stage and other.outer not in (None, member.outer) for other in able):
        return True
    lot = hashlib.sha256(seed + f"outer:{member.replica}:{member.stage}".encode()).digest()
    return _number(lot, 0) % WHOLE < member.rate // OUTER


def _fill(
    seed: bytes, able: Sequence[Drawable], picked: Sequence[tuple[int, int, int]], least: int
) -> list[tuple[int, int, int]]:
    """Different steps beside ``picked``, by lot over all steps; nobody twice before everybody once."""
    more: list[tuple[int, int, int]] = []
    drawn = {(stage, replica) for stage, replica, _ in picked}
    fresh = [c for c in able if (c.stage, c.replica) not in drawn]
    wanted, counter = min(least, sum(c.leaves for c in able)) - len(picked), 0
    while len(more) < wanted:
        fresh = fresh or list(able)
        lot = hashlib.sha256(seed + b"fill" + counter.to_bytes(8, "big")).digest()
        place = int.from_bytes(lot, "big") % sum(c.leaves for c in fresh)
        counter += 1
        for member in fresh:
            if place < member.leaves:
                break
            place -= member.leaves
        fresh.remove(member)
        found = (member.stage, member.replica, place)
        if found not in picked and found not in more:
            more.append(found)
    return more


def _is_twice(seed: bytes, place: tuple[int, int, int], twice: int) -> bool:
    return _number(hashlib.sha256(seed + f"twice:{place}".encode()).digest(), 0) % WHOLE < twice


def _number(lot: bytes, at: int) -> int:
    return int.from_bytes(lot[at : at + 8], "big")
