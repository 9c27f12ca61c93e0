"""One module reads, writes and compares the addresses of servers, and one opens HTTP sessions.

What was done by hand broke on IPv6, and half of the clients followed the proxies of the environment.
"""

import ast
import itertools
import re
from collections.abc import Iterator

import pytest

from tests.test_banned_calls import ROOMS, ROOT, dotted, parsed

OWNER = "common/urls.py"
MAKERS = {"common/http_sessions.py", "ledger/connection.py"}  # The latter hands a proxy to a library's client.
SESSIONS = re.compile(
    r"(^|\.)(ClientSession|AsyncClient|AsyncHTTPTransport|urlopen|HTTPS?Connection)$|^requests\.(get|post|Session)$"
)
PARSERS = frozenset({"urlsplit", "urlparse", "urlunsplit", "urlunparse", "urljoin", "splitport", "splithost"})
HOSTS = re.compile(r"(^|[._])(host|hostname|ip|address|addr|server|seen_as|remote)s?($|\[|\.)")
PORTS = re.compile(r"port|\[1\]")


def faults(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """What takes an address apart, or puts one together, by hand."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="urllib.parse", names=imported):
                yield from ((node.lineno, one.name) for one in imported if one.name in PARSERS)
            case ast.Call(func=function) if dotted(function).split(".")[-1] in {"URL", "build", *PARSERS}:
                name = dotted(function)
                if name in ("URL", "yarl.URL", "URL.build") or name.split(".")[-1] in PARSERS:
                    yield node.lineno, name
            case ast.Call(func=ast.Attribute(attr="strip"), args=[ast.Constant(value="[]")]):
                yield node.lineno, "brackets taken off"
            case ast.Attribute(attr="authority", value=value) if "url" in dotted(value).lower():
                yield node.lineno, "yarl's authority, which lacks the brackets of IPv6"
            case ast.JoinedStr(values=parts):
                yield from ((node.lineno, ast.unparse(node)) for _ in _pairs(parts))


def _pairs(parts: list[ast.expr]) -> Iterator[None]:
    """Places of a text where a host meets its port, or a scheme a host that may need brackets."""
    for before, _ in itertools.pairwise(parts):
        if isinstance(before, ast.Constant) and str(before.value).endswith(("http://", "https://")):
            yield
    for triple in zip(parts, parts[1:], parts[2:], strict=False):
        match triple:
            case ast.FormattedValue(value=host), ast.Constant(value=":"), ast.FormattedValue(value=port):
                if HOSTS.search(ast.unparse(host)) and PORTS.search(ast.unparse(port)):
                    yield


@pytest.mark.parametrize("room", ROOMS)
def test_no_room_handles_addresses_by_hand(room: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in sorted((ROOT / room).rglob("*.py"))
        if str(path.relative_to(ROOT)) != OWNER
        for line, what in faults(parsed(path))
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "from urllib.parse import urlsplit",
        "urllib.parse.urlparse(text)",
        "URL(text)",
        "yarl.URL(text)",
        "URL.build(host=host)",
        "host.strip('[]')",
        "self._url.authority",
        "f'http://{host}:{port}'",
        "f'{config.host}:{config.port}'",
        "f'{address[0]}:{address[1]}'",
        "f'https://{name}/path'",
    ],
)
def test_the_ban_sees_what_it_is_for(line: str) -> None:
    assert list(faults(ast.parse(line)))


def makers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Whoever opens HTTP connections."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and SESSIONS.search(dotted(node.func)):
            yield node.lineno, dotted(node.func)


@pytest.mark.parametrize("room", ROOMS)
def test_no_room_opens_sessions_that_do_not_know_the_rule_for_proxies(room: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in sorted((ROOT / room).rglob("*.py"))
        if str(path.relative_to(ROOT)) not in MAKERS
        for line, what in makers(parsed(path))
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "aiohttp.ClientSession()",
        "ClientSession(trust_env=True)",
        "httpx2.AsyncClient()",
        "AsyncClient(url)",
        "urllib.request.urlopen(url)",
        "requests.get(url)",
        "http.client.HTTPSConnection(host)",
    ],
)
def test_the_ban_on_other_sessions_sees_what_it_is_for(line: str) -> None:
    assert list(makers(ast.parse(line)))
