"""A Flower ServerApp whose clients are elements: real strategies, messages and ClientApps, over a real server.

Nodes stand in, and run just what a container would: the array's command, on the inputs that the list of elements names.
"""

import asyncio
import importlib
import importlib.util
import os
import random
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from coordinator.client import Client
from coordinator.client.errors import ClientError, UnreachableError
from protocol.job.array import ArraySpec, command_of, inputs_of_element
from protocol.job.elements import ElementEnd, ElementRun
from protocol.job.results import packed
from tests.coordinator.arrays.arrayed import ElementNode, fails, right
from tests.coordinator.arrays.test_map_command import ArrayHouse, house  # noqa: F401 - a fixture

if importlib.util.find_spec("flwr") is None:
    pytest.skip("flwr is not installed: pip install flwr==1.42.0", allow_module_level=True)

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.serde import (
    context_from_proto,
    message_from_proto,
    message_to_proto,
    recorddict_from_proto,
    recorddict_to_proto,
)
from flwr.proto import error_pb2, message_pb2, recorddict_pb2
from flwr.serverapp import Grid

from coordinator.client.flower import CottageGrid, Partition, run_app
from coordinator.client.flower import grid as flower_grid

EXAMPLE = Path(__file__).parents[3] / "examples" / "flower"
CONFIG: dict[str, str | int | float | bool] = {"features": 2, "rounds": 2, "steps": 20, "rate": 0.5}
CLIENTS = 2


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_grid, "POLL_S", 0.02)
    monkeypatch.setattr(flower_grid, "LONGEST_POLL_S", 0.02)
    monkeypatch.syspath_prepend(str(EXAMPLE))


def parts(folder: Path, clients: int = CLIENTS) -> list[Path]:
    """What each client has."""
    words = [str(EXAMPLE / "points.py"), str(folder / "parts"), str(clients)]
    subprocess.run([sys.executable, *words], check=True)
    return sorted((folder / "parts").iterdir())


def array_at(node: ElementNode) -> ArraySpec:
    assert node.lease is not None
    assert node.lease.spec.array is not None
    return node.lease.spec.array


