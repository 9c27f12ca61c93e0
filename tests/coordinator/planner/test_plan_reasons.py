"""The plan in words: what bounds it, who is left out and why; unequal machines; thousands of nodes."""

import io
import itertools
import re
from typing import get_args, get_type_hints

import msgspec
import pytest
from rich.console import Console

from coordinator.client.show import job_panel
from coordinator.domain.network import NetworkMap
from coordinator.domain.placement import MEGABYTE, Candidate, NoPlacementError, choose, stage_memory
from coordinator.domain.placement.cost import load_of
from protocol.audit import state_interval
from protocol.ids import NodeAddress
from protocol.job.job import LoraSpec, TrainingSpec
from protocol.job.rounds import EXCHANGE_SHARE
from protocol.models.boundary_bytes import recorded_bytes
from protocol.models.model import inspect_config
from protocol.network import MAX_RELAYS, NetworkReport, PeerMeasure, RelayMeasure
from protocol.rest import api
from protocol.rest.api import Agreement
from protocol.task import Layers, PreferenceScore
from tests.coordinator.planner.test_placement import SHAPE, TRAINING, node
from tests.cottage.test_report import JOB
from tests.support.published_configs import LLAMA_3_2_1B

MEGABIT = 1e6 / 8
DEEP = msgspec.structs.replace(TRAINING, micro_batches=16, batch=16, sequence=1024)
WHOLE = stage_memory(SHAPE, TRAINING, [Layers(0, SHAPE.layers)], 0) // MEGABYTE


def lines(rates: dict[NodeAddress, float], down: float = 100.0) -> NetworkMap:
    known = NetworkMap()
    for address, up in rates.items():
        known.learn(address, NetworkReport(up=up * MEGABIT, down=down * MEGABIT), 0.0)
    return known


def test_a_weak_upload_is_named_with_its_rate() -> None:
    candidates = [node(i, 1e13) for i in range(1, 4)]
    network = lines({candidates[0].node: 100.0, candidates[1].node: 12.0, candidates[2].node: 100.0})
    found = choose(SHAPE, DEEP, candidates, 3, 1, network)
    assert found.limit == f"the upload of node {candidates[1].node}, 12 Mbit/s"
    assert found.seats[1, 0] != candidates[1].node, "it stands at an end, where it talks to one neighbour only"


def test_a_slow_machine_is_named_with_its_stage_and_speed() -> None:
    found = choose(SHAPE, DEEP, [node(1, 9e9), node(2, 2e9)], 2, 1)
    speeds = {node(1).node: "9", node(2).node: "2"}
    stage, name = next((s, name) for (s, _), name in found.seats.items() if name in found.limit)
    assert found.limit == f"the computing speed of stage {stage} on node {name}, {speeds[name]} GFLOP/s"


def test_an_exchange_that_outlasts_its_steps_is_named_with_what_would_help() -> None:
    candidates = [node(i, 1e13) for i in range(1, 3)]
    found = choose(SHAPE, DEEP, candidates, 1, 2, lines({c.node: 10.0 + i for i, c in enumerate(candidates)}))
    assert f"the exchange of pseudo-gradients over the upload of node {candidates[0].node}, 10 Mbit/s" in found.limit
    steps = int(found.limit.split("training.inner_steps ")[1].split(" ")[0].replace(",", ""))
    longer = msgspec.structs.replace(DEEP, inner_steps=min(5000, steps))
    again = choose(SHAPE, longer, candidates, 1, 2, lines({c.node: 10.0 for c in candidates}))
    assert again.round_seconds - longer.inner_steps * again.step_seconds <= 1.1 * EXCHANGE_SHARE * again.round_seconds


def test_gradients_in_every_step_over_a_home_line_are_named_with_the_method_that_needs_fewer() -> None:
    candidates = [node(i, 1e13) for i in range(1, 3)]
    network = lines({c.node: 10.0 for c in candidates})
    every = choose(SHAPE, msgspec.structs.replace(DEEP, outer="gradients"), candidates, 1, 2, network)
    assert "gradients in every step" in every.limit
    assert "training.outer diloco" in every.limit
    once = choose(SHAPE, DEEP, candidates, 1, 2, network)
    assert every.round_seconds > 5 * once.round_seconds
    sparse = choose(SHAPE, msgspec.structs.replace(DEEP, outer="dgc"), candidates, 1, 2, network)
    assert once.round_seconds < sparse.round_seconds < every.round_seconds


