"""The embedded ledger's door: what malformed, oversized and hostile requests meet."""

from __future__ import annotations

import base64
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from solders.system_program import TransferParams, transfer

from common import base58
from ledger.local.rpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, Rpc
from ledger.local.server import INTERNAL_ERROR, MAX_BATCH, MAX_BODY, build_app
from tests.ledger.world import World, key, transaction

JSON = {"Content-Type": "application/json"}


async def _post(url: str, body: bytes, headers: dict[str, str] = JSON) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=headers) as answer:
        text = await answer.text()
        return answer.status, json.loads(text) if answer.content_type == "application/json" else text


async def _ask(url: str, method: str, *params: Any) -> Any:
    request = {"jsonrpc": "2.0", "id": 7, "method": method, "params": list(params)}
    status, document = await _post(url, json.dumps(request).encode())
    assert (status, document["id"]) == (200, 7)
    return document


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", PARSE_ERROR),
        (b"{", PARSE_ERROR),
        (b"\xff\xfe", PARSE_ERROR),
        (b"[" * 5000, PARSE_ERROR),
        (b'{"method": "\xff"}', PARSE_ERROR),
        (b"null", INVALID_REQUEST),
        (b"5", INVALID_REQUEST),
        (b"{}", INVALID_REQUEST),
        (b'{"method": 5}', INVALID_REQUEST),
        (b'{"method": "getSlot", "params": {}}', INVALID_REQUEST),
        (b'{"method": "getSlot", "id": {}}', INVALID_REQUEST),
        (b'{"method": "__class__"}', METHOD_NOT_FOUND),
        (b'{"method": "_send"}', METHOD_NOT_FOUND),
        (json.dumps([{"method": "getSlot"}] * (MAX_BATCH + 1)).encode(), INVALID_REQUEST),
    ],
)
async def test_malformed_requests_get_an_error_object(url: str, body: bytes, code: int) -> None:
    status, document = await _post(url, body)
    assert (status, document["error"]["code"]) == (200, code)


async def test_a_batch_is_answered_in_order(url: str) -> None:
    batch = [{"method": "getHealth", "id": "a"}, {"method": "nothing", "id": "b"}, {"method": "getSlot", "id": "c"}]
    _, answers = await _post(url, json.dumps(batch).encode())
    assert [answer["id"] for answer in answers] == ["a", "b", "c"]
    assert answers[0]["result"] == "ok"
    assert answers[1]["error"]["code"] == METHOD_NOT_FOUND


async def test_a_web_page_cannot_reach_the_ledger(url: str) -> None:
    """What a page may send without asking is never taken for a request, and asking is never granted."""
    body = b'{"method": "getHealth", "id": 1}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        status, _ = await _post(url, body, {"Content-Type": kind})
        assert status == 415
    async with aiohttp.ClientSession() as session, session.options(url) as answer:
        assert answer.status == 405
        assert "Access-Control-Allow-Origin" not in answer.headers


async def test_an_oversized_request_is_cut_off(url: str) -> None:
    status, _ = await _post(url, b" " * (MAX_BODY + 1))
    assert status == 413


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("getBalance", []),
        ("getBalance", [5]),
        ("getBalance", ["0" * 44]),
        ("getAccountInfo", ["11111111111111111111111111111111", {"dataSlice": {"offset": -1, "length": 1}}]),
        ("getAccountInfo", ["11111111111111111111111111111111", {"dataSlice": {}}]),
        ("getAccountInfo", ["11111111111111111111111111111111", {"dataSlice": 5}]),
        ("getAccountInfo", ["11111111111111111111111111111111", "base64"]),
        ("getProgramAccounts", ["11111111111111111111111111111111", {"filters": 5}]),
        ("getProgramAccounts", ["11111111111111111111111111111111", {"filters": [{"dataSize": 1}] * 5}]),
        ("getSignaturesForAddress", ["11111111111111111111111111111111", {"before": {}, "until": 5}]),
        ("getSignaturesForAddress", ["11111111111111111111111111111111", {"limit": "all"}]),
        ("getTransaction", ["x", 5]),
        ("getTokenAccountsByOwner", ["11111111111111111111111111111111", {"mint": 5}]),
        ("getMultipleAccounts", [["11111111111111111111111111111111"] * 101]),
        ("getMultipleAccounts", [[5]]),
        ("getProgramAccounts", ["11111111111111111111111111111111", {"filters": [{"memcmp": {"offset": 0}}]}]),
        ("getProgramAccounts", ["11111111111111111111111111111111", {"filters": ["all"]}]),
        (
            "getProgramAccounts",
            ["11111111111111111111111111111111", {"filters": [{"memcmp": {"offset": 0, "bytes": "0OIl"}}]}],
        ),
        ("getMinimumBalanceForRentExemption", [-1]),
        ("getMinimumBalanceForRentExemption", [True]),
        ("getTokenAccountBalance", ["11111111111111111111111111111111"]),
        ("getTokenSupply", ["11111111111111111111111111111111"]),
        ("getSignatureStatuses", [["x"] * 257]),
        ("getSignaturesForAddress", ["11111111111111111111111111111111", {"limit": 1001}]),
        ("isBlockhashValid", ["?"]),
        ("getFeeForMessage", ["AAAA"]),
        ("sendTransaction", ["", {"encoding": "base64"}]),
        ("sendTransaction", ["AAAA", {"encoding": "base64"}]),
        ("sendTransaction", ["!", {"encoding": "base64"}]),
        ("sendTransaction", ["0OIl"]),
        ("sendTransaction", [base64.b64encode(bytes(1233)).decode(), {"encoding": "base64"}]),
        ("simulateTransaction", ["AQID", {"encoding": "base64"}]),
        ("requestAirdrop", ["11111111111111111111111111111111", 10**16]),
        ("cottageFaucet", ["11111111111111111111111111111111", -1, 0]),
        ("cottageFaucet", ["11111111111111111111111111111111", 2**64, 0]),
        ("cottageFaucet", ["11111111111111111111111111111111", 1]),
    ],
)
async def test_wrong_parameters_are_named_and_change_nothing(
    world: World, url: str, method: str, params: list[Any]
) -> None:
    count = world.chain.store.count()
    assert (await _ask(url, method, *params))["error"]["code"] == INVALID_PARAMS
    assert world.chain.store.count() == count


