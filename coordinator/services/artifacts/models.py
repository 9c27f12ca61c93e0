"""The trainer's tools as processes: preparing a job's files at the door, and putting the model together at the end.

The coordinator never imports torch; what handles a stranger's data runs outside of it, with limits.
"""

import asyncio
import errno
import hashlib
import json
import logging
import os
import re
import resource
import signal
import sys
import tempfile
import zipfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import msgspec

from coordinator.domain.audits.dispute import Dispute
from coordinator.domain.job import Job
from coordinator.errors import CottageError, FullError, InvalidError, TookTooLongError, UnavailableError
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.disk_space import JOBS_BYTES, MIN_FREE_BYTES, Room
from coordinator.services.artifacts.weight_index import index_weights
from coordinator.store.records import RoundRecord
from protocol.audit import MAX_RECORD_BYTES
from protocol.ids import Digest
from protocol.job.end_tokens import ends_of
from protocol.job.job import JobSpec, TokenizerSpec, without_settings
from protocol.models.model import ENDS_WITH, ModelConfigError, resolve
from protocol.models.weights import WEIGHT_INDEX
from protocol.rest.api import TrialRequest
from protocol.rest.dataset import CheckRequest, DatasetReport

MAX_HEADER = 4 << 20  # Of a safetensors file: names and places of its tensors.
MAX_DIAGNOSIS = 16 << 10  # Bytes of a tool's complaint that are read.
COPIES = 2  # A file that a tool makes is copied to its place before it is removed.
RETRY_S = 600.0
NICE = 3  # Answers come first, but somebody waits for what tools find: half of an answer's share, not a tenth.
NAMELESS = "the dataset"  # An artifact's own name is a digest, which says nothing to anybody.
NAMELESS_TOKENIZER = "the tokenizer's file"
EXIT_REFUSED = 3  # The tool's own word that its input is at fault; anything else is the tool's fault.

LOG = logging.getLogger(__name__)

_DOING = {
    "prepare": "making the dataset ready",
    "check": "checking the dataset",
    "assemble": "putting the model together",
    "generate": "trying the model",
}
_THREADS = re.compile(r"\|threads-(\d{1,4})$")
"""How an environment class ends, see ``trainer.audit.environment``."""


@dataclass(frozen=True)
class Prepared:
    """A job's files by name, and its model's config with the vocabulary filled in."""

    files: dict[str, str]
    config: dict[str, object]


class ModelWorkshop(Protocol):
    """What the coordinator wants of the trainer's tools."""

    async def prepare(self, spec: JobSpec, name: str = "", called: Mapping[str, str] | None = None) -> Prepared:
        """Make the token files of a job's dataset; InvalidError where the data or the model cannot be used."""

    async def assemble(self, job: Job, checkpoints: Sequence[str], rounds: Sequence[RoundRecord]) -> str:
        """Make the model's archive from the checkpoints of all stages; returns its artifact."""


