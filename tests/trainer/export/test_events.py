"""A run's curve for other tools, read back by TensorBoard's own reader."""

import json
import math
from pathlib import Path

import google_crc32c
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trainer.export.metrics_export import _CASTAGNOLI, _TABLE, METRICS_FILE, _masked, write_curve

ROUNDS = [
    {"round": 0, "tokens": 0, "time": 1.7e9, "train_loss": None, "validation_loss": 6.25},
    {"round": 1, "tokens": 5_000_000_000, "time": 1.7e9 + 60, "train_loss": 3.5, "validation_loss": None},
    {"round": 2, "tokens": 10_000_000_000, "time": 1.7e9 + 120, "train_loss": 2.5, "validation_loss": 2.0},
]


def test_tensorboard_reads_what_is_written(tmp_path: Path) -> None:
    write_curve(ROUNDS, tmp_path)
    read = EventAccumulator(str(tmp_path / "logs"))
    read.Reload()
    assert sorted(read.Tags()["scalars"]) == ["loss/train", "loss/validation", "perplexity/validation"]
    train = [(event.wall_time, event.step, event.value) for event in read.Scalars("loss/train")]
    assert train == [(1.7e9 + 60, 5_000_000_000, 3.5), (1.7e9 + 120, 10_000_000_000, 2.5)]
    assert [event.value for event in read.Scalars("loss/validation")] == [6.25, 2.0]
    assert read.Scalars("perplexity/validation")[1].value == pytest.approx(math.e**2)


def test_the_same_rows_are_there_as_json_lines(tmp_path: Path) -> None:
    write_curve(ROUNDS, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["tokens"] for row in rows] == [0, 5_000_000_000, 10_000_000_000]
    assert rows[2]["perplexity"] == pytest.approx(math.e**2)
    assert "perplexity" not in rows[1]


def test_the_same_curve_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        write_curve(ROUNDS, tmp_path / name)
    first, second = (sorted(p.read_bytes() for p in (tmp_path / n).rglob("*") if p.is_file()) for n in "ab")
    assert first == second


@pytest.mark.parametrize("data", [b"", b"123456789", bytes(range(256)) * 3])
def test_the_checksum_is_crc32c_masked_as_tensorflow_does(data: bytes) -> None:
    crc = int.from_bytes(google_crc32c.Checksum(data).digest(), "big")
    assert _masked(data) == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    assert _TABLE[128] == _CASTAGNOLI


def test_a_loss_whose_perplexity_is_no_number_has_none(tmp_path: Path) -> None:
    write_curve(ROUNDS, tmp_path, answers=True)
    assert "perplexity" not in (tmp_path / METRICS_FILE).read_text(), "of pairs of answers there is none"
    write_curve([{"round": 0, "tokens": -5, "validation_loss": 800.0}, {"round": 1}], tmp_path)
    assert "perplexity" not in (tmp_path / "metrics.jsonl").read_text()
