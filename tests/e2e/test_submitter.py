"""A submitter's whole way in a real browser, against a real network: from signing in to a model that ``transformers`` opens, and
on from one of its checkpoints to an adapter that ``peft`` opens."""

import asyncio
import json
import math
import random
import zipfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cottage.demo.options import parse
from cottage.demo.run import DemoRun
from cottage.demo.screen import LineScreen
from ledger.client import Ledger, job_bytes
from ledger.money import Amount
from ledger.money import parse as parse_amount
from tests.coordinator.web.pages.test_browser import CHROMIUM, PICTURES, chromium  # noqa: F401 - the browser is a fixture
from tests.coordinator.web.pages.test_signin_browser import Wallet

PAIRS = [("red", "rose"), ("blue", "sea"), ("green", "meadow"), ("grey", "stone"), ("black", "coal"), ("white", "snow")]
OTHER_PAIRS = [(colour, PAIRS[place - 1][1]) for place, (colour, _) in enumerate(PAIRS)]
TOKENS, TOKENS_ON = 80_000, 20_000  # Four rounds, and one.
ROWS, ROWS_ON = 30_000, 1_000
BAD_ROWS = {700: "", 1_400: "{", 2_100: '{"txt": "another name"}'}
SECRET_ROW = 2_800
BUDGET = "10"  # Tokens.
LINE = 1_000_000  # Bytes a second that the browser may send, so that there is a middle of the upload.
WHOLE = 600_000.0  # Milliseconds: only what hangs takes so long, also beside other work.

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"no Chromium at {CHROMIUM}: apt-get install chromium"),
]


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[DemoRun]:
    """Ledger, coordinator and two nodes; whoever wants to submit signs in."""
    words = ["--nodes", "2", "--stages", "1", "--sandbox", "process", "--dir", str(tmp_path / "network")]
    async with DemoRun(parse(words), LineScreen()) as run:
        run.network.open_to_all = False
        await run._start()
        yield run


def rows(pairs: Sequence[tuple[str, str]], number: int) -> list[str]:
    """JSON lines of words that are always followed by their like."""
    chance = random.Random(1)
    return [
        json.dumps({"text": " ".join(" ".join(chance.choice(pairs)) for _ in range(20)) + "."}) for _ in range(number)
    ]


def dataset(path: Path) -> Path:
    """Three rows cannot be read, and one gives a key away."""
    lines = rows(PAIRS, ROWS)
    for row, text in BAD_ROWS.items():
        lines[row] = text
    lines[SECRET_ROW] = json.dumps({"text": "-----BEGIN PRIVATE KEY----- was in the file"})
    path.write_text("\n".join(lines) + "\n")
    return path


async def opened_for_business(chromium: Any, network: DemoRun) -> None:  # noqa: F811
    """The first account is the operator's, with the code that only the coordinator's own folder has."""
    page = await chromium.new_page(base_url=network.network.web)
    await page.goto("/sign-up")
    code = (network.options.folder / "coordinator" / "setup-code").read_text().strip()
    for field, value in {
        "code": code,
        "name": "operator",
        "password": "long and simple",
        "again": "long and simple",
    }.items():
        await page.fill(f"#{field}", value)
    await page.get_by_role("button", name="Make the account").click()
    await page.wait_for_url("**/account")
    await page.close()


async def signed_in(page: Any, wallet: Wallet) -> None:
    """From a browser that has never been here, by one click and one signature."""
    await wallet.inject(page)
    await page.goto("/submit")
    await page.get_by_role("button", name=f"Continue with {wallet.name}").click()
    await page.wait_for_url("**/submit")


async def upload(page: Any, network: DemoRun, path: Path) -> None:
    """Over a home's line; the coordinator is killed in the middle and comes back."""
    line = await page.context.new_cdp_session(page)
    await line.send("Network.enable")
    offline = {"offline": False, "latency": 5, "downloadThroughput": -1, "uploadThroughput": LINE}
    await line.send("Network.emulateNetworkConditions", offline)
    await chosen(page, path)
    middle = path.stat().st_size // 3
    await page.wait_for_function(
        "(middle) => document.querySelector('[data-upload=dataset] progress').value > middle", arg=middle
    )
    assert network.network.coordinator is not None
    await network.household.kill(network.network.coordinator)
    await network.network.start_coordinator()
    await uploaded(page)
    await line.detach()
    await network._until_online(2)  # The nodes find it again too.


