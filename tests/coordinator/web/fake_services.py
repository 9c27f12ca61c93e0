"""Market, books and outputs of the network in memory (``fake``): the same figures at every call."""

import hashlib
import io
import json
import re
import struct
import zipfile
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, Literal

from common.token_worth import TokenWorth
from common.untrusted_text import Untrusted, untrusted
from coordinator.domain.serving import AdapterPoint, ModelPoint
from coordinator.errors import InvalidError, NotFoundError, UnavailableError
from coordinator.services.artifacts.artifacts import ArtifactStore
from protocol.audit import ReplayStep
from protocol.disputes import DisputeDetail, DisputeView
from protocol.evidence import RoundEvidence
from protocol.job.results import packed
from protocol.network import RelayEnvelope, RelayOrder, RelayQuestion
from protocol.node import IceServers, LedgerInfo, OfferedIceServer
from protocol.plan import Layers, Member, Plan
from protocol.rest import api, ledger, market
from protocol.rest.arrays import ElementView
from protocol.rest.records import OPENING, AuditRecords
from protocol.rest.withdrawals import (
    SentWithdrawal,
    SignedWithdrawal,
    WithdrawalAnswer,
    WithdrawalOffer,
    WithdrawalRefusal,
    WithdrawalRequest,
    WithdrawalTerms,
)
from protocol.serving import (
    AnsweredReport,
    AnswerReport,
    AskCommand,
    EmbedCommand,
    EmbeddedReport,
    EmbeddedText,
    FunctionCall,
    TextReport,
)
from tests.coordinator.web.fake import NODES, PRICE_PER_PETAFLOP, START, Cluster, address, loss_at, signature


