"""Contributions cut into shards, reduced and handed out: same bits as the mesh, sizes, and what is refused."""

import hashlib
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from protocol.job.job import TrainingSpec
from protocol.job.sharding import is_sharded, shard_count
from protocol.job.updates import UPDATES
from protocol.merkle import MerkleTree
from tests.trainer.outer.test_outer_steps import method_of
from tests.trainer.small import training
from trainer.codecs.sparse import TopK
from trainer.errors import CodecError
from trainer.outer import Local, OuterMethod, OuterState
from trainer.outer.audit import outer_step_of_results
from trainer.outer.checks import Combining
from trainer.outer.diloco import RESIDUAL
from trainer.outer.shards import ShardPart, Shards, contribution_digest, read_result, reduce_shard

SIZE = 64 * 300
ROUNDS = 3


def noise(seed: int, scale: float = 0.01, size: int = SIZE) -> Tensor:
    return scale * torch.randn(size, generator=torch.Generator().manual_seed(seed))


def start() -> OuterState:
    return OuterState(noise(1, 1.0), noise(2, 0.001))


class Replicas:
    """So many replicas of a stage that move at random, and exchange by shards or not."""

    def __init__(self, spec: TrainingSpec, count: int) -> None:
        self.method: OuterMethod = method_of(spec, SIZE)
        self.count = count
        self.shards = shard_count(spec, count)
        self.state = start()
        self.local: list[Local] = [self.method.fresh(self.state) for _ in range(count)]
        self.residues: list[Tensor | None] = [None] * count
        self.pieces: dict[int, tuple[bytes, ...]] = {}
        self.results: list[bytes] = []

    def round(self, index: int) -> None:
        self.results = []
        for replica in range(self.count):
            moved = self.state.anchor - noise(7 + index) - noise(100 * index + replica)
            made = self.method.contribution(self.state.anchor, moved, self.local[replica], index, self.shards)
            self.pieces[replica], self.local[replica] = made.pieces, made.local
        if self.shards == 1:
            given = {replica: pieces[0] for replica, pieces in self.pieces.items()}
            self.state = self.method.apply(self.state, given, index)
            return
        shards, free = self.method.shards(index, self.shards), self.method.free(index)
        means, odd = [], set[int]()
        for shard in range(self.shards):
            parts = {replica: pieces[shard] for replica, pieces in self.pieces.items()}
            here = shards.take(free, shard)
            made = reduce_shard(shards, shard, parts, self.method.combining, here, self.residues[shard])
            self.residues[shard] = made.residue
            self.results.append(made.data)
            mean, left_out = read_result(shards, shard, made.data, here)
            means.append(mean)
            odd |= {*left_out}
        self.state = self.method.step(self.state, shards.join(means), tuple(sorted(odd)), index)

    def uploaded(self) -> float:
        """What the busiest member sends of the last round, in encoded contributions."""
        most = 0.0
        for replica, pieces in self.pieces.items():
            parts = sum(len(part.write()) for at, part in enumerate(ShardPart.of(pieces)) if at != replica)
            most = max(most, (parts + (self.count - 1) * len(self.results[replica])) / sum(map(len, pieces)))
        return most


@pytest.mark.parametrize(("count", "size", "codec"), [(4, 300, "int8-block"), (7, 640, "fp32"), (64, 1000, "fp32")])
def test_shards_put_together_are_the_update(count: int, size: int, codec: Any) -> None:
    shards, update = Shards(size, count, codec), noise(3, size=size)
    parts = [shards.take(update, shard) for shard in range(count)]
    assert [part.numel() for part in parts] == [shards.length(shard) for shard in range(count)]
    assert torch.equal(shards.join(parts), update)
    assert max(map(len, parts)) - min(map(len, parts)) <= 64


def test_chunks_of_a_sparse_codec_stay_whole() -> None:
    size = 10 * 4096 + 100
    shards, update = Shards(size, 4, TopK(0.03)), noise(3, size=size)
    whole = Shards(size, 1, TopK(0.03))
    sent = shards.join([shards.decode(data, shard) for shard, data in enumerate(shards.encode(update))])
    assert torch.equal(sent[: 10 * 4096], whole.decode(whole.encode(update)[0], 0)[: 10 * 4096])


@pytest.mark.parametrize(("count", "aggregation"), [(4, "mean"), (7, "trimmed")])
def test_of_a_codec_that_loses_nothing_shards_give_the_bits_of_the_mesh(count: int, aggregation: str) -> None:
    spec = training(pseudo_gradient="fp32", aggregation=aggregation)
    mesh = Replicas(training(pseudo_gradient="fp32", aggregation=aggregation, exchange="mesh"), count)
    sharded = Replicas(spec, count)
    assert sharded.shards == count
    for index in range(ROUNDS):
        mesh.round(index)
        sharded.round(index)
        assert torch.equal(mesh.state.anchor, sharded.state.anchor)
        assert torch.equal(mesh.state.momentum, sharded.state.momentum)


