"""How often a provider is asked: its metadata and keys are kept, and new keys are found without anybody doing anything."""

import asyncio

import msgspec
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OKPKey, RSAKey

from coordinator.config import IdentityConfig
from coordinator.errors import CottageError, TooManyError, UnauthorisedError
from coordinator.services.accounts.id_tokens import ProvenIdentity, UnknownKeyError, read_keys, read_token
from coordinator.services.accounts.identity_provider import ANEW_S, AT_A_TIME, KEPT_S, IdentityProvider
from tests.coordinator.web.identity.provider import CLIENT, Provider
from tests.support.clock import VirtualClock
from tests.support.wait import HANGS_S

METADATA = "/.well-known/openid-configuration"
BACK = "http://127.0.0.1/sign-in/identity"


class Visitor:
    """Somebody who signs in again and again."""

    def __init__(self, provider: Provider) -> None:
        self.clock = VirtualClock()
        self._there = provider
        provider.clock = self.clock.time
        self.provider = IdentityProvider(self.clock, IdentityConfig(provider.issuer, CLIENT))

    async def sign_in(self) -> ProvenIdentity:
        await self.provider.address(BACK, "state", "nonce", "verifier", anew=False)
        return await self.provider.identify(self._there.code("nonce", "verifier", BACK), BACK, "nonce", "verifier")


async def test_metadata_and_keys_are_fetched_once_for_all_and_then_kept_for_a_while(provider: Provider) -> None:
    visitor = Visitor(provider)
    found = await asyncio.gather(*(visitor.sign_in() for _ in range(5)))
    assert set(found) == {ProvenIdentity(provider.issuer, "ada-1815", "ada")}  # type: ignore[arg-type]
    assert (provider.asked[METADATA], provider.asked["/keys"], provider.asked["/token"]) == (1, 1, 5)
    await visitor.clock.advance(KEPT_S + 1)
    await visitor.sign_in()
    assert (provider.asked[METADATA], provider.asked["/keys"]) == (2, 2)


async def test_a_new_key_is_found_and_unknown_ones_are_asked_for_once_a_minute(provider: Provider) -> None:
    visitor = Visitor(provider)
    await visitor.sign_in()
    provider.keys = [RSAKey.generate_key(2048, {"kid": "two"})]
    provider.forge = lambda claims, _key: provider.signed(claims, kid="two")
    for _ in range(3):
        with pytest.raises(UnknownKeyError):
            await visitor.sign_in()
    assert provider.asked["/keys"] == 1, "they were fetched just now"
    await visitor.clock.advance(ANEW_S)
    assert (await visitor.sign_in()).name == "ada"
    provider.forge = lambda claims, _key: provider.signed(claims, kid="three")
    for _ in range(3):
        with pytest.raises(UnknownKeyError):
            await visitor.sign_in()
    assert provider.asked["/keys"] == 2


async def test_only_so_many_wait_for_a_provider_at_a_time(provider: Provider) -> None:
    visitor = Visitor(provider)
    provider.silent.add("/token")
    waiting = [asyncio.create_task(visitor.sign_in()) for _ in range(AT_A_TIME)]
    async with asyncio.timeout(HANGS_S):
        while provider.asked.get("/token", 0) < AT_A_TIME:
            await asyncio.sleep(0.01)
    with pytest.raises(TooManyError):
        await visitor.sign_in()
    for task in waiting:
        task.cancel()
    assert all(
        isinstance(one, asyncio.CancelledError) for one in await asyncio.gather(*waiting, return_exceptions=True)
    )


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (RSAKey.generate_key(2048), "PS256"),
        (RSAKey.generate_key(2048), "RS512"),
        (ECKey.generate_key("P-256"), "ES256"),
        (ECKey.generate_key("P-384"), "ES384"),
        (OKPKey.generate_key("Ed25519"), "Ed25519"),
    ],
)
def test_every_algorithm_with_a_public_key_counts_and_one_key_needs_no_name(
    key: RSAKey | ECKey | OKPKey, algorithm: str
) -> None:
    claims = {"iss": "i", "aud": ["c"], "azp": "c", "sub": "s", "nonce": "n", "iat": 990, "exp": 1_000.5}
    token = jwt.encode({"alg": algorithm}, claims, key, algorithms=[algorithm])
    keys = read_keys(msgspec.json.encode({"keys": [key.as_dict(private=False)]}))
    assert read_token(token, keys, "i", "c", "n", 1_000.0) == ProvenIdentity("i", "s")
    assert read_token(token, keys, "i", "c", "n", 1_060.0).subject == "s", "clocks differ"
    for issuer, client, nonce, now in (
        ("j", "c", "n", 0.0),
        ("i", "d", "n", 0.0),
        ("i", "c", "m", 0.0),
        ("i", "c", "n", 1_061.0),
    ):
        with pytest.raises(UnauthorisedError):
            read_token(token, keys, issuer, client, nonce, now or 1_000.0)
    if isinstance(key, RSAKey):
        with pytest.raises(CottageError, match="names none of the provider's keys"):
            read_token(token, [*keys, RSAKey.generate_key(2048)], "i", "c", "n", 1_000.0)
