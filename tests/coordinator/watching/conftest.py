"""A coordinator with accounts, over the embedded ledger, whose metrics are asked for as Prometheus does."""

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from coordinator.app import build
from coordinator.assembly import CoordinatorParts
from coordinator.config import Config
from coordinator.domain.account import Principal, Role, Scope
from coordinator.metrics import Metrics
from coordinator.services.accounts.accounts import AccountService
from coordinator.services.views import vital_signs
from coordinator.web.monitoring import watchers
from ledger.local.rpc import Rpc
from ledger.local.server import build_app
from tests.ledger.world import World

ROOM = Path(__file__).parents[3] / "installer" / "coordinator"
RUNBOOK = Path(__file__).parents[3] / "docs" / "how-to" / "runbook.md"
ALERTS = ROOM / "alerts.yaml"
_NOT_OURS = frozenset({"up"})  # Prometheus' own, of every scrape.
_NAME = re.compile(r"\b(?:cottage|process)_[a-z0-9_]+")


@dataclass
class Watched:
    """A running coordinator, its ledger's server, and the key of who watches it."""

    parts: CoordinatorParts
    url: str
    ledger: web.AppRunner
    key: str
    account: str

    async def asked(self, path: str = "/metrics", key: str | None = None) -> tuple[int, str]:
        """Status and text."""
        headers = {"Authorization": f"Bearer {key or self.key}"}
        async with aiohttp.ClientSession(headers=headers) as http, http.get(f"{self.url}{path}") as answer:
            return answer.status, await answer.text()

    async def values(self) -> dict[str, float]:
        """What is told now: each sample as it is written, without its value -> the value."""
        status, text = await self.asked()
        assert status == 200, text
        return samples(text)


def samples(text: str) -> dict[str, float]:
    """Read by a parser that knows the format and nothing of us."""
    return {
        _written(sample.name, sample.labels): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _written(name: str, labels: Mapping[str, str]) -> str:
    return name + ("{" + ",".join(f"{key}={labels[key]}" for key in sorted(labels)) + "}" if labels else "")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that others keep busy everything takes its time."""
    monkeypatch.setattr(vital_signs, "ANSWER_S", 120.0)
    monkeypatch.setattr(watchers, "ANSWER_S", 120.0)


@asynccontextmanager
async def watched(config: Config) -> AsyncIterator[Watched]:
    world = World()
    ledger = web.AppRunner(build_app(Rpc(world.chain, world.genesis), lambda: None), shutdown_timeout=0.1)
    await ledger.setup()
    await web.TCPSite(ledger, "127.0.0.1", 0).start()
    host, port = ledger.addresses[0][:2]
    try:
        async with build(replace(config, ledger_url=f"http://{host}:{port}")) as (app, parts):
            accounts = AccountService(parts.context.store, parts.context.clock)
            account = await accounts.create("ada", Role.OPERATOR)
            who = Principal(account.id, frozenset(Scope))
            _, key = await accounts.create_key(who, "prometheus", frozenset({Scope.OPERATE}))
            server = TestServer(app)
            await server.start_server()
            try:
                yield Watched(parts, str(server.make_url("")).rstrip("/"), ledger, key, account.id)
            finally:
                await server.close()
    finally:
        await ledger.cleanup()


def exposed() -> dict[str, Metric]:
    """Every family of a coordinator that has just begun, by the names of its series."""
    found: dict[str, Metric] = {}
    for family in text_string_to_metric_families(Metrics().text()):
        ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        found |= {f"{family.name}{end}": family for end in ends}
    return found


def rules() -> list[dict[str, Any]]:
    """Every alert."""
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def named_in(expression: str) -> Iterator[str]:
    """Metrics that an expression of PromQL names, without those of Prometheus itself."""
    yield from (name for name in _NAME.findall(expression) if name not in _NOT_OURS)
