"""A job's rounds in trackers of the submitter's own: real stores of MLflow and Weights & Biases, read by their own readers."""

import asyncio
import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec
import pytest

from coordinator.client import Client, TrackerError, track
from coordinator.client.cli import main
from coordinator.client.tracking import follow
from coordinator.client.tracking.target import rows_of
from protocol.job.job import LoraSpec, PreferenceSpec
from protocol.task import PreferenceScore
from tests.coordinator.web.conftest import House
from tests.coordinator.web.test_life import started

NAMES = {"round", "tokens", "seconds", "replicas", "loss/train", "loss/validation", "perplexity/validation"}
SECRET = "k" * 40


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's own tracker is met: no key, no address, no files but here."""
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "WANDB_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)


async def done(house: House, job: str) -> list[Any]:
    """The job's rounds, once all of it is over."""
    house.cluster.run(job)
    async with Client(house.url) as client:
        return list(await client.rounds(job))


async def broken_off(house: House, job: str, tracker: str, feeds: list[Any]) -> None:
    """Follow a job that goes on, and leave once three rounds are with the tracker."""
    warned: list[str] = []
    async with Client(house.url) as client:
        following = asyncio.create_task(track(client, job, tracker, on_warning=warned.append))
        async with asyncio.timeout(60):
            while not feeds or feeds[-1]._known < 3:
                assert not following.done(), warned
                await asyncio.sleep(0.05)
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
    assert warned == []


