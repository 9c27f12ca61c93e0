"""The measured network, the choice of relays and the order of pipelines: pure, by table and by property."""

import itertools
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.domain import relays as rules
from coordinator.domain.network import LIVE_S, MAX_KEPT, STALE_S, NetworkMap
from coordinator.domain.pipeline import MAX_ORDERED, arrange, match
from coordinator.domain.placement import Candidate, choose
from coordinator.domain.placement.fleet import survey
from coordinator.domain.relays import FAR_S, RelayCandidate, live, order, probed
from protocol.identity import NodeKey
from protocol.network import NetworkReport, PeerMeasure, RelayMeasure
from tests.coordinator.planner.test_placement import SHAPE, TRAINING, node

A, B, C = (NodeKey(bytes([i]) * 32).address for i in (1, 2, 3))
NEAR, MIDDLE, FAR = "turn:near.test:3478", "turn:middle.test:3478", "turn:far.test:3478"


def peer(address: str, rtt: float, loss: float = 0.0, pair: str = "host/host") -> PeerMeasure:
    return PeerMeasure(address, pair, rtt, loss, 1e6, 1e6)


def told(**legs: float) -> NetworkReport:
    names = {"near": NEAR, "middle": MIDDLE, "far": FAR}
    return NetworkReport(relays=tuple(RelayMeasure(names[name], rtt, 0.0, True) for name, rtt in legs.items()))


# --- the map ------------------------------------------------------------------------------------------------------------


def test_a_link_is_as_slow_as_its_slower_end_says() -> None:
    known = NetworkMap()
    known.learn(A, NetworkReport(peers=(peer(B, 0.010, 0.001),)), 0.0)
    assert known.rtt(A, B) == known.rtt(B, A) == 0.010
    known.learn(B, NetworkReport(peers=(peer(A, 0.030, 0.02),)), 1.0)
    assert known.rtt(A, B) == known.rtt(B, A) == 0.030
    assert known.loss(B, A) == 0.02


def test_nodes_that_never_met_are_as_far_apart_as_their_way_by_a_relay() -> None:
    known = NetworkMap()
    known.learn(A, told(near=0.010, far=0.100), 0.0)
    assert known.rtt(A, B) is None
    known.learn(B, told(near=0.020, far=0.015), 0.0)
    assert known.rtt(A, B) == pytest.approx(0.030)
    assert known.rtt(A, C) is None


def test_a_report_that_leaves_something_out_does_not_unlearn_it() -> None:
    known = NetworkMap()
    known.learn(A, NetworkReport(nat="symmetric", up=1e6, down=5e6, relays=told(near=0.01).relays), 0.0)
    known.learn(A, NetworkReport(peers=(peer(B, 0.05),)), 30.0)
    line = known.line(A)
    assert line is not None
    assert (line.nat, line.up, line.down) == ("symmetric", 1e6, 5e6)
    assert known.leg(A, NEAR) == 0.01


def test_the_slower_of_two_lines_bounds_what_goes_between_them_and_loss_sends_it_again() -> None:
    known, one, other = NetworkMap(), node(1), node(2)
    known.learn(one.node, NetworkReport(up=1e6, down=8e6, peers=(peer(other.node, 0.1, 0.2),)), 0.0)
    known.learn(other.node, NetworkReport(up=2e6, down=4e6), 0.0)
    found = survey([one, other], known)
    assert found.byte[0][1] == pytest.approx(1 / 1e6 / 0.8)
    assert found.byte[1][0] == pytest.approx(1 / 2e6 / 0.8)
    assert found.rtt[0][1] == found.rtt[1][0] == 0.1


def test_what_nobody_has_measured_counts_as_what_others_have() -> None:
    known, known_nodes = NetworkMap(), [node(i) for i in range(1, 5)]
    for number, one in enumerate(known_nodes[:3]):
        links = (peer(known_nodes[0].node, 0.05 * number),) if number else ()
        known.learn(one.node, NetworkReport(up=(1 + number) * 1e6, peers=links), 0.0)
    found = survey(known_nodes, known)
    assert found.up == [1e6, 2e6, 3e6, 2e6]
    assert found.rtt[3][1] == pytest.approx(0.075)
    assert not survey(known_nodes, NetworkMap()).measured


