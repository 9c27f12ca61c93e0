"""Nodes that cheat against real services on a virtual clock, and what becomes of each.

One world is one job of 2 stages and 2 replicas (20 rounds of 2 steps) on seven nodes, one of which, the quickest, cheats. It is
run whole: placement, rounds, draws from the ledger's blocks, openings, re-runs, disputes, slashes and payouts are the
coordinator's own; only the arithmetic of a step is scripted (``tests.coordinator.rerun``). That the real arithmetic shows each of
these lies to a real auditor is tested in ``tests/trainer/test_replay.py`` and, with processes, in ``tests/e2e``.
"""

from dataclasses import dataclass, field
from typing import Any

from coordinator.domain import rate as rates
from coordinator.domain.draw import LAST, WHOLE
from coordinator.domain.trust import Audit
from coordinator.store.records import CommitRecord, NodeRecord, RoundRecord
from tests.sim.test_faults import read, run_world
from tests.sim.world import World

CHEAT = 7
AUDITOR = 1  # The slowest node holds no seat, and spares are asked first to audit: this one and the second.
SETTINGS = {"disputes": True, "canaries": 200_000}
STEPS = 2  # Of a round.


@dataclass(frozen=True)
class Cheat:
    """One way to cheat.

    Attributes:
        nodes: number -> what is odd about it.
        found_by: of a drawn step: the chance that its audit shows the lie; None: it is not found by the audits of its own work.
        at_once: the others' claims show it, so that it is looked at for certain.
        ends: how it ends: ``slashed``, ``expelled``, ``forfeited``, ``harmless``, or ``undecided``: it is seen that one of
            two lies, and not who.
    """

    name: str
    nodes: dict[int, dict[str, Any]]
    found_by: float | None
    ends: str
    settings: dict[str, Any] = field(default_factory=dict)
    at_once: bool = False

    @property
    def suspect(self) -> int:
        """Number of the node whose fate is looked at."""
        return min(self.nodes) if len(self.nodes) == 1 else CHEAT

    def rounds(self, rate: int) -> float | None:
        """Rounds that it lives on average at a rate, by the formula."""
        if self.at_once:
            return 1.0
        return None if self.found_by is None else WHOLE / (rate * self.found_by)


def _lies(lie: str) -> dict[int, dict[str, Any]]:
    return {CHEAT: {"lie": lie}}


ANY, LAST_STEP = 1.0, rates.chance_of_last(STEPS)
ONE_STEP = (1 - 1 / LAST) / STEPS / 2 + LAST_STEP / 2  # The forged step is the last one as often as the other.

CATALOGUE = (
    Cheat("skips all steps", _lies("skips"), ANY, "slashed"),
    Cheat("forges one step of the round", _lies("one step"), ONE_STEP, "slashed"),
    Cheat("sends something else than it committed to", _lies("substitute"), ANY, "slashed"),
    Cheat("stale gradients", _lies("stale"), LAST_STEP, "slashed"),
    Cheat("copied gradients", _lies("copied"), LAST_STEP, "slashed"),
    Cheat("zero gradients", _lies("zero"), LAST_STEP, "slashed"),
    Cheat("NaN gradients", _lies("nan"), LAST_STEP, "slashed"),
    Cheat("scaled gradients", _lies("scaled"), LAST_STEP, "slashed"),
    Cheat("sign-flipped gradients", _lies("flipped"), LAST_STEP, "slashed"),
    Cheat("says something else of the outer step", _lies("outer"), ANY, "slashed", at_once=True),
    Cheat("begins from another anchor", _lies("anchor"), ANY, "slashed"),
    Cheat("forges the commitment", _lies("root"), ANY, "slashed"),
    Cheat("claims another environment class", _lies("class"), ANY, "forfeited"),
    Cheat("does not open what is drawn", _lies("mute"), ANY, "forfeited"),
    Cheat("forges, and is silent in the dispute", _lies("silent"), ONE_STEP, "slashed"),
    Cheat("says that it sent something else", _lies("sent"), ANY, "slashed"),
    Cheat("says that something else came in", _lies("received"), None, "undecided"),
    Cheat("accuses falsely", {AUDITOR: {"accuse": True}}, None, "slashed"),
    Cheat("auditor that always agrees", {AUDITOR: {"blind": True}}, None, "expelled"),
    Cheat(
        "colluding replica and auditor",
        {CHEAT: {"lie": "skips"}, AUDITOR: {"blind": (CHEAT,)}},
        None,
        "slashed",
        {"audit_twice": 300_000},
    ),
    Cheat(
        "one GPU as two identities of one owner",
        {CHEAT: {"lie": "copied", "owner": CHEAT}, 6: {"owner": CHEAT, "flops": 2e9}},
        LAST_STEP,
        "slashed",
    ),
)


