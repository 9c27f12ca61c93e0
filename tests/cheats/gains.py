"""What cheats are paid for work that they have not done, beside what an honest node in their place is paid.

A world is one job of 2 stages and 2 replicas on honest nodes, the cheats, which are the quickest, and the operator's auditor;
real services on a virtual clock (``tests.sim.world``). Nobody has a stake, and keys are free.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from coordinator.domain import pricing
from coordinator.domain.account import LOCAL_ACCOUNT
from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import LIVE, Job, JobState
from coordinator.store.records import CommitRecord, NodeRecord, RoundRecord
from tests.cheats.schemes import BETWEEN, Flapper, Forger, Idler, Replayer, expected
from tests.coordinator.fakes import spec
from tests.sim.test_faults import gather_nodes, open_rows, read, submit, timeline
from tests.sim.world import Scheme, SimNode, World

HONEST = 7
STEPS = 4  # Of a round, each a segment of its own.
LOOK_EVERY = 300  # Turns after which cheats read who was found.
TURNS = 400_000
SETTINGS = {"min_stake": 0, "audit_seconds": 20.0}
THEIRS = "a" * 32  # An account of the cheats' own.


@dataclass(frozen=True)
class Part:
    """One job of a plot. ``theirs``: they submit and pay it themselves, so that nothing is won in it."""

    rounds: int
    theirs: bool = False


@dataclass(frozen=True)
class Plot:
    """A strategy.

    Attributes:
        cheats: makes what is odd about each of them, anew for every world; they are in it together.
        jobs: one after the other.
        operator: what is odd about the operator's auditor. ``honest``: other nodes.
        cancels: their submitter, who is one of them, cancels once all rounds are trained and the newest checkpoint is stored.
        formula: what the formula says of ``Gain.part``, on average.
    """

    name: str
    cheats: Callable[[], list[dict[str, Any]]]
    jobs: tuple[Part, ...] = (Part(40),)
    settings: Mapping[str, Any] = field(default_factory=dict)
    operator: Mapping[str, Any] = field(default_factory=dict)
    formula: float = 0.0
    honest: int = HONEST
    cancels: bool = False


@dataclass(frozen=True)
class Gain:
    """What came of a plot in one world; amounts in millionths of the token.

    Attributes:
        forged: what the rounds were worth of which the cheats did not do the work, parts counting as parts.
        paid: of these. ``unearned``: what they were paid beyond the work that they did.
        again: complete rounds that were done once more.
        tries: rounds that were forged or came to nothing, jobs that ended early, and findings of cheats against somebody.
        slashed: keys of the cheats that lost stake, and of others.
        place: what honest nodes would have been paid in as many seats over the whole jobs.
        honest_paid: of what honest nodes worked in complete rounds, the part that was paid.
        honest_useless: the part that was not, because a cheat forged in that round, and nobody can use what it came to.
    """

    forged: float = 0.0
    paid: float = 0.0
    unearned: float = 0.0
    place: float = 0.0
    honest_worked: float = 0.0
    honest_paid: float = 0.0
    honest_useless: float = 0.0
    slashed: int = 0
    honest_slashed: int = 0
    honest_banned: int = 0
    looks: int = 0
    again: int = 0
    tries: int = 0

    @property
    def part(self) -> float:
        """Unearned pay over what honest nodes in their place are paid."""
        return self.unearned / self.place


async def gain(plot: Plot, seed: int) -> Gain:
    """Run one world to its end."""
    cheats = plot.cheats()
    count = plot.honest + len(cheats) + 1
    special = {plot.honest + 1 + number: {"flops": 1e10 + number, **odd} for number, odd in enumerate(cheats)}
    special[count] = dict(plot.operator)
    settings = {**SETTINGS, **plot.settings}
    world = World(seed, nodes=count, faults=0.0, settings=settings, operators=(count,), special=special)
    plotters = world.nodes[plot.honest : plot.honest + len(cheats)]
    keys = {node.key.address for node in plotters}
    await gather_nodes(world)
    found = Gain()
    for part in plot.jobs:
        document = spec(2, 2, tokens=part.rounds * STEPS * 512, inner_steps=STEPS)
        job = await submit(world, 2, 2, document, THEIRS if part.theirs else LOCAL_ACCOUNT)
        await _play(world, job, plotters, keys, part.rounds if plot.cancels else None)
        if not part.theirs:
            found = await _counted(world, job, keys, len(cheats), found)
    async with world.records.transaction() as tx:
        others = {r.address: r for r in await tx.find(NodeRecord) if r.address not in keys}
    return replace(
        found,
        slashed=sum(node in world.chain.slashed for node in keys),
        honest_slashed=sum(node in world.chain.slashed for node in others),
        honest_banned=sum(record.banned for record in others.values()),
    )


async def _play(world: World, job: str, plotters: list[SimNode], keys: set[str], cancelled: int | None) -> None:
    """Until the job is over. Cheats learn from what is published that one of them was found.

    Args:
        cancelled: after so many rounds; None: it is not.
    """
    told: set[str] = set()
    for turn in range(TURNS):
        await world.turn()
        if turn % LOOK_EVERY:
            continue
        by_key = {node.key.address: node for node in plotters}
        keys |= set(by_key)
        for audit in await read(world, Audit, job):
            if audit.state == "failed" and audit.id not in told:
                told.add(audit.id)
                node = by_key.get(audit.node)
                if node is not None and isinstance(node.scheme, Forger):
                    node.scheme.found(node)
        (stored,) = await read(world, Job, job)
        if cancelled is not None and stored.rounds_done >= cancelled and world.parts is not None:
            await world.parts.jobs.cancel(job)
        if stored.state not in LIVE and not await open_rows(world, job):
            return
    raise AssertionError(f"stuck as {stored.state}: {await timeline(world, job)}")


async def _counted(world: World, job: str, keys: set[str], cheats: int, so_far: Gain) -> Gain:
    assert world.peers.violations == []
    rounds: list[RoundRecord] = [r for r in await read(world, RoundRecord, job) if r.state == "complete" and r.steps]
    commits: list[CommitRecord] = await read(world, CommitRecord, job)
    audits: list[Audit] = await read(world, Audit, job)
    voids = [r for r in await read(world, RoundRecord, job) if r.state == "void"]
    accused = [
        v for audit in audits if not audit.canary for v in audit.verdicts if v.auditor in keys and v.verdict != "match"
    ]
    early = [stored for stored in await read(world, Job, job) if stored.state is not JobState.SETTLED]
    forged = paid = unearned = worked = honest = useless = 0.0
    for record in rounds:
        members = [c for c in commits if (c.epoch, c.round) == (record.epoch, record.number) and c.drawable]
        split = pricing.shares(record.pot, {f"{c.replica}:{c.stage}": c.operations for c in members})
        for commit in members:
            share = split[f"{commit.replica}:{commit.stage}"]
            part = max(_forged(world, one) for one in (commit, *_friends(commit, members, keys)))
            got = share if commit.state == "verified" else 0
            if commit.node in keys:
                forged, paid, unearned = forged + share * part, paid + got * part, unearned + got - share * (1 - part)
            else:
                worked, honest = worked + share, honest + got
                useless += share if not got and any(_forged(world, m) for m in members) else 0
    again = len(rounds) - len({record.number for record in rounds})
    return Gain(
        forged=so_far.forged + forged,
        paid=so_far.paid + paid,
        unearned=so_far.unearned + unearned,
        place=so_far.place + min(cheats, 4) * sum(record.pot for record in rounds) / 4,
        honest_worked=so_far.honest_worked + worked,
        honest_paid=so_far.honest_paid + honest,
        honest_useless=so_far.honest_useless + useless,
        looks=so_far.looks + sum(any(v.own for v in audit.verdicts) for audit in audits),
        again=so_far.again + again,
        tries=so_far.tries + (forged > 0) + again + len(voids) + len(accused) + len(early),
    )


def _friends(commit: CommitRecord, members: list[CommitRecord], keys: set[str]) -> list[CommitRecord]:
    """Cheats of the same replica: who is given nothing but noughts by one of them comes to noughts, without any work."""
    return [m for m in members if m.replica == commit.replica and {m.node, commit.node} <= keys]


def _forged(world: World, commit: CommitRecord) -> float:
    """Which part of a seat's round was not worked."""
    place = commit.job, commit.epoch, commit.round, commit.stage, commit.replica
    return float(world.peers.forged.get(place, 0))


