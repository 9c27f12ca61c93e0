"""The course of the demo's events, from the first role to the last figure."""

import asyncio
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from common.own_folders import make_folder
from common.untrusted_text import untrusted
from coordinator.client import Client
from coordinator.client.text import money, size
from cottage.demo.corpus import CORPUS_BYTES, write_corpus
from cottage.demo.faults import FIRST_ROUND, Fault, fault_for
from cottage.demo.network import LYING_AGENT, DemoNetwork
from cottage.demo.options import DemoOptions
from cottage.demo.processes import Household, output_of
from cottage.demo.report import DemoOutcome, Losses, Money
from cottage.demo.screen import DemoScreen
from ledger.client import Ledger, job_bytes
from ledger.money import Amount
from protocol.identity import NodeKey
from protocol.job.job import DatasetSpec, JobSpec, ModelSpec, ParallelSpec, TokenizerSpec, TrainingSpec
from protocol.rest import api

VOCABULARY = 2048
ANY_BUDGET = 10**15  # For the quote; the job itself gets what the quote says.
HELDOUT = 0.005  # Some 10,000 tokens of the corpus.
READY_S = 180.0  # Each agent measures its machine in its sandbox first; four at once on two cores.
STALL_S = 240.0  # No round or audit takes this long on the slowest machine that ran the demo.
POLL_S = 0.7
PROMPT = "def "
# What crosses between stages, as a home line wants it: a quarter of the 192 channels, in four bits both ways.
BETWEEN_STAGES = {"activations": "int4", "boundary_gradients": "int4", "subspace": 48}
OURS = ("ledger", "coordinator", "nodes", "logs", "model", "reference", "corpus.txt", "job.json")
_ENDED = ("settled", "failed", "cancelled")


class DemoError(RuntimeError):
    """The network did not do what it should; the text says what and where to look."""