@dataclass(frozen=True)
class Fate:
    """What became of a cheat in one world.

    Attributes:
        rounds: complete rounds of its work until an audit of it failed, that one included, and for an auditor: rounds of which it
            audited something until it was sent away; None: neither happened.
        rate: mean probability that one of its steps was drawn, in millionths.
        paid: of all rounds until it was caught; paid_forged: of those in which an audit failed.
        slashed: stake that it lost; ``honest_slashed``: that anybody else lost.
        audits: of honest work; ``all_audits``: of everybody.
        took_part: rounds of its work.
    """

    rounds: int | None
    rate: int
    paid: int
    paid_forged: int
    slashed: int
    banned: bool
    honest_slashed: int
    honest_banned: int
    audits: int
    all_audits: int
    took_part: int
    settled: bool


async def fate(cheat: Cheat, seed: int) -> Fate:
    """Run one world to its end."""
    world = World(seed, nodes=7, faults=0.0, settings={**SETTINGS, **cheat.settings}, special=cheat.nodes)
    job, stored = await run_world(world, 2, 2)
    assert world.peers.violations == []
    cheats = {world.nodes[number - 1].key.address for number in cheat.nodes}
    address = world.nodes[cheat.suspect - 1].key.address
    async with world.records.transaction() as tx:
        banned = {record.address for record in await tx.find(NodeRecord) if record.banned}
    audits: list[Audit] = await read(world, Audit, job)
    commits: list[CommitRecord] = await read(world, CommitRecord, job)
    rounds: list[RoundRecord] = await read(world, RoundRecord, job)
    judged = {(a.epoch, a.round) for a in audits if any(v.auditor == address for v in a.verdicts)}
    own = sorted({(c.epoch, c.round) for c in commits if c.node == address and c.state != "void"})
    failed = {(a.epoch, a.round) for a in audits if a.node == address and a.state == "failed" and not a.canary}
    lived = next((number for number, key in enumerate(own, 1) if key in failed), None)
    if not own and address in banned:
        lived = len(judged)
    return Fate(
        rounds=lived,
        rate=_mean_rate(rounds, commits, address),
        paid=sum(c.amount for c in commits if c.node == address and c.state == "verified"),
        paid_forged=sum(c.amount for c in commits if c.node == address and (c.epoch, c.round) in failed),
        slashed=world.chain.slashed.get(address, 0),
        banned=address in banned,
        honest_slashed=sum(amount for node, amount in world.chain.slashed.items() if node not in cheats),
        honest_banned=len(banned - cheats),
        audits=sum(a.node not in cheats and not a.canary for a in audits),
        all_audits=sum(not a.canary for a in audits),
        took_part=len(own or judged),
        settled=stored.state.value == "settled",
    )


def _mean_rate(rounds: list[RoundRecord], commits: list[CommitRecord], node: str) -> int:
    """Over the rounds that a node took part in."""
    found = []
    for record in rounds:
        members = [c for c in commits if (c.epoch, c.round) == (record.epoch, record.number) and c.drawable]
        members.sort(key=lambda c: (c.replica, c.stage))
        if record.beacon is not None:
            found += [rate for c, rate in zip(members, record.beacon.rates, strict=True) if c.node == node]
    return sum(found) // len(found) if found else 0
