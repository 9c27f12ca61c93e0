"""An account's own settings of what it is told, and where. ``notices`` writes notices down and delivers them."""

import base64
from collections.abc import Sequence
from typing import cast, get_args

import msgspec

from coordinator.errors import ConflictError, InvalidError, TooManyError, UnavailableError
from coordinator.services.accounts.budgets import ADDRESSES, TESTS, Budgets
from coordinator.services.accounts.throttle import Throttle
from coordinator.services.core import notifications
from coordinator.services.core.context import Context
from coordinator.store.ports import Condition, Transaction, col
from coordinator.store.records import NoticeRecord, NoticeSettings
from protocol.rest import api

# Tests and confirmations of an account that have not been delivered: nobody's mailbox is filled from here.
MAX_WAITING = 20
MAX_ASKED, ASK_S = 3.0, 86_400.0  # Mails to one address, whoever asks for them: at once, and then one a day.
MAIL_PAUSE = 300.0  # Seconds between two mails that ask an account to confirm an address.
ALL: tuple[api.NoticeKind, ...] = cast(tuple[api.NoticeKind, ...], get_args(api.JobNotice))


class NoticeService:
    """Implements ``ports.NoticesPort``. ``mails``: whether the operator has named an SMTP server."""

    def __init__(self, context: Context, mails: bool) -> None:
        self._context = context
        self._mails = mails
        self._budgets = Budgets(context.store, context.clock)
        self._asked = Throttle(context.clock, 1 / ASK_S, MAX_ASKED)

    async def get(self, account_id: str) -> api.NoticesView:
        """What is set; everything off where nothing ever was."""
        async with self._context.store.transaction() as tx:
            return self._view(await self._settings(tx, account_id))

    async def put(self, account_id: str, wanted: api.NewNotices) -> api.NoticesView:
        """Set where to tell what; a mail address that is new gets a mail that asks to confirm it.

        Raises:
            UnavailableError: mail is wanted, and this coordinator sends none. ConflictError: an address was asked just now.
            TooManyError: the account, or somebody else of this address, has asked too often.
        """
        if wanted.mail and not self._mails:
            raise UnavailableError("this coordinator sends no mail: leave mail empty, or ask its operator for --smtp")
        now = self._context.clock.time()
        if wanted.mail and wanted.mail != (await self.get(account_id)).mail:
            await self._budgets.take(ADDRESSES, account_id)
            if wait := self._asked.take(wanted.mail.casefold()):
                raise TooManyError("this address was asked often: whoever reads it has had enough mails for now", wait)
        async with self._context.store.transaction() as tx:
            before = await self._settings(tx, account_id)
            after = msgspec.structs.replace(
                before,
                webhook=wanted.webhook,
                webhook_kinds=wanted.webhook_kinds,
                mail=wanted.mail,
                mail_kinds=wanted.mail_kinds,
            )
            if wanted.mail != before.mail:
                after = msgspec.structs.replace(after, confirmed=False, token="")
                if wanted.mail:
                    after = msgspec.structs.replace(after, token=self._context.new_id())
                    await self._ask(tx, after, now)
            return self._view(await tx.update(after))

    async def confirm(self, account_id: str, token: str) -> api.NoticesView:
        """Believe that the address is the account's.

        Raises:
            InvalidError: this was not sent to the address.
        """
        async with self._context.store.transaction() as tx:
            settings = await self._settings(tx, account_id)
            if not settings.token or settings.token != token:
                raise InvalidError("this is not what was mailed to the address: copy it from the newest mail", "token")
            return self._view(await tx.update(msgspec.structs.replace(settings, confirmed=True, token="")))

    async def rotate(self, account_id: str) -> api.NoticesView:
        """A new secret."""
        async with self._context.store.transaction() as tx:
            settings = await self._settings(tx, account_id)
            return self._view(await tx.update(msgspec.structs.replace(settings, secret=self._secret())))

    async def test(self, account_id: str) -> int:
        """Queue a test on every channel that is on; how many.

        Raises:
            ConflictError: nothing is on, or too much waits already. TooManyError: too many tests were asked for.
        """
        await self._budgets.take(TESTS, account_id)
        async with self._context.store.transaction() as tx:
            settings = await self._settings(tx, account_id)
            waiting = await tx.everywhere.find(
                NoticeRecord,
                col(NoticeRecord.account_id).equals(account_id),
                col(NoticeRecord.state).equals("waiting"),
                limit=MAX_WAITING,
            )
            if len(waiting) >= MAX_WAITING:
                raise ConflictError(f"{MAX_WAITING} notices wait to be delivered: look at their answers first")
            body = {
                "job": "",
                "name": "",
                "state": "",
                "text": "This is a test: notices of your jobs will look like this.",
            }
            made = await notifications.insert(tx, settings, "test", body, self._context.clock.time())
        if not made:
            raise ConflictError("nothing is switched on: set a webhook, or a mail address and confirm it")
        return made

    async def deliveries(self, account_id: str, limit: int, before: int | None = None) -> Sequence[api.Delivery]:
        """What was sent, newest first; ``before``: only those with a smaller id."""
        where: list[Condition] = [col(NoticeRecord.account_id).equals(account_id)]
        where += [col(NoticeRecord.id) < before] if before is not None else []
        async with self._context.store.transaction() as tx:
            found = await tx.everywhere.find(NoticeRecord, *where, newest=True, limit=limit)
        return [
            api.Delivery(n.id, n.job, n.kind, n.channel, n.target, n.state, n.attempts, n.answer, n.created, n.due)
            for n in found
        ]

    async def _ask(self, tx: Transaction, settings: NoticeSettings, now: float) -> None:
        """Mail the token to the address that is to be confirmed; whoever does not know it gets nothing more."""
        own = (col(NoticeRecord.account_id).equals(settings.account_id), col(NoticeRecord.kind).equals("confirm"))
        last = await tx.everywhere.find(NoticeRecord, *own, newest=True, limit=1)
        if last and now < last[0].created + MAIL_PAUSE:
            raise ConflictError(
                f"an address was asked less than {MAIL_PAUSE / 60:.0f} minutes ago: try again later", "mail"
            )
        text = f"Somebody wants to be told at this address of jobs on Cottage. If that is you, confirm it with: {settings.token}"
        body = msgspec.json.encode({"type": "job.confirm", "timestamp": now, "data": {"text": text}}).decode()
        await tx.insert(NoticeRecord(settings.account_id, "", "confirm", "mail", settings.mail, body, now, now))

    async def _settings(self, tx: Transaction, account_id: str) -> NoticeSettings:
        found = await tx.find(NoticeSettings, col(NoticeSettings.account_id).equals(account_id))
        if found:
            return found[0]
        return await tx.insert(NoticeSettings(account_id, self._secret(), webhook_kinds=ALL, mail_kinds=ALL))

    def _secret(self) -> str:
        return notifications.SECRET_PREFIX + base64.b64encode(self._context.entropy(32)).decode()

    def _view(self, s: NoticeSettings) -> api.NoticesView:
        return api.NoticesView(s.webhook, s.webhook_kinds, s.mail, s.mail_kinds, s.confirmed, s.secret, self._mails)
