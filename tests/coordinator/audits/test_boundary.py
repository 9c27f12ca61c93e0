"""What two members say crossed between them: what of the one belongs to what of the other, and what follows."""

from typing import Any

import msgspec
import pytest

from coordinator.domain.audits import boundary, trust
from coordinator.domain.audits.trust import Audit, Side
from protocol.audit import LeafShown, OpeningMade, StepLeaf, StepOpened
from protocol.boundary import PayloadKey, Position, crossings, position_of
from protocol.codec import encode
from protocol.job.job import TrainingSpec
from protocol.merkle import MerkleTree
from protocol.plan import Layers, Member, Plan
from tests.coordinator.audits.test_trust import AUDIT
from tests.coordinator.rerun import digest

SEATS = [(stage, replica) for replica in range(2) for stage in range(3)]
PLAN = Plan(1, tuple(Layers(n, n + 1) for n in range(3)), tuple(Member(s, p, f"{s}{p}" * 16) for s, p in SEATS))
PLAIN: dict[str, Any] = {"tokens": 4096, "sequence": 32, "batch": 4, "micro_batches": 2, "inner_steps": 4}
KINDS = [{"clip_norm": None}, {"clip_norm": 1.0}, {"activations": "aq4"}, {"outer": "gradients"}]
AUDITED = (1, 0)
OTHER_END = {"activation": 1, "gradient": -1}


def training(**fields: Any) -> TrainingSpec:
    return msgspec.convert({**PLAIN, **fields}, TrainingSpec)


def payload(sender: tuple[int, int], key: PayloadKey) -> str:
    return digest(sender, key)


def leaf_of(place: Position, micros: int, lied: tuple[str, PayloadKey] | None = None) -> StepLeaf:
    """A leaf of an honest member, but for one digest that it gives otherwise."""
    here = (place.stage, place.replica)

    def sender(key: PayloadKey) -> tuple[int, int]:
        if key[0] == "exchange":
            return place.stage, key[1]
        return place.stage - OTHER_END.get(key[0], 0), place.replica

    sent = [digest("lie") if lied == ("sent", key) else payload(here, key) for key in place.produced(micros)]
    received = [
        digest("lie") if lied == ("received", key) else payload(sender(key), key) for key in place.expected(micros)
    ]
    return StepLeaf(9, "cpu", digest("samples"), tuple(received), tuple(sent), None, None, digest("anchor"))


def shown(spec: TrainingSpec, lies: dict[tuple[int, int], tuple[str, PayloadKey]]) -> Audit:
    """An audit of stage 1 of replica 0, to which all that it exchanges with have shown their leaves."""
    micros, sides, paths = crossings(spec), [], {}
    for seat in SEATS:
        if seat != AUDITED and not boundary.exchanges(PLAN, spec, AUDITED, seat):
            continue
        leaf = encode(leaf_of(position_of(PLAN, *seat, spec), micros, lies.get(seat)))
        tree = MerkleTree([b"before", leaf, b"after"])
        lease = f"{seat}"
        sides.append(Side(*seat, lease, tree.root.hex(), 3))
        paths[lease] = LeafShown(AUDIT.id, leaf, tree.proof(1).path)
    audit = msgspec.structs.replace(
        AUDIT, plan=PLAN, stage=1, replica=0, step=1, first_step=8, state="opening", sides=tuple(sides)
    )
    for lease, report in paths.items():
        audit = boundary.shown(audit, lease, report)
    assert not any(side.awaited or side.silent for side in audit.sides)
    return audit


def with_whom(spec: TrainingSpec) -> list[tuple[int, int]]:
    return [seat for seat in SEATS if boundary.exchanges(PLAN, spec, AUDITED, seat)]


def test_a_member_exchanges_with_its_pipeline_neighbours_and_where_the_method_says_so_with_its_replicas() -> None:
    assert with_whom(training()) == [(0, 0), (2, 0)]
    assert with_whom(training(outer="gradients")) == [(0, 0), (2, 0), (1, 1)]


@pytest.mark.parametrize("fields", KINDS, ids=lambda fields: next(iter(fields.items())))
def test_honest_leaves_of_any_kind_of_step_say_the_same(fields: dict[str, Any]) -> None:
    spec = training(**fields)
    after, doubtful = boundary.compared(shown(spec, {}), spec)
    assert (after.apart, doubtful) == ((), ())


