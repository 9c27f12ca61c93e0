"""The median round trip to a STUN server by a plain socket, in milliseconds: what a busy machine itself adds is in it, too.

``python -m tests.nettest.plain_ping ADDRESS PORT``; RFC 8489, sections 5 and 6.
"""

import os
import socket
import statistics
import struct
import sys
import time

COUNT = 20
PERIOD_S = 0.08  # A relay answers strangers 50 messages a second; the command asks for 33 of them.
BINDING, COOKIE = 0x0001, 0x2112A442


def main(address: str, port: int) -> float:
    """Ask one question after the other."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.settimeout(1.0)
        own.connect((address, port))
        for _ in range(COUNT):
            asked = time.monotonic()
            own.send(struct.pack("!HHI12s", BINDING, 0, COOKIE, os.urandom(12)))
            own.recv(2048)
            found.append(time.monotonic() - asked)
            time.sleep(PERIOD_S)
    return statistics.median(found) * 1000


if __name__ == "__main__":
    sys.stdout.write(f"{main(sys.argv[1], int(sys.argv[2]))}\n")
