"""A node whose only way out is a proxy: its WebSocket, its files and its questions go through it, and what fails names it."""

import os
import ssl
from pathlib import Path

import pytest

from desktop.agent.earnings.earnings_estimate import ask_network
from desktop.agent.errors import NotConnectedError
from protocol.task import TaskReady
from tests.desktop.app.test_agent_as_a_process import agent_program
from tests.desktop.conftest import StartAgent, assignment, plan_of
from tests.desktop.coordinator_double import Double
from tests.support.proxy import clean, proxying
from tests.testbed.relay import make_certificate

pytestmark = pytest.mark.usefixtures("no_proxies")


async def named(coordinator: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nodes dial the coordinator by a name that only the proxy knows."""
    monkeypatch.setattr(Double, "url", property(lambda double: f"http://cottage.test:{double.port}"))


async def test_everything_that_a_node_says_to_its_coordinator_goes_through_the_proxy(
    coordinator: Double, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    await named(coordinator, monkeypatch)
    async with proxying() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        async with start_agent() as node:
            await coordinator.until(lambda: node.address in coordinator.nodes)
            assign = assignment(coordinator, plan_of((0, 0, node.address)), 0, 0)
            await coordinator.assign(node.address, assign)
            await coordinator.until(lambda: coordinator.bodies(TaskReady))
        assert (await ask_network(coordinator.url)).nodes_online == 10
        asked = [target.removeprefix(coordinator.url).rpartition("/")[0] for _, target in proxy.asked]
        assert {"/api/v1", "/api/v1/artifacts"} <= set(asked)


async def test_the_node_says_which_proxy_it_could_not_get_through(
    coordinator: Double, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    await named(coordinator, monkeypatch)
    async with proxying(passes_upgrades=False) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        async with start_agent() as node:
            said = node.agent.status().reason
            assert f"through the proxy {proxy.url} (HTTP_PROXY)" in said
            assert "use an https address" in said
        proxy.answer = "503 Service Unavailable"
        with pytest.raises(NotConnectedError, match=r"through the proxy .* \(HTTP_PROXY\): 503"):
            await ask_network(coordinator.url)


async def test_a_node_reaches_a_coordinator_with_tls_through_a_tunnel(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make_certificate(["cottage.test"], certificate, key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    coordinator = Double(tls=context)
    await coordinator.start()
    (home := tmp_path / "home").mkdir()
    async with proxying(login="ada:secret") as proxy:
        more = {"HTTPS_PROXY": proxy.url, "SSL_CERT_FILE": str(certificate)}
        url = f"https://cottage.test:{coordinator.port}"
        async with agent_program(home, url, "--sandbox", "process", environment=clean(dict(os.environ)) | more) as node:
            await coordinator.until(lambda: node.address in coordinator.nodes)
        assert set(proxy.asked) == {("CONNECT", f"cottage.test:{coordinator.port}")}
    await coordinator.stop()


async def test_the_agents_own_door_is_asked_straight(
    coordinator: Double, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    from desktop.agent.app import status

    async with proxying() as proxy:
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        async with start_agent() as node:
            await coordinator.until(lambda: node.address in coordinator.nodes)
            assert (await status.ask(node.home.socket)).node == node.address
        assert proxy.asked == []
