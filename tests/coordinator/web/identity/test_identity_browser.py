"""The way to a provider and back in a real Chromium, which holds cookies and redirects to what pages say."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from coordinator.domain.account import Role
from tests.coordinator.web.identity.conftest import Opened
from tests.coordinator.web.identity.provider import Provider
from tests.coordinator.web.pages.test_browser import AXE, CHROMIUM, FAULTS, OTHERS, PICTURES, TWO, chromium, visit
from tests.coordinator.web.test_signin import PASSWORD

__all__ = ["chromium"]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"no Chromium at {CHROMIUM}: apt-get install chromium"),
]


async def looked_at(page: Any, name: str) -> None:
    """A page fits, and everybody can use it, by day and by night, on a desk and in a hand."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    await page.evaluate(AXE)
    for width, scheme in (*TWO, *OTHERS):
        await page.set_viewport_size({"width": width, "height": 900})
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        wide = await page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{name} is {wide} pixels too wide at {width}"
        await page.screenshot(path=PICTURES / f"{name}-{width}-{scheme}.png", full_page=True)
        assert await page.evaluate(FAULTS, None) == [], f"{name} {width} {scheme}"


async def test_a_person_signs_in_by_a_click_without_scripts(chromium: Any, opened: Opened, provider: Provider) -> None:
    house = await opened(provider.issuer, sign_up=False)
    seen = await visit(chromium, house, "/jobs", java_script_enabled=False)
    assert "/sign-in" in seen.page.url
    await seen.page.get_by_role("button", name="Sign in with 127.0.0.1").click()
    await seen.page.wait_for_url("**/jobs")
    assert await seen.page.get_by_role("link", name="ada").count() == 1
    assert seen.complaints == []
    await seen.page.context.close()


@pytest.mark.long
async def test_somebody_adds_an_identity_and_reads_what_is_wrong_with_another(
    chromium: Any, opened: Opened, provider: Provider
) -> None:
    house = await opened(provider.issuer)
    await house.auth.sign_in.sign_up("Countess", PASSWORD, "", "127.0.0.1")
    seen = await visit(chromium, house, "/sign-in?next=/account")
    page = seen.page
    await looked_at(page, "identity-sign-in")
    await page.get_by_label("Name").fill("Countess")
    await page.get_by_label("Password").fill(PASSWORD)
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/account")
    add = page.get_by_role("button", name="Add yourself at 127.0.0.1")
    await add.click()
    await page.wait_for_url("**/account#ways")
    assert await page.get_by_role("button", name="Remove identity ada at 127.0.0.1").count() == 1
    await looked_at(page, "identity-account")
    await add.click()
    await page.get_by_role("alert").get_by_text("signs in an account already").wait_for()
    await page.goto("/sign-in/identity?state=x&code=y")
    await page.get_by_text("has begun no sign-in here").wait_for()
    assert seen.complaints == [] or all("401" in one or "409" in one for one in seen.complaints)
    await page.context.close()


async def test_the_first_account_and_the_page_between_fit_and_are_accessible(
    chromium: Any, opened: Opened, provider: Provider
) -> None:
    house = await opened(provider.issuer, operator=False)
    seen = await visit(chromium, house, "/sign-up")
    await looked_at(seen.page, "identity-first")
    await house.accounts.create("operator", Role.OPERATOR)
    await seen.page.goto("/sign-up")
    await looked_at(seen.page, "identity-sign-up")
    provider.always["/authorize"] = lambda: web.Response(status=204)  # The browser stays where it is.
    await seen.page.goto("/sign-in")
    await seen.page.get_by_role("button", name="Sign in with 127.0.0.1").click()
    await seen.page.get_by_role("heading", name="On to 127.0.0.1").wait_for()
    await looked_at(seen.page, "identity-between")
    await seen.page.context.close()
