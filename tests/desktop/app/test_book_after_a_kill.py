"""An agent that is killed while it works: the next one asks what became of the job, and its book is right again."""

import json
import secrets
import signal
from pathlib import Path
from typing import Any

import pytest

from desktop.agent.earnings.earnings import EarningsFile
from protocol.job.job import JobSpec, ModelSpec, ServeSpec
from protocol.node import Assign, JobEarned, Tally
from protocol.serving import MODEL_ARCHIVE
from protocol.task import TaskReady
from tests.desktop.app.test_agent_as_a_process import Program, agent_program, words_of
from tests.desktop.conftest import JOB, assignment, plan_of
from tests.desktop.coordinator_double import Double


def job_of(coordinator: Double, node: str, kind: str) -> Assign:
    if kind == "training":
        return assignment(coordinator, plan_of((0, 0, node)), 0, 0, "checkpoint")
    spec = JobSpec("chatting", ModelSpec(from_job="ab" * 16), 1_000_000, serve=ServeSpec(context=128))
    files = {"config.json": coordinator.store(b'{"layers": 2}'), MODEL_ARCHIVE: coordinator.store(b"")}
    return Assign(secrets.token_hex(16), 1, JOB, spec, 0, 0, plan_of((0, 0, node)), files)


async def row(node: Program) -> dict[str, Any]:
    code, text = await words_of("earnings", "--home", str(node.home), "--json")
    assert code == 0, text
    [job] = json.loads(text)["jobs"]
    return dict(job)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("told", [True, False], ids=["told before", "never told"])
@pytest.mark.parametrize("kind", ["training", "deployment"])
async def test_who_was_killed_asks_what_became_of_its_job(
    coordinator: Double, tmp_path: Path, kind: str, told: bool
) -> None:
    arguments = ("--sandbox", "process", "--loopback")
    async with agent_program(tmp_path / "home", coordinator.url, *arguments) as node:
        await coordinator.until(lambda: node.address in coordinator.nodes)
        assign = job_of(coordinator, node.address, kind)
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: coordinator.bodies(TaskReady))
        if told:
            account = JobEarned(JOB, 245_053, 0, "", "running", "held", (Tally("saving", 1, 245_053),))
            await coordinator.send(node.address, account)
            beats = len(coordinator.beats)
            await coordinator.until(lambda: len(coordinator.beats) > beats + 2)
        await node.end(signal.SIGKILL)
    coordinator.accounts[JOB] = JobEarned(JOB, 776_355, 776_355, "5ig", "settled", "left", (Tally("paid", 3, 776_355),))
    async with agent_program(tmp_path / "home", coordinator.url, *arguments) as node:
        await coordinator.until(lambda: coordinator.account_asks)
        assert coordinator.account_asks == [(JOB,)]
        coordinator.gone.append(assign.lease)
        await coordinator.until(lambda: coordinator.beats[-1][1].leases == ())
        found = await row(node)
        assert (found["verified"], found["paid"], found["standing"], found["reasons"]) == (776_355, 776_355, "paid", [])
        assert found["name"] == assign.spec.name


def test_a_book_that_lacks_a_seat_asks_for_what_it_was_told_of(tmp_path: Path) -> None:
    """Books of agents that were killed before seats were written down at once."""
    book = EarningsFile(tmp_path / "earnings.db")
    book.record("http://c", JobEarned(JOB, 245_053, 0, "", "running", "held", (Tally("saving", 1, 245_053),)), 1.0)
    assert book.unsettled("http://c") == (JOB,)
    assert book.unsettled("http://other") == ()
    book.record("http://c", JobEarned(JOB, 245_053, 245_053, "5ig", "settled", "left"), 2.0)
    assert book.unsettled("http://c") == ()
    book.close()


def test_the_hours_of_a_seat_that_was_taken_up_again_add_up(tmp_path: Path) -> None:
    book = EarningsFile(tmp_path / "earnings.db")
    for began, seconds in ((1.0, 60.0), (90.0, 5.0)):
        book.record_seat("http://c", "lease", JOB, "a job", began)
        book.record_work("http://c", "lease", JOB, "a job", began, seconds, "")
    [job] = book.summary(100.0).jobs
    assert (job.seconds, job.first) == (65.0, 1.0)
    book.close()
