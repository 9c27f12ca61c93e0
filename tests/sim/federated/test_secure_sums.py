"""Secure sums of rounds in worlds of a virtual clock: who drops out in which phase, and a coordinator that dies in each."""

import msgspec
import pytest

from coordinator.domain.job import Job as StoredJob
from coordinator.domain.job import JobState
from coordinator.domain.privacy import next_clip
from coordinator.domain.rounds.round import Round
from coordinator.domain.rounds.summing import PHASES
from coordinator.store.records import EventRecord, MetricRecord, RoundRecord, RunRecord
from protocol.federated.sum_messages import KeysTold, ListSigned, SharesShown, SharesTold
from protocol.federated.sum_values import beside_of
from protocol.federated.sums import SumAnswer, SumSaid, VectorStored
from protocol.job.federated import AdaptiveClipping, HeldoutLoss, PrivacySpec
from protocol.job.job import JobSpec, ModelSpec
from protocol.models.model import inspect_config, resolve
from tests.sim.federated.summing import SimSums
from tests.sim.federated.test_federations import check_unopened, document, join, to_the_end
from tests.sim.test_everybody_leaves import calm
from tests.sim.test_faults import TURNS_TO_END, gather_nodes, read, submit, timeline
from tests.sim.world import World
from tests.support.seeds import seeds

LEFT = PHASES[:-1]
SMALL = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}


def secure(world: World, rounds: int = 3, least: int = 4) -> JobSpec:
    """Of some 5,000 values, with room for rounds that fail: here it is who says what that counts."""
    spec = document(world.nodes, PrivacySpec(epsilon=8.0, noise_multiplier=8.0), rounds, least)
    assert spec.federated is not None
    summed = msgspec.structs.replace(spec.federated, sum="secure")
    return msgspec.structs.replace(spec, model=ModelSpec(config=SMALL), federated=summed)


async def begun(world: World, spec: JobSpec) -> str:
    await gather_nodes(world)
    job = await submit(world, 1, len(world.nodes), spec)
    await gather_nodes(world)
    await join(world, job, world.nodes)
    return job


async def until_phase(
    world: World, job: str, phase: str, number: int | None = None, seats: int = 4, beyond: int = -1
) -> Round:
    """To where the sum of a round stands at a phase, and some of those asked have answered, if anybody is asked.

    ``number``: of the round; None: the first after ``beyond`` with so many ``seats``.
    """
    for _ in range(TURNS_TO_END):
        await world.turn()
        for record in await read(world, RunRecord, job):
            current = record.run.round
            if current is None or current.sum is None or number not in (None, current.number):
                continue
            if len(current.seats) < seats or current.number <= beyond:
                continue
            answered = len(current.sum.answered(current.sum.phase))
            if current.sum.phase == phase and (answered >= 1 or phase in ("adding", "unmasking", "added")):
                return current
    raise AssertionError(await timeline(world, job))


def unheard(current: Round) -> list[str]:
    """Nodes that have not answered in the phase under way, or all."""
    assert current.sum is not None
    answered = current.sum.answered(current.sum.phase)
    return [seat.node for seat in current.seats if seat.replica not in answered]


def check_masks(world: World) -> None:
    """No two vectors were ever under the same masks, and each sum was one."""
    assert world.sums.masked
    assert all(len(vectors) == 1 for vectors in world.sums.masked.values())
    assert all(len(totals) == 1 for totals in world.sums.totals.values())
    assert world.peers.violations == []


async def test_a_round_ends_with_the_exact_sum_and_nothing_is_sent_between_owners() -> None:
    world = calm(1, nodes=4)
    job = await begun(world, secure(world))
    end = await to_the_end(world, job)
    assert end.state is JobState.SETTLED, end.reason
    assert (end.rounds_done, end.released) == (3, 3), await timeline(world, job)
    check_masks(world)
    assert len(world.sums.totals) == 3
    assert world.sums.phases == dict.fromkeys(
        ("KeysTold", "SharesTold", "VectorStored", "ListSigned", "SharesShown"), 12
    )
    await check_unopened(world, job)


def away(world: World, address: str, seconds: float = 10.0) -> None:
    """The machine dies with all it had, and comes back."""
    gone = next(node for node in world.nodes if node.key.address == address)
    world._leave(gone)
    gone.forget()
    gone.up, gone.away_until = False, world.clock.t + seconds


async def rounds_of(world: World, job: str) -> list[RoundRecord]:
    return sorted(await read(world, RoundRecord, job), key=lambda record: record.started)