def test_what_is_old_is_forgotten() -> None:
    known = NetworkMap()
    known.learn(A, NetworkReport(up=1.0, relays=told(near=0.01).relays, peers=(peer(B, 0.05),)), 0.0)
    known.forget(STALE_S)
    assert known.leg(A, NEAR) == 0.01
    known.learn(A, NetworkReport(), STALE_S)
    known.forget(STALE_S + 1)
    assert known.leg(A, NEAR) is None
    assert known.rtt(A, B) is None
    known.forget(2 * STALE_S + 1)
    assert known.line(A) is None


def test_a_node_that_names_ever_new_peers_is_remembered_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    known = NetworkMap()
    for number in range(20):
        names = [NodeKey((100 * number + i).to_bytes(32, "big")).address for i in range(1, 61)]
        known.learn(A, NetworkReport(peers=tuple(peer(name, 0.01) for name in names)), float(number))
    told = known._told[A]
    assert len(told.peers) == MAX_KEPT
    assert set(names) <= set(told.peers), "the newest stay"
    monkeypatch.setattr("coordinator.domain.network.MAX_NODES", 3)
    for one in (A, B, C, A, NodeKey(b"d" * 32).address):
        known.learn(one, NetworkReport(up=1.0), 20.0)
    assert known.line(B) is None, "who was silent longest goes"
    assert known.line(A) is not None


def test_only_links_of_the_last_report_live() -> None:
    known = NetworkMap()
    known.learn(A, NetworkReport(peers=(peer(B, 0.1), peer(C, 0.1))), 0.0)
    known.learn(A, NetworkReport(peers=(peer(B, 0.2),)), 30.0)
    assert [(node, measure.peer) for node, measure in known.links(30.0)] == [(A, B)]
    assert list(known.links(31.0 + LIVE_S)) == []


def test_a_node_has_no_link_to_itself() -> None:
    known = NetworkMap()
    known.learn(A, NetworkReport(peers=(peer(A, 0.0001),)), 0.0)
    assert known.rtt(A, A) is None


# --- the choice of relays -----------------------------------------------------------------------------------------------

LEGS: Mapping[tuple[str, str], float] = {
    (A, NEAR): 0.010,
    (A, MIDDLE): 0.030,
    (A, FAR): 0.020,
    (B, NEAR): 0.090,
    (B, MIDDLE): 0.030,
    (B, FAR): 0.200,
}


def legs(one: str, relay: str) -> float | None:
    return LEGS.get((one, relay))


