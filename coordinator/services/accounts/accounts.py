"""Accounts: who there is, how they sign in, their API keys, and the trail of what they did.

Secrets are kept as hashes: cookies and API keys are 256 random bits, so SHA-256 is enough; passwords are argon2id.
"""

import hashlib
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from common.clock import Clock
from common.untrusted_text import untrusted
from coordinator.domain.account import LOCAL_ACCOUNT, ROLE_SCOPES, Account, Principal, Role, Scope
from coordinator.errors import ConflictError, InvalidError, NotFoundError, UnauthorisedError
from coordinator.services.accounts.budgets import MAX_CREDENTIALS, MAX_KEYS, MAX_SESSIONS, MAX_TRAIL
from coordinator.store.ports import Condition, Store, Transaction, col
from coordinator.store.records import CredentialRecord, KeyRecord, SessionRecord, TrailRecord

KEY_PREFIX: Final = "cottage_"  # Secret scanners find it, and nobody takes it for a node's token.
KEY_ID_CHARACTERS: Final = 12
MAX_NAME = 64
PRUNE_EACH = 64  # Lines of the trail; with each such one its account's trail is cut.
IDLE_S = 7 * 86_400.0  # A session that nobody uses for a week ends,
ABSOLUTE_S = 30 * 86_400.0  # and every one after a month.
TOUCH_S = 60.0  # Uses within a minute count as one: reading must not write every time.
MAX_LIFE_S = 10 * 365 * 86_400.0


