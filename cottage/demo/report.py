"""What is said at the end: checks anyone could repeat, one JSON document, and a table for people."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from rich.table import Table
from rich.text import Text

from common.console import Terminal
from coordinator.client.text import amount, short
from coordinator.client.text import money as money_text
from cottage.demo.screen import place, wire_text
from protocol.rest import api

LOSS_TOLERANCE = 2e-3  # int8 never touches validation; the rest is float32 summed in another order.


class Money(NamedTuple):
    """The job's escrow as the ledger has it, in millionths."""

    escrow: int
    paid: int
    refunded: int
    slashed: int


class Losses(NamedTuple):
    """Held-out losses, nats a token."""

    before: float | None
    after: float | None
    single_process: float | None
    model_folder: float | None

    def recovered(self) -> float | None:
        """The part of the single process's fall that the network reached."""
        if (
            self.before is None
            or self.after is None
            or self.single_process is None
            or self.before == self.single_process
        ):
            return None
        return (self.before - self.after) / (self.before - self.single_process)


class DemoOutcome(msgspec.Struct, frozen=True):
    """Everything the report is made of. ``auditors``: the operator's machines, which look at the others' work."""

    job: api.JobView
    nodes: Sequence[api.JobNode]
    commits: Sequence[api.CommitView]
    audits: Sequence[api.AuditView]
    receipts: Sequence[api.Receipt]
    money: Money
    losses: Losses
    seconds: float
    model_dir: str
    sample: str
    web: str
    liar: str | None
    faults: tuple[str, ...]
    auditors: frozenset[str] = frozenset()

    @property
    def looks(self) -> int:
        """Audits in which a machine of the operator had the last word."""
        return sum(audit.auditor in self.auditors for audit in self.audits if audit.state in ("passed", "failed"))


def checks(outcome: DemoOutcome) -> dict[str, bool]:
    """Name -> whether it held. The demo's exit status is 0 only if all did."""
    money, losses, job = outcome.money, outcome.losses, outcome.job
    whose = job.agreement
    paid_rounds = {commit.round for commit in outcome.commits if commit.amount > 0}
    drawn = {audit.round for audit in outcome.audits if audit.state == "passed"}
    drawable = {commit.round for commit in outcome.commits if commit.drawable}
    found = {
        "the job is settled": job.state == "settled",
        "escrow = paid + refunded": money.escrow == money.paid + money.refunded and money.escrow > 0,
        "nodes were paid what was verified": sum(node.paid for node in outcome.nodes) == money.paid,
        "every paid round was audited or could have been drawn": paid_rounds <= drawn | drawable,
        "every settlement is confirmed on the ledger": all(r.state == "confirmed" for r in outcome.receipts),
        "all who measured the held-out loss came to the same": whose is not None and whose.same == whose.of,
        "the operator's own machine looked at the work": outcome.looks > 0,
        "the model folder's loss is the run's last validation loss": _close(losses.model_folder, losses.after),
    }
    if (recovered := losses.recovered()) is not None:
        found["held-out loss fell by more than half of the single process's fall"] = recovered > 0.5
    if outcome.liar is None:
        failed = [audit for audit in outcome.audits if audit.state == "failed"]
        if outcome.faults:  # A node that was killed cannot open the step that was drawn from it.
            failed = [audit for audit in failed if audit.blame != "gone"]
        found["no audit failed"] = not failed
        found["nobody was slashed"] = money.slashed == 0
    else:
        caught = [node for node in outcome.nodes if node.node == outcome.liar]
        found["the liar was caught"] = any(a.state == "failed" and a.node == outcome.liar for a in outcome.audits)
        found["the liar was not paid"] = all(node.paid == 0 for node in caught)
        # The word of the operator's auditor alone costs pay and no stake: docs/explanation/trust.md.
        blames = {a.blame for a in outcome.audits if a.state == "failed" and a.node == outcome.liar}
        found["the liar lost stake, or nobody but the operator found it out"] = money.slashed > 0 or blames == {
            "unconfirmed"
        }
    return found


