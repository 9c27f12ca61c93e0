"""A node in a process of its own, for tests that kill, stop and restart it.

Envelopes and commands go over standard input and output, one JSON object a line:

    in   {"signal": [sender, hex]}      an envelope for this node
         {"send": [lane, header, size]} send a message of zeros to the peer; answered with {"sent": header} or {"failed": why}
         {"pair": true}                 answered with {"pair": kinds of candidates in use}
    out  {"signal": hex}                an envelope for the peer
         {"ready": address}, {"got": [lane, header, size]}
"""

import asyncio
import json
import sys
from typing import Any

from common.errors import PeerUnreachableError
from protocol.identity import NodeKey
from transport.ice.ice import IceServer
from transport.messages.lanes import Lane
from transport.messages.limits import PeerLimits
from transport.peer.peer import PeerNet


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


async def main(seed: str, peer: str, options: dict[str, Any]) -> None:
    async def send_signal(recipient: str, envelope: bytes) -> None:
        assert recipient == peer
        say(signal=envelope.hex())

    async def on_message(_: str, lane: Lane, header: bytes, payload: memoryview) -> None:
        say(got=[lane, header.decode(), payload.nbytes])

    async def send(lane: int, header: str, size: int) -> None:
        try:
            await net.send(peer, Lane(lane), header.encode(), bytes(size))
        except PeerUnreachableError as error:
            say(failed=str(error))
        else:
            say(sent=header)

    servers = [IceServer(*server) for server in options["servers"]]
    limits = PeerLimits(**options["limits"])
    key = NodeKey(bytes.fromhex(seed))
    net = PeerNet(key, send_signal, on_message, ice_servers=servers, loopback=not servers, limits=limits)
    await net.allow({peer})
    say(ready=net.address)
    reader = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with asyncio.TaskGroup() as group:
        while line := await reader.readline():
            message = json.loads(line)
            if "signal" in message:
                sender, envelope = message["signal"]
                await net.on_signal(sender, bytes.fromhex(envelope))
            elif "send" in message:
                group.create_task(send(*message["send"]))
            else:
                say(pair=net.stats()[peer].pair)
    await net.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
