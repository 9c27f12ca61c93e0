"""Why a withdrawal cannot be sent, in the owner's language: a sentence for each reason that the agent gives, with the way out."""

from PySide6.QtCore import QObject

from desktop.answers import WithdrawalDenial
from desktop.gui.model import plain
from desktop.gui.sentences import exact_money

HOUR_S = 3600


class WithdrawWords(QObject):
    """The words; a QObject, so that Qt's own tools find them for translation."""

    def said(self, denial: WithdrawalDenial) -> str:
        """One whole text."""
        amount, hours = exact_money(denial.amount), max(1, -(-denial.seconds // HOUR_S))
        told = self._owner(denial.reason, amount) or self._limits(denial.reason, hours) or self._others(denial.reason)
        if denial.reason == "changed":
            return self.tr("The fee is {0} now. Look at it, and send it again.").format(amount)
        return told or plain(denial.text, 400)

    def _owner(self, reason: str, amount: str) -> str:
        """What the owner can mend at once."""
        match reason:
            case "no address":
                return self.tr("This is no Solana address. Copy it from your wallet or exchange.")
            case "secret":
                return self.tr(
                    "This is the secret of a wallet, not its address. Show it to nobody; if somebody saw it, move the money."
                )
            case "own wallet":
                return self.tr("This is the wallet on this computer itself. Give the address of another one.")
            case "no wallet":
                return self.tr("This address is no wallet: tokens might be lost there. Copy the wallet's own address.")
            case "no amount":
                return self.tr("This is no amount. Write digits, with at most six decimals.")
            case "nothing":
                return self.tr("The wallet on this computer is empty. What jobs pay comes in here.")
            case "holds less":
                return self.tr("The wallet holds {0}. Withdraw that, or less.").format(amount)
            case "too little":
                return self.tr(
                    "The fee would leave too little. Withdraw at least {0}, or wait until there is more."
                ).format(amount)
            case "no coordinator":
                return self.tr("No network is set. Say in Settings whom to lend to.")
            case "stranger":
                return self.tr(
                    "This wallet has earned nothing at this coordinator. In Settings, choose the one that has paid it."
                )
            case _:
                return ""

    def _limits(self, reason: str, hours: int) -> str:
        """What time mends."""
        match reason:
            case "under way":
                return self.tr(
                    "Your last withdrawal is not decided yet. Look at the wallet in two minutes, and try again."
                )
            case "your day":
                return self.tr("You have withdrawn as often as is paid for in a day. Try again in {0} h.").format(hours)
            case "everybody's day":
                return self.tr(
                    "What the coordinator pays for withdrawals in a day is used up. Try again in {0} h."
                ).format(hours)
            case "too often":
                return self.tr("That was too often. Try again in a moment.")
            case "ledger away":
                return self.tr("The ledger does not answer. Nothing was sent; try again later.")
            case "no answer":
                return self.tr("The coordinator does not answer. Nothing was sent; try again later.")
            case "expired":
                return self.tr("It did not reach the ledger in time. Nothing was sent; try again.")
            case "failed":
                return self.tr("The ledger refused it. Nothing was sent; look at what the wallet holds, and try again.")
            case "undecided":
                return self.tr(
                    "It may have been sent. Look at the wallet in two minutes, before you send anything again."
                )
            case _:
                return ""

    def _others(self, reason: str) -> str:
        """What the coordinator's operator has to mend."""
        own = self.tr(
            "With SOL in this wallet, “cottage node send --own-sol” in a terminal sends it without the coordinator."
        )
        match reason:
            case "not offered":
                return self.tr("This coordinator pays for no withdrawals: ask its operator.") + " " + own
            case "no rate":
                return self.tr("This coordinator does not say what a SOL is worth: ask its operator.") + " " + own
            case "no sol":
                return self.tr("The coordinator's own wallet has too little SOL: tell its operator.") + " " + own
            case "altered":
                return self.tr(
                    "The coordinator offered another transaction than what you asked for. Nothing was signed; tell its operator."
                )
            case _:
                return ""
