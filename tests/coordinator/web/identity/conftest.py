"""A coordinator whose people sign in through a provider, and browsers that go there and back."""

import html
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from coordinator.config import IdentityConfig
from coordinator.domain.account import Role
from tests.coordinator.web.conftest import House
from tests.coordinator.web.identity.provider import CLIENT, Provider
from tests.coordinator.web.test_signin import post

Opened = Callable[..., Awaitable[House]]


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    found = Provider()
    await found.start()
    yield found
    await found.stop()


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Opened]:
    """Opens a coordinator with a provider; its operator has an account unless told otherwise."""
    houses: list[House] = []

    async def make(issuer: str, secret: str = "", operator: bool = True, **settings: Any) -> House:
        house = House(tmp_path, open_to_all=False, identity=IdentityConfig(issuer, CLIENT, secret), **settings)
        await house.start()
        houses.append(house)
        if operator:
            await house.accounts.create("operator", Role.OPERATOR)
        return house

    yield make
    for house in houses:
        await house.stop()
        assert not house.ears.undocumented(house.document)


@pytest.fixture
async def lab(opened: Opened, provider: Provider) -> House:
    """A coordinator that takes nobody but whom the lying provider vouches for."""
    return await opened(provider.issuer, sign_up=False)


async def there(http: aiohttp.ClientSession, house: House, path: str = "/sign-in/identity", **fields: str) -> str:
    """Where the coordinator sends a browser that wants to sign in."""
    page = "/account" if path.startswith("/account") else "/sign-in"
    answer = await post(http, house, path, page, **fields)
    text = await answer.text()
    assert answer.status == 200, text
    found = re.search(r'http-equiv="refresh" content="0; url=([^"]+)"', text)
    assert found
    to = html.unescape(found[1])
    assert f'href="{found[1]}"' in text, "also where pages do not go on by themselves"
    return to


async def back(http: aiohttp.ClientSession, to: str) -> str:
    """Where the provider sends the browser that goes there."""
    async with http.get(to, allow_redirects=False) as answer:
        assert answer.status == 302, await answer.text()
        return answer.headers["Location"]


async def arrive(http: aiohttp.ClientSession, url: str) -> tuple[int, str]:
    """What the coordinator answers who comes back: its status, and where it leads or what it says."""
    async with http.get(url, headers={"Accept": "text/html"}, allow_redirects=False) as answer:
        text = await answer.text()
        if answer.status == 303:
            return 303, answer.headers["Location"]
        said = re.search(r'role="alert">(.*?)</p>', text)
        assert said, text
        return answer.status, html.unescape(said[1])


async def signed_in(http: aiohttp.ClientSession, house: House, **fields: str) -> tuple[int, str]:
    return await arrive(http, await back(http, await there(http, house, **fields)))