class AccountService:
    """Everything about accounts, over any store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    # --- accounts -----------------------------------------------------------------------------------------------------------

    async def create(self, name: str, role: Role, password: str = "") -> Account:
        """Keep a new account. The first one of all becomes the built-in account, with whatever is its own.

        Args:
            password: its argon2id hash.
        Raises:
            InvalidError: the name is empty, too long, or has characters that cannot be seen.
            ConflictError: the name is taken.
        """
        shown = " ".join(name.split())
        if not 1 <= len(shown) <= MAX_NAME or not shown.isprintable():
            raise InvalidError(f"the name {shown[:40]!r}: choose 1 to {MAX_NAME} characters that can be seen", "name")
        async with self._store.transaction() as tx:
            first = not await tx.find(Account, limit=1)
            account = Account(
                LOCAL_ACCOUNT if first else secrets.token_hex(16),
                shown,
                shown.casefold(),
                role,
                self._clock.time(),
                password,
            )
            if await tx.find(Account, col(Account.key).equals(account.key)):
                raise ConflictError(f"the name {shown!r} is taken: choose another", "name")
            await tx.insert(account)
            await self._note(tx, account.id, account.id, "", "account.created", role)
        return account

    async def get(self, account_id: str) -> Account:
        """One account.

        Raises:
            NotFoundError: there is none of this id.
        """
        async with self._store.transaction() as tx:
            return await tx.get(Account, account_id)

    async def by_name(self, name: str) -> Account:
        """One account by its name.

        Raises:
            NotFoundError: nobody is called so.
        """
        async with self._store.transaction() as tx:
            found = await tx.find(Account, col(Account.key).equals(" ".join(name.split()).casefold()))
        if not found:
            raise NotFoundError(f"there is no account {name[:64]!r}: `cottage accounts list` shows all", "name")
        return found[0]

    async def all(self) -> Sequence[Account]:
        """Every account, the oldest first."""
        async with self._store.transaction() as tx:
            return await tx.find(Account)

    async def change(self, account_id: str, action: str, **values: object) -> None:
        """Change fields of an account; ends its sessions."""
        async with self._store.transaction() as tx:
            await tx.update(msgspec.structs.replace(await tx.get(Account, account_id), **values))
            await self._end_all(tx, account_id)
            await self._note(tx, account_id, LOCAL_ACCOUNT, "cli", action)

    async def set_password(self, account_id: str, hashed: str, address: str, renewed: bool = False) -> None:
        """Another password, which ends every session; ``renewed``: the same one, hashed again."""
        async with self._store.transaction() as tx:
            await tx.update(msgspec.structs.replace(await tx.get(Account, account_id), password=hashed))
            if renewed:
                return
            await self._end_all(tx, account_id)
            await self._note(tx, account_id, account_id, "session", "password.changed", "", address)

    # --- wallets, passkeys and identities -----------------------------------------------------------------------------------

    async def credentials(self, account_id: str) -> Sequence[CredentialRecord]:
        """Wallets, passkeys and identities of an account."""
        async with self._store.transaction() as tx:
            return await tx.find(CredentialRecord, col(CredentialRecord.account_id).equals(account_id))

    async def add_credential(self, record: CredentialRecord, address: str) -> None:
        """Let a wallet, a passkey or an identity sign its account in.

        Raises:
            ConflictError: it is some account's already, or there are too many.
        """
        async with self._store.transaction() as tx:
            if await tx.find(CredentialRecord, col(CredentialRecord.id).equals(record.id)):
                raise ConflictError(
                    f"this {record.kind} signs in an account already: sign in with it, or remove it there"
                )
            if (
                len(await tx.find(CredentialRecord, col(CredentialRecord.account_id).equals(record.account_id)))
                >= MAX_CREDENTIALS
            ):
                raise ConflictError(f"there are {MAX_CREDENTIALS} ways to sign in already: remove one first")
            await tx.insert(record)
            await self._note(
                tx, record.account_id, record.account_id, "session", f"{record.kind}.added", record.name, address
            )

    async def used_credential(self, record: CredentialRecord, sign_count: int = 0) -> None:
        """Note a use."""
        async with self._store.transaction() as tx:
            now = self._clock.time()
            await tx.update(msgspec.structs.replace(record, used=now, sign_count=sign_count))

    async def remove_credential(self, account_id: str, credential: str, address: str) -> None:
        """A wallet, passkey or identity signs in no more.

        Raises:
            NotFoundError: this account has no such one.
            ConflictError: it is the only way to sign in.
        """
        async with self._store.transaction() as tx:
            held = await tx.find(CredentialRecord, col(CredentialRecord.account_id).equals(account_id))
            record = next((one for one in held if one.id == credential), None)
            if record is None:
                raise NotFoundError("there is no such way to sign in", "credential")
            if len(held) == 1 and not (await tx.get(Account, account_id)).password:
                raise ConflictError("it is the only way to sign in: set a password first")
            await tx.delete(record)
            await self._note(tx, account_id, account_id, "session", f"{record.kind}.removed", record.name, address)

    async def count(self) -> int:
        """How many accounts there are."""
        async with self._store.transaction() as tx:
            return (await tx.sums(Account, col(Account.version), ())).get((), (0, 0))[0]

    async def any(self) -> bool:
        """Somebody has an account here."""
        async with self._store.transaction() as tx:
            return bool(await tx.find(Account, limit=1))

    # --- sessions -----------------------------------------------------------------------------------------------------------

    async def begin_session(self, account_id: str, method: str, address: str = "", agent: str = "") -> str:
        """Sign a browser in; returns the secret for its cookie, which is kept nowhere.

        Sessions that have ended by themselves go, and beyond ``MAX_SESSIONS`` the one that was used longest ago.
        """
        secret = secrets.token_urlsafe(32)
        now = self._clock.time()
        async with self._store.transaction() as tx:
            held = sorted(
                await tx.find(SessionRecord, col(SessionRecord.account_id).equals(account_id)), key=lambda one: one.seen
            )
            for place, one in enumerate(held, 1):
                ended = now - one.seen > IDLE_S or now - one.created > ABSOLUTE_S
                if ended or len(held) - place >= MAX_SESSIONS - 1:
                    await tx.delete(one)
            await tx.insert(
                SessionRecord(_digest(secret), account_id, method, now, now, address[:64], untrusted(agent, 200))
            )
            await self._note(tx, account_id, account_id, method, "session.began", "", address)
        return secret

    async def by_session(self, secret: str) -> Principal | None:
        """Who the cookie stands for; None where it stands for nobody any more."""
        now = self._clock.time()
        async with self._store.transaction() as tx:
            found = await tx.find(SessionRecord, col(SessionRecord.id).equals(_digest(secret)))
            if not found or now - found[0].seen > IDLE_S or now - found[0].created > ABSOLUTE_S:
                return None
            if now - found[0].seen > TOUCH_S:
                with suppress(ConflictError):  # Another cell has just noted a use, which is as good.
                    await tx.update(msgspec.structs.replace(found[0], seen=now))
            return await self._principal(tx, found[0].account_id, None, found[0].id)

    async def sessions(self, account_id: str) -> Sequence[SessionRecord]:
        """Browsers that are signed in, the newest first."""
        now = self._clock.time()
        async with self._store.transaction() as tx:
            found = await tx.find(SessionRecord, col(SessionRecord.account_id).equals(account_id), newest=True)
        return [one for one in found if now - one.seen <= IDLE_S and now - one.created <= ABSOLUTE_S]

    async def end_session(self, account_id: str, session: str, address: str = "") -> None:
        """Sign a browser out.

        Raises:
            NotFoundError: this account has no such session.
        """
        async with self._store.transaction() as tx:
            found = await tx.find(
                SessionRecord, col(SessionRecord.id).equals(session), col(SessionRecord.account_id).equals(account_id)
            )
            if not found:
                raise NotFoundError("there is no such session: it may have ended by itself", "session")
            await tx.delete(found[0])
            await self._note(tx, account_id, account_id, "session", "session.ended", session[:12], address)

    # --- API keys -----------------------------------------------------------------------------------------------------------

    async def create_key(
        self, who: Principal, name: str, scopes: frozenset[Scope], life_s: float | None = None, address: str = ""
    ) -> tuple[KeyRecord, str]:
        """A new API key and its text, which is shown once and kept nowhere.

        Args:
            scopes: at least one, none that ``who`` has not.
            life_s: seconds until it expires; None: never.
        Raises:
            InvalidError: no scope, one too many, or a life that is no life.
            ConflictError: the account has ``MAX_KEYS`` already.
        """
        shown = " ".join(name.split())[:100] or "key"
        if not scopes or scopes - who.scopes:
            wrong = ", ".join(sorted(scopes - who.scopes)) or "none"
            raise InvalidError(f"scopes: {wrong}: choose among {', '.join(sorted(who.scopes))}", "scopes")
        if life_s is not None and not 0 < life_s <= MAX_LIFE_S:
            raise InvalidError(f"a life of {life_s:g} s: choose up to ten years, or leave it out", "expires")
        secret = secrets.token_urlsafe(32)
        now = self._clock.time()
        record = KeyRecord(
            secrets.token_hex(KEY_ID_CHARACTERS // 2),
            who.account_id,
            untrusted(shown),
            _digest(secret),
            tuple(sorted(scopes)),
            now,
            None if life_s is None else now + life_s,
        )
        async with self._store.transaction() as tx:
            kept = await tx.find(KeyRecord, col(KeyRecord.account_id).equals(who.account_id))
            held = [key for key in kept if key.revoked is None]
            if len(held) >= MAX_KEYS:
                raise ConflictError(f"there are {len(held)} keys already: revoke one first")
            for key in sorted(set(kept) - set(held), key=lambda key: key.revoked or 0.0)[:-MAX_KEYS]:
                await tx.delete(key)
            await tx.insert(record)
            via = "session" if who.session else f"key {who.key}" if who.key else ""
            await self._note(tx, who.account_id, who.account_id, via, "key.created", record.id, address)
        return record, f"{KEY_PREFIX}{record.id}_{secret}"

    async def by_key(self, text: str) -> Principal:
        """Who an API key stands for, with the key's scopes.

        Raises:
            UnauthorisedError: it is unknown, revoked or expired: which of them is not said.
        """
        refused = UnauthorisedError("this API key is not valid: it is unknown, revoked or expired; make a new one")
        identity, _, secret = text.removeprefix(KEY_PREFIX).partition("_")
        now = self._clock.time()
        async with self._store.transaction() as tx:
            found = (
                await tx.find(KeyRecord, col(KeyRecord.id).equals(identity))
                if len(identity) == KEY_ID_CHARACTERS
                else []
            )
            digest = found[0].digest if found else _digest("")
            if not secrets.compare_digest(digest, _digest(secret)) or not found:
                raise refused
            key = found[0]
            if key.revoked is not None or (key.expires is not None and key.expires <= now):
                raise refused
            if key.used is None or now - key.used > TOUCH_S:
                with suppress(ConflictError):  # As of a session.
                    await tx.update(msgspec.structs.replace(key, used=now))
            who = await self._principal(tx, key.account_id, frozenset(key.scopes), "", key.id)
        if who is None:
            raise refused
        return who

    async def keys(self, account_id: str) -> Sequence[KeyRecord]:
        """Keys that were not revoked, the newest first."""
        async with self._store.transaction() as tx:
            return await tx.find(
                KeyRecord,
                col(KeyRecord.account_id).equals(account_id),
                col(KeyRecord.revoked).equals(None),
                newest=True,
            )

    async def revoke_key(self, account_id: str, key: str, address: str = "") -> None:
        """End a key at once.

        Raises:
            NotFoundError: this account has no such key.
        """
        async with self._store.transaction() as tx:
            found = await tx.find(
                KeyRecord,
                col(KeyRecord.id).equals(key),
                col(KeyRecord.account_id).equals(account_id),
                col(KeyRecord.revoked).equals(None),
            )
            if not found:
                raise NotFoundError(f"there is no API key {key[:40]!r}", "key")
            await tx.update(msgspec.structs.replace(found[0], revoked=self._clock.time()))
            await self._note(tx, account_id, account_id, "", "key.revoked", key, address)

    # --- the trail ----------------------------------------------------------------------------------------------------------

    async def record(self, account_id: str, via: str, action: str, subject: str, address: str) -> None:
        """Write down what was tried with an account."""
        async with self._store.transaction() as tx:
            await self._note(tx, account_id, "", via, action, subject, address)

    async def note(self, who: Principal, via: str, action: str, subject: str = "", address: str = "") -> None:
        """Write down what somebody did."""
        async with self._store.transaction() as tx:
            await self.note_within(tx, who, via, action, subject, address)

    async def note_within(
        self, tx: Transaction, who: Principal, via: str, action: str, subject: str = "", address: str = ""
    ) -> None:
        """The same, together with what was done: both are stored, or neither."""
        await self._note(tx, who.account_id, who.account_id, via, action, subject, address)

    async def trail(self, account_id: str | None, before: int | None, limit: int) -> Sequence[TrailRecord]:
        """What was done, newest first; ``account_id`` None: by everybody; ``before``: only smaller ids."""
        where: list[Condition] = [] if account_id is None else [col(TrailRecord.account_id).equals(account_id)]
        where += [] if before is None else [col(TrailRecord.id) < before]
        async with self._store.transaction() as tx:
            return await tx.find(TrailRecord, *where, newest=True, limit=limit)

    async def _principal(
        self, tx: Transaction, account_id: str, scopes: frozenset[Scope] | None, session: str, key: str = ""
    ) -> Principal | None:
        found = await tx.find(Account, col(Account.id).equals(account_id))
        if not found or found[0].disabled:
            return None
        account, allowed = found[0], ROLE_SCOPES[found[0].role]
        return Principal(
            account.id, allowed if scopes is None else scopes & allowed, account.name, account.role, session, key
        )

    async def _end_all(self, tx: Transaction, account_id: str) -> None:
        for session in await tx.find(SessionRecord, col(SessionRecord.account_id).equals(account_id)):
            await tx.delete(session)

    async def _note(
        self, tx: Transaction, account_id: str, actor: str, via: str, action: str, subject: str = "", address: str = ""
    ) -> None:
        now = self._clock.time()
        line = TrailRecord(account_id, now, actor, via[:80], action[:64], subject[:200], address[:64])
        if (await tx.insert(line)).id % PRUNE_EACH == 0:
            own: Condition = col(TrailRecord.account_id).equals(account_id)
            beyond = await tx.find(TrailRecord, own, newest=True, limit=1, offset=MAX_TRAIL)
            if beyond:
                await tx.forget(TrailRecord, own, col(TrailRecord.id) < beyond[0].id + 1)


def _digest(secret: str) -> str:
    # Strangers send any bytes, which headers keep as surrogates.
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()
