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
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import msgspec

from coordinator.config import OfferedTasks
from coordinator.domain.audits.dispute import Dispute
from coordinator.domain.job import Job
from coordinator.domain.serving import ServedFiles
from coordinator.errors import CottageError, FullError, InvalidError, TookTooLongError, UnavailableError
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.disk_space import JOBS_BYTES, MIN_FREE_BYTES, Room
from coordinator.services.artifacts.model_archives import make_stage_files, pack, unpack
from coordinator.services.artifacts.model_cards import card_facts, small_files
from coordinator.services.artifacts.step_openings import record_of
from coordinator.services.artifacts.weight_index import index_weights
from coordinator.store.records import RoundRecord
from protocol.evaluation import EvaluationSpec
from protocol.ids import Digest
from protocol.job.end_tokens import ends_of
from protocol.job.job import BesideDataset, DatasetSpec, JobSpec, TokenizerSpec, datasets_of
from protocol.models.model import ENDS_WITH, ModelConfigError, keeps_embedding, resolve
from protocol.models.text_part import AROUND
from protocol.models.weights import WEIGHT_INDEX
from protocol.rest.dataset import CheckRequest, DatasetReport
from protocol.serving import MAX_LINE, MODEL_ARCHIVE

MAX_DIAGNOSIS = 16 << 10  # Bytes of a tool's complaint that are read.
TOKEN_BYTES = 4  # Of a job's token files.
COPIES = 2  # A file that a tool makes is copied to its place before it is removed.
RETRY_S = 600.0
TEMPLATE_S = 60.0  # A greeting is written within some; others wait for it.
NICE = 3  # Answers come first, but somebody waits for what tools find: half of an answer's share, not a tenth.
NAMELESS = "the dataset"  # An artifact's own name is a digest, which says nothing to anybody.
NAMELESS_TOKENIZER = "the tokenizer's file"
EXIT_REFUSED = 3  # The tool's own word that its input is at fault; anything else is the tool's fault.

LOG = logging.getLogger(__name__)

