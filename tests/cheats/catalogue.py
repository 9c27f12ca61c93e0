"""Nodes that cheat against real services on a virtual clock, and what becomes of each.

One world is one job of 2 stages and 2 replicas (20 rounds of 2 steps) on seven nodes, one of which, the quickest, cheats. It is
run whole: placement, rounds, draws from the ledger's blocks, openings, re-runs, disputes, slashes and payouts are the
coordinator's own; only the arithmetic of a step is scripted (``tests.coordinator.rerun``). That the real arithmetic shows each of
these lies to a real auditor is tested in ``tests/trainer/audit/test_replay.py`` and, with processes, in ``tests/e2e``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coordinator.domain.audits.penalty import EVASIONS
from coordinator.domain.audits.sampling import LAST, OUTER, WHOLE
from coordinator.domain.audits.trust import Audit
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
        ends: how it ends: ``slashed``, ``expelled``, ``repeated``: the second time costs a small part of the stake,
            ``harmless``, ``outvoted``: others' word is reported, and its rate rises, or ``undecided``: it is seen that one of
            two lies, and not who, or ``replaced``: others do its part, and it has no more than its work is worth.
        jobs: one after the other, in each of which it goes on as before.
        faults: how often machines, connections, the coordinator and the ledger break, as in ``World``.
        shape: stages and replicas.
    """

    name: str
    nodes: dict[int, dict[str, Any]]
    found_by: float | None
    ends: str
    settings: dict[str, Any] = field(default_factory=dict)
    at_once: bool = False
    jobs: int = 1
    faults: float = 0.0
    shape: tuple[int, int] = (2, 2)

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


ANY, LAST_STEP = 1.0, 1 / LAST + (1 - 1 / LAST) / STEPS
ONE_STEP = (1 - 1 / LAST) / STEPS / 2 + LAST_STEP / 2  # The forged step is the last one as often as the other.

OUTER_STEP = 1 / OUTER
BY_SHARDS = (1, 4)

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
    Cheat("hands out a false result of its shard", _lies("false result"), OUTER_STEP, "slashed", shape=BY_SHARDS),
    Cheat("reduces its shard and hands nothing out", _lies("no result"), None, "replaced", shape=BY_SHARDS),
    Cheat("hands its result out far too late", _lies("late result"), None, "replaced", shape=BY_SHARDS),
    Cheat("never reduces its shard", _lies("no reduction"), None, "replaced", shape=BY_SHARDS),
    Cheat("begins from another anchor", _lies("anchor"), ANY, "slashed"),
    Cheat("forges the commitment", _lies("root"), ANY, "slashed"),
    Cheat("claims another environment class", _lies("class"), ANY, "repeated", jobs=2),
    Cheat("computes in another class than it claims", _lies("other class"), ANY, "slashed"),
    Cheat("does not open what is drawn", _lies("mute"), ANY, "repeated", jobs=2),
    Cheat("forges, and is silent in the dispute", _lies("silent"), ONE_STEP, "slashed"),
    Cheat("says that it sent something else", _lies("sent"), ANY, "slashed"),
    Cheat("says that something else came in", _lies("received"), None, "undecided"),
    Cheat("lies about the held-out loss", _lies("loss"), None, "outvoted", shape=(1, 3)),
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

HONEST = Cheat("nobody", {CHEAT: {}}, None, "harmless", {"audits_per_round": 8})
BREAKING = Cheat("nobody, where everything breaks", {CHEAT: {}}, None, "harmless", {"audits_per_round": 8}, faults=1.0)