class Market:
    """``ports.MarketPort`` over a cluster: three regions, a price that rose, a wallet that earns."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.region_list = [
            market.Region("Frankfurt", 1, 3, 3, 1.06e14),
            market.Region("relay in New York, east", 1, 1, 1, 9.8e12),
            market.Region("the moon", 1, 0, 0, 0.0),
            market.Region("", 0, 1, 0, 4.2e11),
        ]

    async def regions(self, nodes: Collection[str] | None = None) -> Sequence[market.Region]:
        return self.region_list if nodes is None else self.region_list[:2]

    async def links(self, nodes: Collection[str]) -> Sequence[market.Link]:
        names = [address(node[0]) for node in NODES[:4]]
        pairs = ((0, 1, 12.3, "direct"), (2, 3, 48.0, "relay"), (0, 2, 95.1, "direct"))
        return [market.Link(names[a], names[b], rtt, 0.001, kind) for a, b, rtt, kind in pairs]  # type: ignore[arg-type]

    async def now(self) -> market.Market:
        return market.Market(
            rate=PRICE_PER_PETAFLOP,
            least=2_000,
            reason="10^15 operations cost what four of five nodes work for, and 1.5 hours of work are queued",
            offered=sum(node[4] for node in NODES),
            willing=sum(node[4] for node in NODES[:4]),
            queued=6 * 10**17,
            queued_jobs=2,
            history=tuple(
                market.PricePoint(START - 3600 * (24 - hour), PRICE_PER_PETAFLOP * (40 + hour) // 64)
                for hour in range(24)
            ),
            paid_week=5_000_000_000,
            capacity_week=7 * 86_400 * 2e13,
            pay_low=PRICE_PER_PETAFLOP // 5,
            pay_high=PRICE_PER_PETAFLOP * 6 // 5,
            worth=TokenWorth("EUR", 920_000),
        )

    async def earnings(self, wallet: str) -> market.Earnings:
        if not re.fullmatch(r"[1-9A-HJ-NP-Za-km-z]{32,44}", wallet):
            raise InvalidError("this is no address: copy it from the app", "address")
        machines = tuple(n for n in await self._cluster.network_nodes() if wallet in (n.payout, n.node))
        today = int(START) // 86_400
        days = tuple(
            market.Earned((today - back) * 86_400, (29 - back) * 1_234_567 % 7_000_000 if machines else 0)
            for back in range(29, -1, -1)
        )
        payouts = tuple(
            market.Payout(f"{1:032x}", START - 900 * n, 1_234_567 + n, "confirmed" if n else "sent", signature(f"{n}"))
            for n in range(6 if machines else 0)
        )
        paid = sum(day.amount for day in days)
        return market.Earnings(
            wallet, machines, paid, *((1_234_567, 456_789, 12) if machines else (0, 0, 0)), days, payouts
        )

    async def health(self) -> market.Health:
        today = int(START) // 86_400
        return market.Health(
            started=START - 86_400,
            checks=(
                market.HealthCheck("Coordinator and database", "good", "answer"),
                market.HealthCheck(
                    "Ledger", "bad", "does not answer: connection refused. Training goes on, payouts wait."
                ),
                market.HealthCheck("Relays", "warn", "1 of 2 are up"),
            ),
            versions={"Cottage": "0.3", "protocol of nodes": "1", "Python": "3.11"},
            days=tuple(
                market.Day((today - back) * 86_400, {"lost": 2, "ledger": 1} if back == 3 else {}) for back in range(14)
            ),
        )


class Books:
    """``ports.LedgerPort`` over a cluster: what its jobs' receipts say; nothing of it can be proven."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def entries(
        self, kinds: Sequence[str], job: str | None, before: int | None, limit: int
    ) -> Sequence[ledger.LedgerEntry]:
        views = await self._cluster.list(1000, None)
        told = [(view, receipt) for view in views for receipt in await self._cluster.receipts(view.id)]
        numbered = [
            ledger.LedgerEntry(
                number, view.id, view.name, one.kind, one.state, one.amount, one.signature, one.time, one.detail, {}
            )
            for number, (view, one) in enumerate(sorted(told, key=lambda pair: pair[1].time), 1)
        ]
        fitting = [
            one
            for one in reversed(numbered)
            if (not kinds or one.kind in kinds) and job in (None, one.job) and (before is None or one.id < before)
        ]
        return fitting[:limit]

    async def audits(
        self, state: str | None, job: str | None, offset: int, limit: int, after: tuple[int, str] | None = None
    ) -> Sequence[ledger.NodeAudit]:
        views = [view for view in await self._cluster.list(1000, None) if job in (None, view.id)]
        found = [
            ledger.NodeAudit(view.id, "audited", 0, audit)
            for view in views
            for audit in await self._cluster.audits(view.id)
            if state in (None, audit.state)
        ]
        found.sort(key=lambda one: (one.audit.round, one.audit.audit), reverse=True)
        found = [one for one in found if after is None or (one.audit.round, one.audit.audit) < after]
        return found[offset : offset + limit]

    async def totals(self) -> ledger.LedgerTotals:
        views = await self._cluster.list(1000, None)
        sums = [sum(getattr(view, name) for view in views) for name in ("escrow", "paid", "refunded")]
        return ledger.LedgerTotals(sums[0], sums[1], sums[2], sums[0] - sums[1] - sums[2], 0, 0)

    async def job(self, job: str) -> ledger.JobLedger:
        view = await self._cluster.get(job)
        held = view.escrow - view.paid - view.refunded
        return ledger.JobLedger(
            job=job,
            escrow=address("escrow" + job),
            submitter=view.submitter,
            coordinator=address("coordinator"),
            program=address("program"),
            mint=address("mint"),
            rpc="http://127.0.0.1:8899",
            on_chain=True,
            totals=ledger.LedgerTotals(view.escrow, view.paid, view.refunded, held, 0, 0),
        )

    async def node(self, node: str) -> ledger.NodeAccount:
        known = {view.node: view for view in await self._cluster.network_nodes()}
        if node not in known:
            raise NotFoundError(f"there is no node {node}", "node")
        return ledger.NodeAccount(known[node], "", None, (), {}, (), (), ())

    async def disputes(
        self, job: str | None, offset: int, limit: int, after: tuple[float, str] | None = None
    ) -> Sequence[DisputeView]:
        return ()

    async def dispute(self, audit: str) -> DisputeDetail:
        raise NotFoundError(f"there is no dispute over audit {audit}", "audit")

    async def promise(self, job: str) -> ledger.PromiseView:
        await self._cluster.get(job)
        raise NotFoundError(f"job {job} has promised nothing", "job")

    async def evidence(self, job: str, number: int) -> Sequence[RoundEvidence]:
        await self._cluster.get(job)
        raise NotFoundError(f"job {job} has no round {number}", "round")


def vector_of(text: EmbeddedText) -> bytes:
    """Four numbers that tell texts apart."""
    return struct.pack("<4f", len(text), float(bool(text) and text[0] == text[-1]), -1.0, 0.1)