def test_a_way_that_is_too_long_for_the_schedule_is_named_with_the_lookahead_that_hides_it() -> None:
    candidates, network = [node(i, 1e12) for i in range(1, 4)], NetworkMap()
    for one in candidates:
        peers = tuple(PeerMeasure(o.node, "host/host", 0.2, 0.0, 0.0, 0.0) for o in candidates if o != one)
        network.learn(one.node, NetworkReport(peers=peers), 0.0)
    training = msgspec.structs.replace(TRAINING, micro_batches=64, batch=64)
    found = choose(SHAPE, training, candidates, 3, 1, network)
    assert "its longest round trip is 200 ms" in found.limit
    ahead = int(found.limit.split("training.lookahead ")[1].split(" ")[0])
    deeper = choose(SHAPE, msgspec.structs.replace(training, lookahead=ahead), candidates, 3, 1, network)
    assert "round trip" not in deeper.limit
    assert deeper.step_seconds < found.step_seconds / 2
    shallower = choose(SHAPE, msgspec.structs.replace(training, lookahead=ahead - 1), candidates, 3, 1, network)
    assert "round trip" in shallower.limit


def test_few_micro_batches_are_named_before_any_machine() -> None:
    one = msgspec.structs.replace(TRAINING, micro_batches=1)
    assert "filling the pipeline: 1 micro-batches" in choose(SHAPE, one, [node(i) for i in range(1, 5)], 4, 1).limit


