"""Contributions that are reduced in parts: one replica of a stage takes one shard of everybody's and hands the result out.

A shard is every ``count``-th block of an update, not a run: so each is a sample of all parameters, whose norm and direction say
of a contribution what the whole would, and codecs with one step for a vector lose nothing. Blocks are those of the codec.

::

    contribution of p   shard 0 | shard 1 | ...      its digest: the Merkle root over them
    result of shard s   u16 count, u16 replica ...   that the checks left out, then the mean as the codec writes it

What the codec of a result loses is its *residue*: its reducer keeps it and adds it to the next one, as a replica does with its
contribution; codecs that lose next to nothing do without. A result may be as long as leaves a node with ``UPLOAD`` times its
contribution in all: codecs that can be finer are as fine as that allows, which with few replicas is nearly exact.

Sources: sharded averaging with a codec both ways, arXiv 1905.05957 (DoubleSqueeze); reduce-scatter and all-gather as in ring
all-reduce, P. Patarasuk and X. Yuan, J. Parallel Distrib. Comput. 69 (2009) 117.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from protocol.merkle import HASH_BYTES, MerkleProof, MerkleTree, verify_proof
from protocol.plan import MAX_REPLICAS
from trainer.codecs import (
    BLOCK,
    CODECS,
    Codec,
    CodecName,
    Parts,
    decode,
    decode_parts,
    encode,
    encode_parts,
    encoded_size,
)
from trainer.codecs.coarse import Coarse
from trainer.codecs.sparse import CHUNK, TopK
from trainer.errors import CodecError
from trainer.outer.checks import ALIKE, Combining

EXACT_ENOUGH = frozenset({"fp32", "fp16", "int8-block"})
"""Codecs of which nothing of a result has to be kept."""
UPLOAD = 2.1
"""Times its encoded contribution that a member sends at most, parts and results together; the rest up to 2.2 is for heads."""
STEPS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.35, 1.6, 2.0)
"""Of a coarse result, in those of a contribution: the finest that is short enough."""
_COUNT, _REPLICA = struct.Struct("<H"), struct.Struct("<H")
_HEAD = struct.Struct("<32sHHB")


@dataclass(frozen=True)
class Shards:
    """An update of ``size`` values in ``count`` shards; of one shard, that is the update itself.

    ``has_residue``: its reducers keep what the codec of their results loses.
    """

    size: int
    count: int
    codec: CodecName | Codec
    has_residue: bool = False

    @property
    def _block(self) -> int:
        return CHUNK if isinstance(self.codec, TopK) else BLOCK

    def length(self, shard: int) -> int:
        """Values of a shard."""
        whole, rest = divmod(self.size, self._block)
        return len(range(shard, whole, self.count)) * self._block + (rest if whole % self.count == shard else 0)

    def take(self, update: Tensor, shard: int) -> Tensor:
        """A shard of an update ``[n]``, whatever its type."""
        whole, rest = divmod(self.size, self._block)
        blocks = update[: self.size - rest].view(whole, self._block)[shard :: self.count].reshape(-1)
        return torch.cat((blocks, update[self.size - rest :])) if rest and whole % self.count == shard else blocks

    def take_blocks(self, vector: Tensor, shard: int) -> Tensor:
        """The same of a vector that has one value for each 64 of an update's, whose length is a multiple of that."""
        each = self._block // BLOCK
        whole = self.size // self._block
        taken = vector[: whole * each].view(whole, each)[shard :: self.count].reshape(-1)
        return torch.cat((taken, vector[whole * each :])) if whole % self.count == shard else taken

    def join(self, parts: Iterable[Tensor]) -> Tensor:
        """The update of all its shards, in order, of which one at a time is needed."""
        update = torch.empty(self.size)
        for shard, part in enumerate(parts):
            for place, values in self._places(update, shard, part):
                place.copy_(values)
        return update

    def subtract(self, update: Tensor, shard: int, part: Tensor) -> None:
        """Take a shard's values from an update ``[n]``, in place."""
        for place, values in self._places(update, shard, part):
            place.sub_(values)

    def _places(self, update: Tensor, shard: int, part: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Where a shard's values lie in an update, each place with the values."""
        whole, rest = divmod(self.size, self._block)
        ends = rest and whole % self.count == shard
        blocks = update[: self.size - rest].view(whole, self._block)
        yield blocks[shard :: self.count], (part[:-rest] if ends else part).view(-1, self._block)
        if ends:
            yield update[self.size - rest :], part[-rest:]

    def encode_parts(self, updates: Iterable[Parts]) -> tuple[bytes, ...]:
        """All shards, each of which is there in parts; raises ``NonFiniteError``."""
        return tuple(encode_parts(update, self.length(shard), self.codec) for shard, update in enumerate(updates))

    def decode_parts(self, pieces: Iterable[bytes]) -> Parts:
        """The update of all its shards, in order, in parts of whole blocks; raises ``CodecError``."""
        return self.joined([decode_parts(data, self.length(shard), self.codec) for shard, data in enumerate(pieces)])

    def joined(self, shards: Sequence[Parts]) -> Parts:
        """The update that shards come to, of which parts of whole blocks are made."""
        if self.count == 1:
            return shards[0]

        def part(span: slice) -> Tensor:
            first, last = span.start // self._block, -(-span.stop // self._block)
            update = torch.empty(span.stop - span.start)
            whole = self.size // self._block
            blocks = update[: (min(last, whole) - first) * self._block].view(-1, self._block)
            for shard, values in enumerate(shards):
                offset = (shard - first) % self.count
                begin, count = (first + offset - shard) // self.count, len(range(offset, len(blocks), self.count))
                places = slice(begin * self._block, (begin + count) * self._block)
                if count:
                    blocks[offset :: self.count] = values(places).view(-1, self._block)
                if last > whole and whole % self.count == shard:  # The rest, behind the last whole block.
                    rest, length = self.size - whole * self._block, self.length(shard)
                    update[len(update) - rest :] = values(slice(length - rest, length))
            return update

        return part

    def encode(self, update: Tensor) -> tuple[bytes, ...]:
        """All shards; raises ``NonFiniteError``."""
        if self.count == 1:
            return (encode(update, self.codec),)
        return tuple(encode(self.take(update, shard), self.codec) for shard in range(self.count))

    def decode(self, data: bytes, shard: int) -> Tensor:
        """One shard; raises ``CodecError``."""
        return decode(data, (self.length(shard),), self.codec)

    def check(self, data: bytes, shard: int) -> None:
        """See that ``decode`` takes it; raises ``CodecError``."""
        decode_parts(data, self.length(shard), self.codec)

    @property
    def room(self) -> float:
        """How long a result may be, in encoded shards of a contribution."""
        return UPLOAD * self.count / (self.count - 1) - 1 if self.count > 1 else 1.0

    @property
    def result_codec(self) -> CodecName | Codec:
        """How results are read."""
        if isinstance(self.codec, TopK):
            return replace(self.codec, density=min(1.0, self.codec.density * self.room))
        return self.codec

    def encode_result(self, mean: Tensor, part_bytes: int) -> bytes:
        """A shard's mean; ``part_bytes``: what all contributors' parts take, divided by how many they are."""
        coarse = CODECS[self.codec] if isinstance(self.codec, str) else self.codec
        if not isinstance(coarse, Coarse):
            return encode(mean, self.result_codec)
        low, high, best = 0, len(STEPS) - 1, b""
        while low <= high:  # Longer steps make shorter results.
            middle = (low + high) // 2
            tried = encode(mean, replace(coarse, step=coarse.step * STEPS[middle]))
            if len(tried) <= self.room * part_bytes:
                high, best = middle - 1, tried
            else:
                low = middle + 1
        return best or encode(mean, replace(coarse, step=coarse.step * STEPS[-1]))

    def decode_result(self, data: bytes | memoryview, shard: int) -> Tensor:
        """As ``encode_result`` wrote it; raises ``CodecError``."""
        return decode(data, (self.length(shard),), self.result_codec)

    def limit(self, shard: int) -> int:
        """Bytes of the longest encoded shard, or mean of one."""
        shape = (self.length(shard),)
        return max(encoded_size(shape, self.codec), encoded_size(shape, self.result_codec))


def contribution_digest(pieces: Sequence[bytes]) -> str:
    """What a contribution is committed to by: SHA-256 of it, or the root over its shards."""
    return hashlib.sha256(pieces[0]).hexdigest() if len(pieces) == 1 else MerkleTree(pieces).root.hex()


@dataclass(frozen=True)
class ShardPart:
    """A shard of a replica's contribution, with what shows that it is one.

    ::

        root 32 bytes | count u16 | place u16 | length of the path u8 | path, 32 bytes each | the encoded shard

    Attributes:
        root: what the contribution was committed to by.
        place, count: which of how many shards it is.
        path: from the shard to the root.
    """

    root: str
    place: int
    count: int
    path: tuple[bytes, ...]
    data: bytes

    @classmethod
    def of(cls, pieces: Sequence[bytes]) -> tuple["ShardPart", ...]:
        """Those of a contribution."""
        tree, count = MerkleTree(pieces), len(pieces)
        return tuple(cls(tree.root.hex(), at, count, tree.proof(at).path, data) for at, data in enumerate(pieces))

    def write(self) -> bytes:
        """As it is sent and shown."""
        head = _HEAD.pack(bytes.fromhex(self.root), self.count, self.place, len(self.path))
        return head + b"".join(self.path) + self.data

    @classmethod
    def read(cls, written: bytes) -> "ShardPart":
        """What ``write`` wrote.

        Raises:
            CodecError: it is not that shard of the contribution that it names.
        """
        if len(written) < _HEAD.size:
            raise CodecError(f"{len(written)} bytes hold no part of a contribution")
        root, count, place, steps = _HEAD.unpack_from(written)
        ends = _HEAD.size + HASH_BYTES * steps
        if count > MAX_REPLICAS or ends > len(written):
            raise CodecError(f"a part of a contribution in {count} shards, with a path of {steps}")
        path = tuple(written[at : at + HASH_BYTES] for at in range(_HEAD.size, ends, HASH_BYTES))
        part = cls(root.hex(), place, count, path, written[ends:])
        if not verify_proof(root, part.data, MerkleProof(place, count, path)):
            raise CodecError(f"the bytes are not shard {place} of the contribution {part.root[:16]}")
        return part


MOST_OVERHEAD = _HEAD.size + HASH_BYTES * MAX_REPLICAS.bit_length()
"""Bytes that ``ShardPart`` puts around an encoded shard, at most."""


@dataclass(frozen=True)
class Result:
    """What a reducer hands out; ``residue``: what the codec lost of it, where that is kept."""

    data: bytes
    residue: Tensor | None = None

    @property
    def digest(self) -> str:
        """What its reducer commits to."""
        return hashlib.sha256(self.data).hexdigest()


def loses(codec: CodecName | Codec) -> bool:
    """Whether a codec loses so much that it has to be sent later."""
    return (codec if isinstance(codec, str) else codec.name) not in EXACT_ENOUGH


def reduce_shard(
    shards: Shards,
    shard: int,
    parts: Mapping[int, bytes],
    combining: Combining,
    free: Tensor,
    residue: Tensor | None,
    weights: Mapping[int, int] = ALIKE,
) -> Result:
    """The result of one shard: a function of what is given here, the same bits on every machine.

    Args:
        parts: by replica, the encoded shard of each contributor.
        free: True ``[length]`` where no parameter lies.
        residue: of this reducer's result before; None: it begins.
        weights: as in ``OuterMethod.apply``.
    Raises:
        CodecError: a part is no shard of this round. RoundError: there are none. NonFiniteError: the mean has overflowed.
    """
    updates = {replica: shards.decode(data, shard).masked_fill_(free, 0.0) for replica, data in parts.items()}
    mean, left_out = combining.combine(updates, weights)
    if residue is not None:
        mean.add_(residue)
    head = _COUNT.pack(len(left_out)) + b"".join(_REPLICA.pack(replica) for replica in left_out)
    data = head + shards.encode_result(mean, sum(map(len, parts.values())) // len(parts))
    if not shards.has_residue:
        return Result(data)
    return Result(data, mean.sub_(read_result(shards, shard, data, free)[0]))


def left_out_of(data: bytes) -> tuple[memoryview, tuple[int, ...]]:
    """The encoded mean of a shard's result, and the replicas that the checks left out of it; raises ``CodecError``."""
    if len(data) < _COUNT.size:
        raise CodecError(f"{len(data)} bytes hold no result")
    (count,) = _COUNT.unpack_from(data)
    ends = _COUNT.size + count * _REPLICA.size
    if count > MAX_REPLICAS or ends > len(data):
        raise CodecError(f"a result that leaves out {count} replicas")
    left_out = tuple(int(_REPLICA.unpack_from(data, at)[0]) for at in range(_COUNT.size, ends, _REPLICA.size))
    if list(left_out) != sorted({*left_out}) or any(replica >= MAX_REPLICAS for replica in left_out):
        raise CodecError("the replicas that a result leaves out are not in order")
    return memoryview(data)[ends:], left_out


def read_result(shards: Shards, shard: int, data: bytes, free: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The mean of a shard, and the replicas that the checks left out of it; raises ``CodecError``."""
    encoded, left_out = left_out_of(data)
    return shards.decode_result(encoded, shard).masked_fill_(free, 0.0), left_out


def check_result(shards: Shards, shard: int, data: bytes) -> None:
    """See that ``read_result`` takes it; raises ``CodecError``."""
    decode_parts(left_out_of(data)[0], shards.length(shard), shards.result_codec)


def results_in_parts(shards: Shards, results: Mapping[int, bytes]) -> tuple[Parts, tuple[int, ...]]:
    """The mean of all shards, by their names, in parts, what lies between parameters included; and who was left out of any.

    Raises:
        CodecError: as ``read_result``.
    """
    means, odd = [], set[int]()
    for place, (_, data) in enumerate(sorted(results.items())):
        encoded, left_out = left_out_of(data)
        means.append(decode_parts(encoded, shards.length(place), shards.result_codec))
        odd.update(left_out)
    return shards.joined(means), tuple(sorted(odd))


def result_limit(shards: Shards, shard: int) -> int:
    """Bytes of the longest result."""
    return _COUNT.size + MAX_REPLICAS * _REPLICA.size + shards.limit(shard)


def residue_digest(residue: Tensor | None) -> str | None:
    """SHA-256 of a residue; None: there is none."""
    return None if residue is None else hashlib.sha256(residue.contiguous().numpy().data.cast("B")).hexdigest()