async def test_the_faucet_gives_the_same_twice_when_asked_twice(world: World, url: str) -> None:
    owner = key("somebody new").pubkey()
    for _ in range(2):
        assert "result" in await _ask(url, "cottageFaucet", str(owner), 5, 1_000_000)
        assert "result" in await _ask(url, "requestAirdrop", str(owner), 1_000_000)
    assert world.tokens(owner) == 10
    assert (await _ask(url, "getBalance", str(owner)))["result"]["value"] == 4_000_000


async def test_a_transaction_with_a_forged_signature_is_refused(world: World, url: str) -> None:
    gift = transfer(TransferParams(from_pubkey=world.stranger, to_pubkey=world.node, lamports=5))
    wire = bytearray(bytes(transaction(world, [gift], key("stranger"))))
    wire[10] ^= 1
    for skip in (True, False):
        options = {"encoding": "base64", "skipPreflight": skip}
        answer = await _ask(url, "sendTransaction", base64.b64encode(wire).decode(), options)
        assert answer["error"]["data"]["err"] == "SignatureFailure"


async def test_a_full_disk_ends_the_serving(world: World) -> None:
    ended: list[bool] = []
    runner = web.AppRunner(build_app(Rpc(world.chain, world.genesis), lambda: ended.append(True)))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    pages = world.chain.store._db.execute("pragma page_count").fetchone()[0]
    world.chain.store._db.execute(f"pragma max_page_count = {pages}")
    owner = str(key("somebody new").pubkey())
    answers = [await _ask(f"http://{host}:{port}", "requestAirdrop", owner, 1_000_000) for _ in range(40)]
    assert answers[-1]["error"] == {"code": INTERNAL_ERROR, "message": "the ledger cannot write its file and stops"}
    assert ended
    await runner.cleanup()


async def test_both_encodings_of_a_transaction_are_taken(world: World, url: str) -> None:
    for number, encoding in enumerate(("base58", "base64")):
        gift = transfer(TransferParams(from_pubkey=world.stranger, to_pubkey=world.node, lamports=number))
        wire = bytes(transaction(world, [gift], key("stranger")))
        text = base58.encode(wire) if encoding == "base58" else base64.b64encode(wire).decode()
        simulated = await _ask(url, "simulateTransaction", text, {"encoding": encoding, "sigVerify": True})
        assert simulated["result"]["value"]["err"] is None
        assert "result" in await _ask(url, "sendTransaction", text, {"encoding": encoding})


async def test_signatures_of_an_address_are_paged_newest_first(world: World, url: str) -> None:
    owner = key("somebody new").pubkey()
    sent = [(await _ask(url, "requestAirdrop", str(owner), 1_000_000))["result"] for _ in range(5)]
    newest_first = sent[::-1]

    async def page(**config: Any) -> list[str]:
        answer = await _ask(url, "getSignaturesForAddress", str(owner), config)
        return [entry["signature"] for entry in answer["result"]]

    assert await page() == newest_first
    assert await page(limit=2) == newest_first[:2]
    assert await page(limit=2, before=newest_first[1]) == newest_first[2:4]
    assert await page(until=newest_first[3]) == newest_first[:3]


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\1", bytes(range(256)), b"\xff" * 64])
def test_base_58_reads_back(data: bytes) -> None:
    assert base58.decode(base58.encode(data)) == data
