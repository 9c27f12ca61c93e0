"""Before a job and its beginning: ``cottage upload``, ``check``, ``quote`` and ``submit``."""

import argparse
import asyncio
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from common.console import Terminal
from common.terminal import say, somebody_answers
from coordinator.client.client import Client
from coordinator.client.commands.base import EXIT_REFUSED, progress_bar, show
from coordinator.client.commands.fetch import wanted_output
from coordinator.client.commands.follow import ended, follow
from coordinator.client.commands.send import document_of, found_on_hub, hub_name, say_taken, upload_file
from coordinator.client.datasets import format_of
from coordinator.client.deployments import serves
from coordinator.client.folders import TOKENIZER, tokenizer_files
from coordinator.client.hub import fetch
from coordinator.client.invitations import invitation_of
from coordinator.client.looks import check as look_through
from coordinator.client.looks import check_table
from coordinator.client.show import array_quote_table, deployment_quote_table, funding_table, quote_table
from coordinator.client.tracking.target import target_of
from protocol.codec import encode_json
from protocol.rest import api


async def quote(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage quote``: what a job would cost."""
    document = await document_of(client, options, out)
    quote = await client.quote(document)
    show(out, options, quote, _quote_table(document, quote))
    return EXIT_REFUSED if quote.problems else 0


async def submit(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage submit``: show the price, and begin the job."""
    if options.track is not None:
        target_of(options.track)  # Before anything is sent or paid.
    document = await document_of(client, options, out)
    quote = await client.quote(document)
    if not options.json:
        out.print(_quote_table(document, quote))
    if not agreed(options, out):
        return EXIT_REFUSED
    wanted = None if options.output is None else wanted_output(options.output, options)
    job = await client.create_job(document, options.wallet)
    if wanted is not None:
        await client.set_output(job.id, wanted)
    job = await funded(client, job, options, out)
    if options.watch or options.track is not None:
        return ended(await follow(client, job.id, options, out))
    show(out, options, job, f"{job.id}  {job.state}. Follow it: cottage watch {job.id}")
    if job.federation is not None and not options.json:
        say(
            f"Its owners join with: cottage node join '{await invitation_of(client, options.server, job.id)}' --data FOLDER"
        )
    return 0


def _quote_table(document: Mapping[str, Any], quote: api.Quote) -> RenderableType:
    if document.get("array") is not None:
        return array_quote_table(quote, document.get("budget"))
    return deployment_quote_table(quote, document.get("budget")) if serves(document) else quote_table(quote)


def agreed(options: argparse.Namespace, out: Terminal) -> bool:
    """Whether whoever sees the price wants the job; programs and ``--yes`` are not asked."""
    return options.yes or options.json or out.agrees("Submit and fund it?")


async def funded(client: Client, job: api.JobView, options: argparse.Namespace, out: Terminal) -> api.JobView:
    """Fund a new job from the test wallet, or say what one's own wallet has to do."""
    if options.wallet is None:
        return await client.fund(job.id)
    terms = await client.funding(job.id)
    if options.json:  # The one document comes at the end, which waits for this.
        say(f"job {job.id} waits for this escrow: {encode_json(terms).decode()}", error=True)
        return job
    out.print("Open this escrow from your wallet; the job begins as soon as it is on the ledger:")
    out.print(funding_table(terms))
    return job


async def upload(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage upload``: send a file by itself."""
    kind = _format(options.file, options, out) if options.purpose == "dataset" else "auto"
    upload = await _send(client, options, out, options.purpose, kind, options.resume)
    show(out, options, upload, f"artifact: {upload.artifact}")
    return 0


async def check(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage check``: look a dataset through."""
    artifact, kind = str(options.file), options.format or "auto"
    if not re.fullmatch(r"[0-9a-f]{64}", artifact):
        kind = _format(options.file, options, out)
        artifact = str((await _send(client, options, out, "dataset", kind, None)).artifact)
    tokenizer: dict[str, Any] = {"kind": "bytes"}
    if options.tokenizer is not None:
        if (named := hub_name(options.tokenizer)) is not None:
            options.tokenizer = await asyncio.to_thread(fetch, await found_on_hub(named), weights=False)
        path = options.tokenizer / TOKENIZER if options.tokenizer.is_dir() else options.tokenizer
        tokenizer = {"kind": "file"}
        say_taken(path.parent, tokenizer_files(path.parent, tokenizer))
        tokenizer["file"] = await upload_file(client, path, "tokenizer", tokenizer, options, out)
    found = await look_through(client, artifact, options, kind, out, tokenizer)
    show(out, options, found, check_table(found))
    return 0 if found.report is not None and not found.report.problem else EXIT_REFUSED


async def _send(
    client: Client, options: argparse.Namespace, out: Terminal, purpose: Any, kind: Any, resume: str | None
) -> api.Upload:
    path: Path = options.file

    def begun(upload: api.Upload) -> None:
        say(f"If it is cut: cottage upload {shlex.quote(str(path))} --resume {upload.id}", error=True)

    with progress_bar(out, options) as bar:
        task = bar.add_task(path.name, total=path.stat().st_size)
        return await client.upload(
            path, purpose, kind, options.text_field, lambda done, _all: bar.update(task, completed=done), resume, begun
        )


def _format(path: Path, options: argparse.Namespace, out: Terminal) -> str:
    return format_of(path, options.format, options.text_field, out, somebody_answers() and not options.json)
