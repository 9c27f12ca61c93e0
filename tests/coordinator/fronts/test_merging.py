"""What several cells answer is one answer: nodes are added up, each is shown where it is, and what is stored is counted once."""

import asyncio
from typing import Any

import aiohttp
import msgspec
import pytest

from common.untrusted_text import untrusted
from coordinator.config import Config
from coordinator.services.views.market_views import MarketService
from coordinator.web.fronts import cell_lines, line, merging
from protocol.rest.api import NetworkView, NodeView, RelayView
from protocol.rest.market import Day, Earned, Earnings, Health, HealthCheck, Link, Market, Payout, Region
from tests.coordinator.conftest import House, until
from tests.coordinator.fakes import COORDINATOR
from tests.coordinator.fronts.carriers import Carrier, doors_of, front
from tests.support.databases import needs_postgres

CELLS = 3
NAMES = [letter * 40 for letter in "abcd"]
NETWORK = NetworkView(5, 2, 1_000, 1e12, 7, 30, 900, 2_000, COORDINATOR, "http://ledger.test", True, relays_up=4)
NOBODY = untrusted("no node is connected: jobs wait until some are")
MARKET = Market(20, 10, "why", 5e12, 4e12, 900, 3, (), 70, 8e17)


def node(name: str, since: float = 1.0, **fields: Any) -> NodeView:
    quiet = {"online": False, "busy": False, "banned": False, "stake": 0, "earned": 0, "since": since}
    told = {"node": name, "payout": name, "name": "n", "device": "d", "kind": "cpu", "memory_mb": 1, "flops": 1.0}
    return NodeView(**{**told, "sandbox": "docker", **quiet, **fields})


def check(name: str, state: Any = "good", text: str = "answers") -> HealthCheck:
    return HealthCheck(name, state, text)


def health(*checks: HealthCheck, started: float = 1.0) -> Health:
    return Health(started, checks, {"Cottage": "1"}, (Day(0, {"lost": 2}),))


def test_what_one_cell_answers_stays_as_it_is() -> None:
    for merge, told in (
        (merging.network, NETWORK),
        (merging.nodes, [node(NAMES[1]), node(NAMES[0], online=True)]),
        (merging.regions, [Region("b", 1, 1, 1, 1.0), Region("a", 1, 1, 1, 9.0)]),
        (merging.links, [Link(NAMES[0], NAMES[1], 1.0, 0.0, "direct")]),
        (merging.market, MARKET),
    ):
        assert merge([told]) is told  # type: ignore[operator]
    alone = health(check("Nodes"))
    assert merging.health([(0, alone)], 1) is alone


def test_nodes_of_all_cells_are_added_up_and_stored_sums_counted_once() -> None:
    second = msgspec.structs.replace(NETWORK, nodes_online=1, nodes_busy=1, memory_mb=5, flops=2e12, relays_up=0)
    empty = msgspec.structs.replace(
        NETWORK, nodes_online=0, nodes_busy=0, memory_mb=0, flops=0.0, relays_up=0, notice=NOBODY
    )
    merged = merging.network([empty, second, NETWORK])
    assert (merged.nodes_online, merged.nodes_busy, merged.memory_mb, merged.flops) == (6, 3, 1_005, 3e12)
    assert (merged.jobs_running, merged.jobs_done, merged.paid_total) == (7, 30, 900)
    assert merged.notice == "", "some are connected"
    assert merging.network([empty, empty]).notice == NOBODY
    assert merging.network([NETWORK, second]).relays_up == 4


def test_a_node_is_shown_where_it_is() -> None:
    first = [node(NAMES[0], online=True), node(NAMES[1], 2.0), node(NAMES[2], 3.0), node(NAMES[3], 0.5)]
    second = [node(NAMES[1], 2.0, online=True, busy=True), node(NAMES[0]), node(NAMES[2], 3.0, online=True)]
    merged = merging.nodes([first, second])
    assert [(one.node[0], one.online, one.busy) for one in merged] == [
        ("a", True, False),
        ("b", True, True),
        ("c", True, False),
        ("d", False, False),
    ]


def test_regions_are_merged_by_place_and_links_are_shown_once() -> None:
    north = [Region("north", 2, 3, 1, 5.0), Region("", 0, 1, 0, 1.0)]
    merged = merging.regions([north, [Region("south", 1, 1, 1, 9.0), Region("north", 1, 2, 2, 6.0)]])
    assert merged == [Region("north", 2, 5, 3, 11.0), Region("south", 1, 1, 1, 9.0), Region("", 0, 1, 0, 1.0)]
    one, worse = Link(NAMES[0], NAMES[1], 5.0, 0.0, "direct"), Link(NAMES[0], NAMES[1], 9.0, 0.1, "relay")
    far = Link(NAMES[2], NAMES[3], 1.0, 0.0, "direct")
    assert merging.links([[one], [worse, far]]) == merging.links([[worse, far], [one]]) == [worse, far]


def test_supply_of_all_cells_is_one_market() -> None:
    second = msgspec.structs.replace(
        MARKET, rate=99, offered=1e12, willing=1e12, queued=1, capacity_week=9e17, pay_low=3, pay_high=5
    )
    merged = merging.market([MARKET, second])
    assert (merged.rate, merged.queued, merged.queued_jobs, merged.paid_week) == (20, 900, 3, 70)
    assert (merged.offered, merged.willing, merged.capacity_week) == (6e12, 5e12, 9e17)
    assert (merged.pay_low, merged.pay_high) == (3, 5)


