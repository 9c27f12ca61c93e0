"""Who may lend, at the door and while work goes on: real WebSockets, real HTTP, a real database."""

import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from common.clock import SystemClock
from common.invitations import read
from coordinator.config import Config, IdentityConfig
from coordinator.domain.account import Principal, Role, Scope
from coordinator.services.accounts.accounts import AccountService
from coordinator.services.accounts.identities import SEEN_S
from coordinator.services.network.lenders import NOT_INVITED, NOT_SEEN, NOT_VERIFIED
from coordinator.services.network.nodes import NOT_ADMITTED_S
from coordinator.store.records import CredentialRecord, NodeRecord
from protocol.codec import decode, encode
from protocol.identity import NodeKey
from protocol.node import CoordinatorMessage, Refused, Welcome
from protocol.rest.lending import LendingRule
from tests.coordinator.conftest import House, nodes, opened, until
from tests.coordinator.fakes import FakeChain
from tests.coordinator.network.test_lenders import written
from tests.coordinator.network.test_node_socket import dialled, hello
from transport.nettest.errors import CoordinatorError
from transport.nettest.offer import ask_relays
from transport.nettest.offer import question as question_of

KEYS = [NodeKey(number.to_bytes(32, "big")) for number in range(9)]


@dataclass
class Gate:
    """A coordinator that lets in whom its rule says; ``members``: what each sends to be known by."""

    house: House
    http: aiohttp.ClientSession
    members: dict[str, dict[str, str]]
    folder: Path

    def url(self, path: str) -> str:
        return self.house.url.replace("/api/v1/node", path)

    async def ask(self, method: str, path: str, who: str = "root", status: int = 200, **more: Any) -> Any:
        url = self.url(f"/api/v1/{path}")
        async with self.http.request(method, url, headers=self.members.get(who, {}), **more) as answer:
            assert answer.status == status, await answer.text()
            return await answer.json()

    async def invite(self, who: str = "root", **body: Any) -> tuple[str, str]:
        """An invitation's id and code, as its link has it."""
        made = await self.ask("POST", "invitations", who, 201, json=body)
        assert read(made["link"]) == read(made["page"])
        return made["id"], read(made["link"]).code

    async def knock(self, key: NodeKey, code: str = "", **fields: Any) -> CoordinatorMessage:
        """What a node is answered that greets with this code."""
        async with dialled(self.house) as socket:
            await socket.send_bytes(encode(await hello(socket, key, invitation=code, **fields)))
            answer: CoordinatorMessage = decode(await socket.receive_bytes(), CoordinatorMessage)
            return answer

    async def refused(self, key: NodeKey, code: str = "") -> str:
        answer = await self.knock(key, code)
        assert isinstance(answer, Refused)
        assert answer.retry_seconds == NOT_ADMITTED_S, "it asks again by itself, and seldom"
        return answer.reason


Opening = Callable[..., AbstractAsyncContextManager[Gate]]


@pytest.fixture
def gate(config: Config, tmp_path: Path) -> Opening:
    """Opens the coordinator over one database with a rule, and a list where there is a text."""

    @asynccontextmanager
    async def enter(rule: LendingRule, text: str | None = None, **more: Any) -> AsyncIterator[Gate]:
        file = None if text is None else written(tmp_path, text)
        ruled = replace(config, who_may_lend=rule, lenders=file, **more)
        async with opened(ruled, FakeChain(), rest=True, signed_in=True) as house, aiohttp.ClientSession() as http:
            accounts = AccountService(house.parts.context.store, SystemClock())
            members = {name: await _member(accounts, name) for name in ("root", "ada", "bob")}
            yield Gate(house, http, members, tmp_path)

    return enter


async def _member(accounts: AccountService, name: str) -> dict[str, str]:
    role = Role.OPERATOR if name == "root" else Role.SUBMITTER
    known = {account.name: account for account in await accounts.all()}
    account = known.get(name) or await accounts.create(name, role)
    scopes = frozenset(Scope) if name == "root" else frozenset(Scope) - {Scope.OPERATE}
    _, text = await accounts.create_key(Principal(account.id, scopes), "test", scopes)
    return {"Authorization": f"Bearer {text}"}


async def test_a_stranger_is_told_why_and_leaves_nothing_behind(gate: Opening) -> None:
    async with gate("invited") as here:
        assert await here.refused(KEYS[1]) == NOT_INVITED
        assert "is not known here" in await here.refused(KEYS[1], "1" * 22)
        async with here.house.parts.context.store.transaction() as tx:
            assert await tx.find(NodeRecord) == []
        network = await here.ask("GET", "network")
        assert (network["who_may_lend"], network["min_stake"], network["nodes_online"]) == ("invited", 0, 0)


async def test_one_machine_comes_in_by_an_invitation_and_the_thief_of_it_does_not(gate: Opening) -> None:
    async with gate("invited") as here:
        invitation, code = await here.invite(note="attic")
        assert isinstance(await here.knock(KEYS[1], code), Welcome)
        assert "was used by another computer" in await here.refused(KEYS[2], code)
        assert isinstance(await here.knock(KEYS[1]), Welcome)
        (shown,) = await here.ask("GET", "invitations")
        assert (shown["id"], shown["state"], shown["node"], shown["by"]) == (
            invitation,
            "used",
            KEYS[1].address,
            "root",
        )
        assert "link" not in shown or not shown["link"], "a code is shown once"
    async with gate("invited") as here:
        assert isinstance(await here.knock(KEYS[1]), Welcome), "also after a restart"
    async with gate("everybody") as here:
        assert isinstance(await here.knock(KEYS[2]), Welcome)


