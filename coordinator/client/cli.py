"""The SDK on the command line: ``cottage submit``, ``jobs``, ``watch``, ``download`` and what else a submitter does."""

import argparse
import asyncio
import getpass
import os
import re
import shlex
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from common.console import Terminal
from common.terminal import complain, given_line, say, say_json, somebody_answers
from coordinator.client.client import Client, JobUpdate
from coordinator.client.compare import compare_table, comparison
from coordinator.client.datasets import DatasetError, format_of, shards
from coordinator.client.documents import DocumentError, read_document
from coordinator.client.errors import ClientError, CoordinatorAddressError, ProblemError, UnreachableError
from coordinator.client.folders import CONFIG, OLDER_TOKENIZERS, TOKENIZER, model_files, tokenizer_files
from coordinator.client.line import STRANGER
from coordinator.client.login import LoginFileError, remember, token_for
from coordinator.client.looks import audits_table, check_table, entries_table, notices_table, totals_table, trail_table
from coordinator.client.looks import check as look_through
from coordinator.client.options import parser
from coordinator.client.show import (
    checkpoints_table,
    funding_table,
    job_panel,
    jobs_table,
    keys_table,
    log_text,
    output_text,
    quote_table,
)
from coordinator.client.text import money
from protocol.codec import MessageError, convert
from protocol.rest import api

EXIT_REFUSED, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_INTERRUPTED = 1, 2, 3, 130
EXIT_SIGNED_OUT = 4
_EVENTS_SHOWN = 5


class CliUsageError(Exception):
    """A file that is not there, or does not hold what it should."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; ``argv`` begins with its name."""
    options = parser().parse_args(list(sys.argv[1:] if argv is None else argv))
    out = Terminal()
    try:
        return asyncio.run(_run(options, out))
    except UnreachableError as error:
        complain("cottage", error)
        return EXIT_UNREACHABLE
    except CoordinatorAddressError as error:
        say(f"cottage: --server: {error}", error=True)
        return EXIT_USAGE
    except ClientError as error:
        complain("cottage", error)
        if isinstance(error, ProblemError) and error.status in (401, 403) and error.code != STRANGER:
            say("cottage: `cottage login` keeps an API key; one is made on the coordinator's account page", error=True)
            return EXIT_SIGNED_OUT
        return EXIT_REFUSED
    except (CliUsageError, DatasetError, DocumentError, LoginFileError, OSError) as error:
        complain("cottage", error)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


async def _run(options: argparse.Namespace, out: Terminal) -> int:
    if options.command == "logout":
        return _forget(options, out)
    token = options.token or token_for(options.server)
    if options.command == "login":
        token = _ask_key(options, out)
    async with Client(options.server, token) as client:
        match options.command:
            case "login":
                return await _login(client, token, options, out)
            case "watch":
                return await _watch(client, options.job, options, out)
            case command:
                return await _COMMANDS[command](client, options, out)


