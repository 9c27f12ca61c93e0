"""What the operator's own auditor decides, and what nobody else can decide in its place."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.domain.audits import penalty, trust
from coordinator.domain.audits.auditors import PEERS, awaits_look, choose_auditor, shared_history
from coordinator.domain.audits.rate import TRUST
from coordinator.domain.audits.trust import LOOKS, Audit, AuditorCandidate
from protocol.task import StepOpened
from tests.coordinator.audits.test_trust import AUDIT, address, opened, report

SHARE = 1_000
WATCHED = msgspec.structs.replace(AUDIT, watched=True, look=True, share=SHARE)
OWN = AuditorCandidate("own", address(90), address(190), "cpu", spare=True, operator=True)
OWN_AFAR = msgspec.structs.replace(OWN, lease="own afar", env_class="gpu")
PROVEN = [
    AuditorCandidate(f"p{n}", address(50 + n), address(150 + n), "cpu", spare=False, credit=TRUST * SHARE)
    for n in range(4)
]
STRANGER = AuditorCandidate("stranger", address(70), address(170), "cpu", spare=True, credit=TRUST * SHARE - 1)


def asked(audit: Audit, auditor: AuditorCandidate, verdict: str) -> Audit:
    """The audit after ``auditor`` was asked and has answered."""
    return trust.judged(trust.assigned(audit, auditor, 30.0), auditor.node, report(verdict), 40.0)


def shown(**changes: object) -> Audit:
    """The watched audit, opened."""
    return opened(msgspec.structs.replace(WATCHED, **changes))


def test_a_proven_node_of_another_owner_is_asked_before_the_operators_machine_and_a_stranger_never() -> None:
    assert choose_auditor(shown(), [STRANGER, OWN]) == OWN
    first = choose_auditor(shown(), [STRANGER, OWN, *PROVEN])
    assert first in PROVEN
    other_class = msgspec.structs.replace(PROVEN[0], env_class="gpu")
    assert choose_auditor(shown(ending=True), [other_class, OWN_AFAR]) == OWN_AFAR
    matched = asked(shown(), PROVEN[0], "match")
    assert (matched.state, choose_auditor(matched, [*PROVEN, OWN])) == ("replaying", OWN)


def test_nobody_but_the_operator_is_asked_without_end_before_a_look() -> None:
    audit = shown()
    for _ in range(PEERS):
        chosen = choose_auditor(audit, [*PROVEN, OWN])
        assert chosen is not None
        audit = trust.auditor_gone(trust.assigned(audit, chosen, 30.0), 40.0)
    assert choose_auditor(audit, [*PROVEN, OWN]) == OWN


def test_a_machine_of_the_operators_that_is_of_the_class_looks_bit_for_bit_where_there_is_one() -> None:
    assert choose_auditor(shown(ending=True), [OWN_AFAR, OWN]) == OWN
    assert choose_auditor(shown(), [OWN_AFAR]) is None, "without its ending only its like can run it"
    assert awaits_look(shown())
    assert not awaits_look(WATCHED), "it is not opened"


def test_owners_that_have_audited_this_one_least_are_asked_first() -> None:
    unwatched = opened(AUDIT)
    first = choose_auditor(unwatched, PROVEN)
    assert first is not None
    again = choose_auditor(unwatched, PROVEN, {first.payout: 1})
    assert again is not None
    assert again.payout != first.payout
    spare = msgspec.structs.replace(PROVEN[1], spare=True)
    assert choose_auditor(unwatched, [PROVEN[0], spare], {spare.payout: 3}) == PROVEN[0]


def test_an_owner_with_many_nodes_has_no_more_of_the_lot_than_one_with_one() -> None:
    crowd = [AuditorCandidate(f"c{n}", address(200 + n), address(400), "cpu", spare=False) for n in range(20)]
    alone = AuditorCandidate("alone", address(300), address(500), "cpu", spare=False)
    chosen = [
        choose_auditor(msgspec.structs.replace(opened(AUDIT), seed=f"{n:064x}"), [*crowd, alone]) for n in range(400)
    ]
    assert 150 < sum(found == alone for found in chosen) < 250


def test_history_is_counted_by_owner_and_the_operators_looks_are_none() -> None:
    audit = asked(asked(shown(), PROVEN[0], "match"), OWN, "match")
    assert shared_history([audit, audit], AUDIT.payout) == {PROVEN[0].payout: 2}
    assert shared_history([audit], address(1)) == {}


def test_other_nodes_alone_never_pass_what_a_look_is_due_of() -> None:
    matched = asked(shown(twice=True), PROVEN[0], "match")
    assert matched.state == "replaying"
    assert awaits_look(matched)
    assert asked(matched, OWN, "match").state == "passed"


@pytest.mark.parametrize("own", [OWN, OWN_AFAR])
def test_several_accusers_prove_nothing_against_the_operators_look(own: AuditorCandidate) -> None:
    """Two colluding owners cannot take an honest node's stake: a finding brings the look, and the look decides."""
    drawn = shown(look=False, ending=True)
    accused = asked(drawn, PROVEN[0], "mismatch")
    assert accused.look, "a finding is looked into"
    cleared = asked(accused, own, "match")
    assert (cleared.state, penalty.consequence(cleared, [])) == ("passed", "none")
    assert trust.contradicted(cleared) == (PROVEN[0].node,)
    both = asked(msgspec.structs.replace(accused, look=False), PROVEN[1], "mismatch")
    assert (both.state, both.look) == ("replaying", True)
    assert trust.overdue(both).blame == "unconfirmed"
    assert trust.given_up(both, "the job ended").blame == "unconfirmed"


