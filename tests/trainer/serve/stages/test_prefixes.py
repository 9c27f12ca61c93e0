"""What prompts begin with alike is computed once by all stages, and no token and no sketch is another for it."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from protocol.serving import SKETCH_BYTES, CancelCommand
from protocol.worker import PeerSend
from tests.trainer.serve.answering import GREEDY, check_of, end_of, text_of, tokens_of
from tests.trainer.serve.stages.ring import CUTS, Ring, ring
from tests.trainer.serve.stages.test_blame import ASKED, STAGES, boundaries, checked, lied, off, sharp  # noqa: F401
from tests.trainer.serve.stages.test_stages import alone, command
from tests.trainer.serve.test_grammar import folder  # noqa: F401 - a fixture
from trainer.serve.stages import share
from trainer.serve.stages.lead import PassLead
from trainer.serve.stages.pages import PAGE
from trainer.serve.stages.passes import unpack_pass
from trainer.serve.stages.prefixes import MOST_KEPT, PrefixBook, SharedPages

LONG = "The old keeper climbed the stairs and counted the ships that went by. " * 2
"""Some 140 tokens of bytes: four full pages."""


def watch(here: Ring, hidden: int = 32) -> list[int]:
    """Tokens of each pass that goes out from now on."""
    sent: list[int] = []

    def note(stage: int, _name: PeerSend, payload: bytes) -> bytes:
        if stage == 0:
            sent.append(unpack_pass(payload, hidden)[0].tokens)
        return payload

    here.change = note
    return sent


def lead_of(here: Ring) -> PassLead:
    led = here.lead._lead
    assert led is not None
    return led


@pytest.mark.parametrize("stages", [2, 3])
async def test_a_prompt_that_begins_as_another_one_is_computed_from_there_on(folder: Path, stages: int) -> None:  # noqa: F811
    asked = [command(name, prompt=f"{LONG}{name}", tokens=20) for name in ("first", "second")]
    expected = await alone(folder, *asked)
    async with ring(folder, stages) as here:
        await here.over(asked[0])
        sent = watch(here)
        found = await here.over(asked[1])
        await here.in_step("second")
    whole = end_of(found["second"]).prompt
    assert sum(sent[:2]) < whole - 3 * PAGE, "four pages of the prompt went in no pass"
    assert tokens_of(found["second"]) == tokens_of(expected["second"])
    assert text_of(found["second"]) == text_of(expected["second"])


async def test_the_next_turn_of_a_talk_begins_behind_the_answer_before(folder: Path) -> None:  # noqa: F811
    first = command("first", prompt=LONG, tokens=60, sampling=GREEDY)
    async with ring(folder) as here:
        said = text_of((await here.over(first))["first"])
        on = command("on", prompt=LONG + said + " And then?", tokens=20)
        known = len(lead_of(here)._requests.read(on).prompt)
        sent = watch(here)
        found = await here.over(on)
    expected = await alone(folder, on)
    assert tokens_of(found["on"]) == tokens_of(expected["on"])
    assert sum(sent[:2]) < known - (known - 40) // PAGE * PAGE + PAGE, "the answer's pages are shared, too"


async def test_the_same_prompt_once_more_computes_one_page_at_most_and_says_the_same(folder: Path) -> None:  # noqa: F811
    asked = command("one", prompt=LONG, tokens=30)
    async with ring(folder) as here:
        first = (await here.over(asked))["one"]
        sent = watch(here)
        again = (await here.over(asked))["one"]
    assert sent[0] <= PAGE
    assert tokens_of(again) == tokens_of(first)


async def test_what_crossed_in_shared_pages_is_sketched_for_each_request(sharp: Path) -> None:  # noqa: F811
    long = msgspec.structs.replace(ASKED, prompt=LONG, tokens=40)
    async with ring(sharp, STAGES) as here:
        await here.over(msgspec.structs.replace(long, id="before"))
        found = await here.over(long)
        shared = await here.sketched(ASKED.id)
    async with ring(sharp, STAGES) as here:
        alike = await here.over(long)
        plain = await here.sketched(ASKED.id)
    assert tokens_of(found[ASKED.id]) == tokens_of(alike[ASKED.id])
    places = end_of(found[ASKED.id]).prompt + len(tokens_of(found[ASKED.id])) - 1
    assert {len(one.values) for one in shared.values()} == {SKETCH_BYTES * places}
    assert shared.keys() == plain.keys()


@pytest.mark.parametrize("liar", [None, 1])
async def test_a_check_of_an_answer_with_shared_pages_is_as_sharp_as_any(sharp: Path, liar: int | None) -> None:  # noqa: F811
    """Whoever computes otherwise did so in the shared pages, too, and nobody else is taken for it."""
    weights = None if liar is None else lied(sharp, liar, off(0.02))
    asked = msgspec.structs.replace(ASKED, prompt=LONG, tokens=60)
    async with ring(sharp, STAGES, weights=weights) as here:
        await here.over(msgspec.structs.replace(asked, id="before"))
        sent = watch(here)
        record = await here.over(asked), await here.sketched(ASKED.id)
    assert sent[0] <= PAGE + 8
    told = check_of(asked, record[0][ASKED.id])
    report = await checked(sharp, msgspec.structs.replace(told, boundaries=boundaries(record[1], CUTS[STAGES])))
    assert report.stages == (() if liar is None else (liar,))


async def test_requests_that_have_ended_give_their_pages_to_those_that_want_them(
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(share, "SEATS", 1)
    asked = [command(str(number), prompt=f"{number} {LONG}", tokens=40) for number in range(6)]
    expected = await alone(folder, *asked)
    async with ring(folder) as here:
        found = await here.over(*asked)
        await here.in_step("5")
        assert len(lead_of(here)._prefixes._kept) == 1, "there is room for no more"
    for one in asked:
        assert tokens_of(found[one.id]) == tokens_of(expected[one.id])


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_books_of_all_stages_stay_in_step_whatever_is_asked(
    folder: Path,  # noqa: F811
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prompts of few beginnings, at once, with cancels, in little room: every answer is the one of an empty ring."""
    chance = random.Random(seed)
    monkeypatch.setattr(share, "SEATS", 2)
    begins = [LONG[: chance.randrange(20, 130)] for _ in range(3)]
    asked = [
        command(
            str(number), prompt=chance.choice(begins) + chance.choice(("", "x", " y z")), tokens=chance.randrange(3, 50)
        )
        for number in range(18)
    ]
    gone = {one.id for one in chance.sample(asked, 4)}
    expected = await alone(folder, *asked)
    async with ring(folder, 3, delay=0.003) as here:
        waiting = asyncio.create_task(here.over(*(one for one in asked if one.id not in gone)))
        for one in asked:
            if one.id in gone:
                here.lead.ask(one)
        for name in gone:
            await here.asking.until(lambda said, name=name: bool(said.get(name)))
            here.lead.ask(CancelCommand(name))
        found = await waiting
        await here.over(command("last"))
        await here.in_step("last")
    for one in asked:
        if one.id not in gone:
            assert tokens_of(found[one.id]) == tokens_of(expected[one.id]), one


