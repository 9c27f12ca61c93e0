"""What a cartel and a loner with an environment class of their own are paid by a real network, beside its honest nodes.

    python -m benchmarks.trust.live_cheats [--runs 5] [--only cartel]

Real processes on one machine: ledger, ``cottage serve`` with its own auditor, three honest agents, and one or two that send their
first step's payloads again for ever, name a class that nobody else is of, say that they are four times as quick, and find right
whatever they are asked to audit (``_cheating_worker.py``). A job of 2 stages and 2 replicas on a model of 0.1 M parameters.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common import publish
from coordinator.client import Client
from coordinator.client.text import money
from cottage.demo.options import DemoOptions, parse
from cottage.demo.run import DemoRun
from cottage.demo.screen import LineScreen
from ledger.client import Ledger
from protocol.job.job import JobSpec
from tests.support.small_job import small_job

HONEST = 3
CHEATS = {"cartel": 2, "loner": 1}
AGENT = Path(__file__).with_name("_cheating_agent.py")
ROUNDS, STEPS = 12, 4
WORDS = ["--nodes", "4", "--stages", "2", "--no-reference", "--json"]


class CheatedRun(DemoRun):
    """One job of a network of which some nodes are not what they seem."""

    def __init__(self, options: DemoOptions, cheats: int) -> None:
        """Prepare a network with so many cheats, each of an owner of its own."""
        super().__init__(options, LineScreen())
        self.cheats = cheats

    async def paid(self) -> dict[str, Any]:
        """Run the job to its end; what honest nodes and cheats were paid, in millionths of the token."""
        ledger = await self._start()
        async with Client(self.network.web) as client:
            job = await self._submit(client, ledger)
            job = await self._watch(client, job.id)
            commits, audits = await client.commits(job.id), await client.audits(job.id)
        keys = [provider.key.address for provider in self.network.providers]
        honest, cheats = keys[:HONEST], keys[HONEST:]
        verified = {key: sum(c.amount for c in commits if c.node == key and c.state == "verified") for key in keys}
        return {
            "seconds": time.monotonic() - self.started,
            "rounds": job.rounds_done,
            "honest": [verified[key] for key in honest],
            "cheats": [verified[key] for key in cheats],
            "commits_of_cheats": sum(c.node in cheats for c in commits),
            "commits_of_honest": sum(c.node in honest and c.tokens > 0 for c in commits),
            "unpaid_of_honest": sum(c.node in honest and c.tokens > 0 and c.state != "verified" for c in commits),
            "failed_audits": sum(audit.state == "failed" for audit in audits),
            "slashed": [await _slashed(ledger, key) for key in keys],
        }

    async def _start(self) -> Ledger:
        ledger = await self.network.start_ledger()
        await self.network.start_coordinator()
        for number in range(HONEST):
            await self.network.add_provider(f"honest{number}")
        for number in range(self.cheats):
            words = ["--worker-argument=--lie=lazy"]
            provider = await self.network.add_provider(f"cheat{number}", words, (str(AGENT),))
            assert provider.role is not None
            provider.role.may_end = True  # The network may send it away.
        await self._until_online(HONEST + self.cheats)
        return ledger

    def _spec(self, artifact: str, budget: int) -> JobSpec:
        stages, replicas = self.options.stages, self.options.replicas
        return small_job(artifact, budget, stages, replicas, rounds=ROUNDS, steps=STEPS, commit_every=1)


async def _slashed(ledger: Ledger, key: str) -> int:
    stake = await ledger.stake(key)
    return 0 if stake is None else stake.slashed


async def _one(cheats: int) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        async with CheatedRun(parse([*WORDS, "--dir", folder]), cheats) as run:
            return await run.paid()


def main() -> int:
    """Run everything, print what was paid, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="of each strategy")
    parser.add_argument("--only", choices=sorted(CHEATS), help="one strategy")
    options = parser.parse_args()
    figures: dict[str, list[dict[str, Any]]] = {}
    for name in [name for name in CHEATS if options.only in (None, name)]:
        for number in range(options.runs):
            found = asyncio.run(_one(CHEATS[name]))
            figures.setdefault(name, []).append(found)
            honest, cheats = (", ".join(map(money, found[who])) for who in ("honest", "cheats"))
            print(f"{name} {number + 1}: honest {honest}; cheats {cheats}; {found['seconds']:.0f} s", flush=True)
        part = mean(mean(run["cheats"]) for run in figures[name]) / mean(mean(run["honest"]) for run in figures[name])
        print(f"{name}: a cheat is paid {part:.1%} of an honest node", flush=True)
    publish("live_cheats", "a class of one's own pays nothing where the operator looks", {"runs": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
