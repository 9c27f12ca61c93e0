"""Agent and worker, over the Unix socket: the worker's only door.

A frame is ``u32 header length | u64 payload length | header | payload`` (little-endian); the header is one
MessagePack message, the payload raw bytes (a tensor, a checkpoint) that need no copy. The worker connects; the agent
answers with ``Setup``. The worker's folder (read-only) holds the files of ``Assign.files``, encrypted
(``common.encrypted_files``).
"""

import asyncio
import struct
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import Meta

from common.encrypted_files import KEY_BYTES
from protocol.codec import MAX_MESSAGE, MessageError, decode, encode
from protocol.ids import Count, JobId, Mark, ReplicaIndex, RoundIndex, StageIndex, StepIndex, TraceParent
from protocol.job.job import DatasetSpec, JobSpec
from protocol.task import Plan, TaskCommand, TaskReport

MAX_PAYLOAD = 64 << 30  # A lean checkpoint of a stage with 8 billion parameters, with its momentum and moments.
RETURNED_AT_ONCE = 8 << 20  # What neighbours send may come between.
_LENGTHS = struct.Struct("<IQ")
_SLICE = 1 << 20

FileKey = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]


class TensorName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a payload between peers is. Unique within a job, so that a second copy is known as one.

    ``activation``: forward, from stage s to s + 1. ``gradient``: backward, from s to s - 1. ``offer``: which cached activations
    s has, to s - 1, before a step.
    ``pseudo_gradient``: between replicas. ``shard``: a part of one, ``micro`` is the shard; ``result``: what it was reduced to,
    in turn ``step``. ``exchange``: between replicas within a step; ``micro`` is the replica that sends.
    ``validation``: forward only, never quantised.
    ``end``: forward; the round of this replica is over before step ``step``.
    ``pass``: of a model that answers, forward; ``drawn``: from its last stage to its first. ``step`` counts those of an epoch.
    """

    kind: Literal[
        "activation",
        "gradient",
        "exchange",
        "pseudo_gradient",
        "shard",
        "result",
        "validation",
        "offer",
        "end",
        "pass",
        "drawn",
    ]
    epoch: Count
    round: RoundIndex
    step: StepIndex
    micro: Annotated[int, Meta(ge=0, le=1_000_000)]


# --- worker to agent ----------------------------------------------------------------------------------------------------


class PeerSend(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="peer_send"):
    """The payload goes to (stage, replica) of the plan in force. ``naive``: the bytes that float32 exchange would have taken."""

    stage: StageIndex
    replica: ReplicaIndex
    name: TensorName
    naive: Count = 0


class WorkTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long a worker took for a command, in Unix seconds. ``trace``: as the command had it."""

    trace: TraceParent
    began: Annotated[float, Meta(ge=0, lt=1e12)]
    ended: Annotated[float, Meta(ge=0, lt=1e12)]


class WorkerReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="report"):
    """The payload, if any, is an artifact, which the agent stores with the coordinator under its SHA-256. That of a
    ``RoundApplied`` is the stage's new state, which the agent keeps for peers and stores only where ``checkpoint`` names it, and
    from byte ``split`` on the optimizer's moments, which it keeps too. ``took``: where the command is part of a trace."""

    body: TaskReport
    split: Count = 0
    took: WorkTime | None = None


class RecordPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="record"):
    """The payload is what a round's steps, or its outer step, can be opened from by another worker, together with the state that
    the round began with, which the agent has. It keeps both while the round may be drawn. What follows says that it is done.

    ``state``: what the round begins with, of a worker that the agent has given none.
    """

    epoch: Count
    round: RoundIndex
    kind: Literal["state", "steps", "outer"]


class RecordRecall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="recall"):
    """An audit needs a round that the worker has let go, see ``RecordKept``: its steps, its outer step or only what it began
    with. The answer is a ``RecordReturned``."""

    epoch: Count
    round: RoundIndex
    kind: Literal["state", "steps", "outer"]


class SumVector(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="vector"):
    """The payload is a round's update for a secure sum, little-endian uint32: the agent masks it before it goes anywhere."""

    epoch: Count
    round: RoundIndex


WorkerMessage = PeerSend | WorkerReport | RecordPart | RecordRecall | SumVector


# --- agent to worker ----------------------------------------------------------------------------------------------------


class OwnData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What its owner lets a federated job read: a file or a folder, as ``path`` inside the sandbox.

    ``dataset``: how its files are read; its ``artifact`` names nothing.
    """

    path: Annotated[str, Meta(min_length=1, max_length=4096)]
    dataset: DatasetSpec


class Setup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="setup"):
    """First message. ``folder``: where the files lie inside the sandbox. ``stage`` None: a spare, which only replays.

    ``keys``: of the files of ``Assign.files``, by name; ``weights_key``: of the files of ``weights_name``, which may come later.
    A file without a key is not encrypted. The keys are nowhere else than in the memory of agent and worker.
    ``records``: send a ``RecordPart`` of each round. ``restored``: so many ``RestoredPart`` follow at once; there is no
    other work than to open what they are of. ``own``: of a federated job, the data that stays here.
    """

    spec: JobSpec
    plan: Plan
    stage: StageIndex | None
    replica: ReplicaIndex | None
    folder: Annotated[str, Meta(max_length=4096)]
    threads: Annotated[int, Meta(ge=1, le=1024)]
    device: Mark = "cpu"
    keys: dict[Annotated[str, Meta(max_length=255)], FileKey] = {}
    weights_key: FileKey | None = None
    records: bool = False
    restored: Count = 0
    own: OwnData | None = None


class RestoredPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="restored"):
    """The payload is a ``RecordPart``'s, or what its round began with: the stage's state (none: the job's
    initial one) and the optimizer's moments (none: zero), which come before."""

    epoch: Count
    round: RoundIndex
    kind: Literal["state", "moments", "steps", "outer"]