async def _jobs(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    views = await client.jobs(options.limit)
    _print(out, options, views, jobs_table(views))
    return 0


async def _show(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    view = await client.get(options.job)
    _print(out, options, view, job_panel(view, (await client.events(view.id))[-_EVENTS_SHOWN:]))
    return 0


async def _logs(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    if options.follow:
        async for line in client.follow_logs(options.job, options.search, options.level, options.limit):
            _print(out, options, line, log_text([line], end=""))
        return 0
    lines = await client.logs(options.job, 0, options.search, options.level, options.limit)
    _print(out, options, lines, log_text(lines))
    return 0


async def _checkpoints(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    points = await client.checkpoints(options.job)
    _print(out, options, points, checkpoints_table(points))
    return 0


async def _compare(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    jobs = list(dict.fromkeys(options.jobs))
    if len(jobs) < 2:
        raise CliUsageError(f"{jobs[0]} alone cannot be compared: name two jobs or more")
    found = comparison(await client.compare(jobs))
    _print(out, options, found, compare_table(found))
    return 0


async def _try(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    try:
        wanted = {"prompt": options.prompt, "tokens": options.tokens, "temperature": options.temperature}
        request = convert(wanted | {"seed": options.seed}, api.TrialRequest)
    except MessageError as error:
        raise CliUsageError(str(error)) from error
    if not options.json:
        out.print(options.prompt, end="")
    async for piece in client.generate(options.job, request, options.round):
        if options.json:
            say_json(piece)
        elif "text" in piece:
            out.print(piece["text"], end="")
    if not options.json:
        out.print()
    return 0


async def _change(client: Client, options: argparse.Namespace, out: Terminal) -> int:
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


async def _quote(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    quote = await client.quote(await _document(client, options, out))
    _print(out, options, quote, quote_table(quote))
    return EXIT_REFUSED if quote.problems else 0


async def _submit(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    document = await _document(client, options, out)
    quote = await client.quote(document)
    if not options.json:
        out.print(quote_table(quote))
    if not options.yes and not options.json and not _agreed(out):
        return EXIT_REFUSED
    wanted = None if options.output is None else _wanted_output(options.output, options)
    job = await client.create_job(document, options.wallet)
    if wanted is not None:
        await client.set_output(job.id, wanted)
    if options.wallet is None:
        job = await client.fund(job.id)
    elif not options.json:
        out.print("Open this escrow from your wallet; the job begins as soon as it is on the ledger:")
        out.print(funding_table(await client.funding(job.id)))
    if options.watch:
        return await _watch(client, job.id, options, out)
    _print(out, options, job, f"{job.id}  {job.state}. Follow it: cottage watch {job.id}")
    return 0


async def _watch(client: Client, job: str, options: argparse.Namespace, out: Terminal) -> int:
    if options.json:
        view = await client.wait(job, lambda update: say_json(update))
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


async def _upload_alone(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    kind = _format(options.file, options, out) if options.purpose == "dataset" else "auto"
    upload = await _send(client, options, out, options.purpose, kind, options.resume)
    _print(out, options, upload, f"artifact: {upload.artifact}")
    return 0


async def _check(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    artifact, kind = str(options.file), options.format or "auto"
    if not re.fullmatch(r"[0-9a-f]{64}", artifact):
        kind = _format(options.file, options, out)
        artifact = str((await _send(client, options, out, "dataset", kind, None)).artifact)
    found = await look_through(client, artifact, options, kind, out)
    _print(out, options, found, check_table(found))
    return 0 if found.report is not None and not found.report.problem else EXIT_REFUSED


async def _send(
    client: Client, options: argparse.Namespace, out: Terminal, purpose: Any, kind: Any, resume: str | None
) -> api.Upload:
    path: Path = options.file

    def begun(upload: api.Upload) -> None:
        say(f"If it is cut: cottage upload {shlex.quote(str(path))} --resume {upload.id}", error=True)

    with _bar(out, options) as bar:
        task = bar.add_task(path.name, total=path.stat().st_size)
        return await client.upload(
            path, purpose, kind, options.text_field, lambda done, _all: bar.update(task, completed=done), resume, begun
        )


def _format(path: Path, options: argparse.Namespace, out: Terminal) -> str:
    return format_of(path, options.format, options.text_field, out, somebody_answers() and not options.json)


def _ask_key(options: argparse.Namespace, out: Terminal) -> str:
    if options.token:
        return str(options.token)
    if not somebody_answers():
        return given_line().strip()
    out.print(f"Make a key at {options.server}/account, then paste it here.", soft_wrap=True)
    return getpass.getpass("API key: ").strip()


async def _login(client: Client, token: str | None, options: argparse.Namespace, out: Terminal) -> int:
    if not token:
        raise CliUsageError("no key was given: paste one, or name it with --token")
    who = await client.account()  # Only a key that works is kept.
    path = remember(options.server, token)
    _print(out, options, who, f"Signed in to {options.server} as {who.name or who.id}. The key is in {path}.")
    return 0


def _forget(options: argparse.Namespace, out: Terminal) -> int:
    path = remember(options.server, None)
    _print(out, options, {"file": str(path)}, f"The key for {options.server} is no longer in {path}.")
    return 0


async def _keys(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    if options.revoke:
        await client.revoke_key(options.revoke)
        _print(out, options, {"revoked": options.revoke}, f"{options.revoke} is revoked.")
    elif options.new:
        made = await client.new_key(options.new, options.scope, options.days)
        _print(out, options, made, f"{made.text}\nThis is the only time that it is shown.")
    else:
        found = await client.keys()
        _print(out, options, found, keys_table(found))
    return 0


async def _trail(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    trail = await client.trail(options.limit, options.everybody)
    _print(out, options, trail, trail_table(trail))
    return 0


async def _notices(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    now = await client.notices()
    if options.confirm:
        now = await client.confirm_notices(options.confirm)
    elif options.webhook is not None or options.mail is not None or options.when is not None:
        given = {"webhook": options.webhook, "mail": options.mail}
        given |= {"webhook_kinds": options.when, "mail_kinds": options.when}
        kept = {name: getattr(now, name) for name in given}
        wanted = kept | {name: value for name, value in given.items() if value is not None}
        now = await client.set_notices(wanted)
    if options.test:
        await client.test_notices()
    sent = await client.deliveries(options.limit)
    _print(out, options, {"notices": now, "deliveries": sent}, notices_table(now, sent))
    return 0


async def _output(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    if options.remove:
        await client.remove_output(options.job)
        _print(out, options, {}, f"nothing more of {options.job} is sent to a bucket, and its key is forgotten")
        return 0
    if options.url is None:
        found = await client.output(options.job)
    else:
        found = await client.set_output(options.job, _wanted_output(options.url, options))
    _print(out, options, found, output_text(found))
    return EXIT_REFUSED if found.state == "failed" else 0


def _wanted_output(url: str, options: argparse.Namespace) -> api.NewOutput:
    """Where a model is to go, with the key of the environment."""
    key, secret = (os.environ.get(name, "") for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
    if not key or not secret:
        raise CliUsageError("the bucket's key is missing: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    given = {"url": url, "key": key, "secret": secret, "endpoint": options.endpoint, "region": options.region}
    try:
        wanted: api.NewOutput = convert({**given, "checkpoints": options.with_checkpoints}, api.NewOutput)
    except MessageError as error:
        raise CliUsageError(f"{error.field or 'output'}: {error}") from error
    return wanted


async def _ledger(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    match options.list:
        case "totals":
            totals = await client.ledger_totals()
            _print(out, options, totals, totals_table(totals))
            return EXIT_REFUSED if totals.difference else 0
        case "audits":
            audits = await client.ledger_audits(options.state, options.job, options.limit)
            _print(out, options, audits, audits_table(audits))
        case _:
            entries = await client.ledger_entries(options.kind or (), options.job, options.limit)
            _print(out, options, entries, entries_table(entries))
    return 0


async def _download(client: Client, options: argparse.Namespace, out: Terminal) -> int:
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


async def _document(client: Client, options: argparse.Namespace, out: Terminal) -> dict[str, Any]:
    """The job document as plain data, with what was uploaded for it put in."""
    document = read_document(options.document)
    if options.weights is not None:
        await _upload_weights(client, document, options, out)
    for path, purpose, place, key in (
        (options.data, "dataset", "dataset", "artifact"),
        (options.tokenizer, "tokenizer", "tokenizer", "file"),
    ):
        if path is not None:
            part = document.setdefault(place, {})
            if not isinstance(part, dict):
                raise CliUsageError(f"{options.document}: {place} is {part!r}, not a table")
            if purpose == "tokenizer":
                part["kind"] = "file"
                _say_taken(path.parent, tokenizer_files(path.parent, part))
            else:
                said, field = part.get("format"), str(part.get("text_field", "text"))
                ask = somebody_answers() and not options.json
                part["format"] = format_of(path, None if said is None else str(said), field, out, ask)
            part[key] = await _upload(client, path, purpose, part, options, out)
    return document


async def _upload_weights(client: Client, document: dict[str, Any], options: argparse.Namespace, out: Terminal) -> None:
    """One file, or every shard of a model's folder; what is in them says which tensors they hold.

    Of a folder config, tokenizer and generation settings are taken too, where the document names none.
    """
    path, part = options.weights, document.setdefault("model", {})
    if not isinstance(part, dict):
        raise CliUsageError(f"{options.document}: model is {part!r}, not a table")
    chosen, others = shards(path)
    if path.is_dir() and not part.keys() & {"preset", "config", "from_job"} and not (path / CONFIG).is_file():
        raise CliUsageError(
            f"{path} holds weights and no {CONFIG}: download that too, or give model.config in the document"
        )
    if others:
        left, taken = ", ".join(one.name for one in others), ", ".join(one.name for one in chosen[:3])
        more = " ..." if len(chosen) > 3 else ""
        say(
            f"cottage: {left} {'is' if len(others) == 1 else 'are'} left out: the weights are {taken}{more}", error=True
        )
    found = [await _upload(client, shard, "weights", part, options, out) for shard in chosen]
    part["weights"] = found[0] if len(found) == 1 else found
    if path.is_dir():
        _say_taken(path, model_files(path, part))
        if options.tokenizer is None and "tokenizer" not in document and (path / TOKENIZER).is_file():
            options.tokenizer = path / TOKENIZER
        elif options.tokenizer is None and "tokenizer" not in document:
            _say_without_tokenizer(path)


def _say_without_tokenizer(folder: Path) -> None:
    older = next((name for name in OLDER_TOKENIZERS if (folder / name).is_file()), None)
    if older is not None:
        way = "save_pretrained of transformers' AutoTokenizer writes it"
        say(f"cottage: {folder} has {older} and no {TOKENIZER}, which is what is read here: {way}", error=True)


def _say_taken(folder: Path, names: Sequence[str]) -> None:
    if names:
        say(f"cottage: {', '.join(names)} of {folder} {'goes' if len(names) == 1 else 'go'} with the job", error=True)


async def _upload(
    client: Client, path: Path, purpose: Any, part: dict[str, Any], options: argparse.Namespace, out: Terminal
) -> str | None:
    with _bar(out, options) as bar:
        task = bar.add_task(path.name, total=path.stat().st_size)
        upload = await client.upload(
            path,
            purpose,
            part.get("format", "auto") if purpose == "dataset" else "auto",
            str(part.get("text_field", "text")),
            lambda done, _total: bar.update(task, completed=done),
        )
    return upload.artifact


def _bar(out: Terminal, options: argparse.Namespace) -> Progress:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, console=out, disable=options.json)


def _agreed(out: Terminal) -> bool:
    return out.input("Submit and fund it? [y/N] ").strip().lower() in ("y", "yes")


def _print(out: Terminal, options: argparse.Namespace, value: Any, shown: Any) -> None:
    if options.json:
        say_json(value)
    else:
        out.print(shown, soft_wrap=isinstance(shown, str))


_COMMANDS: dict[str, Callable[[Client, argparse.Namespace, Terminal], Awaitable[int]]] = {
    "quote": _quote,
    "submit": _submit,
    "upload": _upload_alone,
    "jobs": _jobs,
    "show": _show,
    "job": _show,
    "logs": _logs,
    "checkpoints": _checkpoints,
    "compare": _compare,
    "try": _try,
    **dict.fromkeys(("pause", "resume", "stop", "cancel", "budget"), _change),
    "download": _download,
    "output": _output,
    "keys": _keys,
    "trail": _trail,
    "notices": _notices,
    "check": _check,
    "ledger": _ledger,
}
