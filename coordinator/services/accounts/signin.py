"""Signing in: with a name and a password, or with a Solana wallet. Passkeys are in ``passkeys``, identities in ``identities``.

A wallet signs a text that names this coordinator and a nonce that is good once, so that what was signed for another site, or
was signed before, opens nothing. Source of the text: Sign-In With Solana (Phantom, 2023), which follows EIP-4361.
"""

import base64
import binascii
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from common.clock import Clock
from common.errors import BadAddressError
from coordinator.domain.account import Account, Role
from coordinator.errors import ConflictError, ForbiddenError, FullError, TooManyError, UnauthorisedError
from coordinator.services.accounts.accounts import MAX_NAME, AccountService
from coordinator.services.accounts.budgets import MAX_ACCOUNTS
from coordinator.services.accounts.challenges import CHALLENGE_S, Challenges
from coordinator.services.accounts.passwords import Passwords
from coordinator.services.accounts.throttle import Throttle
from coordinator.store.ports import Store, col
from coordinator.store.records import CredentialRecord
from protocol.identity import parse_address

STATEMENT: Final = "Sign in to Cottage. This is no transaction and costs nothing."
TRIES = 10.0  # At once, for a name and for an address;
TRY_S = 60.0  # one more each minute: a dictionary of 10,000 words takes a week.
SIGN_UPS = 5.0
SIGN_UP_S = 900.0
ALL_SIGN_UPS = 500.0  # Accounts that everybody makes at once,
ALL_SIGN_UP_S = 10.0  # and then one in so many seconds: 8,640 a day.
DAY_S = 86_400.0


class WalletChallenge(msgspec.Struct, frozen=True):
    """Input of ``solana:signIn``, in its words."""

    domain: str
    uri: str
    nonce: str
    issuedAt: str  # noqa: N815 - as wallets call it
    expirationTime: str  # noqa: N815
    statement: str = STATEMENT
    version: str = "1"


class WalletAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the wallet gave. ``message`` and ``signature`` in Base64; ``code``: the operator's, for the first account."""

    address: str
    nonce: str
    message: str
    signature: str
    code: str = ""


