"""Activations as differences to a sample's last visit: caches on both sides, what they lose, and replays."""

import hashlib
import itertools
import os
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.job.job import TrainingSpec, total_steps
from tests.trainer.audit.test_replay import auditor, command
from tests.trainer.small import commit_round, pipeline, training
from trainer.codecs import encoded_size
from trainer.codecs.envelope import wrap
from trainer.data.data import TokenFile, epoch_starts
from trainer.errors import CodecError
from trainer.stage.activation_cache import NOTHING, ActivationCache, Caches, digest
from trainer.stage.aqsgd import pack_entries, read_visit, unpack_entries, wanted_entries, write_visit

SHAPE = (3, 5, 8)
TOTAL = 12


def values(seed: int, spread: float = 1.0) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)) * spread


def visited() -> tuple[torch.Tensor, list[bytes]]:
    return read_visit(write_visit(values(1), [None] * 3), SHAPE, [None] * 3)


def repeating(**changes: Any) -> Any:
    return training(activations="aq4", sampling="epochs", sequence=16, batch=4, micro_batches=2, **changes)


def short(folder: Path) -> TokenFile:
    """Eight windows: two steps of four are an epoch."""
    path = folder / "short.bin"
    path.write_bytes((folder / "train.bin").read_bytes()[: 4 * (8 * 16 + 1)])
    return TokenFile(path, 16, 300)


# --- payloads ----------------------------------------------------------------------------------------------------------


def test_a_later_visit_takes_about_half_the_bytes_on_its_way_and_is_nearer_than_four_bits_alone() -> None:
    before, entries = visited()
    now = values(1) + values(2, 0.05)
    payload = write_visit(now, list(entries))
    back, again = read_visit(payload, SHAPE, list(entries))
    assert (back - now).abs().max() < 0.05
    assert (before - now).abs().max() > 0.05
    assert again != entries
    wide = torch.randn(4, 128, 64)
    _, kept = read_visit(write_visit(wide, [None] * 4), (4, 128, 64), [None] * 4)
    later, first = (len(wrap(write_visit(wide, each))) for each in (list(kept), [None] * 4))
    assert later < 0.56 * first


def test_windows_in_full_and_differences_mix_in_one_payload() -> None:
    _, entries = visited()
    mixed = [None, entries[1], None]
    payload = write_visit(values(3), mixed)
    assert wanted_entries(payload, 3) == [NOTHING, digest(entries[1]), NOTHING]
    back, _ = read_visit(payload, SHAPE, mixed)
    assert (back - values(3)).abs().max() < 1.0


def test_another_entry_than_the_named_one_is_refused() -> None:
    _, entries = visited()
    payload = write_visit(values(3), [entries[0], None, None])
    for wrong in (entries[1], None):
        with pytest.raises(CodecError, match="which is not held"):
            read_visit(payload, SHAPE, [wrong, None, None])


def test_nothing_may_follow_the_last_window() -> None:
    with pytest.raises(CodecError, match="4 bytes behind"):
        read_visit(write_visit(values(1), [None] * 3) + b"more", SHAPE, [None] * 3)


@settings(deadline=None, max_examples=150)
@given(noise=st.binary(max_size=400), at=st.integers(0, 2**16), value=st.integers(0, 255))
def test_hostile_payloads_end_in_an_error_or_in_finite_values(noise: bytes, at: int, value: int) -> None:
    _, entries = visited()
    known: list[bytes | None] = [entries[0], None, entries[2]]
    changed = bytearray(write_visit(values(5), known))
    changed[at % len(changed)] = value
    for payload in (noise, bytes(changed)):
        try:
            back, _ = read_visit(payload, SHAPE, known)
        except CodecError:
            continue
        assert back.shape == SHAPE
        assert bool(torch.isfinite(back).all())


def test_a_record_of_entries_comes_back_and_another_length_is_refused() -> None:
    _, entries = visited()
    known: list[bytes | None] = [None, entries[1], entries[2]]
    record = pack_entries(known)
    assert unpack_entries(record, 3, SHAPE[1:]) == known
    for broken in (record[:-1], record + b"x", b"\x02" + record[1:], b""):
        with pytest.raises(CodecError):
            unpack_entries(broken, 3, SHAPE[1:])


