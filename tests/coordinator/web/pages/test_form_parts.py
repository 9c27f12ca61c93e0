"""Forms with files, whatever their bytes are: each is taken or refused in words, and leaves nothing open."""

import asyncio
import logging
import random

import aiohttp
import pytest
from aiohttp import web

from coordinator.client.arrays import MAX_BUNDLED
from coordinator.services.accounts.budgets import CHANGES, UPLOADS
from coordinator.web.arrays.pages import MAX_FORM_FILES, _as_uploads
from coordinator.web.pages.render import CSRF_COOKIE, form_token
from tests.coordinator.web.conftest import House
from tests.coordinator.web.test_tenants import member
from tests.support.wait import HANGS_S

TOKEN = form_token("0" * 64)
SENT = {"Cookie": f"{CSRF_COOKIE}={'0' * 64}", "Content-Type": "multipart/form-data; boundary=x"}
INPUTS = {"/submit": "tokenizer.upload", "/submit/array": "files"}
HEAD = 'Content-Disposition: form-data; name="{}"'


def part(head: bytes | str, content: bytes = b"1") -> bytes:
    return b"--x\r\n" + (head if isinstance(head, bytes) else head.encode()) + b"\r\n\r\n" + content + b"\r\n"


def text(name: str, value: str) -> bytes:
    return part(HEAD.format(name), value.encode())


def file(name: str, filename: bytes, content: bytes = b"a line\n" * 300) -> bytes:
    return part(HEAD.format(name).encode() + b'; filename="' + filename + b'"', content)


def whole(*parts: bytes) -> bytes:
    return b"".join((text("csrf", TOKEN), *parts, b"--x--\r\n"))


ODD = {
    "a header that is too long": part(HEAD.format("a") + "\r\nX-More: " + "x" * 20_000),
    "too many headers": part(HEAD.format("a") + "\r\nX-More: x" * 500),
    "a header that is none": part(HEAD.format("a") + "\r\nno header"),
    "a header of a wrong name": part(HEAD.format("a") + "\r\n(x): 1"),
    "a form within": part("Content-Type: multipart/mixed; boundary=y"),
    "a form within of no boundary": part("Content-Type: multipart/mixed"),
    "a part without a name": part("X-More: 1"),
    "a name of a charset that is none": part("Content-Disposition: form-data; name*0*=utf-8'a"),
    "an end without one": b"--x\r\n" + HEAD.format("a").encode() + b"\r\n\r\nno end",
}


async def post(http: aiohttp.ClientSession, house: House, path: str, body: bytes) -> tuple[int, str]:
    async with http.post(house.url + path, data=body, headers=SENT) as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize("path", INPUTS)
async def test_a_part_that_cannot_be_read_is_refused_in_words(
    house: House, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    bodies = {name: whole(odd) for name, odd in ODD.items()}
    bodies["a charset that is none"] = part(HEAD.format("_charset_"), b"x" * 60) + whole()
    bodies["a charset of no text"] = part(HEAD.format("_charset_"), b"\xff") + whole()
    bodies["nothing"] = b""
    with caplog.at_level(logging.WARNING, "coordinator"):
        for name, body in bodies.items():
            status, said = await post(http, house, path, body)
            assert (status, "form" in said) == (422, True), (name, said)
    assert not caplog.records
    assert not list((house.folder / "uploads").iterdir())


@pytest.mark.parametrize("path", INPUTS)
async def test_no_bytes_of_a_form_are_a_fault_of_ours(
    recwarn: pytest.WarningsRecorder,
    house: House,
    http: aiohttp.ClientSession,
    caplog: pytest.LogCaptureFixture,
    path: str,
) -> None:
    good = whole(text("name", "n"), file(INPUTS[path], b"n1.txt"), text("count", "3"), text("action", "quote"))
    dice = random.Random(7)
    with caplog.at_level(logging.ERROR, "coordinator"):
        for _ in range(40):
            body = bytearray(good)
            for _ in range(dice.randint(1, 4)):
                at = dice.randrange(len(TOKEN) + 60, len(body))  # The token stays, so what follows it is read.
                body[at : at + dice.randint(0, 3)] = bytes(
                    dice.choices(b"\r\n\0\"'*=;-x\xff\xc3", k=dice.randint(0, 3))
                )
            status, said = await post(http, house, path, bytes(body))
            assert status in (200, 403, 413, 422), (status, said, body)
    assert not caplog.records
    assert not [str(warning.message) for warning in recwarn], "Python keeps the text of each for ever"


@pytest.mark.parametrize("path", INPUTS)
@pytest.mark.parametrize("name", [b"gr\xfc\xdfe.txt", b"\xed\xa0\x80.txt", b"a\0b.txt"])
async def test_a_file_whose_name_is_no_text_is_taken(
    house: House, http: aiohttp.ClientSession, path: str, name: bytes
) -> None:
    status, said = await post(http, house, path, whole(file(INPUTS[path], name), text("action", "quote")))
    assert status in (200, 422), said
    assert not any("\ud800" <= char <= "\udfff" for char in said)
    assert not list((house.folder / "uploads").glob("*.part"))


@pytest.mark.parametrize("path", INPUTS)
async def test_a_form_that_is_cut_in_mid_file_leaves_no_upload_open(house: House, path: str) -> None:
    body = whole(file(INPUTS[path], b"n1.txt", b"x" * 400_000))
    head = "".join(f"{name}: {value}\r\n" for name, value in SENT.items())
    for _ in range(3):
        _, writer = await asyncio.open_connection("127.0.0.1", house.port)
        line = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}Content-Length: {len(body)}\r\n\r\n"
        writer.write(line.encode() + body[:300_000])
        await writer.drain()
        async with asyncio.timeout(HANGS_S):
            while not list((house.folder / "uploads").glob("*.part")):
                await asyncio.sleep(0.01)
        writer.transport.abort()
        async with asyncio.timeout(HANGS_S):
            while list((house.folder / "uploads").iterdir()):
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("count", ["9" * 5_000, "0" * 5_000 + "3", "3" * 19, "²", "-3", "0", "10001"])
async def test_a_number_of_elements_that_is_none_asks_for_the_files(
    house: House, http: aiohttp.ClientSession, count: str
) -> None:
    typed = {"image": "a" * 64, "command": "x", "name": "n", "elements": "b" * 64, "count": count}
    body = whole(*(text(name, value) for name, value in typed.items()), text("action", "create"))
    status, said = await post(http, house, "/submit/array", body)
    assert (status, 'id="error-elements"' in said) == (422, True)


