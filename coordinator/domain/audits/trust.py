"""An audit and its life.

Which steps are audited follows from ``sampling``; by whom from the same seed (``auditors``); what it costs stands in ``penalty``.

::

    drawn --> opening --(made)--> showing --(arrived)--> replaying --match--> passed
                 |                   |                      |  ^
                 |                   |                      |  +-- mismatch, or another class named: a second auditor
                 |                   |                      |      confirms, where there is one
                 +--(none, no answer)+----------------------+----> failed (share forfeited; see ``penalty``)
                                                            +----> void (nobody could re-run it, or only machines of other
                                                                   classes, and it was not near enough for them: that
                                                                   proves nothing)

While it is ``opening`` the prover and its neighbours need their records of the step; while it is ``showing`` they do not.

Where the operator has auditors of its own, an audit is *watched*: other nodes' word never makes work payable for which a *look*
is due, an audit of which one of the operator's auditors takes the last turn and decides. A look is never left out: it passes, or
the share is not paid.
"""

import hashlib
from typing import Literal

import msgspec

from common.untrusted_text import Told, Untrusted, untrusted
from coordinator.domain.audits.sampling import Drawn
from protocol.audit import AnchorPlace, OpenOuter, OuterRecord, ReplayOuter
from protocol.contradiction import contradiction, stands
from protocol.ids import Digest, NodeAddress
from protocol.task import (
    AuditReport,
    OpeningMade,
    OpenStep,
    Plan,
    ReplayAcross,
    ReplayStep,
    ShowLeaf,
    StepOpened,
    TaskCommand,
)

AuditState = Literal["drawn", "opening", "showing", "replaying", "passed", "failed", "void"]
Blame = Literal["", "gone", "refused", "misstated", "unconfirmed", "wrong", "blind", "distant", "unlooked", "vain"]

LOOKS = 3  # Times that an operator's auditor may be lost over one opening before it is said that nobody can run it.


class Verdict(Told, frozen=True):
    """What one auditor found.

    Attributes:
        afar: it is of another environment class, so it compared with a tolerance.
        own: it is one of the operator's own.
    """

    auditor: NodeAddress
    verdict: Literal["match", "mismatch", "malformed", "incomparable"]
    detail: Untrusted = Untrusted("")
    afar: bool = False
    own: bool = False


class OuterClaim(msgspec.Struct, frozen=True):
    """What a member says of an outer step.

    Attributes:
        contributors: replica -> digest of what it committed to contribute: what came in must be that.
        parameters: digest of those that came of it.
        weights: as in ``ApplyRound``.
    """

    contributors: dict[int, Digest]
    record: OuterRecord
    parameters: Digest
    weights: dict[int, int] = {}


class Side(msgspec.Struct, frozen=True):
    """The audited member, or one that it exchanged payloads with in the step, whose leaves are held against each other.

    Attributes:
        root, leaves: what it had committed to.
        leaf: of the step, as it was shown; None: not yet, or ``silent``: nothing that stands there under its root.
    """

    stage: int
    replica: int
    lease: str
    root: Digest
    leaves: int
    leaf: bytes | None = None
    silent: bool = False

    @property
    def seat(self) -> tuple[int, int]:
        """Stage and replica."""
        return self.stage, self.replica

    @property
    def awaited(self) -> bool:
        """Whether it has yet to answer."""
        return self.leaf is None and not self.silent


