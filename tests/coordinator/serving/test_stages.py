"""Replicas of several nodes on virtual time: they are seated, joined and asked, lose seats and take them again."""

from pathlib import Path

import msgspec
import pytest

from coordinator.client.deployments import memory_words
from coordinator.client.text import seat_place
from coordinator.config import Config
from coordinator.domain import pricing
from coordinator.domain import serving as rules
from coordinator.domain.job import JobAction, JobState
from coordinator.domain.placement import Candidate
from coordinator.errors import ConflictError, InvalidError
from coordinator.services.jobs.ports import ListWindow
from coordinator.services.network.market_price import MarketRate
from coordinator.services.operation.ports import NodeQuery
from coordinator.services.serving import offers
from coordinator.services.serving.seating import HALF_S
from coordinator.store.ports import col
from coordinator.store.records import CommitRecord, EventRecord, RoundRecord
from protocol.job.job import JobSpec, ModelSpec, ServedWeights, ServeSpec
from protocol.models.model import inspect_config, resolve
from protocol.models.weights import WEIGHT_INDEX
from protocol.node import Command
from protocol.rest.admin import AdminLease
from protocol.rest.api import NewJob, Quote
from protocol.serving import MODEL_ARCHIVE, SMALL_ARCHIVE, GenerateCommand
from protocol.task import ExpectPeers
from tests.coordinator.fakes import BUDGET, spec
from tests.coordinator.serving.deployed import HALF_MB, MB, Deployed, Home, vector_of
from tests.coordinator.serving.test_deployments import count, shares


async def halves(bench: Deployed, *numbers: int) -> list[Home]:
    return [await bench.come(number, memory_mb=HALF_MB) for number in numbers]


def by_stage(homes: list[Home], replica: int = 0) -> list[Home]:
    """Those that hold a replica."""
    held = [home for home in homes if home.lease is not None and home.lease.replica == replica]
    return sorted(held, key=lambda home: home.lease.stage if home.lease else 0)


async def dear(bench: Deployed, job: str) -> None:
    """A price at which each share is more than a few units."""
    async with bench.desk(job) as work:
        work.change(quote=msgspec.structs.replace(work.job.quote, rate=10**9))


async def notes(bench: Deployed, job: str) -> list[str]:
    async with bench.store.transaction() as tx:
        return [str(event.text) for event in await tx.find(EventRecord, col(EventRecord.job).equals(job))]


async def test_a_model_that_no_node_holds_is_cut_for_two_that_are_joined_asked_and_paid_by_their_layers() -> None:
    bench = Deployed()
    homes = await halves(bench, 1, 2)
    job = await bench.deploy()
    await dear(bench, job)
    stored = await bench.stored(job)
    assert stored.state is JobState.RUNNING
    first, last = by_stage(homes)
    assert [len(home.epochs) for home in homes] == [1, 1]
    assert first.plan == last.plan
    assert first.plan is not None
    assert [(member.stage, member.node) for member in first.plan.members] == [(0, first.node), (1, last.node)]
    assert (first.plan.layers[0].last, first.plan.layers[1].last) == (2, 4)
    for home in (first, last):
        assert home.lease is not None
        assert home.lease.files.keys() == {"config.json", SMALL_ARCHIVE, WEIGHT_INDEX}, "no whole model is fetched"
        for digest in stored.files.values():  # Ranges of the whole one among them.
            await bench.parts.doors.check_read(home.node, digest)
    last.late = 2.0
    async with bench.checking():
        asked = bench.ask(stored)
        await bench.pass_time(2.0)
        await asked.task
        assert asked.tokens == asked.right
        assert asked.end is not None
        assert asked.end.nodes == (first.session.profile.name, last.session.profile.name)
        assert not [command for command in last.asked if isinstance(command, GenerateCommand)], "the first stage leads"
        await count(bench, job)
    checked = bench.checker.checked[0]
    assert [(one.layer, one.first, len(one.sent), len(one.got)) for one in checked.boundaries] == [(2, 0, 64, 64)]
    found = await shares(bench, job)
    of_stage = {share.stage: share.operations for share in found}
    assert {share.node for share in found} == {first.node, last.node}
    assert {share.state for share in found} == {"verified"}
    assert {(share.tokens, share.root) for share in found} == {(8, found[0].root)}
    async with bench.store.transaction() as tx:
        [period] = await tx.find(RoundRecord, col(RoundRecord.job).equals(job))
    assert sum(share.amount for share in found) == period.pot
    shape = inspect_config(stored.config)
    parts = [shape.stage_parameters(0, 2, True, False), shape.stage_parameters(2, 4, False, True)]
    assert sum(parts) == stored.quote.parameters
    assert of_stage[0] * parts[1] == of_stage[1] * parts[0]
    split = pricing.shares(period.pot, {"0:0": parts[0], "0:1": parts[1]})
    assert {f"0:{share.stage}": share.amount for share in found} == split
    assert min(split.values()) > 1


