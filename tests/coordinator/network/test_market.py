"""Price, regions, earnings and health, from the books of a real run."""

import msgspec
import pytest

from coordinator.errors import InvalidError
from coordinator.services.views.market_views import INCIDENTS
from coordinator.store.records import EventRecord
from ledger.errors import LedgerError
from protocol.network import NetworkReport, PeerMeasure, RelayMeasure
from protocol.rest.api import NewJob, RelayView
from tests.coordinator.conftest import House, nodes, until
from tests.coordinator.fakes import spec
from tests.coordinator.test_whole_path import done


async def test_what_wallets_earned_is_what_the_job_paid(house: House) -> None:
    market = house.parts.market
    async with nodes(house, 5):
        job = await house.parts.jobs.create(NewJob(spec()))
        await house.parts.jobs.fund(job.id)
        queued = await market.now()
        assert (queued.queued_jobs, queued.queued > 0) == (1, True)
        await until(lambda: done(house, job.id), 60.0)
        view = await house.parts.jobs.get(job.id)
        records = await house.parts.network.nodes()
        earned = [await market.earnings(wallet) for wallet in {node.payout for node in records}]
        assert sum(one.paid for one in earned) == view.paid == sum(house.chain.escrows[job.id].paid.values())
        assert sum(day.amount for one in earned for day in one.days) == view.paid
        assert sum(part.amount for one in earned for part in one.payouts if part.state == "confirmed") == view.paid
        assert {one.waiting + one.unverified + one.rejected for one in earned} == {0}
        for one in earned:
            assert one.machines, "a wallet's machines stand beside its money"
            assert all(one.address in (node.payout, node.node) for node in one.machines)
            assert len(one.days) == 30
        after = await market.now()
        assert (after.queued, after.queued_jobs) == (0, 0)
        assert after.paid_week == view.paid
        assert after.capacity_week > 0
        assert [point.rate for point in after.history] == [view.quote.rate]


async def test_a_stranger_has_earned_nothing_and_nonsense_is_no_address(house: House) -> None:
    stranger = await house.parts.market.earnings("1" * 32)
    assert (stranger.paid, stranger.machines, stranger.payouts) == (0, (), ())
    for text in ("", "x", "1" * 31, "O0Il" * 11, "<script>"):
        with pytest.raises(InvalidError, match="no address"):
            await house.parts.market.earnings(text)


async def test_machines_stand_where_the_relay_is_that_they_reach_soonest(house: House) -> None:
    market, relays = house.parts.market, house.parts.relays
    async with nodes(house, 3) as made:
        near, far, silent = (node.key.address for node in made)
        views = [relay_at("turn:a.example:3478", "Frankfurt"), relay_at("turn:b.example:3478", "Tokyo")]
        relays.views = lambda: views  # type: ignore[method-assign,assignment]
        links = market._links.map
        now = house.parts.context.clock.now()
        legs = tuple(
            RelayMeasure(f"turn:{name}.example:3478", rtt, 0.0, True) for name, rtt in (("a", 0.01), ("b", 0.25))
        )
        links.learn(near, NetworkReport(relays=legs), now)
        links.learn(
            far, NetworkReport(relays=tuple(msgspec.structs.replace(leg, rtt_s=0.3 - leg.rtt_s) for leg in legs)), now
        )
        found = {region.name: region.nodes for region in await market.regions()}
        assert found == {"Frankfurt": 1, "Tokyo": 1, "": 1}
        assert {region.name for region in await market.regions({near, silent})} == {"Frankfurt", ""}
        measure = PeerMeasure(far, "host/relay", 0.08, 0.01, 1e6, 1e6)
        links.learn(near, NetworkReport(peers=(measure,)), now)
        links.learn(far, NetworkReport(peers=(msgspec.structs.replace(measure, peer=near, rtt_s=0.09),)), now)
        (link,) = await market.links({near, far})
        assert (link.rtt_ms, link.kind) == (pytest.approx(90.0), "relay"), "the worse end counts"
        assert await market.links({near, silent}) == []


async def test_incidents_are_counted_by_day_and_say_nothing_of_the_job(house: House) -> None:
    now = house.parts.context.clock.time()
    async with house.parts.context.store.transaction() as tx:
        for kind, age in (("lost", 0), ("lost", 0), ("ledger", 86_400 * 2), ("round", 0), ("void", 86_400 * 40)):
            await tx.insert(EventRecord("0" * 32, now - age, kind, "node secret-name has left"))
    health = await house.parts.market.health()
    assert [day.counts for day in health.days if day.counts] == [{"lost": 2}, {"ledger": 1}]
    assert len(health.days) == 14
    assert b"secret-name" not in msgspec.json.encode(health)
    assert {kind for day in health.days for kind in day.counts} <= set(INCIDENTS)
    states = {check.name: check.state for check in health.checks}
    assert states["Coordinator and database"] == states["Ledger"] == "good"
    assert states["Nodes"] == "warn", "nobody is here"


async def test_a_ledger_that_does_not_answer_is_no_good_news(house: House, monkeypatch: pytest.MonkeyPatch) -> None:

    async def silent(_owner: str) -> int:
        raise LedgerError("connection refused")

    monkeypatch.setattr(house.chain, "balance", silent)
    states = {check.name: (check.state, check.text) for check in (await house.parts.market.health()).checks}
    assert states["Ledger"][0] == "bad"
    assert "payouts wait" in states["Ledger"][1]


def relay_at(url: str, region: str) -> RelayView:
    return RelayView(None, (url,), region, "up", *(None,) * 8)