@pytest.mark.parametrize("fields", KINDS, ids=lambda fields: next(iter(fields.items())))
def test_each_single_digest_that_one_says_otherwise_names_just_the_neighbour_that_it_went_to_or_came_from(
    fields: dict[str, Any],
) -> None:
    spec, tried = training(**fields), 0
    here = position_of(PLAN, *AUDITED, spec)
    for seat in with_whom(spec):
        there = position_of(PLAN, *seat, spec)
        for sender, receiver in ((here, there), (there, here)):
            for key in sender.hands(receiver, crossings(spec)):
                for liar, way in ((sender, "sent"), (receiver, "received")):
                    audit = shown(spec, {(liar.stage, liar.replica): (way, key)})
                    after, doubtful = boundary.compared(audit, spec)
                    assert [side.seat for side in doubtful] == [seat], (seat, key, way)
                    assert after.apart == (seat,)
                    tried += 1
    assert tried >= 2 * 2 * 2 * 2, "both neighbours, both ways, both micro-batches, both liars"


def test_a_leaf_from_elsewhere_is_none_at_all() -> None:
    spec = training()
    side = shown(spec, {}).sides[0]
    asked = msgspec.structs.replace(side, leaf=None)
    audit = msgspec.structs.replace(shown(spec, {}), sides=(asked,))
    other = MerkleTree([b"another", side.leaf or b"", b"root"])
    wrong_root = boundary.shown(audit, side.lease, LeafShown(audit.id, side.leaf, other.proof(1).path))
    nothing = boundary.shown(audit, side.lease, LeafShown(audit.id, None))
    for after in (wrong_root, nothing):
        assert after.sides[0].silent
        assert after.sides[0].leaf is None
    assert boundary.shown(audit, "another lease", LeafShown(audit.id, None)) == audit


def test_a_neighbour_that_shows_nothing_is_looked_at_and_one_that_left_is_not() -> None:
    spec = training()
    audit = shown(spec, {})
    first = msgspec.structs.replace(audit.sides[0], leaf=None)
    waiting = msgspec.structs.replace(audit, sides=(first, *audit.sides[1:]))
    after, doubtful = boundary.compared(boundary.overdue(waiting), spec)
    assert (after.apart, [side.seat for side in doubtful]) == ((), [first.seat])
    gone = boundary.present(waiting, {side.lease for side in audit.sides[1:]})
    assert boundary.compared(boundary.overdue(gone), spec)[1] == ()


def test_bytes_that_are_no_leaf_of_such_a_step_put_their_member_in_doubt() -> None:
    spec = training()
    audit = shown(spec, {})
    for odd in (b"no leaf", encode(leaf_of(Position(0, 1), 0))):
        strange = msgspec.structs.replace(audit.sides[0], leaf=odd)
        after, doubtful = boundary.compared(msgspec.structs.replace(audit, sides=(strange, *audit.sides[1:])), spec)
        assert (after.apart, [side.seat for side in doubtful]) == ((), [strange.seat])


def test_whoever_opens_its_step_but_keeps_its_leaf_back_is_not_passed() -> None:
    own = Side(AUDIT.stage, AUDIT.replica, AUDIT.lease, AUDIT.root, AUDIT.leaves)
    asked = msgspec.structs.replace(AUDIT, sides=(own,))
    opened = trust.opened(asked, StepOpened(AUDIT.id, digest("opening")), 20.0)
    assert (opened.state, opened.unopened) == ("opening", False), "it waits for the leaves"
    replaying = trust.compared(boundary.overdue(opened), 20.0)
    auditor = trust.AuditorCandidate("lease", "node", "payout", AUDIT.env_class, spare=True)
    passed = trust.judged(trust.assigned(replaying, auditor, 30.0), "node", trust.AuditReport(AUDIT.id, "match"), 40.0)
    assert (passed.state, passed.blame) == ("failed", "refused")


def test_leaves_are_compared_while_the_opening_is_on_its_way() -> None:
    own = Side(AUDIT.stage, AUDIT.replica, AUDIT.lease, AUDIT.root, AUDIT.leaves)
    made = trust.made(msgspec.structs.replace(AUDIT, sides=(own,)), OpeningMade(AUDIT.id, digest("opening")))
    assert (made.state, made.command_for(AUDIT.lease)) == ("opening", None), "the neighbours' records are still needed"
    assert made.question_for(AUDIT.lease) is not None
    coming = trust.compared(boundary.overdue(made), 20.0)
    assert (coming.state, coming.deadline) == ("showing", AUDIT.deadline)
    here = trust.opened(coming, StepOpened(AUDIT.id, digest("opening")), 20.0)
    assert (here.state, here.deadline) == ("replaying", 20.0)
    early = trust.opened(made, StepOpened(AUDIT.id, digest("opening")), 20.0)
    assert (early.state, trust.compared(early, 20.0).state) == ("opening", "replaying")
