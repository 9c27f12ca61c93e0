"""What tests and benchmarks ask of a path between two hosts of the bed; ``probe`` does the work inside."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from tests.testbed.homes import Host

MODULE = "tests.testbed.probe"


async def probe(host: Host, *arguments: str) -> Any:
    """Run one role of ``probe`` on a host and return what it found.

    Raises:
        RuntimeError: it failed.
    """
    process = await host.python(MODULE, *arguments, stderr=asyncio.subprocess.PIPE)
    out, complaint = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"probe {' '.join(arguments)}: {complaint.decode()[-800:]}")
    return json.loads(out)


def served(host: Host, *addresses: str) -> AbstractAsyncContextManager[None]:
    """The other end of every probe, on these addresses of a host."""
    return _running(host, "serve", *addresses)


def captured(host: Host, file: Path) -> AbstractAsyncContextManager[None]:
    """Everything that crosses a host's device ``wan`` is written to a file."""
    return _running(host, "capture", str(file))


@contextlib.asynccontextmanager
async def _running(host: Host, *arguments: str) -> AsyncIterator[None]:
    process = await host.python(MODULE, *arguments, stderr=sys.stderr)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        if not await process.stdout.readline():
            raise RuntimeError(f"probe {' '.join(arguments)} ended with {await process.wait()}")
        yield
    finally:
        process.stdin.close()
        await process.wait()
