"""The client has a call for every operation that the interface's document has, but for those that it lacks on purpose."""

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from common.clock import SystemClock
from coordinator.client import Client, ProblemError
from coordinator.client.cli import main
from coordinator.client.line import HttpLine
from protocol.identity import NodeKey
from protocol.rest.api import NewOutput, TrialRequest
from protocol.rest.hub import HubFile, HubModelView
from tests.coordinator.web.conftest import House
from tests.coordinator.web.test_api import archive
from tests.coordinator.web.test_life import started
from tests.coordinator.web.test_tenants import member
from transport.private.meeting import MeetingClient, Surroundings

LACKS = {
    "OPTIONS /api/v1/uploads": "what other tus clients ask first",
    "OPTIONS /api/v1/uploads/{upload}": "what other tus clients ask first",
    "PUT /api/v1/artifacts/{digest}": "for nodes, with a node's token",
    "GET /api/v1/artifacts/{digest}": "for nodes, with a node's token",
    "POST /api/v1/relays/announce": "for relays, signed by a relay's key",
    "POST /api/v1/relays/credentials": "for nodes, signed by a node's key",
    "GET /api/v1/withdrawals": "for lenders: agents ask for their owners",
    "POST /api/v1/withdrawals/offers": "for lenders, whose wallet signs what is offered",
    "POST /api/v1/withdrawals": "for lenders, signed by their wallet",
    "GET /v1/models": "for clients of OpenAI's API",
    "GET /v1/models/{model}": "for clients of OpenAI's API",
    "POST /v1/chat/completions": "for clients of OpenAI's API",
    "POST /v1/completions": "for clients of OpenAI's API",
    "POST /v1/embeddings": "for clients of OpenAI's API",
    "GET /healthz": "for whoever runs the coordinator",
    "GET /readyz": "for whoever runs the coordinator",
    "GET /openapi.json": "the document itself, for tools",
}
"""What a submitter never asks for, and why."""
EMPTY = {"POST /api/v1/hub-models", "POST /api/v1/uploads/{upload}/pull"}
EMPTY |= {"POST /api/v1/notices/confirm", "GET /api/v1/disputes/{audit}"} | {
    f"GET /api/v1/jobs/{{job}}/{part}" for part in ("promise", "rounds/{round}/evidence")
}
"""What the double has nothing of: the call is refused with a problem, by this operation."""


