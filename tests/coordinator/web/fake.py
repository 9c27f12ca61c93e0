"""A network and its jobs in memory: behaves like the services do, so that the web layer can be seen without them.

``Cluster`` implements ``ports.JobsPort`` and ``ports.NetworkPort``. A job lives from created to settled, a ``step`` a round;
its loss falls on a fixed curve, so that screenshots and tests are the same every time.
"""

import hashlib
import math
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from itertools import count
from typing import TypeVar

import msgspec

from common.base58 import ALPHABET
from coordinator.bus import Bus
from coordinator.client.text import JOB_SENTENCES
from coordinator.domain.account import LOCAL_ACCOUNT
from coordinator.domain.job import JobAction
from coordinator.errors import ConflictError, FundsError, IllegalTransitionError, InvalidError, NotFoundError
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.file_ownership import FileOwnership
from coordinator.services.jobs.alternatives import find_choices
from coordinator.services.jobs.ports import MAX_ROWS, ListWindow
from protocol.job.job import JobSpec, ModelSpec, TokenizerSpec
from protocol.job.rounds import total_rounds
from protocol.models.model import PRESETS
from protocol.network import RelayEnvelope
from protocol.rest import api
from protocol.rest.lending import LendingRule

START = 1_795_000_000.0
BOTH = api.Agreement(2, 0, 2)
ROUND_S = 9.0
POINTS_PER_ROUND = 5
PRICE_PER_PETAFLOP = 250_000_000
TOKEN = "node-token-of-the-fake-cluster"
_STAGES, _REPLICAS = 2, 2
V = TypeVar("V")
_OVER = ("settled", "failed", "cancelled")


def address(name: str) -> str:
    """A base58 text of 44 characters that depends on ``name``."""
    digest = hashlib.sha512(name.encode()).digest()
    return "".join(ALPHABET[byte % 58] for byte in digest[:44])


def signature(name: str) -> str:
    """A base58 text of 88 characters."""
    return address(name) + address(name + "'")


NODES = (
    ("attic-4090", "NVIDIA GeForce RTX 4090", "cuda", 24_564, 6.1e13),
    ("kitchen-3060", "NVIDIA GeForce RTX 3060", "cuda", 12_288, 1.1e13),
    ("studio-4070", "NVIDIA GeForce RTX 4070 Ti", "cuda", 12_282, 3.4e13),
    ("garage-1080", "NVIDIA GeForce GTX 1080 Ti", "cuda", 11_264, 9.8e12),
    ("laptop", "AMD Ryzen 7 5800H, 8 cores", "cpu", 15_900, 4.2e11),
)
_RELAYS = (
    api.RelayView(
        relay=address("relay"),
        urls=("turn:relay-1.cottage.example:3478?transport=udp", "turns:relay-1.cottage.example:5349?transport=tcp"),
        region="Frankfurt",
        state="up",
        rtt_ms=11.42,
        allocations=12,
        allocations_max=1000,
        rate=4.1e7,
        bytes_relayed=812_345_678_901,
        packets_dropped=3,
        started=START - 864_000,
        heard=START,
        traffic=(
            api.RelayTraffic(address("attic-4090"), f"{1:032x}", 41_234_567_890),
            api.RelayTraffic(address("kitchen-3060"), None, 1_234_567),
        ),
    ),
    api.RelayView(None, ("turn:turn.example:3478?transport=udp",), "", "unreachable", *(None,) * 8),
)


class _Job:
    def __init__(self, view: api.JobView) -> None:
        self.view = view
        self.account_id = LOCAL_ACCOUNT
        self.rounds: list[api.RoundView] = []
        self.metrics: list[api.Metric] = []
        self.events: list[api.JobEvent] = []
        self.receipts: list[api.Receipt] = []
        self.commits: list[api.CommitView] = []
        self.audits: list[api.AuditView] = []


