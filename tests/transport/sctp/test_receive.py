"""What the receiving book delivers, whatever the network and the peer do with the order."""

import random
from collections import defaultdict
from dataclasses import dataclass

import pytest

from transport.sctp.packet import FIRST_FRAGMENT, LAST_FRAGMENT, UNORDERED, DataRun
from transport.sctp.receive import CHUNK_COST, MAX_AHEAD, MAX_RUNS, ReceiveBook, SctpMessage

BINARY = 53
START = 2**32 - 20  # The 32-bit number wraps early in every test.


@dataclass(frozen=True)
class Fragment:
    tsn: int
    stream: int
    sequence: int
    flags: int
    payload: bytes

    def give(self, book: ReceiveBook) -> None:
        book.on_data(self.tsn % 2**32, self.stream, self.sequence, BINARY, self.flags, self.payload)


@dataclass(frozen=True)
class Sent:
    stream: int
    ordered: bool
    fragments: list[Fragment]

    @property
    def message(self) -> SctpMessage:
        return SctpMessage(self.stream, BINARY, b"".join(fragment.payload for fragment in self.fragments))


def send(messages: int, chance: random.Random, streams: int = 3) -> list[Sent]:
    """Messages as a peer would number them."""
    sequences: dict[int, int] = defaultdict(int)
    tsn, sent = START, []
    for _ in range(messages):
        stream, count, ordered = chance.randrange(streams), chance.choice((1, 1, 2, 3, 9)), chance.random() < 0.7
        fragments = []
        for n in range(count):
            tsn += 1
            flags = (FIRST_FRAGMENT if n == 0 else 0) | (LAST_FRAGMENT if n == count - 1 else 0)
            flags |= 0 if ordered else UNORDERED
            payload = tsn.to_bytes(5, "big") + bytes(chance.randrange(4))
            fragments.append(Fragment(tsn, stream, sequences[stream] if ordered else 0, flags, payload))
        if ordered:
            sequences[stream] = (sequences[stream] + 1) % 2**16
        sent.append(Sent(stream, ordered, fragments))
    return sent


def check(sent: list[Sent], delivered: list[SctpMessage]) -> None:
    """Everything once, and ordered messages in their stream's order."""
    assert sorted(delivered) == sorted(each.message for each in sent)
    for stream in {each.stream for each in sent}:
        due = [each.message for each in sent if each.ordered and each.stream == stream]
        free = [each.message for each in sent if not each.ordered and each.stream == stream]
        came = [message for message in delivered if message.stream == stream]
        for message in free:
            came.remove(message)
        assert came == due


@pytest.mark.parametrize("seed", range(40))
def test_every_message_is_delivered_once_and_in_order_whatever_the_network_does(seed: int) -> None:
    chance = random.Random(seed)
    sent = send(120, chance)
    fragments = [fragment for each in sent for fragment in each.fragments]
    spread = chance.choice((1, 5, 40, 1000))
    network = sorted(fragments * chance.choice((1, 2)), key=lambda f: f.tsn + chance.random() * spread)
    book, seen = ReceiveBook(START, 1000), set()
    for fragment in network:
        fragment.give(book)
        seen.add(fragment.tsn)
        first = next(tsn for tsn in range(START + 1, START + len(fragments) + 2) if tsn not in seen)
        assert book.cumulative == first - 1
    check(sent, book.ready)
    assert book.held == 0
    assert not book.fault
    assert book.duplicates == len(network) - len(fragments)


