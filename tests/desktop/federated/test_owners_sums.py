"""An agent's part in secure sums: what it says, when, and that an update leaves under masks or not at all."""

import asyncio
import hashlib
import os

import msgspec
import numpy as np
import pytest

from desktop.agent.base.payloads import Payload, SmallPayload
from desktop.agent.errors import UnwantedError, WorkerError
from desktop.agent.federated.summing import OwnersSums
from protocol.artifacts import summand_answer
from protocol.federated.sum_messages import KeysTold, ListSigned, MaskedValues, SharesShown, SharesTold
from protocol.federated.sums import (
    BoxesOfAll,
    KeysOfAll,
    SignedByAll,
    SumAsked,
    SumBegins,
    SummandsOfAll,
    SumSaid,
    SumStep,
    VectorStored,
    terms_of,
)
from protocol.identity import NodeKey
from protocol.job.federated import FederatedSpec, PrivacySpec
from protocol.job.job import JobSpec, ModelSpec, TokenizerSpec
from protocol.node import Assign
from protocol.plan import Layers, Member, Plan
from protocol.secure_sum import SumServer
from protocol.task import TaskReport
from protocol.worker import SumVector

KEYS = [NodeKey(bytes([9, number]) * 16) for number in range(4)]
OWNERS = tuple(key.address for key in KEYS)
JOB, LENGTH = "a" * 32, 500
FEDERATED = FederatedSpec(OWNERS, 3, 3, PrivacySpec(noise_multiplier=2.0, most_rounds=3), "secure")
SPEC = JobSpec("wards", ModelSpec("tiny-llama"), 1, tokenizer=TokenizerSpec("bytes"), federated=FEDERATED)
PLAN = Plan(1, (Layers(0, 2),), tuple(Member(0, number, owner) for number, owner in enumerate(OWNERS)))


class Home:
    """One owner's agent, as far as sums go."""

    def __init__(self, number: int) -> None:
        self.number, self.said, self.stored = number, list[SumSaid](), dict[str, bytes]()
        self.unwanted = False
        assign = Assign(f"{number}" * 32, 1, JOB, SPEC, 0, number, PLAN, {})
        self.sums = OwnersSums(assign, KEYS[number], self._store, self._say)
        self.update = np.random.default_rng(number).integers(0, 1 << 32, LENGTH, dtype=np.uint32)

    async def _store(self, payload: Payload, digest: str, answers: str, _urgent: bool) -> None:
        if self.unwanted:
            raise UnwantedError("its round is over")
        assert answers in (summand_answer(1, 0), summand_answer(2, 0))
        data = payload.read()
        assert hashlib.sha256(data).hexdigest() == digest
        self.stored[digest] = data

    async def _say(self, body: TaskReport, reliable: bool) -> None:
        assert reliable
        assert isinstance(body, SumSaid)
        self.said.append(body)

    async def asked(self, body: SumAsked, epoch: int = 1) -> None:
        await self.sums.step(SumStep(epoch, 0, body))

    def last(self, kind: type) -> object:
        body = self.said[-1].body
        assert isinstance(body, kind), body
        return body

    def vector(self, epoch: int = 1) -> asyncio.Task[None]:
        return asyncio.create_task(self.sums.vector(SumVector(epoch, 0), SmallPayload(self.update.tobytes())))


def homes(epoch: int = 1) -> list[Home]:
    made = [Home(number) for number in range(4)]
    for home in made:
        home.sums.begins(epoch, 0)
    return made


async def all_told(made: list[Home], server: SumServer, epoch: int = 1) -> dict[str, dict[str, bytes]]:
    for home in made:
        await home.asked(SumBegins(LENGTH), epoch)
    told = server.keys([home.last(KeysTold) for home in made])  # type: ignore[misc]
    for home in made:
        await home.asked(KeysOfAll(told), epoch)
    return server.boxes([home.last(SharesTold) for home in made])  # type: ignore[misc]


