"""The agent's own door for a worker that reads its owner's data: what passes, what is counted, and what it never says."""

from pathlib import Path

import msgspec
import pytest

from common.untrusted_text import untrusted
from desktop.agent.errors import SettingsError, WorkerError, WorkerProtocolError
from desktop.agent.federated import federation_words
from desktop.agent.federated.federated_gate import LONGER, SAYS_NO_MORE, USED_UP, FederatedGate
from desktop.agent.federated.memberships import JoinedFederation, Memberships
from protocol.artifacts import audit_answer, state_answer, summand_answer
from protocol.audit import OpenStep
from protocol.federated.federations import FederationTold, terms_digest
from protocol.federated.sums import SumBegins, SumStep
from protocol.identity import NodeKey
from protocol.job.federated import AdaptiveClipping, FederatedSpec, HeldoutLoss, PrivacySpec
from protocol.job.job import DatasetSpec, JobSpec, ModelSpec, TokenizerSpec
from protocol.node import Assign
from protocol.plan import Layers, Member, Plan
from protocol.task import (
    ApplyRound,
    BeginRound,
    KeptState,
    Progress,
    RoundApplied,
    RoundCommit,
    RoundHolding,
    StepOpened,
    TaskFailed,
    TaskReady,
    Validation,
    WorkerLog,
    WorkerLogLine,
)
from protocol.worker import PeerSend, TensorName

JOB, LEASE, OTHER = "a" * 32, "b" * 32, "c" * 32
OWNERS = ("A" * 40, "B" * 40)
DIGEST = "d" * 64
SECRET = untrusted("the patient in bed 7")


def spec_of(privacy: PrivacySpec | None, budget: int = 1) -> JobSpec:
    federated = FederatedSpec(OWNERS, 3, privacy=privacy)
    return JobSpec("wards", ModelSpec("tiny-llama"), budget, tokenizer=TokenizerSpec("bytes"), federated=federated)


SPEC = spec_of(PrivacySpec(noise_multiplier=2.0, most_rounds=3))


def begin(number: int, epoch: int = 1, **more: object) -> BeginRound:
    plan = Plan(epoch, (Layers(0, 2),), (Member(0, 0, OWNERS[0]),))
    return BeginRound(plan, number, 0, 5, 15, **more)  # type: ignore[arg-type]


def assign(spec: JobSpec = SPEC, lease: str = LEASE) -> Assign:
    return Assign(lease, 1, JOB, spec, 0, 0, begin(0).plan, {})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "notes.txt").write_text("notes")
    return tmp_path / "notes.txt"


def joined(tmp_path: Path, data: Path, spec: JobSpec = SPEC, most: int | None = 3) -> Memberships:
    known = Memberships(tmp_path / "federations.json")
    one = JoinedFederation(
        JOB, "wards", "http://here", str(data), DatasetSpec("0" * 64), terms_digest(spec), most, 8.0, 1e-5
    )
    known.add(one)
    return known


def test_a_seat_is_taken_only_for_what_the_owner_has_agreed_to(tmp_path: Path, data: Path) -> None:
    known = joined(tmp_path, data)
    FederatedGate(assign(), known).check_joined()
    FederatedGate(
        assign(msgspec.structs.replace(SPEC, budget=99)), known
    ).check_joined()  # The budget is nothing of theirs.
    weaker = spec_of(PrivacySpec(epsilon=80.0, noise_multiplier=2.0, most_rounds=3))
    with pytest.raises(WorkerError, match="something else than its owner has agreed to"):
        FederatedGate(assign(weaker), known).check_joined()
    with pytest.raises(WorkerError, match="has not joined"):
        FederatedGate(assign(), Memberships(tmp_path / "other.json")).check_joined()
    data.unlink()
    with pytest.raises(WorkerError, match="not there any more"):
        FederatedGate(assign(), known).check_joined()


