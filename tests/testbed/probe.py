"""Measures a path from inside a namespace; every role prints one JSON object.

    python -m tests.testbed.probe serve ADDRESS...          answers on every address and both ports, until standard input ends
    python -m tests.testbed.probe nat ADDRESS OTHER         mapping and filtering of the NAT in between
    python -m tests.testbed.probe call ADDRESS OTHER        lets the server at ADDRESS write to OTHER
    python -m tests.testbed.probe capture FILE              writes whatever crosses the device "wan" until standard input ends
    python -m tests.testbed.probe rtt ADDRESS COUNT         round trips in milliseconds
    python -m tests.testbed.probe order ADDRESS COUNT       numbered packets, one a millisecond, in the order of their return
    python -m tests.testbed.probe udp ADDRESS RATE SECONDS  sends at RATE bit/s; the server tells what arrived, and how fast
    python -m tests.testbed.probe tcp ADDRESS SECONDS       sends as fast as TCP does, until everything is there
    python -m tests.testbed.probe arrived ADDRESS           what came in bulk since the last such question

The two ports and two addresses are those of RFC 5780: whether a NAT maps and filters by endpoint shows in who sees what.
"""

import contextlib
import json
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

PORTS = (7001, 7002)
BULK_PORT, COUNT_PORT = 7003, 7004
PAYLOAD = 1472  # 1,500 bytes of IPv4.
ANSWER_S = 0.4  # The NAT tests run on lines without delay.
# linux/udp.h and asm-generic/socket.h; Python 3.11 has no names for them.
UDP_SEGMENT, UDP_GRO = 103, 104
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
ETH_P_ALL = 3
BURST_S = 0.001


def say(result: Any) -> None:
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def udp_socket(address: str, port: int = 0) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    end = socket.socket(family, socket.SOCK_DGRAM)
    end.bind((address, port))
    return end


def anywhere(address: str) -> str:
    return "::" if ":" in address else "0.0.0.0"


