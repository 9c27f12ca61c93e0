"""The commands of lessons and how-to pages, typed as they stand there: none is refused.

Of a how-to page a command in a sentence counts where it has more than its name (``cottage pause JOB``). What another test runs is
named with it. Programs that stay, and what needs them, are run by ``tests/e2e/test_lessons.py``.
"""

import asyncio
import contextlib
import io
import json
import re
import shlex
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from coordinator.client import Client
from coordinator.client.hub import is_hub_name
from cottage.cli import main
from protocol.models.model import PRESETS, tensors_of
from tests.coordinator.conftest import BUSY_S
from tests.coordinator.web.conftest import House
from tests.coordinator.web.test_api import archive
from tests.cottage.test_commands_in_docs import commands as named_in
from tests.support.chat_templates import CHATML, small_tokenizer

ROOT = Path(__file__).parents[3]
TUTORIALS = ROOT / "docs" / "tutorials"
# Programs that stay, what asks a real ledger, and what needs an agent that runs: tests/e2e and tests/desktop have those.
ELSEWHERE = ("ledger", "serve", "relay", "nettest", "login", "node run", "node selftest", "node status", "node now")
ELSEWHERE += ("node pause", "node resume", "node finish", "node backup")


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """Language and content of each block of code."""
    yield from re.findall(r"^```(\w*)\n(.*?)^```", (TUTORIALS / page).read_text(), re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[list[str]]:
    """What a reader types after ``cottage``, without what other tests run."""
    lines = [line for kind, block in blocks(page) if kind == "console" for line in block.splitlines()]
    typed = [line.removeprefix("cottage ") for line in lines if line.startswith("cottage ")]
    return [shlex.split(line) for line in typed if not line.startswith(ELSEWHERE)]


@pytest.mark.parametrize("page", ["train-your-first-model.md", "three-homes.md"])
async def test_a_submitter_who_types_what_the_lesson_says_gets_a_model(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COTTAGE_SERVER", house.url)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    (tmp_path / "corpus.txt").write_text("to be or not to be\n" * 200)
    (document,) = [block for kind, block in blocks(page) if kind == "yaml"]
    (tmp_path / "job.yaml").write_text(document)

    beside = asyncio.create_task(settle_newest(house))
    for words in commands(page):
        jobs = await house.cluster.list(1, None)
        told = [house.url if "cottage.example" in word else jobs[0].id if word == "JOB" else word for word in words]
        asked = ["--yes"] if words[0] == "submit" and "--yes" not in words else []
        async with asyncio.timeout(BUSY_S):
            assert await asyncio.to_thread(main, [*told, *asked]) == 0, " ".join(words)
    await beside
    (job,) = await house.cluster.list(5, None)
    assert job.state == "settled"
    assert (tmp_path / "model" / "config.json").exists() == ("download" in {words[0] for words in commands(page)})


def test_a_lender_who_types_what_the_lesson_says_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    typed = commands("lend-your-gpu.md")
    assert ["node", "limits", "--up", "5M", "--down", "40Mbit"] in typed
    for words in typed:
        with contextlib.suppress(SystemExit):
            # No agent runs here, which some of the lesson's commands ask.
            assert main(words) == 0 or "no agent answers" in capsys.readouterr().err, " ".join(words)


PAGES = sorted((ROOT / "docs" / "how-to").rglob("*.md"))
RUN_HERE = {"check", "submit", "try", "download", "watch", "logs", "checkpoints", "compare", "budget"}
RUN_HERE |= {"pause", "resume", "stop", "cancel"}
RUN_BY = {
    "serve": ("tests/coordinator/test_serve.py", "serve"),
    "ask": ("tests/cottage/test_ask.py", "main"),
    "deploy": ("tests/coordinator/web/deployments/test_typed_how_to.py", "serve-at-homes"),
    "map": ("tests/coordinator/arrays/test_map_command.py", "map"),
    "output": ("tests/coordinator/web/test_life.py", "output"),
    "completion": ("tests/cottage/test_completion.py", "completion"),
    "ledger check": ("tests/proof/test_check.py", "check"),
    "ledger show": ("tests/e2e/test_lessons.py", "train-your-first-model"),
    "ledger refund": ("tests/ledger/test_refund.py", "refund"),
    "ledger challenge": ("tests/e2e/test_challenge.py", "challenge"),
    "accounts": ("tests/coordinator/operation/test_admin.py", "accounts"),
    "backup": ("tests/coordinator/test_backup.py", "backup"),
    "image push": ("tests/coordinator/web/arrays/test_pushed_images.py", "push"),
    "node images": ("tests/desktop/app/test_accepted_publishers.py", "images"),
    "admin": ("tests/coordinator/operation/test_admin_command.py", "admin"),
    "invite": ("tests/e2e/test_private_network.py", "private-network"),
    "keys": ("tests/coordinator/web/test_account_commands.py", "keys"),
    "trail": ("tests/coordinator/web/test_account_commands.py", "trail"),
    "show": ("tests/e2e/test_federation.py", "show"),
    "node join": ("tests/e2e/test_federation.py", "join"),
    "node leave": ("tests/e2e/test_federation.py", "leave"),
    "node federations": ("tests/e2e/test_federation.py", "federations"),
    "node logs": ("tests/cottage/test_odd_machines.py", "logs"),
    "node cards": ("tests/desktop/app/test_several_cards.py", "cards"),
    "node settings": ("tests/desktop/app/test_owner_of_an_agent.py", "settings"),
    "node earnings": ("tests/e2e/test_lessons.py", "lend-your-gpu"),
    "node send": ("tests/desktop/test_withdrawing_without_sol.py", "send"),
    "node update": ("tests/desktop/updates", "update"),
    "node run": ("tests/desktop/app/test_agent_as_a_process.py", "run"),
}
"""Programs that stay and what needs another one: where a test runs it, and a word that stands there."""
FORMS = ("--help", "|", "...", "COMMAND")  # A way of writing, and no command.


def typed(page: Path) -> Iterator[list[str]]:
    """Commands of a page with more than their names, without ``cottage``."""
    for command in named_in(page):
        words = shlex.split(command)[1:]
        name = 2 if words[0] in ("node", "ledger", "accounts") else 1
        if len(words) > name and not any(form in words for form in FORMS):
            yield words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_how_to_page_is_run_here_or_by_a_test_that_is_named(page: Path) -> None:
    for words in typed(page):
        if words[0] in RUN_HERE:
            continue
        known = [name for name in RUN_BY if words[: len(name.split())] == name.split()]
        assert known, f"{page.name}: no test runs `cottage {shlex.join(words)}`"
        place, word = RUN_BY[known[0]]
        files = [ROOT / place] if place.endswith(".py") else sorted((ROOT / place).glob("test_*.py"))
        assert any(word in file.read_text() for file in files), f"{place} does not run {known[0]}"


async def made(house: House, rounds: int) -> str:
    """A job that has done so many rounds; None of them: it is funded."""
    spec: dict[str, Any] = {"name": "a job", "model": {"preset": "tiny-llama"}, "budget": 9_000_000}
    async with Client(house.url) as client:
        job = (await client.create_job(spec | {"dataset": {"artifact": await house.dataset()}})).id
        await client.fund(job)
    for _ in range(rounds + 2 if rounds else 0):
        house.cluster.step(job)
    return job


async def ready_for(house: House, word: str) -> str:
    """A job that a command can be given."""
    if word in ("download", "watch"):
        job = await made(house, 0)
        await house.cluster.finish(job, finished(house.folder / "finished"))
        house.cluster.run(job)
        return job
    job = await made(house, 5)
    if word == "resume":
        async with Client(house.url) as client:
            await client.pause(job)
    if word == "budget":  # One whose budget is a half of its price.
        found = house.cluster._find(job)
        quote = msgspec.structs.replace(found.view.quote, price=2 * found.view.spec.budget)
        house.cluster._change(found, quote=quote)
    return job


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.stem in ("submit", "operate")], ids=lambda page: page.stem
)
async def test_a_submitter_types_what_the_page_says(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], page: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COTTAGE_SERVER", house.url)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_MODE", "offline")  # Whoever has an account there does not meet this test in it.
    (tmp_path / "stories.jsonl").write_text('{"text": "to be or not to be"}\n' * 200)
    (tmp_path / "job.yaml").write_text(
        "name: stories\nmodel: {preset: tiny-llama}\ntokenizer: {kind: bpe, vocabulary: 300}\n"
        "dataset: {format: jsonl}\ntraining: {tokens: 50000}\nbudget: 9000000\n"
    )
    chat = [{"role": "user", "content": "To be?"}, {"role": "assistant", "content": "Or not to be."}]
    for name in ("chats", "public", "judged"):
        (tmp_path / f"{name}.jsonl").write_text((json.dumps({"messages": chat, "of": name}) + "\n") * 200)
    published(tmp_path / "SmolLM2-135M-Instruct")
    asked = [words for words in typed(page) if words[0] in RUN_HERE]
    assert asked
    for words in asked:
        if words[0] == "submit" and words[1].startswith("--"):
            continue  # An option in a sentence: ``test_client.py`` and the browser's tests submit with it.
        if words[1] == "federation.yaml":
            continue  # It names owners' nodes: ``tests/e2e/test_federation.py``.
        if any(is_hub_name(word) for word in words):
            continue  # Of the Hub: ``hub/test_by_name.py``.
        job = "" if words[0] in ("check", "submit") else await ready_for(house, words[0])
        if words.count("JOB") > 1:
            words[words.index("JOB")] = await ready_for(house, words[0])
        stands = {"JOB": job, "TEXT": "to be", "DIR": "folder", "AMOUNT": "1.00", "FILE": "stories.jsonl"}
        more = ["--yes"] if words[0] == "submit" else []
        told = [*(stands.get(word, word) for word in words), *more]
        beside = asyncio.create_task(settle_newest(house)) if words[0] == "submit" else None
        async with asyncio.timeout(BUSY_S):
            status = await asyncio.to_thread(main, told)
        shown = capsys.readouterr()
        assert status == 0, f"{shlex.join(words)}: {shown.out}{shown.err}"
        if beside is not None:
            await beside


def finished(folder: Path) -> bytes:
    """The archive of a small model."""
    if not folder.exists():
        published(folder)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        for path in sorted(folder.iterdir()):
            packed.writestr(zipfile.ZipInfo(path.name), path.read_bytes())
    return out.getvalue()


def published(folder: Path) -> None:
    """A small model's folder, as it comes from the Hub."""
    folder.mkdir()
    tokenizer = small_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
    config = dict(PRESETS["tiny-llama"]) | {"vocab_size": tokenizer.get_vocab_size(with_added_tokens=True)}
    (folder / "config.json").write_text(json.dumps(config))
    shapes = tensors_of(config).all()
    save_file({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, folder / "model.safetensors")


async def settle_newest(house: House) -> None:
    """The network, for a job that is submitted."""
    while not (jobs := await house.cluster.list(1, None)) or jobs[0].state != "funded":
        await asyncio.sleep(0.05)
    await house.cluster.finish(jobs[0].id, archive())
    house.cluster.run(jobs[0].id)