@dataclass(frozen=True)
class Fate:
    """What became of a cheat in one world.

    Attributes:
        rounds: complete rounds of its work until an audit of it failed or it was outvoted, that one included, and for an auditor:
            rounds of which it audited something until it was sent away; None: neither happened.
        rate: mean probability that one of its steps was drawn, in millionths.
        paid: of all rounds until it was caught; paid_forged: of those in which an audit failed.
        slashed: stake that it lost; ``honest_slashed``: that anybody else lost.
        evaded: leases under which it evaded an audit; ``honest_evaded``: audits of anybody else that failed so.
        audits: of honest work; ``all_audits``: of everybody.
        took_part: rounds of its work.
        faults: that raise its rate; ``false_losses``: held-out losses that were reported and are not so.
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
    evaded: int
    honest_evaded: int
    faults: int
    false_losses: int


async def fate(cheat: Cheat, seed: int) -> Fate:
    """Run one world to its end."""
    world = World(seed, nodes=7, faults=cheat.faults, settings={**SETTINGS, **cheat.settings}, special=cheat.nodes)
    cheats = {world.nodes[number - 1].key.address for number, odd in cheat.nodes.items() if odd}
    address = world.nodes[cheat.suspect - 1].key.address
    audits: list[Audit] = []
    commits: list[CommitRecord] = []
    rounds: list[RoundRecord] = []
    order: dict[str, int] = {}
    nodes: dict[str, NodeRecord] = {}
    settled, banned = True, set[str]()
    while len(order) < cheat.jobs and address not in banned:
        job, stored = await run_world(world, *cheat.shape)
        order[job], settled = len(order), settled and stored.state.value == "settled"
        audits += await read(world, Audit, job)
        commits += await read(world, CommitRecord, job)
        rounds += await read(world, RoundRecord, job)
        async with world.records.transaction() as tx:
            nodes = {record.address: record for record in await tx.find(NodeRecord)}
        banned = {node for node, record in nodes.items() if record.banned}
    assert world.peers.violations == []
    judged = {_round(order, a) for a in audits if any(v.auditor == address for v in a.verdicts)}
    own = sorted({_round(order, c) for c in commits if c.node == address and c.state != "void"})
    failed = {_round(order, a) for a in audits if a.node == address and a.state == "failed" and not a.canary}
    evaded = [a for a in audits if a.state == "failed" and a.blame in EVASIONS]
    measured = [(record, record.agreement) for record in rounds if record.agreement is not None]
    outvoted = {(order[r.job], r.epoch, r.number) for r, whose in measured if 0 < whose.same < whose.of}
    lived = next((number for number, key in enumerate(own, 1) if key in failed | outvoted), None)
    if not own and address in banned:
        lived = len(judged)
    return Fate(
        rounds=lived,
        rate=_mean_rate(rounds, commits, address),
        paid=sum(c.amount for c in commits if c.node == address and c.state == "verified"),
        paid_forged=sum(c.amount for c in commits if c.node == address and _round(order, c) in failed),
        slashed=world.chain.slashed.get(address, 0),
        banned=address in banned,
        honest_slashed=sum(amount for node, amount in world.chain.slashed.items() if node not in cheats),
        honest_banned=len(banned - cheats),
        audits=sum(a.node not in cheats and not a.canary for a in audits),
        all_audits=sum(not a.canary for a in audits),
        took_part=len(own or judged),
        settled=settled,
        evaded=len({a.lease for a in evaded if a.node == address}),
        honest_evaded=sum(a.node not in cheats for a in evaded),
        faults=nodes[address].faults,
        false_losses=sum(r.validation_loss not in (None, 5.0 / (1 + r.number)) for r in rounds),
    )


def _round(order: Mapping[str, int], of: Audit | CommitRecord) -> tuple[int, int, int]:
    return order[of.job], of.epoch, of.round


def _mean_rate(rounds: list[RoundRecord], commits: list[CommitRecord], node: str) -> int:
    """Over the rounds that a node took part in."""
    found = []
    for record in rounds:
        place = record.job, record.epoch, record.number
        members = [c for c in commits if (c.job, c.epoch, c.round) == place and c.drawable]
        members.sort(key=lambda c: (c.replica, c.stage))
        if record.beacon is not None:
            found += [rate for c, rate in zip(members, record.beacon.rates, strict=True) if c.node == node]
    return sum(found) // len(found) if found else 0