class TrainerTools:
    """``python -m trainer`` with time and memory limits."""

    def __init__(self, artifacts: ArtifactStore, scratch: Path, seconds: float, memory_mb: int) -> None:
        self._artifacts = artifacts
        self._scratch = scratch
        self._seconds = seconds
        self._memory = memory_mb << 20
        self._room = Room(scratch)
        scratch.mkdir(parents=True, exist_ok=True)

    async def prepare(self, spec: JobSpec, name: str = "", called: Mapping[str, str] | None = None) -> Prepared:
        """Tokenise the dataset; nothing is kept where anything is wrong.

        Args:
            name: what its owner calls the dataset, for messages.
            called: what the owner calls the files of weights and of the tokenizer, by digest.
        Raises:
            NotFoundError: an artifact that the job names is not here.
            InvalidError: dataset, tokenizer or model are not usable; the text is the tool's.
            TookTooLongError: it would take more time than there is.
        """
        given = [spec.dataset.artifact, *([spec.tokenizer.file] if spec.tokenizer.file is not None else [])]
        async with AsyncExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=self._scratch))
            dataset, *tokenizers = await stack.enter_async_context(self._artifacts.files(*given))
            out = Path(folder)
            tokenizer = out / "tokenizer-spec.json"
            tokenizer.write_bytes(msgspec.json.encode(_tokenizer(spec.tokenizer, tokenizers, called or {})))
            arguments = [
                "prepare",
                "--dataset",
                str(dataset),
                "--name",
                name or NAMELESS,
                "--format",
                spec.dataset.format,
                "--encoding",
                spec.dataset.encoding,
                "--text-field",
                spec.dataset.text_field,
                "--tokenizer",
                str(tokenizer),
                "--heldout",
                str(spec.dataset.heldout),
                "--sequence",
                str(spec.training.sequence),
                "--out",
                str(out),
                "--faulty",
                spec.dataset.faulty,
            ]
            for end in ends_of(spec.model):
                arguments += ["--end", str(end)]
            await self._run(arguments)
            manifest = json.loads((out / "manifest.json").read_bytes())
            config = _config(spec, int(manifest["vocabulary"])) | {ENDS_WITH: manifest["end"]}
            (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True))
            names = ("train.bin", "heldout.bin", "tokenizer.json", "config.json")
            files = {name: await self._artifacts.put_file(out / name) for name in names}
            if spec.model.weight_files:
                paths = await stack.enter_async_context(self._artifacts.files(*spec.model.weight_files))
                weights = list(zip(spec.model.weight_files, paths, strict=True))
                (out / WEIGHT_INDEX).write_bytes(await asyncio.to_thread(index_weights, weights, config, called))
                files[WEIGHT_INDEX] = await self._artifacts.put_file(out / WEIGHT_INDEX)
        return Prepared(files, config)

    async def assemble(self, job: Job, checkpoints: Sequence[str], rounds: Sequence[RoundRecord]) -> str:
        """Make the model folder and keep it as one archive."""
        named = (job.files["config.json"], job.files["tokenizer.json"], *checkpoints)
        async with self._artifacts.files(*named) as (config, tokenizer, *parts), self._folder() as folder:
            out, card, beside = (Path(folder) / name for name in ("model", "card.json", "beside.json"))
            card.write_bytes(msgspec.json.encode(_card(job, rounds)))
            beside.write_bytes(msgspec.json.encode(_beside(job.spec)))
            arguments = ["assemble"]
            for part in parts:
                arguments += ["--checkpoint", str(part)]
            arguments += [
                "--config",
                str(config),
                "--tokenizer",
                str(tokenizer),
                "--out",
                str(out),
                "--card",
                str(card),
                "--beside",
                str(beside),
            ]
            await self._run(arguments)
            archive = Path(folder) / "model.zip"
            await asyncio.to_thread(_pack, out, archive)
            return await self._artifacts.put_file(archive)

    async def forge(self, opening: Digest, leaves: int, step: int) -> tuple[Digest, Digest]:
        """Make a true opening false in what only re-running shows; its artifact and the root that it is under.

        Raises:
            NotFoundError: the opening is not here any more.
            InvalidError: it is none.
        """
        async with self._artifacts.files(opening) as (true,), self._folder() as folder:
            out, card = Path(folder) / "opening", Path(folder) / "card.json"
            arguments = ["forge", "--opening", str(true), "--leaves", str(leaves)]
            await self._run([*arguments, "--step", str(step), "--out", str(out), "--card", str(card)])
            root = msgspec.convert(json.loads(card.read_bytes())["root"], Digest)
            return await self._artifacts.put_file(out), root

    async def agrees(self, inputs: Digest, record: bytes) -> bool | None:
        """Whether one operation gives what its record says; None: the file is of another record, or is not run by itself.

        Raises:
            NotFoundError: the artifact is not here. UnavailableError: the tool failed.
        """
        async with self._artifacts.files(inputs) as (path,):
            if await asyncio.to_thread(_record_of, path) != record:
                return None
            try:
                printed = await self._run(["judge", "--inputs", str(path)])
            except InvalidError:
                return None
        return bool(json.loads(printed)["agrees"])

    async def belongs(self, job: Job, dispute: Dispute, env_class: str, record: bytes) -> bool | None:
        """Whether a record is the one that stands at the disputed place when the step is run again from its opening.

        None where it cannot be run here: on a processor of another class, on a GPU's work, or a job with weights of its own.

        Raises:
            NotFoundError: the opening is not here any more. UnavailableError: the tool failed.
        """
        threads = _THREADS.search(env_class)
        if threads is None or job.spec.model.weights is not None:
            return None
        names = ("config.json", "train.bin", "heldout.bin")
        replay, anchors = dispute.replay, tuple[Digest, ...]()
        if replay.anchor_in == "artifact" and replay.anchor is not None:
            anchors = (replay.anchor,)
        given = (replay.opening, *anchors, *(job.files[name] for name in names))
        async with self._artifacts.files(*given) as (opening, *files), self._folder() as folder:
            anchored = [text for anchor in files[: len(anchors)] for text in ("--anchor", str(anchor))]
            at = Path(folder)
            for name, file in zip(names, files[len(anchors) :], strict=True):
                (at / name).symlink_to(file.resolve())
            (at / "replay.json").write_bytes(msgspec.json.encode(dispute.replay))
            (at / "job.json").write_bytes(msgspec.json.encode(job.spec))
            arguments = [
                "judge",
                "--record",
                str(dispute.index),
                "--step",
                str(dispute.step),
                "--replay",
                str(at / "replay.json"),
                "--opening",
                str(opening),
                *anchored,
                "--job",
                str(at / "job.json"),
                "--folder",
                str(at),
                "--threads",
                threads[1],
                "--class",
                env_class,
            ]
            try:
                printed = await self._run(arguments)
            except InvalidError:
                return None
        return bool(json.loads(printed)["record"] == hashlib.sha256(record).hexdigest())

    async def inspect(self, request: CheckRequest, progress: Callable[[int], None], name: str = "") -> DatasetReport:
        """Read a dataset row by row and say what it holds.

        Args:
            progress: called now and then with the bytes read.
            name: what its owner calls the dataset, for messages.
        Raises:
            NotFoundError: an artifact that the request names is not here.
            InvalidError: the file is no dataset at all. UnavailableError: the tool failed.
        """
        given = [request.dataset.artifact, *([request.tokenizer.file] if request.tokenizer.file is not None else [])]
        async with self._artifacts.files(*given) as (dataset, *tokenizers), self._folder() as folder:
            asked, report = Path(folder) / "request.json", Path(folder) / "report.json"
            asked.write_bytes(msgspec.json.encode(request))
            arguments = [
                "check",
                "--dataset",
                str(dataset),
                "--name",
                name or NAMELESS,
                "--request",
                str(asked),
                "--scratch",
                folder,
                "--out",
                str(report),
            ]
            for tokenizer in tokenizers:
                arguments += ["--tokenizer-file", str(tokenizer)]
                arguments += ["--tokenizer-name", NAMELESS_TOKENIZER]
            await self._run(arguments, lambda line: progress(int(json.loads(line)["read"])))
            return msgspec.json.decode(report.read_bytes(), type=DatasetReport)

    async def generate(
        self, archive: Digest, request: TrialRequest, seconds: float
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Continue a prompt with a model's archive: what ``trainer generate`` prints, line by line.

        Raises:
            NotFoundError: the archive is not here. InvalidError: the model cannot read the prompt.
            TookTooLongError: it took longer than ``seconds``.
            UnavailableError: this machine has no PyTorch, or it took more memory than it may.
        """
        if find_spec("torch") is None:
            raise UnavailableError("models cannot be tried here: PyTorch is not installed beside the coordinator")
        lines: asyncio.Queue[bytes] = asyncio.Queue()  # As long as the answer, which is bounded in tokens.
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            model, asked = Path(folder) / "model", Path(folder) / "request.json"
            asked.write_bytes(msgspec.json.encode(request))
            async with self._artifacts.files(archive) as (packed,):
                await asyncio.to_thread(_unpack, packed, model)
            arguments = ["generate", "--model", str(model), "--request", str(asked)]
            running = asyncio.create_task(self._run(arguments, lines.put_nowait, seconds), name="generate")
            running.add_done_callback(lambda _: lines.put_nowait(b""))
            try:
                while line := await lines.get():
                    yield json.loads(line)
                await running
            finally:
                running.cancel()
                await asyncio.wait([running])

    @asynccontextmanager
    async def _folder(self) -> AsyncIterator[str]:
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            yield folder

    async def _run(
        self, arguments: Sequence[str], told: Callable[[bytes], None] | None = None, seconds: float | None = None
    ) -> bytes:
        """Run a tool to its end; what it printed, but for lines that went to ``told``."""
        seconds = self._seconds if seconds is None else seconds
        room = self._room.left(MIN_FREE_BYTES + JOBS_BYTES) // COPIES
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "trainer",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=lambda: self._limit(room),
            env=os.environ | {"TMPDIR": str(self._scratch)},
        )
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                complaining = group.create_task(process.stderr.read(), name="complaint")
                printing = group.create_task(_printed(process.stdout, told), name="printed")
                await process.wait()
        except TimeoutError as error:
            raise _late(arguments[0], seconds) from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        complaint = complaining.result()
        if process.returncode == EXIT_REFUSED:
            raise InvalidError(_complaint(complaint), "prompt" if arguments[0] == "generate" else "dataset")
        if process.returncode != 0:
            whole = complaint[-MAX_DIAGNOSIS:].decode(errors="replace")
            if os.strerror(errno.EFBIG) in whole[-500:]:
                raise FullError(f"the disk has no room for what {arguments[0]} makes of it: {room:,} bytes", RETRY_S)
            LOG.error("trainer %s ended with %d: %s", arguments[0], process.returncode, whole)
            words = _crashed(arguments[0], process.returncode, whole)
            if arguments[0] in ("prepare", "check") and _hit_bound(whole):  # The same files would hit it each time.
                raise InvalidError(words, "dataset")
            raise UnavailableError(words)
        return printing.result()

    def _limit(self, room: int) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (self._memory, self._memory))
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        os.nice(NICE)


def _tokenizer(spec: TokenizerSpec, files: Sequence[Path], called: Mapping[str, str]) -> dict[str, Any]:
    """``files``: that of the tokenizer, where the document names one."""
    document: dict[str, Any] = msgspec.to_builtins(spec)
    if spec.kind == "file":
        if spec.file is None:
            raise InvalidError(
                "tokenizer.kind is file: upload a tokenizer.json and name it in tokenizer.file", "tokenizer"
            )
        document["path"] = str(files[0])
        document["called"] = called.get(spec.file) or NAMELESS_TOKENIZER
    return document


def _unpack(archive: Path, folder: Path) -> None:
    """Our own archive: plain names, stored as they are."""
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)


async def _printed(output: asyncio.StreamReader, told: Callable[[bytes], None] | None) -> bytes:
    if told is None:
        return await output.read()
    async for line in output:
        told(line)
    return b""


def _config(spec: JobSpec, vocabulary: int) -> dict[str, object]:
    try:
        return resolve(spec.model, vocabulary)
    except ModelConfigError as error:
        raise InvalidError(str(error), "model") from error


def _record_of(path: Path) -> bytes:
    """The tensor ``record`` of a safetensors file; empty where it has none, or is no such file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER:
            return b""
        try:
            start, stop = json.loads(file.read(length))["record"]["data_offsets"]
            file.seek(8 + length + int(start))
            return file.read(min(max(0, int(stop) - int(start)), MAX_RECORD_BYTES))
        except (ValueError, KeyError, TypeError, RecursionError):
            return b""


def _hit_bound(complaint: str) -> bool:
    """Whether a tool wanted more memory than ``_limit`` grants: in the words of Python, of Rust (tokenizers), or of C++."""
    return any(words in complaint[-2000:] for words in ("MemoryError", "memory allocation of", "bad_alloc"))


def _late(verb: str, seconds: float) -> CottageError:
    """Of a tool whose time is over. The same files would take as long again: no client asks for that by itself."""
    said = (
        f"{_DOING.get(verb, 'this')} took longer than {seconds:g} s, which is all the time that there is for it here: "
    )
    if verb == "generate":
        return TookTooLongError(said + "ask for fewer tokens, or download the model and try it at home", "tokens")
    if verb not in ("prepare", "check"):
        return UnavailableError(said + "try again, or tell the operator")
    way = "take a smaller part of the file, choose a ready tokenizer instead of one that is trained on it, or make its tokens at "
    return TookTooLongError(said + way + "home and upload those (dataset.format npy)", "dataset")


def _crashed(verb: str, status: int | None, complaint: str) -> str:
    """For whoever asked: the tool's own text has this machine's paths, and goes into the log."""
    doing = _DOING.get(verb, "this")
    if status == -signal.SIGKILL or _hit_bound(complaint):
        way = "try a smaller file or another tokenizer, or ask the operator"
        return f"{doing} needs more memory than there is for it here: {way}"
    return f"{doing} failed, and the coordinator's log says why: try again, choose other files, or tell its operator"


def _complaint(text: bytes) -> str:
    """The tool's own words: the last line is JSON with a ``detail``."""
    lines = text[-MAX_DIAGNOSIS:].decode(errors="replace").strip().splitlines()
    try:
        detail = json.loads(lines[-1])["detail"]
    except (IndexError, ValueError, KeyError, TypeError):
        LOG.error("a tool refused its input without a reason: %s", "\n".join(lines))
        detail = "the data cannot be used"
    return str(detail)[:2000]


def _card(job: Job, rounds: Sequence[RoundRecord]) -> dict[str, Any]:
    """What the model's card tells about the run."""
    curve = [
        {"round": r.number, "tokens": r.tokens, "train_loss": r.train_loss, "validation_loss": r.validation_loss}
        | ({"time": r.ended} if r.ended is not None else {})
        for r in rounds
    ]
    return {
        "job": job.id,
        "name": job.name,
        "loss_before": job.first_validation_loss,
        "loss_after": job.validation_loss,
        "tokens": job.tokens_done,
        "rounds": curve,
        "audits": job.audits,
        "paid": job.paid,
        "escrow": job.escrow,
        "spec": msgspec.to_builtins(without_settings(job.spec)),
    }


def _beside(spec: JobSpec) -> dict[str, Any]:
    """Small files of the folder that the model came from, by name."""
    files = {"tokenizer_config.json": spec.tokenizer.settings, "generation_config.json": spec.model.generation}
    return {name: content for name, content in files.items() if content is not None}


def _pack(folder: Path, archive: Path) -> None:
    """The same files make the same archive: no times, a fixed order, stored as they are (weights do not compress)."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            entry = zipfile.ZipInfo(str(path.relative_to(folder)), (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            with path.open("rb") as source, packed.open(entry, "w", force_zip64=True) as target:
                while block := source.read(1 << 20):
                    target.write(block)