def up(name: str, **changes: object) -> RelayCandidate:
    return RelayCandidate(name, probed=True, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ends", "relays", "expected"),
    [
        ((A, B), [up(NEAR), up(MIDDLE), up(FAR)], (MIDDLE, NEAR)),
        ((A,), [up(NEAR), up(MIDDLE), up(FAR)], (NEAR, FAR)),
        ((A, B), [up(NEAR), RelayCandidate(MIDDLE), up(FAR)], (NEAR, FAR)),
        ((A, B), [up(NEAR), up(MIDDLE, failed=3), up(FAR)], (NEAR, FAR)),
        ((A, B), [up(NEAR), up(MIDDLE, failed=2)], (MIDDLE, NEAR)),
        ((A, B), [up(NEAR), up(MIDDLE, expires=100.0)], (NEAR,)),
        ((A, B), [up(NEAR), up(MIDDLE, full=True)], (NEAR, MIDDLE)),
        ((A, C), [up(NEAR, rtt=0.010), up(MIDDLE, rtt=0.2)], (NEAR, MIDDLE)),
        ((C,), [up(NEAR), up(FAR, rtt=FAR_S - 0.01)], (FAR, NEAR)),
        ((C,), [up(NEAR), up(FAR)], (FAR, NEAR)),
        ((A, B), [], ()),
    ],
)
def test_a_pair_gets_the_relay_whose_legs_are_shortest_and_another_one_to_stand_by(
    ends: tuple[str, ...], relays: list[RelayCandidate], expected: tuple[str, ...]
) -> None:
    assert order(ends, relays, legs, 100.0) == expected


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ((FAR, NEAR), (FAR, NEAR)),  # 110 ms against 100: as good.
        ((NEAR, FAR), (NEAR, FAR)),
        ((MIDDLE, NEAR), (NEAR, FAR)),  # 150 ms against 100: worse.
        ((FAR, MIDDLE), (NEAR, FAR)),
        ((FAR,), (NEAR, FAR)),
        (("turn:gone.test:3478", NEAR), (NEAR, FAR)),
    ],
)
def test_an_order_stays_until_another_is_better_by_more_than_measurements_vary(
    before: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    sums = {NEAR: 0.100, FAR: 0.110, MIDDLE: 0.150}
    found = order((A,), [up(name) for name in sums], lambda _node, relay: sums[relay], 100.0, before)
    assert found == expected


def test_an_order_does_not_stay_with_a_relay_that_has_become_full() -> None:
    relays = [up(NEAR, full=True), up(FAR)]
    assert order((A,), relays, lambda _node, _relay: 0.1, 0.0, (NEAR, FAR)) == (FAR, NEAR)


RELAYS = st.lists(
    st.builds(
        RelayCandidate,
        name=st.sampled_from([f"turn:relay{i}.test:3478" for i in range(6)]),
        probed=st.booleans(),
        failed=st.integers(0, 3),
        expires=st.one_of(st.none(), st.floats(0, 200)),
        rtt=st.one_of(st.none(), st.floats(0, 1)),
        full=st.booleans(),
    ),
    unique_by=lambda relay: relay.name,
)


@given(RELAYS, st.dictionaries(st.tuples(st.sampled_from([A, B]), st.integers(0, 5)), st.floats(0, 1)), st.data())
def test_a_dead_relay_is_never_chosen_and_both_ends_get_the_same(
    relays: list[RelayCandidate], measured: dict[tuple[str, int], float], data: st.DataObject
) -> None:
    found = {(one, f"turn:relay{i}.test:3478"): rtt for (one, i), rtt in measured.items()}

    def leg(one: str, relay: str) -> float | None:
        return found.get((one, relay))

    chosen = order((A, B), relays, leg, 100.0)
    alive = {relay.name for relay in relays if live(relay, 100.0)}
    assert set(chosen) <= alive
    assert len(chosen) == min(len(alive), rules.CHOSEN)
    assert chosen == order((B, A), data.draw(st.permutations(relays)), leg, 100.0)


def test_three_missed_probes_end_a_relay_and_one_answer_brings_it_back() -> None:
    relay = probed(RelayCandidate(NEAR), 0.02)
    for _ in range(2):
        relay = probed(relay, None)
        assert live(relay, 0.0)
    relay = probed(relay, None)
    assert not live(relay, 0.0)
    assert live(probed(relay, 0.03), 0.0)
    assert probed(relay, 0.03).rtt == 0.03


# --- the order of a pipeline --------------------------------------------------------------------------------------------

Costs = Mapping[tuple[str, str], float]


def total(groups: Sequence[Sequence[str]], costs: Costs) -> float:
    return sum(costs[a, b] for one, two in itertools.pairwise(groups) for a, b in zip(one, two, strict=True))


def every_order(groups: Sequence[Sequence[str]]) -> list[list[Sequence[str]]]:
    return [
        [stages[0], *rest]
        for stages in itertools.permutations(groups)
        for rest in itertools.product(*(itertools.permutations(group) for group in stages[1:]))
    ]


def drawn_costs(groups: Sequence[Sequence[str]], data: st.DataObject) -> dict[tuple[str, str], float]:
    everybody = [one for group in groups for one in group]
    costs = {pair: data.draw(st.floats(0.001, 1.0)) for pair in itertools.combinations(everybody, 2)}
    return costs | {(b, a): value for (a, b), value in costs.items()}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([(2, 1), (3, 1), (4, 1), (5, 1), (2, 2), (3, 2), (2, 3), (3, 3)]), st.data())
def test_no_permutation_has_a_lower_sum_of_link_costs(shape: tuple[int, int], data: st.DataObject) -> None:
    groups = [[f"{stage}.{replica}" for replica in range(shape[1])] for stage in range(shape[0])]
    costs = drawn_costs(groups, data)
    arranged = arrange(groups, lambda a, b: costs[a, b])
    assert sorted(map(sorted, arranged)) == sorted(map(sorted, groups)), "stages stay together"
    best = min(total(found, costs) for found in every_order(groups))
    assert total(arranged, costs) == pytest.approx(best)


