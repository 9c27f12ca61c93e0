"""Stages that answer together say what the whole model says by itself, in company, late and out of turn."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol.codec import MessageError
from protocol.serving import (
    SKETCH_BYTES,
    AnsweredReport,
    CancelCommand,
    GenerateCommand,
    PingCommand,
    PongReport,
    RefusedReport,
    Sampling,
)
from protocol.worker import PeerSend
from tests.trainer.router import make_plan
from tests.trainer.serve.answering import GREEDY, Asking, Reports, end_of, is_over, text_of, tokens_of
from tests.trainer.serve.stages.ring import ring
from tests.trainer.serve.test_calls import TEMPLATE, with_template
from tests.trainer.serve.test_forced_calls import calls_of, command_of
from tests.trainer.serve.test_grammar import PLACE, folder  # noqa: F401 - a fixture
from trainer.serve.engine import Engine
from trainer.serve.stages import lead, ngrams, share
from trainer.serve.stages.passes import unpack_pass

PROMPT = "A quick brown fox é"
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"sampling": GREEDY},
    "seeded": {"sampling": Sampling(seed=4)},
    "likeliest": {"sampling": Sampling(0.8, 40, 0.9, 5)},
    "schema": {"sampling": Sampling(seed=6), "schema": PLACE, "tokens": 200},
    "stops": {"sampling": Sampling(seed=7), "stops": ("e", "a")},
    "logprobs": {"sampling": Sampling(seed=8), "likeliest": 3},
}


def command(name: str, **more: Any) -> GenerateCommand:
    return msgspec.structs.replace(GenerateCommand(name, PROMPT, tokens=40), **more)


async def alone(folder: Path, *commands: GenerateCommand) -> Reports:  # noqa: F811
    """What the whole model says in one process."""
    asking = Asking()
    async with Engine(folder, 1, asking.say, context=256) as engine:
        return await asking.over(engine, *commands)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("stages", [2, 3])
async def test_each_kind_of_request_has_the_answer_of_the_whole_model(folder: Path, stages: int) -> None:  # noqa: F811
    commands = [command(name, **more) for name, more in KINDS.items()]
    expected = await alone(folder, *commands)
    async with ring(folder, stages, delay=0.01) as here:
        found = await here.over(*commands)
    for one in commands:
        assert tokens_of(found[one.id]) == tokens_of(expected[one.id]), one.id
        assert text_of(found[one.id]) == text_of(expected[one.id])
        assert end_of(found[one.id]) == end_of(expected[one.id])


async def test_a_forced_call_is_drawn_by_the_last_stage(
    folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    folder = with_template(folder, TEMPLATE, tmp_path / "here")
    forced = [command_of(0, several=False), command_of(3, name="lämp", several=False)]
    commands = [msgspec.structs.replace(one, tokens=256) for one in forced]  # As many as there is room for at all.
    expected = await alone(folder, *commands)
    async with ring(folder, 2) as here:
        found = await here.over(*commands)
    for one in commands:
        assert tokens_of(found[one.id]) == tokens_of(expected[one.id])
    assert calls_of(found["3"]) == ["lämp"]


async def test_sixteen_at_once_are_answered_as_alone(folder: Path) -> None:  # noqa: F811
    commands = [
        command(f"{number}", prompt=f"{number} foxes " * (number + 1), sampling=Sampling(number % 2, seed=number))
        for number in range(16)
    ]
    expected = await alone(folder, *commands)
    async with ring(folder, 3, delay=0.005) as here:
        found = await here.over(*commands)
    assert {one.id: tokens_of(found[one.id]) for one in commands} == {
        one.id: tokens_of(expected[one.id]) for one in commands
    }


async def test_long_prompts_go_in_parts_that_do_not_wait_for_each_other(
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = command("long", prompt="word " * 40, sampling=GREEDY, tokens=3)
    expected = await alone(folder, asked)
    monkeypatch.setattr(lead, "BATCH", 48)
    sent: list[tuple[int, ...]] = []
    async with ring(folder, 3, delay=0.2) as here:

        def note(stage: int, _name: PeerSend, payload: bytes) -> bytes:
            if stage == 0 and payload:
                header, _ = unpack_pass(payload, 32)
                sent.append((here.payloads[2], *(row.count for row in header.rows)))
            return payload

        here.change = note
        found = await here.over(asked)
    assert tokens_of(found["long"]) == tokens_of(expected["long"])
    assert [counts for _, *counts in sent[:5]] == [[48], [48], [48], [48], [8]]
    assert [before for before, *_ in sent[:4]] == [0, 0, 0, 0], "nothing came back before these went out"


async def test_where_pages_are_few_the_youngest_gives_way_and_all_are_answered(
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands = [
        command("seeded", tokens=110, sampling=Sampling(seed=1)),
        command("formed", tokens=200, sampling=Sampling(seed=6), schema=PLACE),
        command("noted", tokens=110, sampling=Sampling(seed=3), likeliest=2),
        *(command(f"{number}", tokens=100, sampling=Sampling(seed=number)) for number in range(4)),
    ]
    expected = await alone(folder, *commands)
    monkeypatch.setattr(share, "SEATS", 1)
    async with ring(folder, 2, delay=0.002) as here:
        found = await here.over(*commands)
        assert here.lead.layers.cache.tables.highest <= 9, "as many as one answer may need"
        opened = here.lead.layers.opened
    for one in commands:
        assert tokens_of(found[one.id]) == tokens_of(expected[one.id]), one.id
        assert text_of(found[one.id]) == text_of(expected[one.id])
    assert opened > len(commands), "some began again"


async def test_an_answer_goes_on_behind_what_was_begun(folder: Path) -> None:  # noqa: F811
    whole = command("whole", sampling=Sampling(seed=6), schema=PLACE, tokens=200)
    expected = (await alone(folder, whole))["whole"]
    begun = tokens_of(expected)[:7]
    async with ring(folder) as here:
        on = (await here.over(msgspec.structs.replace(whole, id="on", begun=begun)))["on"]
        ended = (await here.over(msgspec.structs.replace(whole, id="end", begun=tokens_of(expected))))["end"]
    assert begun + tokens_of(on) == tokens_of(expected)
    assert text_of(expected).endswith(text_of(on))
    assert [type(one) for one in ended] == [AnsweredReport]


async def test_a_cancelled_answer_leaves_no_page_and_is_told_in_sketches(folder: Path) -> None:  # noqa: F811
    async with ring(folder, 3, delay=0.002) as here:
        here.lead.ask(command("gone", tokens=200))
        await here.unless_ended(here.asking.until(lambda said: len(tokens_of(said.get("gone", []))) > 5))
        here.lead.ask(CancelCommand("gone"))
        told = await here.sketched("gone")
        said = tokens_of(here.asking.said["gone"])
        await here.over(command("next"))
        await here.in_step("next")
        assert all(not one.layers.requests for one in here.stages)
    prompt = len(PROMPT.encode())
    assert all(len(one.values) >= SKETCH_BYTES * (prompt + len(said) - 1) for one in told.values())
    assert len({one.values for one in told.values() if one.side == "sent"}) == 2
    sent, got = told["gone", 0, "sent"].values, told["gone", 1, "got"].values
    assert len(sent) == len(got)
    assert sent != got, "each has a key of its own"


async def test_a_new_epoch_drops_what_is_under_way_and_answers_anew(folder: Path) -> None:  # noqa: F811
    async with ring(folder, 3, delay=0.002, joined=False) as here:
        early = (await here.over(command("early")))["early"][-1]
        assert isinstance(early, RefusedReport)
        assert early.code == "failed"
        here.join(4)
        here.lead.ask(command("long", tokens=200))
        await here.unless_ended(here.asking.until(lambda said: len(tokens_of(said.get("long", []))) > 5))
        here.join(5)
        here.join(4)  # Late, and of no effect.
        await here.unless_ended(here.asking.until(lambda said: is_over(said.get("long", []))))
        end = here.asking.said.pop("long")[-1]
        assert isinstance(end, RefusedReport)
        assert end.code == "failed"
        found = await here.over(command("again"))
        assert len(await here.sketched("long")) == 4
    assert tokens_of(found["again"]) == tokens_of((await alone(folder, command("again")))["again"])


async def test_a_stage_that_is_cut_otherwise_than_the_plan_fails(folder: Path) -> None:  # noqa: F811
    async with ring(folder) as here:
        other = make_plan([(0, 2), (2, 3)], [0], epoch=2)
        here.lead.join(other)
        with pytest.raises(MessageError, match="cut at other layers"):
            await here.over(command("x"))


async def test_drafts_save_passes_of_a_text_that_repeats_and_change_no_token(
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = [
        command("greedy", prompt="ab" * 20, sampling=GREEDY, tokens=120),
        command("seeded", prompt="ab" * 20, sampling=Sampling(0.01, seed=5), tokens=120),
        command("noted", prompt="ab" * 20, sampling=GREEDY, tokens=60, likeliest=2),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(ngrams, "DRAFTS", 0)
        async with ring(folder, 3) as here:
            plain = {one.id: (await here.over(one))[one.id] for one in asked}
            every = here.lead.layers.passes
    async with ring(folder, 3) as here:
        found = {one.id: (await here.over(one))[one.id] for one in asked}
        passes = here.lead.layers.passes
        told = await here.sketched("greedy")
    for one in asked:
        assert tokens_of(found[one.id]) == tokens_of(plain[one.id])
        assert text_of(found[one.id]) == text_of(plain[one.id])
    assert every >= 300
    assert passes < every / 2
    assert {len(one.values) for one in told.values()} == {SKETCH_BYTES * (40 + 120 - 1)}, "refused drafts are in none"


async def test_a_prompt_goes_in_as_many_passes_as_stages_can_share(folder: Path) -> None:  # noqa: F811
    asked = command("shared", prompt="word " * 20, sampling=GREEDY, tokens=3)
    expected = await alone(folder, asked)
    sent: list[tuple[int, ...]] = []
    async with ring(folder, 2, delay=0.2) as here:

        def note(stage: int, _name: PeerSend, payload: bytes) -> bytes:
            if stage == 0:
                header, _ = unpack_pass(payload, 32)
                sent.append((here.payloads[1], *(row.count for row in header.rows)))
            return payload

        here.change = note
        found = await here.over(asked)
    assert tokens_of(found["shared"]) == tokens_of(expected["shared"])
    assert [counts for _, *counts in sent[:3]] == [[34], [33], [33]]
    assert [before for before, *_ in sent[:3]] == [0, 0, 0], "nothing came back before these went out"


async def test_each_stage_says_that_it_is_there_and_for_how_long_it_computes(
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered, goes_on = threading.Event(), threading.Event()
    async with ring(folder) as here:
        last = here.stages[1]
        run = last.layers.run

        def slow(*said: Any) -> Any:
            entered.set()
            assert goes_on.wait(60)
            return run(*said)

        monkeypatch.setattr(last.layers, "run", slow)
        asking = asyncio.create_task(here.over(command("slow", sampling=GREEDY, tokens=2)))
        await asyncio.to_thread(entered.wait, 60)
        last.ask(PingCommand("first"))
        last.ask(PingCommand("second"))
        there = here.asking.said
        [first], [second] = there["first"], there["second"]
        assert isinstance(first, PongReport)
        assert isinstance(second, PongReport)
        assert 0.0 < first.computing < second.computing, "of the pass that it is at, not of all"
        goes_on.set()
        await asking
        async with asyncio.timeout(60):
            while last._computing_since is not None:
                await asyncio.sleep(0)
        last.ask(PingCommand("idle"))
        [idle] = there["idle"]
        assert isinstance(idle, PongReport)
        assert idle.computing == 0.0
