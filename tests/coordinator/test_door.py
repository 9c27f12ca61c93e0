"""Bad jobs and nodes are refused at the door: the message names the value and the way out, and nothing is stored."""

from collections.abc import Mapping

import msgspec
import pytest

from coordinator.domain.job import Job
from coordinator.errors import ConflictError, CottageError, FundsError, InvalidError, NotFoundError, UnavailableError
from coordinator.services.payments.escrows import escrow_deadline
from protocol.identity import NodeKey
from protocol.job.job import JobSpec, ModelSpec, TrainingSpec
from protocol.rest.api import NewJob
from tests.coordinator.bench import Bench
from tests.coordinator.fakes import BUDGET, COORDINATOR, spec, unavailable


def changed(**fields: object) -> JobSpec:
    return msgspec.structs.replace(spec(), **fields)


LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
HUGE = LLAMA | {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64}

REFUSED: dict[str, tuple[JobSpec, type[CottageError], str]] = {
    "a class that is not supported": (
        changed(model=ModelSpec(config=LLAMA | {"model_type": "mamba"})),
        InvalidError,
        "model_type 'mamba' is not supported",
    ),
    "heads that do not divide the width": (
        changed(model=ModelSpec(config=LLAMA | {"num_attention_heads": 5})),
        InvalidError,
        "num_attention_heads",
    ),
    "an unknown preset": (changed(model=ModelSpec(preset="gpt-9")), InvalidError, "'gpt-9' is unknown"),
    "a job larger than the network's memory": (
        changed(model=ModelSpec(config=HUGE)),
        InvalidError,
        r"needs about .* MB",
    ),
    "more nodes than there are": (spec(stages=3, replicas=3), InvalidError, "3 x 3 = 9 nodes, and 4 are free"),
    "a budget below the price": (changed(budget=5), FundsError, r"budget ¤ 0\.000005 is below the price ¤ 1"),
    "a budget beyond the balance": (changed(budget=10**15), FundsError, r"000\.00 is beyond the ¤ 1,000\.00 of"),
    "a batch that cannot be divided": (
        changed(training=TrainingSpec(batch=7, micro_batches=2)),
        InvalidError,
        "batch 7 cannot be divided into 2",
    ),
    "shares of the data that the plan deals": (
        changed(training=TrainingSpec(sampling="epochs", shares=3)),
        InvalidError,
        "settled when the job is planned",
    ),
    "a sequence longer than the model's positions": (
        changed(training=TrainingSpec(sequence=4096)),
        InvalidError,
        "4,096 is longer than the model's 1,024",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_bad_job_is_refused_with_nothing_stored(name: str) -> None:
    document, error, words = REFUSED[name]
    bench = Bench()
    for number in range(1, 5):
        await bench.enter(number)
    with pytest.raises(error, match=words):
        await bench.parts.jobs.create(NewJob(document))
    async with bench.store.transaction() as tx:
        assert await tx.find(Job) == []
    assert bench.fake.signed == []


async def test_a_quote_names_its_problems_instead_of_raising() -> None:
    bench = Bench()
    await bench.enter(1)
    quote = await bench.parts.jobs.quote(changed(model=ModelSpec(config=LLAMA | {"num_attention_heads": 5})))
    assert "num_attention_heads" in quote.problems[0]
    quote = await bench.parts.jobs.quote(spec())
    assert quote.price > 0
    assert "4 nodes, and 1 are free" in quote.problems[0]


async def test_what_a_wallet_lacks_is_known_before_the_job_is_created() -> None:
    bench = Bench()
    await bench.parts.jobs.check_funds(NewJob(spec()))
    with pytest.raises(FundsError, match=r"000\.00 is beyond the ¤ 1,000\.00 of"):
        await bench.parts.jobs.check_funds(NewJob(changed(budget=10**15)))
    assert bench.fake.signed == []


async def test_a_quote_says_what_the_job_takes() -> None:
    bench = Bench()
    for number in range(1, 5):
        await bench.enter(number)
    quote = await bench.parts.jobs.quote(spec())
    assert quote.problems == ()
    assert (quote.stages, quote.replicas, quote.rounds, quote.tokens) == (2, 2, 4, 4096)
    assert quote.operations == 6 * quote.parameters * quote.tokens
    assert len(quote.memory_mb_per_stage) == 2
    assert "stage" in quote.limit


async def test_a_dataset_that_was_not_uploaded_is_named() -> None:
    async def nothing(_digest: str) -> bool:
        return False

    bench = Bench()
    bench.parts.jobs._artifacts.has = nothing  # type: ignore[method-assign]
    with pytest.raises(NotFoundError, match="upload it first"):
        await bench.job()


async def test_data_that_cannot_be_prepared_leaves_nothing_behind() -> None:
    class Refusing:
        async def prepare(self, spec: JobSpec, name: str = "", called: Mapping[str, str] | None = None) -> None:
            raise InvalidError("row 7 is not JSON", "dataset")

    bench = Bench(models=Refusing())
    with pytest.raises(InvalidError, match="row 7"):
        await bench.job()
    async with bench.store.transaction() as tx:
        assert await tx.find(Job) == []


async def test_without_a_test_wallet_a_submitter_must_be_named() -> None:
    bench = Bench(wallet=None)
    with pytest.raises(InvalidError, match="has no test wallet"):
        await bench.job()


async def test_a_ledger_that_does_not_answer_is_said_so() -> None:
    bench = Bench()

    async def silent(_owner: str) -> int:
        unavailable("balance")
        return 0

    bench.fake.balance = silent  # type: ignore[method-assign, assignment]
    with pytest.raises(UnavailableError, match="the ledger does not answer"):
        await bench.job()


async def test_funding_says_exactly_what_an_outside_wallet_must_do() -> None:
    bench = Bench()
    job = await bench.job()
    funding = await bench.parts.jobs.funding(job)
    stored = await bench.stored(job)
    assert (funding.amount, funding.coordinator, funding.deadline) == (BUDGET, COORDINATOR, escrow_deadline(stored))
    assert len(bytes.fromhex(funding.job_key)) == 32


async def test_an_outside_wallet_funds_its_own_job() -> None:
    bench = Bench()
    other = NodeKey(b"o" * 32).address
    bench.fake.wallets[other] = BUDGET
    for number in range(1, 5):
        await bench.enter(number)
    job = (await bench.parts.jobs.create(NewJob(spec(), other))).id
    with pytest.raises(FundsError, match="there is no escrow"):
        await bench.fund(job)
    bench.fake.pay(job, BUDGET, other)
    assert (await bench.fund(job)).state == "funded"
    assert (await bench.fund(job)).state == "funded"


async def test_an_unknown_job_is_named() -> None:
    bench = Bench()
    for ask in (bench.parts.jobs.get, bench.parts.jobs.cancel, bench.parts.jobs.fund, bench.parts.jobs.rounds):
        with pytest.raises(NotFoundError, match="there is no job 77"):
            await ask("77")


async def test_what_is_settled_cannot_be_cancelled() -> None:
    bench = Bench()
    job = await bench.verified([])
    await bench.parts.upkeep.tick()
    for _ in range(4):
        await bench.parts.lanes.drain()
        await bench.parts.upkeep.tick()
    if (await bench.stored(job)).state == "settled":
        with pytest.raises(ConflictError, match="nothing left to cancel"):
            await bench.parts.jobs.cancel(job)


async def test_a_job_past_its_deadline_fails_and_is_refunded() -> None:
    bench = Bench()
    job = await bench.job()
    async with bench.parts.desk.open(job) as work:
        await bench.parts.funding.queue_funding(work)
    for _ in range(2):  # The escrow is opened, then accepted.
        await bench.parts.lanes.drain()
    bench.clock.t += 25 * 3600
    await bench.parts.upkeep.tick()
    await bench.parts.lanes.drain()
    stored = await bench.stored(job)
    assert (stored.state, stored.refunded) == ("failed", BUDGET)
    assert "deadline of 24 hours" in stored.reason
