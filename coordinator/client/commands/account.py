"""Who asks, what was done in that name, and the books: ``cottage login``, ``keys``, ``notices``, ``ledger`` ..."""

import argparse
import getpass

from common.console import Terminal
from common.terminal import given_line, somebody_answers
from coordinator.client.client import Client
from coordinator.client.commands.base import EXIT_REFUSED, CliUsageError, show
from coordinator.client.login import remember
from coordinator.client.looks import audits_table, entries_table, notices_table, totals_table, trail_table
from coordinator.client.show import keys_table


def ask_key(options: argparse.Namespace, out: Terminal) -> str:
    """The key that is given with the command, or by whoever sits there."""
    if options.token:
        return str(options.token)
    if not somebody_answers():
        return given_line().strip()
    out.print(f"Make a key at {options.server}/account, then paste it here.", soft_wrap=True)
    return getpass.getpass("API key: ").strip()


async def login(client: Client, token: str | None, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage login``: keep a key that works."""
    if not token:
        raise CliUsageError("no key was given: paste one, or name it with --token")
    who = await client.account()  # Only a key that works is kept.
    path = remember(options.server, token)
    show(out, options, who, f"Signed in to {options.server} as {who.name or who.id}. The key is in {path}.")
    return 0


def forget(options: argparse.Namespace, out: Terminal) -> int:
    """``cottage logout``: forget a key."""
    path = remember(options.server, None)
    show(out, options, {"file": str(path)}, f"The key for {options.server} is no longer in {path}.")
    return 0


async def keys(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage keys``: list, make and revoke API keys."""
    if options.revoke:
        await client.revoke_key(options.revoke)
        show(out, options, {"revoked": options.revoke}, f"{options.revoke} is revoked.")
    elif options.new:
        made = await client.new_key(options.new, options.scope, options.days)
        show(out, options, made, f"{made.text}\nThis is the only time that it is shown.")
    else:
        found = await client.keys()
        show(out, options, found, keys_table(found))
    return 0


async def trail(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage trail``: what was done with the account."""
    trail = await client.trail(options.limit, options.everybody)
    show(out, options, trail, trail_table(trail))
    return 0


async def notices(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage notices``: where one is told what."""
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
    show(out, options, {"notices": now, "deliveries": sent}, notices_table(now, sent))
    return 0


async def ledger(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage ledger entries``, ``audits`` and ``totals``."""
    match options.list:
        case "totals":
            totals = await client.ledger_totals()
            show(out, options, totals, totals_table(totals))
            return EXIT_REFUSED if totals.difference else 0
        case "audits":
            audits = await client.ledger_audits(options.state, options.job, options.limit)
            show(out, options, audits, audits_table(audits))
        case _:
            entries = await client.ledger_entries(options.kind or (), options.job, options.limit)
            show(out, options, entries, entries_table(entries))
    return 0
