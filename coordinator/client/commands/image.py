"""``cottage image``: container images of one's own, sent without a registry."""

import argparse
import asyncio
import shlex
import tempfile
from pathlib import Path

from rich.progress import Progress
from rich.table import Table

from common.console import Terminal
from common.errors import KeyFileError
from common.own_folders import cache_folder, make_folder
from common.regular_file import irregular
from common.terminal import say
from coordinator.client.client import Client
from coordinator.client.commands.base import CliUsageError, progress_bar, show
from coordinator.client.files import sha256_of
from coordinator.client.images import archives
from coordinator.client.login import settings_of_client
from protocol.identity import NodeKey
from protocol.images.errors import ImageFormatError
from protocol.rest import api

KEY_NAME = "publisher.key"


async def image(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage image push`` and ``list``."""
    if options.action == "list":
        if not (found := await client.images()) and not options.json:
            out.print("No images yet: `cottage image push FILE` sends one.")
            return 0
        table = Table("Artifact", "Name", "For", "Size", "Publisher")
        for one in found:
            size = f"{one.size / 1e6:,.1f} MB"
            table.add_row(one.artifact, one.name, one.architecture, size, one.publisher)
        show(out, options, found, table)
        return 0
    try:
        return await _push(client, options, out)
    except ImageFormatError as error:
        raise CliUsageError(f"{options.file}: {error}") from error
    except KeyFileError as error:
        raise CliUsageError(str(error)) from error


async def _push(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    path: Path = options.file
    if not path.exists():
        raise CliUsageError(f"{path} is not there: make it with docker save IMAGE -o {path}")
    if what := irregular(path):
        raise CliUsageError(f"{path} {what}: name an archive, as docker save IMAGE -o FILE writes it")
    key = NodeKey.load_or_generate(options.key or settings_of_client() / KEY_NAME)
    folder = cache_folder()
    make_folder(folder)
    with progress_bar(out, options) as bar, tempfile.TemporaryDirectory(dir=folder, prefix="image-") as scratch:
        built = await _looked_through(bar, path, options.architecture)
        statement = archives.stated(built, options.name or path.name.partition(".")[0], key)
        ready = Path(scratch) / "image.tar"
        await asyncio.to_thread(archives.write, built, statement, key, ready)
        upload = await _sent(client, bar, ready, path, statement.name, options)
    for one in built.left_out:
        say(f"left out: {one}", error=True)
    lines = (
        f"artifact: {upload.artifact}",
        f"{statement.name} is signed by {key.address}. It runs where the owner accepts that key:",
        f"  cottage node images accept {key.address} --name NAME",
    )
    show(out, options, upload, "\n".join(lines))
    return 0


async def _looked_through(bar: Progress, path: Path, architecture: str) -> archives.BuiltImage:
    task = bar.add_task(f"looking through {path.name}", total=None)
    built = await asyncio.to_thread(archives.survey, path, architecture, lambda done: bar.update(task, completed=done))
    bar.update(task, completed=built.unpacked, total=built.unpacked)
    return built


async def _sent(
    client: Client, bar: Progress, ready: Path, source: Path, name: str, options: argparse.Namespace
) -> api.Upload:
    task = bar.add_task(f"sending {name}", total=ready.stat().st_size)

    def begun(upload: api.Upload) -> None:
        again = ["cottage", "image", "push", str(source), "--resume", upload.id]
        for flag in ("name", "key", "architecture"):  # With others the archive would be another one.
            again += [f"--{flag}", str(value)] if (value := getattr(options, flag)) else []
        say(f"If it is cut: {shlex.join(again)}", error=True)

    return await client.push_image(
        ready,
        name,
        await asyncio.to_thread(sha256_of, ready),
        lambda done, _all: bar.update(task, completed=done),
        options.resume,
        begun,
    )