class Cluster:
    """Jobs and nodes in memory."""

    def __init__(
        self, artifacts: ArtifactStore | None = None, balance: int = 50_000_000, test_wallet: bool = True
    ) -> None:
        self.artifacts = artifacts
        self.files: FileOwnership | None = None
        self.balance, self.test_wallet = balance, test_wallet
        self.evaluation_tasks: tuple[str, ...] = ()
        self.who_may_lend: LendingRule = "everybody"
        self.now = START
        self.metric_reads = 0
        self.relays = list(_RELAYS)
        self.announced: list[RelayEnvelope] = []
        self._jobs: dict[str, _Job] = {}
        self._ids = count(1)
        self._event_ids = count(1)
        self._bus = Bus()

    # ports.Jobs

    async def quote(self, spec: JobSpec, account_id: str = LOCAL_ACCOUNT) -> api.Quote:
        parameters = _parameters(spec)
        operations = 6.0 * parameters * spec.training.tokens
        price = max(1, math.ceil(operations * PRICE_PER_PETAFLOP / 10**15))
        stages, replicas = spec.parallel.stages or _STAGES, spec.parallel.replicas or _REPLICAS
        memory = 16 * parameters // stages // 2**20 + 100
        problems = []
        if memory > 24_564:
            problems.append(
                f"each of {stages} stages needs {memory:,} MB: the largest node has 24,564 MB; use more stages"
            )
        if spec.budget < price and spec.over_budget == "refuse":
            problems.append(
                f"the budget of {spec.budget:,} is below the price of {price:,}: raise it or train on fewer tokens"
            )
        return api.Quote(
            operations=operations,
            parameters=parameters,
            tokens=spec.training.tokens,
            stages=stages,
            replicas=replicas,
            nodes_available=5,
            rounds=total_rounds(spec.training, replicas),
            hours=operations / 1e10 / 3600,
            hours_low=operations / 1.4e10 / 3600,
            hours_high=operations / 0.6e10 / 3600,
            price=price,
            price_low=price * 9 // 10,
            price_high=price * 23 // 20,
            memory_mb_per_stage=(memory,) * stages,
            limit="the slowest node of each stage, kitchen-3060",
            problems=tuple(problems),
        )

    async def check_owner(self, job: str, account_id: str) -> None:
        if self._find(job).account_id != account_id:
            raise NotFoundError(f"no job {job[:40]!r} is here", "job")

    async def choices(self, spec: JobSpec) -> Sequence[api.Choice]:
        return await find_choices(spec, self.quote)

    async def tokenizer(self, model: ModelSpec) -> TokenizerSpec:
        self._find(model.from_job or "")
        return TokenizerSpec("bytes")

    async def file_name(self, account_id: str, artifact: str) -> str:
        return "" if self.files is None else await self.files.name(account_id, artifact)

    async def check_files(self, account_id: str, wanted: Iterable[tuple[str, str]]) -> None:
        if self.files is not None:
            await self.files.check(account_id, wanted)

    async def check_funds(self, new: api.NewJob) -> None:
        if (budget := new.spec.budget) > self.balance:
            raise FundsError(f"the wallet holds {self.balance:,}, the budget is {budget:,}: lower it", "budget")

    async def create(self, new: api.NewJob, account_id: str = LOCAL_ACCOUNT, job: str | None = None) -> api.JobView:
        if job in self._jobs:
            return self._jobs[job].view
        spec = new.spec
        if self.artifacts is not None and not await self.artifacts.has(spec.dataset.artifact):
            raise InvalidError(f"no dataset {spec.dataset.artifact[:12]} is here: upload it first", "dataset.artifact")
        quote = await self.quote(spec)
        if quote.problems:
            raise InvalidError(quote.problems[0], "budget" if "budget" in quote.problems[0] else "model")
        await self.check_funds(new)
        name = job or f"{next(self._ids):032x}"
        made = _Job(_new_view(name, spec, new.submitter or address("test wallet"), quote, self.now))
        made.account_id = account_id
        self._jobs[name] = made
        self._say(made, "created", f"job {spec.name} was submitted")
        return made.view

    async def funding(self, job: str) -> api.Funding:
        found = self._find(job)
        return api.Funding(
            job_key=hashlib.sha256(f"cottage-job:{job}".encode()).hexdigest(),
            amount=found.view.spec.budget,
            deadline=int(found.view.created + found.view.spec.deadline_hours * 3600),
            coordinator=address("coordinator"),
            ledger_url="http://127.0.0.1:8899",
            program=address("program"),
            mint=address("mint"),
            escrow=address("escrow" + job),
        )

    async def fund(self, job: str) -> api.JobView:
        found = self._find(job)
        if found.view.state != "created":
            return found.view
        if not self.test_wallet:
            raise FundsError(f"no escrow of {found.view.spec.budget:,} is on the ledger yet: open it, then try again")
        self._change(found, state="funded", escrow=found.view.spec.budget)
        self._receipt(found, "fund", found.view.spec.budget, "escrow opened")
        self._say(found, "funded", "the budget is in escrow")
        return found.view

    async def cancel(self, job: str) -> api.JobView:
        found = self._find(job)
        if found.view.state in _OVER:
            raise IllegalTransitionError(f"job {job[:8]} is {found.view.state}: it cannot be cancelled any more")
        self._receipt(found, "refund", found.view.escrow - found.view.paid, "what was not verified")
        self._change(
            found,
            state="cancelled",
            reason="cancelled by the submitter",
            refunded=found.view.escrow - found.view.paid,
            ended=self.now,
        )
        self._say(found, "cancelled", "the submitter cancelled the job; verified work was paid")
        return found.view

    async def ask(self, job: str, action: JobAction) -> api.JobView:
        found = self._find(job)
        match action, found.view.state:
            case JobAction.PAUSE, "funded" | "planned" | "running":
                self._change(found, state="paused", reason="the submitter paused the job")
            case JobAction.RESUME, "paused":
                self._change(found, state="planned", reason="")
            case JobAction.STOP, "planned" | "running" | "paused" if found.view.rounds_done:
                self._change(found, state="verifying", reason="the job was stopped")
            case _, state:
                raise ConflictError(f"job {job[:8]} is {state}: nothing to {action}")
        return found.view

    async def add_budget(self, job: str, amount: int) -> api.JobView:
        found = self._find(job)
        if amount > found.view.quote.price - found.view.spec.budget:
            raise ConflictError("nothing more can be spent", field="amount")
        spec = msgspec.structs.replace(found.view.spec, budget=found.view.spec.budget + amount)
        self._change(found, spec=spec)
        return found.view

    async def is_shared(self, job: str) -> bool:
        return job in self._jobs and self._jobs[job].view.shared

    async def share(self, job: str, shared: bool) -> api.JobView:
        self._change(self._find(job), shared=shared)
        return self._find(job).view

    async def get(self, job: str) -> api.JobView:
        return self._find(job).view

    async def list(
        self, limit: int, before: float | tuple[float, str] | None, account_id: str = LOCAL_ACCOUNT
    ) -> Sequence[api.JobView]:
        mine = (job.view for job in self._jobs.values() if job.account_id == account_id)
        views = sorted(mine, key=lambda view: (view.created, view.id), reverse=True)
        if isinstance(before, tuple):
            return [view for view in views if (view.created, view.id) < before][:limit]
        return [view for view in views if before is None or view.created < before][:limit]

    async def list_shared(self, limit: int, before: float | None) -> Sequence[api.JobView]:
        views = sorted((job.view for job in self._jobs.values() if job.view.shared), key=lambda view: -view.created)
        return [view for view in views if before is None or view.created < before][:limit]

    async def nodes(self, job: str) -> Sequence[api.JobNode]:
        view = self._find(job).view
        if view.state in ("created", "funded"):
            return []
        over = view.state in _OVER
        parts = []
        for index, (name, device, *_rest) in enumerate(NODES):
            place = index if index < _STAGES * _REPLICAS else None
            state = "done" if over else "training" if place is not None else "spare"
            share = view.paid // 4 if place is not None else 0
            parts.append(
                api.JobNode(
                    node=address(name),
                    name=name,
                    device=device,
                    stage=None if place is None else place % _STAGES,
                    replica=None if place is None else place // _STAGES,
                    state="lost" if name == "garage-1080" and view.rounds_done == 7 else state,  # type: ignore[arg-type]
                    rounds=view.rounds_done if place is not None else 0,
                    steps=view.rounds_done * 5 if place is not None else 0,
                    tokens=view.tokens_done // 2 if place is not None else 0,
                    operations=int(view.quote.operations) // 4 * view.rounds_done // max(1, view.rounds_total)
                    if place is not None
                    else 0,
                    audits_passed=len(
                        [a for a in self._find(job).audits if a.node == address(name) and a.state == "passed"]
                    ),
                    audits_failed=0,
                    verified=share,
                    paid=share,
                    bytes_sent=view.bytes_sent // 4 if place is not None else 0,
                )
            )
        return parts

    async def rounds(self, job: str, window: ListWindow | None = None) -> Sequence[api.RoundView]:
        return _window(self._find(job).rounds, window, lambda one: (one.round, one.epoch))

    async def commits(self, job: str, window: ListWindow | None = None) -> Sequence[api.CommitView]:
        return _window(self._find(job).commits, window, lambda one: (one.round, one.epoch, one.replica, one.stage))

    async def audits(self, job: str, window: ListWindow | None = None) -> Sequence[api.AuditView]:
        return _window(self._find(job).audits, window, lambda one: (one.round, one.audit))

    async def receipts(self, job: str, window: ListWindow | None = None) -> Sequence[api.Receipt]:
        return _window(self._find(job).receipts, window, lambda one: (one.id,))

    async def metrics(self, job: str, after: int, limit: int = MAX_ROWS) -> Sequence[api.Metric]:
        self.metric_reads += 1
        return self._find(job).metrics[after : after + limit]

    async def events(self, job: str, after: int, limit: int = MAX_ROWS) -> Sequence[api.JobEvent]:
        return [event for event in self._find(job).events if event.id > after][:limit]

    async def mark(self, job: str) -> tuple[int, int]:
        found = self._find(job)
        return len(found.metrics), found.events[-1].id if found.events else 0

    def changes(self, job: str | None) -> AsyncIterator[str]:
        return self._bus.changes(job)

    # ports.Network

    async def view(self) -> api.NetworkView:
        running = sum(job.view.state in ("planned", "running", "verifying") for job in self._jobs.values())
        return api.NetworkView(
            nodes_online=5,
            nodes_busy=4 if running else 0,
            memory_mb=sum(node[3] for node in NODES),
            flops=sum(node[4] for node in NODES),
            jobs_running=running,
            jobs_done=sum(job.view.state == "settled" for job in self._jobs.values()),
            paid_total=sum(job.view.paid for job in self._jobs.values()),
            price_per_petaflop=PRICE_PER_PETAFLOP,
            coordinator=address("coordinator"),
            ledger_url="http://127.0.0.1:8899",
            test_wallet=self.test_wallet,
            notice="",
            relays_up=len(self.relays),
            evaluation_tasks=self.evaluation_tasks,
            who_may_lend=self.who_may_lend,
        )

    async def network_nodes(self) -> Sequence[api.NodeView]:
        return [
            api.NodeView(
                node=address(name),
                payout=address(name + " payout"),
                name=name,
                device=device,
                kind=kind,  # type: ignore[arg-type]
                memory_mb=memory,
                flops=flops,
                sandbox="docker",
                online=name != "laptop",
                busy=index < 4,
                banned=False,
                stake=10_000_000,
                earned=1_234_567 * (5 - index),
                since=START - 86_400 * (index + 1),
            )
            for index, (name, device, kind, memory, flops) in enumerate(NODES)
        ]

    # What happens

    def step(self, job: str) -> api.JobView:
        """Let one thing happen: planned, a round, verifying, settled."""
        found = self._find(job)
        self.now += ROUND_S
        match found.view.state:
            case "funded":
                self._change(found, state="planned")
                self._say(found, "planned", f"{_STAGES} stages x {_REPLICAS} replicas on 4 nodes, 1 spare")
            case "planned":
                alone = api.Agreement(1, 0, 1)
                self._change(
                    found,
                    state="running",
                    first_validation_loss=loss_at(0),
                    validation_loss=loss_at(0),
                    agreement=alone,
                )
                found.metrics.append(api.Metric(0, 0, 0, "validation", loss_at(0), self.now))
                self._say(found, "running", "all members are ready; round 1 begins")
            case "running" if found.view.rounds_done < found.view.rounds_total:
                self._round(found)
            case "running":
                self._change(found, state="verifying", eta_seconds=4.0)
                self._say(found, "verifying", "the last audits are being replayed")
            case "verifying":
                self._settle(found)
            case _:
                raise ConflictError(f"nothing more happens to a job that is {found.view.state}")
        return found.view

    def run(self, job: str) -> api.JobView:
        """Let everything happen until the job is over."""
        while (view := self.step(job)).state not in _OVER:
            pass
        return view

    async def finish(self, job: str, archive: bytes) -> None:
        """Give the job a model archive."""
        assert self.artifacts is not None

        async def chunks() -> AsyncIterator[bytes]:
            yield archive

        self._change(self._find(job), model=await self.artifacts.put(chunks(), None, len(archive)))

    def flood(self, job: str, points: int) -> None:
        """Many points at once."""
        found = self._find(job)
        start = len(found.metrics)
        found.metrics += [api.Metric(0, start + i, start + i, "train", 1.0, self.now) for i in range(points)]
        self._bus.publish(found.view.id)

    def _round(self, found: _Job) -> None:
        view = found.view
        number = view.rounds_done
        tokens = view.tokens_total // view.rounds_total
        for point in range(1, POINTS_PER_ROUND + 1):
            done = view.tokens_done + tokens * point // POINTS_PER_ROUND
            loss = loss_at(done / view.tokens_total) + 0.06 * math.sin(done / 997) + 0.04 * math.sin(done / 131)
            found.metrics.append(api.Metric(number, number * 5 + point, done, "train", loss, self.now))
        done = view.tokens_done + tokens if number + 1 < view.rounds_total else view.tokens_total
        validation = loss_at(done / view.tokens_total) + 0.02
        found.metrics.append(api.Metric(number + 1, number * 5 + 5, done, "validation", validation, self.now))
        found.rounds.append(
            api.RoundView(number, 0, "complete", tokens, loss, validation, (0, 1), self.now - ROUND_S, self.now, BOTH)
        )
        pot = view.quote.price * done // view.tokens_total - view.quote.price * view.tokens_done // view.tokens_total
        self._commit(found, number, tokens, pot)
        if number == 2:
            self._say(found, "lost", "garage-1080 went silent; its replica is rebuilt on a spare")
        self._say(
            found, "round", f"round {number + 1} of {view.rounds_total} is complete, validation loss {validation:.3f}"
        )
        sent = 1_900_000
        self._change(
            found,
            rounds_done=number + 1,
            tokens_done=done,
            tokens_per_second=tokens / ROUND_S,
            train_loss=loss,
            validation_loss=validation,
            agreement=BOTH,
            paid=view.paid + pot,
            cost=view.paid + pot,
            cost_projected=view.quote.price,
            cap=min(view.quote.price, view.spec.budget),
            sentence=f"Training: {number + 1} of {view.rounds_total} rounds are done.",
            ready_likely=self.now + (view.rounds_total - number - 1) * ROUND_S,
            ready_low=self.now + (view.rounds_total - number - 1) * ROUND_S * 0.9,
            ready_high=self.now + (view.rounds_total - number - 1) * ROUND_S * 1.3,
            checkpoint=number,
            bytes_sent=view.bytes_sent + sent,
            bytes_naive=view.bytes_naive + sent * 23,
            bytes_artifacts=view.bytes_artifacts + 8_800_000,
            audits=view.audits + 1,
            eta_seconds=(view.rounds_total - number - 1) * ROUND_S,
        )

    def _commit(self, found: _Job, number: int, tokens: int, pot: int) -> None:
        share = 0
        for index in range(4):
            name = NODES[index][0]
            last = index == 3
            amount = pot - share if last else pot // 4
            share += amount
            root = hashlib.sha256(f"{number} {name}".encode()).hexdigest()
            found.commits.append(
                api.CommitView(
                    number,
                    0,
                    index % 2,
                    index // 2,
                    address(name),
                    root,
                    5,
                    tokens // 2,
                    10**12,
                    True,
                    "verified",
                    amount,
                )
            )
        drawn = NODES[number % 4][0]
        found.audits.append(
            api.AuditView(
                f"{number:032x}",
                number,
                number * 5 + 2,
                number % 2,
                number % 4 // 2,
                address(drawn),
                address(NODES[(number + 1) % 4][0]),
                "passed",
                "re-executed bit for bit",
            )
        )
        self._receipt(found, "settle", pot, f"round {number + 1} to 4 nodes")

    def _settle(self, found: _Job) -> None:
        left = found.view.escrow - found.view.paid
        self._receipt(found, "refund", left, "what the budget had beyond the price")
        self._change(found, state="settled", refunded=left, eta_seconds=None, ended=self.now)
        self._say(found, "settled", "everything verified is paid, the rest refunded")

    def _find(self, job: str) -> _Job:
        if job not in self._jobs:
            raise NotFoundError(f"no job {job[:40]!r} is here", "job")
        return self._jobs[job]

    def _change(self, found: _Job, **values: object) -> None:
        """Without a sentence of its own, a new state gets the general one."""
        if "state" in values:
            values = {"sentence": JOB_SENTENCES.get(str(values["state"]), ""), **values}
        found.view = msgspec.structs.replace(found.view, **values)
        self._bus.publish(found.view.id)

    def _say(self, found: _Job, kind: str, text: str) -> None:
        found.events.append(api.JobEvent(next(self._event_ids), self.now, kind, text))
        self._bus.publish(found.view.id)

    def _receipt(self, found: _Job, kind: str, amount: int, text: str) -> None:
        name = f"{found.view.id} {len(found.receipts)}"
        found.receipts.append(
            api.Receipt(kind, signature(name), "confirmed", amount, self.now, text, len(found.receipts) + 1)  # type: ignore[arg-type]
        )


