"""``cottage node earnings|send|withdraw|unstake|selftest|settings|on|off``: what the windows' pages do, in the same words."""

import argparse
import asyncio
import contextlib
import datetime as dt
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.table import Table

from common.console import Terminal
from common.options import whole
from common.terminal import say, say_json
from desktop.agent.app import settings, status
from desktop.agent.app.autostart import Autostart
from desktop.agent.app.card_views import views_of
from desktop.agent.app.selftest import NOT_TESTED, SelfTestResult
from desktop.agent.base import log, networks
from desktop.agent.base.config import Home
from desktop.agent.base.log import printable
from desktop.agent.earnings import pay_sentences
from desktop.agent.earnings.records import EarningRecords
from desktop.agent.errors import NoAgentError
from desktop.agent.lending.keeper import LendingChange
from desktop.answers import EarningsSummary, JobEarnings, SelfTestStep, WalletWithdrawal
from ledger.money import UNIT, show
from protocol.codec import encode_json

SOL = 10**9
_MARKS = {"good": "ok", "warning": "note", "bad": "NO", "running": "...", "waiting": ""}

_HELD = {
    "": "",
    "driver": ", held by the driver while jobs run",
    "pauses": ", held on average: jobs pause for moments, since {0}",
    "not": ", NOT held: {0}",
}


