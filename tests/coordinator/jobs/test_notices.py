"""Notices reach real receivers, which check them: an HTTP server, an SMTP server; and only those who wanted them."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from email import message_from_bytes
from ipaddress import ip_network
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from coordinator.config import MailConfig
from coordinator.domain.account import LOCAL_ACCOUNT
from coordinator.domain.job import JobState
from coordinator.errors import ConflictError, InvalidError, UnavailableError
from coordinator.services.accounts.notification_settings import NoticeService
from coordinator.services.core.egress import outside_session
from coordinator.services.core.notifications import ATTEMPTS, NoticeDelivery
from coordinator.store.records import NoticeRecord
from protocol.rest.api import NewNotices
from tests.coordinator.bench import Bench

LOOPBACK = (ip_network("127.0.0.0/8"),)


class Receiver:
    """A web server that answers with ``status`` and keeps what came."""

    def __init__(self) -> None:
        self.status = 200
        self.came: list[tuple[dict[str, str], bytes]] = []
        app = web.Application()
        app.router.add_post("/hook", self._take)
        app.router.add_post("/elsewhere", self._take)
        self.server = TestServer(app)

    async def _take(self, request: web.Request) -> web.Response:
        self.came.append((dict(request.headers), await request.read()))
        headers = {"Location": "/elsewhere"} if self.status == 307 else {}
        return web.Response(status=self.status, text="thanks", headers=headers)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    await made.server.start_server()
    yield made
    await made.server.close()


class Desk:
    """A bench with notices: settings, delivery, and a job that lives on."""

    def __init__(self, mail: MailConfig | None = None, closed: bool = False) -> None:
        self.bench = Bench()
        context = self.bench.parts.context
        self.settings = NoticeService(context, mail is not None)
        self.notices = NoticeDelivery(context, lambda: outside_session(allowed=() if closed else LOOPBACK), mail)

    async def paused(self) -> str:
        """A job that has just been paused."""
        job = await self.bench.job()
        async with self.bench.parts.desk.open(job) as work:
            work.change(state=JobState.RUNNING)
            work.advance(JobState.PAUSED, "the submitter paused the job")
        return job

    async def ended(self, to: JobState, why: str) -> str:
        """A job that most of whose budget is spent, and that then ends."""
        job = await self.bench.job()
        async with self.bench.parts.desk.open(job) as work:
            work.change(state=JobState.VERIFYING)
            work.note("spent", "¤ 8.00 of the budget of ¤ 10.00 are spent")
        async with self.bench.parts.desk.open(job) as work:
            work.advance(to, why)
        return job

    async def rows(self) -> list[NoticeRecord]:
        async with self.bench.store.transaction() as tx:
            return await tx.find(NoticeRecord)


def hook(receiver: Receiver, path: str = "/hook", **fields: Any) -> NewNotices:
    return NewNotices(webhook=str(receiver.server.make_url(path)), **fields)


async def test_a_pause_is_told_once_signed_so_that_the_receiver_can_check_it(receiver: Receiver) -> None:
    desk = Desk()
    view = await desk.settings.put(LOCAL_ACCOUNT, hook(receiver))
    job = await desk.paused()
    assert await desk.notices.deliver() == 1
    assert await desk.notices.deliver() == 0
    ((headers, body),) = receiver.came
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    key = base64.b64decode(view.secret.removeprefix("whsec_"))
    made = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{made}"
    told = json.loads(body)
    assert told["type"] == "job.paused"
    assert told["data"] == {
        "job": job,
        "name": "a small job",
        "state": "paused",
        "text": "the submitter paused the job",
    }
    (delivery,) = await desk.settings.deliveries(LOCAL_ACCOUNT, 10)
    assert (delivery.state, delivery.attempts, delivery.answer) == ("sent", 1, "HTTP 200 thanks")
    again = await desk.settings.rotate(LOCAL_ACCOUNT)
    assert again.secret != view.secret


@pytest.mark.parametrize(("to", "kind"), [(JobState.SETTLED, "done"), (JobState.FAILED, "failed")])
async def test_four_fifths_of_the_budget_and_the_end_are_told(receiver: Receiver, to: JobState, kind: str) -> None:
    desk = Desk()
    await desk.settings.put(LOCAL_ACCOUNT, hook(receiver))
    await desk.ended(to, "why it ended")
    while await desk.notices.deliver():
        pass
    told = [json.loads(body) for _, body in receiver.came]
    assert sorted((one["type"], one["data"]["text"]) for one in told) == [
        ("job.budget", "¤ 8.00 of the budget of ¤ 10.00 are spent"),
        (f"job.{kind}", "why it ended"),
    ]


async def test_what_is_switched_off_is_not_told(receiver: Receiver) -> None:
    desk = Desk()
    await desk.settings.put(LOCAL_ACCOUNT, hook(receiver, webhook_kinds=("done", "failed")))
    await desk.paused()
    assert await desk.rows() == []
    with pytest.raises(ConflictError, match="nothing is switched on"):
        await desk.settings.test("f" * 32)
    assert await desk.settings.test(LOCAL_ACCOUNT) == 1, "a test goes to whatever address is set"
    await desk.notices.deliver()
    assert [json.loads(body)["type"] for _, body in receiver.came] == ["job.test"]


async def test_a_receiver_that_fails_is_asked_again_with_growing_pauses_and_then_given_up(receiver: Receiver) -> None:
    desk = Desk()
    receiver.status = 500
    await desk.settings.put(LOCAL_ACCOUNT, hook(receiver))
    await desk.paused()
    pauses = []
    for attempt in range(ATTEMPTS):
        assert await desk.notices.deliver() == 1, attempt
        (row,) = await desk.rows()
        pauses.append(row.due - desk.bench.clock.t)
        assert await desk.notices.deliver() == 0, "not before its time"
        desk.bench.clock.t = row.due
    assert pauses == sorted(pauses)
    assert pauses[:3] == [10.0, 40.0, 160.0]
    assert (row.state, row.attempts) == ("failed", ATTEMPTS)
    assert row.answer.startswith("HTTP 500")
    assert await desk.notices.deliver() == 0
    assert len({headers["webhook-id"] for headers, _ in receiver.came}) == 1, (
        "the same notice has the same id each time"
    )


@pytest.mark.parametrize(("status", "state"), [(410, "failed"), (307, "waiting")])
async def test_who_is_gone_is_not_asked_again_and_a_redirection_is_not_followed(
    receiver: Receiver, status: int, state: str
) -> None:
    desk = Desk()
    receiver.status = status
    await desk.settings.put(LOCAL_ACCOUNT, hook(receiver))
    await desk.paused()
    await desk.notices.deliver()
    assert len(receiver.came) == 1
    assert (await desk.rows())[0].state == state


async def test_a_webhook_cannot_be_led_into_the_coordinators_own_network(receiver: Receiver) -> None:
    desk = Desk(closed=True)
    for host in ("127.0.0.1", "localhost"):
        url = f"http://{host}:{receiver.server.port}/hook"
        await desk.settings.put(LOCAL_ACCOUNT, NewNotices(webhook=url))
        await desk.paused()
    await desk.notices.deliver()
    assert receiver.came == []
    assert all("no address of the public Internet" in row.answer for row in await desk.rows())
    assert {row.state for row in await desk.rows()} == {"failed"}


@pytest.mark.parametrize(
    "webhook", ["ftp://x/y", "javascript:alert(1)", "http:///x", "http://a b", "file:///etc/passwd"]
)
def test_an_address_that_is_no_web_address_is_refused_at_the_door(webhook: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"webhook": webhook}, NewNotices)


@pytest.mark.parametrize("mail", ["nobody", "a@b, c@d", "a b@c", "a@b\r\nBcc: c@d", "<a@b>"])
def test_a_mail_address_cannot_smuggle_another_one_in(mail: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"mail": mail}, NewNotices)


# --- mail ---------------------------------------------------------------------------------------------------------------


class Mailbox:
    """Takes every mail. Called by aiosmtpd."""

    def __init__(self) -> None:
        self.came: list[Any] = []

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802 - the library's word
        self.came.append((envelope.rcpt_tos, message_from_bytes(envelope.content)))
        return "250 taken"


@pytest.fixture
async def mailbox() -> AsyncIterator[tuple[Mailbox, MailConfig]]:
    smtp = pytest.importorskip("aiosmtpd.smtp", reason="aiosmtpd, the SMTP server for tests, is not installed")
    box = Mailbox()
    server = await asyncio.get_running_loop().create_server(
        lambda: smtp.SMTP(box, loop=asyncio.get_running_loop()), "127.0.0.1"
    )
    port = server.sockets[0].getsockname()[1]
    yield box, MailConfig("127.0.0.1", port, "cottage@example.org", "none", public_url="https://cottage.example.org/")
    server.close()


async def test_mail_goes_only_to_an_address_that_said_yes(mailbox: tuple[Mailbox, MailConfig]) -> None:
    box, config = mailbox
    desk = Desk(config)
    view = await desk.settings.put(LOCAL_ACCOUNT, NewNotices(mail="me@example.org"))
    assert not view.confirmed
    await desk.paused()
    await desk.notices.deliver()
    ((to, asking),) = box.came
    assert to == ["me@example.org"]
    assert asking["Subject"] == "Cottage: confirm your address"
    token = str(asking.get_payload()).split("confirm it with: ")[1].split()[0]
    with pytest.raises(InvalidError, match="copy it from the newest mail"):
        await desk.settings.confirm(LOCAL_ACCOUNT, "0" * 32)
    assert (await desk.settings.confirm(LOCAL_ACCOUNT, token)).confirmed
    job = await desk.paused()
    await desk.notices.deliver()
    _, told = box.came[1]
    assert told["Subject"] == "Cottage: a small job: paused"
    assert told["From"] == "cottage@example.org"
    assert f"https://cottage.example.org/jobs/{job}" in told.get_payload()
    for to, subject in ((JobState.SETTLED, "done: the model is ready"), (JobState.FAILED, "failed")):
        await desk.ended(to, "why it ended")
        while await desk.notices.deliver():
            pass
        said = {str(mail["Subject"]) for _, mail in box.came[-2:]}
        assert said == {f"Cottage: a small job: {one}" for one in ("four fifths of the budget are spent", subject)}
    changed = NewNotices(mail="other@example.org")
    with pytest.raises(ConflictError, match="asked less than 5 minutes ago"):
        await desk.settings.put(LOCAL_ACCOUNT, changed)
    desk.bench.clock.t += 301
    assert not (await desk.settings.put(LOCAL_ACCOUNT, changed)).confirmed, "another address is another person"


async def test_a_mail_server_that_is_away_is_tried_again(mailbox: tuple[Mailbox, MailConfig]) -> None:
    _, config = mailbox
    desk = Desk(replace(config, port=1, seconds=2.0))
    await desk.settings.put(LOCAL_ACCOUNT, NewNotices(mail="me@example.org"))
    await desk.notices.deliver()
    (row,) = await desk.rows()
    assert (row.state, row.attempts) == ("waiting", 1)
    assert "ConnectionRefusedError" in row.answer


async def test_where_no_mail_can_be_sent_it_is_said_at_once() -> None:
    with pytest.raises(UnavailableError, match="sends no mail"):
        await Desk().settings.put(LOCAL_ACCOUNT, NewNotices(mail="me@example.org"))
