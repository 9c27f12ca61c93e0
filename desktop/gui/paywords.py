"""Why a job has brought what it has, in the owner's language: a sentence for each reason that the agent gives."""

from PySide6.QtCore import QObject

from desktop.answers import PayReason
from desktop.gui.model import plain
from desktop.gui.sentences import money


class PayWords(QObject):
    """The words; a QObject, so that Qt's own tools find them for translation."""

    def said(self, reason: PayReason) -> str:
        """One reason as a whole sentence; how many shares it is about, and what they are worth, come first."""
        words = self._words(reason)
        if not reason.shares:
            return words
        head = self.tr("1 share") if reason.shares == 1 else self.tr("{0} shares").format(reason.shares)
        if reason.amount:
            head = f"{head}, {money(reason.amount)}"
        return f"{head}: {words}"

    def _words(self, reason: PayReason) -> str:
        told = self._due(reason.why) or self._unused(reason.why) or self._found(reason.why) or self._without(reason.why)
        if reason.why == "failed":
            detail = plain(reason.detail)
            return self.tr("It failed on this computer: {0}").format(detail) if detail else self.tr("It failed here.")
        return told or self.tr("The agent says “{0}”, which this window does not know yet.").format(plain(reason.why))

    def _due(self, why: str) -> str:
        match why:
            case "paid":
                return self.tr("Paid.")
            case "unaudited":
                return self.tr("Its audit is not over yet.")
            case "looking":
                return self.tr("It waits until the operator's computer has looked at the work that was drawn.")
            case "saving":
                return self.tr("Verified. It is paid once it is worth the ledger's fee.")
            case "paying":
                return self.tr("Verified. Its payment waits for the ledger.")
            case "promised":
                return self.tr("Promised on the ledger: it can be claimed there, even without the coordinator.")
            case "stuck":
                return self.tr("Verified, but the ledger refuses to pay it: tell the coordinator's operator.")
            case "unheard":
                return self.tr("The coordinator is not connected; this is what it said last.")
            case "nothing told":
                return self.tr("The coordinator has not said yet what became of it.")
            case _:
                return ""

    def _unused(self, why: str) -> str:
        match why:
            case "late":
                return self.tr(
                    "Not paid: the computers that held the model together with this one were not complete when the round ended."
                )
            case "again":
                return self.tr("Not paid: the round had lost too many computers and was done again.")
            case "ended":
                return self.tr("Not paid: the job ended in the middle of the round.")
            case "unlooked":
                return self.tr("Not paid: the job ended before anybody had looked at it.")
            case "expelled":
                return self.tr("Not paid: this computer was sent away, and its unpaid work of the job is void.")
            case _:
                return ""

    def _found(self, why: str) -> str:
        match why:
            case "gone":
                return self.tr("Not paid: this computer left before it had shown what its audit asked for.")
            case "refused":
                return self.tr("Not paid: this computer did not show what its audit asked for.")
            case "misstated":
                return self.tr("Not paid: the work names another kind of computer than this one had said to be.")
            case "unconfirmed":
                return self.tr(
                    "Not paid: another computer came to something else, and no second one could tell who is right."
                )
            case "wrong":
                return self.tr("Not paid: others ran it again and came to something else.")
            case "distant":
                return self.tr(
                    "Not paid: the operator's computer came to something too far off, which proves nothing against this one."
                )
            case "pipeline":
                return self.tr(
                    "Not paid: another computer's part of the round was false, or was not shown, and this one is not known"
                    " well enough yet."
                )
            case "unopened":
                return self.tr("Not paid: the data stays at its owner, so nobody can check the work.")
            case "vain":
                return self.tr(
                    "Not paid: what came in left nothing to compute. Another computer may have sent it that."
                )
            case _:
                return ""

    def _without(self, why: str) -> str:
        match why:
            case "spare":
                return self.tr("This computer stood by, without a part of the model. That is not paid.")
            case "no round yet":
                return self.tr("No round or period with this computer has ended yet.")
            case "no round: cancelled":
                return self.tr("Its submitter cancelled the job before a round or period with this computer had ended.")
            case "no round: failed":
                return self.tr("The job failed before a round or period with this computer had ended.")
            case "no round: stopped":
                return self.tr("The job ended before a round or period with this computer had ended.")
            case "no round: paused":
                return self.tr("The job is paused, and no round or period with this computer has ended yet.")
            case "no round: left":
                return self.tr("This computer left before a round or period with it had ended.")
            case "no round: expired":
                return self.tr("This computer was not heard of any more before a round or period with it had ended.")
            case "no round: stalled":
                return self.tr(
                    "This computer kept the others waiting too long before a round or period with it had ended."
                )
            case "no round: replaced":
                return self.tr("Another computer took its place before a round or period with it had ended.")
            case "no round: rejected":
                return self.tr("This computer was sent away before a round or period with it had ended.")
            case _:
                return ""
