"""``cottage node``: lend this machine.

Exit codes: 0 ended as asked; 1 failed, the text says how; 2 a setting or file is unusable; 3 jobs cannot be run safely here (no
Docker engine, no image); 4 the coordinator refuses this node; 5 another agent uses the same home folder; 6 one job after the
other has failed here, or somebody reached into one.
"""

import argparse
import asyncio
import contextlib
import os
import sqlite3
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import msgspec
from rich.table import Table

from common import gc_tuning, tracing
from common.console import Terminal
from common.open_files import raise_limit
from common.options import whole
from common.terminal import complain, complain_of_no_answer, say, say_json
from common.untrusted_text import untrusted
from desktop.agent.app import restart, status, support
from desktop.agent.app.autostart import MOVED, UNIT, Autostart
from desktop.agent.base import log, networks
from desktop.agent.base.activity import Activity
from desktop.agent.base.config import DEFAULT_IMAGE, Home, Settings, payee
from desktop.agent.base.log import LOG, printable
from desktop.agent.cli import federation_cli, images_cli, keycli, ownercli, upkeepcli
from desktop.agent.cli.lending_cli import add_words
from desktop.agent.cli.nettest_screen import show as show_test
from desktop.agent.cli.nettest_screen import show_link, with_bar
from desktop.agent.errors import AgentError, NoAgentError, NoNetworkError, SettingsError
from desktop.agent.jobs.line_limits import LimitsChange, LimitsView, LineLimits, show_quantity, show_rate
from desktop.agent.jobs.traffic_usage import load_usage
from desktop.agent.lending.policy import State
from ledger.errors import AmountError
from ledger.money import parse, show
from protocol.codec import MessageError, convert
from protocol.node import SandboxKind
from transport.nettest import words as line_words

