"""``cottage serve`` as a process: it starts against the embedded ledger, answers, and ends cleanly."""

import asyncio
import html
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from coordinator.cli import main
from coordinator.client import Client
from ledger.local.rpc import Rpc
from ledger.local.server import build_app
from protocol.identity import NodeKey
from tests.coordinator.conftest import until
from tests.ledger.world import World


@pytest.fixture
async def ledger_url() -> AsyncIterator[str]:
    """The embedded ledger behind HTTP."""
    world = World()
    runner = web.AppRunner(build_app(Rpc(world.chain, world.genesis), lambda: None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}"
    await runner.cleanup()


async def start(*words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "coordinator.cli", "serve", *words, stderr=asyncio.subprocess.PIPE
    )


async def test_it_serves_and_ends_cleanly_and_starts_again_on_the_same_folder(tmp_path: Path, ledger_url: str) -> None:
    ready = tmp_path / "ready"
    addresses = set()
    for _ in range(2):
        process = await start(*serve_words(tmp_path, ledger_url))
        await until(ready.exists, 30.0)
        url = ready.read_text()
        async with aiohttp.ClientSession() as http:
            async with http.get(f"{url}/readyz") as answer:
                assert answer.status == 200
            async with http.get(f"{url}/api/v1/network") as answer:
                network = await answer.json()
            async with http.get(f"{url}/metrics") as answer:
                assert "cottage_connections_total" in await answer.text()
        addresses.add(network["coordinator"])
        assert network["test_wallet"] is True
        process.send_signal(signal.SIGTERM)
        _, complaint = await asyncio.wait_for(process.communicate(), 20)
        assert process.returncode == 0, complaint.decode()
        ready.unlink()
    assert len(addresses) == 1, "the coordinator keeps its key"
    assert (tmp_path / "data" / "coordinator.key").stat().st_mode & 0o777 == 0o600


LACKING = (
    "import sys, coordinator.ownauditor as own, coordinator.cli as cli; own.find_spec = lambda name: None; "
    "sys.exit(cli.main(sys.argv[1:]))"
)


def serve_words(folder: Path, ledger_url: str, *words: str) -> list[str]:
    places = ["--data", str(folder / "data"), "--ready-file", str(folder / "ready"), "--ledger-url", ledger_url]
    return ["--open", "--port", "0", *places, *words]


async def line_with(process: asyncio.subprocess.Process, text: str, patience: float = 60.0) -> str:
    """The first line of its log that has ``text``."""
    assert process.stderr is not None
    async with asyncio.timeout(patience):
        while text not in (line := (await process.stderr.readline()).decode()):
            assert line, f"it ended and never said {text!r}"
    return line


async def page(url: str) -> str:
    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        return html.unescape(await answer.text())


@pytest.mark.long
async def test_its_own_auditor_comes_is_shown_and_ends_with_a_coordinator_that_is_killed(
    tmp_path: Path, ledger_url: str
) -> None:
    served = await start(*serve_words(tmp_path, ledger_url))
    try:
        said = await line_with(served, "own auditor is process")
        pid = int(said.split("process ")[1].split(",")[0])
        await until((tmp_path / "ready").exists, 60.0)
        url = (tmp_path / "ready").read_text()
        await until(lambda: _has(f"{url}/status", "1 of 1 are here and look at strangers' work"), 300.0)
        assert re.search(r'<span class="badge good"><svg.*?</svg>auditor</span>', await page(f"{url}/machines"))
        assert '"nodes_online":0' in await page(f"{url}/api/v1/network"), "it lends nothing"
    finally:
        served.kill()
        await served.wait()
    await until(lambda: not Path(f"/proc/{pid}").exists(), 30.0)


async def _has(url: str, text: str) -> bool:
    return text in await page(url)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("program", "words", "why"),
    [
        (["-m", "coordinator.cli"], ["--no-own-auditor"], "it is switched off"),
        (["-c", LACKING], [], "are not installed beside the coordinator: pip install 'cottage[agent,trainer]'"),
    ],
)
async def test_where_nobody_looks_the_log_and_the_status_page_say_why_and_what_to_do(
    tmp_path: Path, ledger_url: str, program: list[str], words: list[str], why: str
) -> None:
    served = await asyncio.create_subprocess_exec(
        sys.executable, *program, "serve", *serve_words(tmp_path, ledger_url, *words), stderr=asyncio.subprocess.PIPE
    )
    try:
        said = await line_with(served, "nobody looks at strangers' work")
        await until((tmp_path / "ready").exists, 60.0)
        shown = await page(f"{(tmp_path / 'ready').read_text()}/status")
    finally:
        served.kill()
        await served.wait()
    for text in (said, shown):
        assert why in text
        assert "run `cottage auditor` elsewhere and name it with --auditor ADDRESS" in text


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("--auditor", "nobody", "`cottage auditor` shows its address when it starts"),
        ("--port", "99999", "99999 is no port"),
        *(
            ("--token-worth", text, "write an amount and a currency, as 0.92 EUR")
            for text in ("1", "USD", "much USD", "0 USD", "1 EURO", "99999999 USD")
        ),
    ],
)
def test_a_value_that_an_option_does_not_take_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, text: str, said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--data", str(tmp_path), option, text])
    assert ended.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.long
