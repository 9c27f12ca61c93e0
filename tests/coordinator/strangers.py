"""A storm of strangers against a real coordinator: one process, SQLite and files in a folder, beside an embedded ledger.

Fresh keys of nodes, sign-ins and sign-ups, uploads, checks, prices, jobs that nobody pays for, funded ones that are cancelled at
once, bonds over nothing, slow bodies: from as many addresses as each likes. What that cost is counted afterwards and compared
with ``bounds``, which follows from the documented limits; meanwhile an operator and a node that were there before ask and beat.

    python -m tests.coordinator.strangers SCALE serve ...    # a coordinator whose limits are SCALE of the usual ones
"""

import asyncio
import base64
import contextlib
import itertools
import os
import random
import re
import resource
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator import cli
from coordinator.services.accounts import budgets, challenges, signin
from coordinator.services.accounts.signin import WalletChallenge, signed_text
from coordinator.services.jobs import unpaid
from coordinator.services.network import admission
from coordinator.web.auth.gate import SESSION_COOKIE
from ledger.client import Ledger, LedgerConfig
from ledger.errors import LedgerError
from ledger.money import Amount
from protocol.codec import decode, encode
from protocol.identity import NodeKey
from protocol.node import PROTOCOL, Beat, Challenge, Claim, CoordinatorMessage, Heartbeat, Hello, Welcome
from protocol.rest.api import NewJob
from tests.coordinator.fakes import profile, spec

PATIENCE = 5
ACT_S = 2.0  # What a stranger has begun is cut as long after the end.
ROW_BYTES = 4_096  # Of the database for each row that a stranger can cause, with its indexes; the largest have 1 KB.
JOB_BYTES = 64 << 10  # Rows and files of one of the storm's jobs.
# Lamports that a job costs which is funded and cancelled: two memos, its refund, and a try more of each.
FEES = 6 * 5_000
STAKE = 1_000_000
FILE = b"to be or not to be, that is the question\n" * 400
JSON = {"Content-Type": "application/json"}
TUS = {"Tus-Resumable": "1.0.0"}


def shrink(scale: float) -> None:
    """Make the limits of this process so much smaller, so that a short storm meets them."""
    for rate in budgets.RATES:
        for name in ("burst", "all_burst"):
            object.__setattr__(rate, name, max(2.0, getattr(rate, name) * scale))
    signin.ALL_SIGN_UPS *= scale
    admission.ALL_NEW_KEYS *= scale
    admission.MAX_STRANGERS = max(2, int(admission.MAX_STRANGERS * scale))
    challenges.MAX_CHALLENGES = int(challenges.MAX_CHALLENGES * scale)
    unpaid.MAX_UNPAID_JOBS_OF_ALL = max(2, int(unpaid.MAX_UNPAID_JOBS_OF_ALL * scale))


@dataclass(frozen=True)
class Bounds:
    """What strangers may cost at most, by the documented limits: rows of each kind, bytes of the disk, lamports."""

    accounts: float
    nodes: float
    challenges: float
    unpaid: float
    jobs: float
    trail: float
    disk: float
    lamports: float

    @classmethod
    def of(cls, seconds: float, scale: float) -> "Bounds":
        """Within ``seconds``, where limits are ``scale`` of the usual ones (``shrink``)."""

        def most(burst: float, each: float) -> float:
            return max(2.0, burst * scale) + seconds / each + 1

        accounts = most(signin.ALL_SIGN_UPS, signin.ALL_SIGN_UP_S)
        nodes = most(admission.ALL_NEW_KEYS, admission.ALL_NEW_KEY_S)
        begun = challenges.MAX_CHALLENGES * scale
        jobs = float(
            max(2, int(unpaid.MAX_UNPAID_JOBS_OF_ALL * scale))
            + budgets.MAX_PREPARED_AT_ONCE
            + budgets.MAX_PREPARED_WAITING
        )
        rates = {rate.what: most(rate.all_burst, rate.all_seconds) for rate in budgets.RATES}
        changes = rates[budgets.CHANGES.what] + rates[budgets.LOOKS.what]
        rows = accounts * 6 + nodes + begun + changes * 4 + rates[budgets.UPLOADS.what] * 3
        files = rates[budgets.UPLOADS.what] * len(FILE) + rates[budgets.CHECKS.what] * (64 << 10)
        disk = rows * ROW_BYTES + files + rates[budgets.ANSWERS.what] + jobs * JOB_BYTES
        return cls(accounts, nodes, begun, jobs, jobs, changes + accounts * 4, disk, jobs * FEES)