async def test_whoever_runs_the_coordinator_reads_places_as_the_pages_of_their_jobs_count_them() -> None:
    bench = Deployed()
    homes = await halves(bench, 1, 2)
    await bench.deploy()
    trains = await bench.enter(3, memory_mb=MB)
    job = await bench.job(spec(1, 1), nodes=0)
    await bench.while_time_moves(bench.fund(job))
    await bench.turn(job)

    def words(seat: AdminLease) -> str:
        return seat_place(seat.stage or 0, seat.replica or 0, seat.serves)

    listed = (await bench.parts.operation.nodes(NodeQuery(), ListWindow(None, 10))).found
    told = {one.node: [words(seat) for seat in one.leases] for one in listed}
    first, last = by_stage(homes)
    assert told == {
        first.node: ["stage 1 of replica 1"],
        last.node: ["stage 2 of replica 1"],
        trains.node: ["stage 0 of replica 0"],
    }
    for node, expected in told.items():
        assert [words(seat) for seat in (await bench.parts.operation.node(node)).leases] == expected


async def test_a_seat_that_is_lost_in_mid_answer_is_taken_again_and_the_answer_goes_on_there() -> None:
    bench = Deployed()
    homes = await halves(bench, 1, 2, 3)
    job = await bench.deploy()
    first, last = by_stage(homes)
    [spare] = [home for home in homes if home.lease is None]
    asked = bench.ask(await bench.stored(job), tokens=20)
    await bench.pass_time(0.75)
    said = len(asked.tokens)
    assert 0 < said < 20
    await last.vanish()
    assert last.lease is not None
    async with bench.desk(job) as work:
        work.end(last.lease.lease, "expired", "it is gone")
    await bench.turn(job)
    assert spare.lease is not None
    assert (spare.lease.stage, spare.lease.replica) == (1, 0)
    assert first.epochs[-1] == spare.epochs[-1] > last.epochs[-1]
    told = await notes(bench, job)
    lost = told.index("no nodes together hold the whole model any more: the deployment waits for others")
    assert told.index(f"node {spare.node} takes stage 2 of 2 of replica 1") > lost
    await bench.pass_time(3.0)
    await asked.task
    assert asked.tokens == asked.right
    assert "".join(report.text for report in asked.texts) == "".join(f"{token} " for token in asked.right)
    await count(bench, job)
    found = await shares(bench, job)
    assert {share.node for share in found} == {first.node, last.node, spare.node}
    places = [(share.round, share.stage, share.replica) for share in found]
    assert len(set(places)) == len(places) == 4, "a period has one share for each seat"
    assert [sum(share.tokens for share in found if share.stage == stage) for stage in (0, 1)] == [20, 20]


