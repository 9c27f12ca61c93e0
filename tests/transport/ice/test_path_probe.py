"""Signs of life between two real ICE agents, and the figures of a link."""

import pytest
from aioice import stun

from tests.transport.conftest import until
from tests.transport.ice.test_reach_pairs import Agent, connected
from transport.ice.link_metrics import LOSS_WINDOW_S, Figures
from transport.ice.path_probe import MAX_PENDING, PathProbe
from transport.ice.stats import LinkStats
from transport.sctp.congestion.control import PathStats


def answer(probe_id: bytes, key: str, seen_as: tuple[str, int]) -> bytes:
    """A signed answer to a probe."""
    message = stun.Message(stun.Method.BINDING, stun.Class.RESPONSE, probe_id)
    message.attributes["XOR-MAPPED-ADDRESS"] = seen_as
    message.add_message_integrity(key.encode())
    return bytes(message)


class Answers:
    """Stands between a probe and its peer: hands over such answers as a test makes up."""

    def __init__(self, agent: Agent) -> None:
        self._protocol = agent.pair.protocol
        self._peer = agent.pair.remote_addr
        self.key = agent.connection.remote_password or ""
        self.probe = PathProbe(agent.connection)

    def give(self, seen_as: tuple[str, int], key: str | None = None) -> None:
        known = set(self._protocol.transactions)
        self.probe.send()
        (probe_id,) = set(self._protocol.transactions) - known
        self._protocol.datagram_received(answer(probe_id, key or self.key, seen_as), self._peer)


async def test_the_peer_answers_every_probe_and_nothing_is_left_waiting() -> None:
    async with connected(()) as (first, _):
        probe = PathProbe(first.connection)
        for _ in range(20):
            probe.send()
        await until(lambda: probe.answers == 20)
        assert probe.moved == ""
        assert not first.pair.protocol.transactions


async def test_another_address_in_the_answer_tells_of_another_path() -> None:
    async with connected(()) as (first, _):
        answers = Answers(first)
        answers.give(("198.51.100.1", 1000))
        answers.give(("198.51.100.1", 1000))
        assert (answers.probe.answers, answers.probe.moved) == (2, "")
        answers.give(("198.51.100.1", 1001))
        assert answers.probe.answers == 2
        assert "198.51.100.1:1001" in answers.probe.moved


async def test_an_answer_that_the_peer_did_not_sign_is_no_sign_of_life() -> None:
    async with connected(()) as (first, _):
        answers = Answers(first)
        answers.give(("198.51.100.1", 1000), key="guessed" * 4)
        assert (answers.probe.answers, answers.probe.moved) == (0, "")


async def test_probes_without_an_answer_take_little_memory() -> None:
    async with connected(()) as (first, second):
        await second.connection.close()
        probe = PathProbe(first.connection)
        for _ in range(1000):
            probe.send()
        assert len(first.pair.protocol.transactions) <= MAX_PENDING
        probe.stop()
        assert not first.pair.protocol.transactions


async def test_probing_a_closed_connection_does_nothing() -> None:
    async with connected(()) as (first, _):
        probe = PathProbe(first.connection)
        await first.connection.close()
        probe.send()


def path(sent: int, again: int) -> PathStats:
    return PathStats(0.05, 0.04, 0.01, 1e6, 2e6, 3e6, sent, sent, again, again, 0, 0, 0, 1500, "portable")


def test_loss_is_that_of_the_last_ten_seconds() -> None:
    stats = LinkStats()
    figures = Figures(stats)
    figures.update(path(1000, 100), 1.0)
    assert stats.loss == pytest.approx(0.1)
    for second in range(2, 30):
        figures.update(path(1000 * second, 100), float(second))
    assert stats.loss == 0
    assert stats.retransmitted == 100
    assert LOSS_WINDOW_S == 10


def test_retransmissions_of_several_connections_add_up() -> None:
    stats = LinkStats()
    for _ in range(3):
        Figures(stats).update(path(10, 5), 1.0)
    assert stats.retransmitted == 15
    assert (stats.min_rtt_s, stats.queue_s, stats.mtu, stats.send_rate) == (0.04, 0.01, 1500, 1e6)