async def test_what_the_operator_says_that_a_token_is_worth_is_published(tmp_path: Path, ledger_url: str) -> None:
    process = await start(*serve_words(tmp_path, ledger_url, "--no-own-auditor", "--token-worth", "0.92 eur"))
    try:
        await until((tmp_path / "ready").exists, 60.0)
        market = json.loads(await page(f"{(tmp_path / 'ready').read_text()}/api/v1/market"))
    finally:
        process.kill()
        await process.wait()
    assert market["worth"] == {"currency": "EUR", "millionths": 920_000}


@pytest.mark.long
async def test_an_open_coordinator_serves_and_is_asked_on_the_loopback_of_ipv6(tmp_path: Path, ledger_url: str) -> None:
    ready = tmp_path / "ready"
    process = await start(
        "--data",
        str(tmp_path / "data"),
        "--open",
        "--host",
        "::1",
        "--port",
        "0",
        "--ready-file",
        str(ready),
        "--ledger-url",
        ledger_url,
    )
    try:
        await until(ready.exists, 30.0)
        url = ready.read_text()
        assert re.fullmatch(r"http://\[::1\]:[0-9]+", url)
        async with Client(url) as client:
            assert (await client.network()).test_wallet
        async with aiohttp.ClientSession() as http:
            async with http.get(f"{url}/api/v1/network", headers={"Host": "cottage.example"}) as answer:
                assert answer.status == 403, "a foreign name that leads here is refused"
        process.send_signal(signal.SIGTERM)
        _, said = await asyncio.wait_for(process.communicate(), 20)
        assert url in said.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_without_a_ledger_it_says_how_to_get_one(tmp_path: Path) -> None:
    process = await start("--data", str(tmp_path))
    _, complaint = await process.communicate()
    assert process.returncode == 2
    assert "--ledger-url" in complaint.decode()


async def test_a_ledger_that_does_not_answer_ends_it_with_a_clear_text(tmp_path: Path) -> None:
    process = await start("--data", str(tmp_path), "--ledger-url", "http://127.0.0.1:9")
    _, complaint = await process.communicate()
    assert process.returncode == 4
    assert "http://127.0.0.1:9 cannot be used" in complaint.decode()


@pytest.mark.long
async def test_a_relay_of_its_own_process_is_allowed_by_its_address_and_shown(tmp_path: Path, ledger_url: str) -> None:
    key = NodeKey.generate()
    key.save(tmp_path / "relay.key")
    ready = tmp_path / "ready"
    served = await start(
        "--data",
        str(tmp_path / "data"),
        "--open",
        "--port",
        "0",
        "--ready-file",
        str(ready),
        "--ledger-url",
        ledger_url,
        "--relay",
        key.address,
    )
    await until(ready.exists, 30.0)
    url = ready.read_text()
    relay = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "cottage",
        "relay",
        "--listen",
        "127.0.0.1",
        "--port",
        "0",
        "--no-nat-port",
        "--max-port",
        "0",
        "--min-port",
        "0",
        "--secret-file",
        str(tmp_path / "secret"),
        "--key-file",
        str(tmp_path / "relay.key"),
        "--coordinator",
        url,
        "--region",
        "attic",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with aiohttp.ClientSession() as http:
            views: list[dict[str, Any]] = []

            async def state(wanted: str) -> bool:
                async with http.get(f"{url}/api/v1/relays") as answer:
                    views[:] = await answer.json()
                return [view["state"] for view in views] == [wanted]

            await until(lambda: state("up"), 30.0)
            assert (views[0]["relay"], views[0]["region"]) == (key.address, "attic")
            async with http.get(f"{url}/network") as answer:
                assert "attic" in await answer.text()
            relay.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(relay.wait(), 20) == 0
    finally:
        for process in (relay, served):
            if process.returncode is None:
                process.kill()
                await process.wait()