def add_words(words: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the words to ``cottage node``; ``selftest`` takes the settings of ``run`` too and is added there."""
    earned = words.add_parser("earnings", help="what jobs have brought: paid, pending, not paid and why")
    earned.add_argument(
        "--proofs", action="store_true", help="with the command that checks each job against the ledger"
    )
    take = words.add_parser("send", help="send tokens from the node's own wallet to another address")
    take.add_argument("amount", nargs="?", default="", help="tokens, such as 12.5 (all)")
    take.add_argument("--to", required=True, metavar="ADDRESS", help="a wallet of yours")
    take.add_argument("--yes", action="store_true", help="do not ask")
    own = "pay fee and rent with SOL that the wallet holds, without the coordinator"
    take.add_argument("--own-sol", action="store_true", help=own)
    claim = words.add_parser("withdraw", help="take what was promised on the ledger, though the coordinator be gone")
    claim.add_argument("--job", help="only of this job")
    claim.add_argument(
        "--rpc", metavar="URL", help="the ledger's JSON-RPC address (the one that the coordinator named)"
    )
    back = words.add_parser("unstake", help="have the stake back: ask for it, and after the cool-down take it")
    back.add_argument("--rpc", metavar="URL", help="the ledger's JSON-RPC address (the one that the coordinator named)")
    owner = words.add_parser("settings", help="the owner's settings: shown, or changed at once where the agent runs")
    _add_settings(owner)
    cards = words.add_parser("cards", help="several cards that are lent: each one's state, and its switch")
    turn = cards.add_mutually_exclusive_group()
    turn.add_argument(
        "--on", type=_card, metavar="CARD", help="lend this one again, by its number here or its GPU-... name"
    )
    turn.add_argument("--off", type=_card, metavar="CARD", help="have this one hand over what it has; the others go on")
    on = words.add_parser("on", help="switch lending on, where the agent runs with --stay")
    off = words.add_parser("off", help="hand over what runs and stop lending")
    for parser, action in (
        (earned, _earnings),
        (take, _send),
        (claim, _withdraw),
        (back, _unstake),
        (owner, _settings),
        (cards, _cards),
        (on, _switch(True)),
        (off, _switch(False)),
    ):
        parser.add_argument("--home", type=Path, help="the agent's folder")
        parser.add_argument("--json", action="store_true", help="one JSON document")
        parser.set_defaults(run=action)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--coordinator", metavar="ADDRESS", help="whom to work for: an address, or an invitation (cottage://join?...)")
    add("--name", help="how this machine is called on the network page")
    add("--payout", metavar="ADDRESS", help="the wallet that is paid; '' for the node's own")
    add("--floor", metavar="AMOUNT", help="the least tokens to work for, for 10^15 operations")
    add(
        "--bond",
        metavar="AMOUNT",
        help="the most tokens to put up against neighbours' false work, at a time (0: doubt nobody)",
    )
    add("--electricity", metavar="AMOUNT", help="what a kWh costs, in the currency, or in tokens without one")
    add("--currency", metavar="CODE", help="in which money is shown beside tokens: EUR, USD; '' for none")
    add("--worth", metavar="AMOUNT", help="what a token is worth in it; 0: what the network says")
    add("--threads", type=whole, help="processors' worth of computing; 0: all")
    add("--memory-mb", type=whole, help="memory for jobs; 0: half")
    add(
        "--gpu",
        type=_gpu,
        help="the GPU that is lent, by its number or its GPU-... name; several with commas, or all; -1: the processor",
    )
    add("--disk-gb", type=whole, help="disk for jobs' files")
    add("--watts", type=whole, help="the GPU's power cap; 0: its own")
    add("--at-login", action=argparse.BooleanOptionalAction, help="start with the computer while lending is on")
    add("--updates", action=argparse.BooleanOptionalAction, help="fetch new versions in the background")


def _gpu(text: str) -> int | str:
    return text if text == "all" or "," in text or text.startswith("GPU-") else whole(text)


def _card(text: str) -> int | str:
    return text if text.startswith("GPU-") else whole(text)


def _cards(options: argparse.Namespace) -> int:
    home = Home.at(options.home)
    card, on = (options.on, True) if options.on is not None else (options.off, False)
    view = _switched(home, None if card is None else status.CardOrder(card, on))
    if options.json:
        say_json(view)
        return 0
    table = Table("", "Card", "State", "Jobs", "Node")
    for number, one in enumerate(view.cards, 1):
        state = one.state if one.on else "switched off"
        why = one.trouble or one.lending
        table.add_row(str(number), f"{printable(one.name)}\n{one.gpu}", state, str(one.jobs), one.node)
        if why:
            table.add_row("", printable(why), "", "", "")
    if view.cards:
        Terminal().print(table)
    else:
        say("one card is lent, or the processor: `cottage node settings --gpu all` lends all cards")
    return 0


def _switched(home: Home, order: status.CardOrder | None) -> status.CardsView:
    """The cards after ``order``; where no agent runs, it counts from the next start."""
    try:
        if order is None:
            return status.CardsView(asyncio.run(status.ask(home.socket)).cards)
        return asyncio.run(status.ask_for(home.socket, "cards", status.CardsView, order))
    except NoAgentError:
        with home.locked():
            settings = home.settings()
            if order is not None:
                settings = order.apply(settings)
                home.remember(settings)
            return status.CardsView(views_of(home, settings))


def _settings(options: argparse.Namespace) -> int:
    home = Home.at(options.home)
    names = settings.SettingsChange.__struct_fields__
    change = settings.SettingsChange(**{name: getattr(options, name) for name in names})
    asked = None if change == settings.SettingsChange() else change
    running = True
    try:
        view = asyncio.run(status.ask_for(home.socket, "settings", settings.SettingsView, asked))
    except NoAgentError:
        view, running = _without_agent(home, change), False
    if options.json:
        _say(encode_json(view).decode())
        return 0
    console = Terminal()
    console.print(_settings_table(view))
    if asked is not None:
        effects = {
            "now": "in force",
            "rejoin": "in force: the coordinator is told",
            "restart": "in force: what ran was handed over",
        }
        said = effects[view.effect] if running else "no agent runs here: in force from its next start"
        console.print(said)
    return 0


def _without_agent(home: Home, change: settings.SettingsChange) -> settings.SettingsView:
    with home.locked():
        home.remember(change.apply(home.settings(), home.key().address, networks.known(home.networks)))
        return settings.view(home, "")


def _settings_table(view: settings.SettingsView) -> Table:
    kept, table = view.settings, Table("What", "Setting")
    table.add_row("coordinator", printable(kept.coordinator) or "not set")
    table.add_row("its key", kept.coordinator_key or "any: no invitation named one")
    table.add_row("name", printable(kept.name) or "the host name")
    table.add_row("payout", kept.payout or f"{view.address} (the node's own wallet)")
    table.add_row("floor", f"{show(kept.floor)} for 10^15 operations" if kept.floor else "any price")
    table.add_row("bond", f"{show(kept.bond)} at a time" if kept.bond else "none: it doubts nobody")
    unit = kept.currency or "tokens"
    table.add_row("electricity", f"{show(kept.electricity)} {unit} a kWh" if kept.electricity else "not given")
    table.add_row("currency", kept.currency or "none: tokens")
    table.add_row("worth", f"{show(kept.worth)} {unit} a token" if kept.worth else "as the network says")
    table.add_row("threads", f"{kept.threads or view.processors} of {view.processors}")
    table.add_row("memory-mb", f"{kept.memory_mb or view.memory_mb_here // 2:,} of {view.memory_mb_here:,}")
    chosen = next((gpu.name for gpu in view.gpus if kept.gpu in (gpu.index, gpu.uuid)), "it is not here")
    table.add_row("gpu", "none, the processor" if kept.gpu == -1 else f"{kept.gpu} ({printable(chosen)})")
    for gpu in view.gpus:
        if kept.gpu not in (gpu.index, gpu.uuid):
            state = "not lent" if gpu.uuid not in kept.cards else "lent, too"
            off = ", switched off" if gpu.uuid in kept.resting else ""
            table.add_row(f"  {state}", f"{gpu.uuid} ({printable(gpu.name)}){off}")
    table.add_row("disk-gb", str(kept.disk_gb))
    table.add_row("watts", f"{kept.watts}{_HELD[view.cap].format(view.cap_why)}" if kept.watts else "the GPU's own")
    table.add_row("at-login", "starts with the computer" if kept.at_login else "started by hand")
    table.add_row("updates", "fetched in the background" if kept.updates else "not looked for")
    return table


def _earnings(options: argparse.Namespace) -> int:
    home = Home.at(options.home)
    try:
        summary = asyncio.run(status.ask_for(home.socket, "earnings", EarningsSummary))
    except NoAgentError:
        summary = _kept_earnings(home)
    if options.json:
        _say(encode_json(summary).decode())
        return 0
    console = Terminal()
    table = Table("Job", "When", "Hours", "Verified", "Paid", "State", title="What jobs have brought")
    for job in summary.jobs:
        when = dt.datetime.fromtimestamp(job.first).astimezone().strftime("%Y-%m-%d")
        hours = f"{job.seconds / 3600:.2f}"
        table.add_row(_name(job), when, hours, show(job.verified), show(job.paid), job.standing)
    table.add_row("all", "", "", show(summary.verified), show(summary.paid), "")
    console.print(table)
    console.print(f"today {show(summary.today)}, seven days {show(summary.week)}, in all {show(summary.verified)}")
    for job in summary.jobs:
        for reason in job.reasons:
            console.print(f"{_name(job)}: {job.standing}: {pay_sentences.said(reason)}")
        if options.proofs and job.verified:
            console.print(f"{_name(job)}: {printable(job.proof)}", soft_wrap=True)
    if summary.wallet is not None:
        console.print(f"{summary.wallet.address} held {show(summary.wallet.balance)} when the ledger was last asked")
    return 0


def _name(job: JobEarnings) -> str:
    return f"{printable(job.name)} ({job.job[:8]})" if job.name else job.job[:8]


def _kept_earnings(home: Home) -> EarningsSummary:
    with contextlib.closing(EarningRecords.at(home)) as books:
        return books.summary(time.time())


def _send(options: argparse.Namespace) -> int:
    home, console = Home.at(options.home), Terminal(stderr=options.json)
    order = status.WithdrawOrder(options.to, options.amount, own_sol=options.own_sol)
    cost = _withdrawal(home, order)
    if cost.denied is None:
        console.print(_cost_of(cost), soft_wrap=True)
        if not options.yes and not console.agrees("Send it?"):
            return 1
        # Not "all" a second time: more may have come meanwhile.
        exact = f"{cost.amount // UNIT}.{cost.amount % UNIT:06d}"
        cost = _withdrawal(home, msgspec.structs.replace(order, amount=exact, send=True, fee=cost.fee))
    if options.json:
        _say(encode_json(cost).decode())
    elif cost.denied is None:
        _say(f"sent: {cost.signature}")
    if cost.denied is not None:
        console.print(f"not sent: {cost.denied.text}", soft_wrap=True)
    return 0 if cost.denied is None else 1


def _withdrawal(home: Home, order: status.WithdrawOrder) -> WalletWithdrawal:
    return asyncio.run(status.ask_for(home.socket, "withdraw", WalletWithdrawal, order, status.LONG_TIMEOUT_S))


def _cost_of(cost: WalletWithdrawal) -> str:
    account = ", with an account for the token, which the address does not have yet" if cost.opens else ""
    paid = f"{cost.lamports / SOL:.6f} SOL of its own" if cost.lamports else f"{show(cost.fee)} of it"
    leaves = f"{show(cost.amount)} of {show(cost.held)} leave the wallet"
    return f"{leaves}, {show(cost.arrives)} arrive at {cost.target}; the ledger takes {paid}{account}"


def _withdraw(options: argparse.Namespace) -> int:
    from desktop.agent.cli import withdraw  # Loads the ledger, which the other words can do without.

    return withdraw.run(options)


def _unstake(options: argparse.Namespace) -> int:
    from desktop.agent.cli import unstake  # As above.

    return unstake.run(options)


def selftest(home: Home, options: argparse.Namespace) -> int:
    """See whether this machine can lend, with the settings of ``home``; the exit code."""
    log.set_up(options.log_json)
    found = asyncio.run(_test_alone(home, Terminal(stderr=options.json)))
    if options.json:
        _say(encode_json(found).decode())
    return 0 if found.can_lend else 3


async def _test_alone(home: Home, console: Terminal) -> SelfTestResult:
    from desktop.agent.app.service import Service  # Loads the network, which the other words can do without.

    found, service = SelfTestResult(NOT_TESTED), Service(home, stays=True)
    told: set[str] = set()
    async for found in service.steps():
        for check in found.checks:
            if check.state in ("good", "warning", "bad") and check.name not in told:
                told.add(check.name)
                _tell(console, check)
    console.print("This computer can lend." if found.can_lend else "This computer cannot lend yet.")
    return found


def _tell(console: Terminal, check: SelfTestStep) -> None:
    console.print(f"{_MARKS[check.state]:4}  {check.name:11}  {printable(check.text)}", soft_wrap=True)


def _say(text: str) -> None:
    say(f"{text}")


def _switch(on: bool) -> Callable[[argparse.Namespace], int]:
    def act(options: argparse.Namespace) -> int:
        home = Home.at(options.home)
        try:
            view = asyncio.run(status.ask_lending(home.socket, LendingChange(on=on)))
        except NoAgentError:
            if not on or not home.settings().coordinator:
                raise
            home.switch.write_text("on\n")
            Autostart.of(home).start(wish=home.settings().at_login)
            _say("the agent was started; `cottage node status` says what it does")
            return 0
        _say(encode_json(view).decode() if options.json else ("lending is on" if on else "lending is off"))
        return 0

    return act
