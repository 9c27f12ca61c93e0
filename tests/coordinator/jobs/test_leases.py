"""A heartbeat renews pairs, never nodes; what has run out stays out; news reaches who asked."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from coordinator.bus import MAX_WAITING, Bus
from coordinator.domain.lease import Term, expired, mostly, not_back, renew
from protocol.node import HeldLease

TERMS = {"a" * 32: Term("me", 1, 10.0), "b" * 32: Term("me", 2, 10.0), "c" * 32: Term("you", 3, 10.0)}


def test_only_named_pairs_are_renewed() -> None:
    renewed, gone = renew(TERMS, "me", [HeldLease("a" * 32, 1)], 5.0, 10.0)
    assert {lease: term.expires for lease, term in renewed.items()} == {"a" * 32: 15.0}
    assert gone == ()


def test_another_fence_another_node_an_unknown_lease_and_a_late_one_are_gone() -> None:
    held = [HeldLease("a" * 32, 2), HeldLease("c" * 32, 3), HeldLease("d" * 32, 1)]
    assert renew(TERMS, "me", held, 5.0, 10.0) == ({}, ("a" * 32, "c" * 32, "d" * 32))
    assert renew(TERMS, "me", [HeldLease("a" * 32, 1)], 10.0, 10.0) == ({}, ("a" * 32,))


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=30))
def test_a_lease_lives_exactly_as_long_as_its_holder_keeps_beating(beats: list[tuple[float, bool]]) -> None:
    terms, now, expires = {"a" * 32: Term("me", 1, 10.0)}, 0.0, 10.0
    for wait, right in beats:
        now += wait / 5
        renewed, gone = renew(terms, "me", [HeldLease("a" * 32, 1 if right else 7)], now, 10.0)
        terms |= renewed
        alive = right and now < expires
        assert gone == (() if alive else ("a" * 32,))
        expires = now + 10.0 if alive else expires
    assert expired(terms, now) == (("a" * 32,) if now >= expires else ())


def test_who_is_cut_off_and_not_back_in_time_is_dead_and_all_that_it_holds_with_it() -> None:
    holders = {"me", "you"}
    assert not_back({"me": 3.0}, holders, 0.0, 6.9, 4.0) == frozenset()
    dead = not_back({"me": 3.0}, holders, 0.0, 7.0, 4.0)
    assert dead == {"me"}
    assert expired(TERMS, 7.0, dead) == ("a" * 32, "b" * 32)
    assert expired(TERMS, 7.0) == ()


def test_where_most_are_cut_off_together_it_is_not_they_who_failed() -> None:
    holders = {"one", "two", "three"}
    assert not mostly({"one"}, holders)
    assert mostly({"one", "two"}, holders)
    assert mostly({"one"}, {"one"}), "of a single one nobody can say"
    assert not mostly({"elsewhere"}, holders)
    assert not mostly({}, ())
    cut = {"one": 1.0, "two": 1.0}
    assert not_back(cut, holders, 9.0, 12.9, 4.0) == frozenset(), "they have the whole time from when most were back"
    assert not_back(cut, holders, 9.0, 13.0, 4.0) == {"one", "two"}


async def test_news_is_coalesced_and_bounded() -> None:
    bus = Bus()
    changes, everything = bus.changes("job"), bus.changes(None)
    first = asyncio.ensure_future(anext(changes))
    other = asyncio.ensure_future(anext(everything))
    await asyncio.sleep(0)
    for _ in range(3):
        bus.publish("job")
    for number in range(MAX_WAITING + 50):
        bus.publish(str(number))
    assert await first == "job"
    assert (await other) in {str(number) for number in range(60)}
    waiting = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0)
    assert not waiting.done(), "three times the same news is one"
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await changes.aclose()  # type: ignore[attr-defined]
    await everything.aclose()  # type: ignore[attr-defined]
