"""A run under kills: real agents, workers, coordinator and ledger on loopback, and nodes that die at random instants.

A kill is ``SIGKILL`` of an agent and its worker at once; the system closes their connections. Some are *power cuts* instead: the
processes are stopped, so that they fall silent and nothing is closed, and killed once everybody has noticed. A node comes back a
little later with its disk as it was left; at most one node of each stage is down at a time. Some only join in mid-run.
"""

import asyncio
import random
import secrets
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from coordinator.client import Client
from cottage.demo.corpus import write_corpus
from cottage.demo.network import STAKE, STARTING_S, Provider
from cottage.demo.processes import DemoProcess, Household, wait_for_file
from ledger.client import Ledger, LedgerConfig, job_bytes
from ledger.money import Amount
from ledger.money import parse as parse_amount
from protocol.identity import NodeKey
from protocol.job.job import DatasetSpec, JobSpec, ModelSpec, ParallelSpec, TokenizerSpec, TrainingSpec
from protocol.rest import api

ANY_BUDGET = 10**15
POLL_S = 0.25
LOOPBACK = "127.0.0.1"
READY_S = 900.0  # A dozen agents that start at once on two busy cores.
DOWN_S = (0.5, 6.0)
RETURN_S = 20.0  # Who is killed comes back with its records, or not at all.
SILENT_S = (1.0, 4.0)  # Beyond the heartbeat's limit.
PRICE_PER_PETAFLOP = 1_000_000_000
VOCABULARY = 300
SEQUENCE, BATCH = 32, 4
ENDED = ("settled", "failed", "cancelled")


