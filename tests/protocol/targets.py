"""Every parser of strangers' bytes as one function, for ``benchmarks.hostile.fuzz``: what it takes must hold, else its one error.

Seeds are made by the encoders, a few of each kind: a rule instead of files, so that they never fall behind the formats.
"""

import contextlib
import io
import json
import random
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from aioice.stun import Class, Method

from coordinator.client.archive import MAX_RATIO, unpack
from coordinator.client.errors import ArchiveError
from coordinator.errors import CottageError
from coordinator.services.artifacts.datasets import check_form, check_tokenizer, read_safetensors
from desktop.agent.errors import UpdateError
from desktop.agent.updates import manifest
from protocol import codec
from protocol.identity import NodeKey
from protocol.job.job import DatasetFormat, JobSpec, ModelSpec
from protocol.models.config_keys import OWN
from protocol.models.config_values import ModelConfigError
from protocol.models.model import PRESETS, resolve
from protocol.node import CoordinatorMessage, NodeMessage
from protocol.worker import AgentMessage, WorkerMessage
from tests.protocol.storm import (
    SDP,
    WireStorm,
    binding,
    binding_holds,
    comes_back,
    description_holds,
    frame_holds,
    frames,
)
from trainer.codecs import envelope
from trainer.codecs.framing import frame, framed_size, unframe
from trainer.codecs.registry import CODECS
from trainer.errors import CodecError
from transport.messages import framing
from transport.peer.signalling import SignalBody, SignalEnvelope
from transport.relay import message as relay
from transport.relay.errors import MalformedMessageError
from transport.sctp import packet as sctp

SHAPE = (3, 256)  # Of the tensors that codecs decode: a whole block of each row.
EACH = 12  # Seeds of a kind of message.
_CODECS = list(CODECS.values())
_FORMS: tuple[DatasetFormat, ...] = ("text", "jsonl", "parquet", "ids", "npy", "uint16", "uint32")


class Target(NamedTuple):
    """``parse`` says whether the bytes were taken, and raises only where the parser is at fault; most ``seeds`` are taken."""

    parse: Callable[[bytes], bool]
    seeds: Callable[[], Sequence[bytes]]


def _message(kind: Any) -> Target:
    def parse(data: bytes) -> bool:
        return comes_back(data, lambda part: codec.decode(part, kind), codec.encode)

    return Target(parse, lambda: [WireStorm(seed).drawn(kind) for seed in range(EACH)])


def _document(data: bytes) -> bool:
    """A job, and the model that it describes."""
    with contextlib.suppress(codec.MessageError, ModelConfigError):
        spec: JobSpec = codec.decode_json(data, JobSpec)
        assert codec.decode_json(codec.encode_json(spec), JobSpec) == spec
        config = resolve(spec.model, 512)
        again = resolve(ModelSpec(config=config), 512)
        assert {key: again[key] for key in config if not key.startswith(OWN)} == {
            key: value for key, value in config.items() if not key.startswith(OWN)
        }
        return True
    return False


def _documents() -> list[bytes]:
    configs = [{"config": resolve(ModelSpec(preset=name), 512)} for name in PRESETS]
    jobs = [{"name": "a", "model": one, "dataset": {"artifact": "a" * 64}, "budget": 1} for one in configs]
    return [*(json.dumps(job).encode() for job in jobs), *(WireStorm(seed).drawn(JobSpec) for seed in range(EACH))]


def _relayed(data: bytes) -> bool:
    """A request at a relay, down to every attribute that it reads."""
    with contextlib.suppress(MalformedMessageError):
        found = relay.parse(data)
        found.peers(), found.not_understood(), found.signed_with(b"key")
        for attribute in (
            relay.Attribute.LIFETIME,
            relay.Attribute.CHANNEL_NUMBER,
            relay.Attribute.REQUESTED_TRANSPORT,
        ):
            found.number(attribute)
        for attribute in (relay.Attribute.USERNAME, relay.Attribute.REALM, relay.Attribute.NONCE):
            found.text(attribute)
        return True
    return False


def _relays() -> list[bytes]:
    told, asked = relay.Attribute, b"t" * 12
    peer = (told.XOR_PEER_ADDRESS, relay.xor_address(("10.0.0.1", 9), asked))
    lifetime, user = (told.LIFETIME, relay.uint32(600)), (told.USERNAME, b"1:a")
    wanted: list[tuple[Method, list[tuple[relay.Attribute, bytes]]]] = [
        (Method.BINDING, []),
        (Method.ALLOCATE, [(told.REQUESTED_TRANSPORT, relay.uint32(17 << 24)), lifetime, user]),
        (Method.CREATE_PERMISSION, [peer, peer, user, (told.NONCE, b"n"), (told.REALM, b"r")]),
        (Method.CHANNEL_BIND, [(told.CHANNEL_NUMBER, relay.uint32(0x4000 << 16)), peer]),
    ]
    return [
        relay.encode(one, Class.REQUEST, asked, attributes, key) for one, attributes in wanted for key in (None, b"key")
    ]


def _packet(data: bytes) -> bool:
    """What a link reads of an SCTP packet, its checksum aside."""
    with contextlib.suppress(sctp.MalformedPacketError):
        taken = len(data) >= sctp.COMMON_HEADER + sctp.CHUNK_HEADER
        for kind, _, start, end in sctp.split(data) if taken else ():
            assert sctp.COMMON_HEADER <= start <= end <= len(data)
            sctp.parameters_hold(data, kind, start, end)
            if kind == sctp.DATA:
                sctp.read_data(data, 0, start, end)
            elif kind == sctp.SACK:
                sctp.read_sack(data, start, end)
            elif kind == sctp.FORWARD_TSN:
                sctp.read_forward(data, start, end)
            elif kind == sctp.ARRIVAL:
                sctp.read_arrival(data, start, end)
        lone = sctp.lone_data(data, int.from_bytes(data[4:8], "big"))
        assert lone is None or (taken and 0 < len(lone[-1]) < len(data))
        return taken
    return False