class Server:
    """Echoes, tells addresses, knocks from elsewhere, and counts what comes in bulk."""

    def __init__(self, addresses: list[str]) -> None:
        self._selector = selectors.DefaultSelector()
        self._ends = [udp_socket(address, port) for address in addresses for port in PORTS]
        for end in self._ends:
            self._selector.register(end, selectors.EVENT_READ, self._asked)
        for address in addresses:
            bulk = udp_socket(address, BULK_PORT)
            bulk.setsockopt(socket.SOL_UDP, UDP_GRO, 1)
            bulk.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 32 << 20)
            self._selector.register(bulk, selectors.EVENT_READ, self._bulk)
            listener = socket.create_server((address, BULK_PORT), family=bulk.family)
            self._selector.register(listener, selectors.EVENT_READ, self._accept)
            counter = socket.create_server((address, COUNT_PORT), family=bulk.family)
            self._selector.register(counter, selectors.EVENT_READ, self._count)
        self._selector.register(sys.stdin, selectors.EVENT_READ, None)
        self._arrived: list[tuple[float, int, int]] = []

    def run(self) -> None:
        say({"ready": True})
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                key.data(key.fileobj)

    def _asked(self, end: socket.socket) -> None:
        data, sender = end.recvfrom(2048)
        if data == b"knock":
            for other in self._ends:
                if other is not end:
                    with contextlib.suppress(OSError):
                        other.sendto(json.dumps(["knock", *other.getsockname()[:2]]).encode(), sender)
        elif data == b"where":
            end.sendto(json.dumps(sender[:2]).encode(), sender)
        elif data.startswith(b"call "):
            end.sendto(b"", (data.removeprefix(b"call ").decode(), PORTS[0]))
        else:
            end.sendto(data, sender)

    def _bulk(self, end: socket.socket) -> None:
        data, control, _, _ = end.recvmsg(1 << 16, 64)
        sizes = [struct.unpack("i", value[:4])[0] for _, kind, value in control if kind == UDP_GRO]
        packets = -(-len(data) // sizes[0]) if sizes else 1
        self._arrived.append((time.monotonic(), len(data), packets))

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        self._selector.register(connection, selectors.EVENT_READ, self._stream)

    def _count(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(json.dumps(summary(self._arrived)).encode())
        self._arrived.clear()

    def _stream(self, connection: socket.socket) -> None:
        data = connection.recv(1 << 18)
        if data:
            self._arrived.append((time.monotonic(), len(data), 1))
        else:
            self._selector.unregister(connection)
            connection.close()


def summary(arrived: list[tuple[float, int, int]]) -> dict[str, float]:
    """Packets and payload bytes, and the payload's bit/s between a quarter and three quarters of the time."""
    if len(arrived) < 2:
        return {"packets": sum(packets for _, _, packets in arrived), "bytes": 0, "rate": 0.0}
    first, last = arrived[0][0], arrived[-1][0]
    begin, end = first + (last - first) / 4, last - (last - first) / 4
    inner = [(at, size) for at, size, _ in arrived if begin <= at <= end]
    rate = sum(size for _, size in inner[1:]) * 8 / max(1e-9, inner[-1][0] - inner[0][0])
    return {"packets": sum(p for _, _, p in arrived), "bytes": sum(size for _, size, _ in arrived), "rate": rate}


def ask(end: socket.socket, text: bytes, target: tuple[str, int]) -> Any:
    """One question and its answer; None where none comes."""
    end.sendto(text, target)
    end.settimeout(ANSWER_S)
    with contextlib.suppress(TimeoutError):
        return json.loads(end.recv(2048))
    return None


def nat(address: str, other: str) -> dict[str, Any]:
    """How the same socket is seen by three endpoints, and who gets in to a socket that has written to one of them only."""
    end = udp_socket(anywhere(address))
    targets = [(address, PORTS[0]), (address, PORTS[1]), (other, PORTS[0])]
    seen = [ask(end, b"where", target) for target in targets]
    fresh = udp_socket(anywhere(address))
    fresh.sendto(b"knock", targets[0])
    fresh.settimeout(ANSWER_S)
    let_in = []
    with contextlib.suppress(TimeoutError):
        while True:
            let_in.append(json.loads(fresh.recv(2048))[1:])
    return {"local": end.getsockname()[1], "seen": seen, "let_in": sorted(let_in)}


def rtt(address: str, count: int) -> dict[str, Any]:
    end = udp_socket(anywhere(address))
    times = []
    for number in range(count):
        begin = time.perf_counter()
        if ask(end, json.dumps(number).encode(), (address, PORTS[0])) == number:
            times.append((time.perf_counter() - begin) * 1e3)
    return {"rtt_ms": times}


def order(address: str, count: int) -> dict[str, Any]:
    end = udp_socket(anywhere(address))
    end.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)  # All are sent before the first is read.
    for number in range(count):
        end.sendto(json.dumps(number).encode(), (address, PORTS[0]))
        time.sleep(BURST_S)
    end.settimeout(ANSWER_S)
    came = []
    with contextlib.suppress(TimeoutError):
        while True:
            came.append(json.loads(end.recv(2048)))
    return {"came": came}


def udp(address: str, rate: float, seconds: float) -> dict[str, Any]:
    """Send 1,500-byte packets at a steady rate, as super-packets where that many are due."""
    end = udp_socket(anywhere(address))
    end.setsockopt(socket.SOL_UDP, UDP_SEGMENT, PAYLOAD)
    end.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 8 << 20)
    begin, sent = time.monotonic(), 0
    buffer = bytes(PAYLOAD * 40)
    while (elapsed := time.monotonic() - begin) < seconds:
        due = int(elapsed * rate / 8 / (PAYLOAD + 28)) - sent
        if due <= 0:
            time.sleep(BURST_S)
            continue
        count = min(40, due)
        end.sendto(buffer[: count * PAYLOAD], (address, BULK_PORT))
        sent += count
    return {"sent": sent}


def tcp(address: str, seconds: float) -> dict[str, Any]:
    connection = socket.create_connection((address, BULK_PORT))
    begin, sent = time.monotonic(), 0
    buffer = bytes(1 << 18)
    while time.monotonic() - begin < seconds:
        sent += connection.send(buffer)
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)  # The other end closes when it has everything.
    connection.close()
    return {"sent": sent}


def arrived(address: str) -> Any:
    """What came in bulk since the last such question; asked by TCP, for a lossy or a full line loses a datagram."""
    with socket.create_connection((address, COUNT_PORT)) as connection:
        return json.loads(connection.makefile().read())


def capture(path: str) -> None:
    """Write every packet that crosses the device, from the IP header on."""
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
    tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    tap.bind(("wan", ETH_P_ALL))
    say({"ready": True})
    with open(path, "wb") as out, selectors.DefaultSelector() as selector:
        selector.register(tap, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if tap in ready:
                out.write(tap.recv(1 << 17))
            elif ready:
                return


def main(role: str, *arguments: str) -> None:
    roles: dict[str, Callable[[], Any]] = {
        "nat": lambda: nat(*arguments),
        "rtt": lambda: rtt(arguments[0], int(arguments[1])),
        "order": lambda: order(arguments[0], int(arguments[1])),
        "udp": lambda: udp(arguments[0], float(arguments[1]), float(arguments[2])),
        "tcp": lambda: tcp(arguments[0], float(arguments[1])),
        "call": lambda: udp_socket(anywhere(arguments[0])).sendto(
            f"call {arguments[1]}".encode(), (arguments[0], PORTS[0])
        ),
        "arrived": lambda: arrived(*arguments),
    }
    if role == "serve":
        Server(list(arguments)).run()
    elif role == "capture":
        capture(*arguments)
    else:
        say(roles[role]())


if __name__ == "__main__":
    main(*sys.argv[1:])