_DOING = {
    "prepare": "making the dataset ready",
    "check": "checking the dataset",
    "assemble": "putting the model together",
    "merge": "putting the adapter into its model",
    "start": "putting the model together that it started from",
    "template": "reading the chat template",
    "serve": "running the model",
    "tasks": "evaluating the model",
}
_ONLINE: Mapping[str, dict[str, str]] = {"tasks": {"HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "0")}}
"""Tasks fetch their own datasets; no other tool asks the network for anything."""
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

    async def assemble(
        self, job: Job, checkpoints: Sequence[str], rounds: Sequence[RoundRecord], data: str = ""
    ) -> str:
        """Make the model's archive from the checkpoints of all stages; returns its artifact.

        Args:
            data: what the job's owner calls its dataset.
        """

    async def merge(self, job: Job, adapter: str) -> str:
        """Make a whole model's archive from an adapter's and the weights that its job started from; returns its artifact."""

    async def start(self, spec: JobSpec, files: Mapping[str, str]) -> str:
        """Make the archive of the model that a job started from, of its ``files``; returns its artifact."""

    async def published(self, spec: JobSpec, config: Mapping[str, object]) -> Prepared:
        """Make the archive of the model whose files a document names, as it is; ``config``: its resolved one."""

    async def template_fault(self, tokenizer: TokenizerSpec) -> str:
        """Why no conversation can be written with a tokenizer's chat template; empty: it can, or there is none."""

    async def stage_files(self, archive: Digest) -> dict[str, Digest]:
        """Make what nodes of a stage fetch in place of a whole model's archive, by name; nothing where it cannot be cut."""


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
        """Tokenise the dataset, if it is here; nothing is kept where anything is wrong.

        Args:
            name: what its owner calls the dataset, for messages.
            called: what the owner calls further datasets, weights and the tokenizer's file, by digest.
        Raises:
            NotFoundError: an artifact that the job names is not here.
            InvalidError: dataset, tokenizer or model are not usable; the text is the tool's.
            TookTooLongError: it would take more time than there is.
        """
        datasets = [data for _, data in datasets_of(spec)]  # A federated job's data is its owners', and not here.
        given = [*(data.artifact for data in datasets), *filter(None, [spec.tokenizer.file])]
        async with AsyncExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=self._scratch))
            placed = await stack.enter_async_context(self._artifacts.files(*given))
            out, tokenizers = Path(folder), placed[len(datasets) :]
            tokenizer = out / "tokenizer-spec.json"
            tokenizer.write_bytes(msgspec.json.encode(_tokenizer(spec.tokenizer, tokenizers, called or {})))
            arguments = ["prepare", "--tokenizer", str(tokenizer), "--sequence", str(spec.training.sequence)]
            arguments += ["--out", str(out)]
            if datasets:
                paths = list(zip(datasets, placed, strict=False))
                arguments += _of_dataset(spec, paths, name, called or {}, out / "beside.json")
            for end in ends_of(spec.model):
                arguments += ["--end", str(end)]
            await self._run(arguments)
            manifest = json.loads((out / "manifest.json").read_bytes())
            config = _config(spec, int(manifest["vocabulary"])) | {ENDS_WITH: manifest["end"]}
            (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True))
            names = (*(("train.bin", "heldout.bin") if datasets else ()), "tokenizer.json", "config.json")
            files = {name: await self._artifacts.put_file(out / name) for name in names}
            if spec.model.weight_files:
                found = await stack.enter_async_context(self._artifacts.files(*spec.model.weight_files))
                weights = list(zip(spec.model.weight_files, found, strict=True))
                (out / WEIGHT_INDEX).write_bytes(await asyncio.to_thread(index_weights, weights, config, called))
                files[WEIGHT_INDEX] = await self._artifacts.put_file(out / WEIGHT_INDEX)
        return Prepared(files, config)

    async def assemble(
        self, job: Job, checkpoints: Sequence[str], rounds: Sequence[RoundRecord], data: str = ""
    ) -> str:
        """Make the model folder and keep it as one archive."""
        described: dict[str, Any] = {"name": data} if data else {}
        for name, file in (("training_sequences", "train.bin"), ("heldout_sequences", "heldout.bin")):
            if file in job.files:  # Its last token is a label alone.
                tokens = await self._artifacts.size(job.files[file]) // TOKEN_BYTES - 1
                described[name] = tokens // job.spec.training.sequence
        needed = job.spec.training.lora is None and (keeps_embedding(job.config) or AROUND in job.config)
        started = job.spec.model.weight_files if needed else ()
        named = (job.files["config.json"], job.files["tokenizer.json"], *checkpoints, *started)
        async with self._artifacts.files(*named) as (config, tokenizer, *parts), self._folder() as folder:
            out, card, beside = (Path(folder) / name for name in ("model", "card.json", "beside.json"))
            card.write_bytes(msgspec.json.encode(card_facts(job, rounds) | {"data": described}))
            beside.write_bytes(msgspec.json.encode(small_files(job.spec)))
            arguments = ["assemble"]
            for number, part in enumerate(parts):
                arguments += ["--checkpoint" if number < len(checkpoints) else "--weights", str(part)]
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
            await asyncio.to_thread(pack, out, archive)
            return await self._artifacts.put_file(archive)

    async def merge(self, job: Job, adapter: str) -> str:
        """Make one model of an adapter's archive and the weights that it adapts; NotFoundError: they are not kept any more."""
        named = (job.files["config.json"], adapter, *job.spec.model.weight_files)
        async with self._artifacts.files(*named) as (config, packed, *weights), self._folder() as folder:
            unpacked, out, archive = (Path(folder) / name for name in ("adapter", "model", "model.zip"))
            await asyncio.to_thread(unpack, packed, unpacked)
            arguments = ["merge", "--adapter", str(unpacked), "--config", str(config), "--out", str(out)]
            for path in weights:
                arguments += ["--weights", str(path)]
            if job.spec.model.generation is not None:
                generation = Path(folder) / "generation.json"
                generation.write_bytes(msgspec.json.encode(job.spec.model.generation))
                arguments += ["--generation", str(generation)]
            await self._run(arguments)
            await asyncio.to_thread(pack, out, archive)
            return await self._artifacts.put_file(archive)

    async def published(self, spec: JobSpec, config: Mapping[str, object]) -> Prepared:
        """The model's archive, and its config as a file of its own.

        Raises:
            NotFoundError: an artifact that the document names is not here. InvalidError: a file is broken.
        """
        assert spec.tokenizer.file is not None
        async with self._folder() as folder:
            path = Path(folder) / "config.json"
            path.write_text(json.dumps(config, indent=2, sort_keys=True))
            files = {"config.json": await self._artifacts.put_file(path)}
        archive = await self.start(spec, files | {"tokenizer.json": spec.tokenizer.file})
        return Prepared(files | {MODEL_ARCHIVE: archive}, dict(config))

    async def start(self, spec: JobSpec, files: Mapping[str, str]) -> str:
        """Put the model that a job started from into a folder; NotFoundError: its weights are not kept any more."""
        named = (files["config.json"], files["tokenizer.json"], *spec.model.weight_files)
        async with self._artifacts.files(*named) as (config, tokenizer, *weights), self._folder() as folder:
            out, archive, beside = (Path(folder) / name for name in ("model", "model.zip", "beside.json"))
            beside.write_bytes(msgspec.json.encode(small_files(spec)))
            arguments = ["start", "--config", str(config), "--tokenizer", str(tokenizer), "--beside", str(beside)]
            for path in weights:
                arguments += ["--weights", str(path)]
            await self._run([*arguments, "--out", str(out)])
            await asyncio.to_thread(pack, out, archive)
            return await self._artifacts.put_file(archive)

    async def template_fault(self, tokenizer: TokenizerSpec) -> str:
        """As ``ModelWorkshop.template_fault``; UnavailableError: the tool failed."""
        settings = tokenizer.settings or {}
        if not settings.get("chat_template"):
            return ""
        async with self._folder() as folder:
            path = Path(folder) / "settings.json"
            path.write_bytes(msgspec.json.encode(settings))
            arguments, seconds = ["template", "--settings", str(path)], min(self._seconds, TEMPLATE_S)
            return str(json.loads(await self._run(arguments, seconds=seconds))["fault"])

    async def stage_files(self, archive: Digest) -> dict[str, Digest]:
        """As ``ModelWorkshop.stage_files``: of a model that cannot be cut a node fetches everything, and says why.

        Raises:
            NotFoundError: the archive is not here.
        """
        async with self._artifacts.files(archive) as (packed,), self._folder() as folder:
            try:
                made = await asyncio.to_thread(make_stage_files, archive, packed, Path(folder))
            except (ModelConfigError, InvalidError) as error:
                LOG.warning("the model %s cannot be cut into stages: %s", archive, error)
                return {}
            return {path.name: await self._artifacts.put_file(path) for path in made}

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
            if await asyncio.to_thread(record_of, path) != record:
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

    async def try_tasks(
        self, archive: Digest, asked: EvaluationSpec, tasks: OfferedTasks, seconds: float
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Try a whole model's archive with tasks: what ``trainer tasks`` prints, a line for each.

        Raises:
            NotFoundError: the archive is not here. TookTooLongError: it took longer than ``seconds``.
            UnavailableError: it took more memory than it may, or ended by itself.
        """
        lines: asyncio.Queue[bytes] = asyncio.Queue()  # As many as there are results.
        folders = [word for folder in tasks.folders for word in ("--include", str(folder.resolve()))]
        async with self._unpacked(archive) as model:
            request = model.parent / "request.json"
            request.write_bytes(msgspec.json.encode(asked))
            arguments = ["tasks", "--model", str(model), "--request", str(request), *folders, "--threads", _half()]
            running = asyncio.create_task(self._run(arguments, lines.put_nowait, seconds), name="tasks")
            running.add_done_callback(lambda _: lines.put_nowait(b""))
            try:
                while line := await lines.get():
                    yield json.loads(line)
                await running
            finally:
                running.cancel()
                await asyncio.wait([running])

    @asynccontextmanager
    async def served(self, held: ServedFiles) -> AsyncIterator[asyncio.subprocess.Process]:
        """A process that answers with a whole model, as ``protocol.serving`` says; leaving ends it.

        Raises:
            NotFoundError: the archive is not here. UnavailableError: this machine has no PyTorch.
        """
        if find_spec("torch") is None:
            raise UnavailableError("models cannot be tried here: PyTorch is not installed beside the coordinator")
        async with AsyncExitStack() as stack:
            archives = (held.archive, *held.adapters)
            model, *beside = [await stack.enter_async_context(self._unpacked(one)) for one in archives]
            words = ["--weights", held.weights, *(word for one in beside for word in ("--adapter", str(one)))]
            process = await self._begun(["serve", "--model", str(model), "--threads", _half(), *words], self._left())
            try:
                yield process
            finally:
                if process.returncode is None:
                    process.kill()
                await process.wait()

    @asynccontextmanager
    async def _unpacked(self, archive: Digest) -> AsyncIterator[Path]:
        """The folder of a model, with room beside it."""
        async with self._folder() as folder:
            async with self._artifacts.files(archive) as (packed,):
                await asyncio.to_thread(unpack, packed, Path(folder) / "model")
            yield Path(folder) / "model"

    @asynccontextmanager
    async def _folder(self) -> AsyncIterator[str]:
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            yield folder

    async def _run(
        self, arguments: Sequence[str], told: Callable[[bytes], None] | None = None, seconds: float | None = None
    ) -> bytes:
        """Run a tool to its end; what it printed, but for lines that went to ``told``."""
        seconds = self._seconds if seconds is None else seconds
        room = self._left()
        process = await self._begun(arguments, room)
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
            raise InvalidError(_complaint(complaint), "dataset")
        if process.returncode != 0:
            whole = complaint[-MAX_DIAGNOSIS:].decode(errors="replace")
            if os.strerror(errno.EFBIG) in whole[-500:]:
                raise FullError(f"the disk has no room for what {arguments[0]} makes of it: {room:,} bytes", RETRY_S)
            LOG.error("trainer %s ended with %d: %s", arguments[0], process.returncode, whole)
            words = crashed(arguments[0], process.returncode, whole)
            if arguments[0] in ("prepare", "check") and _hit_bound(whole):  # The same files would hit it each time.
                raise InvalidError(words, "dataset")
            raise UnavailableError(words)
        return printing.result()

    def _left(self) -> int:
        """Bytes of the longest file that a tool may write."""
        return self._room.left(MIN_FREE_BYTES + JOBS_BYTES) // COPIES

    async def _begun(self, arguments: Sequence[str], room: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "trainer",
            *arguments,
            stdin=asyncio.subprocess.PIPE,  # It ends with this process, which those that work for long listen for.
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=lambda: self._limit(room),
            env=os.environ | {"TMPDIR": str(self._scratch)} | _ONLINE.get(arguments[0], {}),
            limit=MAX_LINE,
        )

    def _limit(self, room: int) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (self._memory, self._memory))
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        os.nice(NICE)


def _of_dataset(
    spec: JobSpec, paths: Sequence[tuple[DatasetSpec, Path]], name: str, called: Mapping[str, str], further: Path
) -> list[str]:
    """Arguments of ``trainer prepare`` for a job's datasets; ``further``: where those beside the first are listed."""
    (own, dataset), *beside = paths
    told = {
        "--dataset": dataset,
        "--name": name or NAMELESS,
        "--format": own.format,
        "--encoding": own.encoding,
        "--text-field": own.text_field,
        "--heldout": own.heldout,
        "--faulty": own.faulty,
        "--learn": own.learn,
        "--weight": own.weight,
    }
    arguments = [str(word) for pair in told.items() for word in pair]
    if spec.training.preference is not None:
        arguments.append("--preference")
    if beside:
        listed = [
            BesideDataset(str(path), called.get(data.artifact) or NAMELESS, data, data is spec.heldout_dataset)
            for data, path in beside
        ]
        further.write_bytes(msgspec.json.encode(listed))
        arguments += ["--beside", str(further)]
    return arguments


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


def _half() -> str:
    """Threads of what may work for long: half of the processors."""
    return str(max(1, (os.cpu_count() or 1) // 2))


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


def _hit_bound(complaint: str) -> bool:
    """Whether a tool wanted more memory than ``_limit`` grants: in the words of Python, of Rust (tokenizers), or of C++."""
    return any(words in complaint[-2000:] for words in ("MemoryError", "memory allocation of", "bad_alloc"))


def _late(verb: str, seconds: float) -> CottageError:
    """Of a tool whose time is over. The same files would take as long again: no client asks for that by itself."""
    said = (
        f"{_DOING.get(verb, 'this')} took longer than {seconds:g} s, which is all the time that there is for it here: "
    )
    if verb == "tasks":
        return TookTooLongError(said + "ask for fewer examples (evaluation.limit), or for fewer tasks", "evaluation")
    if verb not in ("prepare", "check"):
        return UnavailableError(said + "try again, or tell the operator")
    way = "take a smaller part of the file, choose a ready tokenizer instead of one that is trained on it, or make its tokens at "
    return TookTooLongError(said + way + "home and upload those (dataset.format npy)", "dataset")


def crashed(verb: str, status: int | None, complaint: str) -> str:
    """For whoever asked: the tool's own text has this machine's paths, and goes into the log."""
    doing = _DOING.get(verb, "this")
    if status == -signal.SIGKILL or _hit_bound(complaint):
        smaller = "ask for other tasks" if verb == "tasks" else "try a smaller file or another tokenizer"
        way = f"{smaller}, or ask the operator"
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