@pytest.fixture
def feeds(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is sent, to be seen while it is."""
    begin, found = follow._Feed.__init__, list[Any]()

    def noted(self: Any, *given: Any) -> None:
        begin(self, *given)
        found.append(self)

    monkeypatch.setattr(follow._Feed, "__init__", noted)
    return found


def curve(store: str, job: str) -> tuple[Any, dict[str, list[Any]]]:
    """The one run of a job in a store of MLflow, with all points of its curves."""
    from mlflow import MlflowClient

    client = MlflowClient(store)
    places = [one.experiment_id for one in client.search_experiments()]
    (run,) = client.search_runs(places, f"tags.`cottage.job` = '{job}'")
    return run, {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}


def expected(rounds: list[Any]) -> dict[str, list[float]]:
    tokens = 0
    found: dict[str, list[float]] = {name: [] for name in NAMES}
    for one in rounds:
        tokens += one.tokens
        for name, value in (
            ("round", one.round + 1),
            ("tokens", tokens),
            ("seconds", one.ended - one.started),
            ("replicas", len(one.contributors)),
            ("loss/train", one.train_loss),
            ("loss/validation", one.validation_loss),
            ("perplexity/validation", math.exp(one.validation_loss)),
        ):
            found[name].append(value)
    return found


async def test_how_answers_are_told_apart_is_a_curve_and_no_perplexity_is(house: House) -> None:
    job = await started(house)
    rounds = await done(house, job)
    async with Client(house.url) as client:
        view = await client.get(job)
    training = msgspec.structs.replace(view.spec.training, lora=LoraSpec(), preference=PreferenceSpec())
    model = msgspec.structs.replace(view.spec.model, weights="0" * 64)
    view = msgspec.structs.replace(view, spec=msgspec.structs.replace(view.spec, model=model, training=training))
    told = [msgspec.structs.replace(rounds[0], preference=PreferenceScore(0.875, 1.25)), *rounds[1:]]
    rows = rows_of(view, told)
    assert set(rows[0].values) == NAMES - {"perplexity/validation"} | {"accuracy/validation", "margin/validation"}
    assert (rows[0].values["accuracy/validation"], rows[0].values["margin/validation"]) == (0.875, 1.25)
    assert set(rows[1].values) == NAMES - {"perplexity/validation"}, "where it was not measured"


@pytest.mark.slow
async def test_rounds_are_in_a_store_of_mlflow_once_each_after_two_watches(
    house: House, tmp_path: Path, feeds: list[Any]
) -> None:
    job, store = await started(house, 3), f"sqlite:///{tmp_path}/runs.db"
    await broken_off(house, job, f"mlflow:{store}", feeds)
    run, _ = curve(store, job)
    assert run.info.status == "RUNNING", "the job goes on"
    house.cluster.step(job)
    async with Client(house.url) as client:
        following = asyncio.create_task(track(client, job, f"mlflow:{store}"))
        await asyncio.sleep(0)
        rounds = await done(house, job)
        assert (await following).state == "settled"
    run, points = curve(store, job)
    wanted = expected(rounds)
    assert len(rounds) > 5
    assert {name: [point.value for point in found] for name, found in points.items()} == wanted
    assert [point.step for point in points["loss/train"]] == wanted["tokens"]
    assert [point.timestamp for point in points["loss/train"]] == [round(one.ended * 1000) for one in rounds]
    assert (run.info.run_name, run.info.status) == ("a job", "FINISHED")
    assert run.data.tags["cottage.address"] == f"{house.url}/jobs/{job}"
    assert run.data.params["model.preset"] == "tiny-llama"
    assert run.data.params["budget"] == "9000000"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A real server of MLflow."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{found.getsockname()[1]}"
    words = [
        "--backend-store-uri",
        f"sqlite:///{tmp_path}/server.db",
        "--port",
        url.rpartition(":")[2],
        "--workers",
        "1",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", *words],
        env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), urlopen(f"{url}/health", timeout=1) as answer:
                assert answer.read() == b"OK"
                break
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.long
@pytest.mark.slow
async def test_the_command_tells_a_server_of_mlflow_that_the_environment_names(
    house: House, server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    job = await started(house)
    rounds = await done(house, job)
    assert await asyncio.to_thread(main, ["watch", job, "--track", "mlflow", "--json", "--server", house.url]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert all(json.loads(line) for line in shown.out.splitlines())
    _, points = curve(server, job)
    assert {name: [point.value for point in found] for name, found in points.items()} == expected(rounds)


def stored(folder: Path, job: str) -> list[dict[str, Any]]:
    """Everything that the files of a job's run at Weights & Biases have, in the order of their beginnings."""
    found = []
    for file in sorted(folder.glob(f"wandb/*run-*-{job}/run-{job}.wandb")):
        words = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
        read = subprocess.run(words, capture_output=True, text=True, check=True)
        found += [json.loads(line) for line in read.stdout.splitlines()]
    return found


@pytest.mark.long
@pytest.mark.slow
async def test_rounds_are_in_offline_runs_of_wandb_once_each_after_two_watches(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feeds: list[Any]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    job = await started(house, 3)
    await broken_off(house, job, "wandb:mine", feeds)
    async with Client(house.url, SECRET) as client:
        rounds = await done(house, job)
        assert (await track(client, job, "wandb:mine")).state == "settled"
        records = stored(tmp_path, job)
        assert (await track(client, job, "wandb:mine")).state == "settled"
    rows = [record["history"]["item"] for record in records if record["type"] == "history"]
    assert {name: [row[name] for row in rows] for name in NAMES} == expected(rounds)
    assert [row["_step"] for row in rows] == [one.round + 1 for one in rounds]
    assert len([one for one in stored(tmp_path, job) if one["type"] == "history"]) == len(rows), "none twice"
    runs = [record["run"] for record in records if record["type"] == "run"]
    assert len(runs) == 2
    assert {(run["run_id"], run["display_name"], run["project"]) for run in runs} == {(job, "a job", "mine")}
    assert runs[0]["tags"] == [job]
    assert runs[0]["notes"] == f"{house.url}/jobs/{job}"
    assert runs[0]["config"]["update"]["model.preset"] == "tiny-llama"
    assert not {record["type"] for record in records} & {"stats", "output", "output_raw"}


@pytest.mark.long
async def test_nothing_of_the_computer_is_sent_to_wandb(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    job = await started(house)
    await done(house, job)
    argv = ["watch", job, "--track", "wandb", "--json", "--token", SECRET, "--server", house.url]
    assert await asyncio.to_thread(main, argv) == 0
    kept = [path for path in (tmp_path / "wandb").rglob("*") if path.is_file() and not path.name.startswith("debug")]
    assert {path.name for path in kept} == {f"run-{job}.wandb"}, "neither packages nor code"
    assert SECRET.encode() not in kept[0].read_bytes()
    for word in ("args", "git", "requirements", "program"):
        assert word not in {key for one in stored(tmp_path, job) for key in one.get("environment", {})}


@pytest.mark.parametrize("tracker", ["mlflow:http://127.0.0.1:9", "wandb"])
async def test_a_tracker_that_is_not_there_costs_a_warning_with_the_way_out(
    house: House, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tracker: str
) -> None:
    job = await started(house)
    await done(house, job)
    assert await asyncio.to_thread(main, ["watch", job, "--track", tracker, "--server", house.url]) == 0
    shown = capsys.readouterr()
    assert "settled" in shown.out
    said = "WANDB_API_KEY" if tracker == "wandb" else "127.0.0.1"
    assert said in shown.err
    assert "the same command again sends what is missing" in shown.err


@pytest.mark.long
async def test_a_tracker_that_never_answers_keeps_nobody_waiting(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "OPEN_S", 10.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        job, warned, seen = await started(house), list[str](), list[Any]()
        async with Client(house.url) as client:
            tracker = f"mlflow:http://127.0.0.1:{silent.getsockname()[1]}"
            following = asyncio.create_task(track(client, job, tracker, seen.append, warned.append))
            async with asyncio.timeout(60):
                while not any(update.job is not None for update in seen):
                    await asyncio.sleep(0.02)
                house.cluster.run(job)
                while not any(update.over for update in seen):
                    await asyncio.sleep(0.02)
                assert warned == [], "the tracker is still being waited for"
            assert (await following).state == "settled"
    assert len(warned) == 1
    assert "mlflow does not take the job's rounds: it does not answer; the same command again" in warned[-1]


@pytest.mark.parametrize("tracker", ["comet", "mlflow"])
async def test_a_tracker_that_cannot_be_used_here_is_told_before_anything_is_paid(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tracker: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    (tmp_path / "job.yaml").write_text(
        f"name: a\nmodel: {{preset: tiny-llama}}\ndataset: {{artifact: {await house.dataset()}}}\nbudget: 9000000\n"
    )
    argv = ["submit", str(tmp_path / "job.yaml"), "--yes", "--track", tracker, "--server", house.url]
    assert await asyncio.to_thread(main, argv) == 2
    told = capsys.readouterr().err
    assert ('pip install "cottage[track]"' if tracker == "mlflow" else "wandb:PROJECT") in told
    assert len(told.strip().splitlines()) == 1
    assert await house.cluster.list(5, None) == []
    async with Client(house.url) as client:
        with pytest.raises(TrackerError):
            await track(client, "0" * 32, tracker)
