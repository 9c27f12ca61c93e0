"""Disputes end at the one operation that differs, in as many questions as a bisection takes, and the liar loses every way."""

import hashlib
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.domain.audits import dispute as disputes
from coordinator.domain.audits.bisection import Search, halved
from coordinator.domain.audits.dispute import SIDES, Dispute, Side
from protocol.audit import (
    FIRST,
    RESULT,
    AskInputs,
    AskOperation,
    AskState,
    AskTrace,
    BisectAnswer,
    BisectQuery,
    InputsAnswer,
    MemoryRegion,
    NoAnswer,
    OperationAnswer,
    OperationRecord,
    ReplayStep,
    StateAnswer,
    StepLeaf,
    TraceAnswer,
    Write,
    chain,
    sent_digest,
    state_chain,
)
from protocol.codec import encode
from protocol.identity import NodeKey
from protocol.merkle import MerkleTree
from protocol.plan import Layers, Plan
from tests.coordinator.fakes import digest

BEGIN = digest("begin")
REGION = MemoryRegion(0, 0, "float32", (1,), (1,))
ID = "a" * 32


def node(number: int) -> str:
    return NodeKey(number.to_bytes(32, "big")).address


@dataclass
class Player:
    """A side: what it says each step came to, and each operation of the step that differs wrote.

    ``wrong_step``, ``wrong_operation``: from there on everything differs from the honest way.
    """

    steps: int
    operations: int
    wrong_step: int | None = None
    wrong_operation: int | None = None
    wrong_name: str | None = None
    lie: str = ""
    leaves: list[StepLeaf] = field(default_factory=list)

    def state(self, step: int) -> str:
        bent = self.wrong_step is not None and step >= self.wrong_step
        return digest("state", step, "bent" if bent else "right")

    def sent(self, step: int) -> tuple[str, ...]:
        return (digest("sent", step),)

    def chain(self, step: int) -> str:
        at = BEGIN
        for index in range(step + 1):
            at = state_chain(at, self.state(index), sent_digest(self.sent(index)), None)
        return at

    def tree(self) -> MerkleTree:
        if not self.leaves:
            last = self.steps - 1
            self.leaves = [
                StepLeaf(
                    100 + step,
                    "cpu",
                    digest("samples", step),
                    (),
                    self.sent(step),
                    BEGIN if step == 0 else None,
                    self.state(step) if step == last else None,
                    digest("anchor"),
                )
                for step in range(self.steps)
            ]
        return MerkleTree([encode(leaf) for leaf in self.leaves])

    def records(self, step: int) -> list[bytes]:
        made, before = [], FIRST
        for index in range(self.operations):
            last = index == self.operations - 1
            bent = self.wrong_operation is not None and index >= self.wrong_operation
            name = self.wrong_name if self.wrong_name and index == self.wrong_operation else f"aten.op{index}"
            arguments = f"{self.state(step)} {sent_digest(self.sent(step))}" if last else ""
            record = encode(
                OperationRecord(
                    index,
                    before,
                    RESULT if last else name,
                    "module",
                    arguments,
                    (),
                    (Write(REGION, digest("output", index, "bent" if bent else "right")),),
                )
            )
            made.append(record)
            before = chain(before, record)
        return made

    def answer(self, query: BisectQuery) -> BisectAnswer:
        ask = query.ask
        match ask:
            case AskState():
                tree = self.tree()
                state = digest("another") if self.lie == "other state" else self.state(ask.step)
                named = digest("chain") if self.lie == "chain" else self.chain(ask.step)
                path = () if self.lie == "no proof" else tree.proof(ask.step).path
                said = StateAnswer(
                    named, state, sent_digest(self.sent(ask.step)), None, encode(self.leaves[ask.step]), path
                )
                return BisectAnswer(query.dispute, ask, said)
            case AskTrace():
                root = MerkleTree(self.records(ask.step)).root.hex()
                return BisectAnswer(query.dispute, ask, TraceAnswer(root, self.operations))
            case AskOperation():
                records = self.records(ask.step)
                tree = MerkleTree(records)
                shown = records[0] if self.lie == "another record" else records[ask.index]
                return BisectAnswer(query.dispute, ask, OperationAnswer(shown, tree.proof(ask.index).path))
            case AskInputs():
                return BisectAnswer(query.dispute, ask, InputsAnswer(digest("inputs", ask.index)))