@pytest.mark.parametrize("seed", range(10))
def test_acknowledgements_name_exactly_what_has_come(seed: int) -> None:
    chance = random.Random(seed)
    fragments = [fragment for each in send(100, chance) for fragment in each.fragments]
    came = chance.sample(fragments, len(fragments) // 2)
    book = ReceiveBook(START, 1000)
    for fragment in came:
        fragment.give(book)
    sack = book.sack(1000)
    cumulative = book.cumulative
    assert sack.cumulative == cumulative % 2**32
    named = {cumulative + offset for first, last in sack.gaps for offset in range(first, last + 1)}
    assert named == {fragment.tsn for fragment in came if fragment.tsn > cumulative}
    assert all(later[0] > earlier[1] + 1 for earlier, later in zip(sack.gaps, sack.gaps[1:], strict=False))
    assert len(book.sack(3).gaps) == 3


def test_a_gap_in_one_stream_does_not_hold_up_another() -> None:
    book = ReceiveBook(0, 1000)
    book.on_data(2, 7, 0, BINARY, 3, b"urgent")
    book.on_data(3, 1, 1, BINARY, 3, b"later")
    assert book.ready == [SctpMessage(7, BINARY, b"urgent")]
    book.on_data(1, 1, 0, BINARY, 3, b"first")
    assert [message.data for message in book.ready] == [b"urgent", b"first", b"later"]


def test_a_gap_is_told_while_something_is_missing_and_not_before_or_after() -> None:
    book, told = ReceiveBook(START, 1 << 20), []
    for tsn in (START + 1, START + 3, START + 2):
        book.on_data(tsn % 2**32, 0, 0, BINARY, FIRST_FRAGMENT | LAST_FRAGMENT | UNORDERED, b"x")
        told.append(book.gaps)
    assert told == [False, True, False]


def test_duplicates_are_told_once() -> None:
    book = ReceiveBook(0, 1000)
    for _ in range(3):
        book.on_data(1, 1, 0, BINARY, 3, b"a")
    book.on_data(5, 1, 2, BINARY, 3, b"c")
    book.on_data(5, 1, 2, BINARY, 3, b"c")
    assert book.sack(10).duplicates == (1, 1, 5)
    assert book.sack(10).duplicates == ()
    assert len(book.ready) == 1


def test_an_abandoned_message_is_skipped_and_what_waited_behind_it_is_delivered() -> None:
    book = ReceiveBook(0, 1000)
    book.on_data(1, 1, 0, BINARY, FIRST_FRAGMENT, b"half")
    book.on_data(4, 1, 1, BINARY, 3, b"next")
    assert book.ready == []
    book.on_forward(3, [(1, 0)])
    assert [message.data for message in book.ready] == [b"next"]
    assert (book.cumulative, book.held) == (4, 0)
    book.on_forward(2, [(1, 0)])
    book.on_data(5, 1, 2, BINARY, 3, b"then")
    assert [message.data for message in book.ready] == [b"next", b"then"]


def test_a_message_that_goes_on_behind_the_abandoned_part_is_kept() -> None:
    book = ReceiveBook(0, 1000)
    book.on_data(3, 1, 1, BINARY, FIRST_FRAGMENT, b"be")
    book.on_data(4, 1, 1, BINARY, 0, b"gin")
    book.on_forward(3, [(1, 0)])
    assert book.cumulative == 4
    book.on_data(5, 1, 1, BINARY, LAST_FRAGMENT, b"end")
    assert [message.data for message in book.ready] == [b"beginend"]
    assert book.held == 0


def test_the_rest_of_a_message_whose_beginning_was_abandoned_is_dropped() -> None:
    book = ReceiveBook(0, 1000)
    book.on_data(1, 1, 0, BINARY, FIRST_FRAGMENT, b"a")
    book.on_forward(2, [])
    book.on_data(3, 1, 0, BINARY, LAST_FRAGMENT, b"c")
    book.on_data(4, 1, 0, BINARY, 3, b"whole")
    assert [message.data for message in book.ready] == [b"whole"]
    assert book.held == 0


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_kept_and_nothing_false_is_delivered_when_messages_are_abandoned(seed: int) -> None:
    chance = random.Random(seed)
    sent = send(80, chance)
    book = ReceiveBook(START, 1000)
    given_up = [each for each in sent if chance.random() < 0.3]
    lost = {fragment.tsn for each in given_up for fragment in each.fragments if chance.random() < 0.7}
    fragments = [f for each in sent for f in each.fragments if f.tsn not in lost]
    for fragment in sorted(fragments, key=lambda f: f.tsn + chance.random() * 10):
        fragment.give(book)
    last = sent[-1].fragments[-1].tsn
    skipped = [(each.stream, each.fragments[0].sequence) for each in given_up if each.ordered]
    book.on_forward(last % 2**32, skipped)
    assert book.cumulative == last
    assert book.held == 0
    whole = [each for each in sent if not any(f.tsn in lost for f in each.fragments)]
    check(whole, book.ready)


def test_a_reset_stream_begins_anew() -> None:
    book = ReceiveBook(0, 1000)
    book.on_data(1, 1, 0, BINARY, 3, b"a")
    book.on_data(2, 1, 5, BINARY, 3, b"never")
    assert book.held > 0
    book.reset([1, 9])
    assert book.held == 0
    book.on_data(3, 1, 0, BINARY, 3, b"b")
    assert [message.data for message in book.ready] == [b"a", b"b"]


# A hostile peer


def test_a_message_without_end_is_a_fault_with_a_reason() -> None:
    book = ReceiveBook(0, 1000)
    tsn = 0
    while not book.fault:
        tsn += 1
        book.on_data(tsn, 1, 0, BINARY, FIRST_FRAGMENT if tsn == 1 else 0, bytes(100))
        assert tsn < 20
    assert "unfinished message" in book.fault
    assert "1000" in book.fault


def test_a_message_without_end_is_a_fault_in_pieces_behind_a_gap_as_well() -> None:
    book = ReceiveBook(0, 1000)
    for tsn in [*range(3, 40, 2), *range(4, 40, 2)]:
        book.on_data(tsn, 1, 0, BINARY, 0, bytes(100))
    assert "message of" in book.fault


def test_what_lies_beyond_the_window_or_too_far_ahead_is_dropped() -> None:
    book = ReceiveBook(0, 1 << 20, window=10_000)
    for tsn in range(2, 200, 2):
        book.on_data(tsn, tsn, 0, BINARY, FIRST_FRAGMENT, bytes(1000))
    assert book.held <= 12_500 + CHUNK_COST
    assert book.dropped > 80
    assert book.sack(10).window < 1000
    book.on_data(MAX_AHEAD + 2, 1, 0, BINARY, 3, b"x")
    assert book.ready == []
    book.on_data(1, 1, 0, BINARY, 3, b"the missing one is always taken")
    assert len(book.ready) == 1


def test_the_number_of_gaps_is_bounded_and_so_is_the_work() -> None:
    book = ReceiveBook(0, 1000)
    for tsn in range(2, 60_000, 2):
        book.on_data(tsn, 1, 0, BINARY, 3 | UNORDERED, b"x")
    assert book.dropped == 29_999 - MAX_RUNS + 1
    assert len(book.sack(280).gaps) == 280


def test_ordered_messages_whose_turn_never_comes_fill_the_window_and_end_the_association() -> None:
    book = ReceiveBook(0, 1000, window=20_000)
    for tsn in range(1, 200):
        book.on_data(tsn, 1, tsn, BINARY, 3, bytes(500))
        if book.fault:
            break
    assert "withholds" in book.fault
    assert tsn < 50


@pytest.mark.parametrize("seed", range(10))
def test_random_chunks_never_raise_and_never_fill_the_memory(seed: int) -> None:
    chance = random.Random(seed)
    book = ReceiveBook(0, 2000, window=50_000)
    for _ in range(5000):
        tsn = (book.cumulative + chance.randrange(-5, 60)) % 2**32
        if chance.random() < 0.02:
            book.on_forward(tsn, [(chance.randrange(4), chance.randrange(2**16))])
        book.on_data(tsn, chance.randrange(4), chance.randrange(8), BINARY, chance.randrange(8), bytes(50))
        assert book.held >= 0
        if book.fault:
            book.fault = ""
            book = ReceiveBook(0, 2000, window=50_000)
    assert book.held <= 65_000


def state(book: ReceiveBook) -> tuple[object, ...]:
    return book.ready, book.held, book.duplicates, book.dropped, book.fault, book.sack(2000)


@pytest.mark.parametrize("seed", range(60))
def test_a_run_is_taken_as_its_chunks_would_be_one_by_one(seed: int) -> None:
    """Whatever is missing, comes twice or late, whichever chunks begin and end messages, and however little room there is."""
    chance = random.Random(seed)
    window = chance.choice((1 << 20, 30_000))
    together, apart = (ReceiveBook(START % 2**32, 20_000, window) for _ in range(2))
    tsn = START + 1
    for _ in range(120):
        count, stream = chance.randrange(1, 40), chance.choice((1, 1, 1, 2))
        if chance.random() < 0.2:
            tsn += chance.randrange(-30, 30)
        flags = bytes(
            chance.choices(
                (UNORDERED, UNORDERED | FIRST_FRAGMENT, UNORDERED | LAST_FRAGMENT, 7), (30, 1, 1, 0.2), k=count
            )
        )
        payloads = [chance.randbytes(100) for _ in range(count)]
        together.on_run(DataRun(tsn % 2**32, stream, 0, BINARY, flags, payloads))
        for number, (flag, payload) in enumerate(zip(flags, payloads, strict=True)):
            apart.on_data((tsn + number) % 2**32, stream, 0, BINARY, flag, payload)
        assert state(together) == state(apart)
        tsn += count
    assert together.ready


def test_fragments_of_two_streams_are_never_joined() -> None:
    book = ReceiveBook(0, 1000)
    book.on_data(1, 1, 0, BINARY, FIRST_FRAGMENT, b"one")
    book.on_data(2, 2, 0, BINARY, LAST_FRAGMENT, b"two")
    assert book.ready == []
    book.on_data(5, 2, 0, BINARY, LAST_FRAGMENT, b"two")
    book.on_data(4, 1, 0, BINARY, FIRST_FRAGMENT, b"one")
    assert book.ready == []
