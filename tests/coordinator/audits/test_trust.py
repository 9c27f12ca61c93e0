"""An audit has one way through each story; honest nodes are never slashed."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.domain.audits import penalty, trust
from coordinator.domain.audits.auditors import awaits_look, choose_auditor, refusal
from coordinator.domain.audits.rate import SLASH_BPS
from coordinator.domain.audits.trust import Audit, AuditorCandidate
from protocol.audit import OpenOuter, OuterRecord, ReplayOuter
from protocol.identity import NodeKey
from protocol.task import (
    EVASION_AGAIN_S,
    EVASION_BPS,
    TAMPER_AGAIN_S,
    TAMPER_BPS,
    AuditReport,
    Layers,
    OpeningMade,
    OpenStep,
    Plan,
    ReplayStep,
    StepOpened,
)
from tests.coordinator.fakes import digest


def address(number: int) -> str:
    return NodeKey(number.to_bytes(32, "big")).address


PLAN = Plan(1, (Layers(0, 1),), ())
OPENING = digest("opening")
AUDIT = Audit(
    id="a" * 32,
    job="b" * 32,
    epoch=1,
    round=2,
    step=1,
    stage=0,
    replica=0,
    lease="prover",
    node=address(1),
    payout=address(101),
    env_class="cpu",
    plan=PLAN,
    first_step=4,
    total_steps=8,
    root=digest("root"),
    leaves=2,
    pseudo_gradient=digest("gradient"),
    anchor=digest("anchor"),
    deadline=9.0,
)
SECOND = AuditorCandidate("second", address(2), address(102), "cpu", spare=False)
THIRD = AuditorCandidate("third", address(3), address(103), "cpu", spare=True)


def report(verdict: str) -> AuditReport:
    return msgspec.convert({"type": "audit", "audit": AUDIT.id, "verdict": verdict, "detail": "seen"}, AuditReport)


def opened(audit: Audit = AUDIT) -> Audit:
    return trust.opened(audit, StepOpened(AUDIT.id, OPENING), 20.0)


def evaded(*blames: trust.Blame) -> list[Audit]:
    """Audits that failed before, each under a lease of its own."""
    failed = [msgspec.structs.replace(AUDIT, id=f"{n}", lease=f"lease {n}", state="failed") for n in range(len(blames))]
    return [msgspec.structs.replace(audit, blame=blame) for audit, blame in zip(failed, blames, strict=True)]


def judged_by(*verdicts: str) -> Audit:
    """The audit after these auditors have reported."""
    audit = opened()
    for auditor, verdict in zip((SECOND, THIRD), verdicts, strict=False):
        audit = trust.judged(trust.assigned(audit, auditor, 30.0), auditor.node, report(verdict), 40.0)
    return audit


def test_the_auditor_is_another_node_of_another_owner_and_the_same_environment() -> None:
    same_owner = AuditorCandidate("x", address(4), AUDIT.payout, "cpu", spare=True)
    other_class = AuditorCandidate("y", address(5), address(105), "gpu", spare=True)
    itself = AuditorCandidate("z", AUDIT.node, address(106), "cpu", spare=True)
    assert choose_auditor(AUDIT, [same_owner, other_class, itself]) is None
    chosen = choose_auditor(AUDIT, [same_owner, other_class, itself, SECOND, THIRD])
    assert chosen == THIRD  # A spare has the time.


def test_the_second_auditor_is_of_yet_another_owner() -> None:
    asked = trust.assigned(opened(), SECOND, 30.0)
    accused = trust.judged(asked, SECOND.node, report("mismatch"), 40.0)
    sibling = AuditorCandidate("sibling", address(6), SECOND.payout, "cpu", spare=True)
    ready = [SECOND, sibling, THIRD]
    assert choose_auditor(accused, ready) == THIRD


def test_a_match_passes() -> None:
    audit = trust.judged(trust.assigned(opened(), SECOND, 30.0), SECOND.node, report("match"), 40.0)
    assert audit.state == "passed"
    assert penalty.consequence(audit, evaded("refused")) == "none"


def test_one_accusation_waits_for_a_second_auditor() -> None:
    audit = trust.judged(trust.assigned(opened(), SECOND, 30.0), SECOND.node, report("mismatch"), 40.0)
    assert (audit.state, audit.auditor) == ("replaying", None)


def test_two_accusations_ban() -> None:
    audit = trust.judged(trust.assigned(opened(), SECOND, 30.0), SECOND.node, report("mismatch"), 40.0)
    audit = trust.judged(trust.assigned(audit, THIRD, 50.0), THIRD.node, report("malformed"), 60.0)
    assert (audit.state, audit.blame) == ("failed", "wrong")
    assert penalty.consequence(audit, []) == "ban"


def test_a_second_auditor_who_finds_nothing_clears_the_prover() -> None:
    audit = trust.judged(trust.assigned(opened(), SECOND, 30.0), SECOND.node, report("mismatch"), 40.0)
    audit = trust.judged(trust.assigned(audit, THIRD, 50.0), THIRD.node, report("match"), 60.0)
    assert audit.state == "passed"


def test_one_accusation_costs_the_share_and_no_more_where_no_second_auditor_exists() -> None:
    audit = trust.judged(trust.assigned(opened(), SECOND, 30.0), SECOND.node, report("malformed"), 40.0)
    audit = trust.overdue(audit)
    assert (audit.state, audit.blame) == ("failed", "unconfirmed")
    assert penalty.consequence(audit, evaded(*["unconfirmed"] * 5)) == "forfeit"


def test_a_class_that_two_auditors_find_misstated_costs_the_share_and_the_second_time_the_place_but_no_stake() -> None:
    audit = judged_by("incomparable", "incomparable")
    assert (audit.state, audit.blame) == ("failed", "misstated")
    assert penalty.consequence(audit, []) == "forfeit"
    assert penalty.consequence(audit, evaded("gone", "wrong")) == "forfeit"
    assert penalty.consequence(audit, evaded("misstated")) == "expel"
    assert penalty.consequence(audit, evaded("refused")) == "expel"


def test_a_misstated_class_found_by_the_only_auditor_is_not_void() -> None:
    audit = trust.overdue(judged_by("incomparable"))
    assert (audit.state, audit.blame) == ("failed", "misstated")


def test_one_auditor_of_a_falsely_registered_class_harms_nobody_where_a_second_one_is() -> None:
    assert judged_by("incomparable").state == "replaying"
    assert judged_by("incomparable", "match").state == "passed"


@pytest.mark.parametrize("verdicts", [("incomparable", "mismatch"), ("malformed", "incomparable")])
def test_of_two_different_findings_the_milder_one_is_believed(verdicts: tuple[str, str]) -> None:
    audit = judged_by(*verdicts)
    assert (audit.state, audit.blame) == ("failed", "misstated")


def test_a_refusal_after_a_misstated_class_costs_the_place_but_no_stake() -> None:
    assert penalty.consequence(trust.overdue(AUDIT), evaded("misstated")) == "expel"


def test_auditors_are_told_what_was_committed_and_agreed() -> None:
    asked = trust.assigned(opened(), SECOND, 30.0).command_for("second")
    assert isinstance(asked, ReplayStep)
    assert (asked.root, asked.pseudo_gradient, asked.anchor) == (AUDIT.root, AUDIT.pseudo_gradient, AUDIT.anchor)


def test_a_prover_that_left_forfeits_its_share_and_no_stake() -> None:
    audit = trust.prover_gone(AUDIT)
    assert (audit.state, audit.blame) == ("failed", "gone")
    assert penalty.consequence(audit, evaded(*["refused"] * 5)) == "forfeit"


def test_a_prover_that_was_told_to_begin_anew_is_not_to_blame_for_what_it_cannot_open() -> None:
    assert (trust.sent_away(AUDIT).state, penalty.consequence(trust.sent_away(AUDIT), [])) == ("void", "none")
    assert trust.sent_away(opened()) == opened(), "what is opened already can be run again by others"


def test_a_prover_that_refuses_twice_loses_its_place_and_never_its_stake() -> None:
    refused = trust.opened(AUDIT, StepOpened(AUDIT.id, None, "lost it"), 20.0)
    assert penalty.consequence(refused, evaded("gone")) == "forfeit"
    assert penalty.consequence(refused, evaded("refused")) == "expel"
    assert penalty.consequence(trust.overdue(AUDIT), evaded("refused")) == "expel"


def test_a_machine_that_hangs_once_is_not_blamed_for_each_opening_that_it_misses_meanwhile() -> None:
    missed = [msgspec.structs.replace(trust.overdue(AUDIT), id=f"{n}") for n in range(3)]
    assert penalty.consequence(missed[2], missed[:2]) == "forfeit"
    came_back = msgspec.structs.replace(missed[2], lease="another")
    assert penalty.consequence(came_back, missed[:2]) == "expel"


def test_silence_in_a_dispute_costs_a_place_in_the_end_but_no_stake_while_nobody_else_has_seen_a_lie() -> None:
    accused = msgspec.structs.replace(judged_by("mismatch"), silent=True)
    lone = trust.overdue(accused)
    assert (lone.state, lone.blame) == ("failed", "refused")
    assert penalty.consequence(lone, []) == "forfeit"
    seen = trust.judged(trust.assigned(accused, THIRD, 50.0), THIRD.node, report("mismatch"), 60.0)
    assert (seen.blame, penalty.consequence(seen, [])) == ("wrong", "ban")


OUTER = msgspec.structs.replace(
    AUDIT,
    step=2,
    outer=trust.OuterClaim({0: digest("g")}, OuterRecord(digest("x"), digest("y")), digest("p"), {0: 3}),
)


def test_an_outer_step_is_opened_and_run_again_by_any_class() -> None:
    assert OUTER.command_for("prover") == OpenOuter(AUDIT.id, 1, 2)
    other_class = AuditorCandidate("y", address(5), address(105), "gpu", spare=True)
    assert choose_auditor(AUDIT, [other_class]) is None
    assert choose_auditor(OUTER, [other_class]) == other_class
    asked = trust.assigned(opened(OUTER), other_class, 30.0).command_for("y")
    assert isinstance(asked, ReplayOuter)
    assert (asked.contributors, asked.parameters, asked.opening) == ({0: digest("g")}, digest("p"), OPENING)
    assert asked.weights == {0: 3}


def test_a_prover_that_leaves_after_it_has_opened_is_still_judged() -> None:
    assert trust.prover_gone(opened()).state == "replaying"


def test_an_opening_on_its_way_is_asked_for_no_more_and_must_be_the_one_that_was_made() -> None:
    made = trust.made(AUDIT, OpeningMade(AUDIT.id, OPENING))
    assert (made.state, made.unopened, made.deadline) == ("showing", True, AUDIT.deadline)
    assert AUDIT.command_for("prover") is not None
    assert made.command_for("prover") is None, "its records may be gone by now"
    assert opened(made).state == "replaying"
    another = OpeningMade(AUDIT.id, digest("another"))
    other = trust.opened(made, StepOpened(AUDIT.id, another.opening), 20.0)
    assert (other.state, other.blame) == ("failed", "refused")
    assert trust.made(made, another) == made, "it is held to the first"
    assert trust.overdue(made).blame == "refused"
    assert trust.prover_gone(made).blame == "gone"
    assert trust.sent_away(made).state == "void"
    assert trust.made(opened(), OpeningMade(AUDIT.id, OPENING)) == opened(), "it comes late"


def test_a_verdict_of_somebody_who_was_not_asked_counts_nothing() -> None:
    asked = trust.assigned(opened(), SECOND, 30.0)
    assert trust.judged(asked, THIRD.node, report("mismatch"), 40.0) == asked


def test_a_lost_auditor_is_replaced_and_not_asked_again() -> None:
    lost = trust.auditor_gone(trust.assigned(opened(), SECOND, 30.0), 40.0)
    assert choose_auditor(lost, [SECOND, THIRD]) == THIRD
    assert choose_auditor(lost, [SECOND]) is None


def test_commands_follow_the_state() -> None:
    assert AUDIT.command_for("prover") == OpenStep(AUDIT.id, 1, 2, 1)
    assert AUDIT.command_for("second") is None
    asked = trust.assigned(opened(), SECOND, 30.0)
    assert isinstance(asked.command_for("second"), ReplayStep)
    assert asked.command_for("prover") is None


STEPS = st.sampled_from(
    ["open", "refuse", "match", "mismatch", "malformed", "incomparable", "gone", "lost", "late", "assign"]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=12), st.booleans())
def test_no_story_of_an_honest_prover_ends_in_a_ban(story: list[str], honest: bool) -> None:
    audit, auditors = (
        AUDIT,
        [AuditorCandidate(f"l{i}", address(10 + i), address(110 + i), "cpu", False) for i in range(4)],
    )
    for step in story:
        if honest and step in ("mismatch", "malformed", "incomparable", "refuse", "late"):
            continue
        audit = follow(audit, step, auditors)
    if honest:
        assert penalty.consequence(audit, []) in ("none", "forfeit")
        assert audit.blame in ("", "gone")
    finished = trust.overdue(trust.auditor_gone(audit, 0.0))
    assert finished.over, "an audit always comes to an end"


def follow(audit: Audit, step: str, auditors: list[AuditorCandidate]) -> Audit:
    match step:
        case "open":
            return opened(audit)
        case "refuse":
            return trust.opened(audit, StepOpened(AUDIT.id, None, "no"), 20.0)
        case "gone":
            return trust.prover_gone(audit)
        case "lost":
            return trust.auditor_gone(audit, 20.0)
        case "late":
            return trust.overdue(audit)
        case "assign":
            chosen = choose_auditor(audit, auditors)
            return (
                trust.assigned(audit, chosen, 20.0)
                if chosen and audit.state == "replaying" and not audit.auditor
                else audit
            )
        case _:
            return trust.judged(audit, audit.auditor or "", report(step), 20.0)


@pytest.mark.parametrize(
    ("challenger", "stake", "reason"),
    [
        (SECOND, 100, ""),
        (SECOND, 99, "its stake of 99 is less than 100"),
        (msgspec.structs.replace(SECOND, node=AUDIT.node), 100, "the work is its own"),
        (msgspec.structs.replace(SECOND, payout=AUDIT.payout), 100, "the work is its own"),
        (msgspec.structs.replace(SECOND, env_class="gpu"), 100, "it is of environment class gpu, the step of cpu"),
    ],
)
def test_who_challenges_is_somebody_else_of_the_same_class_with_something_to_lose(
    challenger: AuditorCandidate, stake: int, reason: str
) -> None:
    assert refusal(AUDIT.node, AUDIT.payout, challenger, AUDIT.env_class, stake, 100) == reason


def test_a_challenger_re_runs_the_step_itself_and_somebody_else_confirms() -> None:
    audit = msgspec.structs.replace(opened(), challenger=SECOND.node)
    assert choose_auditor(audit, [THIRD]) is None, "nobody else is asked for it"
    assert choose_auditor(audit, [THIRD, SECOND]) == SECOND
    assert choose_auditor(trust.assigned(audit, SECOND, 30.0), [THIRD, SECOND]) == THIRD


def test_a_look_that_is_due_does_not_wait_for_a_challenger_that_is_gone() -> None:
    operator = AuditorCandidate("fourth", "4" * 44, "4" * 44, AUDIT.env_class, True, operator=True)
    challenged = msgspec.structs.replace(opened(), challenger=SECOND.node, watched=True)
    assert choose_auditor(challenged, [operator]) is None
    due = trust.overdue(challenged)
    assert due.look
    assert choose_auditor(due, [operator, SECOND]) == SECOND, "who asked for it is here after all"
    assert choose_auditor(due, [operator]) == operator


def test_an_auditor_of_the_operators_is_not_waited_for_where_only_who_trains_the_stage_could() -> None:
    passed = msgspec.structs.replace(judged_by("match"), watched=True, proven=True)
    again = trust.again(passed, SECOND.node, 50.0)
    assert again is not None
    assert awaits_look(again)
    theirs = trust.again(msgspec.structs.replace(passed, anchor_in="auditor"), SECOND.node, 50.0)
    assert theirs is not None
    assert not awaits_look(theirs)
    assert trust.overdue(theirs).over


def test_a_canary_that_is_found_right_costs_its_auditor_the_place_and_nobody_a_stake() -> None:
    passed = judged_by("match")
    canary = trust.canary(passed, "c" * 32, bytes(32), digest("forged"), digest("forged root"), 50.0)
    assert (canary.state, canary.verdicts, canary.tried) == ("replaying", (), (SECOND.node,))
    asked = trust.assigned(canary, THIRD, 60.0)
    blind = trust.judged(asked, THIRD.node, report("match"), 70.0)
    assert (blind.state, blind.blame) == ("failed", "blind")
    assert penalty.consequence(blind, []) == "expel"
    seeing = trust.judged(asked, THIRD.node, report("mismatch"), 70.0)
    assert (seeing.state, seeing.over) == ("passed", True)
    assert trust.overdue(canary).state == "void"


def test_a_step_that_two_have_to_find_right_passes_with_the_second_and_is_void_where_there_is_none() -> None:
    twice = msgspec.structs.replace(opened(), twice=True)
    once = trust.judged(trust.assigned(twice, SECOND, 30.0), SECOND.node, report("match"), 40.0)
    assert once.state == "replaying"
    assert trust.overdue(once).state == "void", "one owner's word is not what was asked for"
    assert trust.judged(trust.assigned(once, THIRD, 50.0), THIRD.node, report("match"), 60.0).state == "passed"
    assert trust.judged(trust.assigned(once, THIRD, 50.0), THIRD.node, report("mismatch"), 60.0).state == "replaying"


def test_a_dispute_convicts_or_clears_without_a_second_auditor() -> None:
    accused = judged_by("mismatch")
    assert penalty.consequence(trust.convicted(accused, "operation 3"), []) == "ban"
    assert trust.cleared(accused, "falsely accused").state == "passed"
    over = trust.overdue(AUDIT)
    assert trust.convicted(over, "late") == over == trust.cleared(over, "late")


def test_what_only_a_blind_auditor_approved_is_looked_at_again_by_somebody_else() -> None:
    passed = judged_by("match")
    again = trust.again(passed, SECOND.node, 50.0)
    assert again is not None
    assert (again.state, again.verdicts, again.opening) == ("replaying", (), OPENING)
    assert again.id != passed.id
    assert choose_auditor(again, [SECOND, THIRD]) == THIRD
    assert trust.again(passed, THIRD.node, 50.0) is None
    assert trust.again(judged_by("mismatch", "match"), SECOND.node, 50.0) is None, "somebody else has looked"


@pytest.mark.parametrize(
    ("last", "granted", "now", "costs"),
    [
        (0.0, 90.0, 100.0, 0),  # Never before.
        (80.0, 70.0, 100.0, 0),  # The lease ran already when it was told of: the same occasion.
        (80.0, 80.0, 100.0, 0),
        (80.0, 90.0, 100.0, TAMPER_BPS),
        (80.0, 90.0, 80.0 + TAMPER_AGAIN_S, TAMPER_BPS),
        (80.0, 90.0, 81.0 + TAMPER_AGAIN_S, 0),
    ],
)
def test_a_hand_in_a_job_costs_stake_when_it_comes_again_within_a_month(
    last: float, granted: float, now: float, costs: int
) -> None:
    assert penalty.tampering_costs(last, granted, now) == costs


def test_what_was_told_by_the_accused_costs_far_less_than_a_lie() -> None:
    assert 0 < TAMPER_BPS * 10 <= SLASH_BPS


@pytest.mark.parametrize(
    ("last", "granted", "now", "costs"),
    [
        (0.0, 50.0, 100.0, 0),
        (80.0, 50.0, 100.0, None),
        (80.0, 80.0, 100.0, None),
        (80.0, 90.0, 100.0, EVASION_BPS),
        (80.0, 90.0, 80.0 + EVASION_AGAIN_S, EVASION_BPS),
        (80.0, 90.0, 81.0 + EVASION_AGAIN_S, 0),
        (80.0, 80.0, 81.0 + EVASION_AGAIN_S, None),
    ],
)
def test_evading_audits_costs_stake_when_it_comes_again_within_a_month_after_it_was_told(
    last: float, granted: float, now: float, costs: int | None
) -> None:
    assert penalty.evasion_costs(last, granted, now) == costs


def test_what_nobody_has_seen_costs_far_less_than_a_lie_and_more_than_what_is_told() -> None:
    assert TAMPER_BPS < EVASION_BPS <= SLASH_BPS // 10


# --- openings without their anchor --------------------------------------------------------------------------------------

SHORT = msgspec.structs.replace(AUDIT, anchor_in="auditor")
BESIDE = AuditorCandidate("beside", address(4), address(104), "cpu", spare=False, stage=AUDIT.stage)
BESIDE_TOO = AuditorCandidate("beside too", address(5), address(105), "cpu", spare=False, stage=AUDIT.stage)
ELSEWHERE = AuditorCandidate("elsewhere", address(6), address(106), "cpu", spare=False, stage=AUDIT.stage + 1)


def found(audit: Audit, auditor: AuditorCandidate, anchor: str | None, verdict: str = "mismatch") -> Audit:
    said = msgspec.structs.replace(report(verdict), anchor=anchor)
    return trust.judged(trust.assigned(audit, auditor, 30.0), auditor.node, said, 40.0)


def test_an_opening_without_its_anchor_goes_to_who_trains_the_stage_alone() -> None:
    asked = SHORT.command_for("prover")
    assert asked == OpenStep(AUDIT.id, 1, 2, 1, anchored=False)
    assert AUDIT.command_for("prover") == OpenStep(AUDIT.id, 1, 2, 1)
    audit = opened(SHORT)
    assert choose_auditor(audit, [SECOND, THIRD, ELSEWHERE]) is None
    assert choose_auditor(audit, [SECOND, THIRD, ELSEWHERE, BESIDE]) == BESIDE
    command = trust.assigned(audit, BESIDE, 30.0).command_for("beside")
    assert isinstance(command, ReplayStep)
    assert (command.anchor_in, command.anchor) == ("auditor", AUDIT.anchor)
    assert found(audit, BESIDE, None, "match").state == "passed"


@pytest.mark.parametrize("anchor", [None, digest("another anchor")])
def test_who_finds_something_and_does_not_store_the_anchor_has_found_nothing(anchor: str | None) -> None:
    after = found(opened(SHORT), BESIDE, anchor)
    assert (after.verdicts, after.auditor, after.anchor_in) == ((), None, "auditor")
    assert choose_auditor(after, [BESIDE, BESIDE_TOO]) == BESIDE_TOO
    assert trust.overdue(after).state == "void"


def test_with_the_stored_anchor_everybody_can_confirm_what_was_found() -> None:
    after = found(opened(SHORT), BESIDE, AUDIT.anchor)
    assert (after.anchor_in, after.state) == ("artifact", "replaying")
    assert choose_auditor(after, [BESIDE, SECOND]) == SECOND
    again = trust.assigned(after, SECOND, 30.0)
    command = again.command_for("second")
    assert isinstance(command, ReplayStep)
    assert command.anchor_in == "artifact"
    assert trust.judged(again, SECOND.node, report("mismatch"), 40.0).blame == "wrong"
    assert trust.judged(again, SECOND.node, report("match"), 40.0).state == "passed"
