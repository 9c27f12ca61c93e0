"""The one rule for proxies, and what a session says when a proxy fails."""

import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote

import aiohttp
import pytest
from aiohttp import web

from common import http_sessions
from common.http_sessions import ProxyError, open_session, proxy_for, through, why
from common.urls import parse_url
from tests.support.proxy import VARIABLES, proxying
from tests.testbed.relay import make_certificate

pytestmark = pytest.mark.usefixtures("no_proxies")

PROXY, OTHER = "http://proxy.example:3128", "http://other.example:8080"


@pytest.mark.parametrize(
    ("environment", "url", "taken"),
    [
        ({}, "https://cottage.example", None),
        ({"HTTPS_PROXY": PROXY}, "https://cottage.example", "http://proxy.example:3128 (HTTPS_PROXY)"),
        ({"https_proxy": PROXY}, "https://cottage.example", "http://proxy.example:3128 (HTTPS_PROXY)"),
        ({"HTTPS_PROXY": OTHER, "https_proxy": PROXY}, "https://a.example", "http://proxy.example:3128 (HTTPS_PROXY)"),
        ({"HTTPS_PROXY": OTHER, "https_proxy": ""}, "https://a.example", None),
        ({"HTTPS_PROXY": PROXY}, "http://cottage.example", None),
        ({"HTTP_PROXY": PROXY}, "http://cottage.example", "http://proxy.example:3128 (HTTP_PROXY)"),
        ({"ALL_PROXY": PROXY}, "http://cottage.example", "http://proxy.example:3128 (ALL_PROXY)"),
        ({"ALL_PROXY": PROXY, "HTTP_PROXY": OTHER}, "http://a.example", "http://other.example:8080 (HTTP_PROXY)"),
        ({"ALL_PROXY": "proxy.example:3128"}, "http://cottage.example", "http://proxy.example:3128 (ALL_PROXY)"),
        ({"ALL_PROXY": "https://[2001:db8::1]:3129/"}, "http://a.example", "https://[2001:db8::1]:3129 (ALL_PROXY)"),
        ({"ALL_PROXY": "http://ada:secret@proxy.example:1"}, "http://a.example", "http://proxy.example:1 (ALL_PROXY)"),
        ({"SOME_OTHER_PROXY": PROXY}, "http://cottage.example", None),
    ],
)
def test_a_request_takes_the_proxy_of_its_scheme_or_that_of_all(
    environment: dict[str, str], url: str, taken: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = proxy_for(parse_url(url))
    assert (None if found is None else str(found)) == taken
    assert "secret" not in through(parse_url(url))


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8470",
        "http://localhost",
        "http://app.localhost:1",
        "http://[::1]:8470",
        "https://[::ffff:127.0.0.1]",
        "http://127.8.8.8",
    ],
)
def test_this_machine_is_never_asked_through_a_proxy(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES[:3]:
        monkeypatch.setenv(name, "socks5://nobody.example:1")  # Not even looked at.
    assert proxy_for(parse_url(url)) is None


@pytest.mark.parametrize(
    ("without", "url", "excepted"),
    [
        ("*", "https://cottage.example", True),
        ("cottage.example", "https://cottage.example", True),
        (".example", "https://cottage.example", True),
        ("example", "https://cottage.example", True),
        ("*.example", "https://cottage.example", True),
        ("cottage.example", "https://sub.cottage.example", True),
        ("ottage.example", "https://cottage.example", False),
        ("COTTAGE.example. , x", "https://cottage.example", True),
        ("x cottage.example\n", "https://cottage.example", True),
        ("münchen.example", "https://xn--mnchen-3ya.example", True),
        ("cottage.example:443", "https://cottage.example", True),
        ("cottage.example:80", "https://cottage.example", False),
        ("192.0.2.7", "http://192.0.2.7:8470", True),
        ("192.0.2.0/24", "http://192.0.2.7:8470", True),
        ("192.0.3.0/24", "http://192.0.2.7:8470", False),
        ("2001:db8::1", "http://[2001:db8:0::1]:8470", True),
        ("[2001:db8::1]:8470", "http://[2001:db8::1]:8470", True),
        ("[2001:db8::1]:1", "http://[2001:db8::1]:8470", False),
        ("2001:db8::/32", "http://[2001:db8::1]:8470", True),
        ("2001:db8::/32", "http://192.0.2.7:8470", False),
        ("fe80::1", "http://[fe80::1%eth0]:8470", True),
        ("192.0.2.0/99, ,!", "http://192.0.2.7:8470", False),
        ("2.7", "http://192.0.2.7", False),
    ],
)
def test_no_proxy_names_hosts_ends_of_names_addresses_and_networks(
    without: str, url: str, excepted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", without)
    assert (proxy_for(parse_url(url)) is None) is excepted


@pytest.mark.parametrize(
    "named",
    [
        "socks5://proxy.example:1080",
        "http://ada:secret@",
        "http://::1:80",
        "ftp://x:1",
        "http://ada:a/secret@proxy.example:1",
        "http://ada:#secret@proxy.example:1",
        "ada:?secret@proxy.example:1",
        "http://ada:@/secret//@proxy.example:port",
        f"http://ada:secret{'/' * 200}@proxy.example:1",
        "http://ada%3Alovelace:secret@proxy.example:1",
    ],
)
def test_a_proxy_that_cannot_be_used_is_named_with_its_variable(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", named)
    with pytest.raises(
        ProxyError, match=r"^ALL_PROXY: .*( no other kind of proxy| a colon in it| # is %23)"
    ) as refused:
        proxy_for(parse_url("http://cottage.example"))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("environment", "taken"), [({}, True), ({"NO_PROXY": "other.example"}, False), ({"FOO_PROXY": "x"}, True)]
)
def test_without_a_variable_the_settings_of_windows_and_macos_count(
    environment: dict[str, str], taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_sessions, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"https": PROXY})
    monkeypatch.setattr("urllib.request.proxy_bypass", lambda host: host == "inside.example")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = proxy_for(parse_url("https://cottage.example"))
    assert (None if found is None else str(found)) == (f"{PROXY} (the system's settings)" if taken else None)
    assert proxy_for(parse_url("https://inside.example")) is None
    assert proxy_for(parse_url("https://localhost:1")) is None


# --- sessions -----------------------------------------------------------------------------------------------------------


async def hello(request: web.Request) -> web.StreamResponse:
    if request.headers.get("Upgrade") == "websocket":
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str(request.host)
        await socket.close()
        return socket
    return web.Response(text=request.host)


@pytest.fixture
async def ports(tmp_path: Path) -> AsyncIterator[tuple[int, int, ssl.SSLContext]]:
    """A server over plain HTTP and over TLS, and what trusts the latter."""
    make_certificate(["cottage.test"], tmp_path / "cert.pem", tmp_path / "key.pem")
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    app = web.Application()
    app.router.add_get("/", hello)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    for context in (None, served):
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    plain, secure = (address[1] for address in runner.addresses)
    yield plain, secure, ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    await runner.cleanup()


async def test_requests_and_websockets_go_through_the_proxy_and_loopback_does_not(
    ports: tuple[int, int, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, secure, trusted = ports
    async with proxying(login="ada:secret") as proxy, open_session() as http:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        async with http.get(f"http://127.0.0.1:{plain}/") as answer:
            assert await answer.text() == f"127.0.0.1:{plain}"
        assert proxy.asked == []
        async with http.get(f"http://cottage.test:{plain}/") as answer:
            assert await answer.text() == f"cottage.test:{plain}"
        async with http.get(f"https://cottage.test:{secure}/", ssl=trusted) as answer:
            assert await answer.text() == f"cottage.test:{secure}"
        async with http.ws_connect(f"http://cottage.test:{plain}/") as socket:
            assert await socket.receive_str() == f"cottage.test:{plain}"
        async with http.ws_connect(f"https://cottage.test:{secure}/", ssl=trusted) as socket:
            assert await socket.receive_str() == f"cottage.test:{secure}"
        assert set(proxy.asked) == {("GET", f"http://cottage.test:{plain}/"), ("CONNECT", f"cottage.test:{secure}")}
        monkeypatch.setenv("NO_PROXY", "cottage.test")
        with pytest.raises(aiohttp.ClientConnectorDNSError):
            await http.get(f"http://cottage.test:{plain}/")


@pytest.mark.parametrize("login", ["ada:пароль", "ада:%", "ada:a:b", "ada:", "a@b:c/d#e?f"])
async def test_names_and_passwords_of_any_characters_reach_the_proxy(
    login: str, ports: tuple[int, int, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, secure, trusted = ports
    async with proxying(login=login) as proxy, open_session() as http:
        name, _, password = login.partition(":")
        monkeypatch.setenv(
            "ALL_PROXY", f"http://{quote(name, safe='')}:{quote(password, safe='')}@127.0.0.1:{proxy.port}"
        )
        async with http.get(f"http://cottage.test:{plain}/") as answer:
            assert await answer.text() == f"cottage.test:{plain}"
        async with http.get(f"https://cottage.test:{secure}/", ssl=trusted) as answer:
            assert await answer.text() == f"cottage.test:{secure}"


async def test_a_session_that_takes_no_proxy_takes_none(
    ports: tuple[int, int, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxying() as proxy, open_session(proxies=False) as http:
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        with pytest.raises(aiohttp.ClientConnectorDNSError):
            await http.get(f"http://cottage.test:{ports[0]}/")
        assert proxy.asked == []


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_that_refuses_is_named_without_its_password(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxying(login="ada:right") as proxy, open_session() as http:
        monkeypatch.setenv("ALL_PROXY", proxy.url.replace("right", "secret"))
        with pytest.raises(
            ProxyError, match=rf"the proxy http://127.0.0.1:{proxy.port} \(ALL_PROXY\) refuses: 407"
        ) as said:
            await http.get(f"{scheme}://cottage.test/")
    assert "secret" not in str(said.value)


async def test_a_proxy_that_does_not_let_a_tunnel_through_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxying(answer="403 Forbidden") as proxy, open_session() as http:
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        with pytest.raises(ProxyError, match=r"\(ALL_PROXY\) refuses: 403 Forbidden"):
            await http.get("https://cottage.test/")


async def test_a_proxy_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with open_session() as http:
        with pytest.raises(
            ProxyError, match=r"the proxy http://127.0.0.1:9 \(HTTP_PROXY\) cannot be reached: .*refused"
        ):
            await http.get("http://cottage.test/")


async def test_why_nobody_was_reached_is_said_in_the_systems_words() -> None:
    async with open_session() as http:
        with pytest.raises(aiohttp.ClientConnectionError) as refused:
            await http.get("http://127.0.0.1:9")
    assert "ssl:default" in str(refused.value), "what nobody should read"
    assert why(refused.value) == "Connection refused"
    key = cast(Any, refused.value)._conn_key
    for below, words in (
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1)"), "no TLS: "),
        (OSError("Multiple exceptions: a, b"), "Multiple exceptions: a, b"),
    ):
        assert why(aiohttp.ClientConnectorError(key, below)).startswith(words)
    unsure = ssl.SSLCertVerificationError(1, "certificate verify failed")
    unsure.verify_message = "certificate has expired"
    assert (
        why(aiohttp.ClientConnectorCertificateError(key, unsure))
        == "its certificate is not good: certificate has expired"
    )
    assert why(TimeoutError()) == "no answer in time"