async def test_who_signs_for_another_s_key_does_not_use_up_an_invitation(gate: Opening) -> None:
    async with gate("invited") as here:
        _, code = await here.invite()
        forged = await here.knock(KEYS[1], code, node=KEYS[2].address)
        assert isinstance(forged, Refused)
        assert "the greeting does not hold" in forged.reason
        assert isinstance(await here.knock(KEYS[1], code), Welcome)


async def test_a_listed_wallet_or_name_that_a_node_only_claims_lets_it_in_nowhere(gate: Opening) -> None:
    wallet = KEYS[5].address
    async with gate("listed", f"node {wallet}\n") as here:
        answer = await here.knock(KEYS[1], payout=wallet)
        assert isinstance(answer, Refused)
        assert f"this computer's key, {KEYS[1].address}" in answer.reason


async def test_relays_are_for_those_who_may_lend(gate: Opening) -> None:
    """Else a private network's relays would carry whatever strangers like."""
    async with gate("invited", stun=("stun:127.0.0.1:3478",)) as here:
        _, code = await here.invite()

        async def asked(status: int) -> Any:
            host = here.url("/").split("/")[2]
            question = msgspec.json.encode(question_of(KEYS[1], host, time.time()))
            headers = {"Content-Type": "application/json"}
            async with here.http.post(here.url("/api/v1/relays/credentials"), data=question, headers=headers) as answer:
                assert answer.status == status, await answer.text()
                return await answer.json()

        why = (await asked(403))["detail"]
        assert "the line can be tested once this one has been let in" in why
        with pytest.raises(CoordinatorError, match=rf"answers 403: {re.escape(why)}$"):
            await ask_relays(here.url("/"), KEYS[1], SystemClock())
        assert isinstance(await here.knock(KEYS[1], code), Welcome)
        assert (await asked(200))["servers"]


async def test_a_ban_counts_more_than_a_list(gate: Opening) -> None:
    async with gate("listed", f"node {KEYS[1].address}\n") as here:
        assert isinstance(await here.knock(KEYS[1]), Welcome)
        await here.ask("POST", f"admin/nodes/{KEYS[1].address}/ban", json={"reason": "noise"})
        assert "is banned" in (await here.knock(KEYS[1])).reason  # type: ignore[union-attr]


async def test_the_operator_s_auditors_are_always_let_in(gate: Opening) -> None:
    async with gate("listed", "", auditors=frozenset({KEYS[1].address})) as here:
        assert isinstance(await here.knock(KEYS[1]), Welcome)
        assert not here.house.parts.nodes.is_draining(KEYS[1].address)


async def test_rights_are_given_and_taken_back_without_a_restart(gate: Opening) -> None:
    async with gate("listed", "# nobody yet\n") as here:
        assert "only computers on this network's list" in await here.refused(KEYS[1])
        written(here.folder, f"node {KEYS[1].address}\n")
        await until(lambda: here.house.parts.nodes.lenders.why_not(KEYS[1].address) == "")
        async with nodes(here.house, 1) as (node,):
            written(here.folder, "oops\n")
            await until(lambda: here.house.parts.nodes.lenders.view().problem)
            assert "line 1" in (await here.ask("GET", "admin/lenders"))["problem"]
            assert not node.closed, "the list of before counts"
            written(here.folder, "\n")
            await until(lambda: node.closed)
            assert node.refused is not None
            assert "only computers on this network's list" in node.refused.reason
            assert node.refused.retry_seconds == NOT_ADMITTED_S
            told = await here.ask("GET", f"admin/nodes/{node.key.address}")
            assert (told["online"], told["why_not"]) == (False, node.refused.reason)


async def test_a_person_of_the_organisation_lends_until_nobody_has_seen_them_for_a_while(gate: Opening) -> None:
    provider = IdentityConfig("https://id.example", "cottage")
    async with gate("verified", identity=provider) as here:
        assert await here.refused(KEYS[1]) == NOT_VERIFIED
        assert (await here.ask("GET", "network"))["who_may_lend"] == "verified"
        async with here.http.get(here.url("/network"), headers={"Accept": "text/html"}) as page:
            assert (
                "Only computers of people who sign in here through their organisation may lend here."
                in await page.text()
            )
        await here.ask("POST", "invitations", "ada", 403, json={})
        store = here.house.parts.context.store
        ada, now = await AccountService(store, SystemClock()).by_name("ada"), time.time()
        record = CredentialRecord("ada", ada.id, "identity", "ada", b"https://id.example", now, used=now)
        async with store.transaction() as tx:
            await tx.insert(record)
        _, code = await here.invite("ada")
        assert isinstance(await here.knock(KEYS[1], code), Welcome)
        async with nodes(here.house, 1) as (node,):
            assert (await here.ask("GET", "admin/lenders"))["owners"] == ["ada"]
            async with store.transaction() as tx:
                (kept,) = await tx.find(CredentialRecord)
                await tx.update(msgspec.structs.replace(kept, used=now - SEEN_S))
            await until(lambda: node.closed)
            assert node.refused is not None
            assert node.refused.reason == NOT_SEEN
