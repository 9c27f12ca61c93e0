"""A node reaches its coordinator at every kind of address, and signs for the one that it dialled."""

import pytest

from common.clock import SystemClock
from desktop.agent.app.startup import _is_readable_on_the_way
from desktop.agent.base.config import Settings
from desktop.agent.earnings.earnings_estimate import ask_network
from desktop.agent.errors import NoNetworkError
from protocol.identity import NodeKey
from protocol.task import TaskReady
from tests.desktop.conftest import StartAgent, assignment, plan_of
from tests.desktop.coordinator_double import Double
from tests.support.addresses import link_local
from transport.nettest.errors import NoRelayError
from transport.nettest.offer import ask_relays


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "::", *link_local()[:1]])
async def test_a_node_connects_fetches_and_asks_wherever_the_coordinator_listens(
    host: str, coordinator: Double, start_agent: StartAgent
) -> None:
    await coordinator.stop()
    coordinator.listen, coordinator.port = host, 0
    url = await coordinator.start()
    async with start_agent() as node:
        await coordinator.until(lambda: node.address in coordinator.nodes)
        assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0)
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: coordinator.bodies(TaskReady))
        assert coordinator.requests, "the job's files were fetched from there"
        assert (await ask_network(url)).nodes_online == 10
        with pytest.raises(NoRelayError):
            await ask_relays(url, NodeKey.generate(), SystemClock())


@pytest.mark.parametrize(
    ("said", "connects"),
    [("[0:0:0:0:0:0:0:1]:{port}", True), ("::1", True), ("[::2]:{port}", False), ("[::1]:1", False)],
)
async def test_a_coordinator_may_spell_its_address_differently_but_not_name_another(
    said: str, connects: bool, coordinator: Double, start_agent: StartAgent
) -> None:
    await coordinator.stop()
    coordinator.listen, coordinator.port = "::1", 0
    await coordinator.start()
    coordinator.host = said.format(port=coordinator.port)
    async with start_agent() as node:
        if connects:
            await coordinator.until(lambda: node.address in coordinator.nodes)
        else:
            await coordinator.until(lambda: "dial it by that name" in node.agent.status().reason)


@pytest.mark.parametrize("text", ["http://::1:8470", "http://ada:secret@host", "host:8470", "http://127.1"])
def test_an_address_that_cannot_be_is_refused_when_it_is_set(text: str) -> None:
    with pytest.raises(NoNetworkError, match=r"https://cottage\.example") as refused:
        Settings(coordinator=text).completed(NodeKey.generate().address)
    assert "secret" not in str(refused.value)
    assert "--" not in str(refused.value), "the window shows it, too"


@pytest.mark.parametrize(
    ("url", "readable"),
    [
        ("http://[::1]:8470", False),
        ("http://127.0.0.1", False),
        ("http://localhost:8470", False),
        ("https://[2001:db8::1]", False),
        ("http://[2001:db8::1]:8470", True),
        ("http://[fe80::1%eth0]:1", True),
        ("http://cottage.example", True),
    ],
)
def test_plain_http_that_leaves_this_machine_is_known_as_such(url: str, readable: bool) -> None:
    assert _is_readable_on_the_way(url) is readable
