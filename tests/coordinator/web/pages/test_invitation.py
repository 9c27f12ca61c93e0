"""The page of an invitation: what it shows is what the app reads."""

import html
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import aiohttp
import pytest

from common.invitations import Invitation, read
from coordinator.web.pages.invitation import picture
from tests.coordinator.web.conftest import House
from tests.coordinator.web.fake import address
from tests.coordinator.web.pages.test_browser import CHROMIUM, PICTURES, chromium, tab_to, visit

__all__ = ["chromium"]  # The fixture.


async def page(house: House, http: aiohttp.ClientSession, path: str = "/join", **headers: str) -> str:
    async with http.get(f"{house.url}{path}", headers={"Accept": "text/html", **headers}) as answer:
        assert answer.status == 200
        return await answer.text()


async def test_button_and_texts_hold_the_address_and_the_key(house: House, http: aiohttp.ClientSession) -> None:
    said = await page(house, http)
    (button,) = re.findall(r'href="(cottage:[^"]+)"', said)
    invitation = read(html.unescape(button))
    assert invitation == Invitation(house.url, address("coordinator"))
    for shown in (invitation.link, invitation.page, invitation.url):
        assert f">{html.escape(shown)}</code>" in said
    assert "Only this computer reaches" in said, "a loopback address is of no use to others"


async def test_others_are_told_the_public_address(house: House, http: aiohttp.ClientSession) -> None:
    await house.stop()
    house.public_url = "https://cottage.example/"
    await house.start()
    said = await page(house, http)
    (button,) = re.findall(r'href="(cottage:[^"]+)"', said)
    assert read(html.unescape(button)).url == "https://cottage.example"
    assert "Only this computer" not in said


async def test_an_invitation_to_another_network_is_told_as_that(house: House, http: aiohttp.ClientSession) -> None:
    other = address("another network")
    assert other in await page(house, http, f"/join?key={other}")
    key = read(html.unescape(re.findall(r'href="(cottage:[^"]+)"', await page(house, http))[0])).key
    assert "another network" not in await page(house, http, f"/join?key={key}")


@pytest.mark.parametrize("text", [Invitation("https://cottage.example", address("key")).page, "http://[::1]:8470/join"])
def test_the_picture_is_drawn_without_a_style_and_named(text: str) -> None:
    drawing = ElementTree.fromstring(picture(text))
    assert drawing.get("aria-label") == "QR code of this invitation"
    assert {key for element in drawing.iter() for key in element.attrib} & {"style", "onload"} == set()
    assert len(list(drawing)) == 2, "white ground and black modules"


@pytest.mark.browser
@pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"no Chromium at {CHROMIUM}")
async def test_the_button_is_reached_by_keyboard_and_the_link_is_copied(chromium: Any, house: House) -> None:
    house.public_url = "https://cottage.example"
    await house.stop()
    await house.start()
    seen = await visit(chromium, house, "/join", permissions=["clipboard-read", "clipboard-write"])
    PICTURES.mkdir(parents=True, exist_ok=True)
    for width, scheme in ((1280, "light"), (1280, "dark"), (390, "dark"), (390, "light")):
        await seen.page.set_viewport_size({"width": width, "height": 900})
        await seen.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        await seen.page.screenshot(path=PICTURES / f"join-{width}-{scheme}.png", full_page=True)
    await tab_to(seen.page, "a[href^='cottage:']")
    await tab_to(seen.page, "[data-copy=invitation]")
    await seen.page.keyboard.press("Enter")
    await seen.page.wait_for_selector("[data-copy=invitation]:has-text('Copied')")
    assert read(await seen.page.evaluate("() => navigator.clipboard.readText()")).url == "https://cottage.example"
    assert await seen.page.locator("svg.qr path").count() == 2
    assert seen.complaints == [], "what the policy of contents refuses is told on the console"
