"""The playground in a real Chromium: talk with a model or two, stop, clear, copy, and what goes wrong in words."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, Literal

import aiohttp
import msgspec
import pytest

from coordinator.errors import InvalidError, NoTemplateError, TooManyError
from coordinator.services.artifacts.models import TrainerTools
from coordinator.services.serving.engines import Engines
from coordinator.web.auth.gate import SESSION_COOKIE
from protocol.ids import Digest
from protocol.job.job import JobSpec, ModelSpec, ServeSpec, TokenizerSpec
from protocol.serving import AnsweredReport, GenerateCommand, TextReport
from tests.coordinator.serving.small_model import pack_into, small_model
from tests.coordinator.web.conftest import House
from tests.coordinator.web.fake_services import Outputs
from tests.coordinator.web.pages.test_browser import (
    AXE,
    FAULTS,
    OTHERS,
    PICTURES,
    TWO,
    Visit,
    visit,
)
from tests.coordinator.web.pages.test_browser import chromium as chromium
from tests.coordinator.web.pages.test_browser import (
    pytestmark as browser_marks,
)
from tests.coordinator.web.test_life import started as untold
from tests.coordinator.web.test_signin import HTML
from tests.coordinator.web.test_tenants import job_of, member
from tests.support.wait import HANGS_S

pytestmark = browser_marks
Said = AsyncIterator[TextReport | AnsweredReport]
Complete = Callable[[Outputs, str, int | Literal["start"] | None, GenerateCommand], Said]
LEMON: Final = (
    "A ripe lemon is yellow, since its peel loses the green of its chlorophyll and keeps carotenoids.\n\n"
    "1. Unripe ones are green.\n2. Cold nights make them turn.\n\nSome stay green and are ripe all the same."
)
HOSTILE: Final = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"


def with_template(house: House, job: str) -> None:
    """Have a job's model come with a chat template."""
    found = house.cluster._find(job)
    tokenizer = TokenizerSpec("file", file=Digest("0" * 64), settings={"chat_template": "{{ messages }}"})
    spec = msgspec.structs.replace(found.view.spec, tokenizer=tokenizer)
    found.view = msgspec.structs.replace(found.view, spec=spec)


async def started(house: House) -> str:
    """As the one of ``test_life``; its model has a chat template."""
    job = await untold(house)
    with_template(house, job)
    return job


def answers_with(monkeypatch: pytest.MonkeyPatch, complete: Complete) -> None:
    monkeypatch.setattr(Outputs, "complete", complete)


async def pieces(text: str, pause_s: float = 0.0) -> Said:
    words = text.split(" ")
    for number, word in enumerate(words):
        yield TextReport("1", word if number == 0 else f" {word}")
        await asyncio.sleep(pause_s)
    yield AnsweredReport("1", "stop", 7, len(words))


async def opened(chromium: Any, house: House, query: str = "", **more: Any) -> Visit:
    seen = await visit(chromium, house, f"/playground{query}", **more)
    await seen.page.wait_for_selector("#words:visible")
    return seen


async def send(seen: Visit, text: str, answers: int = 1) -> None:
    """Say something by keyboard, and wait until so many answers in all have ended."""
    await seen.page.fill("#words", text)
    await seen.page.press("#words", "Enter")
    await ended(seen, answers)


async def ended(seen: Visit, answers: int) -> None:
    await seen.page.wait_for_function(
        "(wanted) => [...document.querySelectorAll('.answer')].filter((one) => one.querySelector('.facts').textContent"
        " || one.querySelector('.note:not([hidden])')).length === wanted && document.querySelector('#stop').hidden",
        arg=answers,
    )


def asked_of(seen: Visit) -> list[dict[str, Any]]:
    """The bodies of all requests to models, as they are sent."""
    bodies: list[dict[str, Any]] = []
    seen.page.on("request", lambda one: bodies.append(json.loads(one.post_data)) if "completions" in one.url else None)
    return bodies


