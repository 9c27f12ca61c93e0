"""A leaf that contradicts its member's commitment proves the lie, whoever shows it. Nothing else that is shown proves one."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.domain.audits import penalty, trust
from coordinator.domain.audits.trust import Audit, AuditorCandidate
from protocol.audit import ProvenLeaf, StepLeaf
from protocol.codec import encode
from protocol.merkle import MerkleTree
from protocol.task import AuditReport
from tests.coordinator.audits.test_trust import SECOND, opened
from tests.coordinator.fakes import digest

STEPS = 4


def leaf(step: int, **changes: object) -> StepLeaf:
    gradient = digest("gradient") if step == STEPS - 1 else None
    honest = StepLeaf(
        4 + step,
        "cpu",
        digest("samples"),
        (),
        (),
        None,
        None,
        digest("anchor"),
        local=digest("local"),
        pseudo_gradient=gradient,
    )
    return msgspec.structs.replace(honest, **changes)


def round_of(change: Callable[[int], StepLeaf]) -> tuple[Audit, list[ProvenLeaf]]:
    """An audit that waits for its auditor, of a round with these leaves, and the leaves with their paths."""
    leaves = [change(step) for step in range(STEPS)]
    tree = MerkleTree([encode(one) for one in leaves])
    shown = [ProvenLeaf(step, one, tree.proof(step).path) for step, one in enumerate(leaves)]
    audit = msgspec.structs.replace(opened(), root=tree.root.hex(), leaves=STEPS, local=digest("local"), watched=True)
    return audit, shown


def judged(audit: Audit, *proof: ProvenLeaf, auditor: AuditorCandidate = SECOND, verdict: str = "mismatch") -> Audit:
    report = AuditReport(audit.id, verdict, "seen", proof=proof)  # type: ignore[arg-type]
    return trust.judged(trust.assigned(audit, auditor, 30.0), auditor.node, report, 40.0)


LIES: dict[str, tuple[int, dict[str, object]]] = {
    "binds another contribution": (3, {"pseudo_gradient": digest("a tenth of it")}),
    "binds no contribution": (3, {"pseudo_gradient": None}),
    "carries something on that was not committed to": (3, {"carried": digest("more")}),
    "began with another anchor": (0, {"anchor": digest("mine")}),
    "began with something else carried over": (1, {"local": digest("mine")}),
}


@pytest.mark.parametrize("operator", [False, True])
@pytest.mark.parametrize("lie", LIES)
def test_one_auditor_who_shows_the_leaf_is_enough(lie: str, operator: bool) -> None:
    place, changes = LIES[lie]
    audit, shown = round_of(lambda step: leaf(step, **(changes if step == place else {})))
    one = msgspec.structs.replace(SECOND, operator=operator)
    caught = judged(audit, shown[place], auditor=one)
    assert (caught.state, caught.blame) == ("failed", "wrong")
    assert penalty.consequence(caught, []) == "ban"
    assert caught.detail != "seen", "the words are the coordinator's own"
    without = judged(audit, auditor=one)
    assert without.blame != "wrong", "a word alone proves nothing"


def test_leaves_that_contradict_each_other_prove_it_where_nobody_knows_what_was_agreed_on() -> None:
    audit, shown = round_of(lambda step: leaf(step, anchor=digest("anchor", step == 0)))
    audit = msgspec.structs.replace(audit, anchor=None, local=None)
    assert judged(audit, shown[0]).blame != "wrong"
    assert judged(audit, shown[0], shown[3]).blame == "wrong"


def test_it_proves_the_lie_of_a_machine_of_another_class_too() -> None:
    audit, shown = round_of(lambda step: leaf(step, pseudo_gradient=digest("another")))
    far = msgspec.structs.replace(SECOND, env_class="cuda", operator=True)
    assert judged(audit, shown[3], auditor=far).blame == "wrong"


def test_a_test_of_an_auditor_is_not_answered_with_a_proof() -> None:
    audit, shown = round_of(lambda step: leaf(step, pseudo_gradient=digest("another")))
    answered = judged(msgspec.structs.replace(audit, canary=True), shown[3])
    assert (answered.state, answered.blame) == ("passed", "")


@given(
    place=st.integers(0, STEPS),
    path=st.sampled_from(range(STEPS)),
    invented=st.sampled_from([{}, *(changes for _, changes in LIES.values())]),
    twice=st.booleans(),
    verdict=st.sampled_from(["match", "mismatch", "malformed", "incomparable"]),
)
def test_nobody_is_convicted_by_leaves_that_are_not_its_own(
    place: int, path: int, invented: dict[str, object], twice: bool, verdict: str
) -> None:
    audit, shown = round_of(leaf)
    false = ProvenLeaf(place, leaf(min(place, STEPS - 1), **invented), shown[path].path)
    after = judged(audit, *([shown[0], false] if twice else [false]), verdict=verdict)
    assert after.blame != "wrong"
