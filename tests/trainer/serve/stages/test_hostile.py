"""What a neighbour sends that is not what it should be: it costs the answers under way, and nothing else."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from protocol.codec import encode
from protocol.serving import GenerateCommand, RefusedReport, Sampling
from protocol.worker import PeerSend, TensorName
from tests.trainer.serve.answering import end_of
from tests.trainer.serve.stages.ring import Ring, ring
from tests.trainer.serve.test_grammar import folder  # noqa: F401 - a fixture
from trainer.serve.stages.order import AHEAD, PayloadOrder, PayloadRoom
from trainer.serve.stages.passes import DrawnHeader, DrawnRow, PassHeader, longest_payload, unpack_drawn, unpack_pass

HIDDEN = 32
ASKED = GenerateCommand("asked", "A quick brown fox", tokens=12, sampling=Sampling(seed=4))
Change = Callable[[bytes], bytes]


def packed(header: msgspec.Struct, states: bytes = b"") -> bytes:
    data = encode(header)
    return struct.pack("<I", len(data)) + data + states


def passing(change: Callable[[PassHeader], PassHeader], extra: int = 0) -> Change:
    """Another header, with as many numbers as it says."""

    def changed(payload: bytes) -> bytes:
        header = change(unpack_pass(payload, HIDDEN)[0])
        return packed(header, np.ones(header.tokens * HIDDEN + extra, "<f4").tobytes())

    return changed


def rows(**more: Any) -> Change:
    """Its rows otherwise."""
    return passing(
        lambda header: msgspec.structs.replace(
            header, rows=tuple(msgspec.structs.replace(row, **more) for row in header.rows)
        )
    )


def drawing(change: Callable[[DrawnRow], DrawnRow]) -> Change:
    def changed(payload: bytes) -> bytes:
        header, _ = unpack_drawn(payload, HIDDEN)
        return packed(msgspec.structs.replace(header, rows=tuple(change(row) for row in header.rows)))

    return changed


def twice(header: PassHeader) -> PassHeader:
    return msgspec.structs.replace(header, rows=header.rows * 2)


PASSES: dict[str, Change] = {
    "nothing": lambda _: b"",
    "no header": lambda _: b"\xff" * 40,
    "no message": lambda _: struct.pack("<I", 4) + b"abcd",
    "a longer header than there is": lambda payload: struct.pack("<I", 1 << 30) + payload[4:],
    "cut off": lambda payload: payload[:-3],
    "too long": lambda payload: payload + b"\0" * 4,
    "not finite": lambda payload: payload[:-4] + struct.pack("<f", float("nan")),
    "another request": rows(number=77),
    "behind the end": rows(first=250),
    "behind what is computed": rows(first=100),
    "more tokens than a pass has": rows(count=511),
    "two rows of a request": passing(twice),
    "drafts that are not there": rows(drafts=(1, 2, 3, 4, 5, 6, 7, 8), count=2),
    "closed and never opened": passing(
        lambda header: msgspec.convert(
            msgspec.to_builtins(header) | {"closed": [{"number": 5, "length": 2}]}, PassHeader, strict=False
        )
    ),
    "too large for a half": lambda payload: payload[: -4 * HIDDEN] + struct.pack("<f", 3e38) * HIDDEN,
}
DRAWN: dict[str, Change] = {
    "nothing": lambda _: b"",
    "no message": lambda _: struct.pack("<I", 4) + b"abcd",
    "more behind it": lambda payload: payload + b"\0",
    "no such token": drawing(lambda row: msgspec.structs.replace(row, tokens=(100_000,))),
    "no such token beside it": drawing(
        lambda row: msgspec.convert(
            msgspec.to_builtins(row) | {"noted": [[[2_000_000_000, -1.0], []]]}, DrawnRow, strict=False
        )
    ),
    "more tokens than drafts": drawing(lambda row: msgspec.structs.replace(row, tokens=(1, 2))),
    "another request": drawing(lambda row: msgspec.structs.replace(row, number=row.number + 1)),
    "likelihoods that nobody asked for": drawing(
        lambda row: msgspec.convert(msgspec.to_builtins(row) | {"noted": [[[1, -1.0], []]]}, DrawnRow, strict=False)
    ),
    "no rows": lambda _: packed(DrawnHeader()),
    "an answer without tokens": drawing(lambda row: msgspec.structs.replace(row, tokens=())),
    "too many rows": lambda payload: packed(twice_drawn(payload)),
}


def twice_drawn(payload: bytes) -> DrawnHeader:
    header, _ = unpack_drawn(payload, HIDDEN)
    return msgspec.structs.replace(header, rows=header.rows * 2)


async def once(here: Ring, stage: int, change: Change) -> str:
    """What is said of an answer whose third payload of a stage is another one; the next answer is right."""

    def changed(sender: int, _name: PeerSend, payload: bytes) -> bytes:
        return change(payload) if sender == stage and here.payloads[stage] == 3 else payload

    here.change = changed
    end = (await here.over(ASKED))[ASKED.id][-1]
    here.change = lambda _stage, _name, payload: payload
    found = await here.over(msgspec.structs.replace(ASKED, id="next"))
    assert end_of(found["next"]).tokens == 12
    if not isinstance(end, RefusedReport):
        return ""
    assert end.code == "failed"
    return end.detail


async def test_passes_that_cannot_be_end_what_is_under_way_and_nothing_else(folder: Path) -> None:  # noqa: F811
    said = {}
    for name, change in PASSES.items():
        async with ring(folder, 3) as here:
            said[name] = await once(here, 1, change)
    assert said.pop("too large for a half") in ("", "a stage could not go on: what stage 2 computed is not finite")
    assert all(detail.startswith("a stage could not go on: ") for detail in said.values()), said
    assert len(set(said.values())) > 8


async def test_draws_that_cannot_be_end_what_is_under_way_and_nothing_else(folder: Path) -> None:  # noqa: F811
    said = {}
    for name, change in DRAWN.items():
        async with ring(folder, 2) as here:
            said[name] = await once(here, 1, change)
    assert all(said.values()), said


async def test_a_first_stage_that_sends_garbage_breaks_no_stage(folder: Path) -> None:  # noqa: F811
    async with ring(folder, 3) as here:
        assert await once(here, 0, PASSES["no message"])


async def test_payloads_of_others_and_long_ones_are_not_even_read(folder: Path) -> None:  # noqa: F811
    async with ring(folder, 3) as here:
        name = TensorName("pass", 1, 0, 0, 0)
        middle = here.stages[1]
        assert middle.takes(name, 0, 0, 100)
        assert not middle.takes(name, 2, 0, 100)
        assert not middle.takes(name, 0, 1, 100)
        assert not middle.takes(msgspec.structs.replace(name, kind="drawn"), 0, 0, 100)
        assert not middle.takes(name, 0, 0, longest_payload(HIDDEN) + 1)
        assert here.lead.takes(msgspec.structs.replace(name, kind="drawn"), 2, 0, 100)
        assert not here.lead.takes(msgspec.structs.replace(name, kind="drawn"), 1, 0, 100)
        middle.deliver(name, 2, 0, b"x")
        assert end_of((await here.over(ASKED))[ASKED.id]).tokens == 12


def test_payloads_come_in_order_of_one_epoch_and_have_room_for_so_many() -> None:
    room = PayloadRoom(10)
    order = PayloadOrder(room)

    def put(epoch: int, step: int, size: int = 1) -> bool:
        return room.take(size) and order.put(TensorName("pass", epoch, 0, step, 0), bytes(size))

    assert put(3, 1)
    assert put(2, 0)
    assert list(order.ready()) == []
    order.join(3)
    assert not put(2, 5), "of an epoch before"
    assert list(order.ready()) == []
    assert put(3, 0)
    assert not put(3, 0), "there already"
    assert [step for step, _ in order.ready()] == [0, 1]
    assert not put(3, 1), "was there"
    assert not put(3, 2 + AHEAD), "nobody is so far"
    assert put(3, 2, 10), "all room is free again"
    assert not room.take(1)
