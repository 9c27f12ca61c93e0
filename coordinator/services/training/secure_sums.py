"""Secure sums of federated rounds: passes on what owners say, and puts each sum together. Sees nothing else of their updates.

What owners have said lies in this process's memory alone. A round whose sum was begun in another process is given up and done
anew, with other keys and masks: nothing of a sum that was begun is ever used for a second one. Where a round's sum stands is
part of the round (``coordinator.domain.rounds.summing``), and stored with it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path

from coordinator.domain.rounds import round as rounds
from coordinator.domain.rounds.round import Round
from coordinator.domain.rounds.summing import BY_COORDINATOR, PHASES, SumAdded, SumEvent, SumLost, SumMade, due
from coordinator.errors import NotFoundError, StoreAwayError, UnavailableError
from coordinator.services.artifacts.artifacts import CHUNK_BYTES, ArtifactStore
from coordinator.services.core.unit_of_work import JobDesk, UnitOfWork
from protocol.federated.sum_values import beside_of
from protocol.federated.sums import (
    BoxesOfAll,
    KeysOfAll,
    SignedByAll,
    SumAnswer,
    SumAsked,
    SumBegins,
    SummandsOfAll,
    SumSaid,
    SumStep,
    VectorStored,
    terms_of,
)
from protocol.ids import Digest, NodeAddress
from protocol.job.federated import FederatedSpec
from protocol.secure_sum import (
    KeysTold,
    ListSigned,
    MaskedValues,
    SecureSumError,
    SharesShown,
    SharesTold,
    SumServer,
    SumTerms,
)
from protocol.secure_sum.messages import check_keys, check_signed

LOG = logging.getLogger(__name__)
OTHER_PROCESS = "the coordinator has begun anew, and what owners had said for its sum is gone"
Answers = dict[NodeAddress, SumAnswer]


class _Course:
    """A round's sum on its way."""

    def __init__(
        self, key: tuple[int, int], terms: SumTerms, nodes: Mapping[int, NodeAddress], spec: FederatedSpec, clip: float
    ) -> None:
        self.key, self.terms, self.nodes, self.spec, self.clip = key, terms, nodes, spec, clip
        self.server = SumServer(terms)
        self.phase = PHASES[0]
        self.said: dict[type[SumAnswer], Answers] = {}
        self.keys: tuple[KeysTold, ...] = ()
        self.boxes: dict[NodeAddress, dict[NodeAddress, bytes]] = {}
        self.vectors: dict[NodeAddress, Digest] = {}
        self.shown: tuple[SharesShown, ...] = ()
        self.summands: tuple[NodeAddress, ...] = ()
        self.signed: tuple[ListSigned, ...] = ()
        self.queued = ""
        self.event: SumEvent | None = None

    def problem(self, node: NodeAddress, body: SumAnswer) -> str:
        """Why an answer cannot be one of this owner; empty where it can."""
        try:
            if body.owner != node:
                return f"it says what only {body.owner} may say"
            if isinstance(body, KeysTold):
                check_keys(body, self.terms)
            elif isinstance(body, SharesTold) and body.boxes.keys() != {keys.owner for keys in self.keys} - {node}:
                return "its shares are not for those who have told their keys"
            elif isinstance(body, ListSigned):
                check_signed(body, self.terms, self.summands)
        except SecureSumError as error:
            return str(error)
        return ""

    def of(self, kind: type[SumAnswer], current: Round) -> list[SumAnswer]:
        """Answers of those who took part in the phase that is over."""
        assert current.sum is not None
        took = {self.nodes[replica] for replica in current.sum.said.get(self.phase, ())}
        return [answer for node, answer in sorted(self.said.get(kind, {}).items()) if node in took]

    def follow(self, current: Round) -> None:
        """Go on by one phase; raises SecureSumError."""
        match self.phase:
            case "keys":
                self.keys = self.server.keys(one for one in self.of(KeysTold, current) if isinstance(one, KeysTold))
            case "shares":
                told = (one for one in self.of(SharesTold, current) if isinstance(one, SharesTold))
                self.boxes = self.server.boxes(told)
            case "list":
                signed = (one for one in self.of(ListSigned, current) if isinstance(one, ListSigned))
                self.signed = self.server.signatures(signed)
            case "vectors":
                stored = (one for one in self.of(VectorStored, current) if isinstance(one, VectorStored))
                self.vectors = {one.owner: one.artifact for one in stored if one.artifact is not None}
            case "shown":
                self.shown = tuple(one for one in self.of(SharesShown, current) if isinstance(one, SharesShown))
            case _:
                pass  # Vectors are added up, and masks taken off, beside all else.
        self.phase = PHASES[PHASES.index(self.phase) + 1]

    def asked(self, node: NodeAddress) -> SumAsked | None:
        """What an owner is asked now."""
        match self.phase:
            case "keys":
                return SumBegins(self.terms.length)
            case "shares":
                return KeysOfAll(self.keys)
            case "vectors" if node in self.boxes:
                return BoxesOfAll(self.boxes[node])
            case "list":
                return SummandsOfAll(self.summands)
            case "shown":
                return SignedByAll(self.signed)
            case _:
                return None


