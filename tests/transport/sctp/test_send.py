"""What the sending book sends, sends again and gives up: against the receiving book over networks of a virtual clock."""

import itertools
import random
import statistics
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transport.sctp.exchange import HEADERS, PAYLOAD, START, Exchange, Network
from transport.sctp.packet import TSN_MASK, Sack
from transport.sctp.record import Record
from transport.sctp.schedule import ScheduledMessage, StreamSchedule
from transport.sctp.send import MAX_TIMEOUT_S, SendBook

NETWORKS = {
    "clean": Network(),
    "lossy": Network(loss=0.03, ack_loss=0.03),
    "very lossy": Network(loss=0.3, ack_loss=0.3),
    "jittery": Network(jitter=0.03),
    "all at once": Network(jitter=0.02, loss=0.05, ack_loss=0.05, duplicates=0.05),
}


def ack(upto: int, *gaps: tuple[int, int], window: int = 1 << 20) -> Sack:
    return Sack(upto & TSN_MASK, window, gaps, ())


def filled(packets: int, window: int = 1 << 20) -> SendBook:
    """A book that has sent so many packets at time 0."""
    book = SendBook(START, window, {}, partial=True)
    book.set_size(PAYLOAD, HEADERS)
    book.queue(ScheduledMessage("owner", 1, 53, bytes(PAYLOAD * packets), ordered=True))
    for _ in range(packets):
        assert book.next(0.0) is not None
    return book


@given(
    st.lists(st.integers(1, 6 * PAYLOAD), min_size=1, max_size=5),
    st.lists(st.integers(1, 8 * PAYLOAD), min_size=1, max_size=20),
    st.integers(PAYLOAD, 20 * PAYLOAD),
    st.sets(st.integers(0, 30), max_size=8),
)
def test_a_run_is_what_would_have_been_sent_one_by_one(
    sizes: list[int], rooms: list[int], window: int, missing: set[int]
) -> None:
    def book() -> SendBook:
        made = SendBook(START, window, {}, partial=True)
        made.set_size(PAYLOAD, HEADERS)
        for number, size in enumerate(sizes):
            made.queue(ScheduledMessage("owner", number % 3, 53, bytes(size), ordered=number % 2 == 0))
        return made

    def facts(record: Record) -> tuple[object, ...]:
        return (
            record.tsn,
            record.start,
            record.end,
            record.flags,
            record.size,
            record.departure,
            record.sends,
            record.message.stream,
            record.message.sequence,
            record.message.first_tsn,
        )

    quick, slow = book(), book()
    for turn, room in enumerate(rooms):
        run, left = quick.next_run(float(turn), room), room
        for record in itertools.chain.from_iterable(run):
            assert left > 0
            one = slow.next(float(turn))
            assert one is not None
            assert facts(record) == facts(one)
            left -= record.size
        if not run:
            assert slow.next(float(turn)) is None
        assert (quick.inflight, quick.next_tsn, quick.backlog) == (slow.inflight, slow.next_tsn, slow.backlog)
        upto = quick.next_tsn - START
        gaps = tuple((tsn, tsn) for tsn in range(2, upto + 1, 2) if tsn - 1 not in missing)
        for each in (quick, slow):
            assert each.on_sack(ack(START - 1, *gaps, window=window), turn + 0.5) is not None
        assert quick.settle_released() == slow.settle_released()


MESSAGES = st.lists(st.tuples(st.integers(1, 9 * PAYLOAD), st.booleans(), st.booleans()), min_size=1, max_size=6)
TURNS = st.tuples(
    st.integers(1, 12 * PAYLOAD), st.integers(0, 8), st.lists(st.integers(1, 4), max_size=6), st.booleans()
)


