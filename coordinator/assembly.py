"""The services of a coordinator, made and wired together; nothing runs yet."""

import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from common.clock import Clock
from coordinator.config import Config
from coordinator.domain.cells import WHOLE, Cell, CellState
from coordinator.services.accounts.expiry import Forgetting
from coordinator.services.accounts.notification_settings import NoticeService
from coordinator.services.arrays.array_jobs import ArrayJobs
from coordinator.services.arrays.element_books import ElementBooks
from coordinator.services.arrays.element_results import ElementResults
from coordinator.services.arrays.open_arrays import OpenArrays
from coordinator.services.artifacts.access import ArtifactAccess
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.checkpoints import Checkpoints
from coordinator.services.artifacts.dataset_checks import DatasetChecks
from coordinator.services.artifacts.deliveries import Deliveries
from coordinator.services.artifacts.disk_space import Room
from coordinator.services.artifacts.evaluations import Evaluations, TaskRunner
from coordinator.services.artifacts.inference import Generator, InferenceTrials
from coordinator.services.artifacts.models import ModelWorkshop
from coordinator.services.artifacts.output_buckets import OutputBuckets, OutsideBuckets
from coordinator.services.artifacts.outputs import JobOutputs
from coordinator.services.artifacts.retention import Keeping
from coordinator.services.artifacts.step_openings import StepOpenings
from coordinator.services.audits.auditor_capacity import Watching
from coordinator.services.audits.boundary_checks import Boundaries
from coordinator.services.audits.canaries import Canaries, Forger
from coordinator.services.audits.deadlines import Deadlines
from coordinator.services.audits.disputes import DisputeService, Judge, Referee
from coordinator.services.audits.late_openings import Returns
from coordinator.services.audits.operator_audits import Looks
from coordinator.services.audits.sampling import AuditSampling
from coordinator.services.audits.verification import Verification
from coordinator.services.core.context import Context
from coordinator.services.core.egress import outside_session
from coordinator.services.core.leases import Leases
from coordinator.services.core.logs import JobLogs
from coordinator.services.core.notifications import NoticeDelivery, OpenSession
from coordinator.services.core.store_retry import Patience
from coordinator.services.core.unit_of_work import JobDesk
from coordinator.services.drivers.bonded_disputes import BondedDisputes
from coordinator.services.drivers.draw_blocks import DrawBlocks
from coordinator.services.drivers.maintenance import Maintenance
from coordinator.services.drivers.node_protocol import NodeProtocol
from coordinator.services.jobs.jobs import JobService
from coordinator.services.jobs.unpaid import Unpaid
from coordinator.services.network.cell_nodes import NodeExchange
from coordinator.services.network.far_nodes import NodesBeside
from coordinator.services.network.link_telemetry import Links
from coordinator.services.network.machine_days import MachineDays
from coordinator.services.network.nodes import Nodes
from coordinator.services.network.relay_assignment import RelayAssignment
from coordinator.services.network.relays import Relays
from coordinator.services.operation.operator_service import OperatorService
from coordinator.services.payments.chain import ChainPort
from coordinator.services.payments.confirmations import Confirmations
from coordinator.services.payments.funding import FundingService
from coordinator.services.payments.outbox_lanes import Lanes
from coordinator.services.payments.promises import PromiseService
from coordinator.services.payments.settlement import ClaimsBeside, Settlement
from coordinator.services.payments.stakes import StakeService
from coordinator.services.payments.withdrawals import Sponsor, WithdrawalService
from coordinator.services.recovery.job_records import RecordsSeal
from coordinator.services.recovery.keepers import RecordKeepers
from coordinator.services.serving.checks import AnswerChecks
from coordinator.services.serving.deployments import Deployments
from coordinator.services.serving.homes import Homes
from coordinator.services.serving.private import PrivateSessions
from coordinator.services.serving.proofs import AnswerProofs
from coordinator.services.training.federations import Federations, FederationsBeside
from coordinator.services.training.runs import Runs
from coordinator.services.training.secure_sums import SecureSums
from coordinator.services.training.staffing import Staffing
from coordinator.services.views.ledger_views import BookService
from coordinator.services.views.market_views import MarketService
from coordinator.services.views.network_views import NetworkService
from coordinator.services.views.vital_signs import VitalSigns
from coordinator.store.noticing import NoticingStore
from coordinator.store.ports import Store
from coordinator.web.fronts.between import BetweenCells
from protocol.identity import NodeKey

