"""Two computers with two cards each: one agent, two nodes; a card that is switched off in mid-job; one wallet that is paid."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from coordinator.client import Client
from cottage.demo.network import AGENT, DemoNetwork, Provider
from cottage.demo.options import parse
from cottage.demo.processes import output_of
from cottage.demo.run import DemoRun
from cottage.demo.screen import LineScreen
from desktop.agent.base.config import Home, Settings
from protocol.job.job import JobSpec
from tests.e2e.two_cards import CARDS
from tests.support.small_job import CORPUS_BYTES, small_job

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.long]

PROGRAM = ("-m", "tests.e2e.two_cards")
WORDS = ["--nodes", "2", "--stages", "2", "--no-reference", "--json"]
ROUNDS, STEPS, PATIENCE_S = 4, 4, 300.0


class TwoCards(DemoNetwork):
    """A network whose computers have two cards each."""

    async def add_provider(self, name: str, extra: Sequence[str] = (), program: Sequence[str] = AGENT) -> Provider:
        home = Home.at(self.options.folder / "nodes" / name)
        home.remember(Settings(gpu=CARDS[0], cards=CARDS[1:], memory_mb=4096))
        return await super().add_provider(name, ["--threads", "2", *extra], PROGRAM)


class Computers(DemoRun):
    """A job of two stages and two replicas on two computers."""

    corpus_bytes = CORPUS_BYTES

    async def _until_online(self, count: int) -> None:
        await super()._until_online(2 * count)

    def _spec(self, artifact: str, budget: int) -> JobSpec:
        return small_job(artifact, budget, 2, 2, rounds=ROUNDS, steps=STEPS, commit_every=2)


async def until_rounds(run: Computers, client: Client, job: str, rounds: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await client.get(job)).rounds_done < rounds:
            run.household.check()
            await asyncio.sleep(0.1)


async def test_two_computers_train_on_two_cards_each_and_one_card_leaves_in_mid_job(tmp_path: Path) -> None:
    async with Computers(parse([*WORDS, "--dir", str(tmp_path / "demo")]), LineScreen()) as run:
        network = run.network = TwoCards(run.options, run.household)
        ledger = await run._start()
        async with Client(network.web) as client:
            job = (await run._submit(client, ledger)).id
            await until_rounds(run, client, job, 1)
            owners = {provider.key.address for provider in network.providers}
            of = {key.address: p.key.address for p in network.providers for key in (p.key, p.key.card(CARDS[1]))}
            seats = {
                node.node: (node.stage, node.replica) for node in await client.nodes(job) if node.stage is not None
            }
            assert seats.keys() == of.keys(), "a seat for each card"
            at = defaultdict[int | None, set[str]](set)
            for node, (stage, _) in seats.items():
                at[stage].add(of[node])
            assert dict(at) == {0: owners, 1: owners}, "no owner holds two replicas of a stage"

            leaver = network.providers[0]
            said = await output_of([*AGENT, "cards", "--home", str(leaver.home), "--off", "2", "--json"])
            assert [card["on"] for card in json.loads(said)["cards"]] == [True, False]
            done = (await client.get(job)).rounds_done
            await until_rounds(run, client, job, done + 1)
            gone = leaver.key.card(CARDS[1]).address
            live = {node.node for node in await client.nodes(job) if node.state != "ended"}
            assert gone not in live
            assert leaver.key.address in live, "the other card of the same computer goes on"

            view = await run._watch(client, job)
            assert (view.state, view.rounds_done) == ("settled", ROUNDS)
            commits = [commit for commit in await client.commits(job) if commit.state == "verified"]
            earned: dict[str, int] = defaultdict(int)
            for commit in commits:
                earned[of[commit.node]] += commit.amount
            assert len({commit.node for commit in commits}) >= 3
            for owner in owners:
                assert await ledger.balance(owner) >= earned[owner] > 0, "both cards' pay is in one wallet"
            beside = {key for key in of if key not in owners}
            assert [await ledger.balance(card) for card in beside] == [0, 0]
            assert all([(await ledger.stake(card)) is not None for card in of]), "each card has a stake of its own"
