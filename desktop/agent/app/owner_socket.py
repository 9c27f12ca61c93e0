"""Where the agent answers its owner: a Unix socket that only its owner can open, on Windows a named pipe of that user alone."""

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import aiohttp
from aiohttp import web

from desktop import pipes
from desktop.agent.base.unixsocket import listen, short_name

if sys.platform == "win32":
    from asyncio import windows_events, windows_utils

    from aiohttp.client_proto import ResponseHandler

    from desktop.agent.errors import NoAgentError

    _events: Any = windows_events  # The stubs know neither what is overridden nor that aiohttp answers on pipes.

    class _OwnersPipe(windows_events.PipeServer):
        """asyncio's own, but for the list of those who may use it: that is everybody by default."""

        _address: str
        _free_instances: set[windows_utils.PipeHandle]

        def _server_pipe_handle(self, first: bool) -> windows_utils.PipeHandle | None:
            if self.closed():
                return None
            pipe = windows_utils.PipeHandle(pipes.create(self._address, first))
            self._free_instances.add(pipe)
            return pipe

    class _PipeSite(web.BaseSite):
        def __init__(self, runner: web.AppRunner, path: Path) -> None:
            super().__init__(runner)
            self._name = pipes.name_of(path)

        @property
        def name(self) -> str:
            return self._name

        async def start(self) -> None:
            await super().start()
            loop: Any = asyncio.get_running_loop()
            usual = _events.PipeServer
            _events.PipeServer = _OwnersPipe  # asyncio has no other way to say who may use a pipe.
            server: Any = None
            try:
                (server,) = await loop.start_serving_pipe(self._runner.server, self._name)
            finally:
                _events.PipeServer = usual
            if not isinstance(server, _OwnersPipe):
                server.close()
                raise OSError(f"this Python would let others use the pipe {self._name}")
            self._server = cast(asyncio.AbstractServer, server)

    class _OwnersConnector(aiohttp.NamedPipeConnector):
        """Speaks to the owner's own pipe only."""

        async def _create_connection(self, *given: Any) -> ResponseHandler:
            made = await super()._create_connection(*given)
            assert made.transport is not None
            if not pipes.is_mine(made.transport.get_extra_info("pipe").fileno()):
                made.transport.abort()
                raise NoAgentError("another user's program answers in the place of the agent")
            return made

    def site(runner: web.AppRunner, path: Path) -> web.BaseSite:
        """What answers for ``runner`` at ``path``, once started; that raises OSError where it cannot."""
        return _PipeSite(runner, path)

    @contextlib.contextmanager
    def connector(path: Path) -> Iterator[aiohttp.BaseConnector]:
        """A way to whoever answers at ``path``, inside the context."""
        yield _OwnersConnector(pipes.name_of(path))

else:

    def site(runner: web.AppRunner, path: Path) -> web.BaseSite:
        """What answers for ``runner`` at ``path``, once started; raises OSError where the path cannot be used."""
        return web.SockSite(runner, listen(path, 0o600))

    @contextlib.contextmanager
    def connector(path: Path) -> Iterator[aiohttp.BaseConnector]:
        """A way to whoever answers at ``path``, inside the context; raises OSError where there is no such folder."""
        with short_name(path) as name:
            yield aiohttp.UnixConnector(path=name)
