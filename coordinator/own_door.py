"""Whether others reach this coordinator where its settings say that it is: it asks itself there."""

import asyncio
import logging
import secrets

from aiohttp import ClientError, ClientTimeout, web

from common.http_sessions import open_session, why
from common.urls import parse_url
from coordinator.config import Config
from coordinator.settings import SettingError
from coordinator.web.connections import listen

TRIED_S = 15.0  # A name that a cluster gives a machine is known some seconds after that has started.
ASKED_S, BETWEEN_S = 2.0, 0.5

LOG = logging.getLogger(__name__)


async def check_door(config: Config, stopping: asyncio.Event) -> None:
    """Before any cell is taken: answer at a free port, as each cell does, and ask there as others would.

    Raises:
        SettingError: nobody answers, or somebody else does.
    """
    if config.reachable_at is None:
        return
    word = secrets.token_hex(16)

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=word)

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await listen(runner, config.host, 0)
        door = str(parse_url(config.reachable_at).with_port(int(runner.addresses[0][1])))
        began, said = asyncio.get_running_loop().time(), ""
        while not stopping.is_set() and (said := await _asked(door, word)):
            if asyncio.get_running_loop().time() - began > TRIED_S:
                raise SettingError(
                    f"--reachable-at {config.reachable_at}: this coordinator does not reach itself there ({said}), and so "
                    "others would not: name its machine as others see it, with http://, let them reach any port of it, "
                    f"and have it listen there (--host is {config.host})"
                )
            await asyncio.sleep(BETWEEN_S)
    finally:
        await runner.cleanup()


async def warn_of_door(url: str) -> None:
    """Say in the log where the one at work is not reached at ``url``: those that stand by would lead nothing to it."""
    if said := await _asked(f"{url.rstrip('/')}/healthz", ""):
        LOG.warning(
            "--reachable-at %s: this coordinator does not reach itself there (%s): others that stand by may not either",
            url,
            said,
        )


async def _asked(url: str, word: str) -> str:
    """What is said instead of ``word``; empty: just that."""
    try:
        async with (
            open_session(timeout=ClientTimeout(total=ASKED_S), proxies=False) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            said = (await response.content.read(len(word))).decode(errors="replace")
            return "" if said == word and response.status == 200 else f"somebody else answers, with {response.status}"
    except (ClientError, OSError, TimeoutError) as error:
        return why(error)