def noted(book: PrefixBook, number: int, tokens: Sequence[int], adapter: int = 0) -> None:
    book.note(number, tokens, adapter, len(tokens))


def test_words_of_another_adapter_or_another_beginning_are_not_shared() -> None:
    book, words = PrefixBook(), list(range(4 * PAGE))
    noted(book, 1, words, adapter=1)
    assert book.find(words, 1) == SharedPages(1, 3), "one token is left to compute"
    assert book.find([*words, 5], 1) == SharedPages(1, 4)
    assert book.find(words, 0) is None
    assert book.find([7, *words[1:]], 1) is None, "the same later pages behind another beginning are other pages"
    assert book.find([*words[:PAGE], 7, *words[PAGE + 1 :]], 1) == SharedPages(1, 1)


def test_those_that_nobody_asked_for_the_longest_go_first_and_leave_what_others_hold() -> None:
    book, words = PrefixBook(), list(range(2 * PAGE))
    for number in (1, 2):
        noted(book, number, [number, *words])
        book.keep(number)
    noted(book, 3, [2, *words, *words])
    assert book.find([1, *words], 0) == SharedPages(1, 2)
    assert book.oldest() == 2
    assert book.oldest(spared=2) == 1
    book.forget(2)
    assert book.find([2, *words], 0) == SharedPages(3, 2), "request 3 has the same pages"
    assert not book.full
    for number in range(10, 11 + MOST_KEPT):
        book.keep(number)
    assert book.full
