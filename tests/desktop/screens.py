"""X displays without a screen."""

import contextlib
import os
import subprocess
from collections.abc import Iterator


@contextlib.contextmanager
def screen(*programs: str) -> Iterator[str]:
    """An X display on which ``programs`` run; its name."""
    reader, writer = os.pipe()
    with contextlib.ExitStack() as stack:
        server = subprocess.Popen(
            ("Xvfb", "-displayfd", str(writer), "-screen", "0", "1024x768x24", "-nolisten", "tcp"),
            pass_fds=(writer,),
            stderr=subprocess.DEVNULL,
        )
        stack.callback(server.wait)
        stack.callback(server.kill)
        os.close(writer)
        with open(reader) as answer:
            display = f":{answer.readline().strip()}"
        for name in programs:
            program = subprocess.Popen(
                (name,), env=os.environ | {"DISPLAY": display}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.callback(program.wait)
            stack.callback(program.kill)
        yield display
