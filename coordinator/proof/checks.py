"""The checks themselves: pure, one finding after another, cheapest and most fundamental first."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

import msgspec

from coordinator.client.text import money
from coordinator.domain import pricing
from coordinator.proof import disputes, draws, privacy, restores
from coordinator.proof.case import Case, OnLedger, ProofFinding, Published
from ledger.history import LedgerEvent
from protocol.evidence import (
    ACROSS,
    AuditLeaf,
    CommitmentLeaf,
    DrawnStep,
    RootOf,
    RoundEvidence,
    ShareLeaf,
    leaf_bytes,
    leaves_of,
    root_of,
)
from protocol.job.document_digest import document_digest
from protocol.merkle import MerkleTree, verify_proof

Seat = tuple[int, int]
WHATS: tuple[RootOf, ...] = ("commitments", "outcome")


def findings(case: Case) -> Iterator[ProofFinding]:
    """Everything that can be checked of a case."""
    yield from _money(case.ledger)
    if case.published is None:
        yield _note(
            "published", "job", "only the ledger was asked: draw, proofs and shares were not checked", "nothing"
        )
        return
    yield from _terms(case.ledger, case.published)
    yield from _complete(case.ledger, case.published)
    for found in sorted(case.published.rounds, key=lambda one: (one.round, one.epoch)):
        for what in WHATS:
            yield from root(case.ledger, found, what)
        if case.published.rate is None and case.published.spec.federated is None:
            yield from draws.check(case.ledger, found, case.published.early)
            yield from _order(case.ledger, found)
        yield from _shares(found, case.published)
        yield from across(found)
    if case.published.spec.federated is not None:
        yield from privacy.check(case.published)
    yield from disputes.check(case.ledger, case.published)
    yield from _pots(case.published) if case.published.rate is None else _periods(case.published, case.published.rate)
    yield from _payouts(case.ledger, case.published)
    yield from restores.check(case.ledger, case.published)


# --- the ledger alone ---------------------------------------------------------------------------------------------------


def _money(chain: OnLedger) -> Iterator[ProofFinding]:
    """What came in is what went out and what is there; and no event is missing from between."""
    state = chain.escrow
    if any(event.kind == "truncated" for event in chain.events):
        yield _fail("history", "escrow", "a node cut logs short: ask another endpoint", chain.url)
    used = f"vault balance and {len(chain.events)} events of escrow {state.address}"
    came, paid, back = chain.total("deposited"), chain.total("paid"), chain.total("refunded")
    sums = f"in {money(came)} = paid {money(paid)} + refunded {money(back)} + held {money(state.balance)}"
    yield _judge("sums", "escrow", came == paid + back + state.balance, sums, used)
    for name, events, account in (("paid", paid, int(state.paid)), ("refunded", back, int(state.refunded))):
        detail = f"events say {money(events)}, the account {money(account)}"
        yield _judge(f"{name} in full", "escrow", events == account, detail, f"events and account {state.address}")
    yield from _cumulative(chain)


def _cumulative(chain: OnLedger) -> Iterator[ProofFinding]:
    """Each payee's payouts, one after another, make the cumulative amounts that the program kept."""
    reached: dict[str, int] = defaultdict(int)
    payments: Counter[str] = Counter()
    for event in chain.events:
        if event.kind == "paid" and not event.author:
            account = str(event.fields["account"])
            reached[account] += int(event.fields["amount"])
            payments[account] += 1
            if reached[account] != int(event.fields["cumulative"]):
                detail = f"payouts make {money(reached[account])}, the program says {money(event.fields['cumulative'])}"
                yield _fail("every payout", account, detail, f"transaction {event.signature}")
                return
    same = {key: value for key, value in reached.items() if value} == {
        k: int(v) for k, v in chain.escrow.paid_to.items() if v
    }
    detail = f"{sum(payments.values())} payouts to {len(reached)} accounts, as the program counted them"
    yield _judge("every payout", "escrow", same, detail, "paid events and the escrow's table of payees")


# --- what was published beside it -----------------------------------------------------------------------------------------


