"""What ``/metrics`` tells: all that an operator has to know, in the form that Prometheus reads, and nothing of anybody."""

import asyncio
import re
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from aiohttp import ClientSession

from common.clock import SystemClock
from coordinator import metrics as figures
from coordinator.config import Config
from coordinator.domain.job import JobState
from coordinator.errors import StoreAwayError
from coordinator.metrics import _LABELS, Metrics
from coordinator.services.accounts.accounts import AccountService
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.core.backup_age import note_backup
from coordinator.services.core.context import Context
from coordinator.services.core.leases import Leases
from coordinator.services.network.nodes import Nodes
from coordinator.services.payments.withdrawals import Sponsor
from coordinator.services.views import vital_signs
from coordinator.services.views.vital_signs import VitalSigns
from coordinator.store.memory import MemoryStore
from coordinator.store.records import OutboxRecord
from coordinator.store.sql import SqlStore
from coordinator.version import release
from coordinator.web.monitoring import watchers
from protocol.identity import NodeKey
from tests.coordinator.conftest import until
from tests.coordinator.fakes import profile
from tests.coordinator.jobs.test_lifecycle import JOB
from tests.coordinator.watching.conftest import Watched, exposed, samples, watched
from tests.support.databases import Postgres, needs_postgres

PROMTOOL = shutil.which("promtool")