def model(stages: int) -> dict[str, Any]:
    """As small as a model of so many stages can be and still learn something."""
    return {
        "model_type": "llama",
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": stages,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }


@dataclass(frozen=True)
class Weather:
    """What a run is put through.

    Attributes:
        spares: nodes beyond ``stages x replicas`` that are there from the beginning.
        joiners: nodes that come in mid-run.
        kills: how many, spread over the run; 0 is the calm run that the others are held against.
        power_cuts: share of the kills after which nothing is closed.
        lease_seconds: a node that is silent for as long has died (the heartbeat's time limit).
        tokens: to train on; None: as many as ``rounds`` of ``inner_steps`` by all replicas read.
        lean: stages are kept lean.
    """

    stages: int = 2
    replicas: int = 2
    spares: int = 1
    joiners: int = 1
    kills: int = 12
    rounds: int = 24
    inner_steps: int = 20
    round_seconds: float | None = None
    lateness: float | None = None
    power_cuts: float = 0.0
    lease_seconds: float = 3.0
    heartbeat_seconds: float = 1.0
    audits: int = 2
    store_every: int = 4
    seed: int = 1
    tokens: int | None = None
    lean: bool = False

    def tokens_to_read(self) -> int:
        """What the job's document asks for."""
        per_step = BATCH * SEQUENCE * self.replicas
        return self.rounds * self.inner_steps * per_step if self.tokens is None else self.tokens


@dataclass(frozen=True)
class Kill:
    """When a node died, which round was in flight, and whether its connections stayed open."""

    at: float
    node: str
    stage: int | None
    replica: int | None
    rounds_done: int
    silent: bool = False


@dataclass
class Outcome:
    """What became of a run."""

    job: api.JobView
    rounds: Sequence[api.RoundView]
    audits: Sequence[api.AuditView]
    commits: Sequence[api.CommitView]
    events: Sequence[api.JobEvent]
    kills: list[Kill]
    seconds: float

    def complete(self) -> list[api.RoundView]:
        """Complete rounds by their time."""
        return sorted((r for r in self.rounds if r.state == "complete" and r.ended), key=lambda r: r.ended or 0.0)

    def durations(self) -> list[float]:
        """Seconds of each complete round."""
        return [(r.ended or 0.0) - r.started for r in self.complete()]

    def to_next_commit(self, silent: bool = False) -> list[float]:
        """Seconds from each kill of a member, or each power cut, to the next round that was complete."""
        ends = [r.ended or 0.0 for r in self.complete()]
        struck = [kill for kill in self.kills if kill.stage is not None and kill.silent is silent]
        found = [min((end - kill.at for end in ends if end > kill.at), default=None) for kill in struck]
        return [value for value in found if value is not None]

    def report(self) -> dict[str, Any]:
        """The figures, as JSON."""
        waits, silent = self.to_next_commit(), self.to_next_commit(silent=True)
        verdicts = [f"{audit.state}: {audit.blame}" if audit.blame else audit.state for audit in self.audits]
        return {
            "state": self.job.state,
            "reason": self.job.reason,
            "kills": len(self.kills),
            "kills_of_members": sum(kill.stage is not None for kill in self.kills),
            "tokens": self.job.tokens_done,
            "rounds": len(self.complete()),
            "rounds_done_again": len(self.complete()) - len({r.round for r in self.complete()}),
            "validation_loss": self.job.validation_loss,
            "first_validation_loss": self.job.first_validation_loss,
            "seconds": round(self.seconds, 1),
            "round_seconds_median": round(statistics.median(self.durations()), 2) if self.durations() else None,
            "next_commit_after_kill_median": round(statistics.median(waits), 2) if waits else None,
            "next_commit_after_kill_most": round(max(waits), 2) if waits else None,
            "power_cuts_of_members": len(silent),
            "next_commit_after_power_cut_median": round(statistics.median(silent), 2) if silent else None,
            "next_commit_after_power_cut_most": round(max(silent), 2) if silent else None,
            "audits": {state: verdicts.count(state) for state in sorted(set(verdicts))},
        }


@dataclass
class Storm:
    """One run. ``to_the_end`` it within ``async with``; leaving ends every process."""

    folder: Path
    weather: Weather
    household: Household = field(init=False)
    providers: list[Provider] = field(default_factory=list)
    host: str = LOOPBACK
    token: str | None = None
    web: str = ""
    ledger_url: str = ""
    coordinator: DemoProcess | None = None
    kills: list[Kill] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Nothing runs yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.household = Household(self.folder / "logs")
        self._chance = random.Random(self.weather.seed)
        self._ledger: Ledger | None = None
        self._coming_back: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> "Storm":
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._coming_back.values():
            task.cancel()
        for provider in self.providers:  # One that is stopped hears no other signal.
            if provider.key.address in self._coming_back and provider.role is not None and provider.role.running:
                await self.household.kill(provider.role)
        await asyncio.gather(*self._coming_back.values(), return_exceptions=True)
        if self._ledger is not None:
            await self._ledger.aclose()
        await asyncio.shield(self.household.close())

    async def to_the_end(self) -> Outcome:
        """Everything, in order."""
        ledger = await self.start()
        async with Client(self.web, self.token) as client:
            job = await self.submit(client, ledger)
            began = time.time()
            job = await self._watch(client, job.id)
            return await self.outcome(client, job, time.time() - began)

    async def outcome(self, client: Client, job: api.JobView, seconds: float) -> Outcome:
        """All that is known of a job, which took so many ``seconds``."""
        return Outcome(
            job,
            await client.rounds(job.id),
            await client.audits(job.id),
            await client.commits(job.id),
            await client.events(job.id),
            self.kills,
            seconds,
        )

    async def stop_everybody(self) -> None:
        """A power cut: the coordinator and every node die at once; the ledger is elsewhere."""
        await asyncio.gather(
            *(self.household.kill(role) for role in (self.coordinator, *(p.role for p in self.providers)) if role)
        )

    async def start_everybody(self) -> None:
        """Start them again, with their disks as they were left."""
        await self.start_coordinator(self.ledger_url)
        for provider in self.providers:
            await self.run_node(provider)

    async def start(self) -> Ledger:
        """The network without a job; returns once the first nodes are online."""
        folder = self.folder / "ledger"
        folder.mkdir()
        words = [
            "-m",
            "ledger.local",
            "--host",
            self.host,
            "--port",
            "0",
            "--db",
            str(folder / "ledger.db"),
            "--ready-file",
            str(folder / "url"),
        ]
        role = await self.household.start("ledger", words)
        url = await wait_for_file(folder / "url", role, STARTING_S)
        self.ledger_url = url
        self._ledger = await Ledger.connect(LedgerConfig(url))
        await self.start_coordinator(url)
        weather = self.weather
        for number in range(weather.stages * weather.replicas + weather.spares):
            await self.add(f"node{number}")
        await self.until_online(len(self.providers))
        return self._ledger

    async def start_coordinator(self, ledger_url: str) -> None:
        """Start it, or start it again where it was."""
        weather, folder = self.weather, self.folder / "coordinator"
        folder.mkdir(exist_ok=True)
        (folder / "url").unlink(missing_ok=True)
        values = {
            "--data": folder,
            "--host": self.host,
            "--port": urlsplit(self.web).port or 0,
            "--ready-file": folder / "url",
            "--ledger-url": ledger_url,
            "--lease-seconds": weather.lease_seconds,
            "--heartbeat-seconds": weather.heartbeat_seconds,
            "--return-seconds": RETURN_S,
            "--audits-per-round": weather.audits,
            "--price-per-petaflop": PRICE_PER_PETAFLOP,
            "--min-stake": parse_amount(STAKE),
            "--store-every": weather.store_every,
        }
        words = [
            "-m",
            "cottage",
            "serve",
            *(["--open"] if self.host == LOOPBACK else []),
            *(str(word) for pair in values.items() for word in pair),
        ]
        self.coordinator = await self.household.start("coordinator", words)
        self.web = await wait_for_file(folder / "url", self.coordinator, STARTING_S)
        if self.host != LOOPBACK and self.token is None:
            await self._account(folder, "add", "storm", "--password-stdin")
            self.token = await self._account(folder, "key", "storm")

    async def _account(self, data: Path, *words: str) -> str:
        """What ``cottage accounts`` says; only a coordinator on a loopback address is open to everybody."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "cottage",
            "accounts",
            "--data",
            str(data),
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await process.communicate(secrets.token_urlsafe().encode())
        assert process.returncode == 0, said
        return said.decode().strip()

    async def add(self, name: str) -> None:
        """One more node."""
        home = self.folder / "nodes" / name
        home.mkdir(parents=True)
        provider = Provider(name, home, NodeKey.load_or_generate(home / "node.key"))
        self.providers.append(provider)
        await self.run_node(provider)

    async def run_node(self, provider: Provider) -> DemoProcess:
        """Start a node's agent on its own disk."""
        words = [
            "-m",
            "cottage",
            "node",
            "run",
            "--always",
            "--coordinator",
            self.web,
            "--home",
            str(provider.home),
            "--name",
            provider.name,
            "--sandbox",
            "process",
            "--threads",
            "1",
            "--stake",
            STAKE,
            "--loopback",
        ]
        provider.role = await self.household.start(f"node-{provider.name}", words)
        return provider.role

    async def until_online(self, count: int) -> None:
        """Wait until so many nodes are there."""
        deadline = time.monotonic() + READY_S
        async with Client(self.web, self.token) as client:
            while (await client.network()).nodes_online < count:
                self.household.check()
                assert time.monotonic() < deadline, f"fewer than {count} nodes came online"
                await asyncio.sleep(POLL_S)

    async def submit(self, client: Client, ledger: Ledger) -> api.JobView:
        """Upload the text, and fund a job of this weather."""
        return await self.hand_in(client, ledger, await self.upload(client))

    async def upload(self, client: Client) -> str:
        """The text that jobs learn from."""
        corpus = self.folder / "corpus.txt"
        await asyncio.to_thread(write_corpus, corpus, 300_000)
        upload = await client.upload(corpus)
        assert upload.artifact is not None
        return upload.artifact

    async def hand_in(self, client: Client, ledger: Ledger, text: str) -> api.JobView:
        """Fund a job of this weather, which learns from an uploaded text."""
        spec = self.spec(text, ANY_BUDGET)
        quote = await client.quote(spec)
        assert not quote.problems, quote.problems
        spec = msgspec.structs.replace(spec, budget=quote.price_high * 11 // 10)
        wallet = NodeKey.generate()
        await ledger.faucet(wallet.address, Amount(spec.budget * 2))
        job = await client.create_job(api.NewJob(spec=spec, submitter=wallet.address))
        funding = await client.funding(job.id)
        await ledger.open_escrow(
            wallet.seed, job_bytes(job.id), funding.coordinator, Amount(funding.amount), funding.deadline
        )
        return await client.fund(job.id)

    def spec(self, artifact: str, budget: int) -> JobSpec:
        """The job's document."""
        weather = self.weather
        return JobSpec(
            name="a run under kills",
            model=ModelSpec(config=model(weather.stages)),
            dataset=DatasetSpec(artifact=artifact, heldout=0.02),
            budget=budget,
            tokenizer=TokenizerSpec(kind="bpe", vocabulary=VOCABULARY),
            training=TrainingSpec(
                tokens=weather.tokens_to_read(),
                sequence=SEQUENCE,
                batch=BATCH,
                micro_batches=2,
                inner_steps=weather.inner_steps,
                round_seconds=weather.round_seconds,
                lateness=weather.lateness,
                seed=weather.seed,
                memory="lean" if weather.lean else "float32",
                precision="bf16" if weather.lean else "fp32",
            ),
            parallel=ParallelSpec(stages=weather.stages, replicas=weather.replicas),
            deadline_hours=6.0,
        )

    # --- the weather ----------------------------------------------------------------------------------------------------

    async def _watch(self, client: Client, job_id: str) -> api.JobView:
        """Kill and add nodes as the run goes on; returns its end."""
        weather, joined, total = self.weather, 0, 0
        while True:
            job = await client.get(job_id)
            if job.state in ENDED:
                return job
            total = total or max(1, job.rounds_total)
            share = job.rounds_done / total
            if joined < weather.joiners and share >= (joined + 1) / (weather.joiners + 2):
                await self.add(f"joiner{joined}")
                joined += 1
            if job.state == "running" and len(self.kills) < weather.kills * min(1.0, 1.1 * share + 0.05):
                await self._strike(await client.nodes(job_id), job.rounds_done)
            self._check_roles()
            await asyncio.sleep(self._chance.uniform(0.5, 1.5) * POLL_S)

    async def _strike(self, nodes: Sequence[api.JobNode], rounds_done: int) -> None:
        """Kill one node of the job, but none of a stage of which one is down already."""
        places = {node.node: node for node in nodes if node.state not in ("lost", "rejected", "done")}
        down = {kill.stage for kill in self.kills if kill.node in self._coming_back}
        filled = {(n.stage, n.replica) for n in places.values() if n.state in ("training", "waiting", "ready")}
        whole = {
            s for s in range(self.weather.stages) if sum(place[0] == s for place in filled) == self.weather.replicas
        }
        targets = [
            provider
            for provider in self.providers
            if provider.key.address in places
            and provider.key.address not in self._coming_back
            and (places[provider.key.address].stage is None or places[provider.key.address].stage in whole - down)
        ]
        if not targets:
            return
        victim = self._chance.choice(targets)
        place = places[victim.key.address]
        assert victim.role is not None
        silent = self._chance.random() < self.weather.power_cuts
        after = self._chance.uniform(*DOWN_S)
        self.kills.append(Kill(time.time(), victim.key.address, place.stage, place.replica, rounds_done, silent))
        if silent:
            self.household.freeze(victim.role)
            after = self.weather.lease_seconds + self._chance.uniform(*SILENT_S)
        else:
            await self.household.kill(victim.role)
        self._coming_back[victim.key.address] = asyncio.create_task(self._come_back(victim, after))

    async def _come_back(self, provider: Provider, after: float) -> None:
        await asyncio.sleep(after)
        if provider.role is not None and provider.role.running:
            await self.household.kill(provider.role)
        await self.run_node(provider)
        del self._coming_back[provider.key.address]

    def _check_roles(self) -> None:
        """Nobody may end but by a kill."""
        self.household.check()
        for task in self._coming_back.values():
            if task.done():
                task.result()