class Homes:
    """What nodes do with an element: its command runs in a process, whose folders stand for the container's.

    ``app``: stands for ``/app``.
    """

    def __init__(self, house: ArrayHouse, folder: Path, app: Path = EXAMPLE) -> None:  # noqa: F811
        self.house, self.folder, self.app = house, folder, app
        self.ran: list[str] = []

    async def come(self, count: int) -> None:
        for node in await self.house.nodes(count):
            node.answer = partial(self.answer, node)

    def answer(self, node: ElementNode, run: ElementRun) -> ElementEnd:
        spec = array_at(node)
        place = self.folder / f"run {len(self.ran)}"
        self.ran.append(run.element.name)
        for path, digest in inputs_of_element(spec, run.element).items():
            file = place / "in" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(self.house.artifacts.path(digest).read_bytes())
        (place / "out").mkdir()
        program, *words = command_of(spec, run.index, run.element)
        assert program == "python3"
        words = [word.replace("/in/", f"{place}/in/").replace("/app", str(self.app)) for word in words]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(one).absolute()) for one in sys.path)}
        out, words = place / "out", [sys.executable, *words]
        done = subprocess.run(words, cwd=out, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            tail = tuple(done.stderr.strip().splitlines()[-3:])
            return msgspec.structs.replace(fails(run, done.returncode), tail=tail)
        return right(run, packed({file.name: file.read_bytes() for file in (place / "out").iterdir()}))


class Beside(Grid):  # type: ignore[misc]
    """A grid of this process: each message to its client here, and back, through Flower's own bytes."""

    def __init__(self, app: Any, folders: list[Path]) -> None:
        self._app, self._run = app, None
        self._contexts = {
            flower_grid.FIRST_NODE + number: Context(
                1,
                flower_grid.FIRST_NODE + number,
                {"partition-id": number, "num-partitions": len(folders), "data-path": str(folder)},
                RecordDict(),
                CONFIG,
            )
            for number, folder in enumerate(folders)
        }

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return self._run

    def create_message(self, *words: Any, **more: Any) -> Any:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
        raise NotImplementedError

    pull_messages = push_messages

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Iterable[Any]:
        crossed = [message_from_proto(message_to_proto(message)) for message in messages]
        return [self._app(message, self._contexts[message.metadata.dst_node_id]) for message in crossed]


def grid_of(
    house: ArrayHouse,  # noqa: F811
    files: list[Path],
    budget: int = 50_000_000,
    **more: Any,
) -> CottageGrid:
    partitions = [Partition({file.name: file}) for file in files]
    array = {"seconds": 60.0, "estimate": 1.0} | more
    return CottageGrid(house.url, house.image, "client:app", partitions, budget, run_config=CONFIG, array=array)


def learnt(grid: Any, server: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What ``server.py`` leaves, with this grid."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    random.seed(11)  # Flower draws the order of its clients.
    if isinstance(grid, CottageGrid):
        run_app(server.app, grid)
    else:
        server.app(grid, Context(1, 1, {}, RecordDict(), CONFIG))
    with np.load(folder / "model.npz") as model:
        return {name: model[name].tobytes() for name in model}


@pytest.mark.slow
async def test_fedavg_comes_to_the_same_model_bit_for_bit_as_in_one_process(
    house: ArrayHouse,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, server = importlib.import_module("client"), importlib.import_module("server")
    files = parts(tmp_path)
    homes = Homes(house, tmp_path)
    await homes.come(3)
    grid = grid_of(house, files)
    async with house.running(), Client(house.url) as cottage:
        over = await asyncio.to_thread(learnt, grid, server, tmp_path / "over", monkeypatch)
        cost = await asyncio.to_thread(grid.cost)
        jobs = await cottage.jobs()
    folders = []
    for number, file in enumerate(files):
        folders.append(tmp_path / f"own {number}")
        folders[-1].mkdir()
        (folders[-1] / file.name).write_bytes(file.read_bytes())
    beside = learnt(Beside(client.app, folders), server, tmp_path / "beside", monkeypatch)
    assert over == beside
    weights, told = np.frombuffer(over["weights"]), np.frombuffer(over["right"])
    assert weights.shape == (3,)
    assert np.any(weights != 0)
    assert told[-1] > 0.8, "it has learnt"
    assert len(jobs) == 4, "two rounds, each with training and evaluation"
    assert {job.state for job in jobs} == {"settled"}
    assert len(homes.ran) == 4 * CLIENTS * 2, "each client's answer is of two owners who agree"
    assert cost == sum(job.paid for job in jobs) > 0
    uploads = [file.name for file in (house.folder / "uploads").glob("*.json")]
    assert len(uploads) < 60, "data and program go once"


OLD = """
import numpy as np
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

class Client(NumPyClient):
    def __init__(self, part):
        self.part = part

    def fit(self, parameters, config):
        return [parameters[0] + self.part + 1], 1, {}

    def evaluate(self, parameters, config):
        return float(parameters[0].sum()), 1, {}

app = ClientApp(client_fn=lambda context: Client(context.node_config["partition-id"]).to_client())
"""


@pytest.mark.long
async def test_apps_of_flowers_older_interface_run_too(house: ArrayHouse, tmp_path: Path) -> None:  # noqa: F811
    """Their server sends from a thread for each client, so each message is a job of its own."""
    from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.server import ServerApp, ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg

    kept: list[Any] = []

    class Keeping(FedAvg):  # type: ignore[misc]
        def aggregate_fit(self, *words: Any) -> Any:
            kept.append(super().aggregate_fit(*words))
            return kept[-1]

    def server(_context: Any) -> Any:
        strategy = Keeping(initial_parameters=ndarrays_to_parameters([np.zeros(3)]))
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=2))

    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "client.py").write_text(OLD)
    homes = Homes(house, tmp_path, tmp_path / "app")
    await homes.come(3)
    async with house.running(), Client(house.url) as client:
        await asyncio.to_thread(run_app, ServerApp(server_fn=server), grid_of(house, parts(tmp_path)))
        jobs = await client.jobs()
    found = [parameters_to_ndarrays(parameters)[0].tolist() for parameters, _ in kept]
    assert found == [[1.5] * 3, [3.0] * 3]
    assert len(jobs) == 8