class Story:
    """A client, and what its calls are about: a job under way, and one that is done."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client, self.folder = client, folder
        self.data = folder / "corpus.txt"
        self.data.write_bytes(b"to be or not to be\n" * 200)
        self.spec: dict[str, Any] = {}
        self.job = self.done = self.node = ""
        self.round = 0

    async def begin(self, house: House) -> None:
        artifact = (await self.client.upload(self.data)).artifact
        model, data = {"preset": "tiny-llama"}, {"artifact": artifact}
        self.spec = {"name": "x", "model": model, "dataset": data, "budget": 9_000_000}
        self.job, self.done = await self.new(), await self.new()
        for _ in range(9):
            house.cluster.step(self.job)
        house.cluster.run(self.done)
        await house.cluster.finish(self.done, archive())
        self.node = (await self.client.nodes(self.job))[0].node
        self.round = (await self.client.checkpoints(self.job))[0].round

    async def new(self) -> str:
        job = (await self.client.create_job(self.spec)).id
        await self.client.fund(job)
        return job


async def first(stream: AsyncIterator[Any]) -> Any:
    async with contextlib.aclosing(stream) as items:  # type: ignore[type-var]
        return await anext(items)


async def the_life_of_a_job(it: Story) -> None:
    client = it.client
    price = (await client.quote(it.spec)).price
    job = (await client.create_job(it.spec | {"budget": price - 2_000, "over_budget": "pause"})).id
    await client.funding(job)
    await client.fund(job)
    await client.pause(job)
    await client.resume(job)
    await client.add_budget(job, 1_000)
    await client.share(job)
    await client.set_output(job, NewOutput("s3://mine", "a key", "a secret"))
    await client.output(job)
    await client.remove_output(job)
    await client.cancel(job)


async def the_account(it: Story) -> None:
    client = it.client
    key = await client.new_key("second")
    assert key.id in {one.id for one in await client.keys()}
    await client.revoke_key(key.id)
    (session,) = await client.sessions()
    await client.end_session(session.id)
    assert [one.action for one in await client.trail(2)] == ["session.ended", "key.revoked"]
    await client.set_notices({"webhook": "https://hooks.example.org/x", "webhook_kinds": ["done"]})
    assert await client.test_notices() == 1
    assert [one.kind for one in await client.deliveries()] == ["test"]
    secret = (await client.notices()).secret
    assert (await client.new_notices_secret()).secret != secret


async def uploads(it: Story) -> None:
    begun: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        await it.client.upload(it.data, begun=lambda upload: begun.append(upload.id) or interrupt())
    await it.client.get_upload(begun[0])
    await it.client.delete_upload(begun[0])
    with pytest.raises(ProblemError, match="no upload"):
        await it.client.get_upload(begun[0])


def interrupt() -> None:
    raise KeyboardInterrupt


async def what_an_array_leaves(it: Story) -> None:
    (done,) = await it.client.elements(it.job, state="done")
    await it.client.download_result(it.job, done, it.folder / "e0")
    await it.client.download_results(it.job, it.folder / "results.tar")


async def a_private_session(it: Story) -> None:
    key = NodeKey.generate()
    session = await it.client.private_session(it.job, key.address)
    meeting = MeetingClient(key, session.session, session.node, Surroundings((), SystemClock(), loopback=True))
    assert await it.client.private_offer(it.job, session.session, await meeting.offer())
    await meeting.aclose()


async def records_of(it: Story) -> None:
    records = await it.client.records(it.job, "0a" * 16)
    await it.client.download_record(records, "opening", it.folder)


async def what_an_operator_does(it: Story) -> None:
    client, node = it.client, it.node
    assert node in {one.node for one in await client.admin_nodes("", "online")}
    assert (await client.order_node(node, "drain")).draining
    assert not (await client.order_node(node, "undrain")).draining
    assert (await client.order_node(node, "ban", "it is resold")).banned
    assert (await client.order_node(node, "unban", "it is not")).reason == ""
    assert (await client.admin_node(node)).node == node
    job = await it.new()
    assert job in {one.id for one in await client.admin_jobs("live")}
    assert (await client.cancel_any(job, "its owner asked by mail")).state == "cancelled"
    assert [one.state for one in await client.admin_outbox("failed")] == ["failed"]
    assert (await client.admin_storage()).files > 0
    assert (await client.lenders()).rule == "invited"
    made = await client.invite("attic")
    assert [one.id for one in await client.invitations()] == [made.id]
    assert (await client.withdraw_invitation(made.id)).state == "withdrawn"


CALLS: list[Callable[[Story], Awaitable[Any]]] = [
    the_life_of_a_job,
    the_account,
    uploads,
    lambda it: it.client.account(),
    lambda it: it.client.quote(it.spec),
    lambda it: it.client.choices(it.spec),
    lambda it: it.client.check({"dataset": it.spec["dataset"]}),
    lambda it: it.client.upload(it.data),
    lambda it: it.client.hub_model("no name"),
    lambda it: it.client.pull(HubModelView("a/b", "0" * 40, "", "", (), {}, {}), HubFile("no-weights", 9)),
    lambda it: it.client.jobs(),
    lambda it: it.client.get(it.job),
    lambda it: it.client.wait(it.done),
    lambda it: it.client.rounds(it.job),
    lambda it: it.client.commits(it.job),
    lambda it: it.client.audits(it.job),
    lambda it: it.client.receipts(it.job),
    lambda it: it.client.metrics(it.job),
    lambda it: it.client.events(it.job),
    lambda it: it.client.logs(it.job),
    lambda it: it.client.compare([it.job, it.done]),
    lambda it: first(it.client.generate(it.job, TrialRequest("to be"))),
    lambda it: it.client.download_model(it.done, it.folder / "model.zip"),
    lambda it: it.client.download_merged_archive(it.job, it.folder / "merged.zip"),
    lambda it: it.client.download_checkpoint(it.job, it.round, it.folder / "point.zip"),
    lambda it: it.client.download_stage(it.job, it.round, 0, it.folder / "stage.safetensors"),
    records_of,
    what_an_array_leaves,
    a_private_session,
    lambda it: it.client.images(),
    lambda it: it.client.network(),
    lambda it: it.client.market(),
    lambda it: it.client.network_nodes(),
    lambda it: it.client.relays(),
    lambda it: first(it.client.watch_network()),
    lambda it: it.client.node_account(it.node),
    lambda it: it.client.ledger_entries(("fund", "settle"), it.job, 3),
    lambda it: it.client.ledger_audits("passed", it.job, 3),
    lambda it: it.client.ledger_totals(),
    lambda it: it.client.job_ledger(it.job),
    lambda it: it.client.disputes(it.job),
    lambda it: it.client.dispute("0" * 32),
    lambda it: it.client.promise(it.job),
    lambda it: it.client.evidence(it.job, 0),
    lambda it: it.client.confirm_notices("0" * 32),
    what_an_operator_does,
    lambda it: it.client.stop(it.job),
]


async def test_every_operation_of_the_document_has_a_call_or_is_lacking_on_purpose(
    town: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, http: Any
) -> None:
    async with http.get(f"{town.url}/openapi.json") as response:
        paths = (await response.json())["paths"]
    told = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    shapes = {one: re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(one))) for one in told}
    asked, refused = set[str](), set[str]()
    ask = HttpLine.request

    @contextlib.asynccontextmanager
    async def noted(self: HttpLine, method: str, path: str, *rest: Any, **more: Any) -> AsyncIterator[Any]:
        there = f"{method} /api/v1/{path.partition('?')[0]}"
        named = {one for one, shape in shapes.items() if shape.fullmatch(there)} or {there}
        try:
            async with ask(self, method, path, *rest, **more) as answer:
                asked.update(named)
                yield answer
        except ProblemError:
            refused.update(named)
            raise

    monkeypatch.setattr(HttpLine, "request", noted)
    header = await member(town, "ada")
    (account,) = await town.accounts.all()
    await town.accounts.begin_session(account.id, "password")
    async with Client(town.url, header["Authorization"].removeprefix("Bearer ")) as client:
        story, problems = Story(client, tmp_path), list[str]()
        await story.begin(town)
        for call in CALLS:
            try:
                await call(story)
            except ProblemError as problem:
                problems.append(problem.detail)
    assert refused == EMPTY | {"GET /api/v1/uploads/{upload}"}, problems
    assert {one for one in told & (asked | EMPTY) if one in LACKS} == set(), "lacking, and yet there"
    assert told - asked - EMPTY == set(LACKS)
    assert {one for one in asked - told if not one.startswith("HEAD ")} == set()


async def test_a_log_is_followed_across_a_restart_until_the_job_is_over_each_line_once(house: House) -> None:
    job = await started(house)
    waits = 0

    async def time_passes(_seconds: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 2:
            await house.stop()
        elif waits == 4:
            await house.start()
        elif waits == 5:
            house.cluster.run(job)
        else:
            house.cluster.step(job)

    async with Client(house.url, sleep=time_passes, attempts=1) as client:
        seen = [line async for line in client.follow_logs(job, limit=3)]
        whole = await client.logs(job, limit=1000)
    assert waits == 5
    assert [line.id for line in seen] == [line.id for line in whole][-len(seen) :], "no line twice, none missing"
    assert (await house.cluster.get(job)).state == "settled"


async def test_the_command_follows_a_log_line_by_line(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    job = await started(house)
    house.cluster.run(job)
    argv = ["logs", job, "--follow", "--json", "--server", house.url]
    assert await asyncio.to_thread(main, argv) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    async with Client(house.url) as client:
        assert [line["id"] for line in lines] == [line.id for line in await client.logs(job)]


async def test_a_log_leads_back_in_pages_and_forward_from_a_line(house: House, http: Any) -> None:
    job = await started(house)
    async with Client(house.url) as client:
        whole = [line.id for line in await client.logs(job, limit=1000)]
    assert len(whole) > 5
    for begin, order in (("", lambda pages: pages[::-1]), (f"&after={whole[0]}", lambda pages: pages)):
        there, pages = f"{house.api}/jobs/{job}/logs?limit=2{begin}", []
        while there:
            async with http.get(there) as answer:
                pages.append([line["id"] for line in await answer.json()])
                there = str(answer.links["next"]["url"]) if "next" in answer.links else ""
        assert list(itertools.chain(*order(pages))) == (whole[1:] if begin else whole)
        assert [len(page) for page in pages[:-1]] == [2] * (len(pages) - 1)


async def test_checkpoints_and_deliveries_come_in_pages_newest_first(town: House, http: Any) -> None:
    header = await member(town, "ada")
    async with Client(town.url, header["Authorization"].removeprefix("Bearer ")) as client:
        story = Story(client, town.folder)
        await story.begin(town)
        await client.set_notices({"webhook": "https://hooks.example.org/x"})
        for _ in range(3):
            await client.test_notices()
        points = [one.round for one in await client.checkpoints(story.done)]
        sent = [one.id for one in await client.deliveries()]
        assert len(await client.deliveries(2)) == 2
    assert points == sorted(points, reverse=True)
    assert len(points) > 1
    assert sent == sorted(sent, reverse=True)
    for path, key, whole in ((f"jobs/{story.done}/checkpoints", "round", points), ("notices/deliveries", "id", sent)):
        there, found = f"{town.api}/{path}?limit=1", []
        while there:
            async with http.get(there, headers=header) as answer:
                found += [one[key] for one in await answer.json()]
                there = str(answer.links["next"]["url"]) if "next" in answer.links else ""
        assert found == whole
