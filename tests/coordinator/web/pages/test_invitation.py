"""The page of an invitation: what it shows is what the app reads."""

import html
import re
from xml.etree import ElementTree

import aiohttp
import pytest

from common.invitations import Invitation, read
from coordinator.web.pages.invitation import picture
from tests.coordinator.web.conftest import House
from tests.coordinator.web.fake import address


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