async def chosen(page: Any, path: Path) -> None:
    """The upload begins at once."""
    await page.check("[name='dataset.format'][value=jsonl]")
    await page.set_input_files("[data-upload=dataset] input[type=file]", path)


async def uploaded(page: Any) -> None:
    """The whole file is there, and was found to be what it should."""
    await page.wait_for_function("() => document.querySelector('[name=\"dataset.artifact\"]').value.length === 64")


async def typed(page: Any, wallet: Wallet, **values: str) -> None:
    """What the job is, and who pays."""
    for name, value in {"budget": BUDGET, **values}.items():
        await page.fill(f"[name='{name}']", value)
    await page.check("[name=payer][value=own]")
    await page.fill("[name=submitter]", wallet.key.address)


async def corrected(page: Any) -> None:
    """The faults are shown with their rows, and the dataset is refused until one says what to do with them."""
    await page.wait_for_selector("#report .findings")
    await page.evaluate("() => document.querySelectorAll('#report details').forEach((one) => { one.open = true; })")
    report = await page.inner_text("#report")
    for row in (*BAD_ROWS, SECRET_ROW):
        assert f"{row + 1:,}" in report, report
    await page.screenshot(path=PICTURES / "story-faults.png", full_page=True)
    await page.click("button[value=review]")
    assert "cannot be read" in await page.inner_text("#errors")
    await page.select_option("[name='dataset.faulty']", "skip")


async def created(page: Any) -> str:
    """The price is shown, everything is shown once more, and it becomes a job; returns its id."""
    await page.wait_for_selector("#quote .price")
    review = page.locator("h1:has-text('Is this right?')")
    while not await review.is_visible():  # A busy machine is still checking the data, and the page asks for patience.
        await page.click("button[value=review]")
        await review.or_(page.locator("#errors:has-text('still being checked')")).wait_for()
    await page.screenshot(path=PICTURES / "story-review.png", full_page=True)
    await page.click("button[value=create]")
    await page.wait_for_selector("h2:has-text('Fund it')")
    return str(page.url.rsplit("/", 1)[1].split("?")[0])


async def escrow(page: Any, ledger: Ledger, wallet: Wallet) -> None:
    """As the submitter's own wallet does: the page names what it needs."""
    await page.click("#escrow-summary")
    values = dict(
        zip(
            await page.locator("[data-live=fund] dt").all_inner_texts(),
            await page.locator("[data-live=fund] dd").all_inner_texts(),
            strict=True,
        )
    )
    amount = int(values["Amount"].split("(")[1].split()[0])
    until = int(values["Open until"].rsplit("(", 1)[1].rstrip(")"))
    job = job_bytes(page.url.rsplit("/", 1)[1].split("?")[0])
    await ledger.open_escrow(wallet.key.seed, job, values["For the coordinator"], Amount(amount), until)


