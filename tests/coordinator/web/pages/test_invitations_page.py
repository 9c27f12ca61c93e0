"""The page of who may lend: for operators and owners on the list; an invitation is shown once, and leads to the app."""

import html
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from common.invitations import read
from coordinator.domain.account import LOCAL_PRINCIPAL, Role
from coordinator.services.operation.ports import OrderedBy
from protocol.rest.lending import LendingRule
from tests.coordinator.web.conftest import House
from tests.coordinator.web.fake import address
from tests.coordinator.web.pages.test_browser import AXE, CHROMIUM, FAULTS, PICTURES, chromium, visit
from tests.coordinator.web.pages.test_operation_pages import HOSTILE, page, root, send, session_of

__all__ = ["chromium", "root"]  # Fixtures.
PAGE = "/invitations"


async def test_an_operator_invites_a_computer_and_takes_the_invitation_back(
    town: House, root: aiohttp.ClientSession
) -> None:
    shown = await page(root, PAGE)
    assert "Only computers that were invited may lend here." in shown
    made = await send(root, PAGE, 200, note=HOSTILE, days="30")
    assert "<script>alert" not in made
    made = html.unescape(made)
    (link,) = re.findall(r"--coordinator '(cottage:[^']+)'", made)
    invitation = read(link)
    assert (invitation.url, len(invitation.code) >= 20) == (town.url, True)
    assert invitation.page in made
    assert invitation.code not in await page(root, PAGE), "it is shown this once"
    joined = html.unescape(await page(root, f"/join?key={invitation.key}&code={invitation.code}"))
    assert f'href="{link}"' in joined
    assert 'id="address"' not in joined, "an address alone would lead nowhere"
    (one,) = await town.lenders.invitations(LOCAL_PRINCIPAL)
    assert one.expires - one.created == 30 * 86_400.0
    async with root.post(f"{PAGE}/{one.id}/withdraw", data={"csrf": "0" * 64}) as answer:
        assert answer.status == 403
    assert (await town.lenders.invitations(LOCAL_PRINCIPAL))[0].state == "open"
    token = re.findall(r'name="csrf" value="([0-9a-f]+)"', await page(root, PAGE))[0]
    async with root.post(f"{PAGE}/{one.id}/withdraw", data={"csrf": token}, allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (303, PAGE)
    assert "withdrawn</span>" in await page(root, PAGE)
    trail = await page(root, "/account/trail")
    assert "invitation.made" in trail
    assert "invitation.withdrawn" in trail


@pytest.mark.parametrize("fields", [{"days": "0"}, {"days": "366"}, {"days": "x"}, {"note": "y" * 101}])
async def test_a_form_that_says_too_much_makes_nothing(
    town: House, root: aiohttp.ClientSession, fields: dict[str, str]
) -> None:
    assert 'role="alert"' in await send(root, PAGE, 422, **fields)
    assert await town.lenders.invitations(LOCAL_PRINCIPAL) == []


async def test_whoever_is_not_on_the_list_is_told_so_and_sees_no_other_s_invitations(
    town: House, http: aiohttp.ClientSession
) -> None:
    await session_of(town, "root", Role.OPERATOR)
    await town.lenders.invite("root's own", 7, OrderedBy(LOCAL_PRINCIPAL, "session", ""))
    ada = await session_of(town, "ada", Role.SUBMITTER)
    async with http.get(town.url + PAGE, headers=ada) as answer:
        shown = await answer.text()
    assert "Only owners on the list may invite." in shown
    assert "root" not in shown
    assert "/admin/jobs" not in shown
    async with http.get(town.url + PAGE, headers={"Accept": "text/html"}, allow_redirects=False) as answer:
        assert answer.headers["Location"].startswith("/sign-in")


@pytest.mark.parametrize(
    ("rule", "said"), [("invited", "ask whoever runs it for an invitation"), ("listed", "your computer's key")]
)
async def test_the_network_says_who_may_lend(
    house: House, http: aiohttp.ClientSession, rule: LendingRule, said: str
) -> None:
    assert "Every computer may lend here." in await page(http, f"{house.url}/network")
    house.cluster.who_may_lend = rule
    assert "may lend here." in await page(http, f"{house.url}/network")
    assert said in html.unescape(await page(http, f"{house.url}/join"))
    assert "lets one computer in" in await page(http, f"{house.url}/join?code={'1' * 22}")


@pytest.mark.parametrize("code", ["short", "0" * 22, "1" * 65, "1" * 22 + "&at=https://other.example", "<script>"])
async def test_a_code_that_is_none_is_left_out_of_the_page(
    house: House, http: aiohttp.ClientSession, code: str
) -> None:
    async with http.get(f"{house.url}/join", params={"code": code}) as answer:
        assert answer.status == 200
        (link,) = re.findall(r'href="(cottage:[^"]+)"', await answer.text())
    assert read(html.unescape(link)).code == ""
    assert "other.example" not in link


@pytest.mark.browser
@pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"no Chromium at {CHROMIUM}")
async def test_the_pages_of_an_invitation_are_read_by_all_in_any_light(chromium: Any, house: House) -> None:
    house.cluster.who_may_lend = "invited"
    by = OrderedBy(LOCAL_PRINCIPAL, "session", "")
    await house.lenders.invite("the corner by the window", 7, by)
    for number, note in enumerate(("attic", "Ada's laptop")):
        view, code = await house.lenders.invite(note, 7, by)
        await house.lenders.enter(address(note), code)
        if number:
            await house.lenders.withdraw(view.id, by)
    seen = await visit(chromium, house, PAGE)
    await seen.page.locator("#note").fill("the machine beside the door")
    await seen.page.locator("button:has-text('Invite a computer')").click()
    await seen.page.wait_for_selector("#fresh")
    link = await seen.page.locator("#made-page").inner_text()
    PICTURES.mkdir(parents=True, exist_ok=True)
    paths = {"made": "", "invitations": PAGE, "join-code": link, "join-closed": "/join", "network-rule": "/network"}
    for name, path in paths.items():
        if path:
            await seen.page.goto(path)
        await seen.page.evaluate(AXE)
        for width, scheme in ((1280, "light"), (1280, "dark"), (390, "dark")):
            await seen.page.set_viewport_size({"width": width, "height": 900})
            await seen.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            await seen.page.screenshot(path=PICTURES / f"{name}-{width}-{scheme}.png", full_page=True)
            assert await seen.page.evaluate(FAULTS, None) == [], (name, width, scheme)
            wide = await seen.page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, (name, width)
    assert seen.complaints == []