@given(MESSAGES, st.lists(TURNS, min_size=1, max_size=25))
def test_what_left_as_a_flight_arrives_is_lost_and_given_up_as_if_it_had_left_one_by_one(
    messages: list[tuple[int, bool, bool]], turns: list[tuple[int, int, list[int], bool]]
) -> None:
    def book() -> SendBook:
        made = SendBook(START, 30 * PAYLOAD, {}, partial=True)
        made.set_size(PAYLOAD, HEADERS)
        for number, (size, ordered, once) in enumerate(messages):
            limit = 1 if once else None
            made.queue(ScheduledMessage(number, number % 3, 53, bytes(size), ordered, max_retransmits=limit))
        return made

    def facts(made: SendBook) -> tuple[object, ...]:
        return (
            made.inflight,
            made.payload_sent,
            made.lost,
            made.full_lost,
            made.retransmitted,
            made.timeouts,
            made.next_tsn,
            made.backlog,
            made.outstanding,
            made.deadline,
            made.fault,
            made.settle_released(),
        )

    quick, slow = book(), book()
    now, upto = 0.0, START - 1
    for room, ahead, widths, late in turns:
        now += 0.05
        run = quick.next_run(now, room)
        for one in itertools.chain.from_iterable(run):
            other = slow.next(now)
            assert other is not None
            assert (one.tsn, one.flags, one.sends, one.departure) == (
                other.tsn,
                other.flags,
                other.sends,
                other.departure,
            )
        if not run or (slow._again and not quick._again):  # It asked once more than it got: there was no more to send.
            assert slow.next(now) is None
        upto = min(upto + ahead, quick.next_tsn - 1)
        edges = list(itertools.accumulate(widths, initial=1))[1:]
        gaps = [
            (first, last) for first, last in zip(edges[::2], edges[1::2], strict=False) if upto + last < quick.next_tsn
        ]
        told = [each.on_sack(ack(upto, *gaps), now + 0.02) for each in (quick, slow)]
        assert told[0] is not None
        assert told[0] == told[1]
        if late:
            now += 3.0
            assert quick.on_timer(now) == slow.on_timer(now)
        assert quick.forward(now) == slow.forward(now)
        assert facts(quick) == facts(slow)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("seed", range(3))
def test_everything_arrives_once_and_in_order(name: str, seed: int) -> None:
    exchange = Exchange(NETWORKS[name], seed=seed)
    chance = random.Random(seed)
    sent = [chance.randbytes(chance.choice((1, 999, 1000, 1001, 20_000))) for _ in range(60)]
    for data in sent:
        exchange.queue(1, data)
    exchange.run_to_end(200.0)
    assert [message.data for message in exchange.delivered] == sent
    assert exchange.sender.inflight == 0
    assert exchange.receiver.held == 0


def test_a_clean_path_sees_no_packet_twice() -> None:
    exchange = Exchange()
    exchange.queue(1, bytes(500_000))
    exchange.run_to_end()
    assert len(exchange.sent) == len(set(exchange.sent)) == 500
    assert exchange.sender.retransmitted == exchange.sender.lost == 0


def test_on_a_lossy_path_little_more_is_sent_than_was_lost() -> None:
    exchange = Exchange(Network(loss=0.03))
    exchange.queue(1, bytes(1_000_000))
    exchange.run_to_end()
    assert 20 <= exchange.sender.retransmitted <= 45  # 3 % of 1,000 and of those sent again.
    assert exchange.receiver.duplicates <= 3
    assert exchange.timeouts == 0


def test_a_path_that_reorders_is_learnt_and_few_packets_go_in_vain() -> None:
    exchange = Exchange(Network(delay=0.04, jitter=0.02))
    for _ in range(20):
        exchange.queue(1, bytes(100_000))
    exchange.run_to_end()
    assert exchange.receiver.duplicates < 100  # Of 2,000, of which nearly each one is overtaken by ten others.


def test_a_burst_of_losses_at_the_end_is_found_by_a_probe_and_not_by_a_timeout() -> None:
    exchange = Exchange()
    exchange.queue(1, bytes(100_000))
    exchange.run(lambda: len(exchange.delivered) == 1)
    exchange.run_to_end()
    start = exchange.now
    exchange.cut = lambda now: now < start + 0.005
    exchange.queue(1, bytes(3000))
    exchange.run_to_end()
    assert len(exchange.delivered) == 2
    assert exchange.timeouts == 0
    assert exchange.now - start < 0.3


