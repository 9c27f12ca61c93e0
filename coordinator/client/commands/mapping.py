"""``cottage map``: a container once for each of many files, as ``xargs`` does it here, and the results in a folder.

What was begun is noted in the folder of the results. The same command in the same folder goes on with it: files that were sent
are not sent again, a job that runs is followed, and results that are here stay. So Ctrl-C costs nothing.
"""

import argparse
import asyncio
import contextlib
import glob
import hashlib
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from common.console import Terminal
from common.terminal import say, say_json
from common.untrusted_text import untrusted
from coordinator.client.arrays import (
    array_budget,
    array_document,
    command_words,
    elements_of_files,
    files_of,
    overwritten,
    read_of,
    refuse_empty,
)
from coordinator.client.client import Client
from coordinator.client.commands.base import EXIT_REFUSED, CliUsageError
from coordinator.client.commands.submit import agreed, funded
from coordinator.client.errors import ClientError
from coordinator.client.show import array_quote_table
from coordinator.client.text import money
from protocol.codec import MessageError, decode_json, encode_json
from protocol.ids import NOT_SENT, Digest, JobId
from protocol.job.array import MAX_ELEMENTS
from protocol.rest.arrays import ElementView

NOTES = ".cottage-map.json"
MAX_NOTES = 64 << 20
MAX_SHOWN = 10  # Failed elements, at the end.
WAITS_S = 5.0  # Between two looks for why elements wait.
_TAIL = 5
_DIGEST = re.compile("[0-9a-f]{64}")


class MapNotes(msgspec.Struct):
    """What stands in the folder of the results. ``asked``: SHA-256 of what the command asks for, files included."""

    server: str
    asked: Digest
    sent: dict[str, Digest] = {}
    job: JobId | None = None


