"""Why a job stands as it does with its lender's pay, in words."""

from collections.abc import Mapping

from desktop.answers import PayReason
from ledger.money import show
from protocol.pay_reasons import SHARES

_OTHERS: dict[str, str] = {
    "": "",
    "failed": "it failed on this computer",
    "unheard": "the coordinator is not connected: this is what it said last",
    "nothing told": "its coordinator has not said yet what became of it",
    "spare": "this computer stood by, without a part of the model: that is not paid",
    "no round yet": "no round or period with this computer has ended yet",
    "no round: cancelled": "its submitter cancelled the job before a round or period with this computer had ended",
    "no round: failed": "the job failed before a round or period with this computer had ended",
    "no round: stopped": "the job ended before a round or period with this computer had ended",
    "no round: paused": "the job is paused, and no round or period with this computer has ended yet",
    "no round: left": "this computer left before a round or period with it had ended",
    "no round: expired": "this computer was not heard of any more before a round or period with it had ended",
    "no round: stalled": "this computer kept the others waiting for too long, before a round or period with it had ended",
    "no round: replaced": "another computer took its place before a round or period with it had ended",
    "no round: rejected": "this computer was sent away before a round or period with it had ended",
}


_WORDS: Mapping[str, str] = _OTHERS | {str(share): words for share, words in SHARES.items()}


def said(reason: PayReason) -> str:
    """One reason as a sentence: how many shares, of rounds or of periods, how much, and why."""
    words = _WORDS.get(reason.why, reason.why)  # A newer agent may know others.
    shares = f"{reason.shares} share{'' if reason.shares == 1 else 's'}" if reason.shares else ""
    amount = show(reason.amount) if reason.amount else ""
    head = ", ".join(filter(None, (shares, amount)))
    whole = f"{head}: {words}" if head else words
    return f"{whole}: {reason.detail}" if reason.detail else whole