async def pictured(seen: Visit, name: str) -> None:
    """It fits every window, is accessible in each, and its picture is taken."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    await seen.page.evaluate(AXE)
    for width, scheme in (*TWO, *OTHERS):
        await seen.page.set_viewport_size({"width": width, "height": 900})
        await seen.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        over = await seen.page.evaluate(
            "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert over <= 0, f"{name} is {over} pixels too wide at {width}"
        await seen.page.screenshot(path=PICTURES / f"{name}-{width}-{scheme}.png", full_page=True)
        assert await seen.page.evaluate(FAULTS, None) == [], f"{name} {width} {scheme}"


async def test_people_talk_with_a_model_by_keyboard(chromium: Any, house: House) -> None:
    job = await started(house)
    seen = await opened(chromium, house)
    page, bodies = seen.page, asked_of(seen)
    assert await page.evaluate("document.activeElement.id") == "words"
    await page.fill("#words", "one")
    await page.press("#words", "Shift+Enter")
    await page.keyboard.type("two")
    assert await page.input_value("#words") == "one\ntwo"
    await send(seen, "what is it")
    assert await page.text_content(".says") == "what is it"
    assert "3 tokens" in await page.inner_text(".facts")
    assert "answered by" not in await page.inner_text(".facts"), "nothing where nothing is said"
    assert await page.inner_text("#spoken p >> nth=-1") == "a job: what is it"
    assert await page.evaluate("document.activeElement.id") == "words"
    await page.click("#settings summary")
    await page.fill("#system", "Be brief.")
    for name, value in (("temperature", "0.5"), ("top_p", "0.9"), ("max_tokens", "2"), ("seed", "7")):
        await page.fill(f"#{name}", value)
    await send(seen, "and this one", 2)
    assert "cut off" in await page.inner_text(".facts >> nth=1")
    assert bodies[0]["messages"] == [{"role": "user", "content": "what is it"}]
    assert (bodies[0]["model"], bodies[0]["max_tokens"], "temperature" in bodies[0]) == (job, 512, False)
    assert bodies[1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "what is it"},
        {"role": "assistant", "content": " what is it"},
        {"role": "user", "content": "and this one"},
    ]
    assert [bodies[1][name] for name in ("temperature", "top_p", "max_tokens", "seed")] == [0.5, 0.9, 2, 7]
    await pictured(seen, "playground-settings")
    await page.click("#clear")
    assert await page.locator(".turn").count() == 0
    await send(seen, "anew")
    assert [one["content"] for one in bodies[2]["messages"]] == ["Be brief.", "anew"]
    assert seen.complaints == []


async def test_two_models_answer_beside_each_other(
    chromium: Any, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def complete(_self: Outputs, _job: str, point: Any, command: GenerateCommand) -> Said:
        return pieces(LEMON if point is None else "Lemon is. Lemon is a fruit that", 0.02)

    answers_with(monkeypatch, complete)
    job = await started(house)
    seen = await opened(chromium, house, f"?model={job}&beside={job}@1")
    page, bodies = seen.page, asked_of(seen)
    assert await page.locator("#beside option:checked").inner_text() == "a job, after round 1"
    await send(seen, "What colour is a lemon, and why?", 2)
    await send(seen, "Are there others?", 4)
    told = await page.locator(".says >> nth=0").text_content()
    assert told == LEMON
    history = {body["model"]: body["messages"][1]["content"] for body in bodies[2:]}
    assert history == {job: LEMON, f"{job}@1": "Lemon is. Lemon is a fruit that"}, "each hears what it said itself"
    boxes = [await page.locator(f".answer >> nth={place}").bounding_box() for place in range(2)]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    await pictured(seen, "playground-two")
    await page.set_viewport_size({"width": 390, "height": 900})
    boxes = [await page.locator(f".answer >> nth={place}").bounding_box() for place in range(2)]
    assert boxes[0]["x"] == boxes[1]["x"]
    assert boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"]
    composer = await page.locator("#words").bounding_box()
    assert composer["y"] + composer["height"] <= 900, "where one writes stays in sight"
    await page.screenshot(path=PICTURES / "playground-two-seen-390-light.png")
    assert seen.complaints == []


async def test_stop_ends_the_answer_where_it_is_and_at_the_model(
    chromium: Any, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = asyncio.Event()

    async def endless(_self: Outputs, _job: str, _point: Any, _command: GenerateCommand) -> Said:
        try:
            while True:
                yield TextReport("1", "word ")
                await asyncio.sleep(0.02)
        finally:
            gone.set()

    answers_with(monkeypatch, endless)
    await started(house)
    seen = await opened(chromium, house)
    page = seen.page
    await page.fill("#words", "go on for ever")
    await page.click("#send")
    await page.wait_for_function("() => document.querySelector('.says')?.textContent.length > 40")
    assert await page.is_hidden("#send")
    assert await page.get_attribute("#talk", "aria-busy") == "true"
    await pictured(seen, "playground-running")
    await page.click("#stop")
    async with asyncio.timeout(HANGS_S):
        await gone.wait()
    await ended(seen, 1)
    kept = await page.text_content(".says")
    assert "stopped" in await page.inner_text(".facts")
    assert await page.evaluate("document.activeElement.id") == "words"
    await page.wait_for_timeout(200)
    assert await page.text_content(".says") == kept
    gone.clear()
    await page.fill("#words", "once more")
    await page.press("#words", "Enter")
    await page.wait_for_selector(".answer >> nth=1")
    await page.click("#clear")
    async with asyncio.timeout(HANGS_S):
        await gone.wait()
    assert await page.is_visible("#send")
    assert seen.complaints == []


async def test_a_model_that_is_being_loaded_says_so(
    chromium: Any, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = asyncio.Event()

    async def slow(_self: Outputs, _job: str, _point: Any, _command: GenerateCommand) -> Said:
        await ready.wait()
        yield TextReport("1", "Here.")
        yield AnsweredReport("1", "stop", 1, 1)

    answers_with(monkeypatch, slow)
    monkeypatch.setattr("coordinator.web.stream.PACE_S", 0.1)  # Signs of life are no words.
    await started(house)
    seen = await opened(chromium, house)
    await seen.page.fill("#words", "are you there")
    await seen.page.press("#words", "Enter")
    await seen.page.wait_for_selector(".wait:has-text('The model is being loaded … ')")
    assert await seen.page.inner_text("#spoken") == "a job is being loaded."
    await pictured(seen, "playground-loading")
    ready.set()
    await ended(seen, 1)
    assert await seen.page.is_hidden(".wait")
    assert "1 token · the first after" in await seen.page.inner_text(".facts")
    assert seen.complaints == []


async def test_a_node_that_is_waited_for_in_mid_answer_is_told(
    chromium: Any, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = asyncio.Event()

    async def halting(_self: Outputs, _job: str, _point: Any, _command: GenerateCommand) -> Said:
        yield TextReport("1", "Here")
        await ready.wait()
        yield TextReport("1", " it goes on.")
        yield AnsweredReport("1", "stop", 1, 2)

    answers_with(monkeypatch, halting)
    await started(house)
    seen = await opened(chromium, house)
    await seen.page.fill("#words", "are you there")
    await seen.page.press("#words", "Enter")
    await seen.page.wait_for_selector(".says:has-text('Here')")
    assert await seen.page.is_hidden(".wait")
    await seen.page.wait_for_selector(".wait:has-text('Waiting for a node … ')")
    ready.set()
    await ended(seen, 1)
    assert await seen.page.is_hidden(".wait")
    assert await seen.page.inner_text(".says") == "Here it goes on."
    assert seen.complaints == []


async def test_no_more_is_asked_for_than_a_deployment_reads(chromium: Any, house: House) -> None:
    job, other = await started(house), await started(house)
    found = house.cluster._find(job)
    spec = JobSpec("served", ModelSpec(from_job="ab" * 16), 1_000_000, serve=ServeSpec(context=256))
    found.view = msgspec.structs.replace(found.view, spec=spec, state="running")
    seen = await opened(chromium, house, f"?model={other}")
    bodies = asked_of(seen)
    await send(seen, "Hi")
    await seen.page.select_option("#model", job)
    await send(seen, "Hi", 2)
    assert [body["max_tokens"] for body in bodies] == [512, 256]
    assert await seen.page.get_attribute("#max_tokens", "max") == "256"


async def test_a_model_without_a_template_goes_on_with_the_text(
    chromium: Any, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def plain(_self: Outputs, _job: str, _point: Any, command: GenerateCommand) -> Said:
        if command.messages:
            raise NoTemplateError(
                "this model has no chat template: have it continue the text, without chat", "messages"
            )
        async for report in pieces(" a lemon tree"):
            yield report

    answers_with(monkeypatch, plain)
    await started(house)
    seen = await opened(chromium, house)
    page, bodies = seen.page, asked_of(seen)
    await send(seen, "Once upon a time, in")
    assert "no chat template" in await page.inner_text(".answer .note")
    await pictured(seen, "playground-no-template")
    await page.click("text=Go on with these words as a text")
    await ended(seen, 2)
    assert await page.text_content(".says >> nth=1") == "Once upon a time, in a lemon tree"
    assert await page.inner_text("label[for=words]") == "A text to go on with"
    assert bodies[1]["prompt"] == "Once upon a time, in"
    assert await page.locator("#system").is_hidden()
    assert [text for text in seen.complaints if "400" not in text] == []


@pytest.mark.long
async def test_a_model_that_is_known_to_have_no_template_begins_with_going_on_with_a_text(
    chromium: Any, house: House
) -> None:
    plain = await untold(house)
    chatty = await started(house)
    seen = await opened(chromium, house, f"?model={plain}@3")
    page, bodies = seen.page, asked_of(seen)
    label = page.locator("label[for=words]")
    assert await label.inner_text() == "A text to go on with"
    await pictured(seen, "playground-text")
    await send(seen, "Once upon a time")
    assert bodies[0]["prompt"] == "Once upon a time"
    await page.select_option("#model", chatty)
    assert await label.inner_text() == "What you say"
    await page.select_option("#beside", plain)
    assert await label.inner_text() == "A text to go on with", "both of them can do that"
    await page.click("#settings summary")
    await page.check("[name=kind][value=chat]")
    assert await label.inner_text() == "What you say", "who insists is not kept from it"
    assert seen.complaints == []


async def test_what_goes_wrong_is_said_in_words(chromium: Any, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_self: Outputs, _job: str, _point: Any, command: GenerateCommand) -> Said:
        if "much" in str(command.messages):
            raise TooManyError("16 answers of models of yours are under way: wait for one", 10.0)
        yield TextReport("1", "So")
        raise InvalidError("the model failed at this", "prompt")

    answers_with(monkeypatch, broken)
    await started(house)
    seen = await opened(chromium, house)
    page = seen.page
    await send(seen, "too much")
    assert "16 answers of models of yours are under way" in await page.inner_text(".note >> nth=-1")
    await send(seen, "half", 2)
    assert await page.text_content(".says >> nth=1") == "So"
    assert await page.inner_text(".answer .note >> nth=1") == "The model failed at this"
    await page.route("**/v1/chat/completions", lambda route: route.abort())
    await send(seen, "nobody", 3)
    assert "does not answer" in await page.inner_text(".answer .note >> nth=2")
    await page.unroute("**/v1/chat/completions")
    cut = 'data: {"choices":[{"delta":{"content":"Half"}}]}\n\n'
    await page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=cut))
    await send(seen, "cut", 4)
    assert "The line was cut" in await page.inner_text(".answer .note >> nth=3")
    assert "The line was cut" in await page.inner_text("#spoken"), "whoever listens hears it"
    await page.click("#settings summary")
    await page.fill("#temperature", "9")
    await page.click("#settings summary")
    await page.fill("#words", "hot")
    await page.press("#words", "Enter")
    assert await page.locator(".turn").count() == 4
    assert await page.is_visible("#temperature"), "the setting that is wrong is shown"


async def test_whoever_answered_is_named_and_words_of_models_are_only_text(chromium: Any, house: House) -> None:
    await started(house)
    seen = await opened(chromium, house)
    page = seen.page
    chunks = (
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"content": HOSTILE}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}], "cottage": {"nodes": ["attic", f"cellar{HOSTILE}"]}},
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1200, "total_tokens": 1203}},
    )
    body = "".join(f"data: {json.dumps(one)}\n\n" for one in chunks) + "data: [DONE]\n\n"
    await page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    await send(seen, HOSTILE)
    assert await page.text_content(".says") == await page.text_content(".asked") == HOSTILE
    assert f"answered by attic, cellar{HOSTILE}" in (await page.text_content(".facts") or "")
    assert "1,200 tokens" in await page.inner_text(".facts")
    assert "owned" not in await page.title()
    assert await page.locator("main img, main script").count() == 0
    assert seen.complaints == []


async def test_an_answer_is_copied_whole(chromium: Any, house: House) -> None:
    await started(house)
    seen = await opened(chromium, house, permissions=["clipboard-read", "clipboard-write"])
    await send(seen, "to be copied")
    await seen.page.click("[data-copy-answer]")
    await seen.page.wait_for_selector("text=Copied")
    assert await seen.page.evaluate("navigator.clipboard.readText()") == " to be copied"


async def test_who_has_no_model_is_led_to_training_one(chromium: Any, house: House) -> None:
    seen = await visit(chromium, house, "/playground")
    await seen.page.wait_for_selector("#none:visible")
    assert await seen.page.is_hidden("#play")
    await pictured(seen, "playground-none")
    still = await visit(chromium, house, "/playground", java_script_enabled=False)
    assert "needs JavaScript" in await still.page.inner_text("noscript, main")
    assert await still.page.is_hidden("#play")


async def test_people_see_their_own_models_and_come_in_with_their_session(
    chromium: Any, town: House, http: aiohttp.ClientSession
) -> None:
    async with http.get(f"{town.url}/playground", headers=HTML, allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (303, "/sign-in?next=%2Fplayground")
    ada = await member(town, "ada")
    job = await job_of(town, http, ada)
    await job_of(town, http, await member(town, "eve"))
    await town.cluster.fund(job)
    for _ in range(3):
        town.cluster.step(job)
    with_template(town, job)
    account = (await town.accounts.by_key(ada["Authorization"].removeprefix("Bearer "))).account_id
    session = await town.accounts.begin_session(account, "test")
    seen = await visit(chromium, town, "/sign-in")
    await seen.page.context.add_cookies([{"name": SESSION_COOKIE, "value": session, "url": town.url}])
    await seen.page.goto("/playground")
    await seen.page.wait_for_selector("#words:visible")
    assert await seen.page.locator("#model option").all_inner_texts() == ["secret"]
    await send(seen, "hello to you")
    assert await seen.page.text_content(".says") == "hello to you"
    await seen.page.context.clear_cookies()
    await send(seen, "still there", 2)
    assert "not signed in any more" in await seen.page.inner_text(".answer .note >> nth=1")


@pytest.mark.long
async def test_a_real_model_answers_and_one_without_a_template_goes_on(
    chromium: Any, house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model(tmp_path / "made")
    chats = await pack_into(house.artifacts, model, tmp_path / "chats.zip")
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": None}))
    plain = await pack_into(house.artifacts, model, tmp_path / "plain.zip")
    engines = Engines(TrainerTools(house.artifacts, tmp_path / "scratch", 120.0, 8_192).served)

    def complete(_self: Outputs, _job: str, point: Any, command: GenerateCommand) -> Said:
        return engines.generate(Digest(chats if point is None else plain), command, 120.0)

    answers_with(monkeypatch, complete)
    job = await started(house)
    seen = await opened(chromium, house, f"?model={job}&beside={job}@1")
    page = seen.page
    page.set_default_timeout(90_000)
    await page.click("#settings summary")
    await page.fill("#max_tokens", "24")
    await page.fill("#seed", "3")
    await send(seen, "function", 2)
    said = await page.text_content(".says >> nth=0")
    assert len(said or "") > 3
    assert "24 tokens" in await page.inner_text(".facts >> nth=0")
    await page.click("text=Go on with these words as a text")
    await ended(seen, 4)
    gone_on = await page.locator(".says").all_text_contents()
    assert gone_on[2] == gone_on[3], "both are the same weights"
    assert gone_on[3].startswith("function")
    assert len(gone_on[3]) > len("function") + 3
    await page.click("#clear")
    await page.check("[name=kind][value=chat]")
    await page.select_option("#beside", "")
    await send(seen, "function")
    assert await page.text_content(".says") == said, "a seed has one answer"
    await engines.close()
