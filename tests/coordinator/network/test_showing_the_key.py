"""A node that was invited asks the coordinator to show its key: for this greeting, under the name that others know it by."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from common.errors import BadSignatureError
from coordinator.config import Config
from protocol.codec import decode, encode
from protocol.identity import NodeKey, verify
from protocol.node import Welcome
from tests.coordinator.conftest import FakeChain, House, opened
from tests.coordinator.network.test_node_socket import KEY, dialled, hello

COORDINATOR = NodeKey(b"c" * 32)
NONCE = bytes(range(32))


@pytest.fixture(params=["", "https://cottage.example/"])
async def keyed(request: pytest.FixtureRequest, config: Config) -> AsyncIterator[House]:
    async with opened(replace(config, public_url=request.param or None), FakeChain(), key=COORDINATOR) as house:
        yield house


async def welcome(house: House, **fields: object) -> Welcome:
    async with dialled(house) as socket:
        await socket.send_bytes(encode(await hello(socket, **fields)))
        return decode(await socket.receive_bytes(), Welcome)


async def test_the_key_signs_the_greeting_under_the_public_name(keyed: House) -> None:
    proof = (await welcome(keyed, nonce=NONCE)).proof
    name = "cottage.example" if keyed.parts.context.config.public_url else keyed.url.split("/")[2]
    parts = (NONCE, KEY.address.encode())
    verify(COORDINATOR.address, proof, "cottage-welcome", *parts, name.encode())
    with pytest.raises(BadSignatureError):
        verify(COORDINATOR.address, proof, "cottage-welcome", *parts, b"impostor.example")
    with pytest.raises(BadSignatureError):
        verify(COORDINATOR.address, proof, "cottage-welcome", bytes(32), KEY.address.encode(), name.encode())


async def test_who_does_not_ask_is_signed_nothing(keyed: House, house: House) -> None:
    assert (await welcome(keyed)).proof == b""
    assert (await welcome(house, nonce=NONCE)).proof == b"", "a coordinator without a key of its own shows none"
