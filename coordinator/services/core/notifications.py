"""Telling a submitter what happened to a job: by webhook and by mail, each for what its account has switched on.

A notice is a row that is written in the transaction in which the thing happened, so none is forgotten; a loop delivers rows,
again with growing pauses where nobody answers, and the rows are the log of what was delivered. A receiver may see a notice twice,
with the same id. Webhooks are signed as standardwebhooks.com says.
"""

import asyncio
import base64
import hashlib
import hmac
import logging
import smtplib
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from email.message import EmailMessage

import aiohttp
import msgspec

from common.untrusted_text import untrusted
from coordinator.config import MailConfig
from coordinator.domain.job import Job
from coordinator.errors import ConflictError
from coordinator.services.accounts.budgets import MAX_NOTICES
from coordinator.services.core.context import Context
from coordinator.services.core.egress import ForbiddenAddressError
from coordinator.store.ports import Condition, Transaction, col
from coordinator.store.records import EventRecord, NoticeRecord, NoticeSettings
from protocol.rest.api import NoticeKind

ATTEMPTS = 8
FIRST_PAUSE, MAX_PAUSE = 10.0, 6 * 3600.0  # Between attempts, four times as long each time: two days in all.
LOOK_S = 2.0
MAX_AT_ONCE = 16
MAX_SUBJECT = 100  # Characters of a job's name in a subject.
MAX_ANSWER = 500  # Bytes of a receiver's answer that are kept.
SIGNED = "v1,"
SECRET_PREFIX = "whsec_"  # noqa: S105 - a mark, no secret.
GONE = 410

KINDS: Mapping[str, NoticeKind] = {"spent": "budget", "paused": "paused", "settled": "done", "failed": "failed"}
"""Lines of the timeline that are told, and as what."""

_SUBJECTS: Mapping[NoticeKind, str] = {
    "budget": "four fifths of the budget are spent",
    "paused": "paused",
    "done": "done: the model is ready",
    "failed": "failed",
    "test": "a test",
    "confirm": "confirm your address",
}

OpenSession = Callable[[], aiohttp.ClientSession]

LOG = logging.getLogger(__name__)


async def queue(tx: Transaction, job: Job, events: Sequence[EventRecord]) -> None:
    """Write down whom to tell of what has just happened to a job."""
    told = [event for event in events if event.kind in KINDS]
    if not told:
        return
    for settings in await tx.find(NoticeSettings, col(NoticeSettings.account_id).equals(job.account_id)):
        for event in told:
            kind = KINDS[event.kind]
            body = {"job": job.id, "name": job.name, "state": job.state.value, "text": event.text}
            await insert(tx, settings, kind, body, event.time, job.id)


async def insert(
    tx: Transaction, settings: NoticeSettings, kind: NoticeKind, body: Mapping[str, str], now: float, job: str = ""
) -> int:
    """One notice for each channel that wants this kind; how many."""
    document = msgspec.json.encode({"type": f"job.{kind}", "timestamp": now, "data": body}).decode()
    targets: list[tuple[str, str]] = []
    if settings.webhook and (kind == "test" or kind in settings.webhook_kinds):
        targets.append(("webhook", settings.webhook))
    if settings.mail and settings.confirmed and (kind == "test" or kind in settings.mail_kinds):
        targets.append(("mail", settings.mail))
    for channel, target in targets:
        record = NoticeRecord(settings.account_id, job, kind, channel, target, document, now, now)  # type: ignore[arg-type]
        await tx.insert(record)
    return len(targets)


