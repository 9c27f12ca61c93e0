"""Three owners train one model, and not one byte of what they have leaves: worker, agent, coordinator and disks are watched.

The data holds marked text. It is looked for as it is, and as the tokens that it becomes, in all that a worker tells its agent, in
all that an agent tells other agents (before DTLS seals it) and the coordinator (behind a tap), and in every file there is.
"""

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from coordinator.client import Client
from cottage.demo.options import parse
from cottage.demo.processes import output_of
from cottage.demo.run import DemoRun
from cottage.demo.screen import LineScreen
from protocol.job.job import TokenizerSpec
from protocol.rest.api import JobView
from tests.e2e.test_private_sessions import TappedNetwork
from tests.e2e.test_serving_at_homes import WORDS
from tests.e2e.watched_node import HEARD
from tests.support.small_job import MODEL
from trainer.data.prepare import make_tokenizer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MARK = "the quagga of ward {number} sleeps in bed 4711"
ROUNDS, OWNERS = 4, 3
ONLINE_S = 900.0  # Three agents at once, on a machine that has much else to do.
WATCHED = ("-m", "tests.e2e.watched_node")


class Alone(TappedNetwork):
    """Without an auditor: a federation has nothing for one, and its benchmark takes a minute."""

    def _coordinator_arguments(self, folder: Path, ready: Path, port: int) -> Sequence[str]:
        return [*super()._coordinator_arguments(folder, ready, port), "--no-own-auditor"]


class Owners(DemoRun):
    """A network behind a tap, whose nodes' words to each other are written down."""

    async def start(self) -> None:
        """Three nodes come online."""
        self.network = Alone(self.options, self.household)
        await self.network.start_ledger()
        await self.network.start_coordinator()
        for number in range(1, OWNERS + 1):
            file = self.options.folder / "nodes" / f"worker{number}.heard"
            await self.network.add_provider(f"owner{number}", [f"--worker-argument=--watch={file}"], WATCHED)
        async with asyncio.timeout(ONLINE_S), Client(self.network.web) as client:
            while (await client.network()).nodes_online < OWNERS:
                self.household.check()
                await asyncio.sleep(0.5)

    @property
    def words(self) -> list[str]:
        return ["--server", self.network.web]

    @property
    def keys(self) -> list[str]:
        return [provider.key.address for provider in self.network.providers]


def data_of(folder: Path, number: int) -> Path:
    """What an owner has: a text with the mark in it, many times, and a table."""
    own = folder / f"data of owner {number}"
    own.mkdir()
    mark = MARK.format(number=number)
    lines = [f"{mark}; day {day} was a {'good' if day % 2 else 'long'} one." for day in range(300)]
    (own / "ward.txt").write_text("\n".join(lines))
    (own / ".hidden").write_bytes(b"\xff\xfe is not read")
    return own


def document(keys: Sequence[str], epsilon: float | None, summed: str = "open") -> dict[str, object]:
    privacy = None if epsilon is None else {"epsilon": epsilon, "clip": 0.5}
    return {
        "name": "the wards",
        "model": {"config": MODEL},
        "budget": 1,
        "tokenizer": {"kind": "bytes"},
        "training": {"sequence": 32, "batch": 4, "micro_batches": 2, "inner_steps": 6},
        "federated": {"owners": list(keys), "rounds": ROUNDS, "least_owners": OWNERS, "privacy": privacy}
        | ({"sum": summed} if summed == "secure" else {}),
    }


def traces(number: int) -> Iterator[bytes]:
    """How an owner's mark would look: as text, and as tokens of the job's tokenizer, of four bytes each."""
    mark = MARK.format(number=number)
    yield from (mark.encode(), b"quagga", b"sleeps in bed")
    tokenizer = make_tokenizer(TokenizerSpec("bytes"), None, lambda: iter(()))
    ids = np.asarray(tokenizer.encode(mark).ids, "<u4").tobytes()
    yield from (
        ids,
        ids[:32],
        np.frombuffer(ids, "<u4").astype("<u2").tobytes(),
        np.frombuffer(ids, "<u4").astype("<i8").tobytes(),
    )


def traces_in(data: bytes) -> list[bytes]:
    return [trace for number in range(1, OWNERS + 1) for trace in traces(number) if trace in data]


def files_with_traces(folder: Path, *but: Path) -> list[Path]:
    """Files below a folder that hold a mark, but those that owners have themselves."""
    files = [file for file in folder.rglob("*") if file.is_file() and not any(one in file.parents for one in but)]
    return [file for file in files if traces_in(file.read_bytes())]


async def until(client: Client, job: str, rounds: int, states: Sequence[str] = ("settled", "failed")) -> JobView:
    async with asyncio.timeout(600):
        while True:
            try:
                view = await client.get(job)
            except OSError:  # It is killed on purpose.
                await asyncio.sleep(0.2)
                continue
            if view.rounds_done >= rounds or view.state in states:
                return view
            await asyncio.sleep(0.2)


