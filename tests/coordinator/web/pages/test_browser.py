"""The pages in a real Chromium: submit by keyboard, watch a job, see errors, resume an upload; and pictures of every page."""

import os
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from coordinator.client import Client
from coordinator.domain.account import Role
from protocol.rest.api import JobView
from tests.coordinator.web.conftest import House
from tests.coordinator.web.fake import address

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
PICTURES = Path(__file__).resolve().parents[4] / "build" / "shots"
AXE = (Path(__file__).parents[1] / "vendor" / "axe-4.14.1.min.js").read_text()
FAULTS = """async (rules) => (await axe.run(document, { resultTypes: ["violations"], ...(rules && { runOnly: rules }) }))
  .violations
  .filter((found) => ["serious", "critical"].includes(found.impact))
  .map((found) => `${found.id}: ${found.nodes.map((node) => node.target.join(" ")).join(", ")}`)"""
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
COLOURS = ["color-contrast", "link-in-text-block"]
PARTS = 2  # One a processor.
TWO: Final = ((1280, "light"), (390, "dark"))
OTHERS: Final = ((1280, "dark"), (390, "light"))
"""Width and colours of a window: both of each in two, so ``OTHERS`` are long."""
PROSE = b"the quick brown fox jumps over the lazy dog\n" * 60_000

playwright = pytest.importorskip("playwright.async_api")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"no Chromium at {CHROMIUM}: apt-get install chromium"),
]


@pytest.fixture
async def chromium() -> AsyncIterator[Any]:
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        await browser.close()


