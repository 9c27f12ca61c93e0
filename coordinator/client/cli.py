"""``cottage submit``, ``quote``, ``jobs``, ``watch`` and ``download``: the SDK on the command line.

Exit status: 0 done; 1 the job failed or was cancelled, or the coordinator refused; 2 wrong use; 3 the coordinator does not
answer; 130 interrupted.
"""

import argparse
import asyncio
import json
import os
import re
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from coordinator.client.client import Client, JobUpdate
from coordinator.client.errors import ClientError, UnreachableError
from coordinator.client.show import checkpoints_table, funding_table, job_panel, jobs_table, log_text, quote_table
from coordinator.client.text import money, parse_amount
from transport.wire import api

_FORMATS = {".jsonl": "jsonl", ".parquet": "parquet", ".npy": "npy"}  # Endings that say what a dataset is.

_ASKS = {
    "pause": "pause a job once its round is complete; nothing is spent until it is resumed",
    "resume": "go on with a paused job",
    "stop": "end a job now and keep the model of its newest verified checkpoint",
    "cancel": "end a job now; verified work is paid, the rest refunded",
}

DEFAULT_SERVER = "http://127.0.0.1:8470"
SERVER_VARIABLE = "COTTAGE_SERVER"
EXIT_REFUSED, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_INTERRUPTED = 1, 2, 3, 130
_EVENTS_SHOWN = 5
_FLOAT = re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")