# --- caches ------------------------------------------------------------------------------------------------------------

ENTRY = bytes(range(100))


def entry(number: int) -> bytes:
    return bytes([number]) * 100


def test_a_cache_offers_what_it_has_and_recalls_only_the_same(tmp_path: Path) -> None:
    cache = ActivationCache(folder=tmp_path)
    cache.remember(b"a", ENTRY)
    assert cache.offer([b"a", b"b"]) == digest(ENTRY) + NOTHING
    assert cache.recall([b"a", b"a", b"b"], [digest(ENTRY), digest(b"other"), NOTHING]) == [ENTRY, None, None]
    cache.remember(b"a", entry(1))
    assert cache.recall([b"a"], [digest(ENTRY)]) == [None]


def test_what_does_not_fit_into_memory_goes_to_a_file_and_then_nowhere(tmp_path: Path) -> None:
    cache = ActivationCache(memory=250, file=350, folder=tmp_path)
    for number in range(10):
        cache.remember(bytes([number]), entry(number))
    assert len(cache) == 2 + 3
    assert cache.recall([b"\x04"], [digest(entry(4))]) == [entry(4)]
    assert cache.offer([b"\x05"]) == NOTHING
    assert list(tmp_path.iterdir()) == [], "the file has no name, so nothing is left of it"
    for number in range(5):
        cache.remember(bytes([number]), entry(number + 50))
        assert cache.recall([bytes([number])], [digest(entry(number + 50))]) == [entry(number + 50)]


def test_a_folder_that_cannot_be_written_to_means_memory_only(tmp_path: Path) -> None:
    cache = ActivationCache(memory=100, folder=tmp_path / "missing")
    cache.remember(b"a", entry(1))
    cache.remember(b"b", entry(2))
    assert cache.offer([b"a", b"b"]) == digest(entry(1)) + NOTHING


def test_an_entry_that_changed_on_the_disk_is_offered_no_more(tmp_path: Path) -> None:
    cache = ActivationCache(memory=0, folder=tmp_path)
    cache.remember(b"a", entry(1))
    assert cache._file is not None
    os.pwrite(cache._file.fileno(), b"\xff", 7)
    assert cache.offer([b"a"]) == NOTHING
    assert cache.recall([b"a"], [digest(entry(1))]) == [None]


def test_what_was_offered_can_be_recalled_even_if_the_disk_changes_then(tmp_path: Path) -> None:
    cache = ActivationCache(memory=0, folder=tmp_path)
    cache.remember(b"a", entry(1))
    assert cache.offer([b"a"]) == digest(entry(1))
    assert cache._file is not None
    os.pwrite(cache._file.fileno(), b"\xff", 7)
    assert cache.recall([b"a"], [digest(entry(1))]) == [entry(1)]


# --- epochs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("windows", [1, 2, 3, 8, 100, 1023])
def test_every_window_comes_once_an_epoch_in_another_order(windows: int) -> None:
    found = [int(at) for step in range(3 * windows) for at in epoch_starts(7, step, 0, 1, windows)]
    epochs = [found[at : at + windows] for at in range(0, 3 * windows, windows)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(windows))
    if windows > 3:
        assert epochs[0] != epochs[1] != epochs[2]
    together = [int(at) for step in range(windows) for at in epoch_starts(7, step, 0, 3, windows)]
    assert together == found


@pytest.mark.one_in(3)
@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("windows", [1, 5, 8, 100, 1021])
def test_replicas_together_read_the_data_once_with_tokens_for_one_pass(replicas: int, windows: int) -> None:
    training = TrainingSpec(tokens=windows * 16, sequence=16, batch=4, sampling="epochs")
    steps = total_steps(training, replicas)
    read = [
        [int(at) for step in range(steps) for at in epoch_starts(7, step, replica, 4, windows, replicas)]
        for replica in range(replicas)
    ]
    seen = Counter(itertools.chain(*read))
    assert seen.keys() == set(range(windows)), "all of it"
    assert sum(seen.values()) - windows <= (4 + 1) * replicas, "only the last steps are filled up"
    if windows >= replicas:
        assert all(not set(one) & set(other) for one, other in itertools.combinations(read, 2)), "each has its own"
        again = [int(at) for step in range(3 * steps) for at in epoch_starts(7, step, 0, 4, windows, replicas)]
        assert set(again) == set(read[0]), "and keeps them, epoch after epoch"
        assert max(Counter(again).values()) - min(Counter(again).values()) <= 1
    if windows > 100 and replicas > 1:
        assert sorted(set(read[0])) != list(range(0, windows, replicas)), "dealt in an order of its own"


