"""``cottage compare``: jobs side by side on the command line."""

import asyncio
import json
import re
from typing import Any

import pytest

from coordinator.client import Client
from coordinator.client.cli import main
from coordinator.client.compare import loss_at, marks_of
from coordinator.client.text import amount, size
from protocol.rest import api
from tests.coordinator.web.conftest import House


async def cottage(*argv: str) -> int:
    return await asyncio.to_thread(main, list(argv))


async def job_of(house: House, name: str, rounds: int, **training: Any) -> api.JobView:
    """A job after some rounds; with all of them it is settled."""
    spec = {"name": name, "model": {"preset": "tiny-llama"}, "budget": 9_000_000, "training": training}
    async with Client(house.url) as client:
        made = await client.create_job(spec | {"dataset": {"artifact": await house.dataset()}})
        await client.fund(made.id)
        for _ in range(rounds + 2):
            house.cluster.step(made.id)
        return await client.get(made.id)


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lines that were printed, by the words that they begin with."""
    monkeypatch.setenv("COLUMNS", "140")

    def read() -> dict[str, list[str]]:
        lines = [re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
        return {line[0]: line[1:] for line in lines}

    return read


async def test_jobs_stand_side_by_side_with_their_curves_and_the_settings_that_differ(house: House, shown: Any) -> None:
    first = await job_of(house, "slow", 4, learning_rate=0.001)
    second = await job_of(house, "quick", 3, learning_rate=0.01)
    assert await cottage("compare", first.id, second.id, "--server", house.url) == 0
    lines = shown()
    assert lines["slow"] == ["quick"]
    assert lines["job"] == [first.id[:8], second.id[:8]]
    assert lines["price ¤"] == [amount(first.quote.price), amount(second.quote.price)]
    assert lines["sent"] == [size(first.bytes_sent), size(second.bytes_sent)]
    assert lines["validation loss"] == [f"{job.validation_loss:.4f}" for job in (first, second)]
    last = f"{max(first.tokens_done, second.tokens_done):,}"
    assert lines[last] == [f"{first.train_loss:.4f}"], "only the longer run has a loss there"
    assert lines["training.learning_rate"] == ["0.001", "0.01"]
    assert not [name for name in lines if name.startswith("model.")], "that is the same in both"


async def test_for_programs_the_comparison_has_every_point_and_whole_values(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = await job_of(house, "one", 3), await job_of(house, "other", 2, tokens=50_000)
    assert await cottage("compare", one.id, other.id, "--json", "--server", house.url) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["job"]["id"] for run in found["runs"]] == [one.id, other.id]
    assert found["settings"] == {"training.tokens": [str(one.spec.training.tokens), "50000"]}
    points = await house.cluster.metrics(one.id, 0)
    assert [point["loss"] for point in found["runs"][0]["validation"]] == [
        point.loss for point in points if point.kind == "validation"
    ]


async def test_jobs_alike_differ_in_nothing(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [(await job_of(house, "twin", 1)).id for _ in range(2)]
    assert await cottage("compare", *jobs, "--server", house.url) == 0
    assert "asked for with the same settings" in capsys.readouterr().out


async def test_what_cannot_be_compared_is_refused_with_the_way_out(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    for jobs, status, says in (
        (["a" * 32], 2, "two jobs or more"),
        (["a" * 32, "a" * 32], 2, "two jobs or more"),
        (["a" * 32, "b" * 32], 1, "no job"),
        (["nonsense", "a" * 32], 1, "ids of 1 to 8 jobs"),
        ([f"{number:032x}" for number in range(9)], 1, "ids of 1 to 8 jobs"),
        (["a" * 32 + "&b=c", "a" * 32], 1, "ids of 1 to 8 jobs"),
    ):
        assert await cottage("compare", *jobs, "--server", house.url) == status, jobs
        assert says in capsys.readouterr().err, jobs


def test_a_curve_is_read_at_the_same_tokens_for_all_and_not_beyond_its_end() -> None:
    long, short = (
        tuple(api.Metric(0, step, step * 100, "train", 5.0 - step, 0.0) for step in range(1, last + 1))
        for last in (4, 2)
    )
    views: Any = None  # No figure of the job is read here.
    marks = marks_of([api.RunCurve(views, long, ()), api.RunCurve(views, short, ())])
    assert marks == [50, 100, 150, 200, 250, 300, 350, 400]
    assert [loss_at(long, mark) for mark in marks] == [None, 4.0, 4.0, 3.0, 3.0, 2.0, 2.0, 1.0]
    assert [loss_at(short, mark) for mark in marks] == [None, 4.0, 4.0, 3.0, None, None, None, None]
    assert marks_of([api.RunCurve(views, (), ())]) == []