class RecordKept(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="kept"):
    """A record, and what its round began with, is on the disk whole. The worker may let go of both, and have them back
    (``RecordRecall``) until a record of the second round after it comes."""

    epoch: Count
    round: RoundIndex
    kind: Literal["steps", "outer"]


class RecordReturned(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="returned"):
    """Parts of these lengths follow, each in turn and in ``RestoredPart`` of at most ``RETURNED_AT_ONCE`` bytes, between which
    other messages may come. None: the disk has lost it, which may also turn out while it is read."""

    recall: RecordRecall
    sizes: dict[Literal["state", "moments", "steps", "outer"], Count]


class PeerDeliver(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="peer_deliver"):
    stage: StageIndex
    replica: ReplicaIndex
    name: TensorName


class WorkerCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="command"):
    """The payload, if any, is what the command names: the artifact ``ReplayStep.opening``, or a stage's state, which is
    ``BeginRound.state`` and ``BeginRound.kept`` alike, with ``BeginRound.moments`` from byte ``split`` on, or
    ``ApplyRound.total``."""

    body: TaskCommand
    split: Count = 0
    trace: TraceParent = ""


AgentMessage = Setup | PeerDeliver | WorkerCommand | RestoredPart | RecordKept | RecordReturned


class PeerHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Travels between agents in front of a payload; ``transport.peer.peer`` carries it opaquely."""

    job: JobId
    from_stage: StageIndex
    from_replica: ReplicaIndex
    to_stage: StageIndex
    to_replica: ReplicaIndex
    name: TensorName


async def read_head(reader: asyncio.StreamReader, kind: object) -> tuple[object, int]:
    """One message of ``kind``, and the length of its payload, which is to be read next.

    Raises:
        EOFError: the other side closed the socket between two frames or within one, or broke it while this side wrote.
        MessageError: lengths beyond the limits, or a header that is not a ``kind``.
    """
    header_length, payload_length = _LENGTHS.unpack(await read_exactly(reader, _LENGTHS.size))
    if header_length > MAX_MESSAGE or payload_length > MAX_PAYLOAD:
        raise MessageError(f"a frame of {header_length:,} + {payload_length:,} bytes is beyond the limits")
    return decode(await read_exactly(reader, header_length), kind), payload_length


async def read_exactly(reader: asyncio.StreamReader, length: int) -> bytes:
    """A payload, or its next ``length`` bytes; raises EOFError as ``read_head``. For a moment they are in memory twice."""
    try:
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError) as error:  # A write that failed reaches readers, too.
        raise EOFError("the socket closed") from error


async def read_buffer(reader: asyncio.StreamReader, length: int) -> bytearray:
    """A payload in memory of its size, with a little of it twice; raises EOFError as ``read_head``."""
    buffer = bytearray(length)
    for start in range(0, length, _SLICE):
        end = min(start + _SLICE, length)
        buffer[start:end] = await read_exactly(reader, end - start)
    return buffer


async def read_frame(reader: asyncio.StreamReader, kind: object) -> tuple[object, bytes]:
    """One message of ``kind`` and its payload; raises as ``read_head``."""
    message, length = await read_head(reader, kind)
    return message, await read_exactly(reader, length)


async def write_frame(
    writer: asyncio.StreamWriter, message: msgspec.Struct, payload: bytes | bytearray | memoryview = b""
) -> None:
    """Write one frame and wait until the socket's buffer has room again."""
    header = encode(message)
    writer.write(_LENGTHS.pack(len(header), len(payload)) + header)
    if payload:
        writer.write(payload)
    await writer.drain()


class MadeInParts(Protocol):
    """Bytes that are made a little at a time, as they leave."""

    def __len__(self) -> int:
        """How many they are."""

    def __iter__(self) -> Iterator[memoryview]:
        """All of them, in order."""


async def write_pieces(
    writer: asyncio.StreamWriter, message: msgspec.Struct, pieces: Sequence[bytes | memoryview | MadeInParts]
) -> None:
    """Write one frame whose payload is ``pieces``, a little at a time: what is written at once is held a second time.

    Nobody else may write meanwhile.
    """
    parts = (part for piece in pieces for part in ((piece,) if isinstance(piece, bytes | memoryview) else piece))
    slices = (memoryview(part)[at : at + _SLICE] for part in parts for at in range(0, len(part), _SLICE))

    async def given() -> AsyncIterator[memoryview]:
        for piece in slices:
            yield piece

    await write_stream(writer, message, sum(map(len, pieces)), given())


async def write_stream(
    writer: asyncio.StreamWriter, message: msgspec.Struct, length: int, pieces: AsyncIterable[bytes | memoryview]
) -> None:
    """The same of pieces that come one after the other, ``length`` bytes together; what they raise ends the frame for good."""
    header = encode(message)
    writer.write(_LENGTHS.pack(len(header), length) + header)
    async for piece in pieces:
        writer.write(piece)
        await writer.drain()
    await writer.drain()