class Audit(Told, frozen=True):
    """One drawn step.

    Attributes:
        outer: it is of the outer step after the round's ``leaves`` steps, of which the member says this.
        pseudo_gradient: what the member committed to beside ``root``.
        anchor: the agreed parameters that its round began with; None where only a checkpoint, or the beginning, says.
        carried, local: what the member committed to carry into the next round, and what it had carried into this one.
        rate_step: as in its round.
        tried: nodes that were asked to re-run it, as often as they were. ``owners``: whose they are, in the same order.
        seed: of its round's draw, in hexadecimal: the order in which auditors are asked follows from it.
        twice: two auditors of different owners have to find it right, where there are two.
        challenger: who asked for it, and so re-runs it and is paid from a slash; None: it was drawn.
        accuser: who has put a bond against the commitment on the ledger. It audits nothing, and is paid from a slash.
        canary: the step was forged by the coordinator, and it is the auditor who is tested; ``node`` has nothing to answer for.
        silent: in a dispute about it the prover did not answer.
        sides: whose leaves of the step are compared before it is run again: see ``domain.audits.boundary``.
        apart: seats (stage, replica) of those whose leaves say otherwise.
        made: the opening that the prover has made, and will show; ``opening``: the one that is here. ``size``: its bytes.
        asked: when the phase that it is in began: see ``domain.audits.answer_time``.
        away, absent: since when the prover cannot answer, and for how long it could not before.
        ending: the prover shows what the segment came to as well: when it was drawn, nobody else was of its class.
        afar: the auditor at work is of another class.
        watched: only proven nodes audit it beside the operator's own auditors.
        proven: the prover's standing made it a node whose work need not have been looked at.
        share: what the round pays the prover, in millionths of the token.
        look: one of the operator's own auditors has yet to run it again. Nodes are not told.
        looking: the auditor at work is one of the operator's own. ``looks``: how often one was asked.
        began: when it was drawn, in Unix seconds: who has waited longest for a look has it first.
        anchor_in: with the opening; with who audits, who trains the same stage; or an artifact, once such a one found something.
        blame: why it failed. ``misstated``: its leaf names another environment class than it had said to be of. ``blind``: a
            canary whose auditor found it right. ``distant``: machines of other classes came to something else; it is void, or
            failed where that machine was the operator's. ``vain``: it matches, and what it was computed from left nothing to
            compute. ``unlooked``: void, and a look was due that nobody can make any more.
    """

    id: str
    job: str
    epoch: int
    round: int
    step: int
    stage: int
    replica: int
    lease: str
    node: NodeAddress
    payout: NodeAddress
    env_class: str
    plan: Plan
    first_step: int
    total_steps: int
    root: Digest
    leaves: int
    pseudo_gradient: Digest
    deadline: float
    state: AuditState = "opening"
    auditor: NodeAddress | None = None
    auditor_lease: str | None = None
    anchor: Digest | None = None
    opening: Digest | None = None
    carried: Digest | None = None
    local: Digest | None = None
    tried: tuple[NodeAddress, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    blame: Blame = ""
    detail: Untrusted = Untrusted("")
    rate_step: int | None = None
    seed: str = ""
    twice: bool = False
    canary: bool = False
    challenger: NodeAddress | None = None
    accuser: NodeAddress | None = None
    outer: OuterClaim | None = None
    silent: bool = False
    sides: tuple[Side, ...] = ()
    apart: tuple[tuple[int, int], ...] = ()
    ending: bool = False
    afar: bool = False
    made: Digest | None = None
    size: int = 0
    asked: float = 0.0
    away: float | None = None
    absent: float = 0.0
    owners: tuple[NodeAddress, ...] = ()
    watched: bool = False
    proven: bool = False
    share: int = 0
    look: bool = False
    looking: bool = False
    looks: int = 0
    began: float = 0.0
    anchor_in: AnchorPlace = "opening"
    version: int = 0

    @property
    def seat(self) -> tuple[int, int]:
        """Stage and replica."""
        return self.stage, self.replica

    @property
    def unopened(self) -> bool:
        """Whether the prover has yet to open it."""
        return self.state in ("opening", "showing") and self.opening is None

    @property
    def place(self) -> str:
        """What is looked at, in words."""
        what = f"step {self.step}" if self.outer is None else "the outer step"
        return f"{what} of stage {self.stage} of replica {self.replica}"

    @property
    def across(self) -> bool:
        """Whether all who looked at it are of other environment classes than the prover."""
        return bool(self.verdicts) and all(verdict.afar for verdict in self.verdicts)

    @property
    def over(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in ("passed", "failed", "void")

    @property
    def holders(self) -> set[str]:
        """The leases of which something may be asked about it now."""
        asked = {self.lease} if self.unopened else set()
        if self.state == "replaying" and self.auditor_lease is not None:
            asked.add(self.auditor_lease)
        return asked | {side.lease for side in self.sides if self.state == "opening"}

    def command_for(self, lease: str, anew: bool = False) -> TaskCommand | None:
        """What the holder of ``lease`` must have been told about this audit.

        Args:
            anew: it has another worker, which is asked once more for what the first had made and not sent; held to the same.
        """
        if self.unopened and (anew or self.made is None) and lease == self.lease:
            if self.outer is not None:
                return OpenOuter(self.id, self.epoch, self.round)
            return OpenStep(self.id, self.epoch, self.round, self.step, self.ending, self.anchor_in == "opening")
        if self.state == "replaying" and lease == self.auditor_lease and self.opening is not None:
            if self.outer is not None:
                return ReplayOuter(
                    self.id,
                    self.plan,
                    self.stage,
                    self.round,
                    self.outer.contributors,
                    self.outer.record,
                    self.outer.parameters,
                    self.opening,
                    self.outer.weights,
                )
            replay = ReplayStep(
                audit=self.id,
                plan=self.plan,
                stage=self.stage,
                replica=self.replica,
                round=self.round,
                first_step=self.first_step,
                step=self.step,
                total_steps=self.total_steps,
                root=self.root,
                leaves=self.leaves,
                pseudo_gradient=self.pseudo_gradient,
                anchor=self.anchor,
                opening=self.opening,
                carried=self.carried,
                local=self.local,
                rate_step=self.rate_step,
                anchor_in=self.anchor_in,
            )
            return ReplayAcross(replay, self.env_class) if self.afar else replay
        return None

    def question_for(self, lease: str) -> ShowLeaf | None:
        """What else the holder of ``lease`` must have been asked about it."""
        asked = self.state == "opening" and any(side.lease == lease and side.awaited for side in self.sides)
        return ShowLeaf(self.id, self.epoch, self.round, self.step) if asked else None


class AuditorCandidate(msgspec.Struct, frozen=True):
    """A node of the job that could re-run a step.

    Attributes:
        operator: it is one of the operator's own.
        credit: as in ``domain.audits.rate.NodeStanding``, with the job's account.
    """

    lease: str
    node: NodeAddress
    payout: NodeAddress
    env_class: str
    spare: bool
    operator: bool = False
    credit: int = 0
    stage: int | None = None


def audit_id(seed: bytes, drawn: Drawn) -> str:
    """The name of an audit: nobody chooses it, so nobody chooses by it who audits."""
    return hashlib.sha256(seed + f"audit:{drawn.replica}:{drawn.stage}:{drawn.step}".encode()).hexdigest()[:32]


def shown_before(audit: Audit, opening: Digest, deadline: float) -> Audit:
    """The same step was opened for another audit: the prover is asked nothing, and may have left."""
    return msgspec.structs.replace(audit, state="replaying", opening=opening, deadline=deadline, sides=())


def made(audit: Audit, report: OpeningMade) -> Audit:
    """The prover has made the opening, and is held to it; it may take its time to arrive until the audit's deadline."""
    if not audit.unopened or audit.made is not None:
        return audit
    after = msgspec.structs.replace(audit, made=report.opening)
    return after if audit.sides else msgspec.structs.replace(after, state="showing")


def opened(audit: Audit, report: StepOpened, deadline: float) -> Audit:
    """The prover answered; the opening waits for an auditor until ``deadline``, once all sides' leaves were compared."""
    if not audit.unopened:
        return audit
    if report.opening is None:
        return _fail(audit, "refused", f"the step was not opened: {report.reason or 'no reason given'}")
    if audit.made not in (None, report.opening):
        return _fail(audit, "refused", "another opening was shown than the one that had been made")
    after = msgspec.structs.replace(audit, opening=report.opening)
    return after if audit.sides and audit.state == "opening" else compared(after, deadline)


def compared(audit: Audit, deadline: float) -> Audit:
    """The leaves of the sides were held against each other, or there are none: once the opening is here it needs an auditor."""
    if audit.opening is None:
        return msgspec.structs.replace(audit, state="showing")
    return msgspec.structs.replace(audit, state="replaying", deadline=deadline)


def assigned(audit: Audit, auditor: AuditorCandidate, deadline: float) -> Audit:
    """``auditor`` re-runs the step and must report before ``deadline``."""
    return msgspec.structs.replace(
        audit,
        auditor=auditor.node,
        auditor_lease=auditor.lease,
        afar=audit.outer is None and auditor.env_class != audit.env_class,
        looking=auditor.operator,
        looks=audit.looks + auditor.operator,
        tried=(*audit.tried, auditor.node),
        owners=(*audit.owners, auditor.payout),
        deadline=deadline,
    )


def judged(audit: Audit, node: NodeAddress, report: AuditReport, deadline: float) -> Audit:
    """An auditor reported. A first finding against the prover waits until ``deadline`` for a second auditor.

    ``incomparable`` is one too: the auditor is of the class that the prover had said to be of, so the leaf says otherwise.
    """
    if audit.state != "replaying" or audit.auditor != node:
        return audit
    if audit.anchor_in == "auditor" and report.verdict != "match" and not audit.canary:
        if report.anchor is None or report.anchor != audit.anchor:
            return auditor_gone(audit, deadline)  # Nobody else could see what it says.
        audit = msgspec.structs.replace(audit, anchor_in="artifact")
    detail = untrusted(f"across environment classes: {report.detail}") if audit.afar else report.detail
    verdicts = (*audit.verdicts, Verdict(node, report.verdict, detail, audit.afar, audit.looking))
    if audit.canary:
        blind = report.verdict == "match"
        found = _fail(audit, "blind", "a forged step was found right") if blind else audit
        return msgspec.structs.replace(
            found, state="failed" if blind else "passed", verdicts=verdicts, auditor_lease=None
        )
    after = msgspec.structs.replace(
        audit,
        verdicts=verdicts,
        auditor=None,
        auditor_lease=None,
        afar=False,
        looking=False,
        look=audit.look and not audit.looking,
        deadline=deadline,
        detail=detail,
    )
    if lie := _proven(audit, report):
        return _fail(after, "wrong", lie)
    if report.verdict == "match" and report.vain and audit.looking:
        return _fail(after, "vain", f"there was nothing to compute: {report.detail}")
    return _matched(audit, after, node) if report.verdict == "match" else _found(audit, after, report)


def _proven(audit: Audit, report: AuditReport) -> str:
    """How leaves that an auditor shows prove the prover's lie, in words: it alone can have written them, whoever shows them."""
    if audit.outer is not None or report.verdict != "mismatch":
        return ""
    return contradiction(report.proof, audit) if all(stands(leaf, audit) for leaf in report.proof) else ""


def _matched(audit: Audit, after: Audit, node: NodeAddress) -> Audit:
    """``audit`` as it was when the verdict came, ``after`` with the verdict."""
    if not audit.looking and (audit.look or (audit.twice and not audit.verdicts)):
        return after  # By a lot that nobody could foresee, one auditor's word is not enough here.
    if any(v.own for v in against(after)):
        # Another one's word does not outweigh the operator's.
        return _fail(after, "unconfirmed", against(after)[-1].detail)
    if any(side.seat == audit.seat and side.silent for side in audit.sides):
        return _fail(after, "refused", "it opened the step, and did not show its leaf for a comparison")
    disputed = f"{len(against(after))} found otherwise" if against(after) else ""
    return msgspec.structs.replace(after, state="passed", auditor=node, detail=after.detail or disputed)


def _found(audit: Audit, after: Audit, report: AuditReport) -> Audit:
    """As ``_matched``, with a finding against the prover. The operator's auditor decides, and proves nothing by itself."""
    found = against(after)
    if audit.looking and audit.afar:
        if report.verdict == "incomparable":
            return _fail(after, "misstated", after.detail)
        return _convict(after) if len(found) >= 2 else _fail(after, "distant", after.detail)
    if audit.looking:
        return _convict(after) if len(found) >= 2 or report.verdict == "incomparable" else after
    if audit.afar:
        return _distant(after) if len(_far(after)) >= 2 else after
    if audit.watched and not any(verdict.own for verdict in after.verdicts):
        return msgspec.structs.replace(after, look=True)  # Several nodes of one cartel can say the same.
    return _convict(after) if len(found) >= 2 else after


def prover_gone(audit: Audit) -> Audit:
    """The prover's lease ended before it opened the step: unverified, so unpaid, but no proof of a lie."""
    if not audit.unopened:
        return audit
    return _fail(audit, "gone", "the node left before it opened the step")


def sent_away(audit: Audit) -> Audit:
    """The coordinator itself ends the prover's lease, and with it the records that it was to open: nobody is to blame."""
    if not audit.unopened:
        return audit
    why = "the job had the node begin anew before it opened the step"
    return unlooked(audit, why) if audit.look else msgspec.structs.replace(audit, state="void", detail=why)


def auditor_gone(audit: Audit, deadline: float) -> Audit:
    """The auditor's lease ended, or it took too long: somebody else may try until ``deadline``."""
    if audit.state != "replaying" or audit.auditor is None:
        return audit
    after = msgspec.structs.replace(
        audit, auditor=None, auditor_lease=None, afar=False, looking=False, deadline=deadline
    )
    lost = audit.looking and audit.looks >= LOOKS
    return unlooked(after, f"the operator's machines were lost {LOOKS} times over its opening") if lost else after


def unlooked(audit: Audit, why: str) -> Audit:
    """A look is due and nobody can make it any more: the work is not paid, and nobody is to blame."""
    return msgspec.structs.replace(audit, state="void", blame="unlooked", look=False, detail=why)


def canary(true: Audit, name: str, seed: bytes, opening: Digest, root: Digest, deadline: float) -> Audit:
    """A test of some auditor, from an audit that passed and the same step made false; whoever knows the true root is left out."""
    return msgspec.structs.replace(
        true,
        id=name,
        seed=seed.hex(),
        opening=opening,
        root=root,
        deadline=deadline,
        made=None,
        state="replaying",
        canary=True,
        look=False,
        looking=False,
        looks=0,
        ending=False,
        afar=False,
        challenger=None,
        accuser=None,
        sides=(),
        apart=(),
        twice=False,
        auditor=None,
        auditor_lease=None,
        verdicts=(),
        blame="",
        detail="",
        version=0,
    )


def again(passed: Audit, blind: NodeAddress, deadline: float) -> Audit | None:
    """The same step for another auditor, where nobody but one who does not look found it right; its opening is still here."""
    if passed.canary or passed.opening is None or {verdict.auditor for verdict in passed.verdicts} != {blind}:
        return None
    name = hashlib.sha256(f"again:{passed.id}:{blind}".encode()).hexdigest()[:32]
    return msgspec.structs.replace(
        passed,
        id=name,
        deadline=deadline,
        state="replaying",
        look=passed.watched and passed.anchor_in != "auditor",  # The operator's machines keep no anchors.
        looks=0,
        challenger=None,
        accuser=None,
        sides=(),
        auditor=None,
        auditor_lease=None,
        verdicts=(),
        detail="",
        version=0,
    )


def overdue(audit: Audit) -> Audit:
    """Nobody answered in time: what has been found so far decides."""
    if audit.state in ("opening", "showing"):
        return _fail(audit, "refused", "the step was not opened in time")
    if audit.state == "replaying" and against(audit):
        convicted = _convict(audit)
        unseen = audit.watched and not any(verdict.own for verdict in audit.verdicts)
        lone = (unseen or len(against(audit)) == 1) and convicted.blame == "wrong"
        # One accuser with nobody to confirm it may be the liar himself: the work goes unpaid, nothing more.
        return (
            msgspec.structs.replace(convicted, blame="refused" if audit.silent else "unconfirmed")
            if lone
            else convicted
        )
    if audit.over:
        return audit
    if audit.across and _far(audit):
        return _distant(audit)
    if audit.watched and not audit.proven and not audit.canary:
        return msgspec.structs.replace(audit, look=True)  # Nobody who is known well enough could: the operator has to.
    why = f"no other owner's node of environment class {audit.env_class} could re-run the step"
    if audit.verdicts:
        why = "one auditor found it right, and no second owner's could re-run the step"
    return msgspec.structs.replace(audit, state="void", detail=why)


def given_up(audit: Audit, why: str) -> Audit:
    """Nobody can audit it any more: findings against the prover stand, else it is void; a look that was due is not left out."""
    if against(audit):
        return overdue(audit)
    if audit.look or audit.looking:
        return unlooked(audit, why)
    return msgspec.structs.replace(audit, state="void", detail=why)


def convicted(audit: Audit, detail: str) -> Audit:
    """A dispute proved the prover's lie: no second auditor is needed."""
    if audit.state != "replaying":
        return audit
    return msgspec.structs.replace(_fail(audit, "wrong", detail), auditor=None, auditor_lease=None)


def cleared(audit: Audit, detail: str) -> Audit:
    """A dispute proved that the accusation was false; a look that is due still follows."""
    if audit.state != "replaying":
        return audit
    if audit.look:
        kept = tuple(verdict for verdict in audit.verdicts if verdict not in against(audit))
        return msgspec.structs.replace(audit, verdicts=kept, detail=detail)
    return msgspec.structs.replace(audit, state="passed", auditor=None, auditor_lease=None, detail=detail)


def against(audit: Audit) -> tuple[Verdict, ...]:
    """Findings against the prover that count as such: not those of other classes, which prove nothing."""
    return tuple(v for v in audit.verdicts if v.verdict != "match" and not v.afar)


def _far(audit: Audit) -> tuple[Verdict, ...]:
    return tuple(v for v in audit.verdicts if v.verdict != "match" and v.afar)


def _distant(audit: Audit) -> Audit:
    """Machines of other classes came to something else: it is void, and counts as a fault for the prover's rate only."""
    return msgspec.structs.replace(audit, state="void", blame="distant", detail=_far(audit)[-1].detail)


def _convict(audit: Audit) -> Audit:
    """The findings stand. Where one of them is only that the class differs, the milder one is believed."""
    found = against(audit)
    misstated = [verdict for verdict in found if verdict.verdict == "incomparable"]
    return _fail(audit, "misstated" if misstated else "wrong", (misstated or found)[-1].detail)


def _fail(audit: Audit, blame: Blame, detail: str) -> Audit:
    return msgspec.structs.replace(audit, state="failed", blame=blame, detail=detail)


def contradicted(audit: Audit) -> tuple[NodeAddress, ...]:
    """Auditors who came to something else than the operator's own in a finished audit; none where it proved nothing."""
    own = {verdict.verdict == "match" for verdict in audit.verdicts if verdict.own}
    if not audit.over or audit.canary or len(own) != 1:
        return ()
    return tuple(v.auditor for v in audit.verdicts if not v.own and (v.verdict == "match") not in own)