def told(node: int, **values: float) -> Any:
    return Message(RecordDict({"metrics": MetricRecord(dict(values))}), dst_node_id=node, message_type="query")


def doubled(house: ArrayHouse, node: ElementNode, run: ElementRun) -> ElementEnd:  # noqa: F811
    """What a client would answer that counts its messages, and doubles what it is told. Below zero it fails."""
    inputs = inputs_of_element(array_at(node), run.element)
    read = {path: house.artifacts.path(digest).read_bytes() for path, digest in inputs.items()}
    context = context_from_proto(message_pb2.Context.FromString(read["flower/context"]))
    content = recorddict_from_proto(recorddict_pb2.RecordDict.FromString(read.get("flower/content", b"")))
    value = content["metrics"]["value"] if content else 0
    if value < 0:
        return fails(run, 3)
    if value > 1_000:
        error = error_pb2.Error(code=6, reason="\x1b[2Jtoo much").SerializeToString()
        return right(run, packed({"error": error, "state": b""}))
    if value == 13:
        return right(run, packed({"content": b"no records", "state": b""}))
    if value == 14:
        record = recorddict_pb2.MetricRecord(items=[recorddict_pb2.MetricRecord.Item(key="of nothing")])
        empty = recorddict_pb2.RecordDict(items=[recorddict_pb2.RecordDict.Item(key="x", metric_record=record)])
        return right(run, packed({"content": empty.SerializeToString(), "state": b""}))
    seen = context.state["seen"]["times"] + 1 if "seen" in context.state else 1
    answer = RecordDict({"metrics": MetricRecord({"value": 2 * value, "times": seen})})
    state = RecordDict({"seen": MetricRecord({"times": seen})})
    files = {"content": recorddict_to_proto(answer), "state": recorddict_to_proto(state)}
    return right(run, packed({name: proto.SerializeToString(deterministic=True) for name, proto in files.items()}))


async def doubling(house: ArrayHouse) -> None:  # noqa: F811
    for node in await house.nodes(3):
        node.answer = partial(doubled, house, node)


@pytest.fixture
async def grid(house: ArrayHouse, tmp_path: Path) -> AsyncIterator[CottageGrid]:  # noqa: F811
    await doubling(house)
    async with house.running():
        made = grid_of(house, parts(tmp_path))
        yield made
        await asyncio.to_thread(made.close)


async def asked(grid: CottageGrid, *messages: Any, timeout: float | None = None) -> list[Any]:
    return list(await asyncio.to_thread(grid.send_and_receive, messages, timeout=timeout))


async def test_what_a_client_keeps_comes_with_its_next_message_and_replies_stand_as_messages_did(
    grid: CottageGrid,
) -> None:
    first, second = grid.get_node_ids()
    for times, nodes in ((1, [second, first]), (2, [first, second]), (3, [second])):
        replies = await asked(grid, *(told(node, value=node) for node in nodes))
        assert [reply.metadata.src_node_id for reply in replies] == nodes
        assert [reply.content["metrics"]["value"] for reply in replies] == [2 * node for node in nodes]
        assert {reply.content["metrics"]["times"] for reply in replies} == {times}
    (empty,) = await asked(grid, Message(RecordDict(), dst_node_id=first, message_type="query"))
    assert empty.content["metrics"]["times"] == 3, "a message may hold nothing"


async def test_messages_are_pushed_and_replies_pulled_once(grid: CottageGrid) -> None:
    nodes = grid.get_node_ids()
    ids = await asyncio.to_thread(grid.push_messages, [told(node, value=4) for node in nodes])
    found: list[Any] = []
    async with asyncio.timeout(60):
        while len(found) < len(list(ids)):
            found += await asyncio.to_thread(grid.pull_messages, ids)
    assert {reply.metadata.reply_to_message_id for reply in found} == set(ids)
    assert await asyncio.to_thread(grid.pull_messages, ids) == []


