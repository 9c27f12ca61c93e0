"""Array jobs over the line: inputs go, elements are followed, results come, each once and unpacked."""

import asyncio
import contextlib
import os
import shlex
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from common.untrusted_text import untrusted
from coordinator.client.errors import ArchiveError, ClientError
from coordinator.client.files import Progress, download_file, sha256_of, upload_file
from coordinator.client.line import WORK_S, HttpLine, place
from protocol.ids import NOT_SENT, Digest
from protocol.job.array import MAX_INPUTS, ArrayElement, element_lines
from protocol.job.results import bundled, is_path, is_plain
from protocol.rest import api
from protocol.rest.arrays import ElementView

TOGETHER = 8  # Files on the line at a time: small ones are mostly waiting.
LEAST_BUNDLED, MAX_BUNDLED = 20, 500  # Short files that go in one archive; so few go one by one.
SMALL_BYTES, BUNDLE_BYTES = 1 << 20, 32 << 20
PAGE = 500
POLL_S, LONGEST_POLL_S = 0.5, 5.0  # Between two looks for elements that have ended; longer while nothing does.
_OVER = frozenset({"settled", "failed", "cancelled"})


class ElementResult(msgspec.Struct, frozen=True):
    """An element that has ended. ``folder``: where its files lie; None: it failed, or its result is not taken (``fault``)."""

    element: ElementView
    folder: Path | None
    fault: str = ""

    @property
    def files(self) -> list[Path]:
        """Its files, in order."""
        return sorted(path for path in self.folder.rglob("*") if path.is_file()) if self.folder is not None else []