class DemoRun:
    """One demo. An async context: leaving it ends every process."""

    corpus_bytes = CORPUS_BYTES

    def __init__(self, options: DemoOptions, screen: DemoScreen) -> None:
        self.options = options
        self.screen = screen
        self.household = Household(options.folder / "logs")
        self.network = DemoNetwork(options, self.household)
        self.wallet = NodeKey.generate()
        self.faults: list[Fault] = [
            fault_for(name, self.network, screen, after) for after, name in enumerate(options.faults, FIRST_ROUND)
        ]
        self.liar: str | None = None
        self.started = 0.0

    async def __aenter__(self) -> "DemoRun":
        _make_room(self.options.folder)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self.network.close())

    async def to_the_end(self) -> DemoOutcome:
        """Everything, in order."""
        ledger = await self._start()
        async with Client(self.network.web) as client:
            job = await self._submit(client, ledger)
            job = await self._watch(client, job.id)
            return await self._conclude(client, ledger, job)

    async def _start(self) -> Ledger:
        self.screen.say("starting the ledger: a Solana virtual machine with a test token")
        ledger = await self.network.start_ledger()
        self.screen.say("starting the coordinator")
        web = await self.network.start_coordinator()
        self.screen.say(f"web page: {web}")
        count = self.options.nodes + self.options.faults.count("kill-node")
        if self.options.sandbox == "docker":
            self.screen.say("making the sandbox image (quick the second time)")
            await output_of(["-m", "installer.image.build", *(["--from-host"] if self.options.image_from_host else [])])
        else:
            self.screen.say("workers run as plain processes, without a sandbox: fine here, never for strangers' jobs")
        self.screen.say(f"starting {count} nodes; each measures what this machine can do")
        for number in range(1, count + 1):
            lies = self.options.lie is not None and number == self.options.nodes
            if not lies:
                await self.network.add_provider(f"node{number}")
            else:
                words = [f"--worker-argument=--lie={self.options.lie}"]
                provider = await self.network.add_provider(f"node{number}", words, LYING_AGENT)
                assert provider.role is not None
                provider.role.may_end = True  # The network sends it away once it is caught.
                self.liar = provider.key.address
        await self._until_online(count)
        return ledger

    async def _until_online(self, count: int) -> None:
        deadline = time.monotonic() + READY_S
        async with Client(self.network.web) as client:
            while (online := (await client.network()).nodes_online) < count:
                self.household.check()
                if time.monotonic() > deadline:
                    raise DemoError(f"only {online} of {count} nodes came online within {READY_S:.0f} s")
                await asyncio.sleep(POLL_S)
        self.screen.say(f"{count} nodes are online")

    async def _submit(self, client: Client, ledger: Ledger) -> api.JobView:
        corpus = self.options.folder / "corpus.txt"
        written = await asyncio.to_thread(write_corpus, corpus, self.corpus_bytes)
        self.screen.say(f"uploading {size(written)} of text: the source of this Python's own library")
        upload = await client.upload(corpus)
        if upload.artifact is None:
            raise DemoError("the coordinator took the upload but did not name it")
        spec = self._spec(upload.artifact, budget=ANY_BUDGET)
        quote = await client.quote(spec)
        if quote.problems:
            raise DemoError(f"the coordinator would refuse the job: {'; '.join(quote.problems)}")
        budget = quote.price_high * 11 // 10  # More than it takes: the rest comes back.
        spec = msgspec.structs.replace(spec, budget=budget)
        (self.options.folder / "job.json").write_bytes(msgspec.json.encode(spec))
        self.screen.say(
            f"quote: {quote.parameters:,} parameters, {quote.operations:.2e} operations, {quote.rounds} rounds, "
            f"{quote.stages} stages x {quote.replicas} replicas, price {money(quote.price)}"
        )
        await ledger.faucet(self.wallet.address, Amount(spec.budget * 2))
        job = await client.create_job(api.NewJob(spec=spec, submitter=self.wallet.address))
        funding = await client.funding(job.id)
        await ledger.open_escrow(
            self.wallet.seed, job_bytes(job.id), funding.coordinator, Amount(funding.amount), funding.deadline
        )
        self.screen.say(f"escrow of {money(funding.amount)} is on the ledger; the job is {job.id}")
        self.started = time.monotonic()
        return await client.fund(job.id)

    def _spec(self, artifact: str, budget: int) -> JobSpec:
        training = TrainingSpec(tokens=self.options.tokens, seed=self.options.seed)
        if self.options.stages > 1:
            training = msgspec.structs.replace(training, **BETWEEN_STAGES)
        return JobSpec(
            name=untrusted("Python's own library"),
            model=ModelSpec(preset="tiny-llama"),
            dataset=DatasetSpec(artifact=artifact, heldout=HELDOUT),
            budget=budget,
            tokenizer=TokenizerSpec(kind="bpe", vocabulary=VOCABULARY),
            training=training,
            parallel=ParallelSpec(stages=self.options.stages, replicas=self.options.replicas),
            deadline_hours=2.0,
        )

    async def _watch(self, client: Client, job_id: str) -> api.JobView:
        progress, points, seen, moved = (-1, "", 0), list[api.Metric](), 0, time.monotonic()
        while True:
            try:
                job = await client.get(job_id)
                nodes = await client.nodes(job_id)
                points += await client.metrics(job_id, after=len(points))
                for event in await client.events(job_id, after=seen):
                    self.screen.say(event.text)
                    seen = event.id
            except OSError:  # The coordinator is down on purpose, or its death shows in the check below.
                await asyncio.sleep(POLL_S)
                self.household.check()
                continue
            self.screen.show(job, nodes, _curve(points))
            if job.state in _ENDED:
                if job.state != "settled":
                    raise DemoError(f"the job is {job.state}: {job.reason}")
                return job
            if (now := (job.tokens_done, job.state, seen)) != progress:  # Audits go on when the training is done.
                progress, moved = now, time.monotonic()
            if time.monotonic() - moved > STALL_S:
                raise DemoError(
                    f"nothing has moved for {STALL_S:.0f} s; the job is {job.state}, round {job.rounds_done}"
                )
            for fault in self.faults:
                await fault.consider(job, nodes)
            self.household.check()
            await asyncio.sleep(POLL_S)

    async def _conclude(self, client: Client, ledger: Ledger, job: api.JobView) -> DemoOutcome:
        seconds = time.monotonic() - self.started
        folder = self.options.folder
        model = await client.download_folder(job.id, folder / "model")
        commits, audits = await client.commits(job.id), await client.audits(job.id)
        nodes, receipts = await client.nodes(job.id), await client.receipts(job.id)
        single, folder_loss, sample = await self._reference(model)
        losses = Losses(job.first_validation_loss, job.validation_loss, single, folder_loss)
        return DemoOutcome(
            job=job,
            nodes=nodes,
            commits=commits,
            audits=audits,
            receipts=receipts,
            money=await self._money(ledger, job),
            losses=losses,
            seconds=seconds,
            model_dir=str(model),
            sample=sample,
            web=self.network.web,
            liar=self.liar,
            auditors=frozenset(node.node for node in await client.network_nodes() if node.auditor),
            faults=tuple(fault.story() for fault in self.faults),
        )

    async def _money(self, ledger: Ledger, job: api.JobView) -> Money:
        state = await ledger.escrow(self.wallet.address, job_bytes(job.id))
        if state is None:
            raise DemoError("the ledger does not know the job's escrow")
        slashed = 0
        for provider in self.network.providers:
            stake = await ledger.stake(provider.key.address)
            slashed += 0 if stake is None else stake.slashed
        return Money(state.deposited, state.paid, state.refunded, slashed)

    async def _reference(self, model: Path) -> tuple[float | None, float, str]:
        """The same training in one process, the folder's loss as ``transformers`` sees it, and a sample."""
        folder = self.options.folder / "reference"
        folder.mkdir()
        spec = msgspec.json.decode((self.options.folder / "job.json").read_bytes(), type=JobSpec)
        tokenizer = folder / "tokenizer-spec.json"
        tokenizer.write_bytes(msgspec.json.encode(spec.tokenizer))
        prepare = ["-m", "trainer", "prepare", "--dataset", str(self.options.folder / "corpus.txt"), "--format", "text"]
        prepare += ["--tokenizer", str(tokenizer), "--heldout", str(HELDOUT)]
        await output_of([*prepare, "--sequence", str(spec.training.sequence), "--out", str(folder)])
        self.screen.say("opening the model folder with transformers")
        evaluate = ["-m", "trainer", "evaluate", "--model", str(model), "--heldout", str(folder / "heldout.bin")]
        evaluate += ["--sequence", str(spec.training.sequence)]
        sample = ["-m", "trainer", "sample", "--model", str(model), "--prompt", PROMPT, "--tokens", "80", "--seed", "1"]
        loss, text, single = await asyncio.gather(output_of(evaluate), output_of(sample), self._single(folder))
        return single, float(json.loads(loss)["loss"]), text.strip()

    async def _single(self, folder: Path) -> float | None:
        """The loss after the same training in one process."""
        if not self.options.reference:
            return None
        self.screen.say("training the same model in one process on the same samples, to compare")
        result = folder / "single.json"
        words = ["-m", "trainer", "single", "--job", str(self.options.folder / "job.json"), "--folder", str(folder)]
        # One thread, as each node has: two wait for each other wherever something else computes, too.
        words += ["--replicas", str(self.options.replicas), "--threads", "1", "--out", str(result)]
        await output_of(words)
        return float(json.loads(result.read_text())["loss_after"])


def _curve(points: Sequence[api.Metric]) -> list[float]:
    """Training loss by step, the mean over the replicas that reported it."""
    by_step: dict[int, list[float]] = {}
    for point in points:
        if point.kind == "train":
            by_step.setdefault(point.step, []).append(point.loss)
    return [sum(losses) / len(losses) for _, losses in sorted(by_step.items())]


def _make_room(folder: Path) -> None:
    """Remove what an earlier demo left in ``folder``; refuse a folder that holds anything else."""
    make_folder(folder)
    strange = sorted(entry.name for entry in folder.iterdir() if entry.name not in OURS)
    if strange:
        raise DemoError(f"{folder} holds {strange[0]!r}, which no demo made: name an empty folder with --dir")
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