def test_every_metric_has_its_help_and_its_type() -> None:
    found = exposed()
    assert len({family.name for family in found.values()}) > 80
    for name, family in found.items():
        assert family.documentation, name
        assert family.type in ("counter", "gauge", "histogram"), name
        assert name.startswith(("cottage_", "process_"))


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_prometheus_own_tool_finds_nothing_to_complain_of() -> None:
    metrics = Metrics()
    for name, labels in _LABELS.items():
        if name.endswith("_total"):
            metrics.count(name, labels=("x",) * len(labels))
    done = subprocess.run(["promtool", "check", "metrics"], input=metrics.text(), capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


async def test_a_coordinator_tells_what_is_there(config: Config) -> None:
    config = replace(config, auditors=frozenset({NodeKey.generate().address}))
    async with watched(config) as it:
        values = await it.values()
        assert values[f"cottage_build_info{{version={release()}}}"] == 1
        assert values["cottage_database_up"] == values["cottage_ledger_up"] == 1
        assert values["cottage_wallet_lamports"] > 10**9
        assert values["cottage_wallet_tokens"] == 0
        assert {f"cottage_jobs{{state={state}}}" for state in JobState} <= values.keys()
        assert values["cottage_auditors{state=away}"] == 1
        assert values["cottage_auditors{state=here}"] == 0
        assert values["cottage_outbox_oldest_seconds{part=money}"] == 0
        assert 0 < values["cottage_disk_free_bytes"] < values["cottage_disk_bytes"]
        assert 0 < values["cottage_artifacts_used_bytes"] < values["cottage_artifacts_limit_bytes"]
        assert "cottage_backup_age_seconds" not in values, "nobody knows of one"
        note_backup(config.data, it.parts.context.clock.time() - 500)
        assert 500 <= (await it.values())["cottage_backup_age_seconds"] < 1000
        assert values["process_resident_memory_bytes"] > 10**7
        assert values["process_cpu_seconds_total"] > 0
        assert 0 < values["process_open_fds"] < values["process_max_fds"]
        assert (await it.asked(key="cottage_nobody"))[0] == 401, "who has no key is told nothing"

        nodes = [Session("a"), Session("b"), Session("c", accepting=False), Session("d"), Session("e")]
        it.parts.nodes.sessions = lambda: nodes  # type: ignore[method-assign, assignment, return-value]
        it.parts.leases.is_busy = lambda node: node == "a"  # type: ignore[method-assign]
        it.parts.nodes.drain("e")
        it.parts.nodes.short_of_stake = lambda node: node == "d"  # type: ignore[method-assign]
        status, text = await it.asked()
        assert status == 200
        values = samples(text)
        states = ("busy", "free", "draining", "paused", "short of stake")
        assert [values[f"cottage_nodes{{state={state}}}"] for state in states] == [1] * 5

        told = {label for line in values for label, _ in labels_of(line)}
        assert told <= {"le", *(name for names in _LABELS.values() for name in names)}
        assert it.account not in text
        assert it.key not in text


class Session:
    """A node that is here."""

    def __init__(self, node: str, accepting: bool = True) -> None:
        self.node, self.accepting, self.operator, self.profile = node, accepting, False, profile(node)


def labels_of(line: str) -> list[tuple[str, str]]:
    inside = line.partition("{")[2].rstrip("}")
    return [(name, value) for name, _, value in (pair.partition("=") for pair in inside.split(",") if pair)]


async def test_rows_for_the_ledger_are_told_by_what_they_are_and_how_long_they_wait(config: Config) -> None:
    async with watched(config) as it:
        now = it.parts.context.clock.time()
        rows = [
            OutboxRecord("a", JOB.id, "settle", {}, now - 5_000),
            OutboxRecord("b", JOB.id, "refund", {}, now - 7_000, state="sent"),
            OutboxRecord("c", JOB.id, "settle", {}, now - 9_000, state="failed"),
            OutboxRecord("d", JOB.id, "promise", {}, now - 9_000, state="confirmed"),
            OutboxRecord("e", JOB.id, "event", {}, now - 60),
        ]
        async with it.parts.context.store.transaction() as tx:
            await tx.insert(JOB)
            for row in rows:
                await tx.insert(row)
        values = await it.values()
        told = {key: value for key, value in values.items() if key.startswith("cottage_outbox_rows")}
        assert {key: value for key, value in told.items() if value} == {
            "cottage_outbox_rows{part=money,state=queued}": 1,
            "cottage_outbox_rows{part=money,state=sent}": 1,
            "cottage_outbox_rows{part=money,state=failed}": 1,
            "cottage_outbox_rows{part=records,state=queued}": 1,
        }
        assert 7_000 <= values["cottage_outbox_oldest_seconds{part=money}"] < 7_600
        assert 60 <= values["cottage_outbox_oldest_seconds{part=records}"] < 660
        assert values[f"cottage_jobs{{state={JOB.state}}}"] == 1


async def test_requests_are_counted_by_the_kind_of_their_route_and_never_by_a_path(config: Config) -> None:
    async with watched(config) as it, ClientSession() as http:
        stranger = "b" * 32
        for path in ("/healthz", "/", "/static/cottage.svg", f"/jobs/{stranger}", f"/{stranger}", "/api/v1/network"):
            async with http.get(it.url + path, headers={"Accept": "text/html"}, allow_redirects=False) as answer:
                await answer.read()
        async with http.get(f"{it.url}/api/v1/uploads/{stranger}") as answer:
            assert answer.status == 401
        async with http.get(f"{it.url}/api/v1/network/stream") as answer:
            await answer.content.readline()
        status, text = await it.asked()
        values = samples(text)
        assert status == 200
        counted = {key: value for key, value in values.items() if key.startswith("cottage_http_requests_total")}
        counted = {key: value for key, value in counted.items() if "stream" not in key}
        assert counted == {
            "cottage_http_requests_total{route=probe,status=200}": 1,
            "cottage_http_requests_total{route=page,status=200}": 1,
            "cottage_http_requests_total{route=page,status=303}": 1,
            "cottage_http_requests_total{route=static,status=200}": 1,
            "cottage_http_requests_total{route=none,status=404}": 1,
            "cottage_http_requests_total{route=api,status=200}": 1,
            "cottage_http_requests_total{route=upload,status=401}": 1,
        }
        assert values["cottage_http_request_seconds_count{route=api}"] == 1
        assert stranger not in text
    ended = [it.parts.context.metrics.value("http_requests_total", ("stream", status)) for status in ("200", "499")]
    assert sum(ended) == 1, "counted once it is over"
    assert 'seconds_count{route="stream"}' not in it.parts.context.metrics.text(), (
        "it lasts as long as its reader likes"
    )


async def test_a_ledger_that_is_away_is_told_and_its_old_figures_are_not(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(config) as it:
        assert (await it.values())["cottage_ledger_up"] == 1
        await it.ledger.cleanup()
        assert (await it.values())["cottage_ledger_up"] == 1, "an endpoint is not asked at every scrape"
        monkeypatch.setattr(vital_signs, "LEDGER_S", 0.0)
        values = await it.values()
        assert values["cottage_ledger_up"] == 0
        assert "cottage_wallet_lamports" not in values
        assert values["cottage_database_up"] == 1


async def test_how_late_the_event_loop_comes_is_measured(monkeypatch: pytest.MonkeyPatch, config: Config) -> None:
    monkeypatch.setattr(vital_signs, "BEAT_S", 0.01)
    context = Context(config, SystemClock(), MemoryStore(), bytes)
    signs = VitalSigns(context, cast(Nodes, None), cast(Leases, None), cast(Sponsor, None), cast(ArtifactStore, None))
    beats = asyncio.create_task(signs.run())
    await asyncio.sleep(0.05)
    time.sleep(0.6)  # noqa: ASYNC251 - Whoever does this makes everybody wait.
    await asyncio.sleep(0.05)
    beats.cancel()
    context.metrics._watched.sources.clear()
    values = samples(context.metrics.text())
    assert values["cottage_loop_late_seconds_count"] - values["cottage_loop_late_seconds_bucket{le=0.5}"] >= 1


# --- the database is away -------------------------------------------------------------------------------------------------


async def opened_before(it: Watched) -> None:
    assert (await it.values())["cottage_database_up"] == 1


async def test_the_database_is_away_and_who_watches_is_told(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(config) as it:
        await opened_before(it)
        with monkeypatch.context() as away:
            away.setattr(SqlStore, "transaction", _away)
            values = await it.values()
            assert values["cottage_database_up"] == 0
            assert values["cottage_ledger_up"] == 1
            assert "cottage_jobs{state=running}" not in values, "what was true before is not told as if it were"
            assert (await it.asked(key=it.key[:-1] + "x"))[0] == 503, "only a key that was seen"
            assert (await it.asked("/api/v1/account/keys"))[0] == 503, "and only for the metrics"
            away.setattr(watchers, "KEPT_S", 0.0)
            assert (await it.asked())[0] == 503, "and not for ever"
        await opened_before(it)

        accounts = AccountService(it.parts.context.store, it.parts.context.clock)
        [key] = await accounts.keys(it.account)
        await accounts.revoke_key(it.account, key.id)
        assert (await it.asked())[0] == 401
        monkeypatch.setattr(SqlStore, "transaction", _away)
        assert (await it.asked())[0] == 503, "one that was revoked is forgotten"


def test_each_counter_is_counted_somewhere() -> None:
    room = Path(figures.__file__).parent
    source = "".join(path.read_text() for path in room.rglob("*.py") if path != Path(figures.__file__))
    patterns = [re.sub(r"\\{.*?\\}", ".*", re.escape(name)) for name in re.findall(r'count\(\s*f?"([^"]+)"', source)]
    never = [name for name in figures._COUNTERS if not any(re.fullmatch(pattern, name) for pattern in patterns)]
    assert not never


def _away(_store: SqlStore) -> None:
    raise StoreAwayError("no connection")


@pytest.mark.one_in(2)
@needs_postgres
@pytest.mark.slow
@pytest.mark.parametrize("fate", ["killed", "frozen"])
async def test_postgresql_is_killed_or_stands_still_and_the_metrics_answer_in_time(
    config: Config, postgres: Postgres, fate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(replace(config, database_url=postgres.migrated_url())) as it:
        await opened_before(it)
        for module in (vital_signs, watchers):
            monkeypatch.setattr(module, "ANSWER_S", 2.0)
        (postgres.kill if fate == "killed" else postgres.freeze)()
        try:
            async with asyncio.timeout(60):
                values = await it.values()
            assert values["cottage_database_up"] == 0
        finally:
            (postgres.start if fate == "killed" else postgres.thaw)()
            for module in (vital_signs, watchers):
                monkeypatch.setattr(module, "ANSWER_S", 120.0)

        async def back() -> bool:
            return (await it.values())["cottage_database_up"] == 1

        await until(back, 60.0)