async def test_with_another_replica_the_answer_goes_on_there_at_once_and_a_pair_is_made_of_two_halves() -> None:
    bench = Deployed()
    homes = await halves(bench, 1, 2, 3, 4)
    job = await bench.deploy(replicas=2)
    assert (await bench.parts.jobs.get(job)).serving.ready == 2
    asked = bench.ask(await bench.stored(job), tokens=20)
    await bench.pass_time(0.75)
    busy = next(home for home in homes if home.answering)
    assert busy.lease is not None
    number = busy.lease.replica
    other = by_stage(homes, 1 - (number or 0))
    partner = by_stage(homes, number or 0)[1]
    await partner.vanish()
    await bench.pass_time(2.0)
    await asked.task
    assert asked.tokens == asked.right
    assert not busy.answering, "nobody computes what nobody hears"
    assert partner.lease is not None
    async with bench.desk(job) as work:
        work.end(partner.lease.lease, "expired", "it is gone")
        work.end(other[0].lease.lease if other[0].lease else "", "failed", "so is this one")
    await bench.turn(job, 5)
    view = await bench.parts.jobs.get(job)
    assert view.serving is not None
    assert view.serving.ready == 1, "two halves that are left are one replica"


async def test_who_is_left_of_a_replica_is_free_again_when_nobody_comes_for_its_other_seat() -> None:
    bench = Deployed()
    homes = await halves(bench, 1, 2)
    job = await bench.deploy()
    first, last = by_stage(homes)
    assert last.lease is not None
    await last.vanish()
    async with bench.desk(job) as work:
        work.end(last.lease.lease, "expired", "it is gone")
    await bench.turn(job)
    assert first.lease is not None, "somebody may come"
    assert (await bench.stored(job)).state is JobState.PLANNED
    await bench.pass_time(HALF_S + 10.0, 5.0)
    await bench.turn(job)
    assert first.lease is None
    assert "replica 1 is let go: it is not whole, and no free node completes it" in await notes(bench, job)
    await halves(bench, 3)
    await bench.turn(job)
    assert first.lease is not None
    assert (await bench.stored(job)).state is JobState.RUNNING


async def test_who_is_left_alone_is_told_that_it_waits_until_another_comes() -> None:
    bench = Deployed()
    homes = await halves(bench, 1, 2)
    job = await bench.deploy()
    assert not any(home.waits for home in homes)
    leaver, left = by_stage(homes)
    assert leaver.lease is not None
    await leaver.vanish()
    async with bench.desk(job) as work:
        work.end(leaver.lease.lease, "expired", "it is gone")
    await bench.hear()
    assert left.waits, "its partner is gone"
    [heir] = await halves(bench, 3)
    await bench.turn(job)
    assert heir.lease is not None
    assert not left.waits
    assert not heir.waits
    assert len(left.epochs) == 2


async def test_it_waits_for_enough_nodes_says_so_and_keeps_its_cut() -> None:
    bench = Deployed()
    homes = await halves(bench, 1, 2)
    job = await bench.deploy(stages=2)
    async with bench.desk(job) as work:
        await bench.parts.runs.ask(work, JobAction.PAUSE)
    await bench.turn(job)
    assert all(home.lease is None for home in homes)
    bench.parts.conversation.left(homes[1].session)
    async with bench.desk(job) as work:
        await bench.parts.runs.ask(work, JobAction.RESUME)
    await bench.turn(job)
    stored = await bench.stored(job)
    assert (stored.state, homes[0].lease) == (JobState.FUNDED, None), "half a replica earns nothing"
    assert any("no 2 free nodes hold the model together" in text for text in await notes(bench, job))
    whole = await bench.come(3)
    await bench.turn(job)
    assert (await bench.stored(job)).state is JobState.RUNNING
    assert whole.lease is not None
    assert len(whole.lease.plan.layers) == 2, "the cut stays, though one node would hold it now"
    assert max(home.epochs[-1] for home in homes[:1]) > 1, "each time has an epoch of its own"


