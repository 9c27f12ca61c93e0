"""A job from its creation to its settlement, over the real node WebSocket and a real database."""

import re
from collections import Counter

import pytest

from coordinator.client.text import money
from protocol.rest.api import NewJob
from tests.coordinator.conftest import House, nodes, until
from tests.coordinator.fakes import BUDGET, spec

ADDRESS = re.compile(r"[1-9A-HJ-NP-Za-km-z]{40,44}")


async def state_of(house: House, job: str) -> str:
    return (await house.parts.jobs.get(job)).state


async def test_a_job_goes_from_created_to_settled(house: House) -> None:
    async with nodes(house, 5) as made:
        job = await house.parts.jobs.create(NewJob(spec()))
        assert job.state == "created"
        funded = await house.parts.jobs.fund(job.id)
        assert funded.escrow == BUDGET
        await until(lambda: done(house, job.id))

        view = await house.parts.jobs.get(job.id)
        account = house.chain.escrows[job.id]
        assert view.rounds_done == view.rounds_total == 4
        assert view.paid == sum(account.paid.values()) == view.quote.price
        assert view.paid + view.refunded == view.escrow == BUDGET
        assert view.first_validation_loss is not None
        assert view.validation_loss is not None
        assert view.validation_loss < view.first_validation_loss
        audits = await house.parts.jobs.audits(job.id)
        assert view.audits == len(audits)
        drawn = Counter((audit.round, audit.stage, audit.replica) for audit in audits)
        assert len([share for share in drawn if share[0] == 0]) == 4, "nothing is known of newcomers: each is looked at"
        assert max(drawn.values()) <= 2, "a step, and the outer step after it"
        assert view.model is not None
        assert house.peers.violations == []
        assert {audit.state for audit in audits} == {"passed"}
        receipts = await house.parts.jobs.receipts(job.id)
        assert {receipt.kind for receipt in receipts} == {"fund", "accept", "event", "settle", "refund"}
        said = [event.text for event in await house.parts.jobs.events(job.id, 0)]
        assert not [text for text in said if ADDRESS.search(text)], "people read names"
        assert len(set(said)) == len(said), "nothing is said twice"
        assert said[0] == f"the job is submitted; its price is {money(view.quote.price)}"
        assert "4 nodes are chosen: 2 replicas of the model, each in 2 stages" in said
        assert f"the plan is limited by {view.quote.limit}" in said
        assert "the computing speed of stage" in view.quote.limit
        assert not ADDRESS.search(view.quote.limit)
        assert (
            [text for text in said if text.startswith("without a seat: ")]
            == [text for text in said if text.endswith("1 left over: a further replica takes 2 nodes")]
            != []
        )
        assert sum("went back to the submitter" in text for text in said) == 1
        assert sum(text.startswith("round 4 is complete: training loss") for text in said) == 1
        await until(lambda: any(node.earned for node in made))
        await until(lambda: not any(node.tasks for node in made))


@pytest.mark.long
async def test_quicker_nodes_that_join_in_mid_run_take_the_seats_of_slow_ones(house: House) -> None:
    async with nodes(house, 4, flops=1e8) as slow:
        job = await house.parts.jobs.create(NewJob(spec(tokens=4096 * 6)))
        await house.parts.jobs.fund(job.id)
        await until(lambda: begun(house, job.id))
        async with nodes(house, 4, first=11, flops=1e9) as quick:
            await until(lambda: done(house, job.id))
            view = await house.parts.jobs.get(job.id)
            assert view.state == "settled"
            assert view.rounds_done == view.rounds_total == 24
            assert house.peers.violations == []
            events = await house.parts.jobs.events(job.id, 0)
            moved = [event.text for event in events if event.kind == "moved"]
            assert "times as quick with 4 seats changed" in moved[0]
            assert 2 <= len(moved) <= 8, "somebody stays with each stage's state; who has to open a step follows later"
            last = {
                part.node
                for part in await house.parts.jobs.nodes(job.id)
                if part.stage is not None and part.state == "done"
            }
            assert {node.key.address for node in quick} <= last, "nobody moves back"
            shares = {part.node: part.steps for part in await house.parts.jobs.nodes(job.id)}
            assert all(shares.get(node.key.address, 0) > 0 for node in (*slow, *quick))
            assert {audit.state for audit in await house.parts.jobs.audits(job.id)} == {"passed"}, (
                "nobody loses a share"
            )
            assert view.quote.price * 0.8 < view.paid <= view.quote.price, "rounds go on while somebody moves in"


async def begun(house: House, job: str) -> bool:
    return (await house.parts.jobs.get(job)).rounds_done > 0


async def done(house: House, job: str) -> bool:
    return await state_of(house, job) in ("settled", "failed", "cancelled")