class SecureSums:
    """Of all jobs; each has one round, and so one sum, at a time."""

    def __init__(self, desk: JobDesk, artifacts: ArtifactStore) -> None:
        self._desk = desk
        self._artifacts = artifacts
        self._courses: dict[str, _Course] = {}
        self._queue: asyncio.Queue[str] = asyncio.Queue()

    def take(self, work: UnitOfWork, lease: str, said: SumSaid) -> str:
        """Keep what an owner has said; returns why it cannot be, or nothing."""
        course, current = self._courses.get(work.job.id), None if work.run is None else work.run.round
        seat = None if current is None else current.seat(lease)
        if course is None or seat is None or (said.epoch, said.round) != course.key:
            return ""
        if why := course.problem(seat.node, said.body):
            return f"in the sum of round {said.round + 1} {why}"
        course.said.setdefault(type(said.body), {}).setdefault(seat.node, said.body)
        return ""

    def attend(self, work: UnitOfWork) -> None:
        """Bring the sum of the round in flight to where the round stands; one that cannot go on makes it void."""
        current = None if work.run is None else work.run.round
        if work.run is None or current is None or current.sum is None or current.phase in ("complete", "void"):
            self._courses.pop(work.job.id, None)
            return
        if current.phase == "applying":
            return
        key, course = (current.epoch, current.number), self._courses.get(work.job.id)
        if course is None or course.key != key:
            if current.sum.said:
                self._lose(work, current, OTHER_PROCESS)
                return
            federated = work.job.spec.federated
            assert federated is not None
            assert federated.privacy is not None
            terms = terms_of(work.job.id, federated, *key, current.sum.length)
            clip = federated.privacy.clip if current.clip is None else current.clip
            course = _Course(key, terms, {seat.replica: seat.node for seat in current.seats}, federated, clip)
            self._courses[work.job.id] = course
        if PHASES.index(course.phase) > PHASES.index(current.sum.phase):  # What it had come to was not stored.
            self._lose(work, current, OTHER_PROCESS)
            return
        try:
            while course.phase != current.sum.phase:
                work.moved_memory = True
                course.follow(current)
        except SecureSumError as error:
            self._lose(work, current, str(error))
            return
        if course.phase in BY_COORDINATOR and course.queued != course.phase:
            course.queued, course.event = course.phase, None
            self._queue.put_nowait(work.job.id)

    def commands(self, work: UnitOfWork, lease: str) -> tuple[SumStep, ...]:
        """What the holder of a lease must have been asked by now for the sum of the round in flight."""
        current = None if work.run is None else work.run.round
        course = self._courses.get(work.job.id)
        if current is None or current.sum is None or course is None or course.phase != current.sum.phase:
            return ()
        seat = current.seat(lease)
        if seat is None or course.key != (current.epoch, current.number):
            return ()
        if seat.replica not in due(current.sum, frozenset(current.whole())):
            return ()
        asked = course.asked(seat.node)
        return () if asked is None else (SumStep(*course.key, asked),)

    def waiting(self) -> bool:
        """Whether a sum waits to be put together."""
        return not self._queue.empty()

    async def run(self, advance: Callable[[UnitOfWork], Awaitable[None]]) -> None:
        """Put sums together, one after the other, for ever; ``advance``: goes on with a job."""
        while True:
            await self.add_next(advance)

    async def add_next(self, advance: Callable[[UnitOfWork], Awaitable[None]]) -> None:
        """Add up the vectors of the sum that waits longest, or take its masks off, as soon as one waits."""
        job = await self._queue.get()
        course = self._courses.get(job)
        if course is None:
            return
        try:
            if course.event is None:  # Else it was done, and could not be stored.
                course.event = await self._done(job, course)
            async with self._desk.open(job) as work:
                current = None if work.run is None else work.run.round
                if current is not None and self._courses.get(job) is course and current.sum is not None:
                    if isinstance(course.event, SumLost):
                        LOG.warning(
                            "the sum of round %d of job %s is lost: %s", current.number + 1, job, course.event.why
                        )
                    work.change_run(round=rounds.summed(current, course.event, work.now))
                    await advance(work)
        except StoreAwayError:
            self._queue.put_nowait(job)
            raise

    async def _done(self, job: str, course: _Course) -> SumEvent:
        try:
            if course.phase == "adding":
                return await self._added(course)
            total = await asyncio.to_thread(course.server.total, course.shown)
            whole = memoryview(total)
            beside = beside_of(whole, course.spec, course.clip, len(course.summands))
            return SumMade(await self._artifacts.put(_pieces(whole), None, len(whole)), dict(beside))
        except (SecureSumError, NotFoundError, UnavailableError) as error:
            LOG.warning("a sum of job %s cannot be made: %s", job, error)
            return SumLost(str(error))

    async def _added(self, course: _Course) -> SumEvent:
        """The sum of all masked vectors; whose is not whole is no summand."""
        async with self._artifacts.files(*course.vectors.values()) as files:
            vectors = _vectors([*course.vectors], files)
            course.summands = await asyncio.to_thread(course.server.summands, vectors)
        places = {node: replica for replica, node in course.nodes.items()}
        return SumAdded(tuple(sorted(places[node] for node in course.summands)))

    def _lose(self, work: UnitOfWork, current: Round, why: str) -> None:
        self._courses.pop(work.job.id, None)
        work.change_run(round=rounds.summed(current, SumLost(why), work.now))


def _vectors(owners: Sequence[NodeAddress], files: Sequence[Path]) -> Iterator[MaskedValues]:
    """One in memory at a time."""
    for owner, file in zip(owners, files, strict=True):
        yield MaskedValues(owner, file.read_bytes())


async def _pieces(whole: memoryview) -> AsyncIterator[bytes]:
    for start in range(0, len(whole), CHUNK_BYTES):
        yield bytes(whole[start : start + CHUNK_BYTES])