async def test_one_node_that_holds_it_is_preferred_and_three_are_taken_where_three_are_asked_for() -> None:
    bench = Deployed()
    await halves(bench, 1, 2)
    whole = await bench.come(3)
    await bench.deploy()
    assert whole.lease is not None
    assert len(whole.lease.plan.layers) == 1
    assert not whole.epochs, "nobody has to be joined"
    bench = Deployed()
    homes = await halves(bench, 1, 2, 3)
    await bench.deploy(stages=3)
    assert [home.lease.stage for home in by_stage(homes) if home.lease] == [0, 1, 2]
    trained = await bench.trained()
    many = JobSpec("moo", ModelSpec(from_job=trained), BUDGET, serve=ServeSpec(stages=5))
    with pytest.raises(InvalidError, match=r"serve\.stages 5 is more than the 4 layers"):
        await bench.parts.jobs.create(NewJob(many))


async def test_a_price_of_several_nodes_is_told_as_theirs() -> None:
    bench = Deployed()
    await halves(bench, 1, 2, 3)
    trained = await bench.trained()
    spec = JobSpec("moo", ModelSpec(from_job=trained), BUDGET, serve=ServeSpec(stages=3), deadline_hours=1.0)
    change = msgspec.structs.replace
    quote = await bench.parts.jobs.quote(spec)
    assert any("3 nodes that hold the model together, ready and asked nothing, cost" in one for one in quote.reasons)
    one = await bench.parts.jobs.quote(change(spec, serve=ServeSpec(stages=1)))
    assert any("a node that is ready and asked nothing costs" in words for words in one.reasons)
    (many,) = (await bench.parts.jobs.quote(change(spec, serve=ServeSpec(stages=4)))).problems
    assert many == "4 nodes are needed, 3 are here"


async def test_a_price_names_how_the_model_is_held_and_counts_its_bytes_so() -> None:
    config = resolve(ModelSpec("qwen2.5-0.5b"), 49_152)
    everybody = [Candidate(name, f"owner of {name}", 2_700, 1e9, "cpu") for name in ("a", "b")]

    def quoted(weights: ServedWeights) -> Quote:
        serve = ServeSpec(weights=weights)
        spec = JobSpec("moo", ModelSpec(from_job="0" * 32), BUDGET, serve=serve, deadline_hours=1.0)
        limits = Config(Path(), "http://ledger.test")
        return offers.quote(spec, serve, config, everybody, limits, MarketRate(100, ""))

    wide, narrow = quoted("float32"), quoted("nf4")
    assert (wide.stages, narrow.stages, wide.problems, narrow.problems) == (2, 1, (), ())
    assert narrow.price_low == wide.price_low, "operations are paid, and not bytes"
    assert "the model in float32, its cache" in memory_words(wide)
    assert "the model with its matrices in 4 bits (nf4), its cache" in memory_words(narrow)


async def test_answers_are_drawn_again_with_weights_as_nodes_hold_them() -> None:
    bench = Deployed()
    await halves(bench, 1, 2)
    job = await bench.deploy(weights="int8")
    async with bench.checking():
        asked = bench.ask(await bench.stored(job))
        await bench.pass_time(8.0)
        await asked.task
    assert [one.weights for one in bench.checker.held] == ["int8"]


@pytest.mark.parametrize(
    ("stages", "replicas", "hours", "words"),
    [
        (1, 1, 1.0, "what a node ready for 1 hour costs"),
        (1, 2, 8.0, "what 2 nodes ready for 8 hours cost:"),
        (3, 1, 8.0, "what 3 nodes ready for 8 hours cost:"),
        (3, 2, 1.5, "what 2 times 3 nodes ready for 1.5 hours cost:"),
    ],
)
def test_a_budget_that_is_too_small_is_told_with_all_that_it_is_for(
    stages: int, replicas: int, hours: float, words: str
) -> None:
    serve = ServeSpec(replicas, stages=stages)
    spec = JobSpec("moo", ModelSpec(from_job="0" * 32), 1, serve=serve, deadline_hours=hours)
    assert words in offers._short(spec, serve, 9, 9, stages)