def begun(prover: Player, step: int | None = None) -> Dispute:
    """A dispute over the last step of a segment, or ``step`` of it."""
    replay = ReplayStep(
        ID,
        Plan(1, (Layers(0, 1),), ()),
        0,
        0,
        3,
        100,
        prover.steps - 1 if step is None else step,
        4096,
        prover.tree().root.hex(),
        prover.steps,
        digest("gradient"),
        None,
        digest("opening"),
    )
    return Dispute(ID, node(1), node(2), replay, 0, 10.0)


def played(dispute: Dispute, players: dict[Side, Player]) -> Dispute:
    """Ask and answer until nothing is asked any more."""
    for _ in range(200):
        queries = {side: disputes.query_for(dispute, side) for side in SIDES}
        if not any(queries.values()):
            return dispute
        for side, query in queries.items():
            if query is not None:
                dispute = disputes.answered(dispute, side, players[side].answer(query), 20.0)
    raise AssertionError(f"no end in sight: {dispute.phase}")


def sides(steps: int, operations: int, step: int, operation: int, liar: Side = "prover") -> dict[Side, Player]:
    """One honest side and one that departs from the honest way at a step, and in it at an operation."""
    honest, bent = Player(steps, operations), Player(steps, operations, step, operation)
    return {"prover": bent, "challenger": honest} if liar == "prover" else {"prover": honest, "challenger": bent}


def most_questions(places: int) -> int:
    """ceil(log2 places): what a search takes at most."""
    return (places - 1).bit_length()


def walk(search: Search, most: int) -> int:
    """Follow both answers at every question; the number of places found, each of them the right one."""
    if search.found:
        assert search.asked <= most
        return 1
    assert search.low <= search.middle < search.high
    equal, differs = halved(search, True), halved(search, False)
    assert (differs.low, equal.high) == (search.low, search.high)
    assert equal.low == differs.high + 1, "no place is lost, and none is in both halves"
    return walk(equal, most) + walk(differs, most)


@pytest.mark.parametrize("places", [*range(1, 130), 255, 256, 257, 1000, 1023, 1024, 1025, 2048, 4095, 4096])
def test_every_position_is_found_in_at_most_ceil_log2_questions(places: int) -> None:
    assert walk(Search(0, places - 1), most_questions(places)) == places


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_dispute_is_played_down_to_the_operation_that_differs(data: st.DataObject) -> None:
    steps, operations = data.draw(st.integers(1, 40)), data.draw(st.integers(2, 60))
    step, operation = data.draw(st.integers(0, steps - 1)), data.draw(st.integers(0, operations - 2))
    liar = data.draw(st.sampled_from(SIDES))
    over = played(begun((players := sides(steps, operations, step, operation, liar))["prover"]), players)
    assert (over.phase, over.step, over.index) == ("judging", step, operation)
    most = 1 + most_questions(steps) + 1 + most_questions(operations) + 1 + 1
    assert over.questions <= most
    assert over.said["prover"].inputs == digest("inputs", operation)
    honest = disputes.other(liar)
    ended = disputes.ruled(over, honest, "the coordinator came to the same")
    assert (ended.winner, ended.loser, ended.why) == (honest, liar, "operation")


@pytest.mark.parametrize("operation", range(15))
def test_every_operation_of_a_step_is_found(operation: int) -> None:
    players = sides(1, 16, 0, operation)
    assert played(begun(players["prover"]), players).index == operation


def test_a_challenger_that_comes_to_the_same_has_accused_wrongly() -> None:
    players: dict[Side, Player] = {"prover": Player(4, 8), "challenger": Player(4, 8)}
    over = played(begun(players["prover"]), players)
    assert (over.winner, over.why, over.questions) == ("prover", "agreement", 1)


