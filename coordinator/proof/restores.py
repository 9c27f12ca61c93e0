"""What restores of a coordinator have left without records: named one by one, and never counted as checked.

A restore is the coordinator's word. So it excuses nothing of which the ledger shows that it came later, and whatever it excuses
is a remark that names payee and amount.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from coordinator.client.text import money
from coordinator.proof.case import OnLedger, ProofFinding, Published
from ledger.history import LedgerEvent

RESTORE = "restore"
# The clocks of ledger and coordinator are two, and what was sent before a disaster may be carried out after the restore.
GRACE_S = 600.0


def unknown(said: Published) -> Mapping[str, int]:
    """Payee -> what it had been paid before restores, and no known round accounts for."""
    sums: dict[str, int] = defaultdict(int)
    for restore in said.restores:
        for payout in restore.payouts:
            sums[payout.payee] += payout.amount
    return {payee: amount for payee, amount in sums.items() if amount}


def is_lost(event: LedgerEvent, said: Published) -> bool:
    """Whether a memo was written before a restore, so that what it is about may have been lost with the disk."""
    return any(event.time <= restore.time + GRACE_S for restore in said.restores)


def lost_rounds(chain: OnLedger, said: Published) -> set[tuple[int, int]]:
    """Epoch and number of rounds that are on the ledger alone since a restore."""
    here = {(one.epoch, one.round) for one in said.rounds}
    there = {
        (int(event.fields["epoch"]), int(event.fields["round"]))
        for event in chain.roots("commitments")
        if is_lost(event, said)
    }
    return there - here


def check(chain: OnLedger, said: Published) -> Iterator[ProofFinding]:
    """Say what cannot be checked any more; what a restore is said to have found paid was on the ledger by then."""
    if lost := lost_rounds(chain, said):
        many = f"{len(lost)} round{'' if len(lost) == 1 else 's'}"
        detail = f"records of {many} were lost before a restore, so they cannot be checked any more: {_named(lost)}"
        yield ProofFinding(RESTORE, "job", "note", detail, "memos, and the coordinator's word that it was restored")
    so_far: dict[str, int] = defaultdict(int)
    for restore in said.restores:
        by_then: dict[str, int] = defaultdict(int)
        for event in chain.events:
            if event.kind == "paid" and not event.author and event.time <= restore.time + GRACE_S:
                by_then[str(event.fields["account"])] += int(event.fields["amount"])
        for payout in restore.payouts:
            so_far[payout.payee] += payout.amount
            there = by_then[said.wallets[payout.payee]]
            if so_far[payout.payee] > there:
                claimed = money(so_far[payout.payee])
                detail = f"{claimed} are said to be paid before a restore, the ledger had paid {money(there)} by then"
                yield ProofFinding(RESTORE, payout.payee, "fail", detail, "paid events")
                return
    for payee, amount in sorted(unknown(said).items()):
        detail = f"{money(amount)} was paid before a restore from a backup: what for cannot be checked any more"
        yield ProofFinding(RESTORE, payee, "note", detail, "paid events, and the coordinator's word of a restore")


def unchecked(found: Sequence[ProofFinding]) -> list[ProofFinding]:
    """The findings that say what no check could look at since a restore."""
    return [finding for finding in found if (finding.check, finding.verdict) == (RESTORE, "note")]


def _named(rounds: set[tuple[int, int]]) -> str:
    """Rounds as people count them, runs of them as one."""
    runs: list[list[int]] = []
    for epoch, number in sorted(rounds):
        if runs and runs[-1][0] == epoch and runs[-1][2] == number - 1:
            runs[-1][2] = number
        else:
            runs.append([epoch, number, number])
    words = [
        (f"{first + 1}" if first == last else f"{first + 1} to {last + 1}") + (f" (epoch {epoch})" if epoch > 1 else "")
        for epoch, first, last in runs
    ]
    return ", ".join(words)
