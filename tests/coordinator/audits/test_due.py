"""How long answers in audits may take: a home's line is enough, and nobody stretches it for ever."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.domain.audits import answer_time
from coordinator.domain.audits.answer_time import AnswerMeans, Effort
from coordinator.domain.audits.trust import Audit, Side
from coordinator.domain.lease import Lease
from coordinator.services.audits.deadlines import Deadlines, most_bytes
from coordinator.services.core.unit_of_work import UnitOfWork
from protocol.job.job import TrainingSpec
from protocol.models.model import ModelShape, inspect_config
from protocol.network import ASSUMED_UP, NetworkReport
from protocol.task import Layers, OpeningMade, Plan
from tests.coordinator.audits.test_trust import AUDIT, OPENING, OUTER
from tests.coordinator.bench import CONFIG, Bench
from tests.coordinator.fakes import digest, spec

HOME_UP = 20e6 / 8  # Bytes a second of an ordinary upload.
LEAST = CONFIG.audit_seconds
TRAINING = TrainingSpec(sequence=256, batch=8, micro_batches=4, commit_every=10)


def llama(width: int, layers: int) -> ModelShape:
    return inspect_config(
        {
            "model_type": "llama",
            "hidden_size": width,
            "intermediate_size": 4 * width,
            "num_hidden_layers": layers,
            "num_attention_heads": 8,
            "num_key_value_heads": 8,
            "max_position_embeddings": 512,
            "vocab_size": 4096,
        }
    )


@pytest.mark.parametrize(("width", "layers", "millions"), [(512, 6, 29), (1024, 12, 209)])
def test_a_home_has_time_for_a_step_and_an_outer_step_of_many_parameters_with_half_of_it_to_spare(
    width: int, layers: int, millions: int
) -> None:
    shape, whole = llama(width, layers), Layers(0, layers)
    assert answer_time.parameters_of(shape, whole, layers) // 10**6 == millions
    # The state before, and the anchor.
    size = 4 * answer_time.FLOAT32 * answer_time.parameters_of(shape, whole, layers)
    size += answer_time.outer_bytes(shape, whole, layers, 2)
    takes = size / HOME_UP
    assert takes > LEAST, "what was allowed before was no home's upload"
    allowed = answer_time.seconds(AnswerMeans(1e12, up=HOME_UP), Effort(sent=size), LEAST)
    assert 2 * takes <= allowed <= answer_time.MOST_S


def test_a_line_that_was_not_measured_counts_as_a_slow_one() -> None:
    effort = Effort(sent=300e6)
    assert answer_time.seconds(AnswerMeans(1e12), effort, LEAST) == answer_time.seconds(
        AnswerMeans(1e12, up=ASSUMED_UP), effort, LEAST
    )
    assert answer_time.seconds(AnswerMeans(1e12), effort, LEAST) > answer_time.seconds(
        AnswerMeans(1e12, up=HOME_UP), effort, LEAST
    )


@given(
    speed=st.floats(0, 1e18),
    up=st.none() | st.floats(0, 1e12),
    down=st.none() | st.floats(0, 1e12),
    effort=st.builds(Effort, *[st.floats(0, 1e20)] * 4),
    least=st.floats(0.1, 1e4),
)
def test_every_answer_has_a_least_and_a_longest_time(
    speed: float, up: float | None, down: float | None, effort: Effort, least: float
) -> None:
    allowed = answer_time.seconds(AnswerMeans(speed, up, down), effort, least)
    assert least <= allowed <= max(least, answer_time.MOST_S)


@given(grown=st.floats(0, 1e12), less=st.floats(0, 1))
def test_more_to_do_or_less_to_do_it_with_is_never_less_time(grown: float, less: float) -> None:
    means, effort = AnswerMeans(1e12, 1e6, 1e7), Effort(1e13, 1e8, 1e8, 1e8)
    allowed = answer_time.seconds(means, effort, LEAST)
    more = Effort(*(value + grown for value in msgspec.structs.astuple(effort)))
    slower = AnswerMeans(*(value * less for value in msgspec.structs.astuple(means)))
    assert answer_time.seconds(means, more, LEAST) >= allowed
    if less > 0:
        assert answer_time.seconds(slower, effort, LEAST) >= allowed


def test_what_was_granted_is_not_taken_back() -> None:
    granted = answer_time.due(msgspec.structs.replace(AUDIT, asked=5.0, deadline=9.0), 100.0)
    assert granted.deadline == 105.0
    assert answer_time.due(granted, 10.0) == granted


def test_an_opening_that_is_made_has_its_time_from_then_on_and_says_its_size_once() -> None:
    assert answer_time.sending(AUDIT, 500, 7.0) == AUDIT, "it is not made"
    made = answer_time.sending(msgspec.structs.replace(AUDIT, made=OPENING), 500, 7.0)
    assert (made.size, made.asked) == (500, 7.0)
    assert answer_time.sending(made, 10**15, 99.0) == made


# --- with what was measured ---------------------------------------------------------------------------------------------


class Asked:
    """A bench with a job of one stage, whose node is asked to open a step."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.deadlines: Deadlines = self.bench.parts.runs._verification._deadlines

    async def open(self) -> str:
        job = await self.bench.job(spec(stages=1, replicas=2))
        self.session = await self.bench.enter(9, flops=1e15)
        self.layers = inspect_config((await self.bench.stored(job)).config).layers
        return job

    def line(self, up: float) -> None:
        links = self.deadlines._links
        links.map.learn(self.session.node, NetworkReport(up=up), 0.0)

    def audit(self, work: UnitOfWork, audit: Audit = AUDIT) -> Audit:
        plan = Plan(1, (Layers(0, self.layers),), ())
        found = msgspec.structs.replace(
            audit, job=work.job.id, node=self.session.node, plan=plan, asked=work.now, deadline=work.now + LEAST
        )
        work.audits[found.id] = found
        return found

    def allowed(self, work: UnitOfWork, audit: Audit) -> float:
        found = self.deadlines.look(work, audit)
        return found.deadline - found.asked


