"""A run's curve for other tools: TensorBoard event files, and the same as JSON lines. Free of torch.

An event file is a sequence of TFRecords (length, its CRC, bytes, their CRC) of ``Event`` messages. The few fields that scalars
need are written by hand: tensorboard itself would bring a web server along.

Source: tensorflow/core/lib/io/record_writer.h, core/util/event.proto, core/framework/summary.proto.
"""

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_CASTAGNOLI = 0x82F63B78
_MASK = 0xA282EAD8
_TAGS = {
    "train_loss": "loss/train",
    "validation_loss": "loss/validation",
    "perplexity": "perplexity/validation",
    "accuracy": "accuracy/validation",
    "margin": "margin/validation",
}
EVENT_FILE = "events.out.tfevents.0.cottage"  # TensorBoard looks for "tfevents" in the name.
METRICS_FILE = "metrics.jsonl"


def write_curve(rounds: Sequence[Mapping[str, Any]], out: Path, answers: bool = False) -> None:
    """Write ``metrics.jsonl`` and ``logs/events.out.tfevents…`` into a model's folder.

    Args:
        rounds: one row a round: ``round``, ``tokens``, perhaps ``time`` (Unix seconds), ``train_loss`` and ``validation_loss``
            in nats a token; a step of TensorBoard is a token.
        answers: losses are of pairs of answers, and not of tokens; rows then have ``accuracy`` and ``margin``, too.
    """
    rows = [dict(row) if answers else with_perplexity(row) for row in rounds]
    (out / METRICS_FILE).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (out / "logs").mkdir(exist_ok=True)
    with (out / "logs" / EVENT_FILE).open("wb") as file:
        for event in _events(rows):
            file.write(_record(event))


def with_perplexity(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the curve with e to the validation loss beside that, where it is a number that fits."""
    loss = row.get("validation_loss")
    if not isinstance(loss, int | float) or not -700 < loss < 700:
        return dict(row)
    return {**row, "perplexity": math.exp(loss)}


def _events(rows: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    yield _double(1, 0.0) + _bytes(3, b"brain.Event:2")
    for index, row in enumerate(rows):
        step = row.get("tokens")
        step = step if isinstance(step, int) and 0 <= step < 2**63 else index
        time = row.get("time")
        time = float(time) if isinstance(time, int | float) else 0.0
        values = b"".join(
            _bytes(1, _bytes(1, tag.encode()) + _float(2, float(row[key])))
            for key, tag in _TAGS.items()
            if isinstance(row.get(key), int | float)
        )
        if values:
            yield _double(1, time) + _key(2, 0) + _varint(step) + _bytes(5, values)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def _masked(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def _entry(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ (_CASTAGNOLI if value & 1 else 0)
    return value


_TABLE = tuple(_entry(value) for value in range(256))


def _key(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes((value,))


def _bytes(field: int, data: bytes) -> bytes:
    return _key(field, 2) + _varint(len(data)) + data


def _double(field: int, value: float) -> bytes:
    return _key(field, 1) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    return _key(field, 5) + struct.pack("<f", value)
