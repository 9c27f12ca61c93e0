"""Jobs as they are and as they go on: ``cottage jobs``, ``show``, ``watch``, ``logs``, ``pause`` and the like."""

import argparse
from collections import deque
from collections.abc import Callable

from rich.live import Live

from common.console import Terminal
from common.terminal import say, say_json
from coordinator.client.client import Client, JobUpdate
from coordinator.client.commands.base import EXIT_REFUSED, CliUsageError, show
from coordinator.client.compare import compare_table, comparison
from coordinator.client.invitations import invitation_of
from coordinator.client.show import checkpoints_table, funding_table, job_panel, jobs_table, log_text
from coordinator.client.text import money
from coordinator.client.tracking import track
from protocol.rest import api

_EVENTS_SHOWN = 5
Until = Callable[[api.JobView], bool]


async def jobs(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage jobs``: the newest ones."""
    views = await client.jobs(options.limit)
    show(out, options, views, jobs_table(views))
    return 0


async def show_job(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage show``: one job with its newest events."""
    view = await client.get(options.job)
    show(out, options, view, job_panel(view, (await client.events(view.id))[-_EVENTS_SHOWN:]))
    if view.federation is not None and view.ended is None and not options.json:
        say(f"invitation for its owners: {await invitation_of(client, options.server, view.id)}")
    return 0


async def logs(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage logs``: the newest lines, or every line as it comes."""
    if options.follow:
        async for line in client.follow_logs(options.job, options.search, options.level, options.limit):
            show(out, options, line, log_text([line], end=""))
        return 0
    lines = await client.logs(options.job, 0, options.search, options.level, options.limit)
    show(out, options, lines, log_text(lines))
    return 0


async def checkpoints(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage checkpoints``: the newest stored states."""
    points = await client.checkpoints(options.job)
    show(out, options, points, checkpoints_table(points))
    return 0


async def compare(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage compare``: jobs side by side."""
    jobs = list(dict.fromkeys(options.jobs))
    if len(jobs) < 2:
        raise CliUsageError(f"{jobs[0]} alone cannot be compared: name two jobs or more")
    found = comparison(await client.compare(jobs))
    show(out, options, found, compare_table(found))
    return 0


async def change(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage pause``, ``resume``, ``stop``, ``cancel`` and ``budget``."""
    if options.command == "budget":
        view = await client.add_budget(options.job, options.amount)
        funding = await client.funding(options.job)
        if funding.missing and not options.json:
            out.print(f"Raise the cap of this escrow and deposit {money(funding.missing)} into it from your wallet:")
            out.print(funding_table(funding))
    else:
        view = await getattr(client, options.command)(options.job)
    show(out, options, view, view.sentence or view.state)
    return 0


async def watch(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage watch``: a job until it is over."""
    return ended(await follow(client, options.job, options, out))


def ended(view: api.JobView) -> int:
    """The exit status for a job that is over."""
    return 0 if view.state == "settled" else EXIT_REFUSED


async def follow(
    client: Client, job: str, options: argparse.Namespace, out: Terminal, until: Until | None = None
) -> api.JobView:
    """Show a job as it goes on until it is over, or until something is so of it.

    A terminal shows all of it as it is now; a pipe or a file gets a line whenever it stands elsewhere, and all of it at the end.
    """
    if options.json:
        return await _wait(client, job, options, lambda update: say_json(update), until)
    recent: deque[api.JobEvent] = deque(maxlen=_EVENTS_SHOWN)
    view = await client.get(job)
    if not out.is_terminal:
        said = ""

        def on_change(update: JobUpdate) -> None:
            nonlocal said
            recent.extend(update.events)
            if update.job is not None and (now := update.job.sentence or update.job.state) != said:
                out.print(now, soft_wrap=True)
                said = now

        view = await _wait(client, job, options, on_change, until)
        out.print(job_panel(view, tuple(recent)))
        return view
    with Live(job_panel(view), console=out, refresh_per_second=4) as live:

        def on_update(update: JobUpdate) -> None:
            nonlocal view
            recent.extend(update.events)
            view = update.job or view
            live.update(job_panel(view, tuple(recent)))

        view = await _wait(client, job, options, on_update, until)
        live.update(job_panel(view, tuple(recent)))
    return view


async def _wait(
    client: Client,
    job: str,
    options: argparse.Namespace,
    on_update: Callable[[JobUpdate], None],
    until: Until | None,
) -> api.JobView:
    if getattr(options, "track", None) is None:
        return await client.wait(job, on_update, until)
    return await track(client, job, options.track, on_update, lambda text: say(f"cottage: {text}", error=True))