def test_rounds_are_counted_on_the_disk_and_none_is_begun_beyond_the_budget(tmp_path: Path, data: Path) -> None:
    gate = FederatedGate(assign(), joined(tmp_path, data))
    assert gate.passed(begin(0)) is not None
    assert gate.passed(begin(0)) is not None, "the same command again is the same round"
    assert Memberships(tmp_path / "federations.json").joined[JOB].begun == 1
    again = FederatedGate(assign(lease=OTHER), Memberships(tmp_path / "federations.json"))  # The agent has begun anew.
    assert again.passed(begin(0)) is not None, "another lease sends another update of the round, so it counts"
    assert again.passed(begin(1)) is not None
    assert again.passed(begin(2)) is None
    assert again.refused == USED_UP
    assert again.passed(begin(1)) is None, "it goes on no further"
    assert Memberships(tmp_path / "federations.json").joined[JOB].begun == 3


def test_a_lease_that_is_granted_anew_makes_another_update_of_a_round_so_it_counts(tmp_path: Path, data: Path) -> None:
    """Else a coordinator could have one round's update with other noise as often as it likes, and take the noise off."""
    known = joined(tmp_path, data)
    for _ in range(3):
        assert FederatedGate(assign(), known).passed(begin(0)) is not None
    assert known.joined[JOB].begun == 3
    assert FederatedGate(assign(), known).passed(begin(0)) is None


def test_leaving_and_joining_again_does_not_begin_the_count_anew(tmp_path: Path, data: Path) -> None:
    known = joined(tmp_path, data)
    assert FederatedGate(assign(), known).passed(begin(0)) is not None
    known.leave(JOB)
    assert known.joined == {}
    assert FederatedGate(assign(), known).passed(begin(1)) is None
    assert joined(tmp_path, data).joined[JOB].begun == 1


