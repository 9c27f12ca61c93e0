"""What whoever runs a coordinator sees and orders: ``cottage admin nodes``, ``drain``, ``ban``, ``jobs``, ``outbox`` ..."""

import argparse
from collections.abc import Awaitable, Callable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from common.console import Terminal
from coordinator.client.client import Client
from coordinator.client.commands.base import CliUsageError, show
from coordinator.client.looks import moment
from coordinator.client.show import STYLES
from coordinator.client.text import count, duration, money, seat_place, size
from protocol.rest.admin import AdminJob, AdminLease, AdminNode, AdminRow, AdminStorage
from protocol.rest.lending import InvitationView, LendersView


async def admin(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage admin``: one of its words."""
    return await _WORDS[options.action](client, options, out)


async def invite(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage invite``: make, list and withdraw invitations to lend."""
    if options.withdraw:
        gone = await client.withdraw_invitation(options.withdraw)
        what = f"{gone.node} may lend no more." if gone.node else "nobody can use it any more."
        show(out, options, gone, f"{gone.id} is withdrawn: {what}")
    elif options.list:
        found = await client.invitations()
        show(out, options, found, invitations_table(found))
    else:
        made = await client.invite(options.note, options.days)
        text = f"{made.page}\n{made.link}\nEither lets one computer in, until {moment(made.expires)}. They are not shown again."
        show(out, options, made, text)
    return 0


async def _lenders(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    found = await client.lenders()
    show(out, options, found, lenders_table(found))
    return 0


async def _nodes(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    found = await client.admin_nodes(options.search, options.state, options.limit)
    show(out, options, found, nodes_table(found))
    return 0


async def _node(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    found = await client.admin_node(options.node)
    show(out, options, found, node_table(found))
    return 0


async def _order(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    after = await client.order_node(options.node, options.action, options.reason)
    show(out, options, after, said(after))
    return 0


async def _jobs(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    if options.cancel is not None:
        if not options.reason:
            raise CliUsageError("--cancel needs --reason: the job's owner reads it")
        job = await client.cancel_any(options.cancel, options.reason)
        show(out, options, job, job.sentence)
        return 0
    found = await client.admin_jobs(options.state, options.limit)
    show(out, options, found, jobs_table(found))
    return 0


async def _outbox(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    found = await client.admin_outbox(options.state, options.limit)
    show(out, options, found, rows_table(found))
    return 0


async def _storage(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    found = await client.admin_storage(options.job_files, options.uploads)
    show(out, options, found, storage_table(found))
    return 0


_WORDS: Mapping[str, Callable[[Client, argparse.Namespace, Terminal], Awaitable[int]]] = {
    "nodes": _nodes,
    "node": _node,
    **dict.fromkeys(("drain", "undrain", "ban", "unban"), _order),
    "jobs": _jobs,
    "outbox": _outbox,
    "storage": _storage,
    "lenders": _lenders,
}


def state_of(node: AdminNode) -> str:
    """A node's state in a few words, the gravest first."""
    here = "offline" if not node.online else "at work" if node.busy else "free"
    return ", ".join(
        [*["banned"] * node.banned, *["may not lend"] * bool(node.why_not), *["draining"] * node.draining, here]
    )


def said(node: AdminNode) -> str:
    """What has become of a node by an order, in a sentence."""
    if node.banned:
        return f"{node.node} is banned {node.reason}"
    if not node.draining:
        return f"{node.node} may take seats."
    seats = sum(lease.stage is not None for lease in node.leases)
    if not seats:
        return f"{node.node} drains: it holds no seat and gets none."
    held = "the seat that it has" if seats == 1 else f"the {seats} seats that it has"
    return f"{node.node} drains: it gets no new seat, and {held} will go to others as these come."


def nodes_table(nodes: Sequence[AdminNode]) -> RenderableType:
    """One row a node."""
    if not nodes:
        return Text("No such nodes.")
    table = Table(box=None, pad_edge=False)
    table.add_column("node", no_wrap=True, min_width=44)  # Whole, to be copied into the next command.
    for title in ("name", "state", "jobs", "last here", "reason"):
        table.add_column(title)
    for one in nodes:
        jobs = ", ".join(sorted({lease.job[:8] for lease in one.leases}))
        table.add_row(one.node, Text(one.name), state_of(one), jobs, moment(one.seen), Text(one.reason))
    return table


def node_table(node: AdminNode) -> RenderableType:
    """One node as a list of figures."""
    table = Table(show_header=False, box=None, pad_edge=False)
    rows = [
        ("node", node.node),
        ("name", node.name or "unnamed"),
        ("device", node.device),
        ("state", state_of(node)),
        *([("why", node.reason or node.why_not)] if node.reason or node.why_not else []),
        ("pays to", node.payout),
        ("stake", money(node.stake)),
        ("earned", money(node.earned)),
        ("verified", f"{node.rounds:,} rounds since its last fault, {node.faults:,} faults"),
        ("here since", moment(node.since)),
        ("last here", f"{moment(node.seen)}{f', from {node.address}' if node.address else ''}"),
        *[("holds", _held(lease)) for lease in node.leases],
    ]
    for name, value in rows:
        table.add_row(Text(name, style="dim"), Text(value))
    return table


def _held(lease: AdminLease) -> str:
    what = "no seat" if lease.stage is None else seat_place(lease.stage, lease.replica or 0, lease.serves)
    return f"{what} in job {lease.job}, {lease.state} since {moment(lease.granted)}"


def jobs_table(jobs: Sequence[AdminJob]) -> RenderableType:
    """One job a row, and below it what it waits for."""
    if not jobs:
        return Text("No such jobs.")
    table = Table(box=None, pad_edge=False)
    table.add_column("job", no_wrap=True, min_width=32)
    for title in ("name", "of", "state", "nodes", "rounds", "where it stands"):
        table.add_column(title)
    for job in jobs:
        rounds = f"{job.rounds_done} of {job.rounds_total}" if job.rounds_total else "serves"
        state = Text(job.state, style=STYLES.get(job.state, ""))
        owner = Text(job.owner or job.account[:8])
        table.add_row(job.id, Text(job.name), owner, state, str(job.nodes), rounds, Text(job.sentence))
    return table


def rows_table(rows: Sequence[AdminRow]) -> RenderableType:
    """One row a transaction that is not confirmed."""
    if not rows:
        return Text("Nothing is under way, and nothing was given up.")
    table = Table(box=None, pad_edge=False)
    for title in ("id", "kind", "state", "age", "tries", "amount", "job", "detail"):
        table.add_column(title, no_wrap=title in ("job", "age"))
    for one in rows:
        state = Text(one.state, style="red" if one.state == "failed" else "")
        paid = money(one.amount) if one.amount else ""
        figures = (str(one.id), one.kind, state, duration(one.age), str(one.attempts), paid)
        table.add_row(*figures, one.job, Text(one.detail))
    return table


def storage_table(found: AdminStorage) -> RenderableType:
    """Room for files, as a list."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in (
        ("files lie", "on the coordinator's disk" if found.place == "disk" else f"in {found.place}"),
        ("there are", f"{count(found.files)} files, {size(found.size)}, counted {moment(found.counted)}"),
        (
            "goes next",
            f"{count(found.removable)} of them, {size(found.removable_size)}, to which nothing refers any more",
        ),
        (
            "files stay",
            f"{found.job_files_days} days after a paid job's end, uploads {found.uploads_days} days, "
            "a finished model as long as its job",
        ),
        ("room", f"{size(found.free)} of {size(found.total)} are free, of which {size(found.kept_free)} are kept"),
        ("database", "elsewhere" if found.database is None else size(found.database)),
    ):
        table.add_row(Text(name, style="dim"), Text(value))
    told: list[RenderableType] = [table]
    if found.largest:
        removed = Table(title="goes next, the largest", title_justify="left", box=None, pad_edge=False)
        removed.add_column("size", justify="right")
        removed.add_column("SHA-256", no_wrap=True)
        for one in found.largest:
            removed.add_row(size(one.size), one.sha256)
        told.append(removed)
    if found.free < found.kept_free:
        told.append(Text("There is too little room: uploads are refused.", style="red"))
    return Group(*told)


def lenders_table(found: LendersView) -> RenderableType:
    """Who may lend, as a list."""
    table = Table(show_header=False, box=None, pad_edge=False)
    rows = [
        ("who may lend", str(found.rule)),
        ("stake", money(found.min_stake) if found.min_stake else "none is needed"),
    ]
    if found.rule != "everybody":
        rows += [("nodes listed", count(found.nodes)), ("owners listed", ", ".join(found.owners) or "none")]
    if found.unknown:
        rows.append(("not known", f"{', '.join(found.unknown)}: no account of such a name is good"))
    for name, value in rows:
        table.add_row(Text(name, style="dim"), Text(value))
    return Group(table, Text(f"The list cannot be used: {found.problem}", style="red")) if found.problem else table


def invitations_table(found: Sequence[InvitationView]) -> RenderableType:
    """One invitation a row."""
    if not found:
        return Text("No invitations.")
    table = Table(box=None, pad_edge=False)
    for title in ("id", "for", "by", "state", "until", "node"):
        table.add_column(title, no_wrap=title in ("id", "node"))
    for one in found:
        until = moment(one.expires) if one.state == "open" else ""
        table.add_row(one.id, Text(one.note), Text(one.by), one.state, until, one.node or "")
    return table
