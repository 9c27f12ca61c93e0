"""What answers on the agent's socket need not be the agent: no word of ``cottage node`` prints what a terminal acts on."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from desktop.agent.app.selftest import SelfTestResult
from desktop.agent.app.settings import SettingsView
from desktop.agent.app.status import AgentStatus
from desktop.agent.base import log
from desktop.agent.base.activity import Activity
from desktop.agent.cli import cli
from desktop.agent.jobs.line_limits import LimitsView
from desktop.agent.lending.keeper import LendingView
from desktop.answers import ActivityEvents, EarningsSummary
from tests.support.hostile import ALL, TEXTS, acts, hostile
from transport.nettest.result import NetTest, PeerTest

ANSWERS: dict[str, Any] = {
    "/v1/status": AgentStatus,
    "/v1/earnings": EarningsSummary,
    "/v1/limits": LimitsView,
    "/v1/lending": LendingView,
    "/v1/claim": EarningsSummary,
    "/v1/settings": SettingsView,
    "/v1/activity": ActivityEvents,
    "/v1/selftest": SelfTestResult,
    "/v1/nettest": NetTest,
    "/v1/nettest/peer": PeerTest,
}
WORDS = (
    ["status"],
    ["earnings"],
    ["earnings", "--proofs"],
    ["limits"],
    ["rules"],
    ["settings"],
    ["claim"],
    ["nettest"],
    ["nettest", "--peer", "1" * 40],
    ["logs"],
)


@contextmanager
def agent(home: Path, text: str) -> Iterator[None]:
    ready, ended = threading.Event(), threading.Event()

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(hostile(ANSWERS.get(request.path, AgentStatus), text)))

    async def serve() -> None:
        app = web.Application()
        app.router.add_route("*", "/{anything:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.UnixSite(runner, str(home / "agent.sock")).start()
        ready.set()
        while not ended.is_set():
            await asyncio.sleep(0.02)
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(30)
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_no_word_prints_what_a_terminal_acts_on(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    home = tmp_path_factory.mktemp("h")
    (home / "agent.log").write_bytes(ALL.encode() + b"\xff\xfe\n")
    printed = 0
    for text in (ALL[:180], TEXTS["rich-markup"], TEXTS["forged-log-line"]):
        with agent(home, text):
            for words in WORDS:
                for more in ((), ("--json",)):
                    with contextlib.suppress(SystemExit):  # An option that this word does not have.
                        cli.main([*words, "--home", str(home), *more])
                    shown = capsys.readouterr()
                    printed += len(shown.out)
                    assert acts(shown.out, own=True) == [], words
                    assert acts(shown.err, own=True) == [], words
    assert printed > 3_000, "the words had something to say"


@pytest.mark.parametrize("name", TEXTS)
def test_the_agents_log_and_its_list_of_events_are_clean(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    text, root = TEXTS[name], logging.getLogger()
    before = root.handlers[:]
    request.addfinalizer(lambda: setattr(root, "handlers", before))
    log.set_up(as_json=False, file=tmp_path / "agent.log")
    log.LOG.warning("the coordinator said: %s", text)
    try:
        raise RuntimeError(text)
    except RuntimeError:
        log.LOG.exception("failed: %s", text[:50])
    written = (tmp_path / "agent.log").read_text()
    assert acts(written + capsys.readouterr().err) == []
    first, *others = written.splitlines()
    assert "the coordinator said" in first
    assert [line for line in others[1:] if not line.startswith("    ")] == []
    activity = Activity(tmp_path / "activity.db")
    activity.add(1.0, "job failed", text, why=text)
    (event,) = activity.newest().events
    activity.close()
    assert acts(event.text + "".join(event.detail.values())) == []
    assert "\n" not in event.text