def test_a_line_that_was_cut_is_asked_every_two_seconds_and_goes_on_when_it_is_back() -> None:
    exchange = Exchange()
    exchange.queue(1, bytes(300_000))
    exchange.cut = lambda now: 0.1 < now < 20.0
    exchange.run(lambda: exchange.now > 19.9)
    waiting = len(exchange.sent)
    exchange.run_to_end()
    assert len(exchange.delivered) == 1
    assert exchange.now < 20.0 + MAX_TIMEOUT_S + 1.0
    assert 5 <= exchange.timeouts <= 20
    assert waiting < 3000


def test_a_closed_receive_window_is_asked_with_single_packets_and_opens_again() -> None:
    book = filled(2)
    book.on_sack(ack(START + 1, window=0), 0.1)
    book.queue(ScheduledMessage("owner", 1, 53, bytes(5000), ordered=True))
    assert book.next(0.2) is not None
    assert book.next(0.2) is None
    assert book.deadline is not None
    book.on_sack(ack(START + 2, window=0), 0.3)
    assert book.next(0.4) is not None
    assert book.next(0.4) is None
    book.on_sack(ack(START + 3, window=10_000), 0.5)
    assert [book.next(0.6) is not None for _ in range(4)] == [True, True, True, False]


def test_never_more_is_on_its_way_than_the_peer_has_room_for() -> None:
    exchange = Exchange(Network(loss=0.02), receive_window=20_000)
    exchange.queue(1, bytes(300_000))
    greatest = 0

    def done() -> bool:
        nonlocal greatest
        greatest = max(greatest, exchange.sender.inflight)
        return not exchange.sender.backlog and not exchange.sender.outstanding

    exchange.run(done, 120)
    assert greatest <= 20 * (PAYLOAD + HEADERS)
    assert exchange.receiver.dropped == 0


def test_delivery_rate_and_round_trip_are_those_of_the_network() -> None:
    exchange = Exchange(Network(loss=0.01), rate=1.25e6)
    exchange.queue(1, bytes(1 << 20))
    exchange.run_to_end()
    rates = [rate for now, _, rate, limited in exchange.samples if rate is not None and not limited and now > 0.2]
    assert statistics.median(rates) == pytest.approx(1.25e6, rel=0.05)
    assert max(rates) < 1.25e6 * 1.25
    trips = [rtt for _, rtt, _, _ in exchange.samples if rtt is not None]
    assert min(trips) >= 0.0399
    assert statistics.median(trips) < 0.045
    assert exchange.sender.round_trips.smallest == pytest.approx(0.04, abs=0.002)


def test_a_sender_with_little_to_say_marks_its_rates_as_lower_bounds() -> None:
    exchange = Exchange()
    for n in range(20):
        exchange.queue(1, b"x")
        exchange.run(lambda n=n: exchange.now > 0.01 * n)  # type: ignore[misc]
    exchange.run_to_end()
    assert all(limited for _, _, rate, limited in exchange.samples[3:] if rate is not None)


# Giving up


def test_messages_that_may_be_lost_are_given_up_and_the_rest_arrives() -> None:
    exchange = Exchange(Network(loss=0.2))
    for n in range(100):
        exchange.queue(1, n.to_bytes(2, "big") * 1500, max_retransmits=0)
    exchange.queue(2, b"reliable" * 1000)
    exchange.run_to_end(120)
    numbers = [int.from_bytes(m.data[:2], "big") for m in exchange.delivered if m.stream == 1]
    assert numbers == sorted(numbers)
    assert 20 < len(numbers) < 95
    assert [m.data for m in exchange.delivered if m.stream == 2] == [b"reliable" * 1000]
    assert exchange.receiver.held == 0


def test_what_has_expired_before_it_was_sent_never_is() -> None:
    exchange = Exchange(rate=50_000)
    for n in range(50):
        exchange.queue(1, bytes([n]) * 1000, expires_at=0.1)
    exchange.run_to_end()
    assert 3 <= len(exchange.delivered) <= 12
    assert len(exchange.sent) <= 12
    assert exchange.sender.settle_released() == {1: 50_000}


