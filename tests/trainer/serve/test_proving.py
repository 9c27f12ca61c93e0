"""What stake is lost by: lies that no rounding explains, and nothing that a stranger's model makes of honest rounding."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from protocol.serving import CheckCommand, GenerateCommand, ProveCommand, ProvenReport, Sampling
from tests.trainer.serve.answering import GREEDY, Asking, check_of, tokens_of
from tests.trainer.serve.test_checking import KINDS, checked, command_of, token_altered, told
from tests.trainer.serve.test_grammar import folder  # noqa: F401 - a fixture
from trainer.serve import few_rows, proving
from trainer.serve.checking import AnswerPasses
from trainer.serve.engine import Engine
from trainer.serve.loading import load
from trainer.serve.proving import BLUR, Blur

SEED = hashlib.sha256(b"lots").hexdigest()


@pytest.fixture(scope="module")
def weights(folder: Path) -> dict[str, Any]:  # noqa: F811
    """Of a model that likes some tokens better than others."""
    held = load_file(folder / "model.safetensors")
    held["lm_head.weight"] *= 40.0
    return held


@pytest.fixture
async def asking(folder: Path, weights: dict[str, Any]) -> AsyncIterator[tuple[Asking, Engine]]:  # noqa: F811
    asking = Asking()
    async with Engine(folder, 1, asking.say, weights=weights) as engine:
        yield asking, engine


async def proven(asking: Asking, engine: Engine, check: CheckCommand, seed: str = SEED) -> ProvenReport:
    ((found,),) = (await asking.over(engine, ProveCommand("proof", check, seed))).values()
    assert isinstance(found, ProvenReport), found
    return found


async def test_nothing_is_proven_against_honest_answers(asking: tuple[Asking, Engine]) -> None:
    commands = [command_of(kind) for kind in KINDS]
    said = await asking[0].over(asking[1], *commands)
    found = [await proven(*asking, check_of(one, said[one.id], one.id)) for one in commands]
    assert [one.wrong for one in found] == [""] * len(KINDS)


async def test_machines_of_a_class_prove_a_lie_bit_for_bit(
    asking: tuple[Asking, Engine],
    folder: Path,  # noqa: F811
    weights: dict[str, Any],
) -> None:
    other = Asking()
    async with Engine(folder, 1, other.say, weights=weights) as second:
        for kind in ("greedy", "drawn", "top_k", "top_p", "both"):
            command = command_of(kind)
            lie = msgspec.structs.replace(command, prompt="Sing of it:", sampling=Sampling(seed=99))
            honest = check_of(command, (await asking[0].over(asking[1], command))[kind])
            false = told(asking[1], honest, tokens_of((await asking[0].over(asking[1], lie))[kind]))
            one, same = await proven(*asking, false), await proven(other, second, false)
            assert "nats behind its draw" in one.wrong, kind
            assert same == one
            assert (await proven(*asking, false, "0" * 64)).digest != one.digest, "other lots are other passes"


async def test_one_altered_token_and_false_counts_are_proven(asking: tuple[Asking, Engine]) -> None:
    command = command_of("greedy")
    honest = check_of(command, (await asking[0].over(asking[1], command))["greedy"])
    forged = token_altered(honest)
    text = asking[1]._requests.read(command).text.add(forged.tokens)
    found = await proven(*asking, msgspec.structs.replace(forged, text=text))
    assert found.wrong.startswith("token 17 of 40 is ")
    for lie in ({"prompt": 400}, {"text": honest.text + "!"}, {"tokens": honest.tokens[:-1]}, {"reason": "stop"}):
        assert (await proven(*asking, msgspec.structs.replace(honest, **lie))).wrong != ""
    unread = msgspec.structs.replace(honest, asked=msgspec.structs.replace(command, prompt="a" * 600))
    assert (await proven(*asking, unread)).wrong == "", "what this machine cannot read proves nothing"


def rounded_otherwise(folder: Path, weights: dict[str, Any], prompt: list[int], count: int) -> list[int]:  # noqa: F811
    """The likeliest tokens as a machine finds them whose sums are off by a millionth, which float32 may well be."""
    passes, blur = AnswerPasses(load(folder, "cpu", weights)), Blur()
    for part in passes.model.modules():
        if next(part.children(), None) is None:
            part.register_forward_hook(blur)
    found: list[int] = []
    for number in range(count):
        blur.begin(number.to_bytes(8), torch.device("cpu"))
        whole = [*prompt, *found]
        (row,) = passes.rows(whole, len(whole) - 1)
        found.append(int(row.argmax()))
    return found


async def test_a_model_that_makes_much_of_rounding_costs_nobody_stake(
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    weights: dict[str, Any],
) -> None:
    """Whoever deploys it has honest nodes' answers called wrong: they lose pay for it, and nothing else."""
    # What all logits have in common tells no token from another, and leaves no room for what does.
    much = weights | {"lm_head.weight": weights["lm_head.weight"] + 1e6}
    monkeypatch.setattr(proving, "BLUR", 1e-6)
    command = GenerateCommand("1", "Say:", tokens=60, sampling=GREEDY)
    asking = Asking()
    async with Engine(folder, 1, asking.say, weights=much) as engine:
        honest = check_of(command, (await asking.over(engine, command))["1"])
        tokens = rounded_otherwise(folder, much, engine._requests.read(command).prompt, 60)
        otherwise = told(engine, honest, tokens)
        monkeypatch.setattr(proving, "BLUR", BLUR)
        called = (await checked(asking, engine, otherwise))[0]
        found = [await proven(asking, engine, otherwise, f"{seed:064x}") for seed in range(20)]
    assert "nats behind" in called.wrong, "or there is nothing to be just about"
    assert called.worst > proving.FAR
    assert [one.wrong for one in found] == [""] * 20


async def test_a_model_that_overflows_says_nothing_of_who_answered(folder: Path, weights: dict[str, Any]) -> None:  # noqa: F811
    much = {
        name: one * 1e38 if name in ("lm_head.weight", "model.norm.weight") else one for name, one in weights.items()
    }
    asking = Asking()
    async with Engine(folder, 1, asking.say, weights=much) as engine:
        command = GenerateCommand("1", "Say:", tokens=3, sampling=GREEDY)
        check = check_of(command, (await asking.over(engine, command))["1"])
        assert (await proven(asking, engine, told(engine, check, (7, 8, 9)))).wrong == ""


async def test_which_way_few_rows_are_quicker_changes_no_bit_of_a_proof(
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    weights: dict[str, Any],
) -> None:
    """A clock decides that at loading, so machines of a class may differ in it."""
    found = []
    command = command_of("greedy")
    for first in (frozenset[int](), frozenset(range(1, 9))):
        monkeypatch.setattr(few_rows, "WORTH", 0)
        monkeypatch.setattr(few_rows, "_timed", lambda _weights, first=first: first)
        monkeypatch.setattr(few_rows, "_found", {})
        asking = Asking()
        async with Engine(folder, 1, asking.say, weights=weights) as engine:
            check = check_of(command, (await asking.over(engine, command))["greedy"])
            found.append(await proven(asking, engine, told(engine, check, (65, 66, 67))))
    assert found[0] == found[1]
    assert found[0].wrong != ""