@dataclass
class Figures:
    """What the storm did, and what it cost. Bytes, seconds, lamports."""

    seconds: float = 0.0
    asked: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    rows: dict[str, int] = field(default_factory=dict)
    disk: int = 0
    memory: int = 0
    most_memory: int = 0
    most_files: int = 0
    processor: float = 0.0
    of_storm: float = 0.0
    lamports: int = 0
    waits: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    beats: int = 0

    def wait(self, part: float) -> float:
        """How long so large a part of what the operator asked took at most."""
        return sorted(self.waits)[min(len(self.waits) - 1, int(part * len(self.waits)))]


class Account:
    """Somebody with a wallet, whose cookie goes with each request."""

    def __init__(self, storm: "Storm") -> None:
        self.storm = storm
        self.key = NodeKey.generate()
        self.cookie = ""
        self.address = storm.address()

    async def sign_in(self, code: str = "") -> bool:
        """With the wallet; the first time that makes the account."""
        status, asked = await self.ask("POST", "/sign-in/wallet/challenge", b"{}", JSON)
        if status != 200:
            return False
        told = msgspec.json.decode(asked)
        text = signed_text(WalletChallenge(**told), self.key.address).encode()
        said = {
            "address": self.key.address,
            "nonce": told["nonce"],
            "message": base64.b64encode(text).decode(),
            "signature": base64.b64encode(Ed25519PrivateKey.from_private_bytes(self.key.seed).sign(text)).decode(),
            "code": code,
        }
        body = msgspec.json.encode(said)
        headers = {**JSON, "X-Forwarded-For": self.address}
        async with self.storm.http.post(f"{self.storm.url}/sign-in/wallet", data=body, headers=headers) as answer:
            self.storm.note("sign-in", answer.status)
            if answer.status == 200:
                self.cookie = answer.cookies[SESSION_COOKIE].value
        return bool(self.cookie)

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """One request; its status, and what was answered."""
        told = {**(headers or {}), "X-Forwarded-For": self.address}
        if self.cookie:
            told["Cookie"] = f"{SESSION_COOKIE}={self.cookie}"
        async with self.storm.http.request(method, f"{self.storm.url}{path}", data=body, headers=told) as answer:
            said = await answer.read()
            self.storm.note(f"{method} {_route(path)}", answer.status)
            assert answer.status not in (429, 507) or "Retry-After" in answer.headers, path
            return answer.status, said

    async def upload(self, data: bytes, length: int | None = None) -> str:
        """Begin an upload and send what there is; the artifact, if one came of it."""
        new = msgspec.json.encode({"length": length or len(data), "name": "a.txt"})
        status, said = await self.ask("POST", "/api/v1/uploads", new, JSON)
        if status != 201 or not data:
            return ""
        place = f"/api/v1/uploads/{msgspec.json.decode(said)['id']}"
        headers = {**TUS, "Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"}
        await self.ask("PATCH", place, data, headers)
        _, said = await self.ask("GET", place)
        return str(msgspec.json.decode(said).get("artifact") or "")