async def test_from_an_empty_browser_to_a_model(chromium: Any, network: DemoRun, tmp_path: Path) -> None:  # noqa: F811
    PICTURES.mkdir(parents=True, exist_ok=True)
    wallet = Wallet("Purse", True)
    await opened_for_business(chromium, network)
    context = await chromium.new_context(base_url=network.network.web, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(WHOLE)
    page = await context.new_page()
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    await signed_in(page, wallet)
    await upload(page, network, await asyncio.to_thread(dataset, tmp_path / "numbers.jsonl"))
    ledger = network.network.ledger
    assert ledger is not None
    await ledger.faucet(wallet.key.address, Amount(2 * parse_amount(BUDGET)))
    await typed(page, wallet, **{"name": "colours", "training.tokens": str(TOKENS), "tokenizer.vocabulary": "512"})
    await corrected(page)
    job = await created(page)
    await escrow(page, ledger, wallet)
    await page.wait_for_selector("#pause")
    await page.wait_for_function("() => document.querySelectorAll('#loss-wide .train').length > 0")
    await page.click("#pause")
    await page.wait_for_selector(".badge:has-text('paused')")
    await page.screenshot(path=PICTURES / "story-paused.png", full_page=True)
    await page.click("#resume")
    await page.wait_for_selector(".badge:has-text('settled')")
    await page.screenshot(path=PICTURES / "story-settled.png", full_page=True)
    model = await downloaded(page, "#download", tmp_path / "model")
    await asyncio.to_thread(speaks, model)
    state = await ledger.escrow(wallet.key.address, job_bytes(job))
    assert state is not None
    assert state.paid > 0
    assert state.paid + state.refunded == state.deposited
    base, adapter = await trained_on(page, ledger, wallet, tmp_path)
    await asyncio.to_thread(adapts, model, base, adapter)
    assert failures == []


async def trained_on(page: Any, ledger: Ledger, wallet: Wallet, folder: Path) -> tuple[Path, Path]:
    """An adapter learns other pairs beside the oldest checkpoint of the job that the page shows; returns both folders."""
    first = page.url
    await page.locator("#checkpoint-table a:has-text('train on')").last.click()
    await page.wait_for_url("**/submit?start=*&round=*")
    after = page.url.rpartition("=")[2]
    path = folder / "others.jsonl"
    path.write_text("\n".join(rows(OTHER_PAIRS, ROWS_ON)) + "\n")
    await chosen(page, path)
    await uploaded(page)
    await page.check("[name=learns][value=lora]")
    values = {"name": "other colours", "training.tokens": str(TOKENS_ON), "training.lora.rank": "8"}
    await typed(page, wallet, **values)
    await page.screenshot(path=PICTURES / "story-on.png", full_page=True)
    await created(page)
    await escrow(page, ledger, wallet)
    await page.wait_for_selector(".badge:has-text('settled')")
    await page.screenshot(path=PICTURES / "story-adapter.png", full_page=True)
    adapter = await downloaded(page, "#download", folder / "adapter")
    await page.goto(first)
    link = f"#checkpoint-table a[href$='/checkpoints/{after}/model.zip']"
    return await downloaded(page, link, folder / "base"), adapter


async def downloaded(page: Any, link: str, folder: Path) -> Path:
    """The folder that has the model's config, out of what a click brings."""
    async with page.expect_download() as started:
        await page.click(link)
    packed = folder.with_suffix(".zip")
    await (await started.value).save_as(packed)
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(folder)
    return next(folder.rglob("*config.json")).parent


def speaks(folder: Path) -> None:
    """It is an ordinary one of Hugging Face, and has learned what the rows look like."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    likely, unlikely = (
        loss(model, folder, text) for text in ("red rose blue sea grey stone", "rose red sea blue stone grey")
    )
    assert math.isfinite(likely)
    assert likely < unlikely


def adapts(model: Path, base: Path, adapter: Path) -> None:
    """The checkpoint is an earlier state of the model; the adapter is peft's, small, and has learned the other pairs."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    first, others = (" ".join(" ".join(pair) for pair in pairs) for pairs in (PAIRS, OTHER_PAIRS))
    finished, earlier = (AutoModelForCausalLM.from_pretrained(one) for one in (model, base))
    assert loss(finished, model, first) < loss(earlier, base, first)
    alone = loss(earlier, base, others)
    weights = adapter / "adapter_model.safetensors"
    assert weights.stat().st_size < (base / "model.safetensors").stat().st_size / 4
    assert loss(PeftModel.from_pretrained(earlier, adapter), base, others) < alone


def loss(model: Any, folder: Path, text: str) -> float:
    """Of a text, by a model with the tokenizer in a folder."""
    from transformers import AutoTokenizer

    batch = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    return float(model(**batch, labels=batch["input_ids"]).loss.detach())
