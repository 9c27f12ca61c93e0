"""The document of a federated job: what it may say, and what it says to whoever asks for something that would not hold."""

import msgspec
import pytest

from protocol.job.document_digest import document_digest
from protocol.job.job import JobSpec, total_steps

OWNERS = [letter * 40 for letter in "ABC"]


def document(**changes: object) -> dict[str, object]:
    """A federated job of three owners; ``changes`` name fields, one within another by ``__``."""
    found: dict[str, object] = {
        "name": "wards",
        "model": {"preset": "tiny"},
        "budget": 1,
        "tokenizer": {"kind": "bytes"},
        "federated": {"owners": OWNERS, "rounds": 4},
        "training": {"inner_steps": 5, "batch": 2, "micro_batches": 1, "sequence": 32},
    }
    for path, value in changes.items():
        *folders, name = path.split("__")
        place = found
        for folder in folders:
            place = place.setdefault(folder, {})  # type: ignore[assignment]
        place[name] = value
    return found


def read(**changes: object) -> JobSpec:
    return msgspec.convert(document(**changes), JobSpec)


def test_a_federated_job_lasts_as_many_rounds_as_its_document_says() -> None:
    spec = read()
    assert total_steps(spec.training, len(OWNERS)) == 4 * 5
    assert spec.training.tokens == 4 * 5 * 2 * 32 * 3


def test_a_document_that_was_read_is_read_the_same_again() -> None:
    spec = read(federated__privacy={"epsilon": 3.0, "adaptive": {"quantile": 0.7}})
    assert msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec) == spec


def test_updates_are_private_unless_the_document_says_that_they_are_not() -> None:
    assert read().federated.privacy.epsilon == 8.0  # type: ignore[union-attr]
    assert read(federated__privacy=None).federated.privacy is None  # type: ignore[union-attr]


SECURE: dict[str, object] = {"federated__sum": "secure", "federated__least_owners": 3}
EXAMPLE: dict[str, object] = {"unit": "example", "sampling": 0.01}
REFUSED = {
    "takes none of it: leave it out": {"federated__privacy": EXAMPLE | {"heldout": {"share": 0.2}}},
    "a bit with noise 1.5 tells as much as an update with noise 3:": {
        "federated__privacy": {
            "noise_multiplier": 1.5,
            "adaptive": {"bit_noise": 1.5},
            "heldout": {"share": 0.75},
        }
    },
    "names no dataset": {"dataset": {"artifact": "0" * 64}},
    "not tried with the model of a federated job": {"evaluation": {"tasks": ["arc_easy"]}},
    "made from data, which stays": {"tokenizer__kind": "bpe"},
    "one stage, the whole model": {"parallel": {"stages": 2}},
    "leave parallel out": {"parallel": {"replicas": 2}},
    "leave training.tokens out": {"training__tokens": 7},
    "an update is made once a round": {"training__outer": "gradients"},
    "leave round_seconds and period out": {"training__round_seconds": 9.0},
    "sends later what clip and noise": {"training__error_feedback": 0.5},
    "deals one dataset to all replicas": {"training__sampling": "epochs"},
    "made in float32": {"training__precision": "fp16"},
    "leave one of them out": {"serve": {}, "model": {"from_job": "0" * 32}},
    "twice: name each owner": {"federated__owners": [OWNERS[0], OWNERS[0]]},
    "no round could begin": {"federated__least_owners": 4},
    "length >= 2": {"federated__owners": OWNERS[:1]},
    "federated.privacy.epsilon": {"federated__privacy": {"epsilon": 0}},
    "privacy.sampling is missing": {"federated__privacy": {"unit": "example"}},
    "gradients are clipped: leave it out": {"federated__privacy": EXAMPLE | {"adaptive": {}}},
    "or set unit to example": {"federated__privacy": {"sampling": 0.1}},
    "Expected .*<= 0.5": {"federated__privacy": EXAMPLE | {"sampling": 0.6}},
    "noise is in each owner's own steps": SECURE | {"federated__privacy": EXAMPLE},
    "Set it to 3 or more; with more, each has less noise": {"federated__sum": "secure"},
    "hides two updates from nobody": {"federated__sum": "secure", "federated__owners": OWNERS[:2]},
    "with noise on their sum: give federated.privacy": SECURE | {"federated__privacy": None},
    "looks at single updates, and a secure sum shows none": SECURE | {"training__aggregation": "trimmed"},
}


@pytest.mark.parametrize(("said", "changes"), REFUSED.items(), ids=list(REFUSED))
def test_what_could_not_hold_is_refused_with_the_way_out(said: str, changes: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError, match=said):
        read(**changes)


def test_sums_are_open_unless_the_document_says_otherwise_and_that_changes_no_digest() -> None:
    """Who joined before there were secure sums has agreed to a document that did not name them."""
    assert read().federated.sum == "open"  # type: ignore[union-attr]
    assert document_digest(read()) == document_digest(read(federated__sum="open"))
    assert read(**SECURE).federated.sum == "secure"  # type: ignore[union-attr]
    assert document_digest(read(**SECURE)) != document_digest(read(federated__least_owners=3))


def test_the_unit_is_an_owner_unless_the_document_says_otherwise_and_that_changes_no_digest() -> None:
    assert document_digest(read()) == document_digest(read(federated__privacy={"unit": "owner"}))
    spec = read(federated__privacy=EXAMPLE)
    assert spec.federated is not None
    assert spec.federated.per_example
    assert not read().federated.per_example  # type: ignore[union-attr]
    assert msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec) == spec
    assert document_digest(spec) != document_digest(read(federated__privacy=EXAMPLE | {"sampling": 0.02}))


def test_a_job_that_learns_from_nothing_is_told_of_all_three_ways() -> None:
    nothing = document()
    del nothing["federated"]
    with pytest.raises(msgspec.ValidationError, match=r"dataset is missing.*federated.*serve"):
        msgspec.convert(nothing, JobSpec)
