"""Which cell gets what may go to any, by what cells tell of themselves; and which one a node belongs to."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import msgspec

from common.clock import Clock
from common.errors import IdentityError
from coordinator.domain.cells import CellState, awaits, cell_of, place, room, watch
from coordinator.domain.lease import Lease
from coordinator.services.core.errands import Joint
from coordinator.store.ports import Condition, Store, col
from coordinator.web.fronts.cell_lines import LinesToWork
from protocol.identity import verify
from protocol.node import HELLO_CONTEXT, Hello

TOLD_S: Final = 2.0  # Within it what was led to a cell shows in what that one tells.
JOB_S: Final = 60.0  # For so long a new job is counted here: it wants nodes only once it is paid for.

CellStates = Callable[[], Mapping[int, CellState]]


def nothing_told() -> Mapping[int, CellState]:
    """Where no cell tells anything of itself."""
    return {}


@dataclass
class JobInMaking:
    """A job that is being made in a cell. ``made``: it was."""

    made: bool = False


class CellChoice:
    """Chooses, and counts what it has led to each cell meanwhile: many who come at once are spread."""

    def __init__(self, states: CellStates) -> None:
        self._states = states
        self._nodes: deque[tuple[float, int]] = deque()
        self._auditors: deque[tuple[float, int]] = deque()
        self._jobs: deque[tuple[float, int]] = deque()
        self._making: Counter[int] = Counter()

    def for_node(self, node: str, cells: Collection[int], here: Collection[int] = ()) -> int:
        """The one of ``cells`` for a node that may work anywhere: that waits for this one, or lacks most. It is counted there.

        ``here``: those that cost least; each is as good as another one that lacks little more.
        """
        told = self._now(cells)
        chosen = awaits(told, node)
        if chosen is None:
            chosen = place(told, cells, here)
        self._nodes.append((_now(), chosen))
        return chosen

    def for_auditor(self, cells: Collection[int]) -> int:
        """The one of ``cells`` for an auditor of the operator's; it is counted there."""
        chosen = watch(self._now(cells), cells)
        self._auditors.append((_now(), chosen))
        return chosen

    def for_job(self, cells: Collection[int]) -> int:
        """The one of ``cells`` for a job that is not there yet."""
        return room(self._now(cells), cells)

    @contextmanager
    def making(self, cell: int) -> Iterator[JobInMaking]:
        """Count a job of this cell meanwhile, and for a while afterwards if the body says that it was made."""
        job = JobInMaking()
        self._making[cell] += 1
        try:
            yield job
        finally:
            self._making[cell] -= 1
            if job.made:
                self._jobs.append((_now(), cell))

    def _now(self, cells: Collection[int]) -> Mapping[int, CellState]:
        told = self._states()
        nodes, auditors = _lately(self._nodes, TOLD_S), _lately(self._auditors, TOLD_S)
        jobs = _lately(self._jobs, JOB_S) + self._making
        states = {cell: told.get(cell, CellState()) for cell in cells}
        return {cell: _with(state, nodes[cell], auditors[cell], jobs[cell]) for cell, state in states.items()}


class NodeCells:
    """Says which cell a node is led to: that of what it holds, else one that lacks nodes."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        lines: LinesToWork,
        choice: CellChoice,
        return_seconds: float,
        here: Collection[int] = (),
    ) -> None:
        """``return_seconds``: as in ``Config``. ``store``: finds the leases of all cells. ``here``: those of this process."""
        self._store, self._clock, self._lines, self._choice = store, clock, lines, choice
        self._return_seconds, self._here = return_seconds, here
        self._shown: dict[str, float] = {}  # Leases that ran out, and whose nodes were led back without naming them.
        self._held = Joint(self._look_up)

    async def of(self, hello: Hello, nonce: bytes, host: str) -> int:
        """The cell for whoever says ``hello`` to a challenge.

        Raises:
            StoreAwayError: what it holds cannot be read now.
            UnavailableError: no cell is reached.
        """
        if _is_true(hello, nonce, host):  # Of whoever lies nothing is looked up: any cell tells it so.
            if (lease := await self._held.ask(hello)) is not None:
                return cell_of(lease.job, len(self._lines))
            if hello.profile.auditor:
                return self._choice.for_auditor(await self._lines.reach_any())
        return self._choice.for_node(hello.node, await self._lines.reach_any(), self._here)

    async def _look_up(self, hellos: Sequence[Hello]) -> Sequence[Lease | None]:
        found = await self._leases_of({hello.node: hello for hello in hellos})
        return [found.get(hello.node) for hello in hellos]

    async def _leases_of(self, hellos: Mapping[str, Hello]) -> Mapping[str, Lease]:
        """What nodes hold, or may come back with.

        Who names a lease that ran out has its worker. Who does not name it has none, and its cell is shown that once, so that
        nobody waits for it there any longer.
        """
        now, since = self._clock.time(), self._clock.time() - self._return_seconds
        ran_out: Condition = col(Lease.end).equals("expired")
        async with self._store.transaction() as tx:
            held = await tx.find(
                Lease, col(Lease.node).in_(sorted(hellos)), col(Lease.state).in_(("starting", "ready"))
            )
            found = _newest(held)
            left = {node: hello for node, hello in hellos.items() if node not in found}
            if named := sorted({held.lease for hello in left.values() for held in hello.leases}):
                back = await tx.find(Lease, col(Lease.node).in_(sorted(left)), ran_out, col(Lease.id).in_(named))
                found |= _newest([one for one in back if one.id in {held.lease for held in left[one.node].leases}])
                left = {node: hello for node, hello in left.items() if node not in found}
            lost: Sequence[Lease] = ()
            if left:
                lost = await tx.find(Lease, col(Lease.node).in_(sorted(left)), ran_out, col(Lease.ended) > since)
        self._shown = {lease: at for lease, at in self._shown.items() if at > since}
        shown = _newest([lease for lease in lost if lease.id not in self._shown])
        self._shown |= {lease.id: now for lease in shown.values()}
        return found | shown


def _is_true(hello: Hello, nonce: bytes, host: str) -> bool:
    """Whether it is the node's own word, for this challenge."""
    try:
        verify(hello.node, hello.signature, HELLO_CONTEXT, nonce, host.encode())
    except IdentityError:
        return False
    return True


def _newest(leases: Sequence[Lease]) -> dict[str, Lease]:
    """Of each node."""
    return {lease.node: lease for lease in sorted(leases, key=_age)}


def _age(lease: Lease) -> tuple[float, int, str]:
    return lease.granted, lease.fence, lease.id


def _lately(led: deque[tuple[float, int]], seconds: float) -> Counter[int]:
    """How often each cell was chosen within so many seconds; what is older is forgotten."""
    while led and led[0][0] < _now() - seconds:
        led.popleft()
    return Counter(cell for _, cell in led)


def _with(state: CellState, nodes: int, auditors: int, jobs: int) -> CellState:
    """What a cell tells, and what it cannot know yet."""
    return msgspec.structs.replace(
        state,
        wanted=state.wanted + jobs,
        idle=state.idle + nodes,
        nodes=state.nodes + nodes,
        auditors=state.auditors + auditors,
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