def _cartel(
    owners: int, env_class: str = "mine", after: int = HONEST, **forger: Any
) -> Callable[[], list[dict[str, Any]]]:
    """Nodes that agree with whatever the others of them say, and forge; they come ``after`` so many others."""
    friends = tuple(range(after + 1, after + 1 + owners))

    def make() -> list[dict[str, Any]]:
        return [{"env_class": env_class, "blind": friends, "scheme": Forger(**forger)} for _ in friends]

    return make


def _replayers(owners: int, **replayer: Any) -> Callable[[], list[dict[str, Any]]]:
    return lambda: [{"scheme": Replayer(**replayer)} for _ in range(owners)]


def _with_a_goat() -> list[dict[str, Any]]:
    """The first of them lies where most is thrown away for it, is sent out, and comes back as somebody else."""
    return [{"scheme": Forger(how="one step", only=BETWEEN - 2, fresh=True)}, *_replayers(2)()]


def _braggart() -> list[dict[str, Any]]:
    return [{"flops": 1e12, "scheme": Forger()}]


def _all(count: int, scheme: Callable[[], Scheme], **odd: Any) -> Callable[[], list[dict[str, Any]]]:
    """So many of them, each with a scheme of its own."""
    return lambda: [{"scheme": scheme(), **odd} for _ in range(count)]


