"""A document's digest is of what it says: a later version's fields change none that is on a ledger already."""

from typing import Any

import msgspec
import pytest

from protocol.job.document_digest import document_digest
from protocol.job.job import JobSpec
from tests.coordinator.fakes import spec


def test_what_is_left_to_its_default_is_no_part_of_it_and_everything_else_is() -> None:
    plain = msgspec.to_builtins(spec())
    full = document_digest(spec())
    said: dict[str, Any] = {
        "name": plain["name"],
        "model": {"preset": "tiny-llama"},
        "dataset": {"artifact": plain["dataset"]["artifact"]},
        "budget": plain["budget"],
        "tokenizer": {"kind": "bytes"},
        "training": {
            key: plain["training"][key] for key in ("tokens", "sequence", "batch", "micro_batches", "inner_steps")
        },
        "parallel": {"stages": 2, "replicas": 2},
    }
    said["training"]["commit_every"] = 1
    assert document_digest(msgspec.convert(said, JobSpec)) == full
    assert document_digest(msgspec.convert(plain, JobSpec)) == full


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [(None, "note", "x"), ("training", "seed", 7), ("dataset", "heldout", 0.07), ("parallel", "replicas", 3)],
)
def test_each_thing_that_is_said_changes_it(part: str | None, field: str, value: object) -> None:
    plain = msgspec.to_builtins(spec())
    (plain if part is None else plain[part])[field] = value
    assert document_digest(msgspec.convert(plain, JobSpec)) != document_digest(spec())


def test_a_field_that_a_later_version_adds_changes_no_digest() -> None:
    class LaterSpec(JobSpec, frozen=True):
        wholly_new: int | None = None

    later = msgspec.convert(msgspec.to_builtins(spec()), LaterSpec)
    assert document_digest(later) == document_digest(spec())
    assert document_digest(msgspec.structs.replace(later, wholly_new=1)) != document_digest(spec())