def _terms(chain: OnLedger, said: Published) -> Iterator[ProofFinding]:
    """The job document is the one that was written on the ledger when the job was made, but for what was added to its budget."""
    created = [event for event in chain.events if event.kind == "created" and event.author == chain.coordinator]
    if not created:
        yield _fail("document", "job", "the ledger has no memo of the job's creation", chain.escrow.address)
        return
    now, first = said.spec.budget, int(created[0].fields["budget"])
    document = document_digest(msgspec.structs.replace(said.spec, budget=min(now, first)))
    same = created[0].fields["document"] == document
    raised = f" with its first budget of {money(first)}: it is {money(now)} by now" if now > first else ""
    detail = f"SHA-256 {document[:16]}… of the job document{raised}" + ("" if same else ", and the ledger has another")
    yield _judge("document", "job", same, detail, f"memo {created[0].signature}")
    owner = said.submitter == chain.escrow.submitter
    yield _judge("submitter", "job", owner, f"wallet {said.submitter}", f"escrow {chain.escrow.address}")


def _complete(chain: OnLedger, said: Published) -> Iterator[ProofFinding]:
    """Every round on the ledger is published, every published round is on the ledger, and none is left out between.

    Rounds that were lost before a restore are on the ledger alone; ``restores.check`` says so.
    """
    lost = restores.lost_rounds(chain, said)
    here = {(one.epoch, one.round) for one in said.rounds}
    there = {_place(event) for event in chain.roots("commitments")}
    late = {
        (one.epoch, one.round) for one in said.rounds if any(memo.state in ("queued", "sent") for memo in one.memos)
    }
    for what, missing in (("not published", there - here - lost), ("not on the ledger", here - there - late)):
        if missing:
            names = ", ".join(
                f"round {number + 1} of epoch {epoch}" for epoch, number in sorted(missing, key=lambda p: p[::-1])
            )
            yield _fail("every round", "job", f"{what}: {names}", f"memos of {chain.coordinator}")
            return
    numbers = {number for _, number in here | lost}
    gaps = sorted(set(range(max(numbers, default=-1) + 1)) - numbers)
    detail = f"{len(here)} rounds, each with its memo" if not gaps else f"round {gaps[0] + 1} is missing between others"
    yield _judge("every round", "job", not gaps, detail, f"memos of {chain.coordinator}")


def root(chain: OnLedger, found: RoundEvidence, what: RootOf) -> Iterator[ProofFinding]:
    """The published records are those whose Merkle root is on the ledger."""
    if what == "outcome" and not found.concluded:
        yield _note(f"{what} root", _name(found), "its audits are not over yet", "nothing")
        return
    memos = [event for event in chain.roots(what) if _place(event) == (found.epoch, found.round)]
    leaves = leaves_of(found, what)
    made = root_of(leaves)
    if not memos:
        waiting = any(memo.what == what and memo.state in ("queued", "sent") for memo in found.memos)
        make = _note if waiting else _fail
        yield make(f"{what} root", _name(found), "no memo on the ledger", f"memos of {chain.coordinator}")
        return
    memo, roots = memos[-1], {str(event.fields["root"]) for event in memos}
    same = memo.fields["root"] == made and memo.fields["leaves"] == len(leaves)
    detail = f"root {made[:16]}… over {len(leaves)} records" + (
        "" if same else f", the ledger has {memo.fields['root'][:16]}…"
    )
    yield _judge(f"{what} root", _name(found), same, detail, f"memo {memo.signature} in slot {memo.slot}")
    if what == "commitments" and len(roots) > 1:
        yield _fail(
            f"{what} root", _name(found), "the coordinator wrote two different roots", f"memos of {chain.coordinator}"
        )
    elif len(roots) > 1:
        yield _note(f"{what} root", _name(found), f"corrected {len(roots) - 1} times: shares were taken back", "memos")
    tree = MerkleTree(map(leaf_bytes, leaves))
    bound = bytes.fromhex(str(memo.fields["root"]))
    proven = sum(verify_proof(bound, leaf_bytes(leaf), tree.proof(place)) for place, leaf in enumerate(leaves))
    detail = f"{proven} of {len(leaves)} records proven to be under it"
    yield _judge(f"{what} proofs", _name(found), proven == len(leaves), detail, f"memo {memo.signature}")


def _order(chain: OnLedger, found: RoundEvidence) -> Iterator[ProofFinding]:
    """The commitments were on the ledger before the block that decided the draw, and the outcome came after it."""
    first = {
        what: next((e for e in chain.roots(what) if _place(e) == (found.epoch, found.round)), None) for what in WHATS
    }
    before, after = first["commitments"], first["outcome"]
    if before is None or found.draw is None:
        return
    used = f"memo {before.signature} and block {found.draw.block}"
    ordered = before.slot == found.draw.after < found.draw.slot and (after is None or after.slot >= found.draw.slot)
    detail = (
        f"commitments in slot {before.slot}, drawn by the first block after slot {found.draw.after}, {found.draw.slot}"
    )
    yield _judge("order", _name(found), ordered, detail + (f", outcome in slot {after.slot}" if after else ""), used)


