"""Signing in through the organisation's identity provider: begun here, answered by the browser that comes back from there.

Who somebody is says the provider's own name for them, and never their mail address, which may be given to somebody else. What was
begun is kept under what the provider hands back (``state``) together with a secret of the browser's cookie. So an answer opens
nothing twice, and nothing in another browser. Sources: OpenID Connect Core 1.0, section 5.7; RFC 9700, sections 2.1 and 4.7.
"""

import hashlib
import re
import secrets
from typing import Final

import msgspec

from common.clock import Clock
from common.untrusted_text import untrusted
from coordinator.domain.account import Account
from coordinator.errors import ForbiddenError, UnauthorisedError
from coordinator.services.accounts.accounts import MAX_NAME, AccountService
from coordinator.services.accounts.challenges import Challenges
from coordinator.services.accounts.id_tokens import ProvenIdentity
from coordinator.services.accounts.identity_provider import IdentityProvider, refusal_words
from coordinator.services.accounts.signin import SignIn
from coordinator.store.ports import Store, col
from coordinator.store.records import ChallengeKind, CredentialRecord

SEEN_S: Final = 90 * 86_400.0
"""Who did not sign in through the provider for as long is vouched for no more. A session ends after a month in any case."""
ADDS: Final = "add."
"""A state that begins so is of somebody who adds an identity to their account."""
_SECRET = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_CODE = re.compile(r"[\x20-\x7e]{1,4000}")  # RFC 6749, appendix A.11; its length is the provider's own affair.


class BegunSignIn(msgspec.Struct, frozen=True):
    """What is kept until the browser is back. ``first``: it began with the operator's code, for the first account."""

    redirect: str
    nonce: str
    verifier: str
    after: str
    first: bool


class ProviderAnswer(msgspec.Struct, frozen=True):
    """What the browser brought back, as anybody may have written it. ``issuer``: None: it does not say."""

    state: str
    code: str
    issuer: str | None = None
    error: str = ""
    description: str = ""

    @property
    def adds(self) -> bool:
        """It is of somebody who is signed in already."""
        return self.state.startswith(ADDS)


