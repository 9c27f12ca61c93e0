"""What pages weigh on the line, and that packing them gives no secret away."""

import gzip
import re
from typing import Any

import aiohttp
import pytest

from coordinator.web.pages.render import CSRF_COOKIE
from tests.coordinator.web.conftest import House
from tests.coordinator.web.pages.test_browser import some_jobs
from tests.coordinator.web.test_signin import HTML, operator, sign_up

PACKS = HTML | {"Accept-Encoding": "gzip, deflate, br"}
TOKEN = re.compile(rb'name="csrf" value="([0-9a-f]{64})"')
HEAVIEST = 150_000


async def fetch(url: str, headers: dict[str, str] = PACKS) -> tuple[bytes, Any]:
    """The bytes as they come over the line, and the answer's headers."""
    async with aiohttp.ClientSession(auto_decompress=False) as session, session.get(url, headers=headers) as answer:
        return await answer.read(), answer.headers


async def test_a_job_s_page_and_all_its_files_weigh_less_than_a_photograph(house: House) -> None:
    job = await some_jobs(house)
    page, headers = await fetch(f"{house.url}/jobs/{job.id}")
    assert headers["Content-Encoding"] == "gzip"
    text = gzip.decompress(page).decode()
    assert len(text) > HEAVIEST, "the figure tells nothing where the page is small anyway"
    files = set(re.findall(r'(?:href|src)="(/static/[^"#]+)', text))
    assert len(files) > 6
    weights = {file: len((await fetch(house.url + file))[0]) for file in files}
    assert len(page) + sum(weights.values()) < HEAVIEST, weights


@pytest.mark.parametrize("path", ["/", "/network", "/submit", "/docs/api", "/netwrok", "/static/cottage.css"])
async def test_a_packed_answer_is_the_plain_one_and_caches_are_told(house: House, path: str) -> None:
    packed, headers = await fetch(house.url + path)
    plain, bare = await fetch(house.url + path, HTML | {"Accept-Encoding": "identity"})
    assert headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in bare
    assert headers["Vary"] == bare["Vary"] == "Accept-Encoding"
    assert len(packed) < len(plain) / 2
    hide = re.compile(rb"[0-9a-f]{64}")
    assert hide.sub(b"", gzip.decompress(packed)) == hide.sub(b"", plain)


async def test_a_part_of_a_file_and_one_that_is_there_already_are_answered_as_ever(house: House) -> None:
    url = f"{house.url}/static/cottage.css"
    plain, headers = await fetch(url, {"Accept-Encoding": "identity"})
    part, _ = await fetch(url, PACKS | {"Range": "bytes=10-19"})
    assert part == plain[10:20]
    body, again = await fetch(url, PACKS | {"If-None-Match": headers["ETag"]})
    assert body == b""
    assert "Content-Encoding" not in again
    font, told = await fetch(f"{house.url}/static/vendor/inter-5.3.0-latin.woff2")
    assert "Content-Encoding" not in told
    assert font[:4] == b"wOF2"


async def test_the_token_of_a_form_is_another_one_in_each_page_and_each_of_them_is_good(
    town: House, http: aiohttp.ClientSession
) -> None:
    await operator(town)
    tokens = []
    for _ in range(3):
        async with http.get(f"{town.url}/sign-up", headers=HTML) as answer:
            found = TOKEN.search(await answer.read())
        assert found
        tokens.append(found[1].decode())
    (cookie,) = [one.value for one in http.cookie_jar if one.key == CSRF_COOKIE]
    assert len({*tokens, cookie}) == 4
    form = {"name": "Ada", "password": "x" * 12, "again": "y"}
    for token, status in ((tokens[0], 422), (tokens[2], 422), (cookie, 403), (tokens[0][:32] + tokens[1][32:], 403)):
        async with http.post(f"{town.url}/sign-up", data=form | {"csrf": token}, headers=HTML) as answer:
            assert answer.status == status, "the passwords differ, or the token is not good"


async def test_a_new_key_is_shown_in_an_answer_that_is_not_packed(town: House, http: aiohttp.ClientSession) -> None:
    await operator(town)
    await sign_up(http, town)
    async with http.get(f"{town.url}/account", headers=HTML) as answer:
        found = TOKEN.search(await answer.read())
    assert found
    fields = {"csrf": found[1].decode(), "name": "laptop", "scope": "jobs:read", "life": "30"}
    async with http.post(f"{town.url}/account/keys", data=fields, headers=PACKS) as answer:
        assert "Content-Encoding" not in answer.headers
        assert re.search(r'id="new-key">cottage_', await answer.text())
