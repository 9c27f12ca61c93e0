"""Why a share of a job is paid, not yet paid, or never: the same words for its lender and on the node's page."""

from protocol.node import ShareState

SHARES: dict[ShareState, str] = {
    "paid": "paid",
    "unaudited": "its audit is not over",
    "looking": "waits until the operator's computer has looked at the work that was drawn",
    "saving": "verified; paid once it is worth the ledger's fee, or by `cottage node claim`",
    "paying": "verified; its payment waits for the ledger",
    "promised": "promised on the ledger; `cottage node withdraw` has it paid, though the coordinator be gone",
    "stuck": "verified, and the ledger has refused the payment each time: tell the coordinator's operator",
    "late": "not paid: the replica was not whole when the round was decided, so its work was not used",
    "again": "not paid: the round had lost too many computers and was done again",
    "ended": "not paid: the job ended in the middle of the round",
    "gone": "not paid: this computer left before it had shown the piece of work that its audit drew",
    "refused": "not paid: this computer did not show the piece of work that its audit drew",
    "misstated": "not paid: the work says another kind of computer than this one had said to be",
    "unconfirmed": "not paid: another computer came to something else, and there was no second one to tell who is right",
    "wrong": "not paid: others ran it again and came to something else",
    "distant": "not paid: the operator's computer came to something too far off; that proves nothing against this one",
    "unlooked": "not paid: the job ended before anybody had looked at it",
    "vain": "not paid: what came in left nothing to compute; another computer may have sent it that",
    "pipeline": "not paid: another computer's part of the round was false or not shown, and this one is not known enough yet",
    "expelled": "not paid: this computer was sent away, and with that its unpaid work of the job is void",
    "unopened": "not paid: the data stays at its owner, so nobody can check the work",
}