class Storm:
    """The strangers. ``chance`` makes what they do."""

    def __init__(self, url: str, http: aiohttp.ClientSession, ledger: Ledger, chance: random.Random) -> None:
        self.url = url
        self.http = http
        self.ledger = ledger
        self.chance = chance
        self.figures = Figures()
        self.accounts: list[Account] = []
        self._numbers = itertools.count()

    def note(self, what: str, status: int) -> None:
        """Count a request and its answer."""
        self.figures.asked[what] += 1
        self.figures.answers[str(status)] += 1

    def address(self) -> str:
        """One that nobody has used yet."""
        number = next(self._numbers)
        return f"2001:db8:{number >> 16:x}:{number & 0xFFFF:x}::1"

    async def nodes(self) -> None:
        """A fresh key, which says who it is, asks after money and stays; or never says it."""
        headers = {"X-Forwarded-For": self.address()}
        async with self.http.ws_connect(f"{self.url}/api/v1/node", headers=headers) as socket:
            if self.chance.random() < 0.2:
                await asyncio.sleep(self.chance.random() * 3)
                self.note("node that says nothing", 0)
                return
            key = NodeKey.generate()
            challenge = decode(await socket.receive_bytes(timeout=20), Challenge)
            await socket.send_bytes(encode(hello(key, challenge)))
            answer = decode(await socket.receive_bytes(timeout=20), CoordinatorMessage)
            self.note("node", 101 if isinstance(answer, Welcome) else 403)
            if isinstance(answer, Welcome):
                headers["Authorization"] = f"Bearer {answer.token}"
                place = f"{self.url}/api/v1/artifacts/{'0' * 64}?lease={'1' * 32}&answers=audit-{'2' * 32}"
                async with self.http.put(place, data=FILE, headers=headers) as refused:
                    self.note("PUT artifact", refused.status)
                for _ in range(3):
                    await socket.send_bytes(encode(Claim()))
                await asyncio.sleep(self.chance.random() * 5)

    async def sign_ups(self) -> None:
        """A new account, or sign-ins that are begun and left; wrong passwords for names that are there."""
        account = Account(self)
        if self.chance.random() < 0.5:
            await account.ask("POST", "/sign-in/passkey/challenge", b"{}", JSON)
        if await account.sign_in() and len(self.accounts) < 2_000:
            self.accounts.append(account)

    async def work(self) -> None:
        """What an account can have the coordinator do."""
        if not self.accounts:
            await asyncio.sleep(0.05)
            return
        account = self.chance.choice(self.accounts)
        data = FILE + str(self.chance.random()).encode()
        match self.chance.randrange(6):
            case 0:
                await account.upload(b"", self.chance.choice((10**6, 10**9, 10**11)))
            case 1:
                await account.ask("PUT", "/api/v1/notices", b'{"webhook": "https://example.com/%d"}' % len(data), JSON)
                await account.ask("POST", "/api/v1/notices/test")
            case 2:
                named = {**JSON, "Idempotency-Key": str(self.chance.random())}
                made = await account.ask(
                    "POST", "/api/v1/account/keys", b'{"name": "k", "scopes": ["jobs:read"]}', named
                )
                if made[0] == 201:
                    await account.ask("DELETE", f"/api/v1/account/keys/{msgspec.json.decode(made[1])['id']}")
            case 3:
                await account.ask("POST", "/api/v1/quote", msgspec.json.encode(spec(1, 1)), JSON)
            case 4:
                digest = await account.upload(data)
                asked = {"dataset": {"artifact": digest}, "tokenizer": {"kind": "bytes"}, "sequence": 16}
                await account.ask("POST", "/api/v1/checks", msgspec.json.encode(asked), JSON)
            case _:
                await self._job(account, await account.upload(data))

    async def _job(self, account: Account, dataset: str) -> None:
        """A job that nobody pays for; one in two is funded, looked at and cancelled."""
        wanted = spec(1, 1)
        wanted = msgspec.structs.replace(
            wanted, dataset=msgspec.structs.replace(wanted.dataset, artifact=dataset or "0" * 64)
        )
        status, said = await account.ask("POST", "/api/v1/jobs", msgspec.json.encode(NewJob(wanted)), JSON)
        if status != 201:
            return
        place = f"/api/v1/jobs/{msgspec.json.decode(said)['id']}"
        if self.chance.random() < 0.5:
            await account.ask("POST", f"{place}/fund")
            for shared in (b"true", b"false"):
                await account.ask("PUT", f"{place}/share", b'{"shared": %s}' % shared, JSON)
        await account.ask("POST", f"{place}/cancel")

    async def bodies(self) -> None:
        """A document that comes slowly and never ends."""

        async def slow() -> AsyncIterator[bytes]:
            for _ in range(8):
                yield bytes(64 << 10)
                await asyncio.sleep(0.2)

        headers = {**JSON, "X-Forwarded-For": self.address()}
        async with self.http.post(f"{self.url}/api/v1/relays/announce", data=slow(), headers=headers) as answer:
            self.note("slow body", answer.status)

    async def bonds(self, node: str) -> None:
        """A bond over an audit that never was."""
        challenger = NodeKey.generate()
        await self.ledger.faucet(challenger.address, Amount(10**9), 10**9)
        with contextlib.suppress(LedgerError):
            await self.ledger.confirm(await self.ledger.prepare_dispute(challenger.seed, node, os.urandom(32), None))
            self.note("bond", 200)

    async def rage(self, seconds: float, refusals: int, actors: list[Callable[[], Awaitable[None]]]) -> None:
        """Each actor again and again for so long, and up to ``PATIENCE`` times as long until so many were refused."""
        began = time.monotonic()

        def over() -> bool:
            gone = time.monotonic() - began
            return gone > seconds and (self.figures.answers["429"] >= refusals or gone > PATIENCE * seconds)

        async def again(act: Callable[[], Awaitable[None]]) -> None:
            while not over():
                try:
                    async with asyncio.timeout(max(ACT_S, seconds - (time.monotonic() - began))):
                        await act()
                except (aiohttp.ClientError, TimeoutError, TypeError, ConnectionError) as error:
                    self.figures.answers[type(error).__name__] += 1
                    await asyncio.sleep(0.05)

        async with asyncio.TaskGroup() as group:
            for act in actors:
                group.create_task(again(act))