def test_a_lie_that_the_operators_machine_and_another_owner_see_is_proven() -> None:
    accused = asked(shown(), PROVEN[0], "mismatch")
    proven = asked(accused, OWN, "mismatch")
    assert (proven.blame, penalty.consequence(proven, [])) == ("wrong", "ban")
    far = asked(shown(ending=True), PROVEN[0], "mismatch")
    one = asked(far, OWN_AFAR, "mismatch")
    assert (one.state, one.blame, penalty.consequence(one, [])) == ("failed", "distant", "unseat")


def test_what_is_too_far_off_for_the_operator_costs_the_share_and_the_second_round_the_seat_and_no_stake() -> None:
    far = asked(shown(ending=True), OWN_AFAR, "mismatch")
    assert (far.state, far.blame, penalty.consequence(far, [])) == ("failed", "distant", "share")
    assert penalty.falls(far)
    same_round = msgspec.structs.replace(far, id="another step")
    assert penalty.consequence(far, [same_round]) == "share", "it is one occasion"
    earlier = msgspec.structs.replace(far, round=far.round - 1)
    assert penalty.consequence(far, [earlier]) == "unseat"


def test_what_the_operators_machine_alone_finds_bit_for_bit_costs_the_share_unless_a_dispute_proves_more() -> None:
    alone = asked(shown(), OWN, "mismatch")
    assert (alone.state, len(trust.against(alone))) == ("replaying", 1), (
        "a dispute is opened, or another owner is asked"
    )
    ended = trust.overdue(alone)
    assert (ended.blame, penalty.consequence(ended, [])) == ("unconfirmed", "share")
    contradicted = asked(alone, PROVEN[0], "match")
    assert (contradicted.blame, trust.contradicted(contradicted)) == ("unconfirmed", (PROVEN[0].node,))
    assert trust.convicted(alone, "operation 3").blame == "wrong"
    assert trust.cleared(alone, "the operator's machine erred").state == "passed"


def test_a_false_accusation_by_a_friend_does_not_spare_a_look() -> None:
    accused = asked(shown(), PROVEN[0], "mismatch")
    cleared = trust.cleared(accused, "falsely accused")
    assert awaits_look(cleared)
    assert asked(cleared, OWN, "mismatch").state == "replaying", "the false word does not confirm the operator's"


@pytest.mark.parametrize("own", [OWN, OWN_AFAR])
def test_another_class_than_was_said_is_an_evasion_whoever_of_the_operators_sees_it(own: AuditorCandidate) -> None:
    assert asked(shown(ending=True), own, "incomparable").blame == "misstated"


def test_a_look_that_cannot_be_made_any_more_leaves_the_work_unpaid_and_blames_nobody() -> None:
    audit = shown()
    for number in range(LOOKS):
        assert awaits_look(audit), number
        audit = trust.auditor_gone(trust.assigned(audit, OWN, 30.0), 40.0)
    assert (audit.state, audit.blame) == ("void", "unlooked")
    assert (penalty.consequence(audit, []), penalty.falls(audit)) == ("share", True)
    earlier = msgspec.structs.replace(audit, round=audit.round - 1)
    assert penalty.consequence(audit, [earlier]) == "unseat", "its openings are deadly"
    ended = trust.given_up(shown(), "the job ended")
    assert penalty.consequence(ended, [ended]) == "share"
    assert trust.sent_away(WATCHED).blame == "unlooked"


