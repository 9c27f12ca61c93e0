"""Private talks of the playground in a real Chromium: words go to a home over WebRTC, and none of them to the coordinator."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from coordinator.errors import UnavailableError
from protocol.asking import NO_TEMPLATE
from protocol.job.job import JobSpec, ModelSpec, ServedAdapter, ServeSpec, TokenizerSpec
from protocol.private.signed_counts import check_counts
from protocol.rest.private import NewPrivateSession, PrivateSession
from tests.coordinator.serving.talking_homes import LONG
from tests.coordinator.web.conftest import House
from tests.coordinator.web.pages.test_browser import ARGUMENTS, CHROMIUM, Visit, playwright
from tests.coordinator.web.pages.test_browser import pytestmark as browser_marks
from tests.coordinator.web.pages.test_playground import opened, pictured, send, started
from tests.support.wait import HANGS_S

pytestmark = browser_marks
WEBRTC = ["--disable-features=WebRtcHideLocalIpsWithMdns", "--allow-loopback-in-peer-connection"]
SECRET = "quokka in the larder"
TEXTS = TokenizerSpec("file", file="b" * 64)


@pytest.fixture
async def chromium() -> AsyncIterator[Any]:
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS, *WEBRTC])
        yield browser
        await browser.close()


async def deployment(house: House, adapters: tuple[ServedAdapter, ...] = ()) -> str:
    """A job that serves a model of which the page does not know whether it has a chat template."""
    job = await started(house)
    found = house.cluster._find(job)
    spec = JobSpec("a job", ModelSpec(from_job="ab" * 16), 1_000_000, serve=ServeSpec(adapters=adapters))
    found.view = msgspec.structs.replace(found.view, spec=spec, state="running")
    return job


async def privately(chromium: Any, house: House) -> Visit:
    await deployment(house)
    seen = await opened(chromium, house)
    await seen.page.check("#private")
    return seen


async def until(condition: Any) -> None:
    async with asyncio.timeout(HANGS_S):
        while not condition():
            await asyncio.sleep(0.05)


async def test_an_adapter_is_asked_privately_by_its_number(chromium: Any, house: House) -> None:
    adapters = [ServedAdapter(name * 16) for name in ("0a", "0b")]
    job = await deployment(house, tuple(adapters))
    seen = await opened(chromium, house)
    for number, name in ((2, f"{job}:{adapters[1].job}"), (0, job)):
        await seen.page.select_option("#model", name)
        await seen.page.check("#private")
        await send(seen, SECRET, 1 if number else 2)
        assert house.private.models[house.private.keys[0].address].asked[-1].adapter == number
    assert seen.complaints == []


async def test_words_go_to_the_home_and_none_to_the_coordinator(chromium: Any, house: House) -> None:
    seen = await privately(chromium, house)
    bodies: list[str] = []
    seen.page.on("request", lambda one: bodies.append(one.url + (one.post_data or "")))
    await send(seen, SECRET)
    assert await seen.page.inner_text(".says") == SECRET
    facts = await seen.page.inner_text(".facts")
    assert "4 tokens" in facts
    assert "answered by home 1" in facts
    assert "the coordinator saw counts only" in facts
    assert len(bodies) == 2, "a session and its offer"
    assert all("/private" in body and "quokka" not in body for body in bodies)
    home = house.private.keys[0]
    [command] = house.private.models[home.address].asked
    assert command.messages == ({"role": "user", "content": SECRET},)
    assert command.tokens == 512
    await until(lambda: house.private.signed)
    [(session, counts)] = house.private.signed.items()
    assert (counts.answers, counts.prompt, counts.tokens) == (1, 7, 4)
    client = house.private._tickets[session][1].client
    check_counts(counts, client, session, home.address)
    await send(seen, "and again", 2)
    assert house.private.models[home.address].asked[-1].messages[1] == {"role": "assistant", "content": SECRET}
    await pictured(seen, "playground-private")
    assert seen.complaints == []


async def test_the_page_signs_as_it_reads_so_a_long_answer_comes_whole(chromium: Any, house: House) -> None:
    seen = await privately(chromium, house)
    await seen.page.evaluate("document.querySelector('#max_tokens').value = ''")
    await send(seen, "long")
    assert (await seen.page.inner_text(".says")).split() == [str(number) for number in range(LONG)]
    await until(lambda: any(one.answers == 1 for one in house.private.signed.values()))
    assert [one.tokens for one in house.private.signed.values()] == [LONG]


async def test_where_a_home_is_gone_another_one_goes_on_behind_its_words(chromium: Any, house: House) -> None:
    seen = await privately(chromium, house)
    one, other = (house.private.models[key.address] for key in house.private.keys)
    one.stops_after = 2
    await seen.page.fill("#words", SECRET)
    await seen.page.press("#words", "Enter")
    await until(lambda: len(house.private.channels) == 1)
    await seen.page.wait_for_function("() => document.querySelector('.says')?.textContent === 'quokka in'")
    await house.private.channels[0].aclose()
    await seen.page.wait_for_function("() => document.querySelector('.facts').textContent")
    assert await seen.page.inner_text(".says") == SECRET
    assert "answered by home 1, home 2" in await seen.page.inner_text(".facts")
    assert other.asked[0].begun == (0, 1)
    assert other.asked[0].sampling == one.asked[0].sampling


@pytest.mark.parametrize("swap", ["fingerprint", "key"])
async def test_a_coordinator_that_changes_the_answer_is_found(chromium: Any, house: House, swap: str) -> None:
    seen = await privately(chromium, house)

    def tamper(envelope: bytes) -> bytes:
        whole = msgspec.msgpack.decode(envelope)
        body = msgspec.msgpack.decode(whole["body"])
        if swap == "fingerprint":
            own = bytes(range(32))
            body["sdp"] = body["sdp"].replace(body["fingerprint"].hex(":").upper(), own.hex(":").upper())
            body["fingerprint"] = own
            signature = whole["signature"]
        else:
            intruder = house.private.keys[1]
            signature = intruder.sign("cottage/signal/1", whole["body"])
        return msgspec.msgpack.encode({"body": msgspec.msgpack.encode(body), "signature": signature})

    house.private.tamper = tamper
    await send(seen, SECRET)
    assert "not signed by the node" in await seen.page.inner_text(".note:not([hidden])")
    assert not any(model.asked for model in house.private.models.values())


async def test_stop_ends_the_answer_at_the_model(chromium: Any, house: House) -> None:
    seen = await privately(chromium, house)
    model = house.private.models[house.private.keys[0].address]
    model.stops_after = 1
    await seen.page.fill("#words", SECRET)
    await seen.page.press("#words", "Enter")
    await seen.page.wait_for_function("() => document.querySelector('.says')?.textContent === 'quokka'")
    await seen.page.click("#stop")
    await until(lambda: model.forgotten)
    assert "stopped" in await seen.page.inner_text(".facts")


@pytest.mark.parametrize("stopped", [False, True])
async def test_where_no_home_holds_the_model_yet_the_page_waits_until_it_is_stopped(
    chromium: Any, house: House, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    seen, granted, asked = await privately(chromium, house), house.private.open, 0

    async def open_later(job: str, wanted: NewPrivateSession) -> PrivateSession:
        nonlocal asked
        asked += 1
        if asked == 1 or stopped:
            raise UnavailableError(f"no node of deployment {job} holds its model yet: try again")
        return await granted(job, wanted)

    monkeypatch.setattr(house.private, "open", open_later)
    await seen.page.fill("#words", SECRET)
    await seen.page.press("#words", "Enter")
    await until(lambda: asked)
    if stopped:
        await seen.page.click("#stop")
    await seen.page.wait_for_function("() => document.querySelector('.facts')?.textContent")
    assert ("stopped" in await seen.page.inner_text(".facts")) is stopped
    assert await seen.page.inner_text(".says") == ("" if stopped else SECRET)


async def test_a_model_without_a_template_is_not_asked_to_chat_and_a_text_is_offered(
    chromium: Any, house: House
) -> None:
    job = await started(house)
    found = house.cluster._find(job)
    spec = JobSpec("a job", ModelSpec(config={}, weights="a" * 64), 1_000_000, tokenizer=TEXTS, serve=ServeSpec(1, 256))
    found.view = msgspec.structs.replace(found.view, spec=spec, state="running")
    seen = await opened(chromium, house)
    await seen.page.check("#private")
    await seen.page.click("#settings summary")
    await seen.page.check("[name=kind][value=chat]")
    await send(seen, SECRET)
    assert "This model has no chat template" in await seen.page.inner_text(".note:not([hidden])")
    model = house.private.models[house.private.keys[0].address]
    assert not model.asked, "nobody is troubled with it"
    await seen.page.click("text=Go on with these words as a text")
    await until(lambda: model.asked)
    assert (model.asked[0].prompt, model.asked[0].tokens) == (SECRET, 256)


async def test_what_the_node_refuses_is_offered_as_a_text_where_that_may_do(chromium: Any, house: House) -> None:
    seen = await privately(chromium, house)
    model = house.private.models[house.private.keys[0].address]
    model.refuses = ("no-template", NO_TEMPLATE)
    await send(seen, SECRET)
    assert NO_TEMPLATE[1:] in await seen.page.inner_text(".note:not([hidden])")
    model.refuses = None
    await seen.page.click("text=Go on with these words as a text")
    await until(lambda: len(model.asked) == 2)
    assert model.asked[1].prompt == SECRET


async def test_only_deployments_can_be_asked_in_private(chromium: Any, house: House) -> None:
    await started(house)
    seen = await opened(chromium, house)
    assert not await seen.page.is_visible("#private")


async def test_a_browser_without_such_keys_says_so(chromium: Any, house: House) -> None:
    seen = await privately(chromium, house)
    await seen.page.evaluate(
        "() => { crypto.subtle.generateKey = async () => { throw new Error('NotSupportedError'); }; }"
    )
    await send(seen, SECRET)
    assert "has no Ed25519 keys" in await seen.page.inner_text(".note:not([hidden])")