async def join(run: Owners, link: str, own: Sequence[Path]) -> list[str]:
    """Each owner joins by command; returns what each was told."""
    said = []
    for provider, data in zip(run.network.providers, own, strict=True):
        words = [
            "-m",
            "cottage",
            "node",
            "join",
            link,
            "--data",
            str(data),
            "--format",
            "text",
            "--yes",
            "--home",
            str(provider.home),
        ]
        said.append(await output_of([*words, *(["--tell-rows"] if data is own[0] else [])]))
    return said


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("summed", ["open", "secure"])
async def test_not_one_byte_of_the_data_leaves_and_the_budget_holds_through_a_crash(
    summed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch, network = tmp_path / "scratch", tmp_path / "network"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))  # What workers write beside their folder.
    own = [data_of(tmp_path, number) for number in range(1, OWNERS + 1)]
    assert len(files_with_traces(tmp_path)) == OWNERS, "what is looked for is found where it is"
    options = parse([*WORDS, str(OWNERS), "--dir", str(network)])
    async with Owners(options, LineScreen()) as run:
        await run.start()
        tap = run.network.tap  # type: ignore[attr-defined]
        (tmp_path / "job.json").write_text(json.dumps(document(run.keys, 8.0, summed)))
        said = await output_of(["-m", "cottage", "submit", str(tmp_path / "job.json"), "--yes", *run.words])
        (job,) = set(re.findall(r"^([0-9a-f]{32})  ", said, re.MULTILINE))
        (link,) = re.findall(r"'(cottage://join\S+)'", said)
        told = await join(run, link, own)
        assert all("epsilon 8 at delta 1e-05" in text for text in told)
        assert all(("only the sum of 3 owners or more can be read" in text) == (summed == "secure") for text in told)
        assert "300 of 300 rows can be learnt from" in told[0]
        async with Client(run.network.web) as client:
            view = await until(client, job, 2)
            assert view.federation is not None
            assert [owner.rows for owner in view.federation.owners] == [300, None, None], (
                "counts are told by who agrees"
            )
            said = await output_of(["-m", "cottage", "show", job, *run.words])
            assert link in said
            assert "privacy spent: epsilon" in said
            await kill_coordinator(run)
            end = await until(client, job, ROUNDS + 1)
            assert end.state == "settled", end.reason
            check_end(end, summed)
            model = await client.download_folder(job, tmp_path / "model")
        check = [
            "-m",
            "cottage",
            "ledger",
            "check",
            job,
            "--rpc",
            run.network.ledger_url,
            "--coordinator",
            run.network.web,
        ]
        found = json.loads(await output_of([*check, "--card", str(model / "README.md"), "--json"]))
        verdicts = {one["check"]: one["verdict"] for one in found if one["check"].startswith("privacy")}
        assert verdicts == dict.fromkeys(
            ("privacy count", "privacy spent", "privacy budget", "privacy card"), "pass"
        ), found
        joined = json.loads(
            await output_of(
                ["-m", "cottage", "node", "federations", "--json", "--home", str(run.network.providers[0].home)]
            )
        )["joined"]
        assert joined[0]["begun"] <= end.federation.privacy.releases  # type: ignore[union-attr]
        home = ["--home", str(run.network.providers[2].home)]
        assert "no further round" in await output_of(["-m", "cottage", "node", "leave", link, *home])
        check_silence(run, bytes(tap.bytes), summed)
    assert files_with_traces(tmp_path, *own) == [], "no file but the owners' has any of it"
    assert list(scratch.glob("cottage-own-*")) == [], "no file of tokens is left"


async def kill_coordinator(run: Owners) -> None:
    """``kill -9`` in mid-run; it comes back on its database."""
    network = run.network
    assert network.coordinator is not None
    await run.household.kill(network.coordinator)
    web = network.web
    network.web = network.tap.behind  # type: ignore[attr-defined]
    await super(TappedNetwork, network).start_coordinator()  # type: ignore[misc]
    network.web = web


def check_end(end: JobView, summed: str) -> None:
    assert end.federation is not None
    privacy = end.federation.privacy
    assert privacy is not None
    assert ROUNDS <= privacy.releases <= privacy.most
    assert privacy.sum == summed
    assert 0 < privacy.epsilon <= privacy.epsilon_most == 8.0
    assert (end.train_loss, end.validation_loss, end.audits, end.paid) == (None, None, 0, 0)


def check_silence(run: Owners, tapped: bytes, summed: str) -> None:
    """Nothing that was watched holds a mark; and what was watched is what there is to watch.

    With secure sums no piece of an update is on any line as its worker handed it to its agent, and owners send each other none.
    """
    assert tapped.count(b"commit") >= ROUNDS, "the tap hears what nodes report"
    assert traces_in(tapped) == []
    for number, provider in enumerate(run.network.providers, 1):
        worker = (run.options.folder / "nodes" / f"worker{number}.heard").read_bytes()
        peers = (provider.home / HEARD).read_bytes()
        if summed == "secure":
            updates = [match.end() for match in re.finditer(rb"\xa6vector", worker)]
            assert len(updates) >= ROUNDS - 1, "the worker is heard"
            for at in updates:  # Behind the rest of the message's head.
                for piece in (worker[at + place : at + place + 16] for place in (64, 4_000, 200_000)):
                    assert worker.count(piece) == 1
                    assert piece not in tapped
                    assert piece not in peers
            assert b"pseudo_gradient" not in peers
            assert len(tapped) > ROUNDS * OWNERS * 4 * 100_000, "masked updates and sums were heard"
        else:
            assert worker.count(b"pseudo_gradient") >= ROUNDS, "the worker is heard"
            assert len(peers) > 10_000, "updates went to other owners"
        assert traces_in(worker) == []
        assert traces_in(peers) == []