@pytest.mark.parametrize("name", sorted(UPDATES))
def test_a_contribution_in_shards_says_what_the_whole_one_does(name: str) -> None:
    method = method_of(training(pseudo_gradient=name), SIZE)
    local, anchor = method.fresh(start()), start().anchor
    whole = method.contribution(anchor, anchor - noise(5), local, 0)
    cut = method.contribution(anchor, anchor - noise(5), local, 0, 6)
    if RESIDUAL in whole.local:  # A step for each shard in place of one for all, which loses as much.
        lost = [float(made.local[RESIDUAL].norm()) for made in (whole, cut)]
        assert lost[1] == pytest.approx(lost[0], rel=0.02)
    else:
        shards = method.shards(0, 6)
        sent = shards.join([shards.decode(data, shard) for shard, data in enumerate(cut.pieces)])
        assert torch.equal(sent, method.decode_update(whole.data, 0))


@pytest.mark.parametrize("name", ["fp32", "int8", "int4"])
def test_nobody_sends_more_than_twice_an_update_and_a_little(name: str) -> None:
    replicas = Replicas(training(pseudo_gradient=name), 8)
    replicas.round(0)
    assert replicas.uploaded() <= 2.2


@pytest.mark.one_in(3)
@pytest.mark.parametrize("codec", ["coarse", "coarser", TopK(0.03)])
def test_a_result_is_as_fine_as_its_room_allows(codec: Any) -> None:
    size = 8 * 3 * 4096
    shards = Shards(size, 8, codec, has_residue=True)
    free = torch.zeros(shards.length(1), dtype=torch.bool)
    parts = {replica: shards.encode(noise(3, size=size) + noise(4 + replica, size=size))[1] for replica in range(8)}
    room = shards.room * sum(map(len, parts.values())) / 8
    first = reduce_shard(shards, 1, parts, Combining(), free, None)
    assert 0.6 * room < len(first.data) <= room + 64
    assert first.residue is not None
    second = reduce_shard(shards, 1, parts, Combining(), free, first.residue)
    mean = torch.stack([shards.decode(data, 1) for data in parts.values()]).mean(0)
    handed = sum((read_result(shards, 1, made.data, free)[0] for made in (first, second)), torch.zeros_like(mean))
    assert second.residue is not None
    assert torch.allclose(handed + second.residue, 2 * mean, atol=1e-6)


def test_a_part_is_shown_to_belong_to_what_was_committed_to() -> None:
    pieces = (b"one", b"two", b"three", b"four", b"five")
    parts = ShardPart.of(pieces)
    assert {part.root for part in parts} == {contribution_digest(pieces)} == {MerkleTree(pieces).root.hex()}
    for part in parts:
        assert ShardPart.read(part.write()) == part
        for false in (
            replace(part, data=b"other"),
            replace(part, place=(part.place + 1) % 5),
            replace(part, count=6),
            replace(part, root=hashlib.sha256(b"").hexdigest()),
            replace(part, path=part.path[:-1]),
        ):
            with pytest.raises(CodecError):
                ShardPart.read(false.write())
    with pytest.raises(CodecError):
        ShardPart.read(parts[0].write()[:30])


def test_a_result_that_is_none_is_refused() -> None:
    replicas = Replicas(training(), 4)
    replicas.round(0)
    shards, free = replicas.method.shards(0, 4), replicas.method.free(0)
    here, good = shards.take(free, 1), replicas.results[1]
    for bad in (b"", b"\x01", good[:-1], b"\xff\xff" + good[2:], b"\x02\x00\x03\x00\x01\x00" + good[2:]):
        with pytest.raises(CodecError):
            read_result(shards, 1, bad, here)


def test_a_replica_that_is_left_out_of_a_shard_is_named() -> None:
    replicas = Replicas(training(check_updates=True), 5)
    replicas.round(0)
    shards = replicas.method.shards(1, 5)
    far = tuple(shards.encode(noise(9, 50.0)))
    parts = {replica: pieces[2] for replica, pieces in replicas.pieces.items()} | {3: far[2]}
    made = reduce_shard(shards, 2, parts, replicas.method.combining, shards.take(replicas.method.free(1), 2), None)
    assert read_result(shards, 2, made.data, shards.take(replicas.method.free(1), 2))[1] == (3,)


class Free:
    """A stage without constraints."""

    def constrain(self, values: Tensor) -> None:
        """Nothing is held in place."""


def test_the_outer_step_of_results_says_what_it_was_made_from() -> None:
    replicas = Replicas(training(), 4)
    before = replicas.state
    replicas.round(0)
    results = {10 * shard: data for shard, data in enumerate(replicas.results)}
    after, record = outer_step_of_results(replicas.method, Free(), before, results, 0, 4)  # type: ignore[arg-type]
    assert torch.equal(after.anchor, replicas.state.anchor)
    assert (record.before, record.after) == (before.digest(), after.digest())
    assert record.results == {shard: hashlib.sha256(data).hexdigest() for shard, data in results.items()}
    alone, _ = outer_step_of_results(replicas.method, Free(), before, results, 0, 1)  # type: ignore[arg-type]
    assert not torch.equal(alone.anchor, after.anchor)
    assert torch.equal(alone.momentum, before.momentum)


@pytest.mark.parametrize(
    ("changes", "replicas", "expected"),
    [
        ({}, 3, False),
        ({}, 4, True),
        ({"exchange": "mesh"}, 9, False),
        ({"exchange": "shards"}, 2, True),
        ({"exchange": "shards"}, 1, False),
        ({"outer": "streaming"}, 4, True),
        ({"outer": "dgc"}, 4, False),
    ],
)
def test_who_exchanges_by_shards_follows_from_the_document_and_the_plan(
    changes: dict[str, Any], replicas: int, expected: bool
) -> None:
    assert is_sharded(training(**changes), replicas) == expected
