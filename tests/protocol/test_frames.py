"""Frames on the Unix socket: lengths are checked before memory is taken."""

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from socket import SHUT_RDWR

import pytest

from protocol.codec import MessageError
from protocol.task import StopTask, TaskFailed
from protocol.worker import (
    MAX_PAYLOAD,
    AgentMessage,
    WorkerCommand,
    WorkerMessage,
    WorkerReport,
    read_buffer,
    read_frame,
    read_head,
    write_frame,
    write_pieces,
    write_stream,
)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def socket(tmp_path: Path) -> AsyncIterator[tuple[Streams, Streams]]:
    accepted: asyncio.Future[Streams] = asyncio.get_running_loop().create_future()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set_result((reader, writer))

    server = await asyncio.start_unix_server(accept, tmp_path / "s")
    client = await asyncio.open_unix_connection(tmp_path / "s")
    served = await accepted
    yield client, served
    for _, writer in (client, served):
        writer.close()
    server.close()


async def test_a_frame_with_a_payload_arrives_whole(socket: tuple[Streams, Streams]) -> None:
    (_, out), (into, _) = socket
    payload = bytes(range(256)) * 40_000
    message = WorkerReport(body=TaskFailed(reason="no"))
    writing = asyncio.create_task(write_frame(out, message, payload))
    assert await read_frame(into, WorkerMessage) == (message, payload)
    await writing


@pytest.mark.parametrize("sizes", [(), (0, 0), (1, 0), (3 << 20, 5), (1 << 20, (1 << 20) + 1)])
async def test_pieces_arrive_as_one_payload_and_little_of_it_is_held_twice(
    socket: tuple[Streams, Streams], sizes: tuple[int, ...]
) -> None:
    (_, out), (into, _) = socket
    pieces = [bytes(range(number, number + 100)) * (size // 100 + 1) for number, size in enumerate(sizes)]
    pieces = [piece[:size] for piece, size in zip(pieces, sizes, strict=True)]
    message = WorkerReport(body=TaskFailed(reason="no"))
    writing = asyncio.create_task(write_pieces(out, message, pieces))
    await asyncio.sleep(0.05)  # Nobody reads: what the socket does not take waits here.
    buffered = out.transport.get_write_buffer_size()
    assert await read_frame(into, WorkerMessage) == (message, b"".join(pieces))
    await writing
    assert buffered <= 1 << 20


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1, (9 << 20) - 1])
async def test_a_stream_of_pieces_is_read_into_one_buffer(socket: tuple[Streams, Streams], size: int) -> None:
    (_, out), (into, _) = socket
    payload = (bytes(range(251)) * (size // 251 + 1))[:size]

    async def pieces() -> AsyncIterator[bytes]:
        for begin in range(0, size, 100_001):
            yield payload[begin : begin + 100_001]

    message = WorkerReport(body=TaskFailed(reason="no"), split=size // 2)
    writing = asyncio.create_task(write_stream(out, message, size, pieces()))
    assert await read_head(into, WorkerMessage) == (message, size)
    assert await read_buffer(into, size) == payload
    await writing


async def test_a_socket_that_closes_within_a_buffer_is_an_end(socket: tuple[Streams, Streams]) -> None:
    (_, out), (into, _) = socket
    out.write(bytes((3 << 20) - 1))
    out.close()
    with pytest.raises(EOFError, match="the socket closed"):
        await read_buffer(into, 3 << 20)


async def test_frames_follow_each_other(socket: tuple[Streams, Streams]) -> None:
    (_, out), (into, _) = socket
    for number in range(20):
        await write_frame(out, WorkerCommand(body=StopTask(reason=str(number))), b"x" * number)
    for number in range(20):
        message, payload = await read_frame(into, AgentMessage)
        assert message == WorkerCommand(body=StopTask(reason=str(number)))
        assert payload == b"x" * number


@pytest.mark.parametrize("lengths", [(2**32 - 1, 0), (8, 2**63), (8, MAX_PAYLOAD + 1), ((1 << 20) + 1, 0)])
async def test_a_frame_beyond_the_limits_is_refused_at_once(
    socket: tuple[Streams, Streams], lengths: tuple[int, int]
) -> None:
    (_, out), (into, _) = socket
    out.write(struct.pack("<IQ", *lengths))
    with pytest.raises(MessageError, match="beyond the limits"):
        await read_frame(into, WorkerMessage)


async def test_a_socket_that_closes_within_a_frame_is_an_end(socket: tuple[Streams, Streams]) -> None:
    (_, out), (into, _) = socket
    out.write(struct.pack("<IQ", 100, 5) + b"short")
    out.close()
    with pytest.raises(EOFError):
        await read_frame(into, WorkerMessage)


async def test_a_socket_that_breaks_while_one_writes_is_an_end_for_who_reads(socket: tuple[Streams, Streams]) -> None:
    (reader, writer), (_, served) = socket
    served.get_extra_info("socket").shutdown(SHUT_RDWR)
    writer.write(b"into a closed socket")  # Fails here and now, before the loop has seen the other side's end.
    with pytest.raises(EOFError, match="the socket closed"):
        await read_frame(reader, WorkerMessage)
    assert isinstance(reader.exception(), BrokenPipeError)


async def test_the_other_side_s_messages_are_refused(socket: tuple[Streams, Streams]) -> None:
    (_, out), (into, _) = socket
    await write_frame(out, WorkerCommand(body=StopTask()))
    with pytest.raises(MessageError):
        await read_frame(into, WorkerMessage)
