"""An end of a connection in a process of its own: ``python -m tests.transport.sctp.interop.program KIND``.

Each line of standard input is ``[number, method, arguments]``, each line of output ``[number, result]``.
"""

import asyncio
import json
import sys
from typing import Any

from tests.transport.sctp.interop.ends import RtcEnd


async def main(kind: str) -> None:
    end = RtcEnd(kind)
    reader = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def answer(number: int, method: str, arguments: list[Any]) -> None:
        result = await getattr(end, method)(*arguments)
        sys.stdout.write(json.dumps([number, result]) + "\n")
        sys.stdout.flush()

    async with asyncio.TaskGroup() as group:
        while line := await reader.readline():
            group.create_task(answer(*json.loads(line)))
    await end.end()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