async def test_an_owner_drops_out_in_each_phase_and_the_sum_is_that_of_the_others() -> None:
    """Five owners, of whom four are enough: one dies in each round, which goes on without it, or with what it had sent."""
    world = calm(2, nodes=5)
    job = await begun(world, secure(world, rounds=2 * len(LEFT)))
    struck = [-1]
    for phase in LEFT:
        current = await until_phase(world, job, phase, seats=5, beyond=struck[-1])
        struck.append(current.number)
        away(world, unheard(current)[0])
    end = await to_the_end(world, job)
    assert end.state is JobState.SETTLED, end.reason
    rounds = await rounds_of(world, job)
    assert [record.state for record in rounds] == ["complete"] * 2 * len(LEFT), await timeline(world, job)
    counted = {record.number: len(record.contributors) for record in rounds}
    for number, phase in zip(struck[1:], LEFT, strict=True):
        late = LEFT.index(phase) > LEFT.index("vectors")
        assert counted[number] == (5 if late else 4), "what was sent counts, whoever dies afterwards"
    check_masks(world)


async def test_with_too_few_owners_left_the_round_is_void_and_done_anew() -> None:
    world = calm(3, nodes=4)
    job = await begun(world, secure(world, rounds=len(LEFT)))
    for number, phase in enumerate(LEFT):
        for gone in unheard(await until_phase(world, job, phase, number))[:2]:
            away(world, gone)
    end = await to_the_end(world, job)
    assert end.state is JobState.SETTLED, end.reason
    rounds = await rounds_of(world, job)
    void = {record.number for record in rounds if record.state == "void"}
    assert void >= {*range(len(LEFT))} - {LEFT.index("unmasking")}, "by then all shares are shown"
    said = [event.text for event in await read(world, EventRecord, job) if event.kind == "void"]
    assert sum("owners are left for its sum, which is of 4 at least" in text for text in said) >= len(LEFT) - 1
    assert end.released == len(rounds), "each is charged that was begun"
    check_masks(world)


async def test_a_coordinator_that_dies_in_the_middle_does_the_round_anew_with_other_masks() -> None:
    world = calm(4, nodes=4)
    job = await begun(world, secure(world, rounds=len(PHASES)))
    for number, phase in enumerate(PHASES):
        await until_phase(world, job, phase, number)
        before = {*world.sums.masked}
        world._fall()
        await until_phase(world, job, "added", number)
        new = len({*world.sums.masked} - before)
        assert new == 0 if phase == "added" else new >= 4, "with the sum stored, nobody needs to say anything again"
    end = await to_the_end(world, job)
    assert end.state is JobState.SETTLED, end.reason
    rounds = await rounds_of(world, job)
    assert [r.number for r in rounds if r.state == "void"] == [*range(len(LEFT))], await timeline(world, job)
    assert len({(record.epoch, record.number) for record in rounds}) == len(rounds), "each has a name of its own"
    said = [event.text for event in await read(world, EventRecord, job) if event.kind == "void"]
    assert all("the coordinator has begun anew" in text for text in said)
    assert end.released == len(rounds)
    check_masks(world)


async def test_what_stands_behind_the_update_in_a_sum_is_the_clip_and_the_loss_of_the_round() -> None:
    """The coordinator reads both off the sum, keeps them with the round, and begins the next one with another clip."""
    world = calm(7, nodes=4)
    spec = secure(world, rounds=4)
    assert spec.federated is not None
    assert spec.federated.privacy is not None
    privacy = msgspec.structs.replace(
        spec.federated.privacy, heldout=HeldoutLoss(), adaptive=AdaptiveClipping(bit_noise=20.0)
    )
    asked = msgspec.structs.replace(spec.federated, privacy=privacy)
    job = await begun(world, msgspec.structs.replace(spec, federated=asked))
    shape = inspect_config(resolve(ModelSpec(config=SMALL), 259))
    plain, _ = shape.stage_learns(0, shape.layers, True, True, None)
    seen: dict[int, Round] = {}
    for number in range(4):
        seen[number] = await until_phase(world, job, "added", number)
    end = await to_the_end(world, job)
    assert end.state is JobState.SETTLED, end.reason
    told = end.spec.federated
    assert told is not None
    losses = {point.round: point.loss for point in await read(world, MetricRecord, job) if point.kind == "validation"}
    for number, current in seen.items():
        assert current.sum is not None
        assert current.sum.total is not None
        assert current.sum.length == plain + 2
        total, clip = (world.sums.artifacts.folder / current.sum.total).read_bytes(), current.clip
        assert clip is not None
        assert current.sum.beside == pytest.approx(beside_of(total, told, clip, 4))
        assert losses[number] == pytest.approx(HeldoutLoss().nats(current.sum.beside["heldout"]))
        if number:
            share = (1 + (seen[number - 1].sum or current.sum).beside["unclipped"]) / 2
            before = seen[number - 1].clip
            assert before is not None
            assert clip == pytest.approx(next_clip(before, [share], 0.5, 0.2))
    check_masks(world)


