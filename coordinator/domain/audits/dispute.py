"""Two nodes differ about a committed step: both are asked the same questions until one operation is left, or one of them loses.

::

    claims --(both say what the step came to)--> steps --(the first step that differs)--> traces --(roots over its operations)-->
    operations --(the first operation that differs)--> records --> inputs --(an artifact with what it reads)--> judging --> over

Whoever is silent, says something that does not fit what it said or committed to before, or answers out of form, loses at once.
Two that say the same leave nothing to dispute: the challenger was wrong. What is left at the end is one operation, whose inputs
both agree on; the coordinator runs it by itself (``ruled``). Every search takes at most ceil(log2 n) questions to each side.

The messages are those of ``protocol.audit``. Everything here is pure: answers come in, the next question comes out.
"""

from typing import Literal, assert_never

import msgspec

from common.untrusted_text import Told, Untrusted
from coordinator.domain.audits.bisection import Search, halved
from protocol.audit import (
    MAX_LEAF_BYTES,
    MAX_RECORD_BYTES,
    RESULT,
    Ask,
    AskInputs,
    AskOperation,
    AskState,
    AskTrace,
    BisectAnswer,
    BisectQuery,
    InputsAnswer,
    NoAnswer,
    OperationAnswer,
    OperationRecord,
    ReplayStep,
    StateAnswer,
    StepLeaf,
    TraceAnswer,
    chain,
    sent_digest,
    state_chain,
)
from protocol.codec import MessageError, decode
from protocol.ids import Digest, NodeAddress
from protocol.merkle import MerkleProof, verify_proof

Side = Literal["prover", "challenger"]
Phase = Literal["claims", "steps", "traces", "operations", "records", "inputs", "judging", "over"]
Why = Literal["", "silence", "malformed", "contradiction", "agreement", "operation", "unresolved"]

SIDES: tuple[Side, Side] = ("prover", "challenger")


class StepClaim(msgspec.Struct, frozen=True):
    """What a side says a step came to."""

    chain: Digest
    state: Digest
    sent: Digest
    loss: float | None


class Spoken(msgspec.Struct, frozen=True):
    """What a side has said so far.

    Attributes:
        answer: to the present question; None while it is awaited.
        claim: of the step that differs, or the last that was asked about.
        record: the encoded record of the operation that differs.
        following: what it said that the record after that one begins with; None where there is none, or it was not asked.
        inputs: artifact with what it reads.
    """

    answer: StateAnswer | TraceAnswer | OperationAnswer | InputsAnswer | None = None
    claim: StepClaim | None = None
    trace: TraceAnswer | None = None
    record: bytes = b""
    following: Digest | None = None
    inputs: Digest | None = None


class Said(msgspec.Struct, frozen=True):
    """One answer of one side, as it came."""

    side: Side
    answer: BisectAnswer


