"""Signing in in a real Chromium: a Wallet Standard wallet with a real Ed25519 key, and a passkey on a virtual authenticator."""

import base64
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.domain.account import Role
from coordinator.web.auth.gate import SESSION_COOKIE
from protocol.identity import NodeKey
from tests.coordinator.web.conftest import House
from tests.coordinator.web.pages.test_browser import (  # noqa: F401 - the browser is a fixture
    PICTURES,
    chromium,
    pytestmark,
    visit,
)

WALLET = """
(direct) => {
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const text = (input) => `${input.domain} wants you to sign in with your Solana account:\\n${input.address}\\n\\n` +
    `${input.statement}\\n\\nURI: ${input.uri}\\nVersion: ${input.version}\\nNonce: ${input.nonce}\\n` +
    `Issued At: ${input.issuedAt}\\nExpiration Time: ${input.expirationTime}`;
  const account = { address: ADDRESS, publicKey: new Uint8Array(32), chains: ["solana:mainnet"],
    features: ["solana:signIn", "solana:signMessage"] };
  const sign = async (message) => {
    const answer = await window.signWithWallet(btoa(String.fromCharCode(...message)));
    if (answer === "") throw new Error("User rejected the request.");
    return { account, signedMessage: message, signature: bytes(answer) };
  };
  const features = {
    "standard:connect": { version: "1.0.0", connect: async () => ({ accounts: [account] }) },
    "solana:signMessage": { version: "1.0.0", signMessage: async ({ message }) => [await sign(message)] },
  };
  if (direct) features["solana:signIn"] = { version: "1.0.0",
    signIn: async (input) => [await sign(new TextEncoder().encode(text({ ...input, address: ADDRESS })))] };
  const wallet = { version: "1.0.0", name: NAME, icon: "data:image/svg+xml;base64,PHN2Zy8+", chains: ["solana:mainnet"],
    features, accounts: [account] };
  const register = ({ detail: api }) => api.register(wallet);
  window.addEventListener("wallet-standard:app-ready", register);
  window.dispatchEvent(new CustomEvent("wallet-standard:register-wallet", { detail: (api) => api.register(wallet) }));
}
"""


class Wallet:
    """An injected wallet; ``willing``: signs what it is asked to."""

    def __init__(self, name: str, direct: bool) -> None:
        self.key = NodeKey.generate()
        self.name = name
        self.direct = direct
        self.willing = True
        self.texts: list[str] = []

    def sign(self, message: str) -> str:
        if not self.willing:
            return ""
        data = base64.b64decode(message)
        self.texts.append(data.decode())
        return base64.b64encode(Ed25519PrivateKey.from_private_bytes(self.key.seed).sign(data)).decode()

    async def inject(self, page: Any) -> None:
        await page.expose_function("signWithWallet", self.sign)
        script = WALLET.replace("ADDRESS", f'"{self.key.address}"').replace("NAME", f'"{self.name}"')
        await page.add_init_script(f"({script})({str(self.direct).lower()})")


async def picture(page: Any, name: str) -> None:
    """The page, light and dark, on a phone and wide."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for scheme in ("light", "dark"):
        for width in (1280, 390):
            await page.emulate_media(color_scheme=scheme)
            await page.set_viewport_size({"width": width, "height": 900})
            wide = await page.evaluate(
                "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert wide <= 0, f"{name} is {wide} pixels too wide at {width}"
            await page.screenshot(path=PICTURES / f"{name}-{width}-{scheme}.png", full_page=True)
    await page.set_viewport_size({"width": 1280, "height": 900})


@pytest.fixture
async def local(town: House) -> House:
    """Under a name that passkeys can be bound to: an address is none."""
    await town.accounts.create("operator", Role.OPERATOR)
    return town


def at(town: House) -> str:
    return f"http://localhost:{town.port}"


async def test_a_wallet_signs_in_by_one_click_and_a_refusal_is_said(chromium: Any, local: House) -> None:  # noqa: F811
    for wallet in (Wallet("Direct <b>wallet</b>", True), Wallet("Older wallet", False)):
        seen = await visit(chromium, local, "/network", base_url=at(local))
        page = seen.page
        await wallet.inject(page)
        await page.goto("/jobs")
        assert page.url.endswith("/sign-in?next=%2Fjobs")
        button = page.get_by_role("button", name=f"Continue with {wallet.name}")
        wallet.willing = False
        await button.click()
        await page.wait_for_selector("[data-problem]:not([hidden])")
        assert "rejected" in await page.inner_text("[data-problem]")
        if wallet.direct:
            await picture(page, "sign-in")
        wallet.willing = True
        await button.click()
        await page.wait_for_url("**/jobs")
        assert wallet.texts[-1].startswith(f"localhost:{local.port} wants you to sign in with your Solana account:\n")
        cookies = {one["name"]: one for one in await page.context.cookies()}
        assert cookies[SESSION_COOKIE]["httpOnly"] is True
        assert await page.evaluate("() => document.cookie") == ""
        complaints = [text for text in seen.complaints if "40" not in text]
        assert complaints == []
        await page.context.close()
    assert len(await local.accounts.all()) == 3


async def test_a_passkey_is_added_and_then_signs_in_alone(chromium: Any, local: House) -> None:  # noqa: F811
    seen = await visit(chromium, local, "/sign-up", base_url=at(local))
    page = seen.page
    tools = await page.context.new_cdp_session(page)
    await tools.send("WebAuthn.enable")
    await tools.send(
        "WebAuthn.addVirtualAuthenticator",
        {
            "options": {
                "protocol": "ctap2",
                "transport": "internal",
                "hasResidentKey": True,
                "hasUserVerification": True,
                "isUserVerified": True,
                "automaticPresenceSimulation": True,
            }
        },
    )
    await picture(page, "sign-up")
    await page.fill("#name", "Grace")
    await page.fill("#password", "a long and simple password")
    await page.fill("#again", "a long and simple password")
    await page.get_by_role("button", name="Make the account").click()
    await page.wait_for_url("**/jobs")
    await page.get_by_role("link", name="Grace").click()
    await page.get_by_role("button", name="Add a passkey").click()
    await page.wait_for_selector("td:has-text('Passkey')")
    await page.fill("#key-name", "laptop")
    await page.get_by_role("button", name="Make the key").click()
    assert (await page.inner_text("#new-key")).startswith("cottage_")
    await picture(page, "account")
    await page.goto("/account/trail")
    await picture(page, "trail")
    assert "passkey.added" in await page.inner_text("main")
    await page.goto("/account")
    await page.get_by_role("button", name="Sign out", exact=True).click()
    await page.wait_for_url(at(local) + "/")
    await page.goto("/account")
    await page.get_by_role("button", name="Sign in with a passkey").click()
    await page.wait_for_url("**/account")
    assert "Grace" in await page.inner_text("h1")
    assert [text for text in seen.complaints if "404" not in text] == []
    await page.context.close()


async def test_without_scripts_a_name_and_a_password_are_enough(chromium: Any, local: House) -> None:  # noqa: F811
    seen = await visit(chromium, local, "/account", base_url=at(local), java_script_enabled=False)
    page = seen.page
    await page.get_by_role("link", name="Make an account").click()
    for field, text in (("#name", "Plain"), ("#password", "without any script"), ("#again", "without any script")):
        await page.fill(field, text)
    await page.get_by_role("button", name="Make the account").click()
    await page.goto("/account")
    assert "Plain" in await page.inner_text("h1")
    assert await page.locator("[data-passkey]").is_hidden()
    await page.context.close()