class Elements:
    """``ElementsPort``: every job has two elements, one done and one that failed."""

    def __init__(self, artifacts: ArtifactStore) -> None:
        self._artifacts = artifacts

    async def ended(self, job: str, after: int, state: str | None, limit: int) -> Sequence[ElementView]:
        _, digest = await self.result(job, 0)
        done = ElementView(0, untrusted("e0"), "done", 1, digest, len(RESULT), 1, 0.5, 2)
        failed = ElementView(
            1, untrusted("e1"), "failed", 2, code=3, reason=untrusted("it fails"), tail=(untrusted("Traceback"),)
        )
        found = [one for one in (done, failed) if one.number > after and state in (None, one.state)]
        return found[:limit]

    async def failures(self, job: str, limit: int) -> Sequence[ElementView]:
        return await self.ended(job, 0, "failed", limit)

    async def result(self, job: str, index: int) -> tuple[str, str]:
        if index != 0:
            raise NotFoundError("it has no result", "index")

        async def chunks() -> AsyncIterator[bytes]:
            yield RESULT

        return "e0", await self._artifacts.put(chunks(), None, len(RESULT))

    async def archive(self, job: str) -> AsyncIterator[bytes]:
        yield packed({"e0/result.txt": b"a result"})


RESULT = packed({"result.txt": b"a result"})


class Outputs:
    """``ports.OutputsPort`` over a cluster: checkpoints whose files are made up, a model that repeats its prompt."""

    def __init__(self, cluster: Cluster) -> None:
        self._outputs: dict[str, api.OutputView] = {}
        self._cluster = cluster

    async def checkpoints(self, job: str) -> Sequence[api.CheckpointView]:
        view = await self._cluster.get(job)
        return [self._checkpoint(done) for done in range(view.rounds_done, 0, -4)]

    async def part(self, job: str, round_: int, stage: int) -> str:
        await self._known(job, round_)
        return await self._put(f"stage {stage} of {job} after {round_}".encode())

    async def records(self, job: str, audit: str) -> AuditRecords:
        view, file = await self._cluster.get(job), await self._put(b"what a step was opened with")
        plan = Plan(1, (Layers(0, 4),), (Member(0, 0, "1" * 32),))
        replay = ReplayStep(audit, plan, 0, 0, 0, 0, 0, 5, file, 5, file, None, file)
        return AuditRecords(audit, job, "cpu", replay, view.spec, {OPENING: file})

    async def record(self, job: str, audit: str, name: str) -> str:
        files = (await self.records(job, audit)).files
        if name not in files:
            raise NotFoundError(f"there is no file {name!r}", "name")
        return files[name]

    async def folder(self, job: str, round_: int | None = None) -> str:
        await self._known(job, round_)
        return await self._put(f"model of {job} after {round_}".encode())

    async def model(self, job: str) -> str:
        await self._known(job, None)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr(zipfile.ZipInfo("config.json"), json.dumps({"whole": job}))
        return await self._put(packed.getvalue())

    async def output(self, job: str) -> api.OutputView:
        if job not in self._outputs:
            raise NotFoundError(f"no bucket is named for job {job}", "job")
        return self._outputs[job]

    async def set_output(self, job: str, account_id: str, wanted: api.NewOutput) -> api.OutputView:
        await self._cluster.get(job)
        given = (wanted.url, wanted.endpoint, wanted.region, wanted.checkpoints)
        self._outputs[job] = api.OutputView(*given, "waiting", (), 0, Untrusted(""), START)
        return self._outputs[job]

    async def remove_output(self, job: str) -> None:
        await self.output(job)
        del self._outputs[job]

    async def generate(
        self, job: str, round_: int | None, request: api.TrialRequest
    ) -> AsyncIterator[Mapping[str, Any]]:
        await self._known(job, round_)
        yield {"checkpoint": 4}
        said = "before" if request.start else request.prompt
        for word in said.split()[: request.tokens]:
            yield {"text": f" {word}"}
        yield {"done": "length", "tokens": request.tokens}

    async def complete(self, job: str, point: ModelPoint, command: AskCommand) -> AsyncIterator[AnswerReport]:
        if not isinstance(point, AdapterPoint):
            await self._known(job, point if isinstance(point, int) else None)
        of = f"by {point.job}" if isinstance(point, AdapterPoint) else point
        if isinstance(command, EmbedCommand):
            for text in command.texts:
                yield EmbeddedReport("1", (len(text),), (vector_of(text),))
            yield AnsweredReport("1", "stop", sum(map(len, command.texts)), 0)
            return
        said = str(command.messages[-1].get("content")) if command.messages else command.prompt
        if said == "fail":
            yield TextReport("1", "So")
            raise UnavailableError("the model failed")
        if command.choice.forced:
            called = FunctionCall(command.choice.name or "sum", '{"a": 3}')
            yield AnsweredReport("1", "stop", 7, 9, (called,) * (2 if command.choice.several else 1))
            return
        if said == "call sum" and command.tools:
            yield AnsweredReport("1", "stop", 7, 9, (FunctionCall("sum", '{"a": 2}'),))
            return
        words = (f"{of}: {said}" if of is not None else said).split()
        for word in words[: command.tokens]:
            yield TextReport("1", f" {word}")
        reason: Literal["stop", "length"] = "length" if len(words) > (command.tokens or len(words)) else "stop"
        yield AnsweredReport("1", reason, 7, min(len(words), command.tokens or len(words)))

    async def log(
        self, job: str, after: int, before: int | None, search: str, level: str, limit: int
    ) -> Sequence[api.LogLine]:
        events = await self._cluster.events(job, after)
        lines = [api.LogLine(e.id, e.time, "info", e.text, "", None, None) for e in events if search in e.text]
        found = [line for line in lines if before is None or line.id < before]
        return found[:limit] if after else found[-limit:]

    async def _known(self, job: str, round_: int | None) -> None:
        if not await self.checkpoints(job) or (round_ or 0) > (await self._cluster.get(job)).rounds_done:
            raise NotFoundError(f"job {job} has no checkpoint {round_}", "round")

    def _checkpoint(self, done: int) -> api.CheckpointView:
        part = api.CheckpointPart(0, hashlib.sha256(str(done).encode()).hexdigest(), 1_234_567)
        return api.CheckpointView(
            done, done * 5, done * 4096, START, loss_at(done), loss_at(done), True, part.bytes, (part,)
        )

    def _files(self) -> ArtifactStore:
        assert self._cluster.artifacts is not None
        return self._cluster.artifacts

    async def _put(self, data: bytes) -> str:
        async def chunks() -> AsyncIterator[bytes]:
            yield data

        return await self._files().put(chunks(), None, len(data))