def test_nothing_is_given_up_towards_a_peer_that_does_not_know_of_it() -> None:
    exchange = Exchange(Network(loss=0.2), partial=False)
    for n in range(30):
        exchange.queue(1, bytes([n]) * 3000, max_retransmits=0)
    exchange.run_to_end(120)
    assert len(exchange.delivered) == 30


# Order and fairness


def test_level_zero_goes_before_everything_and_weights_share_the_rest() -> None:
    schedule = StreamSchedule()
    for stream, level in ((1, 1), (2, 2), (3, 3), (9, 0)):
        schedule.set_level(stream, level)
        for _ in range(200):
            schedule.add(ScheduledMessage(None, stream, 53, bytes(1000), ordered=True))
    order = [message.stream for message in iter(schedule.take, None)]
    assert order[:200] == [9] * 200
    first = Counter(order[200:310])
    assert first[1] == pytest.approx(80, abs=2)
    assert first[2] == pytest.approx(20, abs=2)
    assert first[3] == pytest.approx(10, abs=2)
    assert len(order) == 800


def test_an_unknown_level_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="level 7 of stream 3"):
        StreamSchedule().set_level(3, 7)


def test_an_urgent_message_waits_for_one_message_at_most() -> None:
    exchange = Exchange()
    exchange.sender.set_level(0, 0)
    for _ in range(50):
        exchange.queue(1, bytes(4000))
    exchange.run(lambda: len(exchange.sent) > 20)
    before = len(exchange.sent)
    exchange.queue(0, b"urgent")
    exchange.run(lambda: any(message.stream == 0 for message in exchange.delivered))
    sent = exchange.sender
    assert sent.backlog
    assert exchange.now < 0.1
    assert before < 40


def test_bytes_are_released_once_each_and_to_their_owner() -> None:
    exchange = Exchange(Network(loss=0.1))
    total: Counter[object] = Counter()
    for _ in range(20):
        exchange.queue(1, bytes(2500))
        exchange.queue(2, bytes(700))

    def done() -> bool:
        total.update(exchange.sender.settle_released())
        return not exchange.sender.backlog and not exchange.sender.outstanding

    exchange.run(done)
    assert total == {1: 50_000, 2: 14_000}


# A hostile peer


@pytest.mark.parametrize(
    "sack", [ack(START + 10), ack(START + 2**31 - 2), ack(START + 3, (2, 7)), ack(START - 1, (2, 12))]
)
def test_acknowledging_what_was_never_sent_is_a_fault(sack: Sack) -> None:
    book = filled(10)
    assert book.on_sack(sack, 0.1) is None
    assert "never sent" in book.fault


@pytest.mark.parametrize(
    "gaps", [((3, 2),), ((1, 1),), ((5, 6), (2, 3)), ((2, 4), (4, 6)), ((2, 2), (3, 3)), ((0, 0),)]
)
def test_gaps_that_make_no_sense_are_left_out(gaps: tuple[tuple[int, int], ...]) -> None:
    book = filled(10)
    sample = book.on_sack(ack(START, *gaps), 0.1)
    assert sample is not None
    assert sample.acked == PAYLOAD + HEADERS
    assert book.inflight == 9 * (PAYLOAD + HEADERS)
    assert not book.fault


def test_old_and_repeated_acknowledgements_change_nothing() -> None:
    book = filled(10)
    book.on_sack(ack(START + 4), 0.1)
    inflight = book.inflight
    assert book.on_sack(ack(START + 2), 0.2) is None
    sample = book.on_sack(ack(START + 4), 0.3)
    assert sample is not None
    assert (sample.acked, sample.rtt, sample.delivery_rate) == (0, None, None)
    assert book.inflight == inflight


