"""Embeddings of a deployment on virtual time: in portions, behind those that are there, counted, paid and checked."""

import asyncio

import pytest

from coordinator.domain import serving as rules
from coordinator.domain.serving import NodeUsage
from coordinator.errors import InvalidError, UnavailableError
from coordinator.services.serving.embeddings import CHECKED_TEXTS, PORTION, PORTION_BYTES, EmbeddingsUnderWay, some_of
from protocol.serving import CheckEmbeddingsCommand, EmbedCommand, EmbeddedReport
from tests.coordinator.serving.deployed import Deployed, vector_of
from tests.coordinator.serving.test_deployments import count, shares, two_homes, who_answers

TEXTS = tuple(f"text {number}" for number in range(PORTION + 9))


def asked_for(home: object) -> list[EmbedCommand]:
    return [one for one in getattr(home, "asked", ()) if isinstance(one, EmbedCommand)]


async def test_they_come_in_order_in_portions_and_are_paid_as_prompts() -> None:
    bench = Deployed()
    home = await bench.come(1)
    job = await bench.deploy()
    stored = await bench.stored(job)
    async with bench.checking():
        asked = bench.embed(stored, *TEXTS)
        await bench.pass_time(10.0)
        await asked.task
        await count(bench, job)
    assert asked.vectors == list(map(vector_of, TEXTS))
    assert asked.end is not None
    tokens = sum(map(len, TEXTS))
    assert (asked.end.prompt, asked.end.tokens, asked.end.nodes) == (tokens, 0, ("node-1",))
    assert [len(one.texts) for one in asked_for(home)] == [PORTION, 9]
    (share,) = await shares(bench, job)
    rate, parameters = stored.quote.rate, stored.quote.parameters
    least = rules.worth(parameters, rate, NodeUsage(prompt=tokens, ready=rules.PERIOD_S))
    assert least <= share.amount <= least + rules.worth(parameters, rate, NodeUsage(ready=30.0))
    assert (share.leaves, share.state) == (2, "verified")
    assert [len(one.vectors) for one in bench.checker.checked if isinstance(one, CheckEmbeddingsCommand)] == [
        CHECKED_TEXTS
    ] * 2
    view = await bench.parts.jobs.get(job)
    assert view.serving is not None
    assert (view.serving.prompt_tokens, view.serving.checked, view.serving.wrong) == (tokens, 2, 0)


async def test_the_next_node_goes_on_behind_those_that_are_there() -> None:
    bench = Deployed()
    job, one, two = await two_homes(bench)
    asked = bench.embed(await bench.stored(job), *TEXTS[:20])
    await bench.pass_time(0.75)
    gone = who_answers(one, two)
    made = len(asked.vectors)
    assert 0 < made < 20
    await gone.vanish()
    await bench.pass_time(3.0)
    await asked.task
    assert asked.vectors == list(map(vector_of, TEXTS[:20]))
    other = two if gone is one else one
    (rest,) = asked_for(other)
    assert rest.texts == TEXTS[made:20]
    assert asked.end is not None
    assert asked.end.nodes == (gone.session.profile.name, other.session.profile.name)
    await count(bench, job)
    paid = {share.node for share in await shares(bench, job)}
    assert paid == {one.node, two.node}, "each for the texts that it made"


async def test_a_false_one_costs_its_node_what_is_not_verified_and_the_seat() -> None:
    bench = Deployed()
    liar = await bench.come(1)
    job = await bench.deploy()
    liar.lie = lambda _place, _token: 1
    async with bench.checking():
        asked = bench.embed(await bench.stored(job), *TEXTS[:3])
        await bench.pass_time(2.0)
        await asked.task
        await bench.pass_time(1.0)
        await bench.turn(job)
    assert liar.lease is None
    view = await bench.parts.jobs.get(job)
    assert view.serving is not None
    assert (view.serving.wrong, view.paid) == (1, 0)


async def test_who_stopped_listening_leaves_what_was_made_to_be_counted_and_checked() -> None:
    bench = Deployed()
    home = await bench.come(1)
    job = await bench.deploy()
    async with bench.checking():
        asked = bench.embed(await bench.stored(job), *TEXTS)
        await bench.pass_time(1.05)
        made = len(asked.vectors)
        await asked.leave()
        await bench.pass_time(0.5)
        assert not home.answering, "nobody computes what nobody hears"
        await count(bench, job)
    (check,) = [one for one in bench.checker.checked if isinstance(one, CheckEmbeddingsCommand)]
    assert set(check.asked.texts) <= set(TEXTS[:made])