def sign(secret: str, notice: str, timestamp: int, body: bytes) -> str:
    """The header ``webhook-signature``: HMAC-SHA256 of ``id.timestamp.body``, in base64.

    Args:
        secret: ``whsec_`` and the key in base64.
    Source: standardwebhooks.com, "Signature scheme".
    """
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    made = hmac.new(key, f"{notice}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return SIGNED + base64.b64encode(made).decode()


class NoticeDelivery:
    """Delivers. ``outside`` opens sessions that reach public addresses only; ``mail`` None: no mail can be sent."""

    def __init__(self, context: Context, outside: OpenSession, mail: MailConfig | None) -> None:
        self._context = context
        self._outside = outside
        self._mail = mail

    async def run(self) -> None:
        """Deliver for ever."""
        while True:
            await self.deliver()
            await self._context.clock.sleep(LOOK_S)

    async def deliver(self) -> int:
        """Try everything that is due, once; how much that was."""
        now = self._context.clock.time()
        where: tuple[Condition, ...] = (col(NoticeRecord.state).equals("waiting"), col(NoticeRecord.due) < now + 1e-6)
        async with self._context.everywhere.transaction() as tx:
            due = await tx.find(NoticeRecord, *where, limit=MAX_AT_ONCE)
            accounts = tuple({notice.account_id for notice in due})
            settings = {
                s.account_id: s for s in await tx.find(NoticeSettings, col(NoticeSettings.account_id).in_(accounts))
            }
        if not due:
            return 0
        async with asyncio.TaskGroup() as group:
            tries = [group.create_task(self._try(n, settings.get(n.account_id)), name="notice") for n in due]
        async with self._context.everywhere.transaction() as tx:
            for notice, attempt in zip(due, tries, strict=True):
                with suppress(ConflictError):  # Its job, or account, was forgotten meanwhile, and it with that.
                    await tx.update(_after(notice, *attempt.result(), now))
            for account_id in accounts:
                over: tuple[Condition, ...] = (
                    col(NoticeRecord.account_id).equals(account_id),
                    col(NoticeRecord.state).in_(("sent", "failed")),
                )
                beyond = await tx.find(NoticeRecord, *over, newest=True, limit=1, offset=MAX_NOTICES)
                if beyond:
                    await tx.forget(NoticeRecord, *over, col(NoticeRecord.id) < beyond[0].id + 1)
        return len(due)

    async def _try(self, notice: NoticeRecord, settings: NoticeSettings | None) -> tuple[bool, bool, str]:
        """Whether it was delivered, whether it may be tried again, and what the receiver said."""
        if settings is None:
            return False, False, "the account has no settings any more"
        try:
            if notice.channel == "webhook":
                return await self._post(notice, settings)
            return await self._send(notice)
        except (aiohttp.ClientError, OSError, TimeoutError, smtplib.SMTPException) as error:
            if isinstance(error.__cause__, ForbiddenAddressError):
                return False, False, str(error.__cause__)
            return False, True, f"{type(error).__name__}: {error}"[:MAX_ANSWER]

    async def _post(self, notice: NoticeRecord, settings: NoticeSettings) -> tuple[bool, bool, str]:
        body, name, now = notice.body.encode(), f"msg_{notice.id}", int(self._context.clock.time())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "cottage",
            "webhook-id": name,
            "webhook-timestamp": str(now),
            "webhook-signature": sign(settings.secret, name, now, body),
        }
        async with self._outside() as session:
            async with session.post(notice.target, data=body, headers=headers, allow_redirects=False) as response:
                said = (await response.content.read(MAX_ANSWER)).decode("utf-8", "replace")
                good = 200 <= response.status < 300
                return good, response.status != GONE, f"HTTP {response.status} {said}".strip()[:MAX_ANSWER]

    async def _send(self, notice: NoticeRecord) -> tuple[bool, bool, str]:
        if self._mail is None:
            return False, False, "this coordinator sends no mail: its operator has named no SMTP server"
        said = await asyncio.to_thread(send_mail, self._mail, letter(self._mail, notice))
        return True, False, said


def letter(config: MailConfig, notice: NoticeRecord) -> EmailMessage:
    """A notice as a mail, in plain text."""
    data: dict[str, str] = msgspec.json.decode(notice.body)["data"]
    made = EmailMessage()
    made["From"], made["To"] = config.sender, notice.target
    name = untrusted(data.get("name", ""), MAX_SUBJECT)
    made["Subject"] = f"Cottage: {name + ': ' if name else ''}{_SUBJECTS[notice.kind]}"
    made["Auto-Submitted"] = "auto-generated"
    made["Message-ID"] = f"<notice-{notice.id}@{config.sender.rpartition('@')[2] or 'cottage'}>"
    lines: list[str] = [untrusted(data.get("text", "")), *([f"Job {notice.job}"] if notice.job else [])]
    if config.public_url and notice.job:
        lines.append(f"{config.public_url.rstrip('/')}/jobs/{notice.job}")
    made.set_content("\n\n".join(lines) + "\n")
    return made


def send_mail(config: MailConfig, mail: EmailMessage) -> str:
    """Hand a mail to the SMTP server. Raises SMTPException or OSError."""
    if config.security == "tls":
        server: smtplib.SMTP = smtplib.SMTP_SSL(
            config.host, config.port, timeout=config.seconds, context=ssl.create_default_context()
        )
    else:
        server = smtplib.SMTP(config.host, config.port, timeout=config.seconds)
    with server:
        if config.security == "starttls":
            server.starttls(context=ssl.create_default_context())
        if config.user:
            server.login(config.user, config.password)
        server.send_message(mail)
    return "accepted"


def _after(notice: NoticeRecord, delivered: bool, again: bool, said: str, now: float) -> NoticeRecord:
    attempts = notice.attempts + 1
    pause = min(MAX_PAUSE, FIRST_PAUSE * 4**notice.attempts)
    state = "sent" if delivered else "waiting" if again and attempts < ATTEMPTS else "failed"
    return msgspec.structs.replace(notice, attempts=attempts, answer=said, due=now + pause, state=state)
