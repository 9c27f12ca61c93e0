"""The demo's checks can fail: each one does for the fault that it is there for."""

import msgspec
import pytest

from cottage.demo.report import DemoOutcome, Losses, Money, checks, document
from protocol.job.job import DatasetSpec, JobSpec, ModelSpec
from protocol.rest import api

NODE, LIAR = "1" * 32, "2" * 32
SPEC = JobSpec(name="x", model=ModelSpec(preset="tiny-llama"), dataset=DatasetSpec(artifact="0" * 64), budget=100)
QUOTE = api.Quote(
    operations=1.0,
    parameters=1,
    tokens=1,
    stages=1,
    replicas=1,
    nodes_available=2,
    rounds=1,
    hours=0.1,
    price=90,
    price_low=80,
    price_high=100,
    memory_mb_per_stage=(1,),
    limit="",
)
JOB = api.JobView(
    id="a" * 32,
    name="x",
    state="settled",
    reason="",
    spec=SPEC,
    submitter=NODE,
    created=0.0,
    ended=1.0,
    quote=QUOTE,
    rounds_total=1,
    rounds_done=1,
    tokens_done=10,
    tokens_total=10,
    tokens_per_second=1.0,
    train_loss=4.0,
    validation_loss=4.0,
    first_validation_loss=7.6,
    escrow=100,
    paid=90,
    refunded=10,
    bytes_sent=5,
    bytes_naive=100,
    bytes_artifacts=7,
    audits=1,
    model=None,
    eta_seconds=None,
    agreement=api.Agreement(2, 0, 2),
)
WORKER = api.JobNode(
    node=NODE,
    name="node1",
    device="cpu",
    stage=0,
    replica=0,
    state="done",
    rounds=1,
    steps=5,
    tokens=10,
    operations=9,
    audits_passed=1,
    audits_failed=0,
    verified=90,
    paid=90,
    bytes_sent=5,
)
COMMIT = api.CommitView(
    round=0,
    epoch=1,
    stage=0,
    replica=0,
    node=NODE,
    root="0" * 64,
    leaves=5,
    tokens=10,
    operations=9,
    drawable=True,
    state="verified",
    amount=90,
)
AUDIT = api.AuditView(
    audit="b" * 32, round=0, step=2, stage=0, replica=0, node=NODE, auditor=LIAR, state="passed", detail=""
)
RECEIPT = api.Receipt(kind="settle", signature="s", state="confirmed", amount=90, time=1.0, detail="")
GOOD = DemoOutcome(
    job=JOB,
    nodes=[WORKER],
    commits=[COMMIT],
    audits=[AUDIT],
    receipts=[RECEIPT],
    money=Money(100, 90, 10, 0),
    losses=Losses(7.6, 4.0, 3.5, 4.0),
    seconds=1.0,
    model_dir="m",
    sample="def f():",
    web="http://x",
    liar=None,
    faults=(),
    auditors=frozenset({LIAR}),
)


def but(**changes: object) -> DemoOutcome:
    return msgspec.structs.replace(GOOD, **changes)


def held(outcome: DemoOutcome, word: str) -> bool:
    return next(value for name, value in checks(outcome).items() if word in name)


def test_a_good_run_passes_every_check() -> None:
    assert all(checks(GOOD).values())


@pytest.mark.parametrize(
    ("word", "outcome"),
    [
        ("settled", but(job=msgspec.structs.replace(JOB, state="failed"))),
        ("escrow =", but(money=Money(100, 90, 9, 0))),
        ("escrow =", but(money=Money(0, 0, 0, 0))),
        ("paid what was verified", but(nodes=[msgspec.structs.replace(WORKER, paid=80)])),
        ("audited or could", but(commits=[msgspec.structs.replace(COMMIT, drawable=False, round=3)])),
        ("machine looked", but(auditors=frozenset())),
        ("machine looked", but(audits=[msgspec.structs.replace(AUDIT, state="void")])),
        ("confirmed on the ledger", but(receipts=[msgspec.structs.replace(RECEIPT, state="sent")])),
        ("came to the same", but(job=msgspec.structs.replace(JOB, agreement=api.Agreement(1, 1, 2)))),
        ("came to the same", but(job=msgspec.structs.replace(JOB, agreement=None))),
        ("model folder", but(losses=Losses(7.6, 4.0, 3.5, 4.2))),
        ("model folder", but(losses=Losses(7.6, None, 3.5, 4.0))),
        ("more than half", but(losses=Losses(7.6, 6.0, 3.5, 6.0))),
        ("no audit failed", but(audits=[msgspec.structs.replace(AUDIT, state="failed", blame="wrong")])),
        ("no audit failed", but(audits=[msgspec.structs.replace(AUDIT, state="failed", blame="gone")])),
        (
            "no audit failed",
            but(audits=[msgspec.structs.replace(AUDIT, state="failed", blame="wrong")], faults=("node2 was killed",)),
        ),
        ("nobody was slashed", but(money=Money(100, 90, 10, 5))),
        ("liar was caught", but(liar=LIAR)),
        ("liar lost stake", but(liar=LIAR)),
        ("liar was not paid", but(liar=NODE)),
    ],
)
def test_each_check_fails_for_its_fault(word: str, outcome: DemoOutcome) -> None:
    assert not held(outcome, word)


def test_a_killed_node_that_could_not_open_its_step_is_no_failure() -> None:
    gone = msgspec.structs.replace(AUDIT, state="failed", blame="gone")
    assert held(but(audits=[gone], faults=("node2 was killed",)), "no audit failed")


def test_without_a_reference_there_is_no_claim_about_it() -> None:
    outcome = but(losses=Losses(7.6, 4.0, None, 4.0))
    assert not any("half" in name for name in checks(outcome))
    assert document(outcome)["recovered"] is None


def test_the_document_is_plain_data_with_the_documented_keys() -> None:
    found = document(GOOD)
    assert msgspec.json.encode(found)
    for key in ("loss_before", "loss_after", "loss_single_process", "bytes_sent", "bytes_naive", "escrow", "paid"):
        assert found[key] is not None
    for key in ("refunded", "rounds", "audits", "model_dir", "nodes", "checks", "recovered", "slashed"):
        assert key in found
    assert found["recovered"] == pytest.approx(3.6 / 4.1)
