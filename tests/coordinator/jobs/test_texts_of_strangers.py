"""Names, reasons and answers that strangers wrote, on their way into mails, pages, the timeline and the log of a job."""

from pathlib import Path

import msgspec
import pytest

from common.untrusted_text import Untrusted
from coordinator.config import MailConfig
from coordinator.services.core.display_names import readable
from coordinator.services.core.notifications import letter
from coordinator.store.records import EventRecord, LogRecord, NodeRecord, NoticeRecord
from coordinator.store.sql import SqlStore
from coordinator.web.pages.render import environment
from protocol.node import Goodbye
from protocol.task import TaskFailed
from tests.coordinator.conftest import House, ScriptedNode, nodes, until
from tests.coordinator.fakes import WALLET, profile
from tests.coordinator.test_faults import start
from tests.support.hostile import ALL, TEXTS, acts

MAIL = MailConfig("smtp.example.org", 25, "cottage@example.org", public_url="https://cottage.example")


@pytest.mark.parametrize("name", TEXTS)
def test_a_mail_has_the_headers_that_it_was_given(name: str) -> None:
    data = {"job": "j", "name": TEXTS[name], "state": "failed", "text": TEXTS[name]}
    body = msgspec.json.encode({"type": "job.failed", "data": data}).decode()
    notice = NoticeRecord("a", "ab" * 16, "failed", "mail", "me@example.org", body, 1.0, 1.0)
    mail = letter(MAIL, notice)
    assert mail["To"] == "me@example.org"
    assert mail["Bcc"] is None
    assert acts(str(mail["Subject"])) == []
    assert acts(mail.get_content()) == []
    assert len(mail["Subject"]) < 200
    assert "everybody@example.org" not in [value for key, value in mail.items() if key != "Subject"]
    mail.as_bytes()


@pytest.mark.parametrize("name", TEXTS)
def test_a_page_shows_text_as_text(name: str) -> None:
    made = environment()
    page = made.from_string("<p title='{{ text }}'>{{ text }}</p>{{ number }}").render(text=TEXTS[name], number=3)
    assert acts(page) == []
    assert "<script>" not in page
    assert page.endswith("</p>3")


@pytest.mark.parametrize("name", TEXTS)
def test_a_receivers_answer_is_kept_as_one_clean_line(name: str) -> None:
    waiting = NoticeRecord("a", "", "test", "webhook", "https://example.org", "{}", 1.0, 1.0)
    answered = msgspec.structs.replace(waiting, answer=TEXTS[name][:500])
    assert acts(answered.answer) == []
    assert "\n" not in answered.answer
    assert acts(readable(TEXTS[name], {})) == []


async def test_what_an_earlier_version_stored_is_clean_when_it_is_read(tmp_path: Path) -> None:
    store = await SqlStore.open(f"sqlite+aiosqlite:///{tmp_path / 'old.db'}")
    async with store.transaction() as tx:
        await tx.insert(EventRecord("j", 1.0, "fault", Untrusted("fine")))
        await tx.insert(NodeRecord(WALLET, WALLET, profile("node"), 1.0, 1.0))
        await tx._execute(_raw("UPDATE events SET text = :text", ALL[:3000]))  # type: ignore[attr-defined]
        dirty = msgspec.json.encode(msgspec.to_builtins(profile("node")) | {"name": TEXTS["osc-title"]}).decode()
        await tx._execute(_raw("UPDATE nodes SET profile = :text", dirty))  # type: ignore[attr-defined]
    async with store.transaction() as tx:
        (event,) = await tx.find(EventRecord)
        (node,) = await tx.find(NodeRecord)
    await store.close()
    assert acts(event.text + node.profile.name) == []


def _raw(statement: str, text: str) -> object:
    from sqlalchemy import text as sql

    return sql(statement).bindparams(text=text)


async def test_goodbyes_and_failures_reach_timeline_and_log_clean(house: House) -> None:
    hostile = TEXTS["osc-clipboard"] + TEXTS["forged-log-line"]
    async with nodes(house, 5) as made:
        job = await start(house)
        await until(lambda: any(task.assign.stage is not None for node in made for task in node.tasks.values()))
        seated = [node for node in made if any(task.assign.stage is not None for task in node.tasks.values())]
        await seated[0].send(Goodbye(Untrusted(hostile)))
        await _fail(seated[1], hostile)

        async def told() -> bool:
            texts = [event.text for event in await house.parts.jobs.events(job, 0)]
            return any("has left" in text for text in texts) and any("failed:" in text for text in texts)

        await until(told, 60.0)
        async with house.parts.context.store.transaction() as tx:
            events, lines = await tx.find(EventRecord), await tx.find(LogRecord)
    assert lines
    for text in (*(event.text for event in events), *(line.text for line in lines)):
        assert acts(text) == []
        assert "\n" not in text


async def _fail(node: ScriptedNode, reason: str) -> None:
    lease = next(iter(node.tasks))
    await node._say(lease, [TaskFailed(Untrusted(reason))])