def test_a_prover_that_now_says_something_else_than_it_committed_to_loses_at_once() -> None:
    players = sides(4, 8, 2, 3)
    dispute = begun(players["prover"])
    players["prover"].lie = "other state"
    over = played(dispute, players)
    assert (over.loser, over.why) == ("prover", "contradiction")


def test_a_prover_that_admits_the_honest_result_contradicts_its_commitment() -> None:
    """Having forged the leaf, it re-runs honestly when asked: that is a confession."""
    forged = Player(4, 8, wrong_step=2, wrong_operation=3)
    dispute = begun(forged)
    honest = Player(4, 8, leaves=forged.leaves)
    over = played(dispute, {"prover": honest, "challenger": Player(4, 8)})
    assert (over.loser, over.why) == ("prover", "contradiction")


@pytest.mark.parametrize("liar", SIDES)
@pytest.mark.parametrize("lie", ["chain", "another record"])
def test_an_answer_that_does_not_hang_together_loses(liar: Side, lie: str) -> None:
    players = sides(1, 8, 0, 3, liar)
    players[liar].lie = lie
    over = played(begun(players["prover"]), players)
    assert (over.loser, over.why) == (liar, "malformed")


def test_a_prover_without_proof_of_its_leaf_loses_and_a_challenger_needs_none() -> None:
    players = sides(4, 8, 2, 3)
    players["prover"].lie = "no proof"
    assert played(begun(players["prover"]), players).loser == "prover"
    players = sides(4, 8, 2, 3)
    players["challenger"].lie = "no proof"
    assert played(begun(players["prover"]), players).phase == "judging"


@pytest.mark.parametrize("liar", SIDES)
def test_an_honest_trace_behind_a_forged_result_is_a_contradiction(liar: Side) -> None:
    """The liar shows the trace of the honest step: its result is not what it said the step came to."""
    players = sides(1, 8, 0, 0, liar)
    forged = players[liar]
    honest = Player(1, 8)
    forged.records = honest.records  # type: ignore[method-assign]
    over = played(begun(players["prover"]), players)
    assert (over.loser, over.why) == (liar, "contradiction")


@pytest.mark.parametrize("liar", SIDES)
@pytest.mark.parametrize("operation", range(6))
def test_a_record_that_does_not_lead_to_the_next_one_loses(liar: Side, operation: int) -> None:
    """The liar shows an honest record in the place where its trace departs, so that nothing could be judged there."""
    players = sides(1, 8, 0, operation, liar)
    bent, right = players[liar], Player(1, 8)
    shown = [*bent.records(0)[:operation], right.records(0)[operation], *bent.records(0)[operation + 1 :]]
    bent.records = lambda step: shown  # type: ignore[method-assign]
    over = played(begun(players["prover"]), players)
    assert (over.loser, over.why) == (liar, "malformed")


@pytest.mark.parametrize("liar", SIDES)
def test_a_trace_that_ends_early_or_late_loses(liar: Side) -> None:
    players = sides(1, 8, 0, 8, liar)
    short = players[liar]
    records = Player(1, 8).records(0)[:5]
    short.operations = 5
    short.records = lambda step: records  # type: ignore[method-assign]
    over = played(begun(players["prover"]), players)
    assert (over.loser, over.why) == (liar, "malformed")


@pytest.mark.parametrize("phase", ["claims", "steps", "traces", "operations", "records", "inputs"])
@pytest.mark.parametrize("silent", [("prover",), ("challenger",), SIDES])
def test_silence_loses_in_every_phase_and_two_silent_sides_prove_nothing(phase: str, silent: tuple[Side, ...]) -> None:
    players = sides(8, 8, 3, 4)
    dispute = begun(players["prover"])
    for _ in range(40):
        if dispute.phase == phase:
            break
        for side in SIDES:
            query = disputes.query_for(dispute, side)
            assert query is not None
            dispute = disputes.answered(dispute, side, players[side].answer(query), 20.0)
    for side in SIDES:
        query = disputes.query_for(dispute, side)
        if side not in silent and query is not None:
            dispute = disputes.answered(dispute, side, players[side].answer(query), 20.0)
    over = disputes.overdue(dispute)
    assert (over.over, over.why) == (True, "silence")
    assert over.loser == (silent[0] if len(silent) == 1 else None)


