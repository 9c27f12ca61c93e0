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
    rest = b""
    tell([{"type": "ready", "longest": 8192}])
    while True:
        wait = max(0.0, due[0][0] - time.monotonic()) if due else None
        if select.select([0], [], [], wait)[0]:
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
        tell(spoken(due, wanted, gap))


def spoken(due: list[tuple[float, str, int]], wanted: dict[str, int], gap: float) -> list[dict[str, object]]:
    """What is to be said by now."""
    said: list[dict[str, object]] = []
    while due and due[0][0] <= time.monotonic():
        when, request, number = heapq.heappop(due)
        if request not in wanted:
            continue
        text = f" {number}:{time.monotonic_ns()}"
        said.append({"type": "text", "id": request, "text": text, "tokens": [number]})
        if number + 1 < wanted[request]:
            heapq.heappush(due, (when + gap, request, number + 1))
        else:
            said.append({"type": "answered", "id": request, "reason": "length", "prompt": 1, "tokens": number + 1})
            del wanted[request]
    return said


def tell(reports: list[dict[str, object]]) -> None:
    """Write all of them, a line each."""
    left = "".join(f"{json.dumps(report)}\n" for report in reports).encode()
    while left:
        left = left[os.write(1, left) :]


if __name__ == "__main__":
    main()