def _route(path: str) -> str:
    """The path without ids."""
    return re.sub(r"/[0-9a-f]{12,32}(?=/|$)", "/ID", path).removeprefix("/api/v1")


def hello(key: NodeKey, challenge: Challenge) -> Hello:
    """An ordinary machine's."""
    signature = key.sign("cottage-hello", challenge.nonce, challenge.host.encode())
    return Hello(PROTOCOL, key.address, key.address, signature, profile("stranger"))


class Honest:
    """An operator who asks, and a staked node that beats, all the while."""

    def __init__(self, storm: Storm, operator: Account, key: NodeKey) -> None:
        self.storm = storm
        self.operator = operator
        self.key = key
        self.here = asyncio.Event()

    async def beat(self) -> None:
        """The node: until it is cancelled; that its connection ends is a failure."""
        headers = {"X-Forwarded-For": self.storm.address()}
        figures = self.storm.figures
        async with self.storm.http.ws_connect(f"{self.storm.url}/api/v1/node", headers=headers) as socket:
            challenge = decode(await socket.receive_bytes(), Challenge)
            await socket.send_bytes(encode(hello(self.key, challenge)))
            beating = asyncio.create_task(self._beats(socket))
            try:
                async for frame in socket:
                    message = decode(frame.data, CoordinatorMessage)
                    figures.beats += isinstance(message, Beat)
                    self.here.set()
                figures.failed.append(f"the node's connection ended with {socket.close_code}")
            finally:
                beating.cancel()

    async def _beats(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            await asyncio.sleep(1.0)
            await socket.send_bytes(encode(Heartbeat(())))

    async def ask(self) -> None:
        """The operator: the network, and what a job would cost."""
        figures = self.storm.figures
        document = msgspec.json.encode(spec(1, 1))
        while True:
            for method, path, body in (("GET", "/api/v1/network", b""), ("POST", "/api/v1/quote", document)):
                began = time.monotonic()
                status, said = await self.operator.ask(method, path, body, JSON)
                figures.waits.append(time.monotonic() - began)
                if status != 200:
                    figures.failed.append(f"{method} {path}: {status} {said[:200]!r}")
            await asyncio.sleep(0.5)


async def storm(
    folder: Path, seconds: float, scale: float, actors: int, seed: int = 1, refusals: int = 0
) -> tuple[Figures, Bounds]:
    """Let strangers rage for ``seconds``.

    Args:
        scale: of the limits, in both processes.
        actors: strangers of each kind at a time.
        refusals: go on until the limits were met so often.
    Returns:
        what it cost, and what it may have cost at most.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    async with contextlib.AsyncExitStack() as stack:
        ledger_url, _ = await stack.enter_async_context(_ledger(folder))
        ledger = await stack.enter_async_context(await Ledger.connect(LedgerConfig(ledger_url)))
        data = folder / "data"
        url, process = await stack.enter_async_context(_coordinator(folder, data, ledger_url, scale))
        connector = aiohttp.TCPConnector(limit=0, force_close=False)
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        )
        world = Storm(url, http, ledger, random.Random(seed))
        operator, node = Account(world), NodeKey.generate()
        assert await operator.sign_in((data / "setup-code").read_text().strip())
        async with http.get(f"{url}/api/v1/network") as answer:
            coordinator = (await answer.json())["coordinator"]
        await ledger.faucet(node.address, Amount(10 * STAKE), 10**10)
        await ledger.open_stake(node.seed, Amount(2 * STAKE), coordinator)
        figures, honest = world.figures, Honest(world, operator, node)
        tasks = [asyncio.create_task(one) for one in (honest.beat(), honest.ask())]
        await asyncio.wait_for(honest.here.wait(), 20)
        tasks.append(asyncio.create_task(_watch(process.pid, figures)))
        before = (
            _bytes_of(data),
            await ledger.lamports(coordinator),
            _memory(process.pid),
            _processor(process.pid),
            time.process_time(),
        )
        began = time.monotonic()
        everybody: list[Callable[[], Awaitable[None]]] = [world.nodes, world.sign_ups, world.work, world.bodies]
        await world.rage(seconds, refusals, [*everybody * actors, lambda: world.bonds(node.address)])
        figures.seconds = time.monotonic() - began
        for task in tasks:
            if task.done():
                task.result()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        figures.processor = _processor(process.pid) - before[3]
        figures.of_storm = time.process_time() - before[4]
        figures.lamports = before[1] - await ledger.lamports(coordinator)
        figures.disk = _bytes_of(data) - before[0]
        figures.memory = figures.most_memory - before[2]
        figures.rows = _rows(data / "coordinator.db")
    return figures, Bounds.of(figures.seconds, scale)


def _ledger(folder: Path) -> contextlib.AbstractAsyncContextManager[tuple[str, asyncio.subprocess.Process]]:
    ready = folder / "ledger-ready"
    words = ("--db", folder / "ledger.db", "--port", 0, "--ready-file", ready)
    return _process(ready, "-m", "ledger.local", *map(str, words))


def _coordinator(
    folder: Path, data: Path, ledger_url: str, scale: float
) -> contextlib.AbstractAsyncContextManager[tuple[str, asyncio.subprocess.Process]]:
    ready = folder / "ready"
    where = ("--data", data, "--port", 0, "--ready-file", ready, "--ledger-url", ledger_url)
    how = ("--behind-proxy", "--no-own-auditor", "--min-stake", STAKE)
    words = map(str, ("-m", "tests.coordinator.strangers", scale, "serve", *where, *how))
    return _process(ready, *words, log=folder / "log")


@contextlib.asynccontextmanager
async def _process(
    ready: Path, *words: str, log: Path | None = None
) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """A process of ours, once it has said where it answers."""
    with contextlib.ExitStack() as files:
        said = files.enter_context(log.open("wb")) if log is not None else None
        process = await asyncio.create_subprocess_exec(sys.executable, *words, stderr=said)
        try:
            async with asyncio.timeout(60):
                while not ready.exists() or not ready.read_text():
                    assert process.returncode is None, f"{words[1]} ended with {process.returncode}"
                    await asyncio.sleep(0.05)
            yield ready.read_text().strip(), process
            assert process.returncode is None, f"{words[1]} ended with {process.returncode} in the storm"
        finally:
            if process.returncode is None:
                process.terminate()
                await asyncio.wait_for(process.wait(), 30)


async def _watch(pid: int, figures: Figures) -> None:
    while True:
        figures.most_memory = max(figures.most_memory, _memory(pid))
        figures.most_files = max(figures.most_files, len(os.listdir(f"/proc/{pid}/fd")))
        await asyncio.sleep(0.25)


def _memory(pid: int) -> int:
    """Resident bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _processor(pid: int) -> float:
    """Seconds of a processor that it has had, its ended tools not among them."""
    told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK")


def _bytes_of(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512 if path.is_file() else 0
    return total


def _rows(database: Path) -> dict[str, int]:
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        names = [name for (name,) in db.execute("select name from sqlite_master where type = 'table'")]
        found = {name: int(db.execute(f'select count(*) from "{name}"').fetchone()[0]) for name in names}
        found["unpaid jobs"] = int(db.execute("select count(*) from jobs where paid = 0").fetchone()[0])
    return found


if __name__ == "__main__":
    shrink(float(sys.argv[1]))
    sys.exit(cli.main(sys.argv[2:]))