def test_where_no_proven_node_is_here_the_operator_looks_at_what_an_unproven_one_has_drawn_of_it() -> None:
    nobody = trust.overdue(shown(look=False))
    assert awaits_look(nobody)
    proven = trust.overdue(shown(look=False, proven=True))
    assert (proven.state, penalty.consequence(proven, [])) == ("void", "none")
    once = asked(shown(look=False, proven=True, twice=True), PROVEN[0], "match")
    assert trust.overdue(once).state == "void", "two owners were asked for"


def test_what_only_a_blind_auditor_approved_is_looked_at_by_the_operator() -> None:
    passed = asked(shown(look=False), PROVEN[0], "match")
    again = trust.again(passed, PROVEN[0].node, 50.0)
    assert again is not None
    assert again.look
    assert trust.again(asked(asked(shown(), PROVEN[0], "match"), OWN, "match"), PROVEN[0].node, 50.0) is None


STEPS = st.sampled_from(["peer", "own", "afar", "lost", "late", "end", "clear", "refuse", "gone"])
VERDICTS = st.sampled_from(["match", "mismatch", "malformed", "incomparable"])


@settings(max_examples=500, deadline=None)
@given(st.booleans(), st.booleans(), st.booleans(), st.lists(st.tuples(STEPS, VERDICTS), max_size=14))
def test_no_story_pays_for_what_a_look_is_due_of_without_the_look(
    look: bool, twice: bool, proven: bool, story: list[tuple[str, str]]
) -> None:
    """Whatever others do and say: it passes by the operator's word, or is not paid; nor do they prove a lie alone."""
    audit = shown(look=look, twice=twice, proven=proven, ending=True)
    for step, verdict in story:
        audit = _follow(audit, step, verdict)
    audit = trust.given_up(audit, "the job ended") if not audit.over else audit
    own = [v.verdict for v in audit.verdicts if v.own]
    paid = penalty.consequence(audit, []) == "none"
    assert audit.over
    assert not (look and paid) or own[-1:] == ["match"] or audit.detail == "falsely accused by the operator"
    if audit.blame == "wrong":
        assert any(found != "match" for found in own), "the operator has seen it too"


def _follow(audit: Audit, step: str, verdict: str) -> Audit:
    if audit.over:
        return audit
    match step:
        case "peer" | "own" | "afar":
            pool = {"peer": PROVEN, "own": [OWN], "afar": [OWN_AFAR]}[step]
            chosen = choose_auditor(audit, pool)
            return audit if chosen is None else asked(audit, chosen, verdict)
        case "lost":
            chosen = choose_auditor(audit, [*PROVEN, OWN])
            return audit if chosen is None else trust.auditor_gone(trust.assigned(audit, chosen, 30.0), 40.0)
        case "late":
            return audit if awaits_look(audit) else trust.overdue(audit)
        case "clear" if trust.against(audit):
            by = "by the operator" if trust.against(audit)[-1].own else ""
            return trust.cleared(audit, f"falsely accused {by}".strip())
        case "refuse":
            return trust.opened(audit, StepOpened(AUDIT.id, None, "no"), 20.0)
        case "gone":
            return trust.prover_gone(audit)
        case _:
            return audit


@given(st.booleans(), st.integers(0, 4))
def test_who_leaves_when_it_is_drawn_begins_anew_and_the_third_time_loses_its_place(look: bool, before: int) -> None:
    gone = trust.prover_gone(msgspec.structs.replace(WATCHED, look=look))
    others = [msgspec.structs.replace(gone, round=number, id=f"{number}") for number in range(before)]
    assert penalty.falls(gone)
    again = before if gone.round in range(before) else before + 1
    assert penalty.consequence(gone, others) == ("unseat" if again > penalty.MAX_GONE else "forfeit")


def test_work_on_nothing_is_not_paid_and_nobody_is_blamed_for_it() -> None:
    said = msgspec.structs.replace(report("match"), vain=True)
    looked = trust.judged(trust.assigned(shown(), OWN, 30.0), OWN.node, said, 40.0)
    assert (looked.state, looked.blame, penalty.consequence(looked, [looked])) == ("failed", "vain", "share")
    assert penalty.falls(looked)
    by_another = trust.judged(trust.assigned(shown(look=False), PROVEN[0], 30.0), PROVEN[0].node, said, 40.0)
    assert by_another.state == "passed", "others' word takes nothing from anybody"
