"""A coordinator that is nobody's friend answers every question with hostile text: no command prints any of it."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from coordinator.client import cli
from coordinator.web.api import API
from protocol.rest import account, api, dataset, ledger
from tests.support.hostile import ALL, TEXTS, acts, hostile

JOB = "ab" * 16
ANSWERS: dict[str, Any] = {
    f"{API}/jobs": list[api.JobView],
    f"{API}/jobs/{JOB}": api.JobView,
    f"{API}/jobs/{JOB}/events": list[api.JobEvent],
    f"{API}/jobs/{JOB}/logs": list[api.LogLine],
    f"{API}/jobs/{JOB}/checkpoints": list[api.CheckpointView],
    f"{API}/jobs/{JOB}/funding": api.Funding,
    f"{API}/compare": list[api.RunCurve],
    f"{API}/runs": list[api.RunCurve],
    f"{API}/account": account.AccountView,
    f"{API}/account/keys": list[account.KeyView],
    f"{API}/account/trail": list[account.TrailView],
    f"{API}/keys": list[account.KeyView],
    f"{API}/trail": list[account.TrailView],
    f"{API}/notices": api.NoticesView,
    f"{API}/notices/deliveries": list[api.Delivery],
    f"{API}/network": api.NetworkView,
    f"{API}/ledger": list[ledger.LedgerEntry],
    f"{API}/ledger/totals": ledger.LedgerTotals,
    f"{API}/audits": list[ledger.NodeAudit],
    f"{API}/checks": dataset.Check,
}
COMMANDS = (
    ["jobs"],
    ["jobs", JOB],
    ["logs", JOB],
    ["checkpoints", JOB],
    ["compare", JOB, JOB],
    ["keys"],
    ["trail"],
    ["notices"],
    ["ledger"],
    ["ledger", "--audits"],
    ["cancel", JOB, "--yes"],
    ["pause", JOB],
    ["download", JOB],
)


@contextmanager
def coordinator(text: str, status: int) -> Iterator[str]:
    """Answers with ``text`` wherever there is text; with a status of 400 and more it answers with problems alone."""
    ready, ended, url = threading.Event(), threading.Event(), [""]

    async def answer(request: web.Request) -> web.Response:
        kind = api.Problem if status >= 400 else ANSWERS.get(request.path, api.JobView)
        body = msgspec.json.encode(hostile(kind, text))
        sort = "application/problem+json" if status >= 400 else "application/json"
        return web.Response(body=body, status=status, content_type=sort)

    async def serve() -> None:
        app = web.Application()
        app.router.add_route("*", "/{anything:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url[0] = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        while not ended.is_set():
            await asyncio.sleep(0.02)
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(30)
    try:
        yield url[0]
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("status", [200, 404, 503])
def test_no_command_prints_what_a_terminal_acts_on(
    status: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("coordinator.client.line.backoff", lambda *_asked: 0.0)
    printed = 0
    for text in (ALL[:1500], *(TEXTS[name] for name in ("forged-log-line", "rich-markup"))):
        with coordinator(text, status) as url:
            for words in COMMANDS:
                for more in ((), ("--json",)):
                    with contextlib.suppress(SystemExit):  # An option that this command does not have.
                        cli.main([*words, "--server", url, *more])
                    shown = capsys.readouterr()
                    printed += len(shown.out) + len(shown.err)
                    assert acts(shown.out, own=True) == [], words
                    assert acts(shown.err, own=True) == [], words
                    assert "all money was paid" not in [line[:18] for line in shown.out.splitlines()], "a forged line"
                    assert not [line for line in shown.out.splitlines() if line.startswith("2026-01-01 00:00:00 INFO")]
    assert printed > 5_000, "the commands had something to say"