def test_what_cannot_be_counted_is_not_begun(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = joined(tmp_path, data)
    gate = FederatedGate(assign(), known)

    def full(_self: Path, _mode: str = "r", **_more: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    assert gate.passed(begin(0)) is None
    assert "No space left" in gate.refused


def test_a_damaged_memory_stops_the_agent_rather_than_forget(tmp_path: Path) -> None:
    (tmp_path / "federations.json").write_text("[{")
    with pytest.raises(SettingsError, match="so no federation goes on"):
        Memberships(tmp_path / "federations.json")


def test_no_command_reaches_the_worker_that_would_show_anything(tmp_path: Path, data: Path) -> None:
    gate = FederatedGate(assign(), joined(tmp_path, data))
    moments = KeptState(DIGEST, (OWNERS[1],))
    passed = gate.passed(begin(0, validate=True, moments=moments))
    assert isinstance(passed, BeginRound)
    assert (passed.validate, passed.moments) == (False, None)
    assert gate.passed(ApplyRound(1, 0, {})) == ApplyRound(1, 0, {})
    assert gate.passed(OpenStep("e" * 32, 1, 0, 0)) is None


def test_a_report_loses_what_is_of_the_data(tmp_path: Path, data: Path) -> None:
    gate = FederatedGate(assign(), joined(tmp_path, data))
    commit = RoundCommit(1, 0, DIGEST, 5, DIGEST, 100, 1000, loss=2.5, left_out=3)
    assert gate.said(commit) == msgspec.structs.replace(commit, loss=None, left_out=0)
    assert gate.said(Progress(1, 0, 3, 60, 2.5)) == Progress(1, 0, 3, 60)
    failed = gate.said(TaskFailed(SECRET, cause="inputs"))
    assert failed == TaskFailed(untrusted(SAYS_NO_MORE))
    assert SECRET in (tmp_path / "federations.log").read_text(), "its owner finds why"
    for passes in (TaskReady("cpu", 5), RoundHolding(1, 0, {0: DIGEST}), RoundApplied(1, 0, DIGEST, DIGEST)):
        assert gate.said(passes) == passes
    line = WorkerLogLine(1.0, "info", SECRET)
    for stays in (WorkerLog((line,)), Validation(1, 0, 2.5, 100), StepOpened("e" * 32, DIGEST)):
        assert gate.said(stays) is None


def test_losses_pass_where_the_owners_have_agreed_to_no_limit(tmp_path: Path, data: Path) -> None:
    spec = spec_of(None)
    gate = FederatedGate(assign(spec), joined(tmp_path, data, spec, None))
    assert gate.said(Progress(1, 0, 3, 60, 2.5)) == Progress(1, 0, 3, 60, 2.5)
    for number in range(9):
        assert gate.passed(begin(number)) is not None, "there is no budget to use up"


def test_with_secure_sums_nothing_goes_to_others_and_masked_updates_are_stored(tmp_path: Path, data: Path) -> None:
    three = (*OWNERS, "C" * 40)
    asked = FederatedSpec(three, 3, 3, PrivacySpec(noise_multiplier=2.0, most_rounds=3), "secure")
    spec = JobSpec("wards", ModelSpec("tiny-llama"), 1, tokenizer=TokenizerSpec("bytes"), federated=asked)
    known = joined(tmp_path, data, spec)
    gate = FederatedGate(assign(spec), known)
    with pytest.raises(WorkerProtocolError, match="that stays here"):
        gate.check_send(PeerSend(0, 1, TensorName("pseudo_gradient", 1, 0, 0, 0)))
    gate.check_upload(summand_answer(1, 0))
    step = SumStep(1, 0, SumBegins(10))
    assert gate.passed(step) == step
    assert gate.sums(None, None) is None, "without the node's key there is no part in a sum"  # type: ignore[arg-type]
    known.key = NodeKey(bytes(32))
    assert gate.sums(None, None) is not None  # type: ignore[arg-type]
    open_gate = FederatedGate(assign(), known)
    assert open_gate.sums(None, None) is None  # type: ignore[arg-type]
    with pytest.raises(WorkerProtocolError, match="that stays here"):
        open_gate.check_upload(summand_answer(1, 0))


def test_an_owner_is_told_what_a_secure_sum_promises_and_on_what_it_rests() -> None:
    owners = tuple(letter * 40 for letter in "ABCDEFGH")
    asked = FederatedSpec(owners, 3, 6, PrivacySpec(noise_multiplier=2.0, most_rounds=3), "secure")
    spec = JobSpec("wards", ModelSpec("tiny-llama"), 1, tokenizer=TokenizerSpec("bytes"), federated=asked)
    said = " ".join(federation_words.asked(FederationTold(JOB, spec=spec, parameters=1000)))
    assert "with 1 times that length of noise on it, masked so that nobody can read it" in said
    assert "only the sum of 6 owners or more can be read" in said
    assert "(2 of 8 at most) are in league with the coordinator" in said
    assert "whose own noise is 1 and not 2 times the length" in said
    plain = " ".join(federation_words.asked(FederationTold(JOB, spec=SPEC, parameters=1000)))
    assert "league" not in plain


EXAMPLE = spec_of(PrivacySpec("example", noise_multiplier=1.5, sampling=0.01, most_rounds=3))


def test_where_each_step_tells_of_an_example_no_longer_round_is_begun(tmp_path: Path, data: Path) -> None:
    gate = FederatedGate(assign(EXAMPLE), joined(tmp_path, data, EXAMPLE))
    agreed = EXAMPLE.training.inner_steps
    assert gate.passed(msgspec.structs.replace(begin(0), steps=agreed)) is not None
    assert gate.passed(msgspec.structs.replace(begin(1), steps=agreed + 1)) is None
    assert gate.refused == LONGER
    assert Memberships(tmp_path / "federations.json").joined[JOB].begun == 1
    other = FederatedGate(assign(), joined(tmp_path / "other", data) if (tmp_path / "other").mkdir() is None else None)
    assert other.passed(msgspec.structs.replace(begin(0), steps=agreed + 1)) is not None, (
        "an update tells no more for it"
    )


def test_an_owner_is_told_that_the_promise_is_about_one_example_and_what_that_leaves_out() -> None:
    said = " ".join(federation_words.asked(FederationTold(JOB, spec=EXAMPLE, parameters=1000)))
    assert (
        "In each step every example (a row of a table, or a line of a text) counts with a gradient that is cut" in said
    )
    assert "1.5 times that length of noise on their sum" in said
    assert "tell of any one example of your data at most epsilon 8 at delta 1e-05" in said
    assert "Who stands in 10 of them has up to 10 times this epsilon, and how many you have is not hidden" in said
    whole = " ".join(federation_words.asked(FederationTold(JOB, spec=SPEC, parameters=1000)))
    assert "tell of your data, taken as one, at most" in whole
    assert "ONE EXAMPLE" not in whole


def test_nothing_but_contributions_goes_to_others_and_nothing_but_shared_states_is_stored(
    tmp_path: Path, data: Path
) -> None:
    gate = FederatedGate(assign(), joined(tmp_path, data))
    for kind in ("pseudo_gradient", "shard", "result"):
        gate.check_send(PeerSend(0, 1, TensorName(kind, 1, 0, 0, 0)))  # type: ignore[arg-type]
    for kind in ("activation", "exchange", "validation"):
        with pytest.raises(WorkerProtocolError, match="that stays here"):
            gate.check_send(PeerSend(0, 1, TensorName(kind, 1, 0, 0, 0)))  # type: ignore[arg-type]
    gate.check_upload(state_answer(1, 0))
    with pytest.raises(WorkerProtocolError, match="that stays here"):
        gate.check_upload(audit_answer("e" * 32))


HELD = spec_of(PrivacySpec(noise_multiplier=2.0, most_rounds=3, heldout=HeldoutLoss(one_in=12)))
FOLLOWED = spec_of(PrivacySpec(noise_multiplier=2.0, most_rounds=3, adaptive=AdaptiveClipping()))


def summed(spec: JobSpec) -> JobSpec:
    assert spec.federated is not None
    asked = msgspec.structs.replace(spec.federated, owners=(*OWNERS, "C" * 40), least_owners=3, sum="secure")
    return JobSpec(spec.name, spec.model, 1, tokenizer=spec.tokenizer, federated=asked)


@pytest.mark.parametrize(
    ("spec", "passes"),
    [(SPEC, ()), (HELD, ("heldout",)), (FOLLOWED, ("unclipped",)), (summed(HELD), ()), (summed(FOLLOWED), ())],
)
def test_a_loss_or_a_bit_leaves_only_where_the_owner_has_agreed_to_it(
    tmp_path: Path, data: Path, spec: JobSpec, passes: tuple[str, ...]
) -> None:
    """In a secure sum they are parts of it, so no worker says them by themselves."""
    gate = FederatedGate(assign(spec), joined(tmp_path, data, spec))
    said = gate.said(RoundCommit(1, 0, DIGEST, 5, DIGEST, 10, 10, 3.5, unclipped=0.5, heldout=2.5))
    assert isinstance(said, RoundCommit)
    assert said.loss is None
    due = {"unclipped": 0.5, "heldout": 2.5}
    assert {name: getattr(said, name) for name in due} == {
        name: value if name in passes else None for name, value in due.items()
    }


def test_owners_are_told_that_a_part_is_held_back_and_its_loss_told() -> None:
    def asked(spec: JobSpec) -> str:
        return " ".join(federation_words.asked(FederationTold(JOB, spec=spec, parameters=1000)))

    assert "One in 12 pieces of your data is held back" in asked(HELD)
    assert "which takes 10% of the budget." in asked(HELD)
    assert "no other loss and no count" in asked(HELD)
    assert "can be read only as a part of that sum" in asked(summed(HELD))
    assert "held back" not in asked(SPEC)
    assert "no loss and no count" in asked(SPEC)
