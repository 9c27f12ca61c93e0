"""A small model drafts at the first stage: its drafts change how many turns an answer takes, and no token of it."""

import itertools
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from protocol.serving import EmbedCommand, GenerateCommand, Sampling
from tests.trainer.serve.answering import GREEDY, Reports, end_of, text_of, tokens_of
from tests.trainer.serve.drawn_adapters import draw_adapter
from tests.trainer.serve.stages.early_exit import draft_of, early_exit
from tests.trainer.serve.stages.ring import Ring, ring
from tests.trainer.serve.stages.test_stages import KINDS, alone, command
from tests.trainer.serve.test_grammar import folder  # noqa: F401 - a fixture
from trainer.serve.adapters import AdapterFiles
from trainer.serve.engine import Engine
from trainer.serve.stages import draft_model
from trainer.serve.stages.draft_model import DraftModel
from trainer.serve.stages.drafting import AnswerDrafts, Drafting

ASKED = [command(name, **more) for name, more in KINDS.items()]


@pytest.fixture(scope="module")
def small(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    return early_exit(folder, 1, tmp_path_factory.mktemp("draft") / "small")


def drafting_of(here: Ring) -> Drafting:
    """That of the first stage, by a clock on which a turn costs as much as a draft, whatever the machine is busy with."""
    assert here.lead._lead is not None
    found = here.lead._lead.drafting
    found.clock = itertools.count().__next__
    return found


def same(found: Reports, expected: Reports, commands: Sequence[GenerateCommand] = ASKED) -> None:
    for one in commands:
        assert tokens_of(found[one.id]) == tokens_of(expected[one.id]), one.id
        assert text_of(found[one.id]) == text_of(expected[one.id])
        assert end_of(found[one.id]) == end_of(expected[one.id])


async def plain(folder: Path, *commands: GenerateCommand) -> Reports:  # noqa: F811
    """What two stages say without a draft model."""
    async with ring(folder, 2) as here:
        return await here.over(*commands)


@pytest.mark.parametrize(("stages", "kind"), [(2, "itself"), (3, "fewer layers")])
async def test_each_kind_of_request_has_the_answer_of_the_whole_model(
    folder: Path,  # noqa: F811
    small: Path,
    stages: int,
    kind: str,
) -> None:
    expected = await alone(folder, *ASKED)
    draft = draft_of(folder if kind == "itself" else small)
    async with ring(folder, stages, delay=0.005, draft=draft) as here:
        drafting = drafting_of(here)
        found: Reports = {}
        for one in ASKED:  # One at a time: with many the stages are busy, and nothing is drafted.
            found |= await here.over(one)
        assert drafting.model is not None, "it has not failed"
        proposed, agreed = drafting.proposed["model"], drafting.agreed["model"]
    same(found, expected)
    assert proposed > 20, "drafts of the model were tried"
    if kind == "itself":
        assert agreed > 0.6 * proposed, "seeds and places make the same draws, but where a form or an end forbids them"
    else:
        assert agreed < proposed, "some were wrong, and the answers are right"


async def test_requests_beside_each_other_have_their_own_drafts(folder: Path, small: Path) -> None:  # noqa: F811
    commands = [command(f"{number}", sampling=Sampling(number % 2, seed=number)) for number in range(5)]
    expected = await plain(folder, *commands)
    async with ring(folder, 3, delay=0.003, draft=draft_of(small)) as here:
        drafting_of(here)
        found = await here.over(*commands)
    same(found, expected, commands)


async def test_an_answer_that_goes_on_and_a_text_that_is_embedded_are_as_without(
    folder: Path,  # noqa: F811
    small: Path,
) -> None:
    begun = tokens_of((await plain(folder, command("first", sampling=GREEDY)))["first"])
    rest = command("rest", sampling=GREEDY, begun=begun[:20])
    texts = EmbedCommand("texts", ("a fox", "a quick brown fox"))
    async with ring(folder, 2) as usual:
        expected = await usual.over(rest, texts)
    async with ring(folder, 2, draft=draft_of(small)) as here:
        drafting_of(here)
        found = await here.over(rest, texts)
    same(found, expected, [rest])
    assert (*begun[:20], *tokens_of(found["rest"])) == begun
    assert found["texts"] == expected["texts"]


async def test_an_adapter_s_answers_are_its_own_though_the_draft_knows_the_base_alone(
    folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    drawn = draw_adapter(folder, tmp_path / "drawn", 1, 4, ("q_proj", "v_proj"))
    beside = [AdapterFiles.of_folder(drawn)]
    asked = [command("own", sampling=GREEDY, adapter=1), command("seeded", sampling=Sampling(seed=3), adapter=1)]
    async with ring(folder, 2, adapters={0: beside, 1: beside}) as usual:
        expected = await usual.over(*asked)
    async with ring(folder, 2, adapters={0: beside, 1: beside}, draft=draft_of(folder)) as here:
        drafting = drafting_of(here)
        found: Reports = {}
        for one in asked:
            found |= await here.over(one)
    same(found, expected, asked)
    assert drafting.proposed["model"] > 0


@pytest.mark.parametrize("when", ["behind", "read", "propose", "forget"])
async def test_a_draft_model_that_fails_stops_no_answer(
    folder: Path,  # noqa: F811
    small: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    when: str,
) -> None:
    asked = command("asked", prompt="A quick brown fox " * 8, tokens=12, sampling=GREEDY)
    expected = await plain(folder, asked)
    draft = draft_of(small)

    def broken(*_: object) -> None:
        raise RuntimeError("the card is gone")

    monkeypatch.setattr(draft, when, broken)
    with caplog.at_level(logging.WARNING, "cottage.worker"):
        async with ring(folder, 2, draft=draft) as here:
            drafting = drafting_of(here)
            found = await here.over(asked)
            assert drafting.model is None
    same(found, expected, [asked])
    assert "answers go on without it: the card is gone" in caplog.text


async def test_a_draft_model_of_other_tokens_is_left_out(
    folder: Path,  # noqa: F811
    small: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    draft = draft_of(small)
    draft.vocabulary = 299
    with caplog.at_level(logging.WARNING, "cottage.worker"):
        async with ring(folder, 2, draft=draft) as here:
            assert here.lead._lead is not None
            assert here.lead._lead.drafting.model is None
    assert "knows 299 tokens and the model 300" in caplog.text


async def test_it_drafts_what_the_model_itself_would_say(folder: Path) -> None:  # noqa: F811
    asked = [command("greedy", sampling=GREEDY, tokens=24), command("seeded", sampling=Sampling(0.8, 40, 0.9, 5))]
    answers = await plain(folder, *asked)
    draft = draft_of(folder)
    prompt = prompt_of(folder, asked[0])
    for sequence, one in enumerate(asked):
        said = tokens_of(answers[one.id])
        assert draft.propose(sequence, prompt, one.sampling, 8) == said[:8]
        wrong = [*prompt, *said[:3], (said[3] + 1) % 300]
        draft.propose(sequence, wrong, one.sampling, 4)
        right = [*prompt, *said[:6]]
        assert draft.propose(sequence, right, one.sampling, 5) == said[6:11], "what was wrong is forgotten"


async def test_a_long_prompt_is_read_in_pieces_and_sequences_make_room_for_each_other(
    folder: Path,  # noqa: F811
    small: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(draft_model, "draft_tokens", lambda _each, context: context)
    draft = draft_of(small, context=128)
    tokens = list(range(1, 101))
    assert draft.behind(1, tokens) == 100
    draft.read(1, tokens)
    assert draft.behind(1, tokens) == 100 - draft_model.PIECE
    draft.read(1, tokens)
    draft.read(1, tokens)
    assert draft.behind(1, tokens) == 1, "the last one is for the draft"
    expected = draft.propose(1, tokens, GREEDY, 6)
    assert draft.propose(2, tokens, GREEDY, 6) == expected, "read at once, and in the place of the first one"
    assert draft.behind(1, tokens) == 100
    assert draft.propose(1, tokens, GREEDY, 6) == expected
    assert len(draft.propose(3, list(range(120)), GREEDY, 99)) == 9, "no further than it reads"
    draft.forget(3)
    assert draft._cache.tables.free == len(draft._cache.tables._owners)


def read_all(drafting: Drafting, *answers: AnswerDrafts) -> int:
    """Read on while there is something to read; how often there was."""
    reads = 0
    while drafting.read_on(answers):
        reads += 1
        assert reads < 100, "it reads without end"
    return reads


def test_reading_ends_where_answers_do_not_fit_together(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They had put each other out without end, and a stage that waits never slept."""
    monkeypatch.setattr(draft_model, "draft_tokens", lambda _each, context: context)
    draft = draft_of(small, context=160)
    drafting = Drafting(draft)
    first, second = (drafting.begin(list(range(at, at + 110)), GREEDY) for at in (1, 101))
    short = drafting.begin(list(range(30, 70)), GREEDY)
    assert read_all(drafting, first, second, short) == 3, "two pieces of the first, one of the short one"
    assert [bool(drafting.drafts(one, 4)) for one in (first, second, short)] == [True, False, True]
    assert read_all(drafting, first, second, short) == 0
    first.so_far.extend(range(200, 225))
    assert read_all(drafting, second, first, short) == 1, "the older one has grown, and goes on where it was"
    assert [bool(drafting.drafts(one, 4)) for one in (second, first, short)] == [False, True, False]
    first.so_far.extend(range(225, 251))
    assert read_all(drafting, first, second, short) == 3, "what is too long for it leaves its room to others"
    drafting.end(first)
    drafting.end(second)
    drafting.end(short)
    assert draft._cache.tables.free == len(draft._cache.tables._owners)


def test_short_answers_that_do_not_fit_together_put_no_long_one_out(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a draft reads at once takes room as well."""
    monkeypatch.setattr(draft_model, "draft_tokens", lambda _each, context: context)
    drafting = Drafting(draft_of(small, context=128))
    long = drafting.begin(list(range(1, 101)), GREEDY)
    assert read_all(drafting, long) == 2
    others = [drafting.begin([number, 7], GREEDY) for number in range(3)]
    assert [len(drafting.drafts(one, 1)) for one in (*others, long)] == [1, 0, 0, 1]
    assert read_all(drafting, *others, long) == 0


def prompt_of(folder: Path, asked: GenerateCommand) -> list[int]:  # noqa: F811
    engine = Engine(folder, 1, lambda _report: None, context=256)
    return list(engine._requests.read(asked).prompt)


def test_the_time_of_its_passes_is_measured_when_it_is_loaded(small: Path) -> None:
    draft: DraftModel = draft_of(small)
    assert 0 < draft.pass_s < 60
    assert draft._read == {}