def _packets() -> list[bytes]:
    framer = sctp.Framer(5000, 5000, 7)
    chunks = (
        sctp.sack_chunk(sctp.Sack(9, 1 << 20, ((2, 3), (5, 9)), (4,))),
        sctp.forward_chunk(9, [(1, 2), (3, 4)]),
        sctp.arrival_chunk(9, 1.5),
        sctp.abort_chunk("no"),
        sctp.chunk(sctp.HEARTBEAT, 0, struct.pack("!HH4s", 1, 8, b"beat")),
    )
    return [framer.data(1, 2, 3, 51, 3, b"payload"), framer.packet(*chunks), *map(framer.packet, chunks)]


def _tensor(data: bytes) -> bool:
    """A payload of a peer, packed or not; the first byte chooses the codec, as the receiver's job would."""
    with contextlib.suppress(CodecError):
        one = _CODECS[(data[0] if data else 0) % len(_CODECS)]
        values = unframe(envelope.unwrap(data[1:], framed_size(SHAPE, one)), SHAPE, one)
        assert values.shape == SHAPE
        assert bool(torch.isfinite(values).all())
        return True
    return False


def _tensors() -> list[bytes]:
    values = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))
    framed = [(place, frame(values * 0.01, one)) for place, one in enumerate(_CODECS)]
    return [bytes([place]) + part for place, plain in framed for part in (plain, envelope.wrap(plain))]


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="cottage-fuzz-"))


def _file(check: Callable[[Path], Any], data: bytes) -> bool:
    path = _folder() / "file"
    path.write_bytes(data)
    with contextlib.suppress(CottageError):
        check(path)
        return True
    return False


def _dataset(data: bytes) -> bool:
    """An upload said to be of the form that the first byte chooses."""
    form = _FORMS[(data[0] if data else 0) % len(_FORMS)]
    return _file(lambda path: check_form(path, form), data[1:])


def _archive(data: bytes) -> bool:
    """A model's archive: all or nothing, and nothing beside its folder."""
    path, target = _folder() / "model.zip", _folder() / "model"
    path.write_bytes(data)
    try:
        unpack(path, target)
    except ArchiveError:
        assert not target.exists()
        return False
    finally:
        path.unlink()
    size = sum(one.stat().st_size for one in target.rglob("*") if one.is_file())
    shutil.rmtree(target)
    assert size <= MAX_RATIO * max(len(data), 1024)
    assert {one.name for one in _folder().iterdir()} <= {"file"}
    return True


def _archives() -> list[bytes]:
    chance, made = random.Random(1), []
    for kind in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        for names in (("a",), ("a/b", "a/c", "d"), ("../up",), ("folder/",)):
            out = io.BytesIO()
            with zipfile.ZipFile(out, "w", kind) as archive:
                for name in names:
                    archive.writestr(name, b"" if name.endswith("/") else chance.randbytes(40) + bytes(40))
            made.append(out.getvalue())
    return made


def _weights() -> list[bytes]:
    entries: list[dict[str, Any]] = [
        {"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}},
        {"__metadata__": {"format": "pt"}, "b": {"dtype": "BF16", "shape": [], "data_offsets": [0, 2]}},
        {
            "a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
            "b": {"dtype": "I8", "shape": [1], "data_offsets": [3, 4]},
        },
    ]
    heads = [json.dumps(entry).encode() for entry in entries]
    return [struct.pack("<Q", len(head)) + head + bytes(size) for head, size in zip(heads, (16, 2, 4), strict=True)]


_KEY = NodeKey(bytes(32))


def _update(data: bytes) -> bool:
    """A manifest of new versions, whose signature must be the maker's."""
    with contextlib.suppress(UpdateError):
        assert manifest.MANIFEST.read(data, _KEY.address) in _manifests(), "signed by nobody"
        return True
    return False


@cache
def _manifests() -> tuple[manifest.UpdateManifest, ...]:
    package = manifest.Package("linux-x86_64", "cottage.tar.gz", "0" * 64, 5, 9)
    return tuple(manifest.UpdateManifest(number, "1.2.3", "1.0.0", 2**31, (package,) * number) for number in (1, 3))


TARGETS: dict[str, Target] = {
    "node": _message(NodeMessage),
    "coordinator": _message(CoordinatorMessage),
    "worker": _message(WorkerMessage),
    "agent": _message(AgentMessage),
    "envelope": _message(SignalEnvelope),
    "signal": _message(SignalBody),
    "job": Target(_document, _documents),
    "frame": Target(frame_holds, lambda: [framing.encode(one) for one in frames(random.Random(1))]),
    "stun": Target(binding_holds, lambda: [binding(family) for family in (1, 2)]),
    "description": Target(description_holds, lambda: [SDP.encode()]),
    "relay": Target(_relayed, _relays),
    "packet": Target(_packet, _packets),
    "tensor": Target(_tensor, _tensors),
    "dataset": Target(
        _dataset,
        lambda: [
            bytes([place]) + one for place in range(len(_FORMS)) for one in (b"to be\n", b"[1, 2]\n", b"PAR1" * 4)
        ],
    ),
    "tokenizer": Target(
        partial(_file, check_tokenizer), lambda: [b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}']
    ),
    "weights": Target(partial(_file, read_safetensors), _weights),
    "archive": Target(_archive, _archives),
    "update": Target(_update, lambda: [manifest.MANIFEST.sign(one, _KEY) for one in _manifests()]),
}