class SetupCode:
    """Lets the operator, and nobody who is quicker, have the first account: a file in the data folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def make(self) -> str:
        """The code, new unless there is one."""
        if not self._path.exists():
            self._path.touch(mode=0o600)
            self._path.write_text(secrets.token_urlsafe(12))
        return self._path.read_text().strip()

    def matches(self, code: str) -> bool:
        """Whether it is the code."""
        return self._path.exists() and secrets.compare_digest(self.make().encode(), code.strip().encode())

    def forget(self) -> None:
        """It has been used."""
        self._path.unlink(missing_ok=True)


class SignIn:
    """``open_sign_up``: strangers may make accounts; the first account needs ``setup`` in any case."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        accounts: AccountService,
        challenges: Challenges,
        setup: SetupCode,
        open_sign_up: bool = True,
        passwords: Passwords | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._accounts = accounts
        self._challenges = challenges
        self._setup = setup
        self._open_sign_up = open_sign_up
        self._passwords = passwords or Passwords()
        self._tries = Throttle(clock, 1 / TRY_S, TRIES)
        self._sign_ups = Throttle(clock, 1 / SIGN_UP_S, SIGN_UPS)
        self._all_sign_ups = Throttle(clock, 1 / ALL_SIGN_UP_S, ALL_SIGN_UPS, 1)

    async def needs_code(self) -> bool:
        """There is no account yet."""
        return not await self._accounts.any()

    async def sign_up(self, name: str, password: str, code: str, address: str) -> Account:
        """A new account with a password.

        Raises:
            ForbiddenError: sign-up is closed, or it is the first account and the code is not the operator's.
            InvalidError: name or password out of bounds. ConflictError: the name is taken. TooManyError: slow down.
        """
        role = await self.may_sign_up(code, address)
        account = await self._accounts.create(name, role, await self._passwords.hash(password))
        self._setup.forget()
        return account

    async def admit(self, name: str, role: Role) -> Account:
        """A new account of this name, or of one like it where that is taken; ``role``: as ``may_sign_up`` has it."""
        try:
            account = await self._accounts.create(name, role)
        except ConflictError:
            account = await self._accounts.create(f"{name[: MAX_NAME - 5]} {secrets.token_hex(2)}", role)
        self._setup.forget()
        return account

    async def with_password(self, name: str, password: str, address: str) -> Account:
        """Who has this name and password.

        Raises:
            UnauthorisedError: nobody; whether the name exists is not said, and takes as long to find out.
            TooManyError: too many tries.
        """
        key = " ".join(name.split()).casefold()[:64]
        self.may_try(f"name {key}", f"from {address}")
        async with self._store.transaction() as tx:
            found = await tx.find(Account, col(Account.key).equals(key))
        kept = found[0].password if found and not found[0].disabled else ""
        if not await self._passwords.matches(kept, password):
            if found:
                await self._accounts.record(found[0].id, "password", "sign-in.failed", "", address)
            raise UnauthorisedError("this name and password do not belong together: try again", "password")
        self._tries.forgive(f"name {key}")
        if self._passwords.outdated(kept):
            await self._accounts.set_password(found[0].id, await self._passwords.hash(password), address, renewed=True)
        return found[0]

    async def change_password(self, account: Account, old: str, new: str, address: str) -> None:
        """Another password; the old one is asked for where there is one. Ends every other session."""
        self.may_try(f"name {account.key}", f"from {address}")
        if account.password and not await self._passwords.matches(account.password, old):
            raise UnauthorisedError("the present password is another one: try again", "old")
        await self._accounts.set_password(account.id, await self._passwords.hash(new), address)

    # --- wallets ------------------------------------------------------------------------------------------------------------

    async def challenge(self, domain: str, uri: str, address: str) -> WalletChallenge:
        """What a wallet shall sign. ``domain``: host and port of this coordinator, never what the request says it is."""
        self.may_try(f"from {address}")
        now = self._clock.time()
        made = WalletChallenge(domain, uri, secrets.token_hex(16), _moment(now), _moment(now + CHALLENGE_S))
        await self._challenges.keep(made.nonce, "wallet", "", msgspec.json.encode(made).decode())
        return made

    async def with_wallet(self, answer: WalletAnswer, address: str) -> Account:
        """Who has this wallet; a stranger becomes a new account.

        Raises:
            UnauthorisedError: the signature is not the wallet's, or of another text, or the challenge is used or old.
            ForbiddenError: a stranger, and sign-up is closed.
        """
        key = await self._proven(answer)
        async with self._store.transaction() as tx:
            found = await tx.find(CredentialRecord, col(CredentialRecord.id).equals(answer.address))
        if found:
            await self._accounts.used_credential(found[0])
            return await self._accounts.get(found[0].account_id)
        role = await self.may_sign_up(answer.code, address)
        account = await self.admit(f"{answer.address[:4]}…{answer.address[-4:]}", role)
        await self._accounts.add_credential(_wallet(account, answer.address, key, self._clock.time()), address)
        return account

    async def link_wallet(self, account: Account, answer: WalletAnswer, address: str) -> None:
        """Let a wallet sign an account in.

        Raises:
            UnauthorisedError: as ``with_wallet``. ConflictError: it is some account's already.
        """
        key = await self._proven(answer)
        await self._accounts.add_credential(_wallet(account, answer.address, key, self._clock.time()), address)

    async def _proven(self, answer: WalletAnswer) -> bytes:
        """The wallet's public key, once what it signed is what we asked for."""
        text = await self._challenges.take(answer.nonce, "wallet")
        wanted = signed_text(msgspec.json.decode(text, type=WalletChallenge), answer.address)
        try:
            message = base64.b64decode(answer.message, validate=True)
            key = parse_address(answer.address)
            if message != wanted.encode():
                raise UnauthorisedError("the wallet signed another text than the one it was given: begin again")
            Ed25519PublicKey.from_public_bytes(key).verify(base64.b64decode(answer.signature, validate=True), message)
        except (binascii.Error, BadAddressError, InvalidSignature, ValueError) as error:
            raise UnauthorisedError("the signature is not this wallet's: begin again") from error
        return key

    async def is_first(self, code: str) -> bool:
        """Whether an account that is made now is the operator's.

        Raises:
            ForbiddenError: it would be, and ``code`` is not the operator's.
        """
        if not await self.needs_code():
            return False
        if not self._setup.matches(code):
            raise ForbiddenError(
                "the first account is the operator's: its code is in the log and in the file setup-code "
                "of the coordinator's data folder",
                "code",
            )
        return True

    async def may_sign_up(self, code: str, address: str, vouched: bool = False, first: bool = False) -> Role:
        """What somebody new may be.

        Args:
            vouched: by the identity provider, which knows them: no stranger, also where many have one address.
            first: the operator's code was seen before.
        Raises:
            ForbiddenError: sign-up is closed, or it is the first account and the code is not the operator's.
            TooManyError: slow down. FullError: there is no room.
        """
        if not vouched and (wait := self._sign_ups.take(f"from {address}")):
            raise TooManyError("many accounts were made from this address: try again later", wait)
        if await (self.needs_code() if first else self.is_first(code)):
            return Role.OPERATOR
        if not (self._open_sign_up or vouched):
            raise ForbiddenError("new accounts are made by this coordinator's operator: ask them")
        if wait := self._all_sign_ups.take(""):
            raise TooManyError("many accounts are being made here just now: try again later", wait)
        if await self._accounts.count() >= MAX_ACCOUNTS:
            raise FullError(f"there are {MAX_ACCOUNTS:,} accounts, which is all that fit: ask the operator", DAY_S)
        return Role.SUBMITTER

    def may_try(self, *keys: str) -> None:
        """Count a try to sign in, for a name (``name NAME``) and for an address (``from ADDRESS``, ``identity from ADDRESS``).

        Raises:
            TooManyError: one of them has had its part.
        """
        waits = [self._tries.take(key) for key in keys]
        if wait := max(waits):
            raise TooManyError(f"too many tries: the next one is possible in {wait:.0f} s", wait)

    def forgive(self, key: str) -> None:
        """It was no guess."""
        self._tries.forgive(key)


def signed_text(challenge: WalletChallenge, address: str) -> str:
    """The text that a wallet makes of ``solana:signIn``'s input, character for character."""
    return (
        f"{challenge.domain} wants you to sign in with your Solana account:\n{address}\n\n{challenge.statement}\n\n"
        f"URI: {challenge.uri}\nVersion: {challenge.version}\nNonce: {challenge.nonce}\n"
        f"Issued At: {challenge.issuedAt}\nExpiration Time: {challenge.expirationTime}"
    )


def _wallet(account: Account, address: str, key: bytes, now: float) -> CredentialRecord:
    return CredentialRecord(address, account.id, "wallet", f"{address[:4]}…{address[-4:]}", key, now)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
