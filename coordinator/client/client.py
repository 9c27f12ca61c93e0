"""The coordinator's interface as Python calls, with the same words."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlencode

import msgspec

from common.regular_file import irregular
from common.untrusted_text import untrusted
from coordinator.client.account import AccountCalls
from coordinator.client.archive import unpack
from coordinator.client.arrays import ArrayCalls
from coordinator.client.books import PublicCalls
from coordinator.client.deployments import (
    HOURS,
    REPLICAS,
    check_served,
    deployment_document,
    deployment_name,
    makes_none,
    usual_budget,
)
from coordinator.client.errors import ClientError, ProblemError, UnreachableError
from coordinator.client.files import TUS, Progress, digest_of, download_file, upload_file
from coordinator.client.images.calls import ImageCalls
from coordinator.client.line import ATTEMPTS, CHANGE_S, WORK_S, HttpLine, Sleep, decode, is_passing, place
from coordinator.client.operation import OperatorCalls
from coordinator.client.private import PrivateCalls
from protocol.job.job import DatasetFormat, JobSpec, ServedWeights
from protocol.rest import api
from protocol.rest.dataset import Check, CheckRequest
from protocol.rest.hub import HubFile, HubModelView, NewHubModel, Pull
from protocol.rest.market import Market
from protocol.rest.records import AuditRecords

LARGEST_PAGE = 200  # Of jobs.
LOG_LINES = 1_000  # Of a log in one answer.
FOLLOW_S = 2.0  # Between two looks at a log.
CHECK_S = 20  # That one answer about a check may take.
FEW_ATTEMPTS = 4  # Of a short call: two seconds, which a coordinator that starts again may need.
_TERMINAL = frozenset({"settled", "failed", "cancelled"})


T = TypeVar("T")


class JobUpdate(msgspec.Struct, frozen=True):
    """What a stream brought: the job as it is now, and what is new since the last update."""

    job: api.JobView | None = None
    metrics: tuple[api.Metric, ...] = ()
    events: tuple[api.JobEvent, ...] = ()

    @property
    def over(self) -> bool:
        """The job has ended, one way or another."""
        return self.job is not None and self.job.state in _TERMINAL


class Client(AccountCalls, ArrayCalls, ImageCalls, PublicCalls, OperatorCalls, PrivateCalls):
    """One coordinator. Use it as an async context manager, or call ``close``.

    Every call raises ProblemError where the coordinator refuses, and UnreachableError where it does not answer. A call whose
    answer is lost is repeated by itself; what it asks for happens once, by its idempotency key.
    """

    def __init__(
        self, base_url: str, token: str | None = None, sleep: Sleep = asyncio.sleep, attempts: int = FEW_ATTEMPTS
    ) -> None:
        """Remember the address; nothing is sent yet.

        Args:
            base_url: for example ``http://127.0.0.1:8470``.
            token: an API key; None where the coordinator is open to everybody who reaches it.
            sleep: waits between attempts; tests pass their own.
            attempts: of a call that gets no answer. Streams, uploads and downloads have more, as they are long.
        Raises:
            AddressError: ``base_url`` is no address of a server.
        """
        self._line = HttpLine(base_url, token, attempts, sleep)

    @property
    def address(self) -> str:
        """The coordinator's address, under which its pages are, too."""
        return self._line.base

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._line.close()

    # What the network is and what a job would cost

    async def network(self) -> api.NetworkView:
        """The network at a glance."""
        return await self._line.get("network", api.NetworkView)

    async def market(self) -> Market:
        """Price and demand of work, and what a machine may expect."""
        return await self._line.get("market", Market)

    async def network_nodes(self) -> Sequence[api.NodeView]:
        """Every node of the network."""
        return await self._line.list("nodes", api.NodeView)

    async def relays(self) -> Sequence[api.RelayView]:
        """Relays between homes, and what they carried for whom."""
        return await self._line.list("relays", api.RelayView)

    async def watch_network(self) -> AsyncIterator[api.NetworkView]:
        """The network at a glance, again whenever a node or a job changed; ends only when the caller stops."""

        async def once(_mark: str) -> AsyncIterator[tuple[api.NetworkView, str]]:
            async for fields in self._events("network/stream", ""):
                if fields.get("event") == "network":
                    yield decode(fields["data"].encode(), api.NetworkView), ""

        async for view in self._followed(once):
            yield view

    async def quote(self, spec: JobSpec | Mapping[str, Any]) -> api.Quote:
        """Price and plan on the network as it is; what forbids the job is in ``problems``."""
        return await self._line.change("POST", "quote", api.Quote, spec)

    async def choices(self, spec: JobSpec | Mapping[str, Any]) -> Sequence[api.Choice]:
        """Other jobs that would be cheaper or sooner, each quoted."""
        return await self._line.change("POST", "choices", tuple[api.Choice, ...], spec)

    async def check(self, request: CheckRequest | Mapping[str, Any], wait: int = 0) -> Check:
        """Check a dataset row by row before paying for it; asking again says how far it is.

        Args:
            request: which dataset, with which tokenizer.
            wait: seconds that the answer may take to hold the end, at most 20.
        """
        return await self._line.change("POST", f"checks?wait={wait}", Check, request, seconds=CHANGE_S + wait)

    async def checked(
        self, request: CheckRequest | Mapping[str, Any], on_progress: Callable[[Check], None] | None = None
    ) -> Check:
        """As ``check``, until it has ended: ``state`` is then ``done`` or ``failed``."""
        while (found := await self.check(request, CHECK_S)).state in ("queued", "running"):
            if on_progress is not None:
                on_progress(found)
        return found

    # Jobs

    async def create_job(
        self, job: api.NewJob | JobSpec | Mapping[str, Any], submitter: str | None = None
    ) -> api.JobView:
        """Submit a job; it waits for its escrow.

        Args:
            job: the job document, as a Struct or as plain data from YAML or JSON; or a whole ``NewJob``.
            submitter: the wallet that will fund it; ``None`` for the coordinator's test wallet.
        """
        body = job if isinstance(job, api.NewJob) else {"spec": job, "submitter": submitter}
        return await self._line.change("POST", "jobs", api.JobView, body, seconds=WORK_S)

    async def deploy(
        self,
        job: str,
        replicas: int = REPLICAS,
        hours: float = HOURS,
        budget: int | None = None,
        *,
        round_: int | None = None,
        context: int | None = None,
        name: str = "",
        idle_minutes: int | None = None,
        stages: int | None = None,
        weights: ServedWeights = "float32",
        adapters: Sequence[str] = (),
        draft: str | None = None,
        submitter: str | None = None,
    ) -> api.JobView:
        """Have a job's model answer at ``/v1`` on nodes of the network; ``wait`` with ``until=answers`` waits for the first.

        What is returned is a job of its own, whose id is the model's name. ``stop`` ends it with pay and refund.

        Args:
            job: whose model answers: the finished one, or with ``round_`` the checkpoint after so many rounds.
            replicas: how often it is held, as often as there are nodes for up to so many times.
            hours: until it ends.
            budget: the most that is paid, in millionths; ``None``: twice what being ready for all the hours costs.
            round_: of the checkpoint.
            context: tokens of a prompt with its answer; ``None``: as many as the model reads.
            name: how you find it again.
            idle_minutes: without a request for so long its nodes are let go, until somebody asks; ``None``: they stay.
            stages: nodes that hold it together, each some layers; ``None``: one where it fits, else as few as it fits.
            weights: how nodes hold the matrices of its layers: less memory, other answers, and slower ones.
            adapters: jobs that adapted exactly this model; each answers as ``DEPLOYMENT:JOB``.
            draft: a job whose small model drafts, where several nodes hold the model together: sooner, and the same answers.
            submitter: the wallet that will fund it; ``None``: the coordinator's test wallet does so at once.
        Raises:
            ProblemError: the job has no such model, or the price forbids it.
        """
        source = await self.get(job)
        check_served(source, round_)
        name = name or deployment_name(source.name)
        document = deployment_document(
            job, budget or 1, replicas, hours, round_, context, name, idle_minutes, stages, weights, adapters, draft
        )
        if budget is None:
            document["budget"] = usual_budget(await self.quote(document))
        made = await self.create_job(document, submitter)
        return made if submitter is not None else await self.fund(made.id)

    async def funding(self, job: str) -> api.Funding:
        """What the submitter's wallet must put into escrow, and where."""
        return await self._line.get(f"{place('job', job)}/funding", api.Funding)

    async def fund(self, job: str) -> api.JobView:
        """Have the coordinator look for the escrow; with its test wallet, open it first."""
        return await self._line.change("POST", f"{place('job', job)}/fund", api.JobView, seconds=WORK_S)

    async def cancel(self, job: str) -> api.JobView:
        """Stop the job: verified work is paid, the rest refunded."""
        return await self._line.change("POST", f"{place('job', job)}/cancel", api.JobView)

    async def pause(self, job: str) -> api.JobView:
        """Pause it once the round in flight is complete, stored and audited."""
        return await self._line.change("POST", f"{place('job', job)}/pause", api.JobView)

    async def resume(self, job: str) -> api.JobView:
        """Go on where it was paused."""
        return await self._line.change("POST", f"{place('job', job)}/resume", api.JobView)

    async def stop(self, job: str) -> api.JobView:
        """End it now and keep the model of its newest verified checkpoint."""
        return await self._line.change("POST", f"{place('job', job)}/stop", api.JobView)

    async def add_budget(self, job: str, amount: int) -> api.JobView:
        """Raise its cap by ``amount`` millionths."""
        return await self._line.change("POST", f"{place('job', job)}/budget", api.JobView, api.AddBudget(amount))

    async def share(self, job: str, shared: bool = True) -> api.JobView:
        """Let everybody look at it, or nobody else."""
        return await self._line.change("PUT", f"{place('job', job)}/share", api.JobView, api.Share(shared))

    async def output(self, job: str) -> api.OutputView:
        """The bucket of one's own that its model goes to."""
        return await self._line.get(f"{place('job', job)}/output", api.OutputView)

    async def set_output(self, job: str, output: api.NewOutput) -> api.OutputView:
        """Name that bucket, or another one."""
        return await self._line.change("PUT", f"{place('job', job)}/output", api.OutputView, output)

    async def remove_output(self, job: str) -> None:
        """Send nothing more there."""
        await self._line.change("DELETE", f"{place('job', job)}/output", None)

    async def checkpoints(self, job: str) -> Sequence[api.CheckpointView]:
        """Its newest stored states, newest first."""
        return await self._line.list(f"{place('job', job)}/checkpoints", api.CheckpointView)

    async def download_stage(
        self, job: str, round_: int, stage: int, target: Path, progress: Progress | None = None
    ) -> Path:
        """Fetch one stage's file of a checkpoint (safetensors), check its SHA-256, and return where it lies: ``target``."""
        path = f"{place('job', job)}/checkpoints/{round_}/stages/{stage}"
        return await download_file(self._line, path, await digest_of(self._line, path), target, progress or _quiet)

    async def download_checkpoint(self, job: str, round_: int, archive: Path, progress: Progress | None = None) -> Path:
        """Fetch the model of a checkpoint as a zip archive, made when it is first asked for."""
        path = f"{place('job', job)}/checkpoints/{round_}/model.zip"
        return await download_file(self._line, path, await digest_of(self._line, path), archive, progress or _quiet)

    async def download_merged_archive(self, job: str, archive: Path, progress: Progress | None = None) -> Path:
        """Fetch the newest model as a whole as a zip archive: an adapter is merged into the weights that it adapts."""
        path = f"{place('job', job)}/merged.zip"
        return await download_file(self._line, path, await digest_of(self._line, path), archive, progress or _quiet)

    async def download_merged(self, job: str, folder: Path, progress: Progress | None = None) -> Path:
        """As ``download_merged_archive``, unpacked into ``folder``.

        Raises:
            ArchiveError: the bytes are not those that the coordinator named, or not safe to unpack.
        """
        return await _unpacked(self.download_merged_archive, job, folder, progress)

    async def records(self, job: str, audit: str) -> AuditRecords:
        """What an audited step was opened with; its files come with ``download_record``."""
        return await self._line.get(f"{place('job', job)}/audits/{audit}/records", AuditRecords)

    async def download_record(self, records: AuditRecords, name: str, folder: Path) -> Path:
        """Fetch one of the files that the records name into a folder."""
        path = f"{place('job', records.job)}/audits/{records.audit}/records/{name}"
        return await download_file(self._line, path, records.files[name], folder / name, _quiet)

    async def logs(
        self,
        job: str,
        after: int = 0,
        search: str = "",
        level: str = "info",
        limit: int = 200,
        attempts: int | None = None,
    ) -> Sequence[api.LogLine]:
        """Lines of its log after an id, or the newest; ``search``: text that is in them."""
        query = urlencode({"after": after, "search": search, "level": level, "limit": limit})
        return await self._line.get(f"{place('job', job)}/logs?{query}", tuple[api.LogLine, ...], attempts)

    async def follow_logs(
        self, job: str, search: str = "", level: str = "info", limit: int = 200
    ) -> AsyncIterator[api.LogLine]:
        """The newest ``limit`` lines of its log, oldest first, then every line as it comes, until the job is over."""
        after, most = 0, limit
        while True:
            over = (await self._line.get(place("job", job), api.JobView, ATTEMPTS)).state in _TERMINAL
            while lines := await self.logs(job, after, search, level, most, ATTEMPTS):
                for line in lines:
                    yield line
                after, most = lines[-1].id, LOG_LINES
            if over:
                return
            most = LOG_LINES
            await self._line.wait(FOLLOW_S)

    async def compare(self, jobs: Sequence[str]) -> Sequence[api.RunCurve]:
        """Several runs beside each other."""
        return await self._line.get(f"compare?{urlencode({'jobs': ','.join(jobs)})}", tuple[api.RunCurve, ...])

    async def generate(
        self, job: str, request: api.TrialRequest, round_: int | None = None
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Continue a prompt with a checkpoint: pieces as they come, ``{"text": ...}`` among them, last ``{"done": ...}``.

        Raises:
            ProblemError: what the coordinator says is wrong, also in the middle.
        """
        await self.get(job)  # Whoever says nothing is found out soon; making the text may take long.
        path = f"{place('job', job)}/generate" + ("" if round_ is None else f"?round={round_}")
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        body = msgspec.json.encode(request)
        async with self._line.request("POST", path, data=body, headers=headers, timeout=WORK_S) as response:
            async for line in response.content:
                name, _, value = line.decode("utf-8", "replace").rstrip("\r\n").partition(": ")
                if name != "data":
                    continue
                piece: dict[str, Any] = msgspec.json.decode(value)
                if "error" in piece:
                    found = msgspec.convert(piece["error"], api.Problem)
                    raise ProblemError(422, found.code, found.detail, found.field)
                yield piece

    async def get(self, job: str) -> api.JobView:
        """The job as it is."""
        return await self._line.get(place("job", job), api.JobView)

    async def jobs(self, limit: int = 50) -> Sequence[api.JobView]:
        """The newest jobs, newest first."""
        return await self._line.list(f"jobs?limit={min(limit, LARGEST_PAGE)}", api.JobView, limit)

    async def nodes(self, job: str) -> Sequence[api.JobNode]:
        """Each node's part in the job."""
        return await self._line.list(f"{place('job', job)}/nodes", api.JobNode)

    async def rounds(self, job: str) -> Sequence[api.RoundView]:
        """The job's outer rounds."""
        return await self._line.list(f"{place('job', job)}/rounds", api.RoundView)

    async def commits(self, job: str) -> Sequence[api.CommitView]:
        """The nodes' commitments and what each brought."""
        return await self._line.list(f"{place('job', job)}/commits", api.CommitView)

    async def audits(self, job: str) -> Sequence[api.AuditView]:
        """Audits, drawn and concluded."""
        return await self._line.list(f"{place('job', job)}/audits", api.AuditView)

    async def receipts(self, job: str) -> Sequence[api.Receipt]:
        """The job's ledger transactions."""
        return await self._line.list(f"{place('job', job)}/receipts", api.Receipt)

    async def metrics(self, job: str, after: int = 0) -> Sequence[api.Metric]:
        """Points of the loss curves; ``after``: how many the caller has already."""
        return await self._line.list(f"{place('job', job)}/metrics?after={after}", api.Metric)

    async def events(self, job: str, after: int = 0) -> Sequence[api.JobEvent]:
        """What happened; ``after``: the id of the last event that the caller has."""
        return await self._line.list(f"{place('job', job)}/events?after={after}", api.JobEvent)

    async def watch(self, job: str) -> AsyncIterator[JobUpdate]:
        """The job live until it is over, across cuts and restarts of the coordinator."""

        async def once(mark: str) -> AsyncIterator[tuple[JobUpdate, str]]:
            async for fields in self._events(f"{place('job', job)}/stream", mark):
                if (update := _update(fields)) is not None:
                    yield update, fields.get("id", "")

        async for update in self._followed(once):
            yield update
            if update.over:
                return

    async def wait(
        self,
        job: str,
        on_update: Callable[[JobUpdate], None] | None = None,
        until: Callable[[api.JobView], bool] | None = None,
    ) -> api.JobView:
        """Follow the job until it is over and return how it ended; or until something is so of it, such as ``answers``."""
        async with contextlib.aclosing(self.watch(job)) as updates:  # type: ignore[type-var]
            async for update in updates:
                if on_update is not None:
                    on_update(update)
                if until is not None and update.job is not None and until(update.job):
                    break
        return await self.get(job)

    # Files

    async def upload(
        self,
        path: Path,
        purpose: Literal["dataset", "weights", "tokenizer", "input"] = "dataset",
        format: DatasetFormat = "auto",  # noqa: A002 - the interface's word
        text_field: str = "text",
        progress: Progress | None = None,
        resume: str | None = None,
        begun: Callable[[api.Upload], None] | None = None,
    ) -> api.Upload:
        """Upload a file and have it checked; goes on where it stopped after a cut or a restart of the coordinator.

        Args:
            path: the file.
            purpose: what it is for.
            format: of a dataset; ``auto``: what its content says.
            text_field: the field or column of a dataset that has the text.
            progress: called with the bytes that the coordinator holds, and the whole length.
            resume: id of an upload that another process began.
            begun: called with the upload before its first bytes go: whoever keeps its id can go on with it.
        Raises:
            ClientError: it is a pipe, a device or a folder.
        """
        if what := irregular(path):
            raise ClientError(f"{path} {what}")
        length = path.stat().st_size
        if length == 0:
            raise ProblemError(422, "invalid", f"{path.name} is empty: choose a file with something in it", purpose)
        new = api.NewUpload(length, untrusted(path.name), purpose, format, text_field)
        return await upload_file(self._line, path, new, resume, progress or _quiet, begun or (lambda _upload: None))

    async def hub_model(self, name: str) -> HubModelView:
        """Have the coordinator look a public model of the Hugging Face Hub up: ``organisation/name@revision``."""
        return await self._line.change("POST", "hub-models", HubModelView, NewHubModel(name), seconds=WORK_S)

    async def pull(self, model: HubModelView, file: HubFile, progress: Progress | None = None) -> api.Upload:
        """Have the coordinator fetch a file of a model's weights itself; goes on after a cut."""
        told, name = progress or _quiet, untrusted(file.path)
        new = api.NewUpload(file.size, name, "weights", sha256=file.sha256)
        source = Pull(f"{model.repository}@{model.commit}", file.path)
        upload = await self._line.change("POST", "uploads", api.Upload, new)
        failures = 0
        while upload.artifact is None:
            try:
                at = f"uploads/{upload.id}/pull"
                upload = await self._line.change("POST", at, api.Upload, source, seconds=WORK_S)
                failures = 0
            except (UnreachableError, ProblemError) as error:
                failures += 1
                if failures >= ATTEMPTS or not is_passing(error):
                    raise
                await self._line.pause(failures, error)
            told(upload.offset, upload.length)
        return upload

    async def delete_upload(self, upload: str) -> None:
        """Give an upload up; the coordinator forgets its bytes."""
        await self._line.change("DELETE", place("upload", upload), None, headers=TUS)

    async def get_upload(self, upload: str) -> api.Upload:
        """How far an upload is."""
        return await self._line.get(place("upload", upload), api.Upload)

    async def download_model(self, job: str, archive: Path, progress: Progress | None = None) -> Path:
        """Fetch the finished model as a zip archive, check its SHA-256, and return where it lies: ``archive``.

        A download that was cut goes on where it was, also in another process.

        Raises:
            ArchiveError: the bytes are not those that the coordinator named.
        """
        view = await self.get(job)
        if view.model is None:
            detail = f"job {job} is {view.state} and has no model yet: it has one once it is verified"
            if view.spec.array is not None:
                detail = f"job {job} runs containers and makes no model: `cottage download {job}` fetches its results"
            if view.spec.serve is not None:
                whose = view.spec.model.from_job
                detail = makes_none(job, whose) + ("" if whose is None else f": download that of {whose}")
            raise ProblemError(409, "conflict", detail, "state")
        return await download_file(
            self._line, f"{place('job', job)}/model.zip", view.model, archive, progress or _quiet
        )

    async def download_folder(self, job: str, folder: Path, progress: Progress | None = None) -> Path:
        """Fetch the finished model, check its hash, and unpack it into ``folder``, which is returned.

        Raises:
            ArchiveError: the bytes are not those that the coordinator named, or not safe to unpack.
        """
        return await _unpacked(self.download_model, job, folder, progress)

    async def _followed(self, once: Callable[[str], AsyncIterator[tuple[T, str]]]) -> AsyncIterator[T]:
        """What streams bring, one after the other, each from the mark where the last one was cut."""
        mark, failures = "", 0
        while True:
            lost: ClientError | None = None
            try:
                async for update, seen in once(mark):
                    mark, failures = seen or mark, 0
                    yield update
            except (UnreachableError, ProblemError) as error:
                if not is_passing(error):
                    raise
                lost, failures = error, failures + 1
                if failures >= ATTEMPTS:
                    raise
            await self._line.pause(max(1, failures), lost)

    async def _events(self, path: str, mark: str) -> AsyncIterator[Mapping[str, str]]:
        """Fields of each Server-Sent Event of a stream, from its mark on, until it ends."""
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": mark} if mark else {})
        async with self._line.request("GET", path, headers=headers, timeout=None) as response:
            fields: dict[str, str] = {}
            async for line in response.content:
                name, _, value = line.decode("utf-8", "replace").rstrip("\r\n").partition(": ")
                if name:
                    fields[name] = value
                else:
                    yield fields
                    fields = {}


def _update(fields: Mapping[str, str]) -> JobUpdate | None:
    match fields.get("event"):
        case "job":
            return JobUpdate(job=decode(fields["data"].encode(), api.JobView))
        case "metrics":
            return JobUpdate(metrics=decode(fields["data"].encode(), tuple[api.Metric, ...]))
        case "events":
            return JobUpdate(events=decode(fields["data"].encode(), tuple[api.JobEvent, ...]))
        case _:
            return None


def _quiet(_done: int, _whole: int) -> None: ...


async def _unpacked(
    download: Callable[[str, Path, Progress | None], Awaitable[Path]], job: str, folder: Path, progress: Progress | None
) -> Path:
    """Fetch an archive beside ``folder``, unpack it there, and leave nothing else."""
    archive = folder.with_name(f".{folder.name}.zip")
    try:
        await asyncio.to_thread(unpack, await download(job, archive, progress), folder)
    finally:
        archive.unlink(missing_ok=True)
    return folder