def test_without_measurements_nothing_moves() -> None:
    groups = [["a", "b"], ["c", "d"], ["e", "f"]]
    assert arrange(groups, lambda _a, _b: None) == groups
    candidates = [node(i, 1e9 * i) for i in range(1, 7)]
    assert choose(SHAPE, TRAINING, candidates, 3, 2, NetworkMap()) == choose(SHAPE, TRAINING, candidates, 3, 2)


def test_links_that_are_all_alike_move_nothing() -> None:
    groups = [["a", "b"], ["c", "d"], ["e", "f"]]
    assert arrange(groups, lambda _a, _b: 0.05) == groups


def test_one_bad_link_is_kept_out_of_the_pipeline() -> None:
    bad = {frozenset(("a", "b"))}
    assert arrange([["a"], ["b"], ["c"]], lambda a, b: 1.0 if {a, b} in bad else 0.1) == [["a"], ["c"], ["b"]]


def test_a_link_that_nobody_measured_counts_as_the_mean() -> None:
    costs = {frozenset("ab"): 0.9, frozenset("bc"): 0.1}  # a-c is taken as 0.5.
    assert arrange([["a"], ["b"], ["c"]], lambda a, b: costs.get(frozenset((a, b)))) == [["a"], ["c"], ["b"]]


def test_a_pipeline_too_long_for_the_exact_search_gets_better_all_the_same() -> None:
    places = {f"{i}": (i * 7) % 12 for i in range(12)}
    groups = [[one] for one in places]
    assert len(groups) > MAX_ORDERED
    costs = {(a, b): abs(places[a] - places[b]) / 10 for a in places for b in places}
    assert total(arrange(groups, lambda a, b: costs[a, b]), costs) == pytest.approx(1.1)


def test_a_search_that_would_take_too_long_is_left_alone() -> None:
    groups = [[f"{stage}.{replica}" for replica in range(64)] for stage in range(4)]
    assert arrange(groups, lambda a, b: float(hash((a, b)) % 100)) == groups


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.data())
def test_a_matching_is_the_cheapest_there_is(size: int, data: st.DataObject) -> None:
    costs = data.draw(st.lists(st.lists(st.floats(0, 10), min_size=size, max_size=size), min_size=size, max_size=size))
    found = match(costs)
    assert sorted(found) == list(range(size))
    best = min(sum(costs[i][j] for i, j in enumerate(way)) for way in itertools.permutations(range(size)))
    assert sum(costs[i][j] for i, j in enumerate(found)) == pytest.approx(best)


def test_measured_links_decide_who_sits_next_to_whom() -> None:
    candidates = [node(i, 4e9) for i in range(1, 5)]
    first = choose(SHAPE, TRAINING, candidates, 2, 2)
    partner = {first.seats[0, 0]: first.seats[1, 1], first.seats[0, 1]: first.seats[1, 0]}
    near = {frozenset(pair) for pair in partner.items()}
    linked = choose(
        SHAPE, TRAINING, candidates, 2, 2, between(candidates, lambda a, b: 0.01 if {a, b} in near else 0.2)
    )
    for replica in range(2):
        assert {linked.seats[0, replica], linked.seats[1, replica]} in near
    assert sorted(linked.seats.values()) == sorted(first.seats.values())


def between(candidates: Sequence[Candidate], rtt: Callable[[str, str], float]) -> NetworkMap:
    """A network in which every two nodes have measured their round trip."""
    known = NetworkMap()
    for one in candidates:
        peers = tuple(peer(other.node, rtt(one.node, other.node)) for other in candidates if other != one)
        known.learn(one.node, NetworkReport(peers=peers), 0.0)
    return known


def test_an_order_that_some_memory_cannot_hold_is_not_taken() -> None:
    # 1,200 MB do not hold the head.
    quick, small, slow = node(1, 9e9, 60_000), node(2, 5e9, 1_200), node(3, 1e9, 60_000)
    bad = {frozenset((quick.node, small.node))}

    def rtt(a: str, b: str) -> float:
        return 30.0 if {a, b} in bad else 0.01

    assert arrange([[quick.node], [small.node], [slow.node]], rtt)[-1] == [small.node]
    found = choose(SHAPE, TRAINING, [quick, small, slow], 3, 1, between([quick, small, slow], rtt))
    assert found.seats[2, 0] != small.node, "the last stage has the head"