async def left(town: House, account: str, budget: str) -> float:
    """How much an account has left of a budget."""
    throttle = town.auth.budgets._own[budget]
    throttle.take(account, 0.0)
    return throttle._held[account][0]


async def in_town(town: House) -> tuple[dict[str, str], str]:
    """What a member's browser sends, and whose account it is."""
    await member(town, "operator")
    key = await member(town, "alice")
    return SENT | key, (await town.accounts.by_key(key["Authorization"].removeprefix("Bearer "))).account_id


@pytest.mark.parametrize("path", ["/submit", "/submit/quote", "/submit/choices", "/submit/report"])
async def test_each_file_of_a_form_counts_as_an_upload(town: House, http: aiohttp.ClientSession, path: str) -> None:
    sent, account = await in_town(town)
    body = whole(*[file("tokenizer.upload", b"a.txt")] * 3, text("action", "edit"))
    async with http.post(town.url + path, data=body, headers=sent) as answer:
        assert answer.status == 200, await answer.text()
    assert await left(town, account, UPLOADS.what) == pytest.approx(UPLOADS.burst - 3, abs=0.5)
    town.auth.budgets._own[UPLOADS.what].spend(account, UPLOADS.burst)
    async with http.post(f"{town.url}/submit", data=body, headers=sent) as answer:
        assert "go on more slowly" in await answer.text()


async def test_files_of_an_array_count_as_those_of_the_command_do(town: House, http: aiohttp.ClientSession) -> None:
    assert [_as_uploads(size) for size in (0, 100, 16 << 20, 1 << 28)] == [1 / MAX_BUNDLED, 1 / MAX_BUNDLED, 1.0, 1.0]
    assert MAX_FORM_FILES * _as_uploads(1 << 20) + 1 < UPLOADS.burst, "a form of as many files as it says goes through"
    sent, account = await in_town(town)
    files = [file("files", f"n{number}.txt".encode()) for number in range(50)]
    body = whole(*files, text("action", "quote"))
    async with http.post(f"{town.url}/submit/array", data=body, headers=sent) as answer:
        assert "50 files are here" in await answer.text()
    assert await left(town, account, UPLOADS.what) == pytest.approx(UPLOADS.burst - 1.1, abs=0.5), "and their list"
    town.auth.budgets._own[UPLOADS.what].spend(account, UPLOADS.burst)
    before = sorted((town.folder / "uploads").iterdir())
    async with http.post(f"{town.url}/submit/array", data=body, headers=sent) as answer:
        assert (answer.status, "go on more slowly" in await answer.text()) == (422, True)
    assert sorted((town.folder / "uploads").iterdir()) == before


async def test_an_array_that_is_made_counts_as_a_change_and_its_price_does_not(
    town: House, http: aiohttp.ClientSession
) -> None:
    sent, account = await in_town(town)
    town.cluster.artifacts = town.cluster.files = None  # No file is looked for.
    typed = {"image": "a" * 64, "command": "x", "name": "n", "elements": "b" * 64, "count": "2", "budget": "9"}
    parts = [text(name, value) for name, value in typed.items()]
    made = whole(*parts, text("action", "create"))
    async with http.post(f"{town.url}/submit/array", data=whole(*parts), headers=sent) as answer:
        assert answer.status == 200
    assert await left(town, account, CHANGES.what) == CHANGES.burst
    async with http.post(f"{town.url}/submit/array", data=made, headers=sent, allow_redirects=False) as answer:
        assert answer.status == web.HTTPSeeOther.status_code
    assert await left(town, account, CHANGES.what) == pytest.approx(CHANGES.burst - 1, abs=0.5)
    town.auth.budgets._own[CHANGES.what].spend(account, CHANGES.burst)
    async with http.post(f"{town.url}/submit/array", data=made, headers=sent, allow_redirects=False) as answer:
        assert (answer.status, "go on more slowly" in await answer.text()) == (429, True)