def test_the_order_of_shares_follows_from_the_seed_and_never_changes() -> None:
    assert epoch_starts(7, 3, 1, 4, 1000, 1).tolist() == epoch_starts(7, 3, 1, 4, 1000).tolist()
    assert epoch_starts(8, 3, 1, 4, 1000, 4).tolist() != epoch_starts(7, 3, 1, 4, 1000, 4).tolist()
    assert epoch_starts(7, 3, 1, 4, 1000, 4).tolist() == [660, 635, 68, 726]  # Another order would void every replay.


def test_the_order_of_epochs_never_changes() -> None:
    assert epoch_starts(7, 3, 1, 4, 1000).tolist() == [788, 806, 680, 207]  # Another order would void every replay.


# --- pipelines ----------------------------------------------------------------------------------------------------------


def payload_sizes(line: Any, stage: int) -> int:
    """Of activations, as they cross."""
    return sum(len(wrap(payload)) for (kind, _), payload in line.recorders[stage].sent.items() if kind == "activation")


def test_the_second_epoch_takes_about_half_the_bytes_of_the_first(folder: Path) -> None:
    line = pipeline("llama", 3, short(folder), repeating())
    sizes = []
    for step in range(6):
        line.step(step, TOTAL)
        sizes.append(payload_sizes(line, 0))
    assert sizes[0] == sizes[1]
    assert max(sizes[2:]) < 0.7 * sizes[0]


def test_a_side_that_lost_its_cache_costs_bytes_and_no_bit(folder: Path) -> None:
    calm = pipeline("llama", 2, short(folder), repeating())
    for stage in (0, 1):
        line = pipeline("llama", 2, short(folder), repeating())
        for step in range(4):
            line.step(step, TOTAL)
        line.caches[stage] = Caches.empty()
        line.step(4, TOTAL)
        lost = payload_sizes(line, 0)
        line.step(5, TOTAL)
        line.step(6, TOTAL)
        assert payload_sizes(line, 0) < 0.7 * lost
    for step in range(4):
        calm.step(step, TOTAL)
    assert payload_sizes(calm, 0) < 0.7 * lost


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_every_step_replays_without_any_cache(stage: int, folder: Path) -> None:
    tokens, spec = short(folder), repeating()
    line = pipeline("llama", 3, tokens, spec)
    commit_round(line, stage, 3, TOTAL)
    done = commit_round(line, stage, 2, TOTAL, first_step=3)
    (folder / "train.bin").write_bytes((folder / "short.bin").read_bytes())
    for step in range(2):
        report = auditor(folder, spec).judge(command(done, step), done.opening(step))
        assert report.verdict == "match", report.detail


def test_entries_that_were_not_offered_are_a_mismatch(folder: Path) -> None:
    tokens, spec = short(folder), repeating()
    line = pipeline("llama", 2, tokens, spec)
    commit_round(line, 0, 3, TOTAL)
    done = commit_round(line, 0, 1, TOTAL, first_step=3)
    (folder / "train.bin").write_bytes((folder / "short.bin").read_bytes())
    record = bytearray(done.trace.payloads[0]["ahead", 0])
    size = encoded_size((16, 32), "int8-token")
    assert len(record) == 2 + 2 * size
    record[-1] ^= 1
    done.trace.payloads[0]["ahead", 0] = bytes(record)
    leaf = done.trace.leaves[0]
    places = done.position.expected(2)
    received = list(leaf.received)
    received[places.index(("ahead", 0))] = hashlib.sha256(bytes(record)).hexdigest()
    done.trace.leaves[0] = msgspec.structs.replace(leaf, received=tuple(received))
    report = auditor(folder, spec).judge(command(done, 0), done.opening(0))
    assert report.verdict == "mismatch"
    assert "offered" in report.detail