# What is done for all cells at once, by the first one.
_ONCE = frozenset({"withdrawals", "notices", "keeping", "forgetting", "checks"})


class CellsBeside(NodesBeside, FederationsBeside, ClaimsBeside, Protocol):
    """The other cells of a network, as one asks them."""


@dataclass(frozen=True)
class AmongCells:
    """What the coordinator of one cell has to do with the others.

    Attributes:
        beside: they. ``states``: what they told within seconds.
        tell: lets them know how this cell does.
        stay: auditors that run beside this coordinator, and know no other one.
    """

    cell: Cell
    beside: CellsBeside
    states: Callable[[], Mapping[int, CellState]]
    tell: Callable[[CellState], None]
    stay: frozenset[str] = frozenset()


@dataclass(frozen=True)
class CoordinatorParts:
    """A coordinator taken apart: what the application, the loops and tests hold on to."""

    context: Context
    desk: JobDesk
    leases: Leases
    nodes: Nodes
    runs: Runs
    conversation: NodeProtocol
    settlement: Settlement
    funding: FundingService
    lanes: Lanes
    draw_blocks: DrawBlocks
    referee: Referee
    bonds: BondedDisputes
    canaries: Canaries
    upkeep: Maintenance
    jobs: JobService
    network: NetworkService
    market: MarketService
    books: BookService
    outputs: JobOutputs
    notice_settings: NoticeService
    notices: NoticeDelivery
    relays: Relays
    relay_assignment: RelayAssignment
    patience: Patience
    stakes: StakeService
    withdrawals: WithdrawalService
    doors: ArtifactAccess
    keeping: Keeping
    unpaid: Unpaid
    forgetting: Forgetting
    days: MachineDays
    buckets: OutputBuckets
    evaluations: Evaluations
    operation: OperatorService
    homes: Homes
    answer_checks: AnswerChecks
    answer_proofs: AnswerProofs
    private: PrivateSessions
    elements: ElementBooks
    federations: Federations
    checks: DatasetChecks | None = None
    vital_signs: VitalSigns | None = None
    exchange: NodeExchange | None = None
    between: BetweenCells | None = None

    async def recover(self) -> None:
        """Continue what an earlier process left in the database, or this one before it was away."""
        self.desk.forget()
        await self.leases.recover()
        await self.nodes.recover()
        await self.upkeep.recover()

    def loops(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """What runs for ever beside the answers, by name; while the store is away it waits."""
        return {name: self._lasting(name, loop) for name, loop in self._loops().items()}

    def _lasting(self, name: str, loop: Callable[[], Awaitable[None]]) -> Callable[[], Coroutine[Any, Any, None]]:
        back = self.recover if name == "upkeep" else None
        return lambda: self.patience.forever(name, loop, back)

    def _loops(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        loops: dict[str, Callable[[], Awaitable[None]]] = {
            "upkeep": self.upkeep.run,
            "payments": self.lanes.run,
            "draw-blocks": self.draw_blocks.run,
            "referee": self.referee.run,
            "bonds": self.bonds.run,
            "canaries": self.canaries.run,
            "escrows": self.upkeep.watch_escrows,
            "assembly": self.upkeep.assemble,
            "sums": partial(self.runs.sums.run, self.runs.advance),
            "lenders": self.nodes.watch_lenders,
            "stakes": self.stakes.run,
            "withdrawals": self.withdrawals.run,
            "relays": self.relays.watch,
            "notices": self.notices.run,
            "keeping": self.keeping.run,
            "output-buckets": self.buckets.run,
            "evaluations": self.evaluations.run,
            "homes": self.homes.watch,
            "answer-checks": self.answer_checks.run,
            "answer-proofs": self.answer_proofs.run,
            "unpaid": self.unpaid.run,
            "forgetting": self.forgetting.run,
            "machine-days": self.days.run,
            "ice-servers": self.relay_assignment.watch,
        }
        loops |= {} if self.checks is None else {"checks": self.checks.run}
        loops |= {} if self.vital_signs is None else {"vital-signs": self.vital_signs.run}
        loops |= {} if self.exchange is None else {"exchange": self.exchange.run}
        loops |= {} if self.between is None else {"between": self.between.run}
        return {name: loop for name, loop in loops.items() if self.context.cell.number == 0 or name not in _ONCE}


def _endless() -> int:
    """Where there is no room to be kept, as in worlds without a disk."""
    return 1 << 62


@dataclass(frozen=True)
class _Rounds:
    """What plans, checks and pays the rounds of jobs."""

    watching: Watching
    drawing: AuditSampling
    disputes: DisputeService
    verification: Verification
    promises: PromiseService
    settlement: Settlement
    funding: FundingService
    lanes: Lanes
    runs: Runs
    homes: Homes
    deployments: Deployments
    looks: Looks


def _rounds(
    context: Context,
    desk: JobDesk,
    leases: Leases,
    nodes: Nodes,
    links: Links,
    chain: ChainPort,
    coordinator: str,
    open_arrays: OpenArrays,
    artifacts: ArtifactStore,
    beside: ClaimsBeside | None,
) -> _Rounds:
    deadlines = Deadlines(context, nodes, links)
    disputes = DisputeService(context, nodes, deadlines)
    watching = Watching(context.config, nodes)
    drawing = AuditSampling(context, watching, deadlines)
    boundaries = Boundaries(context, nodes, leases, drawing)
    verification = Verification(context, nodes, leases, disputes, boundaries, deadlines)
    promises = PromiseService(context, chain)
    settlement = Settlement(context, desk, promises, beside)
    funding = FundingService(desk, chain, coordinator, settlement)
    lanes = Lanes(context, desk, chain, promises, Confirmations(desk, chain, promises, funding))
    looks = Looks(context, desk, nodes, leases)
    context.metrics.watch(looks.gauges)
    homes = Homes(context, desk, nodes)
    deployments = Deployments(context, nodes, settlement, homes, links)
    staffing = Staffing(context, nodes, links, watching)
    arrays = ArrayJobs(context, nodes, settlement, open_arrays)
    sums = SecureSums(desk, artifacts)
    runs = Runs(context, nodes, staffing, looks, drawing, verification, settlement, deployments, arrays, sums)
    made = (watching, drawing, disputes, verification, promises, settlement, funding, lanes)
    return _Rounds(*made, runs, homes, deployments, looks)


def assemble(
    config: Config,
    clock: Clock,
    store: Store,
    chain: ChainPort,
    models: ModelWorkshop,
    artifacts: ArtifactStore,
    coordinator: str,
    test_wallet: str | None,
    entropy: Callable[[int], bytes] = secrets.token_bytes,
    judge: Judge | None = None,
    forger: Forger | None = None,
    generator: Generator | None = None,
    task_runner: TaskRunner | None = None,
    outside: OpenSession | None = None,
    deliveries: Deliveries | None = None,
    room: Room | None = None,
    sponsor: Sponsor | None = None,
    key: NodeKey | None = None,
    among: AmongCells | None = None,
) -> CoordinatorParts:
    """Wire the services; nothing runs yet. ``key``: by which it proves to nodes who it is; ``among``: other cells."""
    context = Context(config, clock, NoticingStore(store), entropy, cell=WHOLE if among is None else among.cell)
    leases = Leases(context)
    desk = JobDesk(context, leases)
    links = Links(context)
    context.metrics.watch(links.gauges)
    relays = Relays(context, links)
    beside = None if among is None else among.beside
    nodes = Nodes(context, leases, chain, coordinator, lambda n: relays.servers(relays.order(n), n), key, beside)
    open_arrays = OpenArrays(context, nodes, artifacts)
    rounds = _rounds(context, desk, leases, nodes, links, chain, coordinator, open_arrays, artifacts, beside)
    runs, drawing, promises, settlement = rounds.runs, rounds.drawing, rounds.promises, rounds.settlement
    referee = Referee(context, desk, rounds.disputes, runs.advance, judge)
    draw_blocks = DrawBlocks(context, desk, drawing, runs, chain)
    logs, checkpoints = JobLogs(context), Checkpoints(context, artifacts, models)
    deliveries = deliveries or Deliveries(store, clock)
    doors = ArtifactAccess(context, nodes, deliveries, room, open_arrays)
    returns = Returns(desk, leases, nodes, doors, runs.advance)
    talk = (context, desk, leases, nodes, runs, rounds.verification, links, settlement, promises, logs)
    private = PrivateSessions(context, nodes, rounds.homes, relays)
    kinds = (ElementResults(context, artifacts, deliveries), federations := Federations(context, desk, runs, beside))
    proofs = AnswerProofs(context, desk, nodes, rounds.deployments, generator)
    conversation = NodeProtocol(*talk, rounds.watching, doors, returns, rounds.homes, proofs, private, *kinds)
    open_arrays.attend(desk)
    keepers = None if key is None else RecordKeepers(context, desk, leases, nodes, RecordsSeal(key.seed))
    upkeep = Maintenance(context, desk, leases, conversation, runs, rounds.funding, models, returns, keepers)
    unpaid = Unpaid(context, desk, runs, rounds.funding, artifacts, artifacts.total if room is not None else _endless)
    asked = (context, desk, nodes, links, runs, rounds.funding, chain, models, artifacts, checkpoints)
    jobs = JobService(*asked, coordinator, test_wallet, conversation.traffic, unpaid, rounds.homes)
    network = NetworkService(context, nodes, leases, chain, relays, coordinator, test_wallet is not None)
    days, patience = MachineDays(context, nodes), Patience(clock, context.metrics)
    market = MarketService(context, nodes, leases, links, relays, chain, coordinator, days)
    books = BookService(context, chain, nodes, leases, coordinator, promises)
    buckets = OutputBuckets(context, artifacts, checkpoints, OutsideBuckets(clock, config.webhook_networks))
    asking = InferenceTrials(context, checkpoints, generator, rounds.homes)
    outputs = JobOutputs(checkpoints, asking, logs, StepOpenings(context, artifacts), buckets)
    work = (context, desk, leases, nodes, runs, conversation, settlement, rounds.funding, rounds.lanes)
    found = (draw_blocks, referee, BondedDisputes(context, desk, chain, drawing), Canaries(context, desk, forger))
    shown = (upkeep, jobs, network, market, books, outputs)
    told = (*_notices(context, outside), relays, RelayAssignment(context, leases, nodes, relays, links), patience)
    money = (StakeService(context, nodes, leases, chain, coordinator), WithdrawalService(context, sponsor))
    files = (doors, keeping := Keeping(context, artifacts, checkpoints.folders), unpaid)
    forgetting = Forgetting(context, partial(_is_here, nodes))
    evaluations = Evaluations(context, desk, checkpoints, task_runner)
    operation = OperatorService(context, leases, nodes, jobs, artifacts, keeping, conversation.traffic, rounds.homes)
    checks = AnswerChecks(context, desk, rounds.homes, rounds.deployments, generator)
    served = (rounds.homes, checks, proofs, private, ElementBooks(context, open_arrays, artifacts))
    parts = (*work, *found, *shown, *told, *money, *files, forgetting, days, buckets, evaluations, operation, *served)
    return CoordinatorParts(*parts, federations, exchange=_exchange(context, nodes, leases, rounds, among))


def _is_here(nodes: Nodes, node: str) -> bool:
    """Whether a node is connected, here or to another cell."""
    return nodes.session(node) is not None or nodes.elsewhere.get(node) is not None


def _exchange(
    context: Context, nodes: Nodes, leases: Leases, rounds: _Rounds, among: AmongCells | None
) -> NodeExchange | None:
    """What lets nodes go where another cell lacks them."""
    if among is None:
        return None
    known = (rounds.runs.arrays.staffing, among.tell, among.states, rounds.looks.unmet, among.stay)
    return NodeExchange(context, nodes, leases, *known)


def _notices(context: Context, outside: OpenSession | None) -> tuple[NoticeService, NoticeDelivery]:
    """What people choose to be told, and what tells them; ``outside``: opens sessions to their webhooks."""
    config = context.config
    opens = outside or (lambda: outside_session(allowed=config.webhook_networks))
    return NoticeService(context, config.mail is not None), NoticeDelivery(context, opens, config.mail)