def test_earnings_are_stored_and_machines_are_where_they_are() -> None:
    paid = Payout("job", 1.0, 5, "confirmed", "signature")
    first = Earnings(NAMES[0], (node(NAMES[0]), node(NAMES[1])), 5, 6, 7, 8, (Earned(0, 5),), (paid,))
    second = msgspec.structs.replace(first, machines=(node(NAMES[1]), node(NAMES[0], online=True)), paid=1)
    merged = merging.earnings([first, second])
    assert (merged.paid, merged.payouts) == (5, (paid,))
    assert [(one.node, one.online) for one in merged.machines] == [(NAMES[0], True), (NAMES[1], False)]


def test_health_is_that_of_the_worst_cell() -> None:
    first = health(check("Ledger"), check("Nodes", "warn", "none is online"), check("Auditors"), check("Payments"))
    second = health(
        check("Ledger"), check("Nodes", "good", "4 online"), check("Auditors", "bad", "none"), check("Payments", "warn")
    )
    merged = merging.health([(0, first), (2, second)], CELLS)
    assert {one.name: (one.state, one.text) for one in merged.checks} == {
        "Cells": ("bad", "2 of 3 answer now; jobs wait in those that do not: 2"),
        "Ledger": ("good", "answers"),
        "Nodes": ("good", "cell 1: none is online; cell 3: 4 online"),
        "Auditors": ("bad", "cell 1: answers; cell 3: none"),
        "Payments": ("good", "answers"),
    }
    assert merged.days == first.days
    whole = merging.health([(cell, first) for cell in range(CELLS)], CELLS)
    assert whole.checks[0] == HealthCheck("Cells", "good", "all 3 answer")
    said = {one.name: one.text for one in whole.checks}
    assert said["Nodes"].count("none is online") == CELLS
    assert (said["Auditors"], said["Ledger"]) == ("in each cell: answers", "answers"), "each has auditors of its own"


async def test_checks_that_each_cell_makes_are_named_as_here(house: House) -> None:
    assert isinstance(house.parts.market, MarketService)
    names = {one.name for one in (await house.parts.market.health()).checks}
    assert names > merging._OF_EACH
    assert merging.CELLS not in names


async def get(url: str, path: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as http, http.get(url + path) as said:
        return said.status, await said.json()


@needs_postgres
async def test_a_page_of_all_cells_lacks_what_one_does_not_say(
    shared_config: Config, carriers: list[Carrier], monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = RelayView(None, ("turn:r.test",), untrusted(""), "up", *(None,) * 8)  # type: ignore[arg-type]
    for one in carriers:
        one.knows = {
            "network": NETWORK,
            "nodes": [node(NAMES[one.number], online=True)],
            "market": MARKET,
            "regions": [Region("north", 1, 1, 0, 1.0)],
            "health": health(check("Nodes", text=f"{one.number} online")),
            "links": [],
        }
    carriers[0].knows["relays"], carriers[1].knows["relays"] = [relay], []
    async with front(shared_config, doors_of(carriers)) as url:
        assert (await get(url, "/api/v1/network"))[1]["nodes_online"] == 15
        assert {one["node"] for one in (await get(url, "/api/v1/nodes"))[1]} == set(NAMES[:3])
        assert (await get(url, "/api/v1/market"))[1]["offered"] == 1.5e13
        assert len((await get(url, "/api/v1/relays"))[1]) == 1, "the first cell's"

        carriers[2].knows = {}  # It answers that it cannot, as while its database is away.
        await until(lambda: counts(url, 10))
        carriers[2].knows = {"network": NETWORK}
        await until(lambda: counts(url, 15))
        door, carriers[1].door = carriers[1].door, ""
        await until(lambda: counts(url, 10))
        async with aiohttp.ClientSession() as http, http.get(f"{url}/status") as page:
            assert page.status == 200
            assert "1 of 3 answer now; jobs wait in those that do not: 2, 3" in await page.text()
        del carriers[0].knows["relays"]
        carriers[1].door = door
        await until(lambda: counts(url, 15))
        await until(lambda: no_relays(url))  # So says the second one, where the first says nothing.

        monkeypatch.setattr(cell_lines, "PATIENCE_S", 0.2)
        carriers[2].slow = 5.0
        await until(lambda: counts(url, 10))


@needs_postgres
async def test_a_front_is_ready_while_any_cell_is_reached(
    shared_config: Config, carriers: list[Carrier], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "WAIT_S", 0.2)
    async with front(shared_config, doors_of(carriers)) as url:
        assert await get(url, "/readyz") == (200, {"status": "ready", "cells": "3 of 3"})
        for closed, cells in ((2, "2 of 3"), (0, "1 of 3")):
            carriers[closed].door = ""
            await until(lambda cells=cells: says(url, 200, cells))  # type: ignore[misc]
        await asyncio.sleep(0.5)
        assert (await get(url, "/readyz"))[0] == 200, "for as long as it lasts"
        carriers[1].door = ""
        await until(lambda: says(url, 503, None))


async def says(url: str, status: int, cells: str | None) -> bool:
    found, said = await get(url, "/readyz")
    return (found, said.get("cells")) == (status, cells)


async def counts(url: str, nodes: int) -> bool:
    return bool((await get(url, "/api/v1/network"))[1]["nodes_online"] == nodes)


async def no_relays(url: str) -> bool:
    return await get(url, "/api/v1/relays") == (200, [])