def test_a_peer_that_takes_back_what_it_acknowledged_gets_it_again() -> None:
    book = filled(4)
    book.on_sack(ack(START - 1, (2, 4)), 0.05)
    now, sent = 0.05, []
    book.on_sack(ack(START), 0.1)
    while len(set(sent)) < 3 and now < 20:
        now += 0.01
        if book.deadline is not None and now >= book.deadline:
            book.on_timer(now)
        while (record := book.next(now)) is not None:
            sent.append(record.tsn)
    assert sorted(set(sent)) == [START + 1, START + 2, START + 3]
    book.on_sack(ack(START + 3), now)
    assert not book.outstanding
    assert book.inflight == 0


@pytest.mark.parametrize("seed", range(10))
def test_random_acknowledgements_never_raise_and_never_lose_count(seed: int) -> None:
    chance = random.Random(seed)
    book = filled(200)
    for step in range(2000):
        cumulative = START - 2 + chance.randrange(205 if chance.random() < 0.01 else 150)
        gaps = tuple((chance.randrange(70), chance.randrange(70)) for _ in range(chance.randrange(4)))
        book.on_sack(Sack(cumulative & TSN_MASK, chance.randrange(2**32), gaps, ()), step * 0.01)
        while book.next(step * 0.01) is not None:
            pass
        if book.deadline is not None and step * 0.01 >= book.deadline:
            book.on_timer(step * 0.01)
        assert 0 <= book.inflight <= 200 * (PAYLOAD + HEADERS)
        if book.fault:
            return


def test_withheld_acknowledgements_send_ever_more_slowly() -> None:
    book = filled(50)
    now, times = 0.0, []
    while now < 60:
        now += 0.01
        if book.deadline is not None and now >= book.deadline:
            book.on_timer(now)
            times.append(now)
        book.next(now)
    assert len(times) < 40
    assert times[-1] - times[-2] == pytest.approx(MAX_TIMEOUT_S, abs=0.02)


def test_after_a_packet_was_overtaken_three_later_ones_are_no_proof_of_a_loss() -> None:
    book = filled(20)
    book.on_sack(ack(START - 1, (2, 3)), 0.040)  # The first was overtaken by two,
    book.on_sack(ack(START + 2), 0.041)  # and came.
    sample = book.on_sack(ack(START + 2, (2, 7)), 0.042)
    assert sample is not None
    assert sample.lost == 0
    assert book.deadline is not None
    assert book.deadline < 0.06
    assert book.on_timer(book.deadline)[0] == PAYLOAD + HEADERS
    fresh = filled(20)
    first = fresh.on_sack(ack(START - 1, (2, 7)), 0.040)
    assert first is not None
    assert first.lost == PAYLOAD + HEADERS


def test_a_peer_that_skips_what_was_given_up_counts_as_progress() -> None:
    book = SendBook(START, 1 << 20, {}, partial=True)
    book.set_size(PAYLOAD, HEADERS)
    book.queue(ScheduledMessage("owner", 1, 53, bytes(3000), ordered=True, max_retransmits=0))
    while book.next(0.0) is not None:
        pass
    now = 0.0
    for _ in range(4):
        assert book.deadline is not None
        now = book.deadline
        book.on_timer(now)
        while book.next(now) is not None:
            pass
    assert book.forward(now) is not None
    book.queue(ScheduledMessage("owner", 1, 53, bytes(1000), ordered=True))
    assert book.next(now) is not None
    before = book.deadline
    assert before is not None
    book.on_sack(ack(START + 2), now + 0.01)
    assert book.deadline is not None
    assert book.deadline < before


def test_a_sample_tells_whether_its_packet_ended_a_burst() -> None:
    book = SendBook(START, 1 << 20, {}, partial=True)
    book.set_size(PAYLOAD, HEADERS)
    book.queue(ScheduledMessage("owner", 1, 53, bytes(20 * PAYLOAD), ordered=False))
    run = book.next_run(1.0, 6 * (PAYLOAD + HEADERS))
    run[-1].ask()
    inside = book.on_sack(ack(START + 2, window=1 << 20), 1.1)
    end = book.on_sack(ack(START + 5, window=1 << 20), 1.2)
    assert inside is not None
    assert end is not None
    assert (inside.ends_burst, end.ends_burst) == (False, True)