async def test_a_client_that_fails_is_an_error_reply_and_the_other_one_answers(grid: CottageGrid) -> None:
    first, second = grid.get_node_ids()
    broken, fine = await asked(grid, told(first, value=-1), told(second, value=1))
    assert broken.has_error()
    assert "ended with code 3" in broken.error.reason
    assert "it is broken" in broken.error.reason
    assert fine.content["metrics"]["value"] == 2
    refused, damaged = await asked(grid, told(first, value=2_000), told(second, value=13))
    assert refused.error.code == 6
    assert "too much" in refused.error.reason
    assert "\x1b" not in refused.error.reason, "homes wrote it"
    assert "is no reply" in damaged.error.reason
    (incomplete,) = await asked(grid, told(second, value=14))
    assert "is no reply" in incomplete.error.reason, "one of a stranger's does not end the run"
    (after,) = await asked(grid, told(second, value=1))
    assert after.content["metrics"]["times"] == 2, "what a client kept is not lost with a reply"


async def test_what_is_not_there_in_time_is_cancelled_and_what_was_not_earned_comes_back(
    grid: CottageGrid,
    house: ArrayHouse,  # noqa: F811
) -> None:
    for node in house.world.nodes:
        node.hung = True
    first, second = grid.get_node_ids()
    assert await asked(grid, told(first, value=1), timeout=1.0) == []
    assert await asyncio.to_thread(grid.cost) == 0
    ids = await asyncio.to_thread(grid.push_messages, [told(second, value=1)])
    async with Client(house.url) as client:
        states = [job.state for job in await client.jobs()]
        assert states.count("cancelled") == 1
        await asyncio.to_thread(grid.close)
        assert {job.state for job in await client.jobs()} == {"cancelled"}
    assert await asyncio.to_thread(grid.pull_messages, ids) == []


async def test_a_job_that_ends_otherwise_is_an_error_reply_that_says_why(
    grid: CottageGrid,
    house: ArrayHouse,  # noqa: F811
) -> None:
    for node in house.world.nodes:
        node.hung = True
    waiting = asyncio.create_task(asked(grid, *(told(node, value=1) for node in grid.get_node_ids())))
    async with Client(house.url) as client:
        while not (jobs := await client.jobs()) or jobs[0].state == "created":
            await asyncio.sleep(0.02)
        await client.cancel(jobs[0].id)
    replies = await waiting
    assert [reply.error.code for reply in replies] == [ErrorCode.NODE_UNAVAILABLE] * 2
    assert all("cancel" in reply.error.reason.lower() for reply in replies)


async def asked_for_ever(grid: CottageGrid) -> None:
    while True:
        await asked(grid, told(2, value=1))


async def test_a_budget_holds_over_all_rounds(house: ArrayHouse, tmp_path: Path) -> None:  # noqa: F811
    await doubling(house)
    async with house.running(), Client(house.url) as client:
        files = parts(tmp_path)
        probe = grid_of(house, files)
        await asked(probe, told(2, value=1))
        once = await asyncio.to_thread(probe.cost)
        (job,) = await client.jobs()
        grid = grid_of(house, files, budget=job.escrow + 3 * once)
        with pytest.raises(ClientError, match="budget"):
            await asked_for_ever(grid)
        cost = await asyncio.to_thread(grid.cost)
        paid = [one.paid for one in await client.jobs() if one.id != job.id]
        assert len(paid) > 2, "what a round did not cost is there for the next"
        assert 0 < cost == sum(paid) <= job.escrow + 3 * once


async def test_what_cannot_be_sent_is_said_before_anything_is_paid(
    grid: CottageGrid,
    house: ArrayHouse,  # noqa: F811
    tmp_path: Path,
) -> None:
    for messages, said in (
        ([], "no message"),
        ([told(99, value=1)], "there is no node 99: the grid has 2 to 3"),
        ([told(2, value=1), told(2, value=1)], "node 2 has not answered its last message"),
    ):
        with pytest.raises(ClientError, match=said):
            await asked(grid, *messages)
    for node in house.world.nodes:
        node.hung = True
    await asyncio.to_thread(grid.push_messages, [told(3, value=1)])
    with pytest.raises(ClientError, match="node 3 has not answered"):
        await asked(grid, told(3, value=1))
    with pytest.raises(ClientError, match="memory"):
        await asked(grid_of(house, parts(tmp_path / "more"), memory_mb=1 << 20), told(2, value=1))
    with pytest.raises(ClientError, match="at least one partition"):
        grid_of(house, [])
    async with Client(house.url) as client:
        assert len(await client.jobs()) == 1


