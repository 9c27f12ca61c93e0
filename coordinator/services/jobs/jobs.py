"""What submitters ask for: quotes, jobs, their funding, their end, and everything that can be read about them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from common.untrusted_text import untrusted
from coordinator.client.text import money
from coordinator.domain.account import LOCAL_ACCOUNT
from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import LIVE, NEXT, Job, JobAction, JobState, raised
from coordinator.domain.lease import Lease
from coordinator.domain.privacy import PrivacyBudgetError
from coordinator.domain.serving import context_of
from coordinator.errors import ConflictError, CottageError, FundsError, InvalidError, NotFoundError, UnavailableError
from coordinator.services.arrays import array_offers
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.base_models import BaseModels
from coordinator.services.artifacts.checkpoints import Checkpoints
from coordinator.services.artifacts.file_ownership import FileOwnership
from coordinator.services.artifacts.model_files import ModelFiles
from coordinator.services.artifacts.models import ModelWorkshop, Prepared
from coordinator.services.core.context import Context
from coordinator.services.core.display_names import names_in, readable
from coordinator.services.core.logs import log_of
from coordinator.services.core.unit_of_work import JobDesk
from coordinator.services.jobs import federated_quotes
from coordinator.services.jobs.alternatives import find_choices
from coordinator.services.jobs.federated_quotes import settled
from coordinator.services.jobs.history import KnownOutcomes
from coordinator.services.jobs.job_views import JobViews
from coordinator.services.jobs.ports import MAX_ROWS, ListWindow
from coordinator.services.jobs.quotes import impossible, quote
from coordinator.services.jobs.unpaid import Unpaid
from coordinator.services.network.link_telemetry import Links
from coordinator.services.network.market_price import Rates
from coordinator.services.network.nodes import Nodes
from coordinator.services.payments.chain import ChainPort
from coordinator.services.payments.escrows import escrow_deadline
from coordinator.services.payments.funding import FundingService
from coordinator.services.payments.payees import ROOM
from coordinator.services.serving import offers
from coordinator.services.serving.adapters import AdapterOrigins
from coordinator.services.serving.chat_templates import ChatTemplates
from coordinator.services.serving.draft_models import DraftOrigins
from coordinator.services.serving.homes import Homes
from coordinator.services.training.runs import Runs
from coordinator.services.views import resources
from coordinator.services.views.resources import JobResources, TrafficOf
from coordinator.store.kinds import KINDS
from coordinator.store.ports import Condition, col
from coordinator.store.records import (
    CommitRecord,
    EventRecord,
    MetricRecord,
    NodeRecord,
    OutboxRecord,
    RoundRecord,
    RunRecord,
)
from ledger.client import job_bytes
from ledger.errors import LedgerError
from protocol.ids import Digest
from protocol.job.array import ArraySpec
from protocol.job.job import JobSpec, ModelSpec, ServeSpec, TokenizerSpec, datasets_of
from protocol.models.model import ENDS_WITH, ModelConfigError, inspect_config
from protocol.rest import api
from protocol.serving import MODEL_ARCHIVE

_OfJob = TypeVar("_OfJob", bound=RoundRecord | CommitRecord | Audit | OutboxRecord | MetricRecord | EventRecord)
FUND_S = 30.0  # The embedded ledger answers within one; a cluster confirms within a few.


class JobService:
    """Implements ``ports.JobsPort``. ``test_wallet``: address of the wallet that pays for jobs without a submitter, if any."""

    def __init__(
        self,
        context: Context,
        desk: JobDesk,
        nodes: Nodes,
        links: Links,
        runs: Runs,
        funding: FundingService,
        chain: ChainPort,
        models: ModelWorkshop,
        artifacts: ArtifactStore,
        checkpoints: Checkpoints,
        coordinator: str,
        test_wallet: str | None,
        traffic_of: TrafficOf,
        unpaid: Unpaid,
        homes: Homes,
    ) -> None:
        self._context = context
        self._desk = desk
        self._nodes = nodes
        self._links = links
        self._runs = runs
        self._funding = funding
        self._files = FileOwnership(context.store, context.clock)
        self._chain = chain
        self._models = models
        self._artifacts = artifacts
        self._coordinator = coordinator
        self._test_wallet = test_wallet
        self._traffic_of = traffic_of
        self._homes = homes
        self._views = JobViews(context, traffic_of, homes)
        self._unpaid = unpaid
        self._rates = Rates(context, nodes)
        self._history = KnownOutcomes(context)
        self._base_models = BaseModels(context, artifacts, checkpoints)
        self._adapters = AdapterOrigins(context, artifacts, checkpoints)
        self._model_files = ModelFiles(artifacts)
        self._templates = ChatTemplates(models, self._base_models)
        self._drafts = DraftOrigins(artifacts, self._base_models, models, self._model_files)

    # --- a job's beginning and end ----------------------------------------------------------------------------------------

    async def quote(self, spec: JobSpec, account_id: str = LOCAL_ACCOUNT) -> api.Quote:
        """Price and plan on the network as it is; files are called what the account calls them."""
        found = await self._planned(spec, account_id)
        beside = await self._drafts.misfit(spec), await self._templates.problem(spec)
        problems = *found.problems, *filter(None, beside)
        limit = "; ".join(filter(None, (found.limit, self._waits(found))))
        return msgspec.structs.replace(found, problems=problems, limit=limit)

    def _waits(self, found: api.Quote) -> str:
        """That a job would not begin at once, since too few nodes are free; empty: it would."""
        free = len({one.node for one in self._nodes.candidates()} | self._nodes.claims.spare(""))
        least = max(1, found.stages)
        if not found.nodes_available or free >= least:
            return ""
        few = f"{free} of the {least} nodes that it takes at least are free now: the job waits for more"
        return few if free else "no node is free now: the job waits until one is"

    async def _planned(self, spec: JobSpec, account_id: str) -> api.Quote:
        spec = await self._drafts.described(await self._adapters.described(spec))
        try:
            spec = await asyncio.to_thread(settled, spec)
        except PrivacyBudgetError as error:
            return impossible(error.detail, len(self._nodes.seatable()))
        found = await self._quote(spec, None, await self._weight_names(spec, account_id))
        async with self._context.everywhere.transaction() as tx:
            return msgspec.structs.replace(found, limit=readable(found.limit, await names_in(tx, [found.limit])))

    async def choices(self, spec: JobSpec) -> Sequence[api.Choice]:
        """Other jobs that would be cheaper or sooner on the network as it is."""
        return await find_choices(spec, self.quote)

    async def tokenizer(self, model: ModelSpec) -> TokenizerSpec:
        """That of the job's model that ``model`` starts from."""
        return await self._base_models.tokenizer(model)

    async def create(self, new: api.NewJob, account_id: str = LOCAL_ACCOUNT, job: str | None = None) -> api.JobView:
        """Check everything, prepare the files, store the job as the account's."""
        if job is not None:
            self._context.check_own(job)  # Another cell may have begun with the same request.
        if job is not None and await self._exists(job):
            await self.check_owner(job, account_id)
            return await self.get(job)
        if new.spec.serve is not None:
            return await self._deploy(new, new.spec.serve, account_id, job)
        if new.spec.array is not None:
            return await self._run(new, new.spec.array, account_id, job)
        new = msgspec.structs.replace(new, spec=await asyncio.to_thread(settled, new.spec))
        spec = await self._base_models.started(new.spec)
        submitter = self._submitter(new)
        _refuse(spec, await self.quote(spec, account_id))
        for field, data in datasets_of(spec):
            if not await self._artifacts.has(data.artifact):
                raise NotFoundError(f"there is no dataset {data.artifact}: upload it first", f"{field}.artifact")
        await self._check_weights(spec)
        await self._check_balance(submitter, spec)
        named = await self._weight_names(spec, account_id)
        artifact = None if spec.dataset is None else spec.dataset.artifact
        async with self._unpaid.making(account_id, artifact):
            name = "" if artifact is None else await self.file_name(account_id, artifact)
            for file in filter(None, [*(data.artifact for _, data in datasets_of(spec)[1:]), spec.tokenizer.file]):
                named = {**named, file: await self.file_name(account_id, file)}
            prepared = await self._models.prepare(spec, name, named)
        final = await self._quote(spec, prepared.config, named)
        _refuse(spec, final)
        return await self._make(new, spec, final, prepared, account_id, job)

    async def _deploy(self, new: api.NewJob, serve: ServeSpec, account_id: str, job: str | None) -> api.JobView:
        """A job that answers, with the model of another one, or with a model's files."""
        submitter = self._submitter(new)
        spec = await self._drafts.described(await self._adapters.described(new.spec))
        final = await self._planned(spec, account_id)
        _refuse(spec, final)
        await self._check_balance(submitter, spec)
        await self._check_weights(spec)
        async with self._unpaid.making(account_id):
            if spec.model.from_job is not None:
                found, tokenizer = await self._base_models.served(spec.model)
                await self._templates.check(tokenizer, spec.model.from_job)
            else:
                await self._templates.check(spec.tokenizer)
                model = await self._model_files.of(spec, None, await self._weight_names(spec, account_id))
                found = await self._models.published(spec, {**model.config, ENDS_WITH: model.end})
                tokenizer = spec.tokenizer
            beside = await self._adapters.files(spec, found, tokenizer) | await self._drafts.files(spec, tokenizer)
            if serve.stages != 1:
                of_stages = await self._models.stage_files(found.files[MODEL_ARCHIVE])
                found = replace(found, files=found.files | of_stages)
            found = replace(found, files=found.files | beside)
        context = context_of(inspect_config(found.config), serve.context)
        serve = msgspec.structs.replace(spec.serve or serve, context=context)
        spec = msgspec.structs.replace(spec, serve=serve, tokenizer=tokenizer)
        return await self._make(new, spec, final, found, account_id, job)

    async def _run(self, new: api.NewJob, array: ArraySpec, account_id: str, job: str | None) -> api.JobView:
        """A job that runs a container for each element of an array."""
        final = await self._planned(new.spec, account_id)
        _refuse(new.spec, final)
        await self._check_balance(self._submitter(new), new.spec)
        async with self._unpaid.making(account_id):
            files = await array_offers.files_of(array, account_id, self._artifacts, self._files)
        return await self._make(new, new.spec, final, Prepared(files, {}), account_id, job)

    async def _check_weights(self, spec: JobSpec) -> None:
        for digest in spec.model.weight_files:
            if not await self._artifacts.has(digest):
                raise NotFoundError(f"there is no file of weights {digest}: upload it first", "model.weights")

    async def _make(
        self,
        new: api.NewJob,
        spec: JobSpec,
        final: api.Quote,
        prepared: Prepared,
        account_id: str,
        job: str | None,
    ) -> api.JobView:
        now = self._context.clock.time()
        made = Job(
            id=job or self._context.new_job(),
            name=spec.name,
            state=JobState.CREATED,
            spec=spec,
            submitter=self._submitter(new),
            test_wallet=new.submitter is None,
            created=now,
            deadline=now + spec.deadline_hours * 3600,
            quote=final,
            config=prepared.config,
            files=prepared.files,
            account_id=account_id,
            evaluating="" if spec.evaluation is None else "waiting",
        )
        await self._store(made)
        await self._unpaid.made(made)
        return resources.job_view(made, (), self._traffic_of, made.reason, JobResources(now))

    async def funding(self, job: str) -> api.Funding:
        """What the submitter's wallet must do."""
        stored = await self._job(job)
        return api.Funding(
            job_key=job_bytes(job).hex(),
            amount=stored.spec.budget,
            deadline=escrow_deadline(stored),
            coordinator=self._coordinator,
            ledger_url=self._chain.url,
            program=self._chain.program,
            mint=self._chain.mint,
            escrow=self._chain.escrow_address(stored.submitter, job),
            max_payees=ROOM,
            missing=max(0, stored.spec.budget - stored.escrow),
        )

    async def fund(self, job: str) -> api.JobView:
        """See the escrow, which the test wallet opens first, and wait until it is accepted."""
        stored = await self._job(job)
        if stored.test_wallet and stored.state is JobState.CREATED:
            await self._check_balance(stored.submitter, stored.spec)
            async with self._desk.open(job) as work:
                await self._funding.queue_funding(work)
            await self._until_funded(job)
        elif stored.escrow < stored.spec.budget and stored.state in LIVE and not stored.test_wallet:
            see = self._funding.see_escrow if stored.escrow == 0 else self._funding.see_deposit
            try:
                await see(stored)
            except LedgerError as error:
                raise UnavailableError(f"the ledger does not answer: {error}; try again") from error
            await self._until_funded(job)
        return await self.get(job)

    async def cancel(self, job: str, why: str = "the submitter cancelled the job") -> api.JobView:
        """Stop, pay what is verified, refund the rest; cancelling twice is the same as once. ``why``: for the timeline."""
        async with self._desk.open(job) as work:
            if work.job.state is not JobState.CANCELLED:
                if not NEXT[work.job.state]:
                    raise ConflictError(
                        f"job {job} is {work.job.state}: there is nothing left to cancel", field="state"
                    )
                await self._runs.stop(work, JobState.CANCELLED, why)
        return await self.get(job)

    async def ask(self, job: str, action: JobAction) -> api.JobView:
        """Pause, resume, or stop and keep the model; asking for what is so already changes nothing."""
        async with self._desk.open(job) as work:
            await self._runs.ask(work, action)
        return await self.get(job)

    async def add_budget(self, job: str, amount: int) -> api.JobView:
        """Raise the cap; the test wallet deposits it, an outside wallet is waited for. A job that paused for it goes on."""
        stored = await self._job(job)
        if stored.test_wallet:
            await self._check_balance(stored.submitter, msgspec.structs.replace(stored.spec, budget=amount))
        async with self._desk.open(job) as work:
            work.change(spec=msgspec.structs.replace(work.job.spec, budget=raised(work.job, amount)))
            if not work.job.spec.trains:  # Its price is what may be spent.
                work.change(quote=msgspec.structs.replace(work.job.quote, price=work.job.spec.budget))
            work.note("budget", f"the budget is raised by {money(amount)} to {money(work.job.spec.budget)}")
            if stored.test_wallet:
                await self._funding.queue_deposit(work, amount)
        return await self.get(job)

    async def is_shared(self, job: str) -> bool:
        """Whether everybody may look at it."""
        async with self._context.everywhere.transaction() as tx:
            return bool(await tx.find(Job, col(Job.id).equals(job), col(Job.shared).equals(True), limit=1))

    async def share(self, job: str, shared: bool) -> api.JobView:
        """Let everybody look at the job, or its owner only."""
        async with self._desk.open(job) as work:
            if work.job.shared != shared:
                work.change(shared=shared)
                work.note("shared", "everybody may look at the job" if shared else "only its owner may look at the job")
        return await self.get(job)

    # --- reading ------------------------------------------------------------------------------------------------------------

    async def get(self, job: str) -> api.JobView:
        """One job."""
        async with self._context.everywhere.transaction() as tx:
            return await self._views.view(tx, await self._found(await tx.find(Job, col(Job.id).equals(job)), job))

    async def check_owner(self, job: str, account_id: str) -> None:
        """Refuse a job of another account as if it were not there."""
        async with self._context.everywhere.transaction() as tx:
            await self._found(await tx.find(Job, col(Job.id).equals(job), col(Job.account_id).equals(account_id)), job)

    async def check_files(self, account_id: str, wanted: Iterable[tuple[str, Digest]]) -> None:
        """Refuse files of other accounts as if they were not there."""
        await self._files.check(account_id, wanted)

    async def file_name(self, account_id: str, artifact: Digest) -> str:
        """What an account calls a file that it has uploaded."""
        return await self._files.name(account_id, artifact)

    async def list(
        self, limit: int, before: float | tuple[float, str] | None, account_id: str = LOCAL_ACCOUNT
    ) -> Sequence[api.JobView]:
        """Jobs of an account, newest first."""
        where: list[Condition] = [col(Job.account_id).equals(account_id)]
        where += [col(Job.created) < before] if isinstance(before, float) else []
        after = before if isinstance(before, tuple) else None
        async with self._context.everywhere.transaction() as tx:
            found = await tx.find(Job, *where, newest=True, limit=limit, after=after)
            return await self._views.views(tx, found)

    async def list_shared(self, limit: int, before: float | None) -> Sequence[api.JobView]:
        """Jobs that everybody may look at, newest first."""
        where: list[Condition] = [col(Job.shared).equals(True)]
        where += [] if before is None else [col(Job.created) < before]
        async with self._context.everywhere.transaction() as tx:
            return await self._views.views(tx, await tx.find(Job, *where, newest=True, limit=limit))

    async def nodes(self, job: str) -> Sequence[api.JobNode]:
        """Each node's part."""
        async with self._context.everywhere.transaction() as tx:
            stored = await self._found(await tx.find(Job, col(Job.id).equals(job)), job)
            runs = await tx.find(RunRecord, col(RunRecord.job).equals(job))
            leases = await tx.find(Lease, col(Lease.job).equals(job))
            commits = await tx.find(CommitRecord, col(CommitRecord.job).equals(job))
            audits = await tx.find(Audit, col(Audit.job).equals(job))
            rows = await tx.find(
                OutboxRecord,
                col(OutboxRecord.job).equals(job),
                col(OutboxRecord.kind).equals("settle"),
                col(OutboxRecord.state).equals("confirmed"),
            )
            known = await tx.find(NodeRecord, col(NodeRecord.address).in_(tuple({lease.node for lease in leases})))
        paid = frozenset(row.id for row in rows)
        run = runs[0].run if runs else None
        found = resources.job_nodes(stored, run, leases, commits, audits, paid, known, self._traffic_of)
        now = {} if stored.spec.serve is None else self._homes.uncounted(job)  # Since its last period.
        return [
            msgspec.structs.replace(one, tokens=one.tokens + now[one.node].tokens) if one.node in now else one
            for one in found
        ]

    async def rounds(self, job: str, window: ListWindow | None = None) -> Sequence[api.RoundView]:
        """Rounds that count."""
        records = await self._rows(RoundRecord, job, window, lambda record: record.state != "void")
        return [view for record in records if (view := resources.round_view(record)) is not None]

    async def commits(self, job: str, window: ListWindow | None = None) -> Sequence[api.CommitView]:
        """Commitments and what they brought."""
        records = await self._rows(CommitRecord, job, window)
        async with self._context.everywhere.transaction() as tx:
            rows = await tx.find(
                OutboxRecord,
                col(OutboxRecord.job).equals(job),
                col(OutboxRecord.kind).equals("settle"),
                col(OutboxRecord.state).equals("confirmed"),
            )
        paid = {row.id: row.signature for row in rows}
        return [resources.commit_view(record, paid.get(record.settlement or 0, "")) for record in records]

    async def audits(self, job: str, window: ListWindow | None = None) -> Sequence[api.AuditView]:
        """Audits, drawn and concluded."""
        # An auditor under test must not know it.
        told = await self._rows(Audit, job, window, lambda audit: audit.over or not audit.canary)
        names = await self._names(audit.detail for audit in told)
        return [resources.audit_view(audit, readable(audit.detail, names)) for audit in told]

    async def receipts(self, job: str, window: ListWindow | None = None) -> Sequence[api.Receipt]:
        """Ledger transactions."""
        rows = await self._rows(OutboxRecord, job, window)
        names = await self._names(row.detail for row in rows)
        return [resources.receipt(row, readable(row.detail, names)) for row in rows]

    async def metrics(self, job: str, after: int, limit: int = MAX_ROWS) -> Sequence[api.Metric]:
        """Points of the loss curves beyond the first ``after``."""
        records = await self._part(MetricRecord, job, offset=after, limit=limit)
        return [resources.metric_view(record) for record in records]

    async def events(self, job: str, after: int, limit: int = MAX_ROWS) -> Sequence[api.JobEvent]:
        """Lines of the timeline with a larger id than ``after``."""
        events = await self._part(EventRecord, job, col(EventRecord.id) > after, limit=limit)
        names = await self._names(event.text for event in events)
        return [resources.event_view(event, readable(event.text, names)) for event in events]

    async def mark(self, job: str) -> tuple[int, int]:
        """Points that there are, and the last event."""
        async with self._context.everywhere.transaction() as tx:
            points = await tx.sums(MetricRecord, col(MetricRecord.round), (), col(MetricRecord.job).equals(job))
            last = await tx.find(EventRecord, col(EventRecord.job).equals(job), newest=True, limit=1)
        return points.get((), (0, 0))[0], last[0].id if last else 0

    def changes(self, job: str | None) -> AsyncIterator[str]:
        """News of one job, or of everything."""
        return self._context.bus.changes(job)

    # --- helpers ------------------------------------------------------------------------------------------------------------

    def _submitter(self, new: api.NewJob) -> str:
        if new.submitter is not None:
            return new.submitter
        if self._test_wallet is None:
            raise InvalidError(
                "this coordinator has no test wallet: name the wallet that will fund the job", "submitter"
            )
        return self._test_wallet

    async def check_funds(self, new: api.NewJob) -> None:
        """FundsError unless the wallet that would fund the job holds its budget."""
        await self._check_balance(self._submitter(new), new.spec)

    async def _check_balance(self, submitter: str, spec: JobSpec) -> None:
        try:
            balance = await self._chain.balance(submitter)
        except LedgerError as error:
            raise UnavailableError(f"the ledger does not answer: {error}; try again") from error
        if balance < spec.budget:
            raise FundsError(
                f"the budget {money(spec.budget)} is beyond the {money(balance)} of wallet {submitter}: "
                "lower the budget or fund the wallet",
                "budget",
            )

    async def _store(self, job: Job) -> None:
        async with self._context.store.transaction() as tx:
            await tx.insert(job)
            text = f"the job is submitted; its price is {money(job.quote.price)}"
            event = await tx.insert(EventRecord(job.id, job.created, "created", untrusted(text)))
            await tx.insert(log_of(event))
        self._context.bus.publish(job.id)

    async def _until_funded(self, job: str) -> None:
        changes = self._context.bus.changes(job)
        try:
            async with self._context.clock.timeout(FUND_S):
                while (await self._job(job)).state is JobState.CREATED:
                    await anext(changes)
        except TimeoutError:
            raise UnavailableError(f"the escrow of job {job} is not confirmed yet: try again") from None
        finally:
            await _close(changes)

    async def _job(self, job: str) -> Job:
        async with self._context.everywhere.transaction() as tx:
            return await self._found(await tx.find(Job, col(Job.id).equals(job)), job)

    async def _exists(self, job: str) -> bool:
        async with self._context.everywhere.transaction() as tx:
            return bool(await tx.find(Job, col(Job.id).equals(job)))

    async def _found(self, jobs: Sequence[Job], job: str) -> Job:
        if not jobs:
            raise NotFoundError(f"there is no job {job}: look it up in the list of jobs", "job")
        return jobs[0]

    async def _weight_names(self, spec: JobSpec, account_id: str) -> Mapping[str, str]:
        return {digest: await self.file_name(account_id, digest) for digest in spec.model.weight_files}

    async def _quote(
        self, spec: JobSpec, config: dict[str, object] | None, called: Mapping[str, str] | None = None
    ) -> api.Quote:
        if spec.model.from_job is not None and config is None and spec.model.config is None:
            config = (await self._base_models.of(spec.model)).config
        rate = await self._rates.now()
        everybody = self._nodes.seatable()
        if spec.array is not None:
            staffing = self._runs.arrays.staffing
            able = staffing.able(spec.array, rate.per_petaflop)
            why = "" if able else staffing.why_none(spec.array, rate.per_petaflop)
            return array_offers.quote(spec, spec.array, able, why, self._context.config, rate)
        if spec.serve is not None and config is not None:
            return offers.quote(spec, spec.serve, config, everybody, self._context.config, rate)
        try:
            model = await self._model_files.of(spec, config, called or {})
        except (ModelConfigError, CottageError) as error:
            return impossible(str(error), len(everybody))
        if spec.serve is not None:
            return offers.quote(spec, spec.serve, model.config, everybody, self._context.config, rate)
        if spec.federated is not None:
            return federated_quotes.quote(spec, spec.federated, model, len(everybody))
        known = await self._history.outcomes()
        return quote(spec, model, self._context.config, self._nodes, self._links.map, rate, known)

    async def _names(self, texts: Iterable[str]) -> Mapping[str, str]:
        async with self._context.everywhere.transaction() as tx:
            return await names_in(tx, texts)

    async def _rows(
        self,
        kind: type[_OfJob],
        job: str,
        window: ListWindow | None,
        shown: Callable[[_OfJob], bool] = lambda _row: True,
    ) -> Sequence[_OfJob]:
        """The rows of the window that are shown, oldest first; without a window, the last ones that there are."""
        if window is None:
            return [row for row in (await self._part(kind, job, newest=True, limit=MAX_ROWS))[::-1] if shown(row)]
        found: list[_OfJob] = []
        after = window.after
        async with self._context.everywhere.transaction() as tx:
            await self._found(await tx.find(Job, col(Job.id).equals(job)), job)
            while len(found) < window.limit:
                rows = await tx.find(kind, col(kind.job).equals(job), limit=window.limit, after=after)
                found += [row for row in rows if shown(row)]
                if len(rows) < window.limit:
                    break
                after = KINDS[kind].place_of(rows[-1])
        return found[: window.limit]

    async def _part(
        self,
        kind: type[_OfJob],
        job: str,
        *where: Condition,
        newest: bool = False,
        offset: int = 0,
        limit: int = MAX_ROWS,
    ) -> Sequence[_OfJob]:
        async with self._context.everywhere.transaction() as tx:
            await self._found(await tx.find(Job, col(Job.id).equals(job)), job)
            return await tx.find(kind, col(kind.job).equals(job), *where, newest=newest, limit=limit, offset=offset)


def _refuse(spec: JobSpec, offered: api.Quote) -> None:
    """Raise the first problem of a quote."""
    if offered.price > spec.budget and len(offered.problems) == 1:
        raise FundsError(offered.problems[0], "budget")
    if offered.problems:
        raise InvalidError(offered.problems[0], "spec")


async def _close(changes: AsyncIterator[str]) -> None:
    closing = getattr(changes, "aclose", None)
    if closing is not None:
        await asyncio.shield(closing())