def _window(rows: Sequence[V], window: ListWindow | None, place: Callable[[V], tuple[object, ...]]) -> Sequence[V]:
    if window is None:
        return rows
    found = sorted(rows, key=place)
    return [row for row in found if window.after is None or place(row) > window.after][: window.limit]


def _new_view(job: str, spec: JobSpec, submitter: str, quote: api.Quote, now: float) -> api.JobView:
    return api.JobView(
        id=job,
        name=spec.name,
        state="created",
        reason="",
        spec=spec,
        submitter=submitter,
        created=now,
        ended=None,
        quote=quote,
        rounds_total=quote.rounds,
        rounds_done=0,
        tokens_done=0,
        tokens_total=spec.training.tokens,
        tokens_per_second=0.0,
        train_loss=None,
        validation_loss=None,
        first_validation_loss=None,
        escrow=0,
        paid=0,
        refunded=0,
        bytes_sent=0,
        bytes_naive=0,
        bytes_artifacts=0,
        audits=0,
        model=None,
        eta_seconds=None,
    )


def _parameters(spec: JobSpec) -> int:
    if spec.model.preset is not None and spec.model.preset not in PRESETS:
        raise InvalidError(f"no preset {spec.model.preset!r}: use one of {', '.join(PRESETS)}", "model.preset")
    config = spec.model.config or PRESETS[spec.model.preset or "tiny-llama"]
    hidden = config.get("hidden_size") or config.get("n_embd")
    layers, kind = config.get("num_hidden_layers") or config.get("n_layer"), config.get("model_type")
    if not isinstance(hidden, int) or not isinstance(layers, int) or re.search("mamba", str(kind)):
        raise InvalidError(f"the model type {kind!r} is not supported: use llama, gpt2 or qwen2", "model.config")
    return 12 * layers * hidden**2 + 2 * spec.tokenizer.vocabulary * hidden


def loss_at(done: float) -> float:
    """Cross-entropy after a part of the training: falls fast, then slowly."""
    return 3.1 + 4.5 * math.exp(-6 * done)