class UsageError(Exception):
    """A file that is not there, or does not hold what it should."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; ``argv`` begins with its name."""
    options = _parser().parse_args(list(sys.argv[1:] if argv is None else argv))
    out = Console()
    try:
        return asyncio.run(_run(options, out))
    except UnreachableError as error:
        print(f"cottage: {error}", file=sys.stderr)
        return EXIT_UNREACHABLE
    except ClientError as error:
        print(f"cottage: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except (UsageError, OSError) as error:
        print(f"cottage: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cottage", description="Train a model on the network.")
    commands = parser.add_subparsers(dest="command", required=True)
    common = argparse.ArgumentParser(add_help=False)
    server = os.environ.get(SERVER_VARIABLE, DEFAULT_SERVER)
    common.add_argument(
        "--server", default=server, metavar="URL", help=f"the coordinator (or ${SERVER_VARIABLE}); now {server}"
    )
    common.add_argument("--json", action="store_true", help="print JSON, for programs")
    files = argparse.ArgumentParser(add_help=False)
    files.add_argument("document", type=Path, metavar="JOB", help="the job document, YAML or JSON")
    files.add_argument("--data", type=Path, metavar="FILE", help="upload this dataset and put it into the document")
    files.add_argument(
        "--weights",
        type=Path,
        metavar="PATH",
        help="upload this model.safetensors, or a folder with shards, to start from",
    )
    files.add_argument("--tokenizer", type=Path, metavar="FILE", help="upload this tokenizer.json")

    commands.add_parser("quote", parents=[common, files], help="what a job would cost")
    submit = commands.add_parser("submit", parents=[common, files], help="submit a job and fund it")
    submit.add_argument("--watch", action="store_true", help="follow it until it is over")
    submit.add_argument(
        "--wallet", metavar="ADDRESS", help="the wallet that funds it; without it, the test wallet does"
    )
    submit.add_argument("--yes", action="store_true", help="do not ask before funding")
    jobs = commands.add_parser("jobs", parents=[common], help="list jobs")
    jobs.add_argument("--limit", type=int, default=20)
    watch = commands.add_parser("watch", parents=[common], help="follow a job until it is over")
    watch.add_argument("job")
    for name, text in _ASKS.items():
        commands.add_parser(name, parents=[common], help=text).add_argument("job")
    logs = commands.add_parser("logs", parents=[common], help="what the coordinator noted and the workers wrote")
    logs.add_argument("job")
    logs.add_argument("--search", default="", metavar="TEXT", help="only lines with this text")
    logs.add_argument(
        "--level", choices=["debug", "info", "warning", "error"], default="info", help="of the least important"
    )
    logs.add_argument("--limit", type=int, default=200, metavar="N", help="at most so many, the newest (%(default)s)")
    points = commands.add_parser("checkpoints", parents=[common], help="the newest stored states of a job's model")
    points.add_argument("job")
    trial = commands.add_parser("try", parents=[common], help="continue a text with a job's newest checkpoint")
    trial.add_argument("job")
    trial.add_argument("prompt")
    trial.add_argument("--tokens", type=int, default=100, metavar="N")
    trial.add_argument("--temperature", type=float, default=0.8, metavar="T")
    trial.add_argument("--seed", type=int, default=0)
    trial.add_argument("--round", type=int, metavar="N", help="of another checkpoint than the newest")
    budget = commands.add_parser("budget", parents=[common], help="raise a job's cap; one that paused for it goes on")
    budget.add_argument("job")
    budget.add_argument("amount", type=_amount, metavar="AMOUNT", help="tokens to add, such as 2.50")
    download = commands.add_parser("download", parents=[common], help="fetch a finished model")
    download.add_argument("job")
    download.add_argument("folder", type=Path, metavar="DIR")
    return parser


async def _run(options: argparse.Namespace, out: Console) -> int:
    async with Client(options.server) as client:
        match options.command:
            case "quote":
                return await _quote(client, options, out)
            case "submit":
                return await _submit(client, options, out)
            case "jobs":
                views = await client.jobs(options.limit)
                _print(out, options, views, jobs_table(views))
                return 0
            case "watch":
                return await _watch(client, options.job, options, out)
            case "logs":
                lines = await client.logs(options.job, 0, options.search, options.level, options.limit)
                _print(out, options, lines, log_text(lines))
                return 0
            case "checkpoints":
                points = await client.checkpoints(options.job)
                _print(out, options, points, checkpoints_table(points))
                return 0
            case "try":
                return await _try(client, options, out)
            case "pause" | "resume" | "stop" | "cancel" | "budget":
                return await _change(client, options, out)
            case _:
                return await _download(client, options, out)


async def _try(client: Client, options: argparse.Namespace, out: Console) -> int:
    try:
        wanted = {"prompt": options.prompt, "tokens": options.tokens, "temperature": options.temperature}
        request = msgspec.convert(wanted | {"seed": options.seed}, api.TrialRequest)
    except msgspec.ValidationError as error:
        raise UsageError(str(error)) from error
    if not options.json:
        out.print(options.prompt, end="", markup=False, highlight=False)
    async for piece in client.generate(options.job, request, options.round):
        if options.json:
            print(msgspec.json.encode(piece).decode(), flush=True)
        elif "text" in piece:
            out.print(piece["text"], end="", markup=False, highlight=False)
    if not options.json:
        out.print()
    return 0


async def _change(client: Client, options: argparse.Namespace, out: Console) -> int:
    if options.command == "budget":
        view = await client.add_budget(options.job, options.amount)
        funding = await client.funding(options.job)
        if funding.missing and not options.json:
            out.print(f"Raise the cap of this escrow and deposit {money(funding.missing)} into it from your wallet:")
            out.print(funding_table(funding))
    else:
        view = await getattr(client, options.command)(options.job)
    _print(out, options, view, view.sentence or view.state)
    return 0


async def _quote(client: Client, options: argparse.Namespace, out: Console) -> int:
    quote = await client.quote(await _document(client, options, out))
    _print(out, options, quote, quote_table(quote))
    return EXIT_REFUSED if quote.problems else 0


async def _submit(client: Client, options: argparse.Namespace, out: Console) -> int:
    document = await _document(client, options, out)
    quote = await client.quote(document)
    if not options.json:
        out.print(quote_table(quote))
    if not options.yes and not options.json and not _agreed(out):
        return EXIT_REFUSED
    job = await client.create_job(document, options.wallet)
    if options.wallet is None:
        job = await client.fund(job.id)
    elif not options.json:
        out.print("Open this escrow from your wallet; the job begins as soon as it is on the ledger:")
        out.print(funding_table(await client.funding(job.id)))
    if options.watch:
        return await _watch(client, job.id, options, out)
    _print(out, options, job, f"{job.id}  {job.state}. Follow it: cottage watch {job.id}")
    return 0


async def _watch(client: Client, job: str, options: argparse.Namespace, out: Console) -> int:
    if options.json:
        view = await client.wait(job, lambda update: print(msgspec.json.encode(update).decode(), flush=True))
        return 0 if view.state == "settled" else EXIT_REFUSED
    recent: deque[api.JobEvent] = deque(maxlen=_EVENTS_SHOWN)
    view = await client.get(job)
    with Live(job_panel(view), console=out, refresh_per_second=4) as live:

        def on_update(update: JobUpdate) -> None:
            nonlocal view
            recent.extend(update.events)
            view = update.job or view
            live.update(job_panel(view, tuple(recent)))

        view = await client.wait(job, on_update)
        live.update(job_panel(view, tuple(recent)))
    return 0 if view.state == "settled" else EXIT_REFUSED


async def _download(client: Client, options: argparse.Namespace, out: Console) -> int:
    with _bar(out, options) as bar:
        task = bar.add_task("model", total=None)
        folder = await client.download_folder(
            options.job, options.folder, lambda done, total: bar.update(task, completed=done, total=total)
        )
    _print(
        out,
        options,
        {"folder": str(folder)},
        f"The model is in {folder}: AutoModelForCausalLM.from_pretrained opens it.",
    )
    return 0


def _amount(text: str) -> int:
    try:
        return parse_amount(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


async def _document(client: Client, options: argparse.Namespace, out: Console) -> dict[str, Any]:
    """The job document as plain data, with what was uploaded for it put in."""
    document = _read(options.document)
    for path, purpose, place, key in (
        (options.data, "dataset", "dataset", "artifact"),
        (options.tokenizer, "tokenizer", "tokenizer", "file"),
    ):
        if path is not None:
            part = document.setdefault(place, {})
            if not isinstance(part, dict):
                raise UsageError(f"{options.document}: {place} is {part!r}, not a table")
            if purpose == "tokenizer":
                part["kind"] = "file"
            elif path.suffix in _FORMATS:
                part.setdefault("format", _FORMATS[path.suffix])
            part[key] = await _upload(client, path, purpose, part, options, out)
    if options.weights is not None:
        await _upload_weights(client, document, options, out)
    return document


async def _upload_weights(client: Client, document: dict[str, Any], options: argparse.Namespace, out: Console) -> None:
    """One file, or every shard of a model's folder; what is in them says which tensors they hold."""
    path, part = options.weights, document.setdefault("model", {})
    if not isinstance(part, dict):
        raise UsageError(f"{options.document}: model is {part!r}, not a table")
    shards = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not shards:
        raise UsageError(f"{path} holds no *.safetensors: name the folder of a model, or its model.safetensors")
    found = [await _upload(client, shard, "weights", part, options, out) for shard in shards]
    part["weights"] = found[0] if len(found) == 1 else found


async def _upload(
    client: Client, path: Path, purpose: Any, part: dict[str, Any], options: argparse.Namespace, out: Console
) -> str | None:
    with _bar(out, options) as bar:
        task = bar.add_task(path.name, total=path.stat().st_size)
        upload = await client.upload(
            path,
            purpose,
            part.get("format", "text") if purpose == "dataset" else "text",
            str(part.get("text_field", "text")),
            lambda done, _total: bar.update(task, completed=done),
        )
    return upload.artifact


def _read(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    if path.suffix == ".json":
        try:
            document = json.loads(data)
        except ValueError as error:
            raise UsageError(f"{path}: {error}") from error
    else:
        import yaml  # Only here: a program that uses the SDK needs none.

        class Loader(yaml.SafeLoader):
            """Reads ``3e-3`` as a number, as the coordinator does."""

        Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789"))
        try:
            document = yaml.load(data, Loader=Loader)  # noqa: S506 - a subclass of the safe loader
        except yaml.YAMLError as error:
            raise UsageError(f"{path}: {error}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{path}: a job document is a table with name, model, dataset and budget")
    return document


def _bar(out: Console, options: argparse.Namespace) -> Progress:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, console=out, disable=options.json)


def _agreed(out: Console) -> bool:
    return out.input("Submit and fund it? [y/N] ").strip().lower() in ("y", "yes")


def _print(out: Console, options: argparse.Namespace, value: Any, shown: Any) -> None:
    if options.json:
        print(msgspec.json.encode(value).decode())
    else:
        out.print(shown, soft_wrap=isinstance(shown, str))
