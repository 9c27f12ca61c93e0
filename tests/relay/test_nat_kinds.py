"""STUN Binding, and answers from another address or port of the relay (RFC 5780): how nodes learn their NAT's kind."""

import secrets

import pytest
from aioice import stun
from aioice.stun import Class, Method

from tests.relay.conftest import asker, code, relay_options
from transport.relay import message
from transport.relay.message import Attribute
from transport.relay.server import RelayServer

CHANGE_PORT, CHANGE_IP = 2, 4


async def ask(server: RelayServer, change: int) -> tuple[stun.Message, tuple[str, int]]:
    async with asker(server.addresses[0]) as client:
        transaction = secrets.token_bytes(12)
        change_request = (Attribute.CHANGE_REQUEST, change.to_bytes(4, "big"))
        client.send(message.encode(Method.BINDING, Class.REQUEST, transaction, [change_request]))
        data, source = await client.inbox.next()
        answer = stun.parse_message(data)
        assert code(answer) or answer.attributes["XOR-MAPPED-ADDRESS"] == client.address
        return answer, source


async def test_a_client_learns_its_address_and_where_else_to_ask(relay: RelayServer) -> None:
    async with asker(relay.addresses[0]) as client:
        answer = await client.raw(Method.BINDING)
        assert answer.attributes["XOR-MAPPED-ADDRESS"] == client.address
        assert answer.attributes["RESPONSE-ORIGIN"] == relay.addresses[0]
        other = answer.attributes["OTHER-ADDRESS"]
    assert other[1] != relay.addresses[0][1]
    async with asker(other) as client:
        assert (await client.raw(Method.BINDING)).attributes["XOR-MAPPED-ADDRESS"] == client.address


async def test_with_two_addresses_the_answer_comes_from_where_it_was_asked_for() -> None:
    async with RelayServer(relay_options(listen=("127.0.0.1", "127.0.0.2"))) as server:
        asked = server.addresses[0]
        seen = {change: (await ask(server, change))[1] for change in (0, CHANGE_PORT, CHANGE_IP | CHANGE_PORT)}
        assert seen[0] == asked
        assert seen[CHANGE_PORT][0] == asked[0]
        assert seen[CHANGE_PORT][1] != asked[1]
        assert seen[CHANGE_IP | CHANGE_PORT][0] == "127.0.0.2"
        assert seen[CHANGE_IP | CHANGE_PORT][1] != asked[1]
        answer, _ = await ask(server, 0)
        assert answer.attributes["OTHER-ADDRESS"][0] == "127.0.0.2"


@pytest.mark.parametrize("change", [CHANGE_IP, CHANGE_IP | CHANGE_PORT])
async def test_what_the_relay_has_not_it_refuses(relay: RelayServer, change: int) -> None:
    assert code((await ask(relay, change))[0]) == 420


async def test_without_a_second_port_nothing_else_is_offered() -> None:
    async with RelayServer(relay_options(nat_port=None)) as server:
        answer, _ = await ask(server, 0)
        assert "OTHER-ADDRESS" not in answer.attributes
        assert code((await ask(server, CHANGE_PORT))[0]) == 420
