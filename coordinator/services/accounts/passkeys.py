"""Passkeys (WebAuthn level 2): made while signed in, and enough to sign in after that."""

import json
from typing import Any

from webauthn import (
    base64url_to_bytes,
    generate_authentication_options,
    generate_registration_options,
    options_to_json,
    verify_authentication_response,
    verify_registration_response,
)
from webauthn.helpers import bytes_to_base64url
from webauthn.helpers.exceptions import WebAuthnException
from webauthn.helpers.structs import (
    AuthenticatorSelectionCriteria,
    PublicKeyCredentialDescriptor,
    ResidentKeyRequirement,
    UserVerificationRequirement,
)

from common.clock import Clock
from coordinator.domain.account import Account
from coordinator.errors import ForbiddenError, UnauthorisedError
from coordinator.services.accounts.accounts import AccountService
from coordinator.services.accounts.challenges import Challenges
from coordinator.store.ports import Store, col
from coordinator.store.records import ChallengeKind, CredentialRecord

_VERIFY = UserVerificationRequirement.REQUIRED  # A passkey replaces the password: who holds the device must show it.


class Passkeys:
    """``site``: host name that passkeys are bound to; ``origin``: scheme, host and port of the pages."""

    def __init__(self, store: Store, clock: Clock, accounts: AccountService, challenges: Challenges) -> None:
        self._store = store
        self._clock = clock
        self._accounts = accounts
        self._challenges = challenges

    async def begin_making(self, account: Account, site: str) -> dict[str, Any]:
        """What the browser needs to make a passkey, as plain JSON."""
        held = [one for one in await self._accounts.credentials(account.id) if one.kind == "passkey"]
        options = generate_registration_options(
            rp_id=site,
            rp_name="Cottage",
            user_id=bytes.fromhex(account.id),
            user_name=account.name,
            authenticator_selection=AuthenticatorSelectionCriteria(
                resident_key=ResidentKeyRequirement.REQUIRED, user_verification=_VERIFY
            ),
            exclude_credentials=[PublicKeyCredentialDescriptor(base64url_to_bytes(one.id)) for one in held],
        )
        await self._keep("new-passkey", account.id, options.challenge)
        return _plain(options)

    async def finish_making(
        self, account: Account, answer: dict[str, Any], site: str, origin: str, name: str, address: str
    ) -> None:
        """Keep the passkey that the browser made.

        Raises:
            ForbiddenError: what it says does not hold. UnauthorisedError: the challenge is old. ConflictError: known already.
        """
        challenge = await self._take("new-passkey", account.id, answer)
        try:
            made = verify_registration_response(
                credential=answer,
                expected_challenge=challenge,
                expected_rp_id=site,
                expected_origin=origin,
                require_user_verification=True,
            )
        except (WebAuthnException, ValueError, KeyError, TypeError) as error:
            raise ForbiddenError(f"the passkey cannot be used: {error}") from error
        record = CredentialRecord(
            bytes_to_base64url(made.credential_id),
            account.id,
            "passkey",
            name[:100] or "passkey",
            made.credential_public_key,
            self._clock.time(),
            made.sign_count,
        )
        await self._accounts.add_credential(record, address)

    async def begin(self, site: str) -> dict[str, Any]:
        """What the browser needs to sign in with any passkey for this site."""
        options = generate_authentication_options(rp_id=site, user_verification=_VERIFY)
        await self._keep("passkey", "", options.challenge)
        return _plain(options)

    async def finish(self, answer: dict[str, Any], site: str, origin: str) -> Account:
        """Who has this passkey.

        Raises:
            UnauthorisedError: nobody, or what it says does not hold, or its counter went back (a copy of it exists).
        """
        challenge = await self._take("passkey", "", answer)
        identity = answer.get("id")
        async with self._store.transaction() as tx:
            found = await tx.find(
                CredentialRecord,
                col(CredentialRecord.id).equals(str(identity)[:1400]),
                col(CredentialRecord.kind).equals("passkey"),
            )
        if not found:
            raise UnauthorisedError("this passkey is not known here: sign in another way, and add it")
        try:
            proven = verify_authentication_response(
                credential=answer,
                expected_challenge=challenge,
                expected_rp_id=site,
                expected_origin=origin,
                credential_public_key=found[0].public_key,
                credential_current_sign_count=found[0].sign_count,
                require_user_verification=True,
            )
        except (WebAuthnException, ValueError, KeyError, TypeError) as error:
            raise UnauthorisedError(f"the passkey was not accepted: {error}") from error
        await self._accounts.used_credential(found[0], proven.new_sign_count)
        return await self._accounts.get(found[0].account_id)

    async def _keep(self, kind: ChallengeKind, account_id: str, challenge: bytes) -> None:
        nonce = bytes_to_base64url(challenge)
        await self._challenges.keep(nonce, kind, account_id, nonce)

    async def _take(self, kind: ChallengeKind, account_id: str, answer: dict[str, Any]) -> bytes:
        """The challenge that the answer names, if it is one of ours that nobody has used."""
        try:
            said = json.loads(base64url_to_bytes(answer["response"]["clientDataJSON"]))
            nonce = str(said["challenge"])
        except (KeyError, TypeError, ValueError) as error:
            raise UnauthorisedError("this is no answer of a passkey: begin again") from error
        return base64url_to_bytes(await self._challenges.take(nonce, kind, account_id))


def _plain(options: Any) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(options_to_json(options))
    return plain