class Dispute(Told, frozen=True):
    """A difference between a prover and a challenger.

    Attributes:
        id: of the audit that found it.
        replay: what both answer from.
        first: first step of the segment that the disputed step lies in, within the round.
        search: of the step, then of the operation.
        base: what the chain was before the segment, then before the step that differs; None while not known.
        step, index: what differs, once found.
        questions: that each side was asked.
        log: every answer that was taken, in order: whoever has it can play the dispute again.
        winner: once it is over; None then too where nobody could tell.
    """

    id: str
    prover: NodeAddress
    challenger: NodeAddress
    replay: ReplayStep
    first: int
    deadline: float
    phase: Phase = "claims"
    search: Search = Search(0, 0)
    base: Digest | None = None
    step: int = 0
    index: int = 0
    questions: int = 0
    said: dict[Side, Spoken] = msgspec.field(default_factory=lambda: {side: Spoken() for side in SIDES})
    winner: Side | None = None
    why: Why = ""
    detail: Untrusted = Untrusted("")
    log: tuple[Said, ...] = ()

    @property
    def over(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.phase == "over"

    @property
    def loser(self) -> Side | None:
        """Who was wrong, once it is over."""
        return None if self.winner is None else other(self.winner)


class LostError(Exception):
    """A side's answer decides the dispute against it."""

    def __init__(self, side: Side, why: Why, detail: str) -> None:
        self.side, self.why, self.detail = side, why, detail
        super().__init__(detail)


def other(side: Side) -> Side:
    """The opposite side."""
    return "challenger" if side == "prover" else "prover"


def question(dispute: Dispute) -> Ask | None:
    """What both sides are to answer now; None where nothing is asked any more."""
    match dispute.phase:
        case "claims":
            return AskState(dispute.replay.step)
        case "steps":
            return AskState(dispute.search.middle)
        case "traces":
            return AskTrace(dispute.step)
        case "operations":
            return AskOperation(dispute.step, dispute.search.middle + 1)  # Whose ``before`` binds ``middle``.
        case "records":
            return AskOperation(dispute.step, dispute.index)
        case "inputs":
            return AskInputs(dispute.step, dispute.index)
        case "judging" | "over":
            return None
        case _:
            assert_never(dispute.phase)


def query_for(dispute: Dispute, side: Side) -> BisectQuery | None:
    """What this side must have been asked by now; None where it has answered."""
    ask = question(dispute)
    if ask is None or dispute.said[side].answer is not None:
        return None
    return BisectQuery(dispute.id, dispute.replay, ask)


def answered(dispute: Dispute, side: Side, given: BisectAnswer, deadline: float) -> Dispute:
    """A side answered; once both have, the next question waits until ``deadline``. What was not asked changes nothing."""
    ask = question(dispute)
    if ask is None or given.ask != ask or dispute.said[side].answer is not None:
        return dispute
    dispute = after = msgspec.structs.replace(dispute, log=(*dispute.log, Said(side, given)))
    try:
        spoken = _taken(dispute, side, ask, given)
        after = msgspec.structs.replace(dispute, said={**dispute.said, side: spoken})
        if any(after.said[each].answer is None for each in SIDES):
            return after
        return _next(msgspec.structs.replace(after, questions=after.questions + 1, deadline=deadline))
    except LostError as lost:
        return _over(after, other(lost.side), lost.why, lost.detail)


def overdue(dispute: Dispute) -> Dispute:
    """The deadline has passed. One silent side loses; two leave it undecided, and the accusation without a proof."""
    silent = [side for side in SIDES if dispute.said[side].answer is None]
    if dispute.over or question(dispute) is None or not silent:
        return dispute
    if len(silent) == 2:
        return _over(dispute, None, "silence", "neither side answered")
    return _over(dispute, other(silent[0]), "silence", f"the {silent[0]} did not answer in time")


def dropped(dispute: Dispute, detail: str) -> Dispute:
    """Somebody is not here any more: nothing is proven by that."""
    return dispute if dispute.over else _over(dispute, None, "unresolved", detail)


def ruled(dispute: Dispute, right: Side | None, detail: str) -> Dispute:
    """The coordinator ran the operation that is left; ``right`` None: it could not."""
    if dispute.phase != "judging":
        return dispute
    return _over(dispute, right, "operation" if right is not None else "unresolved", detail)


def _over(dispute: Dispute, winner: Side | None, why: Why, detail: str) -> Dispute:
    return msgspec.structs.replace(dispute, phase="over", winner=winner, why=why, detail=detail[:4000])


# --- one answer -------------------------------------------------------------------------------------------------------


def _taken(dispute: Dispute, side: Side, ask: Ask, given: BisectAnswer) -> Spoken:
    """What a side has said by now, this answer included, which must have the form of what was asked."""
    before = dispute.said[side]
    match ask, given.answer:
        case _, NoAnswer(reason):
            raise LostError(side, "silence", f"the {side} does not answer: {reason}")
        case AskState(), StateAnswer() as answer:
            if side == "prover":
                _hold_to_leaf(dispute, ask.step, answer)
            return msgspec.structs.replace(before, answer=answer)
        case AskTrace(), TraceAnswer() as answer:
            return msgspec.structs.replace(before, answer=answer, trace=answer)
        case AskOperation(), OperationAnswer() as answer:
            assert before.trace is not None
            proof = MerkleProof(ask.index, before.trace.operations, answer.path)
            if not verify_proof(bytes.fromhex(before.trace.root), answer.record, proof):
                raise LostError(
                    side, "malformed", f"the {side}'s operation {ask.index} does not stand under its trace's root"
                )
            if _record(side, answer.record).index != ask.index:
                raise LostError(side, "malformed", f"the {side}'s record at place {ask.index} names another place")
            return msgspec.structs.replace(before, answer=answer, record=answer.record)
        case AskInputs(), InputsAnswer() as answer:
            return msgspec.structs.replace(before, answer=answer, inputs=answer.artifact)
        case _:
            raise LostError(side, "malformed", f"the {side} answered something else than it was asked")


def _hold_to_leaf(dispute: Dispute, step: int, answer: StateAnswer) -> None:
    """The prover must show its committed leaf, and say the same as it."""
    leaf, replay = _leaf(answer.leaf), dispute.replay
    if not verify_proof(bytes.fromhex(replay.root), answer.leaf, MerkleProof(step, replay.leaves, answer.path)):
        raise LostError("prover", "malformed", f"the prover's leaf does not stand at place {step} under its root")
    if leaf.step != replay.first_step + step:
        raise LostError("prover", "contradiction", f"the prover's leaf at place {step} is of step {leaf.step}")
    if leaf.after is not None and leaf.after != answer.state:
        raise LostError(
            "prover", "contradiction", f"the prover now says another state after step {step} than it committed to"
        )
    if sent_digest(leaf.sent) != answer.sent or leaf.loss != answer.loss:
        raise LostError("prover", "contradiction", f"the prover now says that step {step} sent or lost something else")


def _leaf(data: bytes) -> StepLeaf:
    try:
        leaf: StepLeaf = decode(data, StepLeaf, MAX_LEAF_BYTES)
    except MessageError as error:
        raise LostError("prover", "malformed", f"the prover's leaf is malformed: {error}") from error
    return leaf


def _record(side: Side, data: bytes) -> OperationRecord:
    try:
        record: OperationRecord = decode(data, OperationRecord, MAX_RECORD_BYTES)
    except MessageError as error:
        raise LostError(side, "malformed", f"the {side}'s record is malformed: {error}") from error
    return record


# --- both answers -----------------------------------------------------------------------------------------------------


def _next(dispute: Dispute) -> Dispute:
    """The dispute after both have answered its question."""
    ours, theirs = dispute.said["prover"], dispute.said["challenger"]
    match dispute.phase:
        case "claims" | "steps":
            return _step(dispute)
        case "traces":
            assert ours.trace is not None
            assert theirs.trace is not None
            places = min(ours.trace.operations, theirs.trace.operations)
            return _operation(dispute, Search(0, places - 1))
        case "operations":
            begin = {side: _record(side, dispute.said[side].record).before for side in SIDES}
            equal = begin["prover"] == begin["challenger"]
            if not equal:
                said = {s: msgspec.structs.replace(dispute.said[s], following=begin[s]) for s in SIDES}
                dispute = msgspec.structs.replace(dispute, said=said)
            return _operation(dispute, halved(dispute.search, equal))
        case "records":
            return _compare_records(dispute)
        case "inputs":
            return msgspec.structs.replace(dispute, phase="judging")
        case _:
            return dispute


def _step(dispute: Dispute) -> Dispute:
    """Both said what a step came to: go on searching, or look into the one that differs."""
    claims = {side: _claim(dispute.said[side]) for side in SIDES}
    equal = claims["prover"].chain == claims["challenger"].chain
    if dispute.phase == "claims":
        if equal:
            detail = "the challenger's own re-execution gives what was committed to"
            return _over(dispute, "prover", "agreement", detail)
        search = Search(dispute.first, dispute.replay.step)
    else:
        search = halved(dispute.search, equal)
    base = claims["prover"].chain if equal else dispute.base
    if dispute.phase == "claims" or not equal:
        said = {side: msgspec.structs.replace(dispute.said[side], claim=claims[side]) for side in SIDES}
        dispute = msgspec.structs.replace(dispute, said=said)
    asked = question(dispute)
    if isinstance(asked, AskState) and asked.step == dispute.first and not equal:
        answer = dispute.said["prover"].answer
        assert isinstance(answer, StateAnswer)
        base = _leaf(answer.leaf).before
    dispute = msgspec.structs.replace(dispute, base=base, search=search)
    if not search.found:
        return _turn(dispute, "steps")
    for side in SIDES:
        _hold_to_chain(dispute, side)
    return _turn(dispute, "traces", step=search.low)


def _claim(spoken: Spoken) -> StepClaim:
    answer = spoken.answer
    assert isinstance(answer, StateAnswer)
    return StepClaim(answer.chain, answer.state, answer.sent, answer.loss)


def _hold_to_chain(dispute: Dispute, side: Side) -> None:
    """What a side says of the step that differs must make the chain that it named, from where both agree."""
    claim = dispute.said[side].claim
    assert claim is not None
    if dispute.base is None:
        raise LostError("prover", "malformed", "the prover's leaf does not say what its segment begins with")
    if claim.chain != state_chain(dispute.base, claim.state, claim.sent, claim.loss):
        raise LostError(side, "malformed", f"the {side}'s chain is not made of what it says that the step came to")


def _operation(dispute: Dispute, search: Search) -> Dispute:
    dispute = msgspec.structs.replace(dispute, search=search)
    if not search.found:
        return _turn(dispute, "operations")
    dispute = msgspec.structs.replace(dispute, index=search.low)
    shown = [spoken.record and _record(side, spoken.record).index for side, spoken in dispute.said.items()]
    if shown == [search.low] * len(SIDES):
        return _compare_records(dispute)  # The last question was about this very operation.
    return _turn(dispute, "records")


def _compare_records(dispute: Dispute) -> Dispute:
    """Everything before the operation is equal. Its own records differ, or somebody's trace does not fit what it said before."""
    records = {side: _record(side, dispute.said[side].record) for side in SIDES}
    for side in SIDES:
        trace = dispute.said[side].trace
        assert trace is not None
        following = dispute.said[side].following
        if following is not None and chain(records[side].before, dispute.said[side].record) != following:
            raise LostError(
                side, "malformed", f"the {side}'s record {dispute.index} is not the one that its next one follows"
            )
        if (records[side].name == RESULT) != (dispute.index == trace.operations - 1):
            raise LostError(side, "malformed", f"the {side}'s trace does not end with its result, and only there")
    if dispute.said["prover"].record == dispute.said["challenger"].record:
        for side in SIDES:
            _hold_to_claim(dispute, side)
    return _turn(dispute, "inputs")


def _hold_to_claim(dispute: Dispute, side: Side) -> None:
    """A trace's result must be what its side said the step came to: it spells out the same digests."""
    spoken = dispute.said[side]
    assert spoken.claim is not None
    if not all(digest.encode() in spoken.record for digest in (spoken.claim.state, spoken.claim.sent)):
        raise LostError(side, "contradiction", f"the {side}'s trace comes to something else than it said of the step")


def _turn(dispute: Dispute, phase: Phase, **fields: object) -> Dispute:
    """Ask the next question: both are to answer anew."""
    said = {side: msgspec.structs.replace(dispute.said[side], answer=None) for side in SIDES}
    return msgspec.structs.replace(dispute, phase=phase, said=said, **fields)
