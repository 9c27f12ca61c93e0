"""The coordinator's interface as Python calls, with the same words."""

import asyncio
import base64
import contextlib
import hashlib
import os
import random
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlencode

import aiohttp
import msgspec

from coordinator.client.archive import unpack
from coordinator.client.errors import ArchiveError, ClientError, ProblemError, UnreachableError
from transport.clock import backoff
from transport.wire import api, codec, ledger
from transport.wire.evidence import RoundEvidence
from transport.wire.job import DatasetFormat, JobSpec

PIECE_BYTES = 8 << 20  # Sent in one request: what a cut costs at most, on a line that notices it late.
MAX_ANSWER_BYTES = 64 << 20
MAX_EVENT_BYTES = 4 << 20
ASK_S = 60.0
WORK_S = 1200.0  # To submit a job: the coordinator trains its tokenizer and lays out its data before it answers.
SILENCE_S = 60.0  # A stream says that it is alive every few seconds; a file comes without long pauses.
ATTEMPTS = 12  # With the growing pauses between them, two minutes: a coordinator restarts in a few seconds.
_TRANSIENT = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, asyncio.TimeoutError, ConnectionError)
_GATEWAY = frozenset({502, 503, 504})
_TERMINAL = frozenset({"settled", "failed", "cancelled"})

T = TypeVar("T")
Progress = Callable[[int, int], None]


class JobUpdate(msgspec.Struct, frozen=True):
    """What a stream brought: the job as it is now, and what is new since the last update."""

    job: api.JobView | None = None
    metrics: tuple[api.Metric, ...] = ()
    events: tuple[api.JobEvent, ...] = ()

    @property
    def over(self) -> bool:
        """The job has ended, one way or another."""
        return self.job is not None and self.job.state in _TERMINAL


