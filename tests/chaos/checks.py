"""What may befall coordinators and their database, and must cost nobody a round or a token: looked at when jobs have ended."""

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.chaos.storm import Outcome, Storm


@dataclass(frozen=True)
class Losses:
    """What is wrong, each in words; nothing should be.

    Attributes:
        jobs: that did not end as they should.
        rounds: that are missing, or were complete a second time.
        punished: nodes that were banned, or lost their stake.
        twice: nodes that have more than was verified. ``short``: that have less.
        sums: jobs whose money does not add up, or that ``cottage ledger check`` refuses.
    """

    jobs: list[str] = field(default_factory=list)
    rounds: list[str] = field(default_factory=list)
    punished: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    short: list[str] = field(default_factory=list)
    sums: list[str] = field(default_factory=list)

    def every(self) -> list[str]:
        """All of them."""
        return [*self.jobs, *self.rounds, *self.punished, *self.twice, *self.short, *self.sums]


async def losses(storm: Storm, outcomes: Sequence[Outcome]) -> Losses:
    """Of all jobs that a storm has had."""
    found = Losses()
    for outcome in outcomes:
        _look(storm, outcome, found)
        if told := await _refused(storm, outcome.job.id):
            found.sums.append(told)
    assert storm._ledger is not None
    verified: Counter[str] = Counter()
    for commit in (commit for outcome in outcomes for commit in outcome.commits if commit.state == "verified"):
        verified[commit.node] += commit.amount
    for provider in storm.providers:
        has, due = await storm._ledger.balance(provider.key.address), verified[provider.key.address]
        if has != due:
            (found.twice if has > due else found.short).append(f"{provider.name} has {has}, and {due} was verified")
    return found


async def check(storm: Storm, *outcomes: Outcome) -> None:
    """Everything that a takeover must leave as it was."""
    assert not (await losses(storm, outcomes)).every()


def _look(storm: Storm, outcome: Outcome, found: Losses) -> None:
    job, said = outcome.job, [str(event.text) for event in outcome.events]
    if job.state != "settled":
        found.jobs.append(f"job {job.id} is {job.state}: {said[-20:]}")
    complete = Counter(one.round for one in outcome.rounds if one.state == "complete" and one.tokens)
    due = Counter(range(storm.weather.rounds))
    if complete != due:
        found.rounds.append(f"job {job.id}: {sorted((complete - due) + (due - complete))}")
    found.punished.extend(text for text in said if "is banned" in text or "lost its stake" in text)
    verified = sum(commit.amount for commit in outcome.commits if commit.state == "verified")
    if job.paid != verified or job.paid + job.refunded != job.escrow:
        sums = f"{job.paid} paid and {job.refunded} refunded of {job.escrow}"
        found.sums.append(f"job {job.id}: {sums}, where {verified} was verified")


async def _refused(storm: Storm, job: str) -> str:
    """Why ``cottage ledger check`` does not believe in a job's books; empty: it does."""
    words = ["ledger", "check", job, "--coordinator", storm.web, "--rpc", storm.ledger_url]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cottage", *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    told, _ = await process.communicate()
    return told.decode() if process.returncode else ""