class ArrayCalls:
    """Calls of the client about array jobs."""

    _line: HttpLine

    async def elements(
        self, job: str, after: int = 0, state: Literal["done", "failed"] | None = None, limit: int = 100
    ) -> Sequence[ElementView]:
        """Elements that have ended, in the order in which they did, behind number ``after`` of it."""
        asked = f"after={after}&limit={limit}" + (f"&state={state}" if state else "")
        return await self._line.get(f"{place('job', job)}/elements?{asked}", list[ElementView])

    async def download_result(self, job: str, element: ElementView, folder: Path) -> Path:
        """Fetch an element's result and unpack it into ``folder``, which is returned. What is there already stays.

        Raises:
            ArchiveError: the bytes are not those that the coordinator named, or not safe to unpack.
            ClientError: the element has no result.
        """
        if element.result is None:
            raise ClientError(f"element {element.index} ({element.name}) is {element.state}: it has no result")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".result.", dir=folder.parent) as scratch:
            path = f"{place('job', job)}/elements/{element.index}/result.tar"
            archive = Path(scratch) / "result.tar"
            await download_file(self._line, path, element.result, archive, lambda _done, _all: None)
            await asyncio.to_thread(_unpack, archive, folder)
        return folder

    async def taken(self, job: str, element: ElementView, folder: Path) -> ElementResult:
        """An element that has ended, with its files below ``folder``, in one of its name; what is there already is not fetched.

        A result that is damaged, or made up, is left out and told, so the others come.
        """
        if element.result is None:
            return ElementResult(element, None)
        try:
            own = folder_of(folder, element)
            if not own.exists():  # It is put there whole.
                await self.download_result(job, element, own)
        except ArchiveError as error:
            return ElementResult(element, None, str(error))
        return ElementResult(element, own)

    async def download_results(self, job: str, archive: Path) -> Path:
        """Fetch the results of all elements that are done as one tar archive, with a folder each."""
        archive.parent.mkdir(parents=True, exist_ok=True)
        async with self._line.request("GET", f"{place('job', job)}/results.tar") as response:
            with archive.open("wb") as file:
                async for piece in response.content.iter_chunked(1 << 20):
                    file.write(piece)
        return archive

    async def upload_inputs(
        self,
        files: Sequence[Path],
        known: Mapping[str, Digest] = {},
        done: Callable[[Path, Digest], None] | None = None,
    ) -> dict[Path, Digest]:
        """Send input files, several at a time; those whose content is the same go once.

        Args:
            known: SHA-256 of files that the coordinator has already, by their paths as text.
            done: called with each as it is there.
        Raises:
            ClientError: one is empty; then nothing is sent.
        """
        refuse_empty(files)
        found: dict[Path, Digest] = {}
        sent: dict[Digest, asyncio.Future[None]] = {}
        turns = asyncio.Semaphore(TOGETHER)
        await self._bundled(files, known, sent)

        async def send(path: Path) -> None:
            async with turns:
                digest = await asyncio.to_thread(sha256_of, path)
                if known.get(str(path)) != digest:
                    if digest in sent:
                        await sent[digest]
                    else:
                        sent[digest] = asyncio.get_running_loop().create_future()
                        await self._send_input(path, digest)
                        sent[digest].set_result(None)
                found[path] = digest
                if done is not None:
                    done(path, digest)

        try:
            async with asyncio.TaskGroup() as group:
                for path in dict.fromkeys(files):
                    group.create_task(send(path))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None  # The others are mostly the same, and one is enough to act on.
        return found

    async def _bundled(
        self, files: Sequence[Path], known: Mapping[str, Digest], sent: dict[Digest, asyncio.Future[None]]
    ) -> None:
        """Send what is short and new several hundred files at a time; ``sent`` is what has gone."""
        small = [path for path in dict.fromkeys(files) if 0 < path.stat().st_size <= SMALL_BYTES]
        if len(small) < LEAST_BUNDLED:
            return
        fresh: dict[Digest, Path] = {}
        for path in small:
            digest = await asyncio.to_thread(sha256_of, path)
            if known.get(str(path)) != digest:
                fresh[digest] = path
        if len(fresh) < LEAST_BUNDLED:
            return
        for some in _portions(fresh):
            with tempfile.TemporaryDirectory(prefix="inputs.") as scratch:
                archive = Path(scratch) / "inputs.tar"
                await asyncio.to_thread(_write, archive, some)
                name = untrusted(f"{len(some)} inputs")
                new = api.NewUpload(archive.stat().st_size, name, "inputs", sha256=sha256_of(archive))
                await upload_file(self._line, archive, new, None, lambda _done, _all: None, lambda _upload: None)
            for digest in some:
                sent[digest] = asyncio.get_running_loop().create_future()
                sent[digest].set_result(None)

    async def _send_input(self, path: Path, digest: Digest, progress: Progress = lambda _done, _all: None) -> None:
        new = api.NewUpload(path.stat().st_size, untrusted(path.name), "input", sha256=digest)
        await upload_file(self._line, path, new, None, progress, lambda _upload: None)

    async def upload_elements(self, elements: Sequence[ArrayElement]) -> Digest:
        """Send the list of elements, whose artifact is named in ``array.elements``."""
        with tempfile.TemporaryDirectory(prefix="elements.") as scratch:
            path = Path(scratch) / "elements.jsonl"
            path.write_bytes(element_lines(elements))
            digest = sha256_of(path)
            await self._send_input(path, digest)
        return digest

    async def ended(self, job: str, after: int = 0) -> AsyncIterator[ElementView]:
        """Every element as it ends, in the order in which they do, until the job is over."""
        wait = POLL_S
        while True:
            view = await self._line.get(place("job", job), api.JobView)
            found = await self.elements(job, after, None, PAGE)
            for element in found:
                after = max(after, element.number)
                yield element
            if len(found) < PAGE and view.state in _OVER:
                return
            if not found:
                await asyncio.sleep(wait)
            wait = POLL_S if found else min(LONGEST_POLL_S, 2 * wait)

    async def results(self, job: str, folder: Path, after: int = 0) -> AsyncIterator[ElementResult]:
        """Every element as it ends, with its files below ``folder``, in one of its name."""
        async with contextlib.aclosing(self.ended(job, after)) as elements:  # type: ignore[type-var]
            async for element in elements:
                yield await self.taken(job, element, folder)

    async def map(
        self,
        image: Digest,
        command: Sequence[str],
        inputs: Sequence[Path],
        folder: Path,
        budget: int,
        **array: Any,
    ) -> AsyncIterator[ElementResult]:
        """Run a container once for each input, and bring the results as they come.

        Args:
            image: the artifact that ``cottage image push`` named.
            command: with ``{input}``, ``{name}`` and ``{index}`` filled in for each.
            inputs: files and folders; each is an element of its own. A folder lies at ``/in/{name}``.
            folder: the results come into folders of it, called as the inputs are.
            budget: in millionths of the token; the test wallet pays.
            array: further fields of ``protocol.job.array.ArraySpec``, such as ``seconds`` or ``verify``.
        Raises:
            ClientError: there is no input, one is empty, its name cannot be an element's, or two have one name.
        """
        if lost := overwritten(inputs, folder):
            raise ClientError(
                f"the results of {lost} would lie in it, or where it is: name another folder than {folder}"
            )
        read = {path: read_of(path, folder) for path in inputs}
        files = files_of(read)
        elements_of_files(read, dict.fromkeys(files, NOT_SENT))  # What cannot be is said before anything is sent.
        elements = elements_of_files(read, await self.upload_inputs(files))
        listed = await self.upload_elements(elements)
        document = array_document("map", image, command, listed, len(elements), budget, array)
        job = await self._line.change("POST", "jobs", api.JobView, {"spec": document}, seconds=WORK_S)
        await self._line.change("POST", f"{place('job', job.id)}/fund", api.JobView, seconds=WORK_S)
        async for result in self.results(job.id, folder):
            yield result