class Client:
    """One coordinator. Use it as an async context manager, or call ``close``.

    Every call raises ProblemError where the coordinator refuses, and UnreachableError where it does not answer.
    """

    def __init__(self, base_url: str, sleep: Callable[[float], Any] = asyncio.sleep) -> None:
        """Remember the address; nothing is sent yet.

        Args:
            base_url: for example ``http://127.0.0.1:8470``.
            sleep: waits between attempts; tests pass their own.
        """
        self._base = base_url.rstrip("/")
        self._sleep = sleep
        self._opened: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    # What the network is and what a job would cost

    async def network(self) -> api.NetworkView:
        """The network at a glance."""
        return await self._get("network", api.NetworkView)

    async def network_nodes(self) -> Sequence[api.NodeView]:
        """Every node of the network."""
        return await self._get("nodes", tuple[api.NodeView, ...])

    async def quote(self, spec: JobSpec | Mapping[str, Any]) -> api.Quote:
        """Price and plan on the network as it is; what forbids the job is in ``problems``."""
        return await self._send("POST", "quote", api.Quote, spec)

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
        return await self._send("POST", "jobs", api.JobView, body)

    async def funding(self, job: str) -> api.Funding:
        """What the submitter's wallet must put into escrow, and where."""
        return await self._get(f"jobs/{job}/funding", api.Funding)

    async def fund(self, job: str) -> api.JobView:
        """Have the coordinator look for the escrow; with its test wallet, open it first."""
        return await self._send("POST", f"jobs/{job}/fund", api.JobView)

    async def cancel(self, job: str) -> api.JobView:
        """Stop the job: verified work is paid, the rest refunded."""
        return await self._send("POST", f"jobs/{job}/cancel", api.JobView)

    async def pause(self, job: str) -> api.JobView:
        """Pause it once the round in flight is complete, stored and audited."""
        return await self._send("POST", f"jobs/{job}/pause", api.JobView)

    async def resume(self, job: str) -> api.JobView:
        """Go on where it was paused."""
        return await self._send("POST", f"jobs/{job}/resume", api.JobView)

    async def stop(self, job: str) -> api.JobView:
        """End it now and keep the model of its newest verified checkpoint."""
        return await self._send("POST", f"jobs/{job}/stop", api.JobView)

    async def add_budget(self, job: str, amount: int) -> api.JobView:
        """Raise its cap by ``amount`` millionths."""
        return await self._send("POST", f"jobs/{job}/budget", api.JobView, api.AddBudget(amount))

    async def share(self, job: str, shared: bool = True) -> api.JobView:
        """Let everybody look at it, or nobody else."""
        return await self._send("PUT", f"jobs/{job}/share", api.JobView, api.Share(shared))

    async def checkpoints(self, job: str) -> Sequence[api.CheckpointView]:
        """Its newest stored states, newest first."""
        return await self._get(f"jobs/{job}/checkpoints", tuple[api.CheckpointView, ...])

    async def download_checkpoint(self, job: str, round_: int, archive: Path, progress: Progress | None = None) -> Path:
        """Fetch the model of a checkpoint as a zip archive, made when it is first asked for."""
        return await self._fetch_to(f"jobs/{job}/checkpoints/{round_}/model.zip", archive, None, progress)

    async def logs(
        self, job: str, after: int = 0, search: str = "", level: str = "info", limit: int = 200
    ) -> Sequence[api.LogLine]:
        """Lines of its log after an id, or the newest; ``search``: text that is in them."""
        query = urlencode({"after": after, "search": search, "level": level, "limit": limit})
        return await self._get(f"jobs/{job}/logs?{query}", tuple[api.LogLine, ...])

    async def compare(self, jobs: Sequence[str]) -> Sequence[api.RunCurve]:
        """Several runs beside each other."""
        return await self._get(f"compare?jobs={','.join(jobs)}", tuple[api.RunCurve, ...])

    async def generate(
        self, job: str, request: api.TrialRequest, round_: int | None = None
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Continue a prompt with a checkpoint: pieces as they come, ``{"text": ...}`` among them, last ``{"done": ...}``.

        Raises:
            ProblemError: what the coordinator says is wrong, also in the middle.
        """
        path = f"jobs/{job}/generate" + ("" if round_ is None else f"?round={round_}")
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        body = msgspec.json.encode(request)
        async with self._request("POST", path, data=body, headers=headers, timeout=WORK_S) as response:
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
        return await self._get(f"jobs/{job}", api.JobView)

    async def jobs(self, limit: int = 50, before: float | None = None) -> Sequence[api.JobView]:
        """Jobs, newest first; ``before`` (a job's ``created``) turns the page."""
        query = f"jobs?limit={limit}" + ("" if before is None else f"&before={before!r}")
        return await self._get(query, tuple[api.JobView, ...])

    async def nodes(self, job: str) -> Sequence[api.JobNode]:
        """Each node's part in the job."""
        return await self._get(f"jobs/{job}/nodes", tuple[api.JobNode, ...])

    async def rounds(self, job: str) -> Sequence[api.RoundView]:
        """The job's outer rounds."""
        return await self._get(f"jobs/{job}/rounds", tuple[api.RoundView, ...])

    async def commits(self, job: str) -> Sequence[api.CommitView]:
        """The nodes' commitments and what each brought."""
        return await self._get(f"jobs/{job}/commits", tuple[api.CommitView, ...])

    async def audits(self, job: str) -> Sequence[api.AuditView]:
        """Audits, drawn and concluded."""
        return await self._get(f"jobs/{job}/audits", tuple[api.AuditView, ...])

    async def job_ledger(self, job: str) -> ledger.JobLedger:
        """The job's escrow, as the ledger has it."""
        return await self._get(f"jobs/{job}/ledger", ledger.JobLedger)

    async def promise(self, job: str) -> ledger.PromiseView:
        """What the job's payees can claim from the ledger."""
        return await self._get(f"jobs/{job}/promise", ledger.PromiseView)

    async def evidence(self, job: str, number: int) -> Sequence[RoundEvidence]:
        """What is published about a round (counted from 0): once for each time that it was completed."""
        return await self._get(f"jobs/{job}/rounds/{number}/evidence", tuple[RoundEvidence, ...])

    async def node_account(self, node: str) -> ledger.NodeAccount:
        """A node's stake, audits and earnings."""
        return await self._get(f"nodes/{node}", ledger.NodeAccount)

    async def receipts(self, job: str) -> Sequence[api.Receipt]:
        """The job's ledger transactions."""
        return await self._get(f"jobs/{job}/receipts", tuple[api.Receipt, ...])

    async def metrics(self, job: str, after: int = 0) -> Sequence[api.Metric]:
        """Points of the loss curves; ``after``: how many the caller has already."""
        return await self._get(f"jobs/{job}/metrics?after={after}", tuple[api.Metric, ...])

    async def events(self, job: str, after: int = 0) -> Sequence[api.JobEvent]:
        """What happened; ``after``: the id of the last event that the caller has."""
        return await self._get(f"jobs/{job}/events?after={after}", tuple[api.JobEvent, ...])

    async def stream(self, job: str) -> AsyncIterator[JobUpdate]:
        """The job live until it is over, across cuts and restarts of the coordinator."""
        mark, failures = "", 0
        while True:
            try:
                async for update, seen in self._stream_once(job, mark):
                    mark, failures = seen or mark, 0
                    yield update
                    if update.over:
                        return
            except (UnreachableError, ProblemError) as error:
                if isinstance(error, ProblemError) and error.status not in _GATEWAY:
                    raise
                failures += 1
                if failures >= ATTEMPTS:
                    raise
            await self._sleep(backoff(max(1, failures), random.random))

    async def wait(self, job: str, on_update: Callable[[JobUpdate], None] | None = None) -> api.JobView:
        """Follow the job until it is over and return how it ended."""
        async with contextlib.aclosing(self.stream(job)) as updates:  # type: ignore[type-var]
            async for update in updates:
                if on_update is not None:
                    on_update(update)
        return await self.get(job)

    # Files

    async def upload(
        self,
        path: Path,
        purpose: Literal["dataset", "weights", "tokenizer"] = "dataset",
        format: DatasetFormat = "text",  # noqa: A002 - the interface's word
        text_field: str = "text",
        progress: Progress | None = None,
        resume: str | None = None,
    ) -> api.Upload:
        """Upload a file and have it checked; goes on where it stopped after a cut or a restart of the coordinator.

        Args:
            path: the file.
            purpose: what it is for.
            format: of a dataset.
            text_field: of a JSONL or Parquet dataset.
            progress: called with the bytes that the coordinator holds, and the whole length.
            resume: id of an upload that another process began.
        """
        length = path.stat().st_size
        if length == 0:
            raise ProblemError(422, "invalid", f"{path.name} is empty: choose a file with something in it", purpose)
        if resume is None:
            new = api.NewUpload(length, path.name[:200], purpose, format, text_field)
            upload = await self._send("POST", "uploads", api.Upload, new)
        else:
            upload = await self._get(f"uploads/{resume}", api.Upload)
        failures = 0
        while upload.artifact is None:
            try:
                before, upload = upload, await self._send_piece(path, upload)
                failures = 0 if upload.offset > before.offset or upload.artifact else failures + 1
            except (UnreachableError, ProblemError) as error:
                failures += 1
                if failures >= ATTEMPTS or (
                    isinstance(error, ProblemError) and error.status not in {409, 460, *_GATEWAY}
                ):
                    raise
                await self._sleep(backoff(failures, random.random))
                with contextlib.suppress(UnreachableError):
                    upload = await self._get(f"uploads/{upload.id}", api.Upload)
            if progress is not None:
                progress(upload.offset, length)
        return upload

    async def download_model(self, job: str, archive: Path, progress: Progress | None = None) -> Path:
        """Fetch the finished model as a zip archive, check its hash, and return where it lies: ``archive``.

        Raises:
            ArchiveError: the bytes are not those that the coordinator named.
        """
        view = await self.get(job)
        return await self._fetch_to(f"jobs/{job}/model.zip", archive, view.model, progress)

    async def _fetch_to(self, path: str, archive: Path, named: str | None, progress: Progress | None) -> Path:
        """Fetch a file whole, or leave nothing; ``named``: its SHA-256, where it is known."""
        archive.parent.mkdir(parents=True, exist_ok=True)
        fresh = archive.with_name(f".{archive.name}.{secrets.token_hex(4)}")
        try:
            digest, said = await self._fetch(path, fresh, progress)
            if digest != (named or said):
                raise ArchiveError(
                    f"the archive has SHA-256 {digest}, the job names {named or said}: download it again"
                )
            os.replace(fresh, archive)
        finally:
            fresh.unlink(missing_ok=True)
        return archive

    async def download_folder(self, job: str, folder: Path, progress: Progress | None = None) -> Path:
        """Fetch the finished model, check its hash, and unpack it into ``folder``, which is returned.

        Raises:
            ArchiveError: the bytes are not those that the coordinator named, or not safe to unpack.
        """
        archive = folder.with_name(f".{folder.name}.zip")
        try:
            await asyncio.to_thread(unpack, await self.download_model(job, archive, progress), folder)
        finally:
            archive.unlink(missing_ok=True)
        return folder

    # The line

    async def _get(self, path: str, kind: type[T]) -> T:
        return await self._send("GET", path, kind)

    async def _send(self, method: str, path: str, kind: type[T], body: Any = None) -> T:
        data = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        seconds = ASK_S if method == "GET" else WORK_S
        async with self._request(method, path, data=data, headers=headers, timeout=seconds) as response:
            return _decode(await _read(response, MAX_ANSWER_BYTES), kind)

    async def _send_piece(self, path: Path, upload: api.Upload) -> api.Upload:
        with path.open("rb") as file:
            file.seek(upload.offset)
            piece = file.read(min(PIECE_BYTES, upload.length - upload.offset))
        digest = base64.b64encode(hashlib.sha256(piece).digest()).decode()
        headers = {
            "Tus-Resumable": "1.0.0",
            "Upload-Offset": str(upload.offset),
            "Upload-Checksum": f"sha256 {digest}",
            "Content-Type": "application/offset+octet-stream",
        }
        async with self._request("PATCH", f"uploads/{upload.id}", data=piece, headers=headers, timeout=None):
            pass
        return await self._get(f"uploads/{upload.id}", api.Upload)

    async def _fetch(self, path: str, target: Path, progress: Progress | None) -> tuple[str, str]:
        """The SHA-256 of what came, and the one that the coordinator says it has."""
        hasher, received = hashlib.sha256(), 0
        async with self._request("GET", path, timeout=None) as response:
            with target.open("wb") as file:
                async for chunk in response.content.iter_chunked(1 << 20):
                    file.write(chunk)
                    hasher.update(chunk)
                    received += len(chunk)
                    if progress is not None:
                        progress(received, response.content_length or received)
        return hasher.hexdigest(), response.headers.get("X-Content-SHA256", "")

    async def _stream_once(self, job: str, mark: str) -> AsyncIterator[tuple[JobUpdate, str]]:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": mark} if mark else {})
        async with self._request("GET", f"jobs/{job}/stream", headers=headers, timeout=None) as response:
            fields: dict[str, str] = {}
            async for line in response.content:
                name, _, value = line.decode("utf-8", "replace").rstrip("\r\n").partition(": ")
                if name:
                    fields[name] = value
                elif (update := _update(fields)) is not None:
                    yield update, fields.get("id", "")
                    fields = {}
                else:
                    fields = {}

    @contextlib.asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = ASK_S,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request; its body may be read inside. ``timeout`` seconds for all of it; ``None``: only silence ends it."""
        limits = aiohttp.ClientTimeout(
            total=timeout, sock_connect=10.0, sock_read=SILENCE_S if timeout is None else timeout
        )
        url = f"{self._base}/api/v1/{path}"
        try:
            async with self._session().request(method, url, data=data, headers=headers, timeout=limits) as response:
                if response.status >= 400:
                    raise _problem(response.status, await _read(response, MAX_EVENT_BYTES))
                yield response
        except ClientError:
            raise
        except _TRANSIENT as error:
            raise UnreachableError(
                f"{self._base} does not answer ({error or type(error).__name__}): is it running?"
            ) from error
        except (aiohttp.ClientError, ValueError) as error:
            raise UnreachableError(f"{self._base} does not answer as a coordinator does: {error}") from error

    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None or self._opened.closed:
            self._opened = aiohttp.ClientSession(read_bufsize=MAX_EVENT_BYTES)
        return self._opened


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The whole answer, or ``limit`` bytes and one more of it, which then cannot be decoded."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > limit:
            break
    return bytes(body)


def _update(fields: Mapping[str, str]) -> JobUpdate | None:
    match fields.get("event"):
        case "job":
            return JobUpdate(job=_decode(fields["data"].encode(), api.JobView))
        case "metrics":
            return JobUpdate(metrics=_decode(fields["data"].encode(), tuple[api.Metric, ...]))
        case "events":
            return JobUpdate(events=_decode(fields["data"].encode(), tuple[api.JobEvent, ...]))
        case _:
            return None


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        decoded: T = codec.decode_json(data, kind, MAX_ANSWER_BYTES)
        return decoded
    except codec.MessageError as error:
        raise UnreachableError(f"the answer is not one that a coordinator of this version gives: {error}") from error


def _problem(status: int, body: bytes) -> ClientError:
    try:
        found = msgspec.json.decode(body, type=api.Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ProblemError(status, "http", f"HTTP {status}: {body[:200].decode('utf-8', 'replace')}")
    return ProblemError(status, found.code, found.detail, found.field)
