"""Whoever answers at the address of an invitation has to hold its key: here, now, and under the name that was dialled."""

from collections.abc import Callable
from pathlib import Path

import pytest

from desktop.agent.app.selftest import SelfTestMeans, Speed, Steps
from desktop.agent.base.config import Home, Settings
from desktop.agent.base.gpu import NOTHING
from desktop.answers import SelfTestStep
from protocol.identity import NodeKey
from tests.desktop.conftest import StartAgent
from tests.desktop.coordinator_double import Double
from transport.nettest.errors import NettestError

KEY = NodeKey(bytes(range(32)))


def nothing(_: Double) -> None:
    """The coordinator proves what it should."""


def other(double: Double) -> None:
    double.key = NodeKey.generate()


def silent(double: Double) -> None:
    double.key = None


def known_elsewhere(double: Double) -> None:
    """A true coordinator signed this for somebody who passes the greeting on under another name."""
    double.known_as = "cottage.example"


def of_before(double: Double) -> None:
    """What a true coordinator once signed for this node, said again."""
    node = "1" * 44
    double.replayed = KEY.sign("cottage-welcome", bytes(32), node.encode(), b"127.0.0.1")


@pytest.mark.parametrize("change", [other, silent, known_elsewhere, of_before])
async def test_nobody_works_for_whoever_cannot_show_the_key(
    change: Callable[[Double], None], coordinator: Double, start_agent: StartAgent
) -> None:
    coordinator.key = KEY
    change(coordinator)
    async with start_agent(coordinator_key=KEY.address) as node:
        await coordinator.until(lambda: "cannot show that it is the network" in node.agent.status().reason)
        assert node.agent.status().state != "online"
        assert len(coordinator.hellos[0].nonce) == 32


async def test_the_key_of_the_invitation_is_shown_anew_each_time(coordinator: Double, start_agent: StartAgent) -> None:
    coordinator.key = KEY
    async with start_agent(coordinator_key=KEY.address) as node:
        await coordinator.until(lambda: node.agent.status().state == "online")
        await coordinator.stop()
        await coordinator.start()
        await coordinator.until(lambda: len(coordinator.hellos) > 1 and node.agent.status().state == "online")
    nonces = {hello.nonce for hello in coordinator.hellos}
    assert len(nonces) == len(coordinator.hellos)


async def test_without_an_invitation_nothing_is_asked(coordinator: Double, start_agent: StartAgent) -> None:
    async with start_agent() as node:
        await coordinator.until(lambda: node.agent.status().state == "online")
    assert coordinator.hellos[0].nonce == b""


async def selftested(home: Home, settings: Settings) -> SelfTestStep:
    async def measure(_: object) -> Speed:
        return Speed(1e12)

    async def line() -> object:
        raise NettestError("not now")

    steps = Steps(home, settings, SelfTestMeans(lambda: NOTHING, measure, line))  # type: ignore[arg-type]
    found = [whole async for whole in steps.results(0.0)][-1]
    return next(check for check in found.checks if check.name == "coordinator")


async def test_the_self_test_says_that_another_network_answers(coordinator: Double, tmp_path: Path) -> None:
    coordinator.key = KEY
    settings = Settings(coordinator=coordinator.url, coordinator_key=KEY.address)
    assert (await selftested(Home.at(tmp_path / "h"), settings)).code == "answers"
    coordinator.key = NodeKey.generate()
    assert (await selftested(Home.at(tmp_path / "h"), settings)).code == "other key"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:9", "refused"),
        ("http://nobody.invalid", "name"),
        ("https://127.0.0.1:{port}", "certificate"),
    ],
)
async def test_why_nobody_answers_is_told_in_a_word_and_without_the_librarys(
    url: str, why: str, coordinator: Double, tmp_path: Path
) -> None:
    found = await selftested(Home.at(tmp_path / "h"), Settings(coordinator=url.format(port=coordinator.port)))
    assert (found.code, found.detail) == ("no answer", {"why": why})
    for word in ("ssl:", "Errno", "Cannot connect", "--", "ClientConnector"):
        assert word not in found.text