@pytest.mark.parametrize(("reached", "cancels"), [(False, True), (True, True), (True, False)])
async def test_messages_whose_job_cannot_be_paid_are_forgotten_and_what_was_paid_comes_back(
    grid: CottageGrid,
    house: ArrayHouse,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    reached: bool,
    cancels: bool,
) -> None:
    """``reached``: the coordinator has funded it, and its answer is lost. ``cancels``: the line is back at once."""
    for node in house.world.nodes:
        node.hung = True
    fund, cancel = Client.fund, Client.cancel

    async def lost(self: Client, job: str) -> Any:
        if reached:
            await fund(self, job)
        raise UnreachableError("the answer is lost")

    async def away(_self: Client, _job: str) -> Any:
        raise UnreachableError("still away")

    first, second = grid.get_node_ids()
    monkeypatch.setattr(Client, "fund", lost)
    if not cancels:
        monkeypatch.setattr(Client, "cancel", away)
    with pytest.raises(UnreachableError, match="the answer is lost"):
        await asked(grid, told(first, value=1), told(second, value=1))
    monkeypatch.setattr(Client, "fund", fund)
    monkeypatch.setattr(Client, "cancel", cancel)
    (escrow,) = (one.escrow for one in grid._rounds.values())
    assert await asyncio.to_thread(grid.cost) == 0
    for node in house.world.nodes:
        node.hung = False
    grid._budget = escrow
    replies = await asked(grid, told(first, value=1), told(second, value=1))
    assert [reply.content["metrics"]["value"] for reply in replies] == [2, 2]
    async with Client(house.url) as client:
        assert [job.state for job in await client.jobs()].count("cancelled") == 1


async def test_messages_that_a_failing_line_keeps_from_being_answered_do_not_keep_their_nodes(
    grid: CottageGrid,
    monkeypatch: pytest.MonkeyPatch,
    house: ArrayHouse,  # noqa: F811
) -> None:
    elements, node = Client.elements, next(iter(grid.get_node_ids()))

    async def away(*_words: Any, **_more: Any) -> Any:
        raise UnreachableError("the coordinator is away")

    monkeypatch.setattr(Client, "elements", away)
    with pytest.raises(UnreachableError, match="is away"):
        await asked(grid, told(node, value=1))
    monkeypatch.setattr(Client, "elements", elements)
    (reply,) = await asked(grid, told(node, value=3))
    assert reply.content["metrics"]["value"] == 6
    async with Client(house.url) as client:
        assert len(await client.jobs()) == 2


APP = """
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp import ServerApp

app, replies = ServerApp(), []

@app.main()
def main(grid, context):
    for number in range(context.run_config["num-server-rounds"]):
        told = RecordDict({"metrics": MetricRecord({"value": number})})
        asked = [Message(told, dst_node_id=node, message_type="query") for node in grid.get_node_ids()]
        replies.append([reply.content["metrics"]["value"] for reply in grid.send_and_receive(asked)])
"""


async def test_the_pages_program_runs_as_it_stands_there(
    house: ArrayHouse,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (EXAMPLE.parents[1] / "docs" / "how-to" / "flower.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for number, file in enumerate(parts(tmp_path, 10)):
        file.rename(tmp_path / "parts" / f"{number}.csv")
    (tmp_path / "my_app").mkdir()
    (tmp_path / "my_app" / "server_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    await doubling(house)
    program = program.replace("http://127.0.0.1:8470", house.url).replace("ARTIFACT", house.image)
    names: dict[str, Any] = {}
    async with house.running(), Client(house.url) as client:
        await asyncio.to_thread(exec, program, names)
        paid = [job.paid for job in await client.jobs()]
    assert importlib.import_module("my_app.server_app").replies == [[2 * number] * 10 for number in range(3)]
    assert len(paid) == 3
    assert int(capsys.readouterr().out.split()[-1]) == sum(paid) > 0