def folder_of(folder: Path, element: ElementView) -> Path:
    """Where an element's files lie below ``folder``.

    Raises:
        ArchiveError: its name leads elsewhere: the coordinator has made it up.
    """
    if not is_path(element.name) or "/" in element.name:
        raise ArchiveError(f"the coordinator names an element {element.name[:80]!r}, which cannot be a folder's name")
    return folder / element.name


def refuse_empty(files: Sequence[Path]) -> None:
    """Raises ClientError where a file has nothing in it."""
    if nothing := next((path for path in files if path.stat().st_size == 0), None):
        raise ClientError(f"{nothing} is empty: an input has something in it")


def overwritten(inputs: Sequence[Path], results: Path) -> Path | None:
    """The first input that results would lie in, or where it is."""
    folder = results.resolve()
    return next((one for one in inputs if folder in (one.resolve(), one.resolve().parent)), None)


def read_of(path: Path, results: Path) -> dict[str, Path]:
    """What an element of a file or folder reads: path below ``/in`` -> file. Those of a folder lie below its name.

    Args:
        results: where results come; what lies there is not read, or the same call would ask for something else next time.
    """
    if not path.is_dir():
        return {path.name: path}
    own, whole = results.resolve(), path.resolve()
    skipped = path / own.relative_to(whole) if own.is_relative_to(whole) else None
    found = (file for file in path.rglob("*") if skipped is None or not file.is_relative_to(skipped))
    files = sorted(file for file in found if file.is_file())
    return {f"{path.name}/{file.relative_to(path).as_posix()}": file for file in files}


def files_of(read: Mapping[Path, Mapping[str, Path]]) -> list[Path]:
    """All that elements read, each once."""
    return list(dict.fromkeys(file for one in read.values() for file in one.values()))


