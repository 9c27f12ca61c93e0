"""What a model cannot answer is refused by whoever holds it, too, in the coordinator's words: private words never pass that."""

from pathlib import Path
from typing import Any

import pytest

from protocol.asking import NO_TEMPLATE, fault_of
from protocol.serving import GenerateCommand
from tests.trainer.serve.test_grammar import folder  # noqa: F401 - a fixture
from trainer.errors import DataError
from trainer.serve.loading import load
from trainer.serve.requests import Requests

LONGEST = 128
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
HI = {"role": "user", "content": "Hi"}


@pytest.fixture(scope="module")
def requests(folder: Path) -> Requests:  # noqa: F811
    """Of a model without a chat template, whose first adapter brings one."""
    return Requests(load(folder, "cpu"), LONGEST, [TEMPLATE, None])


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"messages": (HI,)}, "no-template"),
        ({"messages": (HI,), "adapter": 2}, "no-template"),
        ({"messages": ({"role": "wizard", "content": "Hi"},), "adapter": 1}, "bad-message"),
        ({"messages": (HI, {"role": "user"}), "adapter": 1}, "bad-message"),
        ({"messages": (HI,), "tokens": LONGEST + 1, "adapter": 1}, "too-many"),
        ({"prompt": "Hi", "tokens": LONGEST + 1}, "too-many"),
    ],
)
def test_it_is_refused_in_the_words_of_the_coordinator(requests: Requests, asked: dict[str, Any], code: str) -> None:
    command = GenerateCommand("1", **asked)
    with pytest.raises(DataError) as refused:
        requests.read(command)
    expected = fault_of(command, LONGEST, TEMPLATE if asked.get("adapter") == 1 else "")
    assert (refused.value.code, refused.value.detail) == expected
    assert refused.value.code == code
    if code == "no-template":
        assert refused.value.detail == NO_TEMPLATE


def test_an_answer_ends_where_the_model_reads_no_further(requests: Requests) -> None:
    read = requests.read(GenerateCommand("1", "Hi there", tokens=LONGEST))
    assert read.most == LONGEST - len(read.prompt)
    assert requests.read(GenerateCommand("1", messages=(HI,), adapter=1, tokens=5)).most == 5
    with pytest.raises(DataError, match="reads 60 tokens"):
        requests.read(GenerateCommand("1", "Hi", tokens=61), 60)