async def test_a_run_that_was_stored_before_sums_had_anything_beside_updates_goes_on_with_longer_ones() -> None:
    """What workers send follows the document. Else each of its rounds would be refused, and charged."""
    world = calm(9, nodes=4)
    spec = secure(world, rounds=4)
    assert spec.federated is not None
    assert spec.federated.privacy is not None
    privacy = msgspec.structs.replace(spec.federated.privacy, adaptive=AdaptiveClipping(bit_noise=20.0))
    asked = msgspec.structs.replace(spec.federated, privacy=privacy)
    job = await begun(world, msgspec.structs.replace(spec, federated=asked))
    full = (await until_phase(world, job, "added", 1)).sum
    assert full is not None
    world._fall()
    async with world.records.transaction() as tx:
        record = await tx.get(RunRecord, job)
        await tx.update(
            msgspec.structs.replace(record, run=msgspec.structs.replace(record.run, summed=full.length - 1))
        )
    later = (await until_phase(world, job, "added", 3)).sum
    assert later is not None
    assert later.length == full.length
    assert later.beside.keys() == {"unclipped"}
    end = await to_the_end(world, job)
    assert (end.state, end.rounds_done, end.released) == (JobState.SETTLED, 4, 4), await timeline(world, job)
    check_masks(world)


class Liars(SimSums):
    """Owners of whom one says what it may not, in one phase."""

    def __init__(self, liar: str, kind: type) -> None:
        super().__init__()
        self.liar, self.kind = liar, kind

    def _said(self, key: tuple[int, int], answer: SumAnswer) -> SumSaid:
        said = super()._said(key, answer)
        if answer.owner != self.liar or not isinstance(answer, self.kind):
            return said
        match answer:
            case KeysTold() | ListSigned():
                return SumSaid(*key, msgspec.structs.replace(answer, signature=bytes(64)))
            case SharesTold(boxes=boxes):
                return SumSaid(*key, msgspec.structs.replace(answer, boxes=dict(list(boxes.items())[1:])))
            case VectorStored():
                return SumSaid(*key, msgspec.structs.replace(answer, artifact=self.artifacts.keep(b"\0" * 12)))
            case SharesShown():
                return SumSaid(*key, msgspec.structs.replace(answer, seeds={}))
            case _:
                return said


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (KeysTold, "is not signed by it"),
        (SharesTold, "its shares are not for those who have told their keys"),
        (VectorStored, ""),
        (ListSigned, "is not signed by it"),
        (SharesShown, ""),
    ],
)
async def test_an_owner_who_says_what_it_may_not_is_out_and_spoils_no_sum(kind: type, fault: str) -> None:
    """What can be seen to be false ends the lease. A vector that is not whole is no summand; kept back shares are few."""
    world = calm(6, nodes=5)
    world.sums = Liars(world.nodes[4].key.address, kind)
    job = await begun(world, secure(world, rounds=2))
    end = await to_the_end(world, job)
    assert end.state is JobState.SETTLED, end.reason
    rounds = await rounds_of(world, job)
    assert {record.state for record in rounds} == {"complete"}, await timeline(world, job)
    assert min(len(record.contributors) for record in rounds) == (5 if kind in (ListSigned, SharesShown) else 4)
    texts = [event.text for event in await read(world, EventRecord, job) if event.kind == "fault"]
    assert any(fault in text for text in texts) == bool(fault), texts
    check_masks(world)


@pytest.mark.parametrize("seed", seeds(2, of=16))
async def test_whatever_dies_sums_are_right_and_the_budget_holds(seed: int) -> None:
    world = World(seed, nodes=5, faults=1.0, settings={"stall_seconds": 30.0, "min_stake": 0})
    await gather_nodes(world)
    job = await submit(world, 1, 5, secure(world, rounds=6))
    faults, world.faults, crashes, world.crashes = world.faults, 0.0, world.crashes, False
    await gather_nodes(world)
    await join(world, job, world.nodes)
    world.faults, world.crashes = faults, crashes
    for _ in range(6_000):
        await world.turn()
    world.faults, world.crashes = 0.0, False
    for node in world.nodes:
        node.up, node.away_until, node.hung, node.accepting, node.careless = True, 0.0, False, True, True
    end: StoredJob = await to_the_end(world, job)
    assert end.spec.federated is not None
    assert end.spec.federated.privacy is not None
    assert end.released <= (end.spec.federated.privacy.most_rounds or 0)
    check_masks(world)