def _close(left: float | None, right: float | None) -> bool:
    return left is not None and right is not None and abs(left - right) <= LOSS_TOLERANCE


def document(outcome: DemoOutcome) -> dict[str, Any]:
    """The ``--json`` document; docs/reference/demo.md explains its keys."""
    job = outcome.job
    plain = msgspec.to_builtins
    return {
        "state": job.state,
        "job": job.id,
        "loss_before": outcome.losses.before,
        "loss_after": outcome.losses.after,
        "loss_single_process": outcome.losses.single_process,
        "loss_model_folder": outcome.losses.model_folder,
        "recovered": outcome.losses.recovered(),
        "rounds": job.rounds_done,
        "tokens": job.tokens_done,
        "seconds": round(outcome.seconds, 1),
        "bytes_sent": job.bytes_sent,
        "bytes_naive": job.bytes_naive,
        "bytes_artifacts": job.bytes_artifacts,
        **outcome.money._asdict(),
        "looks": outcome.looks,
        "audits": plain(list(outcome.audits)),
        "commitments": plain(list(outcome.commits)),
        "nodes": plain(list(outcome.nodes)),
        "receipts": plain(list(outcome.receipts)),
        "model_dir": outcome.model_dir,
        "sample": outcome.sample,
        "faults": list(outcome.faults),
        "checks": checks(outcome),
        "web": outcome.web,
    }


def show(outcome: DemoOutcome, console: Terminal) -> None:
    """The table for people."""
    console.print(_node_table(outcome))
    console.print(_receipt_table(outcome))
    losses, job, money = outcome.losses, outcome.job, outcome.money
    lines = [
        f"Held-out loss {_number(losses.before)} -> {_number(losses.after)} in {outcome.seconds:.0f} s, "
        f"{job.tokens_done:,} tokens, {job.rounds_done} rounds."
        + (
            ""
            if losses.single_process is None
            else f" One process on the same samples: {_number(losses.single_process)}."
        ),
        f"Between nodes: {wire_text(job.bytes_sent, job.bytes_naive)}.",
        f"The operator's own machine looked at {outcome.looks} of {len(outcome.audits)} drawn steps.",
        f"Escrow {money_text(money.escrow)} = paid {money_text(money.paid)} + refunded {money_text(money.refunded)}.",
        *outcome.faults,
    ]
    for line in lines:
        console.print(line)
    for name, held in checks(outcome).items():
        console.print(Text(f"  {'✓' if held else '✗'} {name}", style="green" if held else "bold red"))
    console.print(Text("\nThe model writes:", style="bold"))
    console.print(Text(outcome.sample, style="cyan"))
    console.print(Text.assemble("\n", ("Model folder:", "bold"), f" {outcome.model_dir}"), soft_wrap=True)


def _node_table(outcome: DemoOutcome) -> Table:
    table = Table(title="What each node did", title_justify="left")
    for column in ("node", "address", "place", "rounds", "tokens", "10^9 operations", "audits", "verified", "paid"):
        table.add_column(column, justify="left" if column in ("node", "address", "place") else "right")
    for node in outcome.nodes:
        if node.node in outcome.auditors:
            continue
        audits = f"{node.audits_passed} ok" + (f", {node.audits_failed} failed" if node.audits_failed else "")
        table.add_row(
            node.name,
            short(node.node),
            place(node) if node.state not in ("lost", "rejected") else f"{place(node)} ({node.state})",
            str(node.rounds),
            f"{node.tokens:,}",
            f"{node.operations / 1e9:,.0f}",
            audits,
            amount(node.verified),
            amount(node.paid),
        )
    return table


def _receipt_table(outcome: DemoOutcome) -> Table:
    table = Table(title="On the ledger", title_justify="left")
    table.add_column("what")
    table.add_column("amount", justify="right")
    table.add_column("signature", overflow="fold")
    table.add_column("state")
    for receipt in outcome.receipts:
        if receipt.kind != "event":
            table.add_row(receipt.kind, amount(receipt.amount), receipt.signature, receipt.state)
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
