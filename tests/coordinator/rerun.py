"""What a member's round came to, what an honest re-run gives, and how either side of a dispute answers: without any torch."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

from coordinator.domain.audits.dispute import Dispute
from coordinator.domain.job import Job
from protocol.audit import (
    FIRST,
    RESULT,
    AskInputs,
    AskOperation,
    AskState,
    AskTrace,
    BisectAnswer,
    BisectQuery,
    InputsAnswer,
    MemoryRegion,
    OperationAnswer,
    OperationRecord,
    StateAnswer,
    StepLeaf,
    TraceAnswer,
    Write,
    chain,
    sent_digest,
    state_chain,
)
from protocol.boundary import PayloadKey, Position
from protocol.codec import decode, encode
from protocol.merkle import MerkleTree


def digest(*parts: object) -> str:
    """A digest that is the same whoever computes it."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


OPERATIONS = 12
REGION = MemoryRegion(0, 0, "float32", (1,), (1,))


ALONE = Position(0, 1)


@dataclass(frozen=True)
class Committed:
    """A member's steps as it committed to them; those in ``wrong`` are not what their own beginning gives.

    ``round``: names the round that its neighbours did with it, so that what one sends the other receives; ``position`` and
    ``micros``: its place there. ``claims``: what of that it says was otherwise. ``gradient``: what its last leaf binds.
    """

    name: str
    first_step: int
    steps: int
    wrong: frozenset[int]
    env_class: str
    anchor: str
    round: str = ""
    position: Position = ALONE
    micros: int = 0
    claims: str = ""
    gradient: str | None = None

    def state(self, step: int) -> str:
        return digest(self.name, "state", step)

    def sent(self, step: int) -> tuple[str, ...]:
        mine = (self.position.stage, self.position.replica)
        found = [self._payload(key, mine, step, "sent") for key in self.position.produced(self.micros)]
        return tuple(found) or (digest(self.name, "sent", step),)

    def received(self, step: int) -> tuple[str, ...]:
        stage, replica = self.position.stage, self.position.replica
        senders = {"activation": (stage - 1, replica), "gradient": (stage + 1, replica)}
        expected = self.position.expected(self.micros)
        return tuple(self._payload(key, senders[key[0]], step, "received") for key in expected)

    def _payload(self, key: PayloadKey, sender: tuple[int, int], step: int, way: str) -> str:
        false = (self.name,) if self.claims == way else ()
        return digest(self.round, key, sender, step, *false)

    @cached_property
    def leaves(self) -> list[bytes]:
        return [
            encode(
                StepLeaf(
                    self.first_step + step,
                    self.env_class,
                    digest(self.name, "samples", step),
                    self.received(step),
                    self.sent(step),
                    self.state(step - 1),
                    self.state(step),
                    self.anchor,
                    pseudo_gradient=self.gradient if step == self.steps - 1 else None,
                )
            )
            for step in range(self.steps)
        ]

    @cached_property
    def tree(self) -> MerkleTree:
        return MerkleTree(self.leaves)

    def answer(self, query: BisectQuery, bent: bool) -> BisectAnswer:
        """A side's answer. ``bent``: it tells what is not so: a liar its commitment, a false accuser an invention."""
        ask = query.ask
        match ask:
            case AskState():
                state = self._told(ask.step, bent)
                sent = sent_digest(self.sent(ask.step))
                named = state_chain(self.state(ask.step - 1), state, sent, None)
                path = self.tree.proof(ask.step).path
                return BisectAnswer(
                    query.dispute, ask, StateAnswer(named, state, sent, None, self.leaves[ask.step], path)
                )
            case AskTrace():
                root = MerkleTree(self._records(ask.step, bent)).root.hex()
                return BisectAnswer(query.dispute, ask, TraceAnswer(root, OPERATIONS))
            case AskOperation():
                records = self._records(ask.step, bent)
                path = MerkleTree(records).proof(ask.index).path
                return BisectAnswer(query.dispute, ask, OperationAnswer(records[ask.index], path))
            case AskInputs():
                return BisectAnswer(query.dispute, ask, InputsAnswer(digest(self.name, "inputs", ask.index)))

    def _told(self, step: int, bent: bool) -> str:
        if step in self.wrong:
            return self.state(step) if bent else digest(self.name, "honest", step)
        return digest(self.name, "invented", step) if bent else self.state(step)

    def _records(self, step: int, bent: bool) -> list[bytes]:
        forged = int(digest(self.name, step)[:8], 16) % (OPERATIONS - 1)
        made, before = [], FIRST
        for index in range(OPERATIONS):
            last = index == OPERATIONS - 1
            arguments = f"{self._told(step, bent)} {sent_digest(self.sent(step))}" if last else ""
            output = digest("output", index, "bent" if bent and index >= forged else "right")
            name = RESULT if last else f"aten.op{index}"
            record = encode(OperationRecord(index, before, name, "module", arguments, (), (Write(REGION, output),)))
            made.append(record)
            before = chain(before, record)
        return made


class ScriptedJudge:
    """Runs an operation by knowing what it gives. ``due``: record that belongs at the disputed place; None: it cannot be told."""

    def __init__(self, due: bytes | None = None) -> None:
        self.ruled = 0
        self.due = due

    async def belongs(self, job: Job, dispute: Dispute, env_class: str, record: bytes) -> bool | None:
        return None if self.due is None else record == self.due

    async def agrees(self, inputs: str, record: bytes) -> bool | None:
        self.ruled += 1
        said: OperationRecord = decode(record, OperationRecord)
        return said.writes[0].digest == digest("output", said.index, "right")