async def test_agents_come_to_the_sum_though_one_drops_out_and_updates_come_before_or_after_boxes() -> None:
    made = homes()
    server = SumServer(terms_of(JOB, FEDERATED, 1, 0, LENGTH))
    early = made[0].vector()  # Its worker is quicker than the others' agents.
    boxes = await all_told(made, server)
    assert not early.done()
    assert made[0].stored == {}
    for home in made[:3]:
        await home.asked(BoxesOfAll(boxes[OWNERS[home.number]]))
        await home.asked(BoxesOfAll(boxes[OWNERS[home.number]]))  # The coordinator says it again after a reconnect.
    await early
    for home in made[1:3]:
        await home.vector()
    sent = [MaskedValues(OWNERS[home.number], next(iter(home.stored.values()))) for home in made[:3]]
    for home, masked in zip(made[:3], sent, strict=True):
        named = home.last(VectorStored)
        assert isinstance(named, VectorStored)
        assert named.artifact == hashlib.sha256(masked.values).hexdigest()
        assert masked.values != home.update.tobytes()
    summands = server.summands(sent)
    for home in made[:3]:
        await home.asked(SummandsOfAll(summands))
    signed = server.signatures([home.last(ListSigned) for home in made[:3]])  # type: ignore[misc]
    for home in made[:3]:
        await home.asked(SignedByAll(signed))
    total = server.total([home.last(SharesShown) for home in made[:3]])  # type: ignore[misc]
    due = np.sum([home.update for home in made[:3]], axis=0, dtype=np.uint32)
    assert np.array_equal(np.frombuffer(total, "<u4"), due)
    assert [len(home.said) for home in made] == [5, 5, 5, 2], "each answer once"


async def test_of_a_round_that_was_not_begun_here_nothing_is_said() -> None:
    """Begun means counted: no update leaves beyond what the owner agreed to."""
    home = Home(0)
    await home.asked(SumBegins(LENGTH))
    await home.vector()
    assert home.said == []
    home.sums.begins(2, 0)
    await home.asked(SumBegins(LENGTH), epoch=1)
    assert home.said == []
    home.sums.begins(1, 0)  # An older round never comes back.
    await home.asked(SumBegins(LENGTH), epoch=1)
    assert home.said == []
    await home.asked(SumBegins(LENGTH), epoch=2)
    assert isinstance(home.last(KeysTold), KeysTold)


async def test_a_round_that_is_done_again_has_other_keys_and_masks_and_the_old_update_stays() -> None:
    made = homes()
    server = SumServer(terms_of(JOB, FEDERATED, 1, 0, LENGTH))
    await all_told(made, server)
    waiting = made[0].vector()
    await asyncio.sleep(0)
    before = [home.said[0].body for home in made]
    for home in made:
        home.sums.begins(2, 0)
    await waiting
    assert made[0].stored == {}, "its round was given up before anybody's boxes came"
    again = SumServer(terms_of(JOB, FEDERATED, 2, 0, LENGTH))
    boxes = await all_told(made, again, epoch=2)
    after = [home.said[-2].body for home in made]
    for old, new in zip(before, after, strict=True):
        assert isinstance(old, KeysTold)
        assert isinstance(new, KeysTold)
        assert {old.masking, old.sealing}.isdisjoint({new.masking, new.sealing})
    await made[0].asked(BoxesOfAll(boxes[OWNERS[0]]), epoch=2)
    await made[0].vector(epoch=2)
    assert len(made[0].stored) == 1


async def test_a_coordinator_that_lies_is_told_nothing_more() -> None:
    made = homes()
    for home in made:
        await home.asked(SumBegins(LENGTH))
    told = tuple(home.last(KeysTold) for home in made)
    with pytest.raises(WorkerError, match="2 of 4 owners are here"):
        await made[0].asked(KeysOfAll(told[:2]))  # type: ignore[arg-type]
    forged = msgspec.structs.replace(told[1], masking=os.urandom(32))  # type: ignore[type-var]
    with pytest.raises(WorkerError, match="is not signed by it"):
        await made[2].asked(KeysOfAll((told[0], forged, told[2])))  # type: ignore[arg-type]
    with pytest.raises(WorkerError, match="each answer is given once, in order"):
        await made[3].asked(SummandsOfAll(OWNERS))
    fresh = homes()[0]
    with pytest.raises(WorkerError, match="it was not begun"):
        await fresh.asked(KeysOfAll(told))  # type: ignore[arg-type]


async def test_an_update_of_another_length_is_not_masked() -> None:
    made = homes()
    server = SumServer(terms_of(JOB, FEDERATED, 1, 0, LENGTH))
    boxes = await all_told(made, server)
    await made[0].asked(BoxesOfAll(boxes[OWNERS[0]]))
    with pytest.raises(WorkerError, match="2,004 bytes where 2,000 are due"):
        await made[0].sums.vector(SumVector(1, 0), SmallPayload(bytes(2004)))
    assert made[0].stored == {}


async def test_a_masked_update_that_comes_too_late_is_no_failure() -> None:
    made = homes()
    server = SumServer(terms_of(JOB, FEDERATED, 1, 0, LENGTH))
    boxes = await all_told(made, server)
    made[0].unwanted = True
    await made[0].asked(BoxesOfAll(boxes[OWNERS[0]]))
    await made[0].vector()
    assert isinstance(made[0].last(SharesTold), SharesTold)