class IdentitySignIn:
    """Accounts of those whom the provider vouches for."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        accounts: AccountService,
        challenges: Challenges,
        sign_in: SignIn,
        provider: IdentityProvider,
    ) -> None:
        self._store = store
        self._clock = clock
        self._accounts = accounts
        self._challenges = challenges
        self._sign_in = sign_in
        self._provider = provider

    @property
    def host(self) -> str:
        """How people know the provider."""
        return self._provider.host

    async def begin(self, redirect: str, after: str, address: str, code: str) -> tuple[str, str]:
        """Where the browser goes to sign in, and the secret that its cookie keeps until it is back.

        Args:
            redirect: where it comes back. ``after``: where it goes on then.
            code: the operator's, for the first account.
        Raises:
            ForbiddenError: it is the first account and the code is not the operator's.
            TooManyError: too many tries. UnavailableError: the provider cannot be asked now.
        """
        self._sign_in.may_try(_tries(address))
        first = await self._sign_in.is_first(code)
        return await self._begin("identity", redirect, after, first)

    async def begin_adding(self, account: Account, redirect: str, after: str, address: str) -> tuple[str, str]:
        """The same for somebody who is signed in. The provider asks who they are: another may be signed in there.

        Raises:
            TooManyError, UnavailableError: as ``begin``.
        """
        self._sign_in.may_try(_tries(address))
        return await self._begin("new-identity", redirect, after, False, account.id)

    async def _begin(
        self, kind: ChallengeKind, redirect: str, after: str, first: bool, account_id: str = ""
    ) -> tuple[str, str]:
        adds = kind == "new-identity"
        state = (ADDS if adds else "") + secrets.token_urlsafe(32)
        browser, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        to = await self._provider.address(redirect, state, nonce, verifier, anew=adds)
        text = msgspec.json.encode(BegunSignIn(redirect, nonce, verifier, after, first)).decode()
        await self._challenges.keep(_both(state, browser), kind, account_id, text)
        return to, browser

    async def finish(self, answer: ProviderAnswer, browser: str, address: str) -> tuple[Account, str]:
        """Who came back from the provider, and where they go on; a stranger becomes a new account.

        Raises:
            UnauthorisedError: nothing was begun in this browser, the provider refused, or what it says does not hold.
            ForbiddenError: the account was disabled, or it would be the first one without the operator's code.
            UnavailableError: the provider does not answer. TooManyError, FullError: there is no room now.
        """
        identity, begun = await self._proven(answer, browser, "identity", "")
        async with self._store.transaction() as tx:
            found = await tx.find(CredentialRecord, col(CredentialRecord.id).equals(credential_id(identity)))
        account = await (self._known(found[0], address) if found else self._new(identity, begun, address))
        self._sign_in.forgive(_tries(address))
        return account, begun.after

    async def finish_adding(self, account: Account, answer: ProviderAnswer, browser: str, address: str) -> str:
        """Let who came back sign this account in; where they go on.

        Raises:
            ConflictError: the identity is some account's already. UnauthorisedError, UnavailableError: as ``finish``.
        """
        identity, begun = await self._proven(answer, browser, "new-identity", account.id)
        await self._accounts.add_credential(self._record(account, identity), address)
        return begun.after

    async def _proven(
        self, answer: ProviderAnswer, browser: str, kind: ChallengeKind, account_id: str
    ) -> tuple[ProvenIdentity, BegunSignIn]:
        """Whom the provider vouches for, once the answer is to what this browser began."""
        if not _SECRET.fullmatch(browser) or not _SECRET.fullmatch(answer.state):
            raise UnauthorisedError("this browser has begun no sign-in here: begin it again")
        begun = msgspec.json.decode(
            await self._challenges.take(_both(answer.state, browser), kind, account_id), type=BegunSignIn
        )
        await self._provider.check_sender(answer.issuer)
        if answer.error or not _CODE.fullmatch(answer.code):
            said = refusal_words(answer.error, answer.description) or "it sent no code"
            raise UnauthorisedError(f"{self.host} did not sign you in: {said}")
        return await self._provider.identify(answer.code, begun.redirect, begun.nonce, begun.verifier), begun

    async def _known(self, record: CredentialRecord, address: str) -> Account:
        account = await self._accounts.get(record.account_id)
        if account.disabled:
            await self._accounts.record(account.id, "identity", "sign-in.failed", "", address)
            raise ForbiddenError("this account was disabled: ask this coordinator's operator")
        await self._accounts.used_credential(record)
        return account

    async def _new(self, identity: ProvenIdentity, begun: BegunSignIn, address: str) -> Account:
        role = await self._sign_in.may_sign_up("", address, vouched=True, first=begun.first)
        shown = identity.name[:MAX_NAME] or f"somebody {credential_id(identity)[:6]}"
        account = await self._sign_in.admit(shown, role)
        await self._accounts.add_credential(self._record(account, identity), address)
        return account

    def _record(self, account: Account, identity: ProvenIdentity) -> CredentialRecord:
        now = self._clock.time()
        shown = untrusted(f"{identity.name or identity.subject} at {self.host}", 100)
        issuer = identity.issuer.encode()
        return CredentialRecord(credential_id(identity), account.id, "identity", shown, issuer, now, used=now)


def credential_id(identity: ProvenIdentity) -> str:
    """The name of an identity here; issuer and subject cannot run into each other."""
    return hashlib.sha256(msgspec.json.encode((identity.issuer, identity.subject))).hexdigest()


def _both(state: str, browser: str) -> str:
    return f"{state} {browser}"


def _tries(address: str) -> str:
    """What is counted: apart from guesses of passwords, since an office of a hundred people may have one address."""
    return f"identity from {address}"