async def test_the_deadline_of_an_opening_follows_from_its_bytes_and_the_measured_line() -> None:
    asked = Asked()
    async with asked.bench.parts.desk.open(await asked.open()) as work:
        audit, service = asked.audit(work), asked.bench.parts.runs._verification
        assert asked.allowed(work, audit) == LEAST, "a quick machine makes it in no time"
        asked.line(20e3)
        size = 2_500_000
        service.opened(work, audit.lease, OpeningMade(audit.id, OPENING, size))
        assert asked.allowed(work, work.audits[audit.id]) == pytest.approx(2 * size / 20e3)
        asked.line(1e9)
        assert asked.allowed(work, work.audits[audit.id]) == LEAST, "nothing was granted yet"


async def test_bytes_that_a_stage_cannot_come_to_bring_no_more_time() -> None:
    asked = Asked()
    async with asked.bench.parts.desk.open(await asked.open()) as work:
        asked.line(1e5)
        most = [most_bytes(work, asked.audit(work, audit)) for audit in (AUDIT, OUTER)]
        for audit, bytes_ in zip((AUDIT, OUTER), most, strict=True):
            audit = msgspec.structs.replace(asked.audit(work, audit), made=OPENING, size=2**62)
            work.audits[audit.id] = audit
            assert asked.allowed(work, audit) == pytest.approx(2 * bytes_ / 1e5)
            del work.audits[audit.id]


async def test_openings_of_one_node_share_its_line_and_those_of_others_do_not_count() -> None:
    asked = Asked()
    async with asked.bench.parts.desk.open(await asked.open()) as work:
        asked.line(20e3)
        one = msgspec.structs.replace(asked.audit(work), made=OPENING, size=2_000_000)
        work.audits[one.id] = one
        alone = asked.allowed(work, one)
        other = msgspec.structs.replace(one, id="c" * 32, size=3_000_000)
        work.audits[other.id] = other
        assert asked.allowed(work, one) == pytest.approx(2.5 * alone)
        work.audits[other.id] = msgspec.structs.replace(other, node="somebody else")
        assert asked.allowed(work, one) == pytest.approx(alone)
        work.audits[other.id] = msgspec.structs.replace(other, opening=OPENING, state="replaying")
        assert asked.allowed(work, one) == pytest.approx(alone), "that one has arrived"


async def test_a_slow_machine_has_time_to_run_the_round_again_and_its_last_round_says_how_slow_it_is() -> None:
    asked = Asked()
    async with asked.bench.parts.desk.open(await asked.open()) as work:
        audit = asked.audit(work)
        asked.bench.parts.nodes.timed(asked.session.node, 1e9, 1000.0)
        slow = asked.allowed(work, audit)
        assert slow > LEAST
        auditor = msgspec.structs.replace(
            trust_opened(audit), auditor=asked.session.node, auditor_lease="x", asked=work.now
        )
        assert asked.allowed(work, auditor) > LEAST
        assert asked.deadlines.answer(work, auditor, (asked.session.node,)) - work.now > asked.allowed(work, auditor)


def trust_opened(audit: Audit) -> Audit:
    return msgspec.structs.replace(audit, state="replaying", opening=OPENING, size=1000)


async def test_whoever_is_not_here_gets_no_more_time_for_a_figure_that_nobody_knows() -> None:
    asked = Asked()
    async with asked.bench.parts.desk.open(await asked.open()) as work:
        away = msgspec.structs.replace(asked.audit(work), node="somebody")
        assert asked.deadlines.look(work, away) == away
        assert asked.deadlines.answer(work, trust_opened(away), ("somebody",)) == work.now + LEAST


async def test_who_is_late_with_a_leaf_holds_nobody_up_for_as_long_as_an_opening_takes() -> None:
    asked = Asked()
    async with asked.bench.parts.desk.open(await asked.open()) as work:
        asked.line(1e3)
        service, node = asked.bench.parts.runs._verification, asked.session.node
        work.leases["prover"] = Lease("prover", work.job.id, node, node, 1, 0, 0, work.now, "ready", seq=1)
        side = Side(0, 0, "prover", digest("root"), 2)
        audit = asked.audit(work, msgspec.structs.replace(AUDIT, sides=(side,)))
        service.opened(work, audit.lease, OpeningMade(audit.id, OPENING, 10**7))
        sized = work.audits[audit.id] = asked.deadlines.look(work, work.audits[audit.id])
        assert sized.deadline > work.now + 10 * LEAST
        work.now += LEAST + 1.0
        await service._boundaries.advance(work)
        after = work.audits[audit.id]
        assert (after.state, [side.silent for side in after.sides]) == ("showing", [True])
