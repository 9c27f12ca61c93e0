"""A node asks for credentials at every relay, to measure them: who gets them, and who does not."""

import struct
import time

import pytest

from common.clock import SystemClock
from coordinator.config import Config
from protocol.codec import encode_json
from protocol.identity import NodeKey
from tests.coordinator.conftest import until
from tests.coordinator.network.test_relays import door, envelope, quick, relay_server, report
from transport.nettest.errors import CoordinatorError, NoRelayError
from transport.nettest.offer import ask_relays, question
from transport.nettest.run import run
from transport.relay import announce

__all__ = ["quick"]

NODE, OTHER = NodeKey(b"n" * 32), NodeKey(b"o" * 32)


async def test_a_node_is_told_every_relay_that_lives_and_can_measure_with_what_it_gets(
    config: Config, quick: None
) -> None:
    async with relay_server() as (server, url), door(config) as at:
        with pytest.raises(NoRelayError):
            await ask_relays(at.url, NODE, SystemClock())
        status, _ = await at.announce(envelope(report(urls=(url,))))
        assert status == 200
        await until(lambda: any(view.state == "up" for view in at.house.parts.relays.views()))
        [target] = await ask_relays(at.url, NODE, SystemClock())
        assert target.name == url
        assert all(entry.username.endswith(f":{NODE.address}") for entry in target.servers)
        found = await run([target], speed=False)
        assert found.relays[0].udp
        assert server.options.secret not in repr(target)


@pytest.mark.parametrize(
    ("host", "sent", "key", "complaint"),
    [
        ("another.test", 0.0, NODE, "does not hold"),
        ("", -120.0, NODE, "set the node's clock"),
        ("", 120.0, NODE, "set the node's clock"),
        ("", 0.0, OTHER, "does not hold"),
    ],
    ids=["for another coordinator", "old", "early", "by another key"],
)
async def test_a_question_that_does_not_hold_is_refused(
    config: Config, host: str, sent: float, key: NodeKey, complaint: str
) -> None:
    async with door(config) as at:
        own = at.url.removeprefix("http://")
        asked = question(key, host or own, time.time() + sent)
        forged = type(asked)(NODE.address, asked.sent, asked.signature)
        async with at._http.post(f"{at.url}/api/v1/relays/credentials", data=encode_json(forged)) as answer:
            assert answer.status == 403
            assert complaint in (await answer.json())["detail"]


async def test_what_is_no_question_is_refused(config: Config) -> None:
    async with door(config) as at:
        for body in (b"", b"[]", b'{"node": "me"}', b"x" * 100_000):
            async with at._http.post(f"{at.url}/api/v1/relays/credentials", data=body) as answer:
                assert answer.status == 422


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "ftp://x", "", "http://[", "nonsense"])
async def test_a_coordinator_that_cannot_be_asked_is_named(address: str) -> None:
    with pytest.raises(CoordinatorError, match=r"coordinator"):
        await ask_relays(address, NODE, SystemClock())


def test_a_signature_for_one_purpose_is_none_for_the_other() -> None:
    asked = question(NODE, "c.test", 5.0)
    assert asked.signature == NODE.sign("cottage-relays", b"c.test", struct.pack("!d", 5.0))
    assert announce.CONTEXT != "cottage-relays"