class Registry:
    """``ports.NetworkPort`` over a cluster: both ports have a method called ``nodes``."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def view(self) -> api.NetworkView:
        return await self._cluster.view()

    async def nodes(self) -> Sequence[api.NodeView]:
        return await self._cluster.network_nodes()

    async def relays(self) -> Sequence[api.RelayView]:
        return self._cluster.relays

    async def relay_credentials(self, question: RelayQuestion, host: str) -> IceServers:
        return IceServers((OfferedIceServer(("turn:relay.test:3478?transport=udp",), f"1:{question.node}", host),))

    async def announce_relay(self, envelope: RelayEnvelope) -> RelayOrder:
        self._cluster.announced.append(envelope)
        return RelayOrder(10.0)


class PricedWithdrawals:
    """``ports.WithdrawalPort`` at 150 tokens a SOL, which offers what is more than its fee and signs nothing."""

    async def terms(self) -> WithdrawalTerms:
        info = LedgerInfo("http://ledger.test", address("program"), address("mint"), address("coordinator"))
        return WithdrawalTerms(True, 150_000_000, 1_000, 1_500, 305_892, 10, 500_000_000, 497_950_720, info)

    async def offer(self, asked: WithdrawalRequest, _address: str) -> WithdrawalAnswer:
        if asked.amount <= 1_500:
            return WithdrawalAnswer(refused=WithdrawalRefusal("too little", "withdraw more", 2_500))  # type: ignore[arg-type]
        return WithdrawalAnswer(WithdrawalOffer(asked.amount - 1_500, 1_500, False, b"a transaction"))

    async def take(self, signed: SignedWithdrawal, _address: str) -> SentWithdrawal:
        return SentWithdrawal(refused=WithdrawalRefusal("altered", "sign what was offered"))  # type: ignore[arg-type]