_SANDBOX_HELP = (
    "docker: jobs see neither your files nor your network; kubernetes: the same, in pods of the cluster that this runs in; "
    "process: NO PROTECTION, for the demo and for development (docker)"
)
MEASURES = "Getting ready: the sandbox is checked and this computer is measured, which takes about a minute."
LOADS = "Getting ready: a model is fetched and loaded, and answers once that is done."
WAITS = "ready, waits for the other nodes of its replica: nothing is earned meanwhile"
_SETTINGS = (
    "coordinator",
    "name",
    "payout",
    "sandbox",
    "threads",
    "memory_mb",
    "image",
    "stake",
    "floor",
    "bond",
    "loopback",
    "always",
)
OPEN_FILES = 4_096  # Links, transfers, containers, and files of many jobs; systems begin with 256 to 1,024.
_RATE_HELP = "bytes a second that links may {}: 5M, 40Mbit or off"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the words; returns the exit code."""
    options = _parser().parse_args(argv)
    try:
        return int(options.run(options))
    except NoNetworkError as error:
        complain("cottage node", f"{error}. With --coordinator it is remembered")
        return error.exit_code
    except AgentError as error:
        complain("cottage node", error)
        return error.exit_code
    except (OSError, sqlite3.Error) as error:
        # Of the home's files and databases: a full disk, a file in a folder's place.
        complain("cottage node", error)
        return SettingsError.exit_code
    except EOFError as error:  # Whoever is asked ends the input in the place of an answer.
        return complain_of_no_answer("cottage node", error, SettingsError.exit_code)
    except KeyboardInterrupt:
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cottage node", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    words = parser.add_subparsers(required=True, metavar="WORD")
    run = words.add_parser("run", help="lend this machine until it is stopped (Ctrl-C or SIGTERM)")
    _add_settings(run)
    run.add_argument(
        "--worker-argument",
        action="append",
        default=[],
        metavar="TEXT",
        help="append TEXT to the worker's command line; an aid for tests",
    )
    run.add_argument(
        "--stay",
        action="store_true",
        help="go on when lending is off: the switch of the window, remembered, says when to lend",
    )
    # Of a new version: answer, do nothing else.
    run.add_argument("--trial", action="store_true", help=argparse.SUPPRESS)
    run.add_argument("--log-json", action="store_true", help="log one JSON object for each event")
    run.set_defaults(run=_run)
    check = words.add_parser("selftest", help="see whether this machine can run jobs, and what it can do")
    _add_settings(check)
    check.add_argument("--json", action="store_true", help="one JSON document")
    check.set_defaults(run=_selftest, worker_argument=[], log_json=False)
    limits = words.add_parser("limits", help="how much of the line jobs may use; changed at once where the agent runs")
    limits.add_argument("--home", type=Path, help="the agent's folder")
    limits.add_argument("--json", action="store_true", help="one JSON document")
    _add_limits(limits)
    limits.set_defaults(run=_limits)
    test = words.add_parser("nettest", help="let the agent test its line now: router, round trips, rates")
    test.add_argument("--home", type=Path, help="the agent's folder")
    test.add_argument("--json", action="store_true", help="one JSON document")
    test.add_argument("--peer", metavar="ADDRESS", help="test the link to this peer instead")
    test.add_argument("--no-speed", action="store_true", help="leave the rates out: they take some seconds of the line")
    test.set_defaults(run=_nettest)
    for word, action, text in (
        ("status", _status, "what the agent is doing"),
        ("claim", _claim, "ask for what has been earned and not been paid, though it be little"),
    ):
        ask = words.add_parser(word, help=text)
        ask.add_argument("--home", type=Path, help="the agent's folder")
        ask.add_argument("--json", action="store_true", help="one JSON document")
        ask.set_defaults(run=action)
    logs = words.add_parser("logs", help="what the agent has said, over restarts")
    logs.add_argument("--home", type=Path, help="the agent's folder")
    logs.add_argument("-n", "--lines", type=whole, default=100, help="how many lines, from the end (100)")
    logs.add_argument("-f", "--follow", action="store_true", help="and what it says from now on, until Ctrl-C")
    logs.add_argument(
        "--support", action="store_true", help="a report for somebody who helps, without anything private"
    )
    logs.set_defaults(run=_logs)
    add_words(words)
    ownercli.add_words(words)
    keycli.add_words(words)
    upkeepcli.add_words(words)
    images_cli.add_words(words)
    federation_cli.add_words(words)
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """Every setting is remembered in the home folder; what is not given stays as it was."""
    add = parser.add_argument
    add("--home", type=Path, help="the agent's folder: key, settings, cache (the user's data folder)")
    add("--coordinator", metavar="ADDRESS", help="whom to work for: an address, or an invitation (cottage://join?...)")
    add("--name", help="how this machine is called on the network page (its host name)")
    add("--payout", metavar="ADDRESS", help="the wallet that is paid (the node's own)")
    add("--sandbox", choices=get_args(SandboxKind), help=_SANDBOX_HELP)
    add("--image", help=f"the sandbox image ({DEFAULT_IMAGE})")
    add("--threads", type=whole, help="processors' worth of computing (all)")
    add("--memory-mb", type=whole, help="memory for jobs (half)")
    add("--stake", metavar="AMOUNT", help="tokens to stake, such as 25 or 12.5")
    add("--floor", metavar="AMOUNT", help="the least tokens to work for, for 10^15 operations, such as 0.002 (any)")
    add(
        "--bond",
        metavar="AMOUNT",
        help="the most tokens to put up against neighbours' false work, at a time (0: doubt nobody)",
    )
    add("--loopback", action="store_true", default=None, help="all peers are on this machine (the demo)")
    add(
        "--always",
        action=argparse.BooleanOptionalAction,
        help="lend whatever this computer does and whoever uses it (no)",
    )
    _add_limits(parser)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--up", metavar="RATE", help=_RATE_HELP.format("send"))
    add("--down", metavar="RATE", help=_RATE_HELP.format("receive"))
    add(
        "--month", metavar="BYTES", help="bytes that links may use in a calendar month, both ways together: 500G or off"
    )
    add("--polite", choices=("on", "off"), help="yield to the household's own traffic within moments (off)")


def _change(options: argparse.Namespace) -> LimitsChange:
    polite = None if options.polite is None else options.polite == "on"
    return LimitsChange(options.up, options.down, options.month, polite)


def _settings(options: argparse.Namespace, home: Home) -> Settings:
    given = {name: getattr(options, name) for name in _SETTINGS if getattr(options, name) is not None}
    kept = home.settings()
    if "coordinator" in given:
        kept = kept.joining(kept.meant(given.pop("coordinator"), networks.known(home.networks)))
    if "payout" in given:
        given["payout"] = payee(given["payout"])
    try:
        for name in ("stake", "floor", "bond"):
            if name in given:
                given[name] = parse(given[name])
        settings: Settings = convert(msgspec.to_builtins(kept) | given, Settings)
    except (MessageError, AmountError) as error:
        raise SettingsError(f"a setting cannot be used: {error}") from error
    return _change(options).apply(LineLimits.of(settings)).into(settings)


def _run(options: argparse.Namespace) -> int:
    home = Home.at(options.home)
    log.set_up(options.log_json, file=home.log)
    settings = _settings(options, home)
    with home.locked():
        if not options.trial:
            home.remember(settings)
        from desktop.agent.app import service  # Loads the network and the ledger, which the other words can do without.

        told = Home(home.path, trial=options.trial)
        raise_limit(OPEN_FILES)
        gc_tuning.settle()
        try:
            tracing.start("cottage-node")
        except tracing.TracingError as error:  # The variable may be there for other programs.
            LOG.warning("no traces are sent: %s", error)
        after = asyncio.run(service.serve(told, options.worker_argument, stays=options.stay))
        tracing.finish()
    if after.kind == "unit":
        if not (why := Autostart.of(home).take_over()):
            return 0
        LOG.error("%s does not start, so this process goes on: %s", UNIT, why)
        os.environ[MOVED] = why
    elif after.kind == "version" and after.folder is not None:
        restart.replace_self(after.folder, after.version, home, sys.argv[1:])
    elif after.kind == "version" and after.setup is not None:
        restart.install(after.setup, after.version, home, sys.argv[1:], stays=options.stay)
        return 0
    if after.kind != "end":
        restart.begin_anew(sys.argv[1:])
    return 0


def _selftest(options: argparse.Namespace) -> int:
    home = Home.at(options.home)
    with home.locked():
        home.remember(_settings(options, home))
        return ownercli.selftest(home, options)


def _status(options: argparse.Namespace) -> int:
    home = Home.at(options.home)
    answer = asyncio.run(status.ask(home.socket))
    if options.json:
        say_json(answer)
        return 0
    console = Terminal()
    reason = f": {printable(answer.reason)}" if answer.reason else ""
    console.print(f"{printable(answer.name)} ({answer.node}) is {answer.state}{reason}")
    if answer.state == "starting":
        console.print(MEASURES, soft_wrap=True)
    elif answer.lending:
        console.print(printable(answer.lending) if _answers(answer) else LOADS, soft_wrap=True)
    for task in answer.tasks:
        if task.waits:
            console.print(f"{printable(task.job_name)}: {WAITS}", soft_wrap=True)
    console.print(f"works for {printable(answer.coordinator)}; {printable(answer.note)}")
    table = Table("Job", "Place", "State", "Round", "Step", "Loss", "Sent")
    for task in answer.tasks:
        place = "spare" if task.stage is None else f"stage {task.stage} replica {task.replica}"
        if task.elements is not None:
            place = f"elements of an array, {task.elements:,} done"
        elif task.serves:
            part = f"stage {(task.stage or 0) + 1} of {task.stages} of " if task.stages > 1 else ""
            place = f"answers, {part}replica {(task.replica or 0) + 1}"
        state: str = "ready" if task.waits else "loads the model" if task.loads else task.state
        state += f" {100 * task.fetched:.0f} %" if task.fetched is not None else ""
        loss = "" if task.loss is None else f"{task.loss:.3f}"
        sent = f"{(task.activations + task.bulk) / 1e6:,.1f} MB"
        table.add_row(printable(task.job_name), place, state, _text(task.round), _text(task.step), loss, sent)
    console.print(table)
    if answer.links:
        console.print(_link_table(answer.links))
    if answer.line is not None:
        line, hours = answer.line, (time.time() - answer.line.at) / 3600
        rates = f"{line_words.rate(line.up)} up, {line_words.rate(line.down)} down"
        console.print(f"line: {line_words.nat(line)}; {rates} (tested {hours:.0f} h ago)")
    if answer.trouble:
        console.print(f"lending is off: {printable(answer.trouble)}")
    console.print(f"earned: {show(answer.verified)} verified, {show(answer.paid)} paid")
    return 0


def _answers(answer: status.AgentStatus) -> bool:
    """Whether it lends as it says: not while the only thing that it does is to get a model ready."""
    live = [task for task in answer.tasks if task.is_live]
    ready = [task for task in live if not (task.loads or (task.serves and task.state == "fetching"))]
    return not live or bool(ready) or answer.lending_state is not State.LENDING


def _claim(options: argparse.Namespace) -> int:
    home = Home.at(options.home)
    summary = asyncio.run(status.ask_claim(home.socket))
    if options.json:
        say_json(summary)
        return 0
    owed = show(summary.verified - summary.paid)
    Terminal().print(f"asked for {owed}; the ledger shows it within minutes, at most once in ten")
    return 0


def _nettest(options: argparse.Namespace) -> int:
    home, speed = Home.at(options.home), not options.no_speed
    console = Terminal(stderr=options.json)
    if options.peer:
        asked = status.PeerOrder(options.peer, speed)
        link = asyncio.run(with_bar(console, lambda _: status.ask_peer_test(home.socket, asked)))
        if options.json:
            say_json(link)
        else:
            show_link(console, link)
        return 0
    order = status.Order(speed)
    test = asyncio.run(with_bar(console, lambda _: status.ask_nettest(home.socket, order)))
    if options.json:
        say_json(test)
    else:
        show_test(console, test)
    return 0 if test.reached else 1


def _link_table(links: Sequence[status.LinkView]) -> Table:
    table = Table("Peer", "Way", "RTT", "Queue", "Up", "Down", "Loss", "Sent again")
    for link in links:
        way = link.state if link.state != "up" else ("relay" if link.relayed else "direct") + f" ({link.route})"
        rtt = "" if link.rtt_ms is None else f"{link.rtt_ms:.1f} ms"
        rates = [f"{rate * 8 / 1e6:,.1f} Mbit/s" for rate in (link.send_rate, link.receive_rate)]
        loss = f"{link.loss:.2%}"
        table.add_row(
            link.peer[:8], printable(way), rtt, f"{link.queue_ms:.1f} ms", *rates, loss, f"{link.retransmitted:,}"
        )
    return table


def _limits(options: argparse.Namespace) -> int:
    home, change = Home.at(options.home), _change(options)
    view = _limits_of(home, None if change == LimitsChange() else change)
    if options.json:
        say_json(view)
        return 0
    limits = view.limits
    table = Table("What", "Limit")
    table.add_row("up", show_rate(limits.up))
    table.add_row("down", show_rate(limits.down))
    table.add_row(f"in {view.month}", f"{show_quantity(limits.month)}, {show_quantity(view.used)} used")
    table.add_row("polite", "on: the household's own traffic goes first" if limits.polite else "off")
    console = Terminal()
    console.print(table)
    console.print("in force" if view.applied else "no agent runs here: in force from its next start")
    return 0


def _limits_of(home: Home, change: LimitsChange | None) -> LimitsView:
    """Ask the agent; where none runs, its settings are changed for the next start."""
    try:
        return asyncio.run(status.ask_limits(home.socket, change))
    except NoAgentError:
        with home.locked():  # Raises HomeBusyError where an agent is only just starting.
            settings = home.settings()
            if change is not None:
                settings = change.apply(LineLimits.of(settings)).into(settings)
                home.remember(settings)
            usage = load_usage(home.usage, time.time())
            return LimitsView(LineLimits.of(settings), usage.month, usage.used, applied=False)


def _logs(options: argparse.Namespace) -> int:
    home = Home.at(options.home)
    if options.support:
        with contextlib.closing(Activity(home.activity)) as activity:
            say(support.report(home, activity, "").rstrip("\n"))
        return 0
    lines = support.followed_lines if options.follow else support.last_lines
    for line in lines(home, options.lines):
        say(untrusted(line.rstrip("\n")))
    return 0


def _text(number: int | None) -> str:
    return "" if number is None else str(number)
