"""The operator's pages: for operators alone, with forms that need no script, and nothing of what strangers type in them."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from yarl import URL

from coordinator.domain.account import LOCAL_ACCOUNT, Role
from coordinator.web.auth.gate import SESSION_COOKIE
from protocol.rest.api import NewJob
from tests.coordinator.web.conftest import House
from tests.coordinator.web.fake import address
from tests.coordinator.web.pages.test_browser import CHROMIUM, chromium, visit
from tests.coordinator.web.test_api import spec

__all__ = ["chromium"]
NODE = address("attic-4090")
PAGES = ("/admin", f"/admin/nodes/{NODE}", f"/admin/nodes/{NODE}/ban", "/admin/jobs", "/admin/outbox", "/admin/storage")
HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e"


async def session_of(town: House, name: str, role: Role) -> dict[str, str]:
    account = await town.accounts.create(name, role)
    secret = await town.accounts.begin_session(account.id, "password")
    return {"Cookie": f"{SESSION_COOKIE}={secret}", "Accept": "text/html"}


@pytest.fixture
async def root(town: House) -> AsyncIterator[aiohttp.ClientSession]:
    """An operator's browser, more or less."""
    header = await session_of(town, "root", Role.OPERATOR)
    jar = aiohttp.CookieJar(unsafe=True)
    jar.update_cookies({SESSION_COOKIE: header["Cookie"].partition("=")[2]}, URL(town.url))
    async with aiohttp.ClientSession(town.url, headers={"Accept": "text/html"}, cookie_jar=jar) as http:
        yield http


async def page(http: aiohttp.ClientSession, path: str, status: int = 200) -> str:
    async with http.get(path) as answer:
        assert answer.status == status, path
        return await answer.text()


async def send(http: aiohttp.ClientSession, path: str, status: int = 303, **fields: str) -> str:
    """Fill in the form of a page and send it."""
    token = re.search(r'name="csrf" value="([0-9a-f]+)"', await page(http, path))
    assert token is not None
    async with http.post(path, data={"csrf": token[1], **fields}, allow_redirects=False) as answer:
        text = await answer.text()
        assert answer.status == status, text
        return answer.headers.get("Location", text)


async def test_only_operators_see_the_pages_and_the_way_to_them(
    town: House, root: aiohttp.ClientSession, http: aiohttp.ClientSession
) -> None:
    ada = await session_of(town, "ada", Role.SUBMITTER)
    for path in PAGES:
        assert 'href="/admin"' in await page(root, path)
        async with http.get(town.url + path, headers=ada) as answer:
            assert (answer.status, answer.content_type) == (403, "text/html")
        async with http.get(town.url + path, headers={"Accept": "text/html"}, allow_redirects=False) as answer:
            assert answer.status == 303
            assert answer.headers["Location"].startswith("/sign-in")
    for path in (f"/admin/nodes/{NODE}/ban", f"/admin/jobs/{0:032x}/cancel"):
        async with http.post(town.url + path, headers=ada, data={"reason": "x"}) as answer:
            assert answer.status == 403
    async with http.get(f"{town.url}/jobs", headers=ada) as answer:
        assert 'href="/admin"' not in await answer.text()
    assert (await town.operation.node(NODE)).banned is False


async def test_a_form_without_its_token_changes_nothing(town: House, root: aiohttp.ClientSession) -> None:
    await page(root, f"/admin/nodes/{NODE}/drain")
    async with root.post(f"/admin/nodes/{NODE}/drain", data={"reason": "x", "csrf": "0" * 64}) as answer:
        assert answer.status == 403
    assert not (await town.operation.node(NODE)).draining
    assert "nothing that can be done" in await page(root, f"/admin/nodes/{NODE}/promote", 404)
    assert "no node" in await page(root, f"/admin/nodes/{address('nobody')}", 404)


async def test_orders_are_done_shown_and_written_into_the_trail(town: House, root: aiohttp.ClientSession) -> None:
    there = f"/admin/nodes/{NODE}"
    assert await send(root, f"{there}/drain", reason="a new fan") == there
    shown = await page(root, there)
    assert "draining" in shown
    assert "stage 0 of replica 1" in shown
    other = await page(root, f"/admin/nodes/{address('kitchen-3060')}")
    assert "stage 1 of replica 2" in other, "its job is a deployment, whose page counts from 1"
    assert "attic-4090" in await page(root, "/admin?state=draining")
    assert "No such node" in await page(root, "/admin?state=banned")
    assert "needs a reason" in await send(root, f"{there}/ban", 422, reason=" ")
    long = await send(root, f"{there}/ban", 422, reason="y" * 151)
    assert "say it in 150" in long
    assert "y" * 151 in long, "what was typed is still there"
    await send(root, f"{there}/ban", reason=HOSTILE)
    shown = await page(root, there)
    assert "<script>alert" not in shown
    assert "\x1b" not in shown
    assert "Undrain" in shown
    await send(root, f"{there}/unban", reason="it is not")
    await send(root, f"{there}/undrain")
    trail = await page(root, "/account/trail")
    for action in ("node.drain", "node.ban", "node.unban", "node.undrain"):
        assert action in trail
    assert "<script>alert" not in trail
    assert "<script>alert" not in await page(root, "/admin?search=%3Cscript%3Ealert(1)%3C/script%3E")


async def test_a_job_of_anybody_says_what_it_waits_for_and_is_cancelled(
    town: House, root: aiohttp.ClientSession
) -> None:
    document = msgspec.convert({"spec": spec(await town.dataset(), name="Cookbook")}, NewJob)
    job = (await town.cluster.create(document, LOCAL_ACCOUNT)).id
    shown = await page(root, "/admin/jobs")
    assert "Cookbook" in shown
    assert "Waiting for" in shown
    assert await send(root, f"/admin/jobs/{job}/cancel", reason="its owner asked") == "/admin/jobs"
    assert "No job is under way" in await page(root, "/admin/jobs")
    assert "Cookbook" in await page(root, "/admin/jobs?state=cancelled")
    assert "job.cancelled" in await page(root, "/account/trail")
    assert "refused it each time" in await page(root, "/admin/outbox?state=failed")
    assert "212 GB" in await page(root, "/admin/storage")
    await page(root, "/admin/jobs?state=asleep", 422)


@pytest.mark.browser
@pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"no Chromium at {CHROMIUM}: apt-get install chromium")
async def test_a_node_is_found_and_banned_with_the_keyboard_alone_and_no_script(chromium: Any, house: House) -> None:
    seen = await visit(chromium, house, "/admin", java_script_enabled=False)
    await seen.page.keyboard.press("Tab")
    focus = seen.page.locator("*:focus")
    for _ in range(40):
        if await focus.get_attribute("name") == "search":
            break
        await seen.page.keyboard.press("Tab")
    await seen.page.keyboard.type("attic")
    await seen.page.keyboard.press("Enter")
    await seen.page.wait_for_url("**/admin?search=attic*")
    assert await seen.page.locator("tbody tr").count() == 1
    await seen.page.locator("a.danger").focus()
    await seen.page.keyboard.press("Enter")
    await seen.page.wait_for_selector("h1:has-text('Ban: attic-4090?')")
    await seen.page.locator("#reason").focus()
    await seen.page.keyboard.type("it is resold")
    await seen.page.keyboard.press("Enter")
    await seen.page.wait_for_selector(".badge:has-text('banned')")
    assert (await house.operation.node(NODE)).reason.endswith("it is resold")
    assert seen.complaints == []