async def test_replicas_are_counted_from_one_and_a_deployment_is_nothing_to_start_from() -> None:
    bench = Deployed()
    await halves(bench, 1, 2)
    job = await bench.deploy()
    told = [one for one in await notes(bench, job) if "takes stage" in one]
    assert sorted(one.partition("takes ")[2] for one in told) == [
        "stage 1 of 2 of replica 1",
        "stage 2 of 2 of replica 1",
    ]
    again = JobSpec("moo", ModelSpec(from_job=job), BUDGET, serve=ServeSpec())
    with pytest.raises(ConflictError, match=f"job {job} serves the model of another job and makes none: name that one"):
        await bench.parts.jobs.create(NewJob(again))


@pytest.mark.parametrize("named", [(0,), (1,), (0, 1), ()])
async def test_a_wrong_answer_costs_whom_its_check_names(named: tuple[int, ...]) -> None:
    bench = Deployed()
    homes = await halves(bench, 1, 2, 3, 4)
    bench.checker.names = named
    job = await bench.deploy()
    await dear(bench, job)
    first, last = by_stage(homes)
    async with bench.checking():
        right = bench.ask(await bench.stored(job), seed=1)
        await bench.pass_time(2.0)
        await right.task
        first.lie = lambda _place, token: token + 1
        wrong = bench.ask(await bench.stored(job), seed=2)
        await bench.pass_time(4.0)
        await wrong.task
        await bench.pass_time(6.0)
        await bench.turn(job)
        first.lie = lambda _place, token: token
        await count(bench, job)
    paid = {share.node for share in await shares(bench, job) if share.amount}
    async with bench.desk(job) as work:
        held = {lease.node for lease in work.leases.values()}
        apart = work.run.apart if work.run is not None else ()
        assert len(work.leases) == 2, "the other seats get new partners"
    async with bench.store.transaction() as tx:
        lost = [share.node for share in await tx.find(CommitRecord, col(CommitRecord.state).equals("rejected"))]
    assert not lost, "nothing was counted yet when it was found"
    if named == (0,):
        assert first.node not in held | paid
        assert last.node in held & paid, "the other one keeps its seat and its pay"
        assert apart == ()
    elif named:
        assert not {first.node, last.node} <= held
        assert not {first.node, last.node} & paid
        assert [set(pair) for pair in apart] == [{first.node, last.node}]
    else:
        assert {first.node, last.node} <= paid, "nobody tells who it was"
        assert not {first.node, last.node} & held


async def test_who_does_not_say_what_crossed_loses_its_seat_and_no_standing() -> None:
    bench = Deployed()
    homes = await halves(bench, 1, 2, 3)
    bench.checker.names = (1,)  # As the check names who says nothing.
    job = await bench.deploy()
    first, last = by_stage(homes)
    last.sketch = None
    first.lie = lambda _place, token: token + 1
    async with bench.checking():
        asked = bench.ask(await bench.stored(job))
        await bench.pass_time(2.0 + 2 * rules.SKETCH_S)
        await asked.task
        await bench.turn(job)
    assert [len(one.got) for one in bench.checker.checked[0].boundaries] == [0]
    assert last.lease is None
    assert first.lease is not None
    assert "has not said what crossed" in " ".join(await notes(bench, job))


async def test_nodes_of_two_replicas_fetch_their_weights_from_the_coordinator_and_expect_no_peers() -> None:
    bench = Deployed()
    homes = await halves(bench, 1, 2, 3, 4)
    job = await bench.deploy(replicas=2)
    assert sorted((home.lease.stage, home.lease.replica) for home in homes if home.lease) == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    assert WEIGHT_INDEX in (await bench.stored(job)).files
    told = [message.body for home in homes for message in bench.sent[home.node] if isinstance(message, Command)]
    assert told
    assert not [body for body in told if isinstance(body, ExpectPeers)]


@pytest.mark.parametrize("stages", [1, None])
async def test_a_node_that_holds_a_whole_model_is_given_its_archive_alone(stages: int | None) -> None:
    bench = Deployed()
    home = await bench.come(1)
    job = await bench.deploy(stages=stages)
    assert home.lease is not None
    assert home.lease.files.keys() == {"config.json", MODEL_ARCHIVE}
    may_be_cut = {SMALL_ARCHIVE, WEIGHT_INDEX} if stages is None else set()
    assert (await bench.stored(job)).files.keys() == home.lease.files.keys() | may_be_cut


