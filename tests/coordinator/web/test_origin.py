"""A change is taken from our own pages alone: scheme, host and port, as browsers spell them."""

import aiohttp
import pytest

from coordinator.web.auth.origin import PageOrigin, origin_of
from tests.coordinator.web.conftest import House


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("http://localhost:8470", PageOrigin("http", "localhost", 8470)),
        ("https://Cottage.Example", PageOrigin("https", "cottage.example", 443)),
        ("https://cottage.example:443", PageOrigin("https", "cottage.example", 443)),
        ("http://[::1]:8470", PageOrigin("http", "::1", 8470)),
        ("http://[0:0:0:0:0:0:0:1]", PageOrigin("http", "::1", 80)),
        ("null", None),
        ("", None),
        ("x://localhost:8470", None),
        ("file://", None),
        ("localhost:8470", None),
        ("http://localhost:8470/", None),
        ("http://somebody@localhost:8470", None),
        ("http://localhost:0", None),
        ("http://localhost:99999", None),
        ("http://[::1", None),
        ("http://[zz]:1", None),
        ("http://a b", None),
        ("http://localhost:8470 http://evil.example", None),
        ("http://\\localhost", None),
        ("http://a?b", None),
        ("http://a#b", None),
    ],
)
def test_an_origin_is_scheme_host_and_port(text: str, origin: PageOrigin | None) -> None:
    assert origin_of(text) == origin


async def cancel(http: aiohttp.ClientSession, house: House, headers: list[tuple[str, str]]) -> int:
    async with http.post(f"{house.api}/jobs/{'0' * 32}/cancel", headers=headers) as answer:
        return answer.status


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("{here}", "http://{here}", 404),
        ("{here}", "HTTP://{here}", 404),
        ("{here}", "x://{here}", 403),
        ("{here}", "https://{here}", 403),
        ("{here}", "{here}", 403),
        ("{here}", "http://{here}/", 403),
        ("{here}", "http://127.0.0.1", 403),
        ("{here}", "http://localhost:{port}", 403),
        ("localhost", "http://localhost", 404),
        ("localhost", "http://localhost:80", 404),
        ("localhost", "http://localhost:443", 403),
        ("localhost:443", "https://localhost", 403),
        ("[::1]:8470", "http://[::1]:8470", 404),
        ("[::1]", "http://[::1]", 404),
        ("[::1]:8470", "http://[::2]:8470", 403),
        ("[::1]:8470", "http://[::1]:8471", 403),
    ],
)
async def test_only_a_page_of_this_very_origin_changes_anything(
    house: House, http: aiohttp.ClientSession, host: str, origin: str, status: int
) -> None:
    filled = {"here": f"127.0.0.1:{house.port}", "port": house.port}
    headers = [("Host", host.format(**filled)), ("Origin", origin.format(**filled))]
    assert await cancel(http, house, headers) == status


async def test_two_origins_must_both_be_ours(house: House, http: aiohttp.ClientSession) -> None:
    own = ("Origin", house.url)
    assert await cancel(http, house, [own, own]) == 404
    assert await cancel(http, house, [own, ("Origin", "http://evil.example")]) == 403


@pytest.mark.parametrize(
    ("proto", "origin", "status"),
    [
        ("https", "https://cottage.example", 401),
        ("https", "http://cottage.example", 403),
        ("https", "https://cottage.example:8443", 403),
        ("http", "http://cottage.example", 401),
        ("http", "https://cottage.example", 403),
        ("https, http", "http://cottage.example", 401),
    ],
)
async def test_behind_a_proxy_the_scheme_is_the_one_that_the_browser_used(
    town: House, http: aiohttp.ClientSession, proto: str, origin: str, status: int
) -> None:
    town.auth.behind_proxy = True
    headers = [("Host", "cottage.example"), ("X-Forwarded-Proto", proto), ("Origin", origin)]
    assert await cancel(http, town, headers) == status


async def test_without_a_proxy_nobody_says_what_the_scheme_was(town: House, http: aiohttp.ClientSession) -> None:
    headers = [("Host", "cottage.example"), ("X-Forwarded-Proto", "https"), ("Origin", "https://cottage.example")]
    assert await cancel(http, town, headers) == 403


async def test_the_public_address_is_ours_wherever_tls_ends(town: House, http: aiohttp.ClientSession) -> None:
    town.auth.public_url = "https://cottage.example"
    headers = [("Host", "10.0.0.7:8470"), ("Origin", "https://cottage.example")]
    assert await cancel(http, town, headers) == 401
    assert await cancel(http, town, [headers[0], ("Origin", "http://cottage.example")]) == 403
