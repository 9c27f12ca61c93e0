"""An agent that is let in by an invitation, or is not: it shows one sentence with the way out, and does not hammer."""

import asyncio

from protocol.node import Refused
from tests.desktop.conftest import StartAgent
from tests.desktop.coordinator_double import Double

WHY = "only computers that were invited may lend here: ask whoever runs this network for an invitation"


async def test_the_code_is_said_in_the_greeting_and_none_where_there_is_none(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent(invitation="1" * 22):
        await coordinator.until(lambda: coordinator.hellos)
    async with start_agent("another"):
        await coordinator.until(lambda: len(coordinator.hellos) > 1)
    assert [hello.invitation for hello in coordinator.hellos[:2]] == ["1" * 22, ""]


async def test_a_refused_agent_says_why_waits_and_comes_back_by_itself(
    coordinator: Double, start_agent: StartAgent
) -> None:
    coordinator.refusal = Refused(WHY, 3.0)  # type: ignore[arg-type]
    async with start_agent() as node:
        await coordinator.until(lambda: node.agent.status().state == "refused")
        assert node.agent.status().reason == WHY, "the sentence alone: no address, no library's words before it"
        await asyncio.sleep(1.5)
        assert len(coordinator.hellos) == 1, "it waits as long as it was told"
        assert node.agent.status().state == "refused"
        coordinator.refusal = None
        await coordinator.until(lambda: node.agent.status().state == "online")
        assert node.agent.status().reason == ""
        assert len(coordinator.hellos) == 2


async def test_an_agent_that_is_parted_with_while_it_is_here_says_why(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with start_agent() as node:
        await coordinator.until(lambda: node.agent.status().state == "online")
        await coordinator.send(node.address, Refused(WHY, 60.0))  # type: ignore[arg-type]
        await coordinator.until(lambda: node.agent.status().reason == WHY)
        assert node.agent.status().state == "refused"
        await asyncio.sleep(0.5)
        assert len(coordinator.hellos) == 1