async def test_a_slow_batch_is_waited_for_as_a_first_word_is() -> None:
    bench = Deployed()
    job, one, two = await two_homes(bench)
    one.pace = two.pace = rules.SILENCE_S * 3
    asked = bench.embed(await bench.stored(job), *TEXTS[:4])
    await bench.pass_time(45.0, 0.5)
    await asked.task
    assert len(asked_for(one)) + len(asked_for(two)) == 1, "nobody took it from the node that is at it"


async def test_a_model_that_cannot_is_told_and_costs_its_node_nothing() -> None:
    bench = Deployed()
    home = await bench.come(1)
    job = await bench.deploy()
    home.refusing = "no-embeddings"
    asked = [bench.embed(await bench.stored(job), "a") for _ in range(4)]
    await bench.pass_time(1.0)
    for one in asked:
        with pytest.raises(InvalidError, match="it cannot") as refused:
            await one.task
        assert refused.value.field == "model"
    await bench.turn(job)
    assert home.lease is not None
    home.refusing = "failed"
    failing = bench.embed(await bench.stored(job), "a")
    await bench.pass_time(1.0)
    with pytest.raises(UnavailableError):
        await failing.task


async def test_a_text_that_no_message_holds_is_refused() -> None:
    bench = Deployed()
    await bench.come(1)
    job = await bench.deploy()
    with pytest.raises(InvalidError, match="has more than 524,288 bytes") as refused:
        await anext(bench.parts.homes.generate(await bench.stored(job), EmbedCommand("1", ("\u2603" * 200_000,)), 9.0))
    assert refused.value.field == "input"


def test_what_no_model_says_is_not_taken() -> None:
    for report in (
        EmbeddedReport("1", (), ()),
        EmbeddedReport("1", (1, 2), (b"1234",)),
        EmbeddedReport("1", (1,) * 3, (b"1234",) * 3),
        EmbeddedReport("1", (513,), (b"1234",)),
        EmbeddedReport("1", (1, 1), (b"1234", b"12345678")),
    ):
        under_way = EmbeddingsUnderWay(EmbedCommand("1", ("a", "b")), 512)
        under_way.asks("1")
        assert not under_way.takes(report), report
    under_way = EmbeddingsUnderWay(EmbedCommand("1", ("a", "b")), 512)
    under_way.asks("1")
    assert under_way.takes(EmbeddedReport("1", (1,), (b"1234",)))
    assert under_way.ends() is None, "one of two is not all that was asked for"


def test_a_portion_is_bounded_in_bytes_and_checked_in_part_by_lot() -> None:
    large = "x" * (PORTION_BYTES // 2)
    under_way = EmbeddingsUnderWay(EmbedCommand("1", (large * 3, large, "b", large, "c")), 512)
    sizes = []
    while under_way.done < 5:
        texts = under_way.asks("1").texts
        sizes.append(len(texts))
        assert under_way.takes(EmbeddedReport("1", (1,) * len(texts), (b"1234",) * len(texts)))
    assert sizes == [1, 2, 2]
    vectors = tuple(bytes([number]) for number in range(20))
    counts = tuple(range(20))
    check = CheckEmbeddingsCommand("1", EmbedCommand("1", tuple(map(str, counts))), counts, vectors)
    lots = iter([9, 1, *[200] * 10, 0, *[200] * 6, 3])
    some = some_of(check, lambda size: bytes([0] * (size - 1) + [next(lots)]))
    assert some.tokens == (0, 1, 12, 19)
    assert (some.asked.texts, some.vectors) == (("0", "1", "12", "19"), (b"\0", b"\1", b"\14", b"\23"))


async def test_several_requests_are_made_side_by_side() -> None:
    bench = Deployed()
    job, one, two = await two_homes(bench)
    asked = [bench.embed(await bench.stored(job), *TEXTS[:10]) for _ in range(4)]
    await bench.pass_time(1.5)
    await asyncio.gather(*(one.task for one in asked))
    assert (len(asked_for(one)), len(asked_for(two))) == (2, 2)