async def test_stages_of_a_deployment_from_before_there_were_indexes_are_given_the_whole_model() -> None:
    bench = Deployed()
    homes = await halves(bench, 1, 2, 3)
    job = await bench.deploy()
    _, last = by_stage(homes)
    [spare] = [home for home in homes if home.lease is None]
    async with bench.desk(job) as work:
        files = {name: digest for name, digest in work.job.files.items() if name in ("config.json", MODEL_ARCHIVE)}
        work.change(files=files)
    await last.vanish()
    assert last.lease is not None
    async with bench.desk(job) as work:
        work.end(last.lease.lease, "expired", "it is gone")
    await bench.turn(job)
    assert spare.lease is not None
    assert (spare.lease.stage, spare.lease.files) == (1, files)


async def test_what_was_joined_stays_joined_when_the_coordinator_begins_anew() -> None:
    bench = Deployed()
    homes = await halves(bench, 1, 2, 3)
    job = await bench.deploy()
    first, last = by_stage(homes)
    before = first.epochs[-1]
    await bench.restart()
    await bench.turn(job)
    asked = bench.ask(await bench.stored(job), tokens=6)
    await bench.pass_time(3.0)
    await asked.task
    assert asked.tokens == asked.right
    assert first.epochs[-1] == before, "nobody was replaced"
    assert last.lease is not None
    async with bench.desk(job) as work:
        work.end(last.lease.lease, "expired", "it is gone")
    await bench.turn(job)
    assert first.epochs[-1] > before


async def test_a_seat_of_a_node_that_drains_goes_to_another_and_asleep_nobody_holds_a_part() -> None:
    bench = Deployed()
    homes = await halves(bench, 1, 2, 3)
    job = await bench.deploy(idle=2)
    first, last = by_stage(homes)
    [spare] = [home for home in homes if home.lease is None]
    bench.parts.nodes.drain(first.node)
    await bench.turn(job)
    assert (first.lease, by_stage(homes)) == (None, [spare, last])
    await bench.pass_time(130.0, 1.0)
    await bench.turn(job)
    assert (await bench.stored(job)).state is JobState.PLANNED
    assert by_stage(homes) == []
    assert "Asleep" in (await bench.parts.jobs.get(job)).sentence
    asked = bench.ask(await bench.stored(job), tokens=6)
    await bench.pass_time(0.1)
    await bench.turn(job)
    assert "1 replica of 2 nodes answers" in (await bench.parts.jobs.get(job)).sentence
    await bench.pass_time(2.0)
    await asked.task
    assert asked.tokens == asked.right
    assert len(set(spare.epochs)) == len(spare.epochs) >= 2


async def test_nodes_that_hold_a_model_together_make_embeddings_and_a_wrong_one_costs_each_what_is_not_verified() -> (
    None
):
    bench = Deployed()
    homes = await halves(bench, 1, 2)
    job = await bench.deploy()
    async with bench.checking():
        asked = bench.embed(await bench.stored(job), "a", "b", "c")
        await bench.pass_time(2.0)
        await asked.task
        assert asked.vectors == [vector_of(text) for text in ("a", "b", "c")]
        by_stage(homes)[0].lie = lambda _place, _token: 1
        false = bench.embed(await bench.stored(job), "a")
        await bench.pass_time(3.0)
        await false.task
        await bench.turn(job)
        assert [home.lease for home in homes] != [None, None], "they are seated again, for nobody else is here"
        await bench.pass_time(rules.PERIOD_S, 5.0)
        await bench.turn(job)
    async with bench.desk(job) as work:
        assert work.run is not None
        assert (work.run.served.wrong, work.run.apart) == (1, ())
        assert {node for node, (_, wrong) in work.run.served.nodes.items() if wrong} == {home.node for home in homes}
