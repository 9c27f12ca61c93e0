"""A wrong bit in one operation of one step is found by asking both sides, and judged from that operation's inputs alone."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

from cottage.demo.lying_worker import Meddle, MeddlingTracer, StubbornPlayer
from protocol.audit import (
    RESULT,
    Ask,
    AskInputs,
    AskOperation,
    AskState,
    AskTrace,
    BisectQuery,
    NoAnswer,
    chain,
    state_chain,
)
from protocol.merkle import MerkleProof, verify_proof
from tests.trainer.audit.test_replay import auditor, command
from tests.trainer.small import Committed, commit_round, job, pipeline, training
from trainer.data.data import TokenFile
from trainer.errors import OperationError
from trainer.operations.effects import Value
from trainer.operations.inputs import read_inputs, sources_of, write_inputs
from trainer.operations.judge import judge
from trainer.operations.tracer import GIVEN, Tracer, record_of
from trainer.worker.dispute_player import IMPOSSIBLE, DisputePlayer

DISPUTE = "d" * 32
TOTAL = 12
EVERY = 3
LEAN = {"memory": "lean", "precision": "bf16"}


def committed(tokens: TokenFile, stage: int, family: str = "llama", steps: int = EVERY, **changes: Any) -> Committed:
    return commit_round(pipeline(family, 2, tokens, training(commit_every=EVERY, **changes)), stage, steps, TOTAL)


def side(
    done: Committed, folder: Path, family: str = "llama", meddle: Callable[[], Meddle] | None = None
) -> DisputePlayer:
    last = len(done.trace.leaves) - 1
    told = auditor(folder, done.spec, family=family), command(done, last), done.opening(last)
    return DisputePlayer(*told) if meddle is None else StubbornPlayer(*told, meddle)


def ask(player: DisputePlayer, done: Committed, question: Ask) -> tuple[Any, bytes]:
    answer, artifact = player.answer(BisectQuery(DISPUTE, command(done, len(done.trace.leaves) - 1), question))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(answer), type=type(answer)) == answer
    assert answer.dispute == DISPUTE
    assert answer.ask == question
    return answer.answer, artifact


def flip(at: int) -> Callable[[], Meddle]:
    """A liar who changes a bit of what one operation of every step wrote."""

    def change(index: int, _name: str, written: Sequence[Value]) -> None:
        if index == at:
            assert isinstance(written[0], Tensor)
            flat, size = written[0].untyped_storage(), written[0].element_size()
            start = written[0].storage_offset() * size
            # Of a fraction the highest: no sum hides it.
            byte, bit = (2, 0x40) if written[0].dtype is torch.float32 else (0, 1)
            torch.empty(0, dtype=torch.uint8).set_(flat, start + byte, (1,), (1,)).bitwise_xor_(bit)

    return lambda: change


def leaves_of(player: DisputePlayer, step: int = 0) -> list[bytes]:
    return player.leaves(step, 1 << 20)


def first_difference(sides: Sequence[DisputePlayer], done: Committed, step: int) -> tuple[int, int]:
    """The search that ``protocol.audit`` describes; the operation, and how many questions it took."""
    traces = [ask(player, done, AskTrace(step))[0] for player in sides]
    low, high, asked = 0, min(trace.operations for trace in traces) - 1, 0
    while low < high:
        middle = (low + high + 1) // 2
        answers = [ask(player, done, AskOperation(step, middle))[0] for player in sides]
        for trace, answer in zip(traces, answers, strict=True):
            proof = MerkleProof(middle, trace.operations, answer.path)
            assert verify_proof(bytes.fromhex(trace.root), answer.record, proof)
        befores = {record_of(answer.record).before for answer in answers}
        low, high = (middle, high) if len(befores) == 1 else (low, middle - 1)
        asked += 1
    return low, asked


# --- traces -----------------------------------------------------------------------------------------------------------


def test_records_form_a_chain_and_end_with_what_was_committed(folder: Path, tokens: TokenFile) -> None:
    done = committed(tokens, 1)
    player = side(done, folder)
    leaves = leaves_of(player, EVERY - 1)
    before = record_of(leaves[0]).before
    for index, leaf in enumerate(leaves):
        record = record_of(leaf)
        assert (record.index, record.before) == (index, before)
        before = chain(before, leaf)
    assert record_of(leaves[-1]).name == RESULT
    after = done.trace.leaves[-1].after
    assert after is not None
    assert after in record_of(leaves[-1]).arguments


def test_every_read_names_the_operation_that_wrote_it_and_its_digest(folder: Path, tokens: TokenFile) -> None:
    records = [record_of(leaf) for leaf in leaves_of(side(committed(tokens, 1), folder))]
    assert len(records) > 400
    for record in records:
        for read in record.reads:
            for piece in read.pieces:
                assert piece.operation < record.index
                assert records[piece.operation].writes[piece.output].digest == piece.digest.hex()


@pytest.mark.long
def test_another_process_records_the_same_bytes(folder: Path, tokens: TokenFile, tmp_path: Path) -> None:
    done = committed(tokens, 0)
    leaf = leaves_of(side(done, folder), 1)[100]
    arguments = write_dispute(tmp_path, done)
    again = judged(["--record", "100", "--step", "1", "--folder", str(folder), *arguments])
    assert again["bytes"] == leaf.hex()


def write_dispute(folder: Path, done: Committed) -> list[str]:
    last = len(done.trace.leaves) - 1
    (folder / "replay.json").write_bytes(msgspec.json.encode(command(done, last)))
    (folder / "opening").write_bytes(done.opening(last))
    (folder / "job.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(job(), training=done.spec)))
    return [
        f"--{name}={folder / file}"
        for name, file in (("replay", "replay.json"), ("opening", "opening"), ("job", "job.json"))
    ]


def judged(arguments: list[str], code: int = 0) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "trainer", "judge", *arguments], capture_output=True, check=False)
    assert done.returncode == code, done.stderr.decode()
    text = done.stdout if code == 0 else done.stderr.splitlines()[-1]
    return dict(json.loads(text))


# --- disputes ---------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("family", "stage", "stride", "changes"),
    [
        pytest.param("gpt2", 0, 1, {}, marks=pytest.mark.long),
        pytest.param("llama", 0, 2, {}, marks=pytest.mark.long),
        pytest.param("llama", 1, 2, LEAN, marks=pytest.mark.long),
        ("gpt2", 1, 7, {}),
        ("llama", 1, 11, {}),
        ("llama", 0, 97, LEAN | {"optimizer": "muon"}),
    ],
)
def test_a_changed_bit_in_any_operation_is_found_there_and_judged(
    family: str, stage: int, stride: int, changes: dict[str, Any], folder: Path, tokens: TokenFile
) -> None:
    done = committed(tokens, stage, family, steps=1, **changes)
    player = side(done, folder, family)
    leaves = leaves_of(player)
    caught = caught_of(player, leaves)
    changeable = [i for i, leaf in enumerate(leaves) if is_changeable(leaf)]
    assert len(changeable) > 100
    for index in changeable[::stride]:
        lied = player._run(0, MeddlingTracer(flip(index)(), last=index))
        assert lied[:index] == leaves[:index]
        true, said = record_of(leaves[index]), record_of(lied[index])
        assert (said.name, said.reads) == (true.name, true.reads)
        assert said.writes != true.writes
        sources = {source: caught[source] for source in sources_of(leaves[index])}
        assert judge(write_inputs(leaves[index], sources)).agrees
        assert not judge(write_inputs(lied[index], sources)).agrees


def is_changeable(leaf: bytes) -> bool:
    """Whether the record is of an operation that reads and writes tensors."""
    record = record_of(leaf)
    return bool(record.reads) and record.writes[0].region.dtype not in ("scalar", "bytes")


def writes_floats(leaf: bytes) -> bool:
    return record_of(leaf).writes[0].region.dtype == "float32"


def caught_of(player: DisputePlayer, leaves: list[bytes]) -> dict[tuple[int, int], bytes]:
    """All that operations of step 0 read."""
    tracer = Tracer({source for leaf in leaves for source in sources_of(leaf)})
    assert player._run(0, tracer) == leaves
    return tracer.caught


@pytest.mark.parametrize("part", [0.99, *(pytest.param(part, marks=pytest.mark.long) for part in (0.0, 0.5))])
def test_the_search_ends_at_the_operation_within_its_bound(part: float, folder: Path, tokens: TokenFile) -> None:
    done = committed(tokens, 1)
    leaves = leaves_of(side(done, folder))
    # Which operations there are depends on the processor; a bit of a mask may change nothing that comes after it.
    numbers = [i for i, leaf in enumerate(leaves) if is_changeable(leaf) and writes_floats(leaf)]
    at = numbers[int(part * len(numbers))]
    sides = [side(done, folder), side(done, folder, meddle=flip(at))]
    states = [[ask(player, done, AskState(step))[0] for step in range(EVERY)] for player in sides]
    assert states[0][-1].state == done.trace.leaves[-1].after
    assert states[0][0].chain != states[1][0].chain
    found, asked = first_difference(sides, done, 0)
    assert found == at
    assert asked <= (len(leaves_of(sides[0])) - 1).bit_length()
    verdicts = [judge(ask(player, done, AskInputs(0, found))[1]) for player in sides]
    assert verdicts[0].outcomes == verdicts[1].outcomes
    assert [verdict.agrees for verdict in verdicts] == [True, False]


def test_the_chain_of_states_binds_each_step_and_all_before(folder: Path, tokens: TokenFile) -> None:
    done = committed(tokens, 1, steps=5)
    player = side(done, folder)
    chained = done.trace.leaves[EVERY].before
    assert chained is not None
    for step in (3, 4):
        answer, _ = ask(player, done, AskState(step))
        chained = state_chain(chained, answer.state, answer.sent, answer.loss)
        assert answer.chain == chained
        assert verify_proof(bytes.fromhex(done.root), answer.leaf, MerkleProof(step, 5, answer.path))


@pytest.mark.parametrize("question", [AskState(2), AskTrace(5), AskOperation(3, 10**9), AskInputs(3, 10**9)])
def test_what_is_not_there_is_answered_with_a_reason(question: Ask, folder: Path, tokens: TokenFile) -> None:
    done = committed(tokens, 0, steps=5)
    answer, artifact = ask(side(done, folder), done, question)
    assert isinstance(answer, NoAnswer)
    assert answer.reason
    assert artifact == b""


def test_a_step_that_cannot_be_done_has_a_trace_up_to_there(folder: Path, tokens: TokenFile) -> None:
    line = pipeline("llama", 2, tokens, training(commit_every=EVERY))
    done = commit_round(line, 1, 2, TOTAL)
    key = ("activation", 0)
    garbage = bytes(len(done.trace.payloads[1][key]))
    done.trace.payloads[1][key] = garbage
    leaf = done.trace.leaves[1]
    received = (hashlib.sha256(garbage).hexdigest(), *leaf.received[1:])
    done.trace.leaves[1] = msgspec.structs.replace(leaf, received=received)
    player = side(done, folder)
    assert [ask(player, done, AskState(step))[0].state == IMPOSSIBLE for step in range(2)] == [False, True]
    last = record_of(leaves_of(player, 1)[-1])
    assert last.name == RESULT
    assert IMPOSSIBLE in last.arguments


# --- the judge --------------------------------------------------------------------------------------------------------


@pytest.fixture
def product(folder: Path, tokens: TokenFile) -> tuple[bytes, dict[tuple[int, int], bytes]]:
    """A matrix product's record and inputs."""
    player = side(committed(tokens, 1, steps=1), folder)
    leaves = leaves_of(player)
    leaf = next(leaf for leaf in leaves if record_of(leaf).name == "aten.mm.default")
    caught = caught_of(player, leaves)
    return leaf, {source: caught[source] for source in sources_of(leaf)}


