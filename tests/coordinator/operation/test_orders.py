"""Orders of an operator over real HTTP, to a real coordinator whose nodes speak over real WebSockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import pytest

from common.clock import SystemClock
from coordinator.config import Config
from coordinator.domain.account import Principal, Role, Scope
from coordinator.services.accounts.accounts import AccountService
from coordinator.services.network.nodes import ASK_AGAIN_S
from coordinator.services.operation import node_orders
from coordinator.store.records import NodeRecord, OutboxRecord
from protocol.codec import encode
from protocol.identity import NodeKey
from protocol.rest.admin import MAX_REASON
from protocol.rest.api import NewJob
from tests.coordinator.conftest import House, nodes, opened, until
from tests.coordinator.fakes import FakeChain, profile, spec
from tests.coordinator.network.test_node_socket import dialled, hello, refusal

HOSTILE = "\x1b]0;owned\x07<script>alert(1)</script>\u202e\nsecond line"


@dataclass
class Office:
    """A coordinator that asks who somebody is, and what an operator and a submitter send."""

    house: House
    http: aiohttp.ClientSession
    root: dict[str, str]
    ada: dict[str, str]
    accounts: AccountService

    def url(self, path: str) -> str:
        return self.house.url.replace("/api/v1/node", f"/api/v1/{path}")

    async def get(self, path: str, **more: Any) -> Any:
        async with self.http.get(self.url(path), headers=self.root, **more) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def post(self, path: str, status: int = 200, reason: str | None = None) -> Any:
        body = {} if reason is None else {"reason": reason}
        async with self.http.post(self.url(path), headers=self.root, json=body) as answer:
            assert answer.status == status, await answer.text()
            return await answer.json()

    async def trail(self) -> list[tuple[str, str]]:
        found = await self.get("account/trail?of=everybody")
        return [(one["action"], one["subject"]) for one in found if one["action"].split(".")[0] in ("node", "job")]


Door = Callable[[], contextlib.AbstractAsyncContextManager[Office]]


@pytest.fixture
def door(config: Config) -> Door:
    """Opens the coordinator over one database: the second one continues what the first one left."""

    @contextlib.asynccontextmanager
    async def enter() -> AsyncIterator[Office]:
        async with opened(config, FakeChain(), rest=True, signed_in=True) as house, aiohttp.ClientSession() as http:
            accounts = AccountService(house.parts.context.store, SystemClock())
            headers = [await _member(accounts, name) for name in ("root", "ada")]
            yield Office(house, http, *headers, accounts)

    return enter


async def _member(accounts: AccountService, name: str) -> dict[str, str]:
    known = {account.name: account for account in await accounts.all()}
    role = Role.OPERATOR if name == "root" else Role.SUBMITTER
    account = known.get(name) or await accounts.create(name, role)
    _, text = await accounts.create_key(Principal(account.id, frozenset(Scope)), "test", frozenset(Scope))
    return {"Authorization": f"Bearer {text}"}


@pytest.fixture
async def office(door: Door) -> AsyncIterator[Office]:
    async with door() as made:
        yield made


async def test_a_banned_node_is_sent_away_told_why_and_let_in_again(office: Office) -> None:
    async with nodes(office.house, 1) as (node,):
        address = node.key.address
        told = await office.post(f"admin/nodes/{address}/ban", reason="it resells the machine")
        assert (told["banned"], told["reason"]) == (True, "by this network's operator: it resells the machine")
        await until(lambda: node.closed)
        assert office.house.parts.nodes.session(address) is None
    async with dialled(office.house) as socket:
        await socket.send_bytes(encode(await hello(socket, node.key)))
        refused = await refusal(socket)
    assert refused.reason == f"node {address} is banned by this network's operator: it resells the machine"
    assert refused.retry_seconds == ASK_AGAIN_S, "it asks again by itself"
    again = await office.post(f"admin/nodes/{address}/ban", reason="another reason")
    assert again["reason"].endswith("it resells the machine"), "what is so already stays"
    assert not (await office.post(f"admin/nodes/{address}/unban", reason="it does not"))["banned"]
    async with nodes(office.house, 1) as (node,):
        assert (await office.get(f"admin/nodes/{address}"))["online"]
    assert await office.trail() == [
        ("node.unban", f"{address}: it does not"),
        ("node.ban", f"{address}: it resells the machine"),
    ]
    assert [one["via"].split()[0] for one in await office.get("account/trail?limit=1")] == ["key"]


async def test_a_ban_and_a_drain_outlive_a_restart(door: Door) -> None:
    first, second = (NodeKey(number.to_bytes(32, "big")).address for number in (1, 2))
    async with door() as office, nodes(office.house, 2):
        await office.post(f"admin/nodes/{first}/drain")
        await office.post(f"admin/nodes/{second}/ban", reason="resold")
    async with door() as office, nodes(office.house, 1):
        assert [one["node"] for one in await office.get("admin/nodes?state=draining")] == [first]
        assert office.house.parts.nodes.candidates() == []
        refused = await _refused(office.house, 2)
        assert refused.endswith("is banned by this network's operator: resold")
        await office.post(f"admin/nodes/{first}/undrain")
        assert [one.node for one in office.house.parts.nodes.candidates()] == [first]


async def _refused(house: House, number: int) -> str:
    async with dialled(house) as socket:
        key = NodeKey(number.to_bytes(32, "big"))
        await socket.send_bytes(encode(await hello(socket, key)))
        return (await refusal(socket)).reason


async def test_what_an_audit_has_found_is_told_as_before_and_an_operator_may_forgive_it(office: Office) -> None:
    async with nodes(office.house, 1) as (node,):
        address = node.key.address
    async with office.house.parts.context.store.transaction() as tx:
        record = await tx.get(NodeRecord, address)
        await tx.update(msgspec.structs.replace(record, banned=True, reason="audit 0a: wrong"))
    await office.house.parts.nodes.recover()
    assert "an audit found that its work was not" in await _refused(office.house, 1)
    await office.post(f"admin/nodes/{address}/unban", reason="the card is replaced")
    async with nodes(office.house, 1):
        assert (await office.get(f"admin/nodes/{address}"))["reason"] == ""


async def test_whoever_is_no_operator_sees_and_orders_nothing(office: Office) -> None:
    async with nodes(office.house, 1) as (node,):
        there = f"admin/nodes/{node.key.address}"
        job = "0" * 32
        for path in ("admin/nodes", there, "admin/jobs", "admin/outbox", "admin/storage"):
            for header, status in ((office.ada, 403), ({}, 401)):
                async with office.http.get(office.url(path), headers=header) as answer:
                    assert answer.status == status, path
        orders = (*(f"{there}/{word}" for word in ("drain", "undrain", "ban", "unban")), f"admin/jobs/{job}/cancel")
        for path in orders:
            for header, status in ((office.ada, 403), ({}, 401)):
                async with office.http.post(office.url(path), headers=header, json={"reason": "x"}) as answer:
                    assert answer.status == status, path
        found = await office.get(there)
        assert (found["draining"], found["banned"]) == (False, False)
        limited = (
            await office.accounts.create_key(
                Principal((await office.accounts.all())[0].id, frozenset(Scope)),
                "no operator's",
                frozenset({Scope.JOBS_WRITE}),
            )
        )[1]
        async with office.http.get(office.url("admin/nodes"), headers={"Authorization": f"Bearer {limited}"}) as answer:
            assert answer.status == 403, "an operator's key without the scope"
    assert await office.trail() == []


async def test_nodes_are_found_by_how_their_addresses_begin_by_their_names_and_by_state(office: Office) -> None:
    async with nodes(office.house, 3) as made:
        one = made[1]
        await office.post(f"admin/nodes/{made[2].key.address}/drain")

        async def named(**query: str) -> list[str]:
            return [found["name"] for found in await office.get("admin/nodes", params=query)]

        assert await named() == ["node-1", "node-2", "node-3"]
        assert await named(search=one.key.address[:9]) == await named(search=one.payout[:9]) == ["node-2"]
        assert await named(search="NODE-2") == ["node-2"]
        assert await named(search=HOSTILE[:99]) == await named(search="%") == await named(search="'; drop") == []
        assert await named(state="draining") == ["node-3"]
        assert await named(state="banned") == await named(state="busy") == []
        assert await named(state="online", search="node-1") == ["node-1"]
        for query in ({"search": "x" * 201}, {"search": "\0"}, {"state": "asleep"}):
            async with office.http.get(office.url("admin/nodes"), params=query, headers=office.root) as answer:
                assert answer.status == 422
    await until(lambda: not office.house.parts.nodes.sessions())
    assert await named(state="online") == []


async def test_a_search_that_is_given_up_looking_goes_on_where_it_was(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_orders, "PAGE", 4)
    monkeypatch.setattr(node_orders, "MAX_LOOKED", 8)
    async with office.house.parts.context.store.transaction() as tx:
        for number in range(30):
            key = NodeKey((number + 1).to_bytes(32, "big")).address
            name = "needle" if number in (3, 20, 29) else "straw"
            await tx.insert(NodeRecord(key, key, profile(name), float(number), 9.0))
    there, pages, found = office.url("admin/nodes?search=needle&limit=2"), 0, []
    while there:
        async with office.http.get(there, headers=office.root) as answer:
            assert answer.status == 200
            found += [one["since"] for one in await answer.json()]
            there = str(answer.links["next"]["url"]) if "next" in answer.links else ""
            pages += 1
    assert found == [3.0, 20.0, 29.0]
    assert 4 <= pages <= 5, "no answer looks through more than it may"


async def test_reasons_are_cleaned_bounded_and_asked_for(office: Office) -> None:
    async with nodes(office.house, 1) as (node,):
        there = f"admin/nodes/{node.key.address}"
        for word in ("ban", "unban"):
            for reason in (None, "", "  \n"):
                assert "needs a reason" in (await office.post(f"{there}/{word}", 422, reason))["detail"]
        assert (await office.post(f"{there}/ban", 422, "x" * (MAX_REASON + 1)))["field"] == "reason"
        assert (await office.post(f"{there}/ban", 422, "nul\0"))["field"] == "reason"
        told = (await office.post(f"{there}/ban", reason=HOSTILE))["reason"]
    assert "\x1b" not in told
    assert "\n" not in told
    assert "\u202e" not in told
    ((action, subject),) = await office.trail()
    assert action == "node.ban"
    assert subject.startswith(f"{node.key.address}: ")
    assert not {"\x1b", "\x07", "\n", "\u202e"} & set(subject)
    assert "\x1b" not in await _refused(office.house, 1)


async def test_a_node_that_never_was_here_is_named(office: Office) -> None:
    unknown = NodeKey(b"u" * 32).address
    assert unknown in (await office.post(f"admin/nodes/{unknown}/drain", 404))["detail"]
    assert "no node" in (await office.post("admin/nodes/nobody/drain", 404))["detail"]
    assert "no job" in (await office.post(f"admin/jobs/{'0' * 32}/cancel", 404, "why"))["detail"]
    assert "no job" in (await office.post("admin/jobs/nothing/cancel", 404, "why"))["detail"]


async def test_jobs_of_all_accounts_say_what_they_wait_for_and_end_with_a_refund(office: Office) -> None:
    (_, ada) = await office.accounts.all()
    parts = office.house.parts
    async with nodes(office.house, 4):
        job = (await parts.jobs.create(NewJob(spec(2, 2, tokens=400 * 512)), ada.id)).id
        (waiting,) = await office.get("admin/jobs?state=live")
        assert (waiting["id"], waiting["owner"], waiting["state"]) == (job, "ada", "created")
        assert waiting["sentence"] == (await parts.jobs.get(job)).sentence
        assert waiting["sentence"].startswith("Waiting for ")
        assert await office.get("admin/jobs?state=running") == []
        await parts.jobs.fund(job)
        assert "needs a reason" in (await office.post(f"admin/jobs/{job}/cancel", 422))["detail"]
        await office.post(f"admin/jobs/{job}/cancel", reason="its owner asked by mail")
        await until(lambda: _ended(office, job), 30.0)
        again = await office.post(f"admin/jobs/{job}/cancel", reason="twice")
        assert again["state"] == "cancelled"
        view = await parts.jobs.get(job)
        assert view.refunded == view.escrow - view.paid
        assert view.reason == "the operator cancelled the job: its owner asked by mail"
    assert [line for line in await office.trail() if line[0] == "job.cancelled"] == [
        ("job.cancelled", f"{job}: its owner asked by mail")
    ]
    assert (await office.get("admin/jobs?state=live")) == []
    assert [one["id"] for one in await office.get("admin/jobs")] == [job]


async def _ended(office: Office, job: str) -> bool:
    view = await office.house.parts.jobs.get(job)
    return view.state == "cancelled" and view.refunded > 0


async def test_rows_that_are_open_or_given_up_are_listed_with_age_and_why(office: Office) -> None:
    for loop in office.house.loops:
        if loop.get_name() == "payments":
            loop.cancel()
    await asyncio.sleep(0)
    parts = office.house.parts
    job, now = "0a" * 16, parts.context.clock.time()
    async with parts.context.store.transaction() as tx:
        for number, state in enumerate(("confirmed", "failed", "sent", "queued")):
            why = "round 1 to 4 nodes: the ledger refused it each time" if state == "failed" else ""
            row = OutboxRecord(f"row:{number}", job, "settle", {}, now - 100.0, amount=7, detail=why, state=state)  # type: ignore[arg-type]
            await tx.insert(row)
    assert [one["state"] for one in await office.get("admin/outbox")] == ["queued", "sent", "failed"]
    assert [one["state"] for one in await office.get("admin/outbox?state=open&limit=1")] == ["queued"]
    (failed,) = await office.get("admin/outbox?state=failed")
    assert failed["detail"].endswith("refused it each time")
    assert 100.0 <= failed["age"] < 1_000.0


async def test_storage_says_what_lies_there(office: Office) -> None:
    found = await office.get("admin/storage?job_files_days=14")
    assert (found["job_files_days"], found["uploads_days"], found["largest"]) == (14, 30, [])
    found = await office.get("admin/storage")
    assert (found["place"], found["files"], found["size"]) == ("disk", 3, 3_000)
    assert found["database"] > 0
