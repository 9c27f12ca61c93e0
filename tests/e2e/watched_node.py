"""``cottage node`` whose every byte to other nodes is written to ``peers.heard`` in its folder, before DTLS seals it.

What its worker tells it goes to the file of ``--worker-argument=--watch=FILE``.
"""

import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from cottage.demo.lying_node import main
from desktop.agent.sandbox.process import ProcessSandbox
from transport.peer.peer import PeerNet

PROCESS = ("-m", "tests.e2e.watched_worker")
HEARD = "peers.heard"


def watch(file: Path) -> None:
    """Remember what is sent from now on."""
    heard = file.open("ab", buffering=0)
    send, stream = PeerNet.send, PeerNet.send_stream

    async def sent(self: PeerNet, peer: str, lane: Any, header: bytes, payload: Any = b"", **more: Any) -> None:
        heard.write(header + bytes(payload))
        await send(self, peer, lane, header, payload, **more)

    async def streamed(
        self: PeerNet, peer: str, lane: Any, header: bytes, total: int, chunks: AsyncIterator[Any], **more: Any
    ) -> None:
        async def seen() -> AsyncIterator[Any]:
            async for chunk in chunks:
                heard.write(bytes(chunk))
                yield chunk

        heard.write(header)
        await stream(self, peer, lane, header, total, seen(), **more)

    PeerNet.send, PeerNet.send_stream = sent, streamed  # type: ignore[method-assign]


def hurry() -> None:
    """Leave the benchmark out, which nothing here depends on; the check of the data is done."""
    measure = ProcessSandbox.measure

    async def measured(
        self: ProcessSandbox, arguments: Sequence[str], timeout: float, data: Path | None = None
    ) -> bytes:
        if arguments[0] == "bench":
            return b'{"flops": 1e9, "env_class": "watched|threads-1", "device": "cpu", "memory_mb": 4000, "threads": 1}'
        return await measure(self, arguments, timeout, data)

    ProcessSandbox.measure = measured  # type: ignore[method-assign]


if __name__ == "__main__":
    hurry()
    watch(Path(sys.argv[sys.argv.index("--home") + 1]) / HEARD)
    sys.exit(main(PROCESS))
