"""A real HTTP proxy on loopback: it tunnels with CONNECT, passes plain HTTP on, and keeps a list of what it was asked for."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from common.urls import parse_url, split

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@dataclass
class Proxy:
    """Every name leads to loopback: a client that resolves names by itself gets nowhere.

    Attributes:
        asked: method and target of each request.
        login: ``name:password`` that it wants; empty: nobody is asked.
        answer: said instead of connecting, such as ``503 Service Unavailable``.
        passes_upgrades: False: it takes ``Upgrade`` out of plain requests, as many do.
    """

    asked: list[tuple[str, str]] = field(default_factory=list)
    login: str = ""
    answer: str = ""
    passes_upgrades: bool = True
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://{self.login}{'@' if self.login else ''}127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            try:
                await self._pass(reader, writer)
            finally:
                writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, version = first.split(" ")
        self.asked.append((method, target))
        wanted = "Basic " + base64.b64encode(self.login.encode()).decode()
        if self.login and f"proxy-authorization: {wanted}".lower() not in [line.lower() for line in lines]:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\n")
            return
        if self.answer:
            writer.write(f"HTTP/1.1 {self.answer}\r\nContent-Length: 0\r\n\r\n".encode())
            return
        if method == "CONNECT":
            host, port = split(target)
            there, away = await asyncio.open_connection("::1" if ":" in host else "127.0.0.1", port)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            url = parse_url(target)
            host = url.raw_host or ""
            there, away = await asyncio.open_connection("::1" if ":" in host else "127.0.0.1", url.port)
            dropped = ("proxy-", "connection:") if self.passes_upgrades else ("proxy-", "connection:", "upgrade:")
            kept = [line for line in lines if line and not line.lower().startswith(dropped)]
            last = (
                "Connection: upgrade"
                if self.passes_upgrades and "upgrade" in head.decode().lower()
                else "Connection: close"
            )
            away.write("\r\n".join([f"{method} {url.raw_path_qs} {version}", *kept, last, "", ""]).encode("latin-1"))
        try:
            await asyncio.gather(_pump(reader, away), _pump(there, writer))
        finally:
            away.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        sink.write(data)
        await sink.drain()
    sink.close()


@contextlib.asynccontextmanager
async def proxying(**options: object) -> AsyncIterator[Proxy]:
    """A proxy that serves until the end of the block."""
    proxy = Proxy(**options)  # type: ignore[arg-type]
    server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()


def clean(environment: dict[str, str]) -> dict[str, str]:
    """An environment without proxies."""
    return {name: value for name, value in environment.items() if name.upper() not in VARIABLES}
