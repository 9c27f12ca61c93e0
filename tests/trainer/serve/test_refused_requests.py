"""What a model cannot answer is refused by whoever holds it, too, in the coordinator's words: private words never pass that."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.domain.serving import context_of
from protocol import serving
from protocol.asking import NO_TEMPLATE, fault_of
from protocol.models.model import inspect_config
from protocol.serving import GenerateCommand
from tests.trainer.serve.test_grammar import folder  # noqa: F401 - a fixture
from tests.trainer.small import config_of
from trainer.errors import DataError
from trainer.serve.engine import Engine
from trainer.serve.loading import load
from trainer.serve.requests import Requests
from trainer.serve.stages.share import cache_size, finished_config

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


@pytest.mark.parametrize("wanted", [None, 64, 300])
@pytest.mark.parametrize("cache", [None, 150, 1])
def test_a_deployment_promises_as_many_tokens_as_its_nodes_read(
    wanted: int | None,
    cache: int | None,
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else an answer that it says it has room for is refused by whoever would write it."""
    shape = inspect_config(finished_config(folder))
    if cache is not None:  # Tokens of which a node keeps keys and values.
        monkeypatch.setattr(serving, "CACHE_BYTES", cache * 8 * shape.layers * shape.kv_heads * shape.head_dim)
    promised = context_of(shape, wanted)
    assert promised == max(serving.LEAST, min(cache or serving.LONGEST, wanted or serving.LONGEST, shape.max_positions))
    assert cache_size(shape, promised).longest == promised
    engine = Engine(folder, 1, lambda _report: None, context=promised)
    assert engine.longest == promised
    assert engine._requests.read(GenerateCommand("1", "Hi", tokens=promised)).most < promised


def test_a_large_model_has_fewer_tokens_than_it_could_read() -> None:
    """As 8 billion parameters with the keys and values of Llama 3 have: 256 KiB a token."""
    shape = replace(inspect_config(config_of()), layers=32, kv_heads=8, head_dim=128, max_positions=131_072)
    assert context_of(shape, None) == context_of(shape, 8192) == cache_size(shape, None).longest == 4096
