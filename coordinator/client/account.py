"""The account: who one is, API keys, sessions, the trail, and where one is told of one's jobs."""

from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.client.line import HttpLine, place
from protocol.rest import api
from protocol.rest.account import AccountView, KeyView, SessionView, TrailView


class AccountCalls:
    """Calls of the client about whoever the key belongs to."""

    _line: HttpLine

    async def account(self) -> AccountView:
        """Who the token belongs to, and what it may do."""
        return await self._line.get("account", AccountView)

    async def keys(self) -> Sequence[KeyView]:
        """API keys of the account; their texts are not among it."""
        return await self._line.list("account/keys", KeyView)

    async def new_key(self, name: str, scopes: Sequence[str] | None = None, days: int | None = 90) -> KeyView:
        """Make an API key; ``text`` in the answer is the key, which is never shown again.

        Args:
            name: what it is for.
            scopes: what it may do; None: everything that jobs need.
            days: until it expires; None: never.
        """
        body: dict[str, Any] = {"name": name, "days": days} | ({} if scopes is None else {"scopes": scopes})
        return await self._line.change("POST", "account/keys", KeyView, body)

    async def revoke_key(self, key: str) -> None:
        """End an API key at once."""
        await self._line.change("DELETE", place("account/key", key), None)

    async def sessions(self) -> Sequence[SessionView]:
        """Browsers that are signed in."""
        return await self._line.list("account/sessions", SessionView)

    async def end_session(self, session: str) -> None:
        """Sign a browser out."""
        await self._line.change("DELETE", place("account/session", session), None)

    async def trail(self, limit: int | None = None, everybody: bool = False) -> Sequence[TrailView]:
        """What was done with the account, newest first; ``everybody``: all accounts', for operators."""
        return await self._line.list("account/trail" + ("?of=everybody" if everybody else ""), TrailView, limit)

    async def notices(self) -> api.NoticesView:
        """Where the account is told what."""
        return await self._line.get("notices", api.NoticesView)

    async def set_notices(self, wanted: api.NewNotices | Mapping[str, Any]) -> api.NoticesView:
        """Say where to tell what, whole: what is left out is as ``NewNotices`` has it. A new mail address is asked first."""
        return await self._line.change("PUT", "notices", api.NoticesView, wanted)

    async def confirm_notices(self, token: str) -> api.NoticesView:
        """Confirm a mail address with what was sent there."""
        return await self._line.change("POST", "notices/confirm", api.NoticesView, {"token": token})

    async def new_notices_secret(self) -> api.NoticesView:
        """Another secret for webhooks; the old one signs nothing more."""
        return await self._line.change("POST", "notices/secret", api.NoticesView)

    async def test_notices(self) -> int:
        """Send a test to every address that is switched on; how many."""
        queued: dict[str, int] = await self._line.change("POST", "notices/test", dict[str, int])
        return queued["queued"]

    async def deliveries(self, limit: int | None = None) -> Sequence[api.Delivery]:
        """What was sent, and what became of it, newest first."""
        return await self._line.list("notices/deliveries", api.Delivery, limit)
