"""Earned tokens leave a wallet that holds no SOL: the coordinator pays fee and rent, and takes them out of the amount.

    owner                                   coordinator
      WithdrawalRequest           ->          what it costs now, and the transaction, unsigned
                                  <-        WithdrawalAnswer
      SignedWithdrawal            ->          compared with what was offered, signed by both, sent, followed
                                  <-        SentWithdrawal

Amounts are integers, in millionths of the token. A refusal is an answer like any other, so that a window can say it in its own
language; ``text`` says it in English, with the way out.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from common.untrusted_text import Untrusted, View
from protocol.ids import Count, NodeAddress
from protocol.node import LedgerInfo

MAX_WIRE = 1232  # Bytes of a transaction.
Wire = Annotated[bytes, Meta(max_length=MAX_WIRE)]

WithdrawalReason = Literal[
    "not offered",
    "no rate",
    "stranger",
    "own wallet",
    "no wallet",
    "too little",
    "holds less",
    "under way",
    "your day",
    "everybody's day",
    "too often",
    "no sol",
    "changed",
    "altered",
    "expired",
    "ledger away",
    "failed",
]
"""Why a withdrawal is refused.

``not offered``: the operator has switched it off; ``no rate``: it has not said what a SOL is worth; ``stranger``: nothing was
earned here by this wallet; ``own wallet``, ``no wallet``: the target is the owner's or no wallet; ``too little``: less than
``amount`` would have to leave; ``holds less``: the wallet has ``amount``; ``under way``: the owner's last one is not decided;
``your day``, ``everybody's day``: what is paid within a day is used up; ``too often``: of this address; ``no sol``: the
coordinator's own wallet is empty; ``changed``: it costs something else now; ``altered``: what was signed is something else;
``expired``: it was drawn up too long ago; ``failed``: the ledger would refuse it.
"""


class WithdrawalRefusal(View, frozen=True):
    """``amount``: the millionths that ``reason`` is about. ``seconds``: when to try again; 0 where time changes nothing."""

    reason: WithdrawalReason
    text: Untrusted
    amount: Count = 0
    seconds: Count = 0


class WithdrawalRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``amount`` is to leave the wallet of ``owner``; what arrives at the wallet ``target`` is less by the costs."""

    owner: NodeAddress
    target: NodeAddress
    amount: Annotated[int, Meta(ge=1, le=2**63 - 1)]


class WithdrawalOffer(View, frozen=True):
    """What it costs, and the transaction for the owner to sign (``ledger.sponsored``): amount = arrives + fee.

    Attributes:
        opens: the target has no account for the token, and ``fee`` includes the rent of one.
        transaction: of Solana, base64, without signatures; good for about a minute.
    """

    arrives: Count
    fee: Count
    opens: bool
    transaction: Wire


class WithdrawalAnswer(msgspec.Struct, frozen=True):
    """One of the two."""

    offer: WithdrawalOffer | None = None
    refused: WithdrawalRefusal | None = None


class SignedWithdrawal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was asked for and offered, with the transaction as the owner has signed it."""

    request: WithdrawalRequest
    arrives: Count
    fee: Count
    opens: bool
    transaction: Wire


class SentWithdrawal(View, frozen=True):
    """``transaction``: with both signatures, for whoever wants to send it too. Empty where it was refused."""

    signature: str = ""
    transaction: Wire = b""
    refused: WithdrawalRefusal | None = None


class WithdrawalTerms(View, frozen=True):
    """What withdrawing costs here.

    Attributes:
        offered: the coordinator pays fee and rent of withdrawals.
        sol_price: millionths of the token that a SOL counts; 0: fee and rent are nothing, as on the embedded ledger.
        least: what must arrive at the least.
        fee: of a withdrawal; ``account``: more where the receiver has no account for the token yet.
        a_day: withdrawals of one owner within 24 hours.
        lamports_a_day: of everybody, for fees and rent; ``lamports_left``: of these, now.
        ledger: where the token is; None where there is none.
    """

    offered: bool
    sol_price: Count
    least: Count
    fee: Count
    account: Count
    a_day: Count
    lamports_a_day: Count
    lamports_left: Count
    ledger: LedgerInfo | None