@pytest.mark.long
def test_the_command_judges_and_refuses(product: tuple[bytes, Any], tmp_path: Path) -> None:
    (tmp_path / "inputs").write_bytes(write_inputs(*product))
    said = record_of(product[0]).writes[0]
    answer = judged(["--inputs", str(tmp_path / "inputs")])
    assert answer["agrees"]
    assert answer["writes"][0]["digest"] == said.digest
    (tmp_path / "noise").write_bytes(b"noise")
    assert "safetensors" in judged(["--inputs", str(tmp_path / "noise")], code=3)["detail"]


def forged(product: tuple[bytes, Any], **changes: Any) -> bytes:
    record = msgspec.structs.replace(record_of(product[0]), **changes)
    return write_inputs(msgspec.msgpack.encode(record), product[1])


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "changes",
    [
        {"name": "aten.system.default"},
        {"name": "aten.from_file.default"},
        {"name": "aten.mm.nothing"},
        {"name": "aten.__class__.default"},
        {"name": "prims.mul.default"},
        {"name": GIVEN},
        {"name": "aten.rand.default"},
        {"arguments": "[[1],{}]"},
        {"arguments": "{"},
        {"arguments": '[[{"tensor":7}],{}]'},
        {"arguments": '[[{"device":"meta"}],{}]'},
        {"arguments": "[[[[[[[1]]]]]],{}]"},
        {"arguments": "[" * 30_000},
        {"name": "aten.zeros.default", "arguments": "[[[4611686018427387904]],{}]"},
        {"name": "cottage.decode"},
        {"name": "cottage.state"},
        {"name": "cottage.encode"},
        {"reads": ()},
    ],
    ids=str,
)
def test_hostile_records_are_refused(changes: dict[str, Any], product: tuple[bytes, Any]) -> None:
    with pytest.raises(OperationError):
        judge(forged(product, **changes))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "changes",
    [
        {"shape": (1 << 40, 1 << 40)},
        {"shape": (1,)},
        {"stride": (1 << 40, 1)},
        {"dtype": "complex64"},
        {"start": 1 << 50},
        {"start": 3},
        {"dtype": "bytes"},
        {"shape": (1 << 62,), "stride": (0,)},
    ],
    ids=str,
)
def test_reads_that_do_not_fit_what_is_shown_are_refused(changes: dict[str, Any], product: tuple[bytes, Any]) -> None:
    first, *others = record_of(product[0]).reads
    wrong = msgspec.structs.replace(first, region=msgspec.structs.replace(first.region, **changes))
    if changes == {"start": 1 << 50}:
        assert judge(forged(product, reads=(wrong, *others))).agrees  # Only where it lies within 64 bytes counts.
        return
    with pytest.raises(OperationError):
        judge(forged(product, reads=(wrong, *others)))


def test_other_bytes_than_the_record_names_are_refused(product: tuple[bytes, Any]) -> None:
    tensors = load(write_inputs(*product))
    tensors["source.0"] = tensors["source.0"].clone().bitwise_xor_(1)
    with pytest.raises(OperationError, match="not shown"):
        judge(save(tensors))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_files_are_judged_or_refused(data: st.DataObject, product: tuple[bytes, Any]) -> None:
    raw = bytearray(write_inputs(*product))
    for place in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=4)):
        raw[place] = data.draw(st.integers(0, 255))
    try:
        judge(bytes(raw))
    except OperationError:
        return


def test_a_record_that_is_too_long_is_refused_before_it_is_read(product: tuple[bytes, Any]) -> None:
    with pytest.raises(OperationError):
        read_inputs(save({"record": torch.zeros(1 << 20, dtype=torch.uint8)}))
