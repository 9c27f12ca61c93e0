"""A process that speaks ``protocol.serving`` and computes nothing: a token every so often for each request, with its moment.

    python _fake_model.py SECONDS

A token's text is ``NUMBER:NANOSECONDS``, by the clock that all processes of a machine share. It has the standard library alone,
so that it takes little of the processors that a door is measured on.
"""

import heapq
import json
import os
import select
import sys
import time

MOST = 256  # Tokens where nobody says how many.
BLOCK = 1 << 16


def main() -> None:
    """Serve until nobody asks any more."""
    gap = float(sys.argv[1])
    due: list[tuple[float, str, int]] = []
    wanted: dict[str, int] = {}
    rest, unsent = b"", told([{"type": "ready", "longest": 8192}])
    os.set_blocking(1, False)
    while True:
        wait = max(0.0, due[0][0] - time.monotonic()) if due and not unsent else None
        readable, _, _ = select.select([0], [1] if unsent else [], [], wait)
        if readable:
            block = os.read(0, BLOCK)
            if not block:
                return
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                command = json.loads(line)
                if command["type"] == "generate":
                    wanted[command["id"]] = command.get("tokens") or MOST
                    heapq.heappush(due, (time.monotonic() + gap, command["id"], 0))
                else:
                    wanted.pop(command["id"], None)
        # While nobody takes what was said, nothing more is said, but requests are taken all the same.
        unsent = sent(unsent or told(spoken(due, wanted, gap)))


def spoken(due: list[tuple[float, str, int]], wanted: dict[str, int], gap: float) -> list[dict[str, object]]:
    """What is to be said now: at most a token of each answer. One that is late is not made up for."""
    said: list[dict[str, object]] = []
    now = time.monotonic()
    while due and due[0][0] <= now:
        when, request, number = heapq.heappop(due)
        if request not in wanted:
            continue
        text = f" {number}:{time.monotonic_ns()}"
        said.append({"type": "text", "id": request, "text": text, "tokens": [number]})
        if number + 1 < wanted[request]:
            following = when + gap if when + gap > now else now + gap
            heapq.heappush(due, (following, request, number + 1))
        else:
            said.append({"type": "answered", "id": request, "reason": "length", "prompt": 1, "tokens": number + 1})
            del wanted[request]
    return said


def told(reports: list[dict[str, object]]) -> bytes:
    """All of them, a line each."""
    return "".join(f"{json.dumps(report)}\n" for report in reports).encode()


def sent(lines: bytes) -> bytes:
    """What is left of them once whoever listens has taken as much as there is room for."""
    try:
        return lines[os.write(1, lines) :] if lines else lines
    except BlockingIOError:
        return lines


if __name__ == "__main__":
    main()
