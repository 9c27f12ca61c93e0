"""The tracker's process: a run, then rows, as JSON lines; each is answered once the tracker has it."""

import os
import sys
from typing import BinaryIO

import msgspec

from coordinator.client.tracking.runs import open_run
from coordinator.client.tracking.target import RunBegin, RunEnd, RunRow, TrackerAnswer


def main() -> int:
    """Answer lines until one is the end, or none comes any more."""
    # Libraries print what they like; answers go where nothing else does.
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        try:
            run = open_run(msgspec.json.decode(sys.stdin.buffer.readline(), type=RunBegin))
            _say(answers, TrackerAnswer(run.known))
            for line in sys.stdin.buffer:
                told = msgspec.json.decode(line, type=RunRow | RunEnd)
                if isinstance(told, RunEnd):
                    run.end(told.state)
                    _say(answers, TrackerAnswer())
                    return 0
                run.add(told)
                _say(answers, TrackerAnswer(told.round))
            run.end("running")
        except Exception as error:  # noqa: BLE001 - two libraries, and whatever theirs raise: the reason is told.
            _say(answers, TrackerAnswer(problem=f"{str(error).strip() or type(error).__name__}"[:2000]))
            os._exit(1)  # The library's own thread may wait for its server as it ends.
    return 0


def _say(answers: BinaryIO, answer: TrackerAnswer) -> None:
    answers.write(msgspec.json.encode(answer) + b"\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
