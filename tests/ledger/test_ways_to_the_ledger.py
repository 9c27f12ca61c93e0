"""The ledger's RPC is reached at every kind of address, and by the same rule for proxies as everything else."""

from __future__ import annotations

import pytest
from aiohttp import web

from common.urls import parse_url, url_of
from ledger.client import Ledger, LedgerConfig
from ledger.errors import AddressError, LedgerUnavailableError
from ledger.local.rpc import Rpc
from ledger.local.server import build_app
from protocol.identity import NodeKey
from tests.ledger.world import World
from tests.support.addresses import link_local
from tests.support.proxy import proxying

pytestmark = pytest.mark.usefixtures("no_proxies")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::", "localhost", *link_local()[:1]])
async def test_the_ledger_is_reached_wherever_it_listens(host: str, world: World) -> None:
    runner = web.AppRunner(build_app(Rpc(world.chain, world.genesis), lambda: None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, host, 0).start()
    async with await Ledger.connect(LedgerConfig(url_of(host, runner.addresses[0][1]))) as ledger:
        assert await ledger.lamports(NodeKey.generate().address) is not None
    await runner.cleanup()


async def test_a_ledger_on_this_machine_is_never_asked_through_a_proxy(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://nobody.example:1")
    async with proxying() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        async with await Ledger.connect(LedgerConfig(url)) as ledger:
            assert await ledger.lamports(NodeKey.generate().address) is not None
        assert proxy.asked == []


async def test_a_ledger_elsewhere_is_asked_through_the_proxy(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = f"http://ledger.test:{parse_url(url).port}"
    async with proxying(login="ada:secret") as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        async with await Ledger.connect(LedgerConfig(elsewhere)) as ledger:
            assert await ledger.lamports(NodeKey.generate().address) is not None
        assert {target.rstrip("/") for _, target in proxy.asked} == {elsewhere}


async def test_a_proxy_that_fails_is_named_and_not_taken_for_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://ada:secret@127.0.0.1:9")
    with pytest.raises(LedgerUnavailableError, match=r"through the proxy http://127.0.0.1:9 \(HTTP_PROXY\)") as said:
        await Ledger.connect(LedgerConfig("http://ledger.test:8899"))
    assert "is the ledger running" not in str(said.value)
    assert "secret" not in str(said.value)
    monkeypatch.setenv("HTTP_PROXY", "socks5://127.0.0.1:9")
    with pytest.raises(LedgerUnavailableError, match=r"HTTP_PROXY: .* no other kind of proxy"):
        await Ledger.connect(LedgerConfig("http://ledger.test:8899"))


@pytest.mark.parametrize("text", ["ledger.test:8899", "http://::1:8899", "http://ada:secret@ledger.test"])
async def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(AddressError, match="the ledger's URL"):
        await Ledger.connect(LedgerConfig(text))
