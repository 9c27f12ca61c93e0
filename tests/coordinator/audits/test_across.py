"""Audits by machines of another environment class: they lower a prover's trust, and never cost it anything else."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.domain.audits import penalty, trust
from coordinator.domain.audits.auditors import alone, choose_auditor
from coordinator.domain.audits.trust import Audit, AuditorCandidate
from protocol.boundary import comparable_across
from protocol.job.job import TrainingSpec
from protocol.task import OpenStep, ReplayAcross, ReplayStep, StepOpened
from tests.coordinator.audits.test_trust import AUDIT, OPENING, SECOND, address, report

AFAR = [AuditorCandidate(f"far{n}", address(20 + n), address(120 + n), "gpu", spare=False) for n in range(3)]
ALONE = msgspec.structs.replace(AUDIT, ending=True)


def shown(audit: Audit = ALONE) -> Audit:
    return trust.opened(audit, StepOpened(AUDIT.id, OPENING), 20.0)


def looked(*found: str, audit: Audit | None = None) -> Audit:
    """The audit after machines of another class have reported."""
    audit = shown() if audit is None else audit
    for auditor, verdict in zip(AFAR, found, strict=False):
        audit = trust.judged(trust.assigned(audit, auditor, 30.0), auditor.node, report(verdict), 40.0)
    return audit


def test_only_who_is_alone_of_its_class_among_owners_is_asked_to_show_what_a_segment_came_to() -> None:
    assert alone("cpu", AUDIT.payout, AFAR)
    assert not alone("cpu", AUDIT.payout, [*AFAR, SECOND])
    assert not alone("cpu", AUDIT.payout, []), "there is nobody to show it to"
    own = msgspec.structs.replace(SECOND, payout=AUDIT.payout)
    assert alone("cpu", AUDIT.payout, [*AFAR, own]), "its own other machine is nobody else"
    assert ALONE.command_for("prover") == OpenStep(AUDIT.id, 1, 2, 1, ending=True)
    assert AUDIT.command_for("prover") == OpenStep(AUDIT.id, 1, 2, 1)


def test_a_machine_of_another_class_is_asked_only_where_the_ending_is_shown_and_nobody_of_the_class_is_here() -> None:
    assert choose_auditor(shown(AUDIT), AFAR) is None
    assert choose_auditor(shown(), AFAR) in AFAR
    assert choose_auditor(shown(), [*AFAR, SECOND]) == SECOND, "who came since compares bit for bit"
    mine = [msgspec.structs.replace(far, payout=AUDIT.payout) for far in AFAR]
    assert choose_auditor(shown(), mine) is None
    exact = trust.judged(trust.assigned(shown(), SECOND, 30.0), SECOND.node, report("mismatch"), 40.0)
    assert choose_auditor(exact, AFAR) is None, "what one of the class has found, only its like can confirm"


def test_the_command_names_the_provers_class_only_while_one_of_another_class_is_at_work() -> None:
    asked = trust.assigned(shown(), AFAR[0], 30.0).command_for("far0")
    assert isinstance(asked, ReplayAcross)
    assert (asked.env_class, asked.replay.opening) == ("cpu", OPENING)
    assert isinstance(trust.assigned(shown(), SECOND, 30.0).command_for("second"), ReplayStep)
    left = trust.auditor_gone(trust.assigned(shown(), AFAR[0], 30.0), 40.0)
    assert isinstance(trust.assigned(left, SECOND, 50.0).command_for("second"), ReplayStep)


def test_a_pass_across_classes_says_that_it_was_one() -> None:
    passed = looked("match")
    assert (passed.state, passed.across, passed.afar) == ("passed", True, False)
    assert passed.detail == "across environment classes: seen"
    both = msgspec.structs.replace(shown(), twice=True)
    assert looked("match", audit=both).state == "replaying"
    assert looked("match", "match", audit=both).state == "passed"


def test_a_failure_is_void_and_a_fault_and_a_second_machine_may_see_it_otherwise() -> None:
    once = looked("mismatch")
    assert (once.state, trust.against(once)) == ("replaying", ())
    for end in (trust.overdue(once), looked("mismatch", "mismatch"), looked("malformed", "incomparable")):
        assert (end.state, end.blame, end.across) == ("void", "distant", True)
        assert penalty.consequence(end, [end, end]) == "none"
    assert looked("mismatch", "match").state == "passed"


def test_one_of_the_class_that_came_meanwhile_decides_bit_for_bit() -> None:
    once = trust.assigned(looked("mismatch"), SECOND, 50.0)
    passed = trust.judged(once, SECOND.node, report("match"), 60.0)
    assert (passed.state, passed.across) == ("passed", False)
    accused = trust.judged(once, SECOND.node, report("mismatch"), 60.0)
    assert len(trust.against(accused)) == 1, "which is one finding, not two"
    assert trust.overdue(accused).blame == "unconfirmed"


STORY = st.sampled_from(["match", "mismatch", "malformed", "incomparable", "lost", "late"])


@settings(max_examples=300, deadline=None)
@given(st.lists(STORY, max_size=8), st.booleans(), st.integers(0, 3))
def test_no_story_that_only_other_classes_tell_costs_the_prover_anything_but_trust(
    story: list[str], twice: bool, there: int
) -> None:
    audit = msgspec.structs.replace(shown(), twice=twice)
    for step in story:
        chosen = choose_auditor(audit, AFAR[:there])
        if audit.state == "replaying" and audit.auditor is None and chosen is not None:
            audit = trust.assigned(audit, chosen, 30.0)
        if step == "late" and audit.auditor is None:
            audit = trust.overdue(audit)
        elif step == "lost":
            audit = trust.auditor_gone(audit, 40.0)
        elif step != "late":
            audit = trust.judged(audit, audit.auditor or "", report(step), 40.0)
    ended = trust.overdue(trust.auditor_gone(audit, 0.0))
    assert ended.state in ("passed", "void")
    assert ended.blame in ("", "distant")
    assert penalty.consequence(ended, [msgspec.structs.replace(ended, id=f"{n}") for n in range(9)]) == "none"
    assert trust.against(ended) == ()
    assert penalty.bond_goes(msgspec.structs.replace(ended, blame="")) in (None, "accused")


def test_what_has_no_distance_is_not_compared_across_classes() -> None:
    assert comparable_across(TrainingSpec(tokens=4096))
    assert not comparable_across(TrainingSpec(tokens=4096, outer="demo"))
    assert not comparable_across(TrainingSpec(tokens=4096, activations="aq4"))
    early = TrainingSpec(tokens=4096, outer="streaming", fragments=2, mixing=0.5, inner_steps=5, overlap=2)
    assert not comparable_across(early)