def _after(honest: int, rounds: int) -> float:
    """Of a job's rounds, those that are paid though they were forged after so many honest ones, by the formula."""
    return expected(honest, rounds - honest) / rounds


LONG = (Part(42),)
SLOW = {"rerun": 15.0}  # An auditor of the operator's.
SMALL, LARGE = 100, 8  # Rounds of two jobs of one price.

PLOTS = (
    Plot("a cartel of three owners with an invented class", _cartel(3)),
    Plot("a cartel of five owners with an invented class", _cartel(5)),
    Plot("alone with an invented class", _cartel(1)),
    Plot("a cartel of three in the operator's class", _cartel(3, "cpu")),
    Plot("leaves when it is drawn", _cartel(1, "cpu", exit_when_drawn=True)),
    Plot(
        "leaves when it is drawn, after 21 honest rounds",
        _cartel(1, "cpu", exit_when_drawn=True, honest=21),
        LONG,
        formula=_after(21, 42),
    ),
    Plot("has its line cut when it is drawn", _cartel(1, "cpu", cut_when_drawn=25.0)),
    Plot(
        "has its line cut when it is drawn, after 21 honest rounds",
        _cartel(1, "cpu", cut_when_drawn=25.0, honest=21),
        LONG,
        formula=_after(21, 42),
    ),
    Plot("crashes when it is drawn", _cartel(1, "cpu", crash_when_drawn=14.0)),
    Plot(
        "crashes when it is drawn, after 21 honest rounds",
        _cartel(1, "cpu", crash_when_drawn=14.0, honest=21),
        LONG,
        formula=_after(21, 42),
    ),
    Plot("a fresh key after every catch", _cartel(1, "cpu", fresh=True)),
    Plot("forges after 21 honest rounds", _cartel(1, "cpu", honest=21), LONG, formula=_after(21, 42)),
    Plot("a cartel of three that forges after 21", _cartel(3, honest=21), LONG, formula=_after(21, 42)),
    Plot("forges all but a round's last step", _cartel(1, "cpu", how="but last")),
    Plot("says that it is a hundred times as quick", _braggart),
    Plot("forges in the last five rounds of a job", _cartel(1, last=5, total=40), formula=_after(35, 40)),
    Plot(
        "auditors that leave when they are asked", _cartel(3, "cpu", honest=21, away=True), LONG, formula=_after(21, 42)
    ),
    # These came to somebody who read the rules to find a way around them.
    Plot("earns its standing in jobs of its own", _cartel(1, honest=40), (Part(40, theirs=True), Part(20))),
    Plot(
        "earns its standing in small rounds, forges large ones",
        _cartel(1, honest=SMALL),
        (Part(SMALL), Part(LARGE)),
        formula=expected(LARGE, LARGE) / LARGE / 2,  # The small job is worth as much as the large one.
    ),
    Plot(
        "has the job fail before anybody looks",
        _cartel(4, after=1, honest=10, kills=3),
        operator=SLOW,
        formula=_after(10, 13),
        honest=1,
    ),
    Plot("one feeds the others of its replica noughts", _cartel(4, how="noughts", stage=0)),
    Plot("one feeds the others of its replica what only looks like work", _cartel(4, how="faint", stage=0)),
    Plot("the same, and leaves when it is drawn", _cartel(4, how="faint", stage=0, exit_when_drawn=True)),
    Plot(
        "the same after 21 honest rounds each",
        _cartel(4, how="faint", stage=0, honest=21),
        LONG,
        formula=_after(21, 42),
    ),
    Plot("openings that kill whoever runs them again", _cartel(1, how="poison")),
    # And these to somebody who came after, and read all of it.
    Plot("three leave before a state is stored, and send the same rounds again", _replayers(3, leaves_before=20)),
    Plot("one has the job go back, and its friends send the same rounds again", _with_a_goat),
    Plot(
        "becomes of another class once it is known",
        _cartel(1, "cpu", 3, honest=21, turns_coat=True),
        LONG,
        formula=_after(21, 42),
        honest=3,
    ),
    Plot("is paid to another wallet each time", _cartel(2, "cpu", wallets=True)),
    # And these to somebody who looked for what others lose.
    Plot("its submitter cancels the job once it is trained", _all(1, Scheme), (Part(16),), {}, SLOW, cancels=True),
    Plot("two say that they work, and do not", _all(2, lambda: Idler("further"))),
    Plot("four come and go whenever a round begins", _all(4, Flapper)),
    Plot("the same under fresh keys", _all(4, lambda: Flapper("leaves", fresh=True))),
    Plot("three show leaves of honest nodes as proofs against them", _all(3, Scheme, accuse=True), LONG),
    Plot(
        "never makes the worker of its records that it says to make, after 21 honest rounds",
        _cartel(1, "cpu", crash_when_drawn=14.0, honest=21, restores=False),
        LONG,
        formula=_after(21, 42),
    ),
    Plot("forges on while the operator is slow", _cartel(1, honest=21), LONG, {}, SLOW, _after(21, 42)),
)