def elements_of_files(read: Mapping[Path, Mapping[str, Path]], digests: Mapping[Path, Digest]) -> list[ArrayElement]:
    """An element for each file or folder, called as that is.

    Args:
        read: of each, as ``read_of`` finds it. digests: of all these files.
    Raises:
        ClientError: there is none, two have one name, a name cannot be an element's, or a folder has too many files or none.
    """
    if not read:
        raise ClientError("there are no files: a program runs once for each")
    names: dict[str, Path] = {}
    for path in read:
        if (before := names.setdefault(path.name, path)) != path:
            raise ClientError(f"{before} and {path} have one name, and so would their results: rename one")
    return [_element(path, {place: digests[file] for place, file in read[path].items()}) for path in names.values()]


def _element(path: Path, inputs: Mapping[str, Digest]) -> ArrayElement:
    if not 1 <= len(inputs) <= MAX_INPUTS:
        raise ClientError(
            f"folder {path} has {len(inputs):,} files: 1 to {MAX_INPUTS} are taken, so pack them into one"
        )
    signs = "no dot comes first, no backslash, colon or control character is in it, and it has 120 characters at most"
    if not is_path(path.name):
        raise ClientError(f"{str(path)!r} cannot name an element: {signs}")
    if wrong := next((place for place in inputs if not is_path(place)), None):
        raise ClientError(
            f"{wrong.partition('/')[2]!r} in folder {path} cannot be an input: of each part of a path, {signs}; "
            "with the folder's name it has eight parts and 240 characters at most"
        )
    return ArrayElement(name=path.name, inputs=dict(inputs))


def command_words(command: str) -> list[str]:
    """A command's words, as a shell would part them.

    Raises:
        ValueError: why it is none.
    """
    try:
        words = shlex.split(command)
    except ValueError:  # Of shlex: a quotation mark, or a backslash at the end.
        raise ValueError("a quotation mark has no second one, or a backslash is the last") from None
    if not words:
        raise ValueError("it names no program")
    return words


def array_budget(quote: api.Quote) -> int:
    """Where nobody names one: a quarter more than it likely costs. What is left comes back."""
    return max(quote.price, quote.price_likely + quote.price_likely // 4)


def array_document(
    name: str,
    image: Digest,
    command: Sequence[str],
    elements: Digest,
    count: int,
    budget: int,
    array: Mapping[str, Any],
    hours: float | None = None,
) -> dict[str, Any]:
    """A job document."""
    own = {"image": image, "command": list(command), "elements": elements, "count": count}
    document: dict[str, Any] = {"name": name, "budget": budget, "array": {**own, **array}}
    return document if hours is None else document | {"deadline_hours": hours}


def _portions(files: Mapping[Digest, Path]) -> Iterator[dict[Digest, Path]]:
    """So many at a time as go in one archive."""
    some: dict[Digest, Path] = {}
    size = 0
    for digest, path in files.items():
        length = path.stat().st_size
        if some and (len(some) == MAX_BUNDLED or size + length > BUNDLE_BYTES):
            yield some
            some, size = {}, 0
        some[digest] = path
        size += length
    if some:
        yield some


def _write(archive: Path, files: Mapping[Digest, Path]) -> None:
    with archive.open("wb") as file:
        file.writelines(bundled(files))


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack a result: only plain files, only inside the folder; ``folder`` is there once every byte is."""
    with tempfile.TemporaryDirectory(prefix=".unpacked.", dir=folder.parent) as made:
        whole = Path(made) / "files"
        whole.mkdir()
        try:
            with tarfile.open(archive, "r:") as source:
                for member in source:
                    if not is_plain(member):
                        raise ArchiveError(
                            f"the result holds {member.name[:80]!r}, which is not a plain file in its folder"
                        )
                    target = whole / member.name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    file = source.extractfile(member)
                    assert file is not None
                    with target.open("xb") as copy:
                        while piece := file.read(1 << 20):
                            copy.write(piece)
        except (tarfile.TarError, OSError, EOFError, ValueError) as error:
            raise ArchiveError(f"the result is damaged ({error}): download it again") from error
        if not folder.exists():
            os.replace(whole, folder)
            return
        for path in sorted(whole.rglob("*")):
            if path.is_file():
                target = folder / path.relative_to(whole)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)
