"""What tests and benchmarks ask of a path between two hosts of the bed; ``probe`` does the work inside."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
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


@contextlib.asynccontextmanager
async def served(host: Host, *addresses: str) -> AsyncIterator[None]:
    """The other end of every probe, on these addresses of a host."""
    process = await host.python(MODULE, "serve", *addresses, stderr=sys.stderr)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        if not await process.stdout.readline():
            raise RuntimeError(f"nothing serves at {', '.join(addresses)}")
        yield
    finally:
        process.stdin.close()
        await process.wait()