def test_unequal_machines_are_all_used_or_told_why_not() -> None:
    laptop, small, middle, large = (
        node(1, 2e11, 2 * WHOLE),
        node(2, 8e12, WHOLE // 2 + 200),
        node(3, 1.2e13, WHOLE // 2 + 400),
        node(4, 4e13, 3 * WHOLE),
    )
    found = choose(SHAPE, TRAINING, [laptop, small, middle, large], None, None)
    seated = set(found.seats.values())
    assert large.node in seated
    assert seated | set(found.left_out) == {c.node for c in (laptop, small, middle, large)}
    assert not seated & set(found.left_out)
    assert all(found.left_out.values())
    for (stage, _), name in found.seats.items():
        memory = next(c.memory_mb for c in (laptop, small, middle, large) if c.node == name)
        assert stage_memory(SHAPE, TRAINING, found.layers, stage) <= memory * MEGABYTE


def test_a_machine_that_would_hold_all_others_up_is_left_out_with_the_figure() -> None:
    quick = [node(i, 1e13) for i in range(1, 4)]
    snail = node(9, 1e9)
    found = choose(SHAPE, TRAINING, [*quick, snail], 1, None)
    assert set(found.seats.values()) == {c.node for c in quick}
    assert found.left_out.keys() == {snail.node}
    assert "every token would take" in found.left_out[snail.node]


def test_what_audits_ask_for_lies_in_main_memory_and_not_on_a_card() -> None:
    whole = [Layers(0, SHAPE.layers)]
    on_card = stage_memory(SHAPE, TRAINING, whole, 0, card=True)
    memory = (on_card // MEGABYTE + WHOLE) // 2
    assert on_card // MEGABYTE < memory < WHOLE
    card = msgspec.structs.replace(node(1, memory_mb=memory), card=True)
    assert choose(SHAPE, TRAINING, [card, node(2, memory_mb=memory)], 1, None).seats == {(0, 0): card.node}
    with pytest.raises(NoPlacementError, match=f"needs about {WHOLE:,} MB"):
        choose(SHAPE, TRAINING, [node(2, memory_mb=memory)], 1, 1)


def test_adapters_fit_where_the_model_they_belong_to_could_not_learn() -> None:
    billion = inspect_config(LLAMA_3_2_1B | {"vocab_size": 32_000})
    training = TrainingSpec(sequence=256, batch=4, micro_batches=4)
    for card in (False, True):
        machine = msgspec.structs.replace(node(1, memory_mb=16_000), card=card)
        with pytest.raises(NoPlacementError, match="needs about"):
            choose(billion, training, [machine], 1, 1)
        adapters = msgspec.structs.replace(training, lora=LoraSpec(rank=16))
        assert choose(billion, adapters, [machine], 1, 1).seats == {(0, 0): machine.node}


def test_memory_is_kept_for_rounds_that_do_not_come_back_for_showing_one_and_for_what_a_replica_carries() -> None:
    cut, vector = [Layers(layer, layer + 1) for layer in range(SHAPE.layers)], 4 * SHAPE.layer_parameters
    state, payloads = 3 * vector, recorded_bytes(SHAPE, TRAINING, TRAINING.batch * TRAINING.sequence)
    every = msgspec.structs.replace(TRAINING, inner_steps=20, commit_every=20)
    twice = msgspec.structs.replace(every, commit_every=10)
    # Anchors and payloads of three rounds, where of one state each two are enough, and something stays of what is read back.
    three = 2 * vector - 5 * vector // 2 + 20 * payloads
    assert stage_memory(SHAPE, twice, cut, 3) - stage_memory(SHAPE, every, cut, 3) == (3 * 2 - 1) * state + three
    carrying = msgspec.structs.replace(every, pseudo_gradient="coarse")
    assert stage_memory(SHAPE, carrying, cut, 3) - stage_memory(SHAPE, every, cut, 3) == 3 * vector
    kept = -(-20 // state_interval(20, state, payloads))
    assert kept < 20, "some are found again on a second stage: five vectors, a contribution and what is sent take seven"
    seldom = msgspec.structs.replace(every, commit_every=1)
    more = (3 * kept - 1) * state + three + vector  # The state that it runs from is there, too.
    assert stage_memory(SHAPE, seldom, cut, 3) - stage_memory(SHAPE, every, cut, 3) == more


def test_too_little_memory_is_the_reason_with_both_figures() -> None:
    found = choose(SHAPE, TRAINING, [node(1), node(2), node(3, memory_mb=610)], 1, None)
    assert "610 MB of memory, and the smallest of 1 stages needs" in found.left_out[node(3).node]


def test_who_makes_no_further_replica_is_told_so() -> None:
    found = choose(SHAPE, TRAINING, [node(i) for i in range(1, 6)], 2, 2)
    assert list(found.left_out.values()) == ["1 left over: a further replica takes 2 nodes"]


def test_a_job_on_a_terminal_says_what_bounds_it_while_it_runs() -> None:
    def shown(state: api.JobStateName) -> str:
        console = Console(width=200, record=True, file=io.StringIO())
        quote = msgspec.structs.replace(JOB.quote, limit="the upload of attic (7f3K…9xQa), 12 Mbit/s")
        console.print(job_panel(msgspec.structs.replace(JOB, state=state, quote=quote)))
        return console.export_text()

    assert "limited by the upload of attic (7f3K…9xQa), 12 Mbit/s" in shown("running")
    assert "limited by" not in shown("settled")


@pytest.mark.parametrize(
    ("whose", "words"),
    [
        (None, "validation loss 1.310 (from 5.000)\n"),
        (Agreement(1, 0, 1), "validation loss 1.310 (from 5.000), one computer's word\n"),
        (Agreement(3, 0, 3), "validation loss 1.310 (from 5.000), the same on 3 of 3 computers\n"),
        (Agreement(2, 1, 3), "the same on 2 of 3 computers, close on 1 of another kind\n"),
        (Agreement(0, 0, 2), "2 computers contradict each other\n"),
    ],
)
def test_a_job_on_a_terminal_says_whose_word_its_loss_is(whose: Agreement | None, words: str) -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    view = msgspec.structs.replace(JOB, validation_loss=1.31, first_validation_loss=5.0, agreement=whose)
    console.print(job_panel(view))
    assert words in re.sub(r" +\n", "\n", console.export_text())


def test_a_job_on_a_terminal_says_how_it_tells_answers_apart() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    losses = {"validation_loss": 0.41, "first_validation_loss": 0.693, "agreement": Agreement(3, 0, 3)}
    console.print(job_panel(msgspec.structs.replace(JOB, preference=PreferenceScore(0.875, 1.25), **losses)))
    words = "validation loss 0.410 (from 0.693), 87.5 % of pairs told apart, margin 1.250, the same on 3 of 3 computers"
    assert words in console.export_text()


def test_every_way_to_learn_from_each_other_can_be_planned() -> None:
    hints = get_type_hints(TrainingSpec)
    ways = itertools.product(
        get_args(hints["pseudo_gradient"]), get_args(hints["outer"]), get_args(hints["activations"])
    )
    for codec, outer, activations in ways:
        training = msgspec.structs.replace(TRAINING, pseudo_gradient=codec, outer_momentum=0.0, activations=activations)
        asked = load_of(SHAPE, msgspec.structs.replace(training, outer=outer))
        assert asked.layer_bytes > 0
        assert asked.forward_bytes > 0


def homes(count: int, regions: int) -> tuple[list[Candidate], NetworkMap]:
    candidates, known = [], NetworkMap()
    for number in range(count):
        candidates.append(node(number + 1, 1e12 * (1 + number * 7 % 5), memory_mb=WHOLE))
        relays = tuple(
            RelayMeasure(f"turn:r{region}.test:3478", 0.01 if region == number * 13 % regions else 20.0, 0.0, True)
            for region in range(regions)
        )
        report = NetworkReport(up=(10 + number % 40) * MEGABIT, down=100 * MEGABIT, relays=relays[:MAX_RELAYS])
        known.learn(candidates[-1].node, report, 0.0)
    return candidates, known


def test_of_many_nodes_every_pipeline_stays_near_one_relay() -> None:
    candidates, known = homes(240, 5)
    small = msgspec.structs.replace(TRAINING, tokens=10**9)
    found = choose(SHAPE, small, candidates, 3, 40, known)
    for replica in range(40):
        assert len({known.nearest(found.seats[stage, replica]) for stage in range(3)}) == 1
    assert len(set(found.seats.values())) == 120


@pytest.mark.slow
@pytest.mark.parametrize("number", [1_500, pytest.param(10_000, marks=pytest.mark.long)])
def test_thousands_of_nodes_are_planned(number: int) -> None:
    candidates, known = homes(number, MAX_RELAYS)
    found = choose(SHAPE, msgspec.structs.replace(TRAINING, tokens=10**9), candidates, None, None, known)
    assert len(set(found.seats.values())) == len(found.seats)
    assert len(found.seats) + len(found.left_out) == number