class Visit:
    """A page, and everything that its console complained of."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        self.requests: list[str] = []


async def visit(chromium: Any, house: House, path: str, **more: Any) -> Visit:
    context = await chromium.new_context(**{"base_url": house.url, "viewport": {"width": 1280, "height": 900}, **more})
    context.set_default_timeout(8000)
    seen = Visit(await context.new_page())
    await seen.page.goto(path)
    return seen


async def some_jobs(house: House) -> JobView:
    """A settled job, a cancelled one, one that waits, and one in the middle of its training, which is returned."""
    data = await house.dataset()
    base = {"model": {"preset": "tiny-llama"}, "dataset": {"artifact": data}, "budget": 9_000_000}
    async with Client(house.url) as client:
        done = await client.create_job({**base, "name": "Shakespeare, small"})
        await client.fund(done.id)
        house.cluster.run(done.id)
        await house.cluster.finish(done.id, b"PK\5\6" + b"\0" * 18)
        gone = await client.create_job({**base, "name": "Wrong learning rate", "training": {"learning_rate": 1.0}})
        await client.fund(gone.id)
        await client.cancel(gone.id)
        await client.create_job({**base, "name": "Cookbook"})
        live = await client.create_job({**base, "name": "Python's own library", "training": {"tokens": 1_000_000}})
        await client.fund(live.id)
        for _ in range(24):
            house.cluster.step(live.id)
        return await client.get(live.id)


async def addresses(house: House) -> dict[str, str]:
    """Every page, with jobs in every state."""
    job = await some_jobs(house)
    views = await house.cluster.list(9, None)
    created = next(view for view in views if view.state == "created")
    settled = next(view for view in views if view.state == "settled")
    async with Client(house.url) as client:
        await client.share(settled.id)
    await house.accounts.create("Ada", Role.OPERATOR)  # Without anybody the sign-in leads to the sign-up.
    [member, *_] = await house.cluster.nodes(settled.id)
    (house.folder / "downloads").mkdir()
    (house.folder / "downloads" / "cottage_1.0_amd64.deb").write_bytes(b"a package")
    return {
        "home": "/",
        "network": "/network",
        "machines": "/machines",
        "machines-of-nobody": "/machines?owner=nobody",
        "lenders": "/lenders",
        "status": "/status",
        "earn": "/earn?gpu=RTX+4090",
        "earn-refused": "/earn?hours=99",
        "earnings": "/earnings",
        "earnings-of-one": f"/earnings?address={address('attic-4090 payout')}",
        "download": "/download",
        "join": "/join",
        "join-other": f"/join?key={address('somebody else')}",
        "docs": "/docs",
        "guide": "/docs/payments",
        "programs": "/docs/programs",
        "reference": "/docs/api",
        "ledger": "/ledger",
        "ledger-audits": "/ledger/audits",
        "ledger-disputes": "/ledger/disputes",
        "ledger-job": f"/ledger/job/{settled.id}",
        "node": f"/nodes/{member.node}",
        "jobs": "/jobs",
        "runs": "/runs",
        "playground": f"/playground?model={settled.id}&beside={job.id}",
        "compare": f"/compare?job={job.id}&job={settled.id}",
        "job": f"/jobs/{job.id}",
        "job-created": f"/jobs/{created.id}",
        "job-settled": f"/jobs/{settled.id}",
        "logs": f"/jobs/{job.id}/logs",
        "logs-searched": f"/jobs/{job.id}/logs?search=nothing+of+the+kind",
        "stop": f"/jobs/{job.id}/stop",
        "cancel": f"/jobs/{job.id}/cancel",
        "submit": "/submit",
        "submit-again": f"/submit?from={settled.id}",
        "account": "/account",
        "admin": "/admin",
        "admin-nobody": "/admin?search=nobody",
        "admin-node": f"/admin/nodes/{member.node}",
        "admin-ban": f"/admin/nodes/{member.node}/ban",
        "admin-jobs": "/admin/jobs",
        "admin-cancel": f"/admin/jobs/{job.id}/cancel",
        "admin-outbox": "/admin/outbox",
        "admin-storage": "/admin/storage",
        "invitations": "/invitations",
        "sign-in": "/sign-in",
        "sign-up": "/sign-up",
        "missing": "/netwrok",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "look", ["in turn", *(pytest.param(look, marks=pytest.mark.long) for look in ("two", "others"))]
)
@pytest.mark.parametrize("part", range(PARTS))
async def test_every_page_fits_its_window_complains_of_nothing_and_is_accessible(
    chromium: Any, house: House, part: int, look: str
) -> None:
    """``in turn``: each page fits both windows, and is looked at in one of them."""
    windows = OTHERS if look == "others" else TWO
    PICTURES.mkdir(parents=True, exist_ok=True)
    faults = {}
    for number, (name, path) in enumerate(list((await addresses(house)).items())[part::PARTS]):
        house.auth.open_to_all = name not in ("sign-in", "sign-up")
        seen = await visit(chromium, house, path)
        await seen.page.evaluate(AXE)
        if name == "submit":
            await seen.page.wait_for_selector("#quote .price")
        await seen.page.evaluate("document.querySelectorAll('details.panel').forEach(one => one.open = true)")
        for place, (width, scheme) in enumerate(windows):
            await seen.page.set_viewport_size({"width": width, "height": 900})
            await seen.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # No colour is half-way.
            overflow = await seen.page.evaluate(
                "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert overflow <= 0, f"{name} is {overflow} pixels too wide at {width}"
            if look == "in turn" and place != number % 2:
                continue
            await seen.page.screenshot(path=PICTURES / f"{name}-{width}-{scheme}.png", full_page=True)
            # What is not of colour is by night the same as by day, and TWO has it at both widths.
            if found := await seen.page.evaluate(FAULTS, COLOURS if look == "others" else None):
                faults[f"{name} {width} {scheme}"] = found
        assert [text for text in seen.complaints if not re.search("404|422", text)] == [], name
        assert all(url.startswith(house.url) for url in seen.requests), "nothing is fetched from anywhere else"
        await seen.page.context.close()
    assert faults == {}, "no serious or critical fault"


@pytest.mark.long
async def test_what_a_form_answers_is_accessible(chromium: Any, house: House) -> None:
    await house.accounts.create("Ada", Role.OPERATOR)
    faults, house.auth.open_to_all = {}, False
    seen = await visit(chromium, house, "/sign-in")
    await seen.page.fill("[name=name]", "Ada")
    await seen.page.fill("[name=password]", "not the password")
    await seen.page.keyboard.press("Enter")
    await seen.page.wait_for_selector("[role=alert]:visible")
    await seen.page.evaluate(AXE)
    faults["sign-in"] = await seen.page.evaluate(FAULTS)
    house.auth.open_to_all = True
    seen = await visit(chromium, house, "/submit")
    await seen.page.fill("[name=budget]", "nothing")
    await seen.page.click("button[value=review]")
    await seen.page.wait_for_selector(".bad[role=alert], [aria-invalid=true]")
    await seen.page.evaluate(AXE)
    faults["form"] = await seen.page.evaluate(FAULTS)
    assert faults == {"sign-in": [], "form": []}, "no serious or critical fault"


async def tab_to(page: Any, selector: str, limit: int = 60) -> None:
    """Press Tab until the element has the focus, as somebody without a mouse does."""
    for _ in range(limit):
        if await page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            return
        await page.keyboard.press("Tab")
    raise AssertionError(f"{selector} cannot be reached with the keyboard")


async def test_a_job_is_submitted_and_funded_with_the_keyboard_alone(
    chromium: Any, house: House, tmp_path: Path
) -> None:
    (tmp_path / "prose.txt").write_bytes(PROSE)
    seen = await visit(chromium, house, "/submit")
    page = seen.page
    await page.set_input_files("[data-upload=dataset] input[type=file]", tmp_path / "prose.txt")
    await page.wait_for_function("() => document.querySelector('[name=\"dataset.artifact\"]').value.length === 64")
    assert "✓ prose.txt" in await page.inner_text("[data-upload=dataset] [role=status]")
    await tab_to(page, "[name='model.choice']")
    await page.keyboard.press("ArrowDown")
    await tab_to(page, "[name=name]")
    await page.keyboard.type("by keyboard")
    await tab_to(page, "[name=budget]")
    await page.keyboard.type("25.5")
    await page.wait_for_function("() => !document.querySelector('#quote[aria-busy]')")
    await tab_to(page, "button[value=review]")
    await page.keyboard.press("Enter")
    # The review waits until every row has been looked at, REVIEW_S at most.
    await page.wait_for_selector("h1:has-text('Is this right?')", timeout=40_000)
    assert "small-llama" in await page.inner_text("main")
    PICTURES.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=PICTURES / "review-1280-light.png", full_page=True)
    await tab_to(page, "button[value=create]")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("h2:has-text('Fund it')")
    await tab_to(page, "#fund-button")
    await page.keyboard.press("Enter")
    await page.wait_for_selector(".badge:has-text('funded')")
    (job,) = await house.cluster.list(5, None)
    assert (job.name, job.state, job.spec.budget, job.spec.model.preset) == (
        "by keyboard",
        "funded",
        25_500_000,
        "small-llama",
    )
    assert house.artifacts.path(job.spec.dataset.artifact).read_bytes() == PROSE
    assert seen.complaints == []


async def test_the_chart_and_the_figures_follow_a_running_job(chromium: Any, house: House) -> None:
    job = await some_jobs(house)
    seen = await visit(chromium, house, f"/jobs/{job.id}")
    page = seen.page
    before = await page.get_attribute("#loss-wide .train", "points")
    await page.focus("#loss-wide")
    await page.keyboard.press("ArrowLeft")
    assert re.match(r"(training|validation) loss \d\.\d{4} after", await page.inner_text(".readout"))
    assert f"round {job.rounds_done} of" in await page.inner_text("[data-live=spoken]")
    for _ in range(3):
        house.cluster.step(job.id)
    await page.wait_for_function(
        f"() => document.querySelector('[data-live=spoken]').textContent.includes('round {job.rounds_done + 3} of')"
    )
    after = await page.get_attribute("#loss-wide .train", "points")
    assert len(after) > len(before), "the curve has grown without a reload"
    assert await page.evaluate("() => document.activeElement.id") == "loss-wide", "the focus stayed where it was"
    house.cluster.run(job.id)
    await page.wait_for_selector(".badge:has-text('settled')")
    assert await page.locator("#cancel").count() == 0
    assert seen.complaints == []


@pytest.mark.long
async def test_a_model_is_tried_on_a_page_that_was_open_before_there_was_one(chromium: Any, house: House) -> None:
    async with Client(house.url) as client:
        data = {"artifact": await house.dataset()}
        job = (
            await client.create_job(
                {"name": "a", "model": {"preset": "tiny-llama"}, "dataset": data, "budget": 9_000_000}
            )
        ).id
        await client.fund(job)
    seen = await visit(chromium, house, f"/jobs/{job}")
    page = seen.page
    assert "once the first checkpoint is there" in await page.inner_text("[data-live=try]")
    for _ in range(3):
        house.cluster.step(job)
    await page.fill("#prompt", "my own words")
    house.cluster.step(job)
    await page.wait_for_function(
        "() => document.querySelector('[data-live=spoken]').textContent.includes('round 2 of')"
    )
    assert await page.input_value("#prompt") == "my own words", "news take nothing away that was typed"
    await page.click("#try-button")
    await page.wait_for_function("() => document.querySelector('#said').textContent === 'my own words my own words'")
    house.cluster.step(job)
    await page.wait_for_function(
        "() => document.querySelector('[data-live=spoken]').textContent.includes('round 3 of')"
    )
    assert await page.inner_text("#said") == "my own words my own words"
    assert seen.complaints == []


async def with_tokenizer(house: House, settings: dict[str, str] | None, model: dict[str, Any]) -> str:
    """A job whose first checkpoint is there, with a tokenizer of its own."""
    dataset = await house.dataset()
    document = {
        "name": "a",
        "model": model,
        "tokenizer": {"kind": "file", "file": dataset, "settings": settings},
        "dataset": {"artifact": dataset},
        "budget": 9_000_000,
    }
    async with Client(house.url) as client:
        job = (await client.create_job(document)).id
        await client.fund(job)
    for _ in range(3):
        house.cluster.step(job)
    return job


@pytest.mark.one_in(3)
@pytest.mark.parametrize("settings", [None, {}, {"eos_token": "x"}], ids=["none", "empty", "without a template"])
async def test_a_model_without_a_chat_template_goes_on_with_a_text(
    chromium: Any, house: House, settings: dict[str, str] | None
) -> None:
    seen = await visit(chromium, house, f"/jobs/{await with_tokenizer(house, settings, {'preset': 'tiny-llama'})}")
    assert await seen.page.inner_text("label[for=prompt]") == "A text that the newest checkpoint goes on with"
    assert await seen.page.locator("[name=chat]").count() == 0
    assert await seen.page.locator("[name=start]").count() == 0
    assert seen.complaints == []


@pytest.mark.long
async def test_a_tuned_model_answers_beside_the_one_that_it_was_made_of(chromium: Any, house: House) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4}
    model = {"config": config, "weights": await house.dataset()}
    job = await with_tokenizer(house, {"chat_template": "{{ messages }}"}, model)
    seen = await visit(chromium, house, f"/jobs/{job}")
    page = seen.page
    assert await page.inner_text("label[for=prompt]") == "What you say to it"
    await page.fill("#prompt", "after it")
    await page.click("#try-button")
    await page.wait_for_function("() => document.querySelector('#before').textContent === ' before'")
    assert await page.text_content("#said") == " after it", "an answer is shown without what was said"
    shown = await page.inner_text("[data-live=try]")
    assert shown.index("Now") < shown.index("after it") < shown.index("Before")
    for name, width, scheme in (("wide", 1280, "light"), ("narrow", 390, "dark")):
        await page.set_viewport_size({"width": width, "height": 900})
        await page.emulate_media(color_scheme=scheme)
        await page.locator("[data-live=try]").screenshot(path=PICTURES / f"try-beside-{name}-{scheme}.png")
    await page.uncheck("[name=start]")
    await page.uncheck("[name=chat]")
    await page.click("#try-button")
    await page.wait_for_function("() => document.querySelector('#said').textContent === 'after it after it'")
    assert await page.is_hidden("#before")
    assert seen.complaints == []


async def test_errors_stand_beside_their_fields_and_what_was_typed_stays(chromium: Any, house: House) -> None:
    seen = await visit(chromium, house, "/submit")
    page = seen.page
    await page.fill("[name=name]", "kept <b>as typed</b>")
    await page.fill("[name=budget]", "-5")
    await page.fill("[name='training.tokens']", "many")
    await page.fill("[name='training.learning_rate']", "7")
    await page.click("button[value=review]")
    await page.wait_for_selector("#errors")
    for name, says in (
        ("budget", "not an amount"),
        ("training.tokens", "not a whole number"),
        ("training.learning_rate", "at most 1"),
        ("dataset.artifact", "choose a file"),
    ):
        assert says in await page.inner_text(f"[id='error-{name}']")
        assert await page.get_attribute(f"[id='field-{name}']", "aria-invalid") == "true"
        assert f"error-{name}" in await page.get_attribute(f"[id='field-{name}']", "aria-describedby")
    assert await page.input_value("[name=name]") == "kept <b>as typed</b>"
    await page.screenshot(path=PICTURES / "submit-errors-1280-light.png", full_page=True)
    assert [text for text in seen.complaints if "422" not in text] == []


async def test_a_bad_dataset_is_told_at_once_beside_its_field(chromium: Any, house: House, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_bytes(b"%PDF-1.7 and more")
    seen = await visit(chromium, house, "/submit")
    await seen.page.set_input_files("[data-upload=dataset] input[type=file]", tmp_path / "book.txt")
    await seen.page.wait_for_selector("[data-upload=dataset] .error")
    assert "book.txt: this is a PDF: extract its text first" in await seen.page.inner_text(
        "[data-upload=dataset] .error"
    )


@pytest.mark.long
async def test_what_a_dataset_is_can_be_chosen_after_it_has_come(chromium: Any, house: House, tmp_path: Path) -> None:
    (tmp_path / "lines.csv").write_bytes(PROSE.replace(b",", b""))
    seen = await visit(chromium, house, "/submit")
    await seen.page.set_input_files("[data-upload=dataset] input[type=file]", tmp_path / "lines.csv")
    await seen.page.wait_for_selector(
        "#report:has-text('can be csv (a table (CSV)) or text (plain text): choose its format')"
    )
    uploads = len(list((house.folder / "uploads").glob("*.json")))
    await seen.page.check("[name='dataset.format'][value=text]", force=True)
    await seen.page.wait_for_selector("#report:has-text('Read as plain text')", timeout=40_000)
    assert len(list((house.folder / "uploads").glob("*.json"))) == uploads, "nothing is sent again"


async def test_an_upload_in_the_browser_survives_a_restart_of_the_coordinator(
    chromium: Any, house: House, tmp_path: Path
) -> None:
    data = PROSE * 10
    (tmp_path / "large.txt").write_bytes(data)
    seen = await visit(chromium, house, "/submit")
    page = seen.page
    await page.set_input_files("[data-upload=dataset] input[type=file]", tmp_path / "large.txt")
    await page.wait_for_function("() => document.querySelector('[data-upload=dataset] progress').value > 4e6")
    await house.stop()
    await house.start()
    await page.wait_for_function(
        "() => document.querySelector('[name=\"dataset.artifact\"]').value.length === 64", timeout=20_000
    )
    assert house.artifacts.path(await page.input_value("[name='dataset.artifact']")).read_bytes() == data


async def test_everything_works_without_scripts(chromium: Any, house: House, tmp_path: Path) -> None:
    (tmp_path / "prose.txt").write_bytes(PROSE)
    seen = await visit(chromium, house, "/submit", java_script_enabled=False)
    page = seen.page
    page.set_default_timeout(40_000)  # The review waits until every row has been looked at.
    await page.set_input_files("[data-upload=dataset] input[type=file]", tmp_path / "prose.txt")
    await page.fill("[name=name]", "no scripts")
    await page.fill("[name=budget]", "3")
    await page.click("button[value=review]")
    await page.click("button[value=edit]")
    assert await page.input_value("[name=name]") == "no scripts"
    await page.click("button[value=review]")
    await page.click("button[value=create]")
    async with page.expect_navigation():  # Reloading before the answer has come is an error.
        await page.click("#fund-button")
    (job,) = await house.cluster.list(5, None)
    assert (job.name, job.state) == ("no scripts", "funded")
    assert house.artifacts.path(job.spec.dataset.artifact).read_bytes() == PROSE
    house.cluster.run(job.id)
    await page.reload()
    assert await page.locator("#loss-wide .train").count() == 1
    assert "settled" in await page.inner_text(".badge")


async def test_cancelling_asks_first(chromium: Any, house: House) -> None:
    job = await some_jobs(house)
    seen = await visit(chromium, house, f"/jobs/{job.id}")
    await seen.page.click("#cancel")
    await seen.page.click("text=No, let it go on")
    assert (await house.cluster.get(job.id)).state == "running"
    await seen.page.click("#cancel")
    await seen.page.click("text=Yes, cancel the job")
    await seen.page.wait_for_selector(".badge:has-text('cancelled')")
    assert (await house.cluster.get(job.id)).state == "cancelled"


async def test_a_hostile_name_is_only_ever_text(chromium: Any, house: House) -> None:
    name = "</title><script>document.title='owned'</script><img src=x onerror=document.title='owned'>\"'{{7*7}}"
    async with Client(house.url) as client:
        data = await house.dataset()
        job = await client.create_job(
            {"name": name, "model": {"preset": "tiny-llama"}, "dataset": {"artifact": data}, "budget": 9_000_000}
        )
    for path in ("/", "/jobs", f"/jobs/{job.id}", f"/jobs/{job.id}/cancel"):
        seen = await visit(chromium, house, path)
        assert name in await seen.page.inner_text("body")
        assert "owned" not in (await seen.page.title()).replace(name, "")
        assert await seen.page.locator("img[src=x], main script").count() == 0
        assert seen.complaints == []