def _shares(found: RoundEvidence, said: Published) -> Iterator[ProofFinding]:
    """Each verified share is the member's part of the pot by operations; whatever is rejected or void is worth nothing."""
    due = _due(found, everybody=said.rate is not None)
    owners = {_seat(one): (one.node, one.payout) for one in found.commitments}
    for share in found.shares:
        expected = due.get(_seat(share), 0) if share.state in ("pending", "verified") else 0
        if share.amount != expected or owners.get(_seat(share)) != (share.node, share.payout):
            detail = f"{share.state} {money(share.amount)}, its part of the pot is {money(expected)}"
            yield _fail("shares", f"{_name(found)}, node {share.node}", detail, "commitments and pot")
            return
    out = _failed_before_the_end(found)
    lied = [share.node for share in found.shares if _seat(share) in out and share.state in ("pending", "verified")]
    if lied:
        yield _fail(
            "shares", f"{_name(found)}, node {lied[0]}", "it failed its audit and still has its share", "audits"
        )
        return
    total = sum(share.amount for share in found.shares)
    detail = f"{money(total)} of {money(found.terms.pot)} to {sum(1 for s in found.shares if s.amount)} members, by operations"
    yield _judge("shares", _name(found), len(found.shares) == len(found.commitments), detail, "commitments and pot")


def across(found: RoundEvidence) -> Iterator[ProofFinding]:
    """Says so where a step was audited by other environment classes only: then nothing was proven either way."""
    for one in found.audits:
        if one.verdicts and all(verdict.verdict.endswith(ACROSS) for verdict in one.verdicts):
            said = ", ".join(verdict.verdict for verdict in one.verdicts)
            detail = (
                f"nobody of node {one.node}'s environment class looked: {said}, with a tolerance; that proves nothing"
            )
            yield _note("audit", f"{_name(found)}, step {one.step}", detail + " and costs nobody a stake", "audits")


def _failed_before_the_end(found: RoundEvidence) -> set[Seat]:
    """Whose drawn step failed, so that nothing can have been paid for it. What was asked for later may find a share paid: the
    stake answers for that."""
    drawn = set() if found.draw is None else {(*_seat(step), step.step) for step in found.draw.steps}
    passed = {(*_seat(one), one.step) for one in found.audits if one.state == "passed"}
    failed = {(*_seat(one), one.step) for one in found.audits if one.state == "failed"}
    return {(stage, replica) for stage, replica, step in (failed & drawn) - passed}


def _due(found: RoundEvidence, everybody: bool) -> dict[Seat, int]:
    """What each member gets whose work is verified; those who did not count get nothing, but ``everybody`` does at answering."""
    counted = [one for one in found.commitments if everybody or one.rate is not None]
    weights = {f"{one.replica}:{one.stage}": one.operations for one in counted}
    split = pricing.shares(found.terms.pot, weights)
    return {_seat(one): split.get(f"{one.replica}:{one.stage}", 0) for one in found.commitments}


def _pots(said: Published) -> Iterator[ProofFinding]:
    """The rounds' pots are what their tokens are worth at the job's price."""
    ordered = sorted(said.rounds, key=lambda one: (one.round, one.epoch))
    again = len({one.round for one in ordered}) < len(ordered)
    # Where rounds are done again, or what they were paid is all that is known, pots spread what is left of the price.
    if not again and not restores.unknown(said):
        done = 0
        for one in ordered:
            worth = pricing.pot(said.price, done, done + one.terms.tokens, said.tokens_total)
            done += one.terms.tokens
            if one.terms.pot != worth:
                detail = f"the pot is {money(one.terms.pot)}, its {one.terms.tokens:,} tokens are worth {money(worth)}"
                yield _fail("price", _name(one), detail, f"the price {money(said.price)}")
                return
    yield _within(said, "rounds", "pots, tokens and the price of the quote", "price")