async def map_files(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage map``: send, price, begin, follow, fetch."""
    folder: Path = options.out
    read = {path: read_of(path, folder) for path in _over(options.over, folder)}
    files, command = files_of(read), _words("COMMAND", options.command_line)
    elements_of_files(read, dict.fromkeys(files, NOT_SENT))  # What cannot be is said before anything is sent.
    refuse_empty(files)
    image = await _image(client, options.image)
    folder.mkdir(parents=True, exist_ok=True)
    array = _array(options) | await _checker(client, options)
    notes = _notes(folder, client.address, _asked(image, options, read, array))
    if notes.job is None:
        array |= await _shared(client, options)
        elements = elements_of_files(read, await _sent(client, files, notes, folder, options, out))
        listed = await client.upload_elements(elements)
        name = options.name or f"map {Path(options.command_line).name[:60]}"
        document = array_document(
            name,
            image,
            command,
            listed,
            len(elements),
            options.budget or 1,
            array,
            options.hours,
        )
        if not await _agreed(client, document, options, out):
            return EXIT_REFUSED
        notes.job = (await client.create_job(document, options.wallet)).id
        _keep(folder, notes)
    elif not options.json:
        out.print(f"Going on with job {notes.job}.", soft_wrap=True)
    if (view := await client.get(notes.job)).state == "created":
        await funded(client, view, options, out)
    try:
        failed = await _fetched(client, notes.job, len(read), folder, options, out)
    except BaseException:
        say(
            f"job {notes.job} goes on. The same command fetches its results; end it: cottage cancel {notes.job}",
            error=True,
        )
        raise
    return await _told(client, notes.job, failed, len(read), folder, options, out)


def _over(patterns: Sequence[str], results: Path) -> list[Path]:
    """What each element is called after: files, and folders where a pattern ends with a slash; never results."""
    found: list[Path] = []
    out, left_out = results.resolve(), False
    for pattern in patterns:
        matches = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
        if not matches:
            raise CliUsageError(f"--over {pattern}: there is no such file")
        wanted = os.path.isdir if pattern.endswith(("/", os.sep)) else os.path.isfile
        among = _fixed(pattern).resolve().is_relative_to(out)  # Inputs may lie where results come.
        for path in (Path(match) for match in matches if wanted(match)):
            whole = path.resolve()
            if whole == out or (not among and whole.is_relative_to(out)):
                left_out = True
            else:
                found.append(path)
    files = list(dict.fromkeys(found))
    if not files and left_out:
        raise CliUsageError(
            f"--over {' '.join(patterns)}: results come to {results}, and nothing else is there: name another --out"
        )
    if not files:
        way = "end it with a slash for an element of each folder"
        raise CliUsageError(f"--over {' '.join(patterns)}: there are folders, and no files: {way}")
    if lost := overwritten(files, results):
        raise CliUsageError(f"the result of {lost} would lie where {lost} is: name another folder in --out")
    if len(files) > MAX_ELEMENTS:
        raise CliUsageError(
            f"--over names {len(files):,} files: one array has {MAX_ELEMENTS:,} at most, so make several"
        )
    return files


def _fixed(pattern: str) -> Path:
    """The folder, or file, that all matches lie in."""
    if os.path.exists(pattern):
        return Path(pattern)
    return Path(*itertools.takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts))


async def _image(client: Client, image: str) -> Digest:
    """The artifact of an image that is named by its digest, or by the name that it was pushed with."""
    if _DIGEST.fullmatch(image):
        return image
    pushed = await client.images()
    found = next((one.artifact for one in pushed if one.name == image), None)
    if found is None:
        names = ", ".join(dict.fromkeys(one.name for one in pushed)) or "none yet"
        raise CliUsageError(f"no image {image!r} was pushed (there are: {names}): cottage image push FILE sends one")
    return found


def _words(option: str, command: str) -> list[str]:
    try:
        return command_words(command)
    except ValueError as error:
        raise CliUsageError(f"{option} {command!r}: {error}") from None


def _array(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of the document's section that the command line has."""
    if options.verify == "trusted" and not options.trust:
        raise CliUsageError("--verify trusted: --trust names the owners, by the addresses where they are paid")
    own = {
        "seconds": options.seconds,
        "memory_mb": options.memory,
        "disk_mb": options.disk,
        "retries": options.retries,
        "batch": options.batch,
        "verify": options.verify,
        "owners": options.owners,
        "estimate": options.estimate,
    }
    array: dict[str, Any] = {name: value for name, value in own.items() if value is not None}
    array |= {"gpu": True} if options.gpu else {}
    array |= {"trusted": options.trust, "verify": "trusted"} if options.trust else {}
    array |= {"environment": dict(options.env)} if options.env else {}
    return array


async def _checker(client: Client, options: argparse.Namespace) -> dict[str, Any]:
    """What decides on results, where the command line names it."""
    if options.check is None:
        if options.verify == "checked":
            raise CliUsageError("--verify checked: --check names the command that decides")
        if options.check_image is not None or options.check_estimate is not None:
            raise CliUsageError("--check-image and --check-estimate are of a checker: --check names its command")
        return {}
    if options.trust or options.verify not in (None, "checked"):
        other = f"--verify {options.verify}" if options.verify else "--trust"
        raise CliUsageError(f"--check and {other} are two ways to make sure of results: leave one out")
    checker: dict[str, Any] = {"command": _words("--check", options.check), "seconds": options.seconds or 600.0}
    checker |= {"image": await _image(client, options.check_image)} if options.check_image is not None else {}
    checker |= {"estimate": options.check_estimate} if options.check_estimate is not None else {}
    return {"verify": "checked", "checker": checker}


def _asked(
    image: Digest, options: argparse.Namespace, read: Mapping[Path, Mapping[str, Path]], array: dict[str, Any]
) -> Digest:
    """What makes two commands the same one. Files by name, size and time: reading them all would take long."""
    stats = [(path.as_posix(), [_stat(file) for file in own.values()]) for path, own in read.items()]
    shared = [(name, path.as_posix(), path.stat().st_mtime_ns) for name, path in options.input]
    return hashlib.sha256(encode_json([image, options.command_line, stats, shared, array])).hexdigest()


def _stat(file: Path) -> tuple[str, int, int]:
    found = file.stat()
    return file.as_posix(), found.st_size, found.st_mtime_ns


def _notes(folder: Path, server: str, asked: Digest) -> MapNotes:
    path = folder / NOTES
    if not path.exists():
        return MapNotes(server, asked)
    try:
        notes: MapNotes = decode_json(path.read_bytes(), MapNotes, MAX_NOTES)
    except MessageError as error:
        raise CliUsageError(f"{path} cannot be read ({error}): remove it to begin anew") from error
    if (notes.server, notes.asked) == (server, asked):
        return notes
    if notes.job is None:
        return MapNotes(server, asked, notes.sent if notes.server == server else {})
    raise CliUsageError(
        f"{folder} has results of job {notes.job}, which was asked for something else (other files, another command or other "
        "options), or by an older version: name another folder in --out, or remove this one; "
        f"`cottage download {notes.job} FOLDER` fetches that job's results"
    )


def _keep(folder: Path, notes: MapNotes) -> None:
    fresh = folder / f"{NOTES}.new"
    fresh.write_bytes(encode_json(notes))
    os.replace(fresh, folder / NOTES)


async def _shared(client: Client, options: argparse.Namespace) -> dict[str, Any]:
    """Files that every element reads."""
    if not options.input:
        return {}
    sent = await client.upload_inputs([path for _, path in options.input])
    return {"inputs": {name: sent[path] for name, path in options.input}}


async def _sent(
    client: Client, files: Sequence[Path], notes: MapNotes, folder: Path, options: argparse.Namespace, out: Terminal
) -> dict[Path, Digest]:
    with _bar(options, out) as bar:
        task = bar.add_task("sending", total=len(files))

        def done(path: Path, digest: Digest) -> None:
            notes.sent[str(path)] = digest
            bar.advance(task)

        try:
            return await client.upload_inputs(files, dict(notes.sent), done)
        finally:
            _keep(folder, notes)


async def _agreed(client: Client, document: dict[str, Any], options: argparse.Namespace, out: Terminal) -> bool:
    """Whether whoever has seen the price wants it."""
    if options.budget is None:
        document["budget"] = array_budget(await client.quote(document))
    quote = await client.quote(document)
    if options.json and quote.problems:
        raise CliUsageError("; ".join(quote.problems))
    if not options.json:
        out.print(array_quote_table(quote, document["budget"], proposed=options.budget is None))
    return not quote.problems and agreed(options, out)


async def _fetched(
    client: Client, job: str, count: int, folder: Path, options: argparse.Namespace, out: Terminal
) -> list[ElementView]:
    """Results as they come; those that failed."""
    failed: list[ElementView] = []
    with _bar(options, out) as bar:
        task = bar.add_task("running", total=count)
        said = asyncio.create_task(_say_what_waits(client, job, bar))
        try:
            async for element in client.ended(job):
                if element.result is None:
                    failed.append(element)
                elif fault := (await client.taken(job, element, folder)).fault:
                    failed.append(msgspec.structs.replace(element, reason=untrusted(fault)))
                bar.update(task, advance=1, description=f"{len(failed)} failed" if failed else "running")
                if options.json:
                    say_json(element)
        finally:
            said.cancel()
            await asyncio.gather(said, return_exceptions=True)
    return failed


async def _say_what_waits(client: Client, job: str, bar: Progress) -> None:
    """Why elements wait, as the coordinator notes it: a bar that stands still says nothing."""
    after = 0
    while True:
        await asyncio.sleep(WAITS_S)
        with contextlib.suppress(ClientError):  # The bar's own calls say what is wrong with the line.
            for event in await client.events(job, after):
                after = event.id
                if event.kind == "limit" and bar.disable:
                    say(event.text, error=True)
                elif event.kind == "limit":
                    bar.console.print(event.text, soft_wrap=True)


async def _told(
    client: Client,
    job: str,
    failed: Sequence[ElementView],
    count: int,
    folder: Path,
    options: argparse.Namespace,
    out: Terminal,
) -> int:
    """How it ended."""
    view = await client.get(job)
    done = count - len(failed) if view.array is None else min(view.array.done, count - len(failed))
    if not options.json:
        for element in failed[:MAX_SHOWN]:
            out.print(_failure(element))
        more = f", {len(failed):,} failed" if failed else ""
        out.print(f"{done:,} of {count:,} results are in {folder}{more}. It cost {money(view.paid)}.", soft_wrap=True)
        if view.state != "settled":
            out.print(view.sentence or view.state, soft_wrap=True)
    return 0 if done == count else EXIT_REFUSED


def _failure(element: ElementView) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row(Text(element.name, style="red"), Text(element.reason))
    for line in element.tail[-_TAIL:]:
        table.add_row("", Text(line, style="dim"))
    return table


def _bar(options: argparse.Namespace, out: Terminal) -> Progress:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=out, disable=options.json or not out.is_terminal)
