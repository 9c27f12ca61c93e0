"""Main memory beside a lean card while a round that came back is run again and shown, by the sizes of what is alive."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from protocol.task import OpenStep
from protocol.worker import RecordKept, RecordRecall
from tests.trainer.card import NAME, OnCard, card
from tests.trainer.small import commit_round, pipeline, training
from tests.trainer.worker.test_memory import in_small_parts
from tests.trainer.worker.test_recalls import LEAN, Socket, opened_by
from tests.trainer.worker.test_restored import TOTAL
from trainer import transfer
from trainer.audit import shown_state
from trainer.data.data import TokenFile
from trainer.outer import OuterState
from trainer.stage.stage import Stage
from trainer.worker.arriving_state import ArrivingState
from trainer.worker.inbox import ReturnedRecord


def in_main_memory(least: int) -> int:
    """Bytes of all tensors of at least so many that are alive, each storage once, without what lies on the card."""
    alive = [found for found in gc.get_objects() if issubclass(type(found), torch.Tensor)]
    there = {each.inner.untyped_storage().data_ptr() for each in alive if isinstance(each, OnCard)}
    here = [each.untyped_storage() for each in alive if not isinstance(each, OnCard)]
    sizes = {storage.data_ptr(): storage.nbytes() for storage in here}
    return sum(size for place, size in sizes.items() if place not in there and size >= least)


def test_a_round_that_came_back_is_shown_from_the_card_a_little_at_a_time(
    folder: Path, tokens: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_parts(monkeypatch)
    monkeypatch.setattr(transfer, "_PART", 1 << 12)
    socket, samples = Socket(), list[int]()
    with card():
        line = pipeline("llama", 1, tokens, training(commit_every=2, **LEAN["lean, coarse"]), device=NAME)
        [stage] = line.stages
        stage.load(transfer.fetched(stage.values()).bfloat16().float())
        openings, recalls = opened_by(stage, folder, socket)
        done = commit_round(line, 0, 6, TOTAL)
        due = done.opening(3)
        done.trace.states = {0: done.trace.states[0]}
        openings.records, openings.initial = True, OuterState.first(done.trace.anchor, done.spec)
        openings.keep((0, 0), done.trace, TOTAL, done.position)
        del done
        openings.on_disk(RecordKept(0, 0, "steps"))
        openings.let_go((0, 1))
        gc.collect()
        least = stage.size // 8
        before = in_main_memory(least)

        def sampled(work: Any) -> Any:
            def watched(*args: Any) -> Any:
                result = work(*args)
                samples.append(in_main_memory(least) - before)
                return result

            return watched

        monkeypatch.setattr(Stage, "shorten", sampled(Stage.shorten))
        monkeypatch.setattr(shown_state, "_packed", sampled(shown_state._packed))
        draw = OpenStep("a" * 32, 0, 0, 3)
        assert recalls.holds(draw, b"", b"")
        assert recalls.holds(draw, b"", b"")
        for _ in range(2):
            arriving = ArrivingState(stage, momentum=False)
            arriving.take(socket.records["state"])
            recall = RecordRecall(0, 0, "steps")
            parts = {name: data for name, data in socket.records.items() if name != "state"}
            recalls.serve(
                ReturnedRecord(recall, parts, arriving),
                lambda command, *_: openings.open_step(command),  # type: ignore[arg-type]
            )
            del arriving, parts
            assert socket.openings.get(timeout=30) == due
    assert socket.said == [recall, recall], "what one audit has used up comes back for the next"
    # The stage's own moments, the anchor, what was carried, and how the state is said.
    assert max(samples) < (2.13 + 2 + 1.03 + 1.03 + 0.5) * stage.size