def test_no_side_is_asked_the_same_twice_in_a_row() -> None:
    """A question that was just answered is not sent again, so a dispute that asks it anew would wait for ever."""
    for operation in range(7):
        players = sides(8, 8, 3, operation)
        dispute, before = begun(players["prover"]), None
        while (ask := disputes.question(dispute)) is not None:
            assert ask != before
            before = ask
            for side in SIDES:
                query = disputes.query_for(dispute, side)
                assert query is not None
                dispute = disputes.answered(dispute, side, players[side].answer(query), 20.0)


def test_saying_that_one_does_not_answer_is_silence() -> None:
    players = sides(4, 8, 2, 3)
    dispute = begun(players["prover"])
    query = disputes.query_for(dispute, "prover")
    assert query is not None
    over = disputes.answered(dispute, "prover", BisectAnswer(ID, query.ask, NoAnswer("no time")), 20.0)
    assert (over.loser, over.why) == ("prover", "silence")


def test_answers_to_other_questions_and_second_answers_change_nothing() -> None:
    players = sides(4, 8, 2, 3)
    dispute = begun(players["prover"])
    stray = BisectAnswer(ID, AskTrace(0), TraceAnswer(digest("root"), 8))
    assert disputes.answered(dispute, "prover", stray, 20.0) == dispute
    query = disputes.query_for(dispute, "prover")
    assert query is not None
    once = disputes.answered(dispute, "prover", players["prover"].answer(query), 20.0)
    assert disputes.answered(once, "prover", BisectAnswer(ID, query.ask, NoAnswer("changed my mind")), 20.0) == once
    assert disputes.query_for(once, "prover") is None


def test_an_answer_of_the_wrong_kind_loses() -> None:
    players = sides(4, 8, 2, 3)
    dispute = begun(players["prover"])
    odd = BisectAnswer(ID, AskState(3), TraceAnswer(digest("root"), 8))
    assert disputes.answered(dispute, "challenger", odd, 20.0).loser == "challenger"


def test_the_deadline_of_a_dispute_that_asks_nothing_any_more_harms_nobody() -> None:
    players = sides(4, 8, 2, 3)
    judging = played(begun(players["prover"]), players)
    assert disputes.overdue(judging) == judging
    unresolved = disputes.ruled(judging, None, "no sandbox here")
    assert (unresolved.winner, unresolved.why) == (None, "unresolved")
    assert disputes.overdue(unresolved) == unresolved


def test_a_dispute_survives_being_stored_in_every_phase() -> None:
    players = sides(8, 8, 3, 5)
    dispute = begun(players["prover"])
    for _ in range(40):
        stored = msgspec.json.encode(dispute)
        assert msgspec.json.decode(stored, type=Dispute) == dispute
        for side in SIDES:
            query = disputes.query_for(dispute, side)
            if query is not None:
                dispute = disputes.answered(dispute, side, players[side].answer(query), 20.0)
    assert dispute.phase == "judging"


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_hostile_bytes_decide_against_whoever_sent_them(leaf: bytes, record: bytes) -> None:
    players = sides(2, 8, 1, 3)
    dispute = begun(players["prover"])
    said = StateAnswer(digest(1), digest(2), digest(3), None, leaf, (hashlib.sha256(leaf).digest(),))
    assert disputes.answered(dispute, "prover", BisectAnswer(ID, AskState(1), said), 20.0).loser == "prover"
    while dispute.phase != "operations":
        for side in SIDES:
            query = disputes.query_for(dispute, side)
            assert query is not None
            dispute = disputes.answered(dispute, side, players[side].answer(query), 20.0)
    query = disputes.query_for(dispute, "challenger")
    assert query is not None
    odd = BisectAnswer(ID, query.ask, OperationAnswer(record, ()))
    assert disputes.answered(dispute, "challenger", odd, 20.0).loser == "challenger"