def _within(said: Published, parts: str, used: str, limit: str) -> ProofFinding:
    """All pots together stay within the price; ``parts``, ``limit``: what this kind of job calls its rounds and its price.

    Beside what was paid before a restore only shares count that are or may be paid: what was rejected of a pot was free again
    for rounds after it.
    """
    unknown = sum(restores.unknown(said).values())
    what, total, more = "pots", sum(one.terms.pot for one in said.rounds), ""
    if unknown:
        payable = [share for one in said.rounds for share in one.shares if share.state in ("pending", "verified")]
        what, total = "shares", sum(share.amount for share in payable) + unknown
        more = ", with what was paid before a restore,"
    detail = f"{what} of {len(said.rounds)} {parts} make {money(total)}{more} of the {limit} {money(said.price)}"
    return _judge("price", "job", total <= said.price, detail, used)


def _periods(said: Published, rate: int) -> Iterator[ProofFinding]:
    """A deployment's pots are at most what the operations of its nodes are worth, and together at most its price."""
    for one in said.rounds:
        worth = pricing.price(sum(commit.operations for commit in one.commitments), rate, 0)
        if one.terms.pot > worth:
            detail = f"the pot is {money(one.terms.pot)}, its operations are worth {money(worth)}"
            yield _fail("price", _name(one), detail, f"{money(rate)} for 10^15 operations")
            return
    yield _within(said, "periods", f"operations at {money(rate)} for 10^15", "budget")
    yield _note("answers", "job", "the coordinator drew some again, which the ledger does not show", "nothing")


def _payouts(chain: OnLedger, said: Published) -> Iterator[ProofFinding]:
    """Everybody was paid what its verified shares sum to: no more at any time, no less in the end, and nobody else.

    To them comes what had been paid before a restore, of which ``restores.check`` says that nobody can know what it was for.
    """
    unknown = restores.unknown(said)
    due: defaultdict[str, int] = defaultdict(int, unknown)
    for one in said.rounds:
        for share in one.shares:
            if share.state == "verified":
                due[share.payout] += share.amount
    paid = {account: int(amount) for account, amount in chain.escrow.paid_to.items()}
    fits: Callable[[int, int], bool] = (lambda got, owed: got == owed) if said.over else (lambda got, owed: got <= owed)
    for payee, owed in sorted(due.items()):
        got = paid.pop(said.wallets[payee], 0)
        if not fits(got, owed):
            before = f" and {money(unknown[payee])} before a restore" if payee in unknown else ""
            detail = f"paid {money(got)}, verified {money(owed - unknown.get(payee, 0))}{before}"
            yield _fail("payouts", payee, detail, "paid events and shares")
            return
    strangers = {account: amount for account, amount in paid.items() if amount}
    if strangers:
        account, amount = next(iter(sorted(strangers.items())))
        yield _fail(
            "payouts", account, f"{money(amount)} went to an account that has no share", "paid events and shares"
        )
        return
    known = sum(due.values()) - sum(unknown.values())
    detail = f"{len(due)} payees got {money(int(chain.escrow.paid))} for {money(known)} of verified shares"
    detail += f" and {money(sum(unknown.values()))} before a restore" if unknown else ""
    yield _judge("payouts", "job", True, detail, "the escrow's table of payees and the shares")
    if said.over:
        rest = int(chain.escrow.balance)
        yield _judge("refund", "job", rest == 0, f"{money(rest)} left in an escrow that is over", chain.escrow.address)


# --- words --------------------------------------------------------------------------------------------------------------


def _place(event: LedgerEvent) -> tuple[int, int]:
    return int(event.fields["epoch"]), int(event.fields["round"])


def _seat(one: CommitmentLeaf | AuditLeaf | ShareLeaf | DrawnStep) -> Seat:
    return one.stage, one.replica


def _name(found: RoundEvidence) -> str:
    """A round as people count it, from 1."""
    return f"round {found.round + 1}" + (f" (epoch {found.epoch})" if found.epoch > 1 else "")


def _judge(check: str, subject: str, holds: bool, detail: str, used: str) -> ProofFinding:
    return ProofFinding(check, subject, "pass" if holds else "fail", detail, used)


def _fail(check: str, subject: str, detail: str, used: str) -> ProofFinding:
    return ProofFinding(check, subject, "fail", detail, used)


def _note(check: str, subject: str, detail: str, used: str) -> ProofFinding:
    return ProofFinding(check, subject, "note", detail, used)


def failed(found: Sequence[ProofFinding]) -> list[ProofFinding]:
    """The untruths among findings."""
    return [finding for finding in found if finding.verdict == "fail"]
