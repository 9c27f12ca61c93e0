"""The line to one coordinator: requests, answers as types, errors as exceptions, and trying again where that is safe."""

import asyncio
import contextlib
import random
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import aiohttp
import msgspec

from common.clock import backoff
from common.errors import UrlError
from common.http_sessions import ANSWER_S, CONNECT_S, NO_ANSWER, ProxyError, open_session, through, told_of_waiting, why
from common.urls import parse_url
from coordinator.client.errors import ClientError, CoordinatorAddressError, ProblemError, SilentError, UnreachableError
from protocol import codec
from protocol.rest import api

MAX_ANSWER_BYTES = 64 << 20
MAX_EVENT_BYTES = 4 << 20
# The coordinator may ask its ledger meanwhile, and waits as long for that as we for a question.
CHANGE_S = 2 * ANSWER_S
WORK_S = 1200.0  # To submit a job: the coordinator trains its tokenizer and lays out its data before it answers.
LEAST_RATE = 8 << 10  # Bytes a second: what is slower drips to hold us.
SILENCE_S = 60.0  # A stream says that it is alive every few seconds; a file comes without long pauses.
ATTEMPTS = 12  # With the growing pauses between them, two minutes: a coordinator restarts in a few seconds.
MAX_PAUSE_S = 60.0  # However long the coordinator asks to wait.
_TRANSIENT = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, asyncio.TimeoutError, ConnectionError)
_LATER: Final = frozenset({429, 502, 503, 504})
STRANGER: Final = "http"
"""The code of a refusal that is not a coordinator's own."""
_ROOT = "/api/v1/"
_NAME = re.compile(r"[0-9A-Za-z_-]{1,64}")  # Ids, and addresses of nodes.

T = TypeVar("T")
Sleep = Callable[[float], Any]


class HttpLine:
    """Opens its connections with the first request."""

    def __init__(self, base_url: str, token: str | None, attempts: int, sleep: Sleep) -> None:
        try:
            self.base = str(parse_url(base_url).with_query(None)).rstrip("/")
        except UrlError as error:
            raise CoordinatorAddressError(str(error)) from error
        self._token = token
        self._attempts = attempts
        self._sleep = sleep
        self._opened: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    async def get(self, path: str, kind: type[T], attempts: int | None = None) -> T:
        """One resource. ``attempts``: more than of a short call, for what goes on for long."""

        async def once() -> T:
            async with self.request("GET", path) as response:
                found: T = decode(await read(response, MAX_ANSWER_BYTES), kind, self.base)
                return found

        return await self.again(once, attempts)

    async def change(
        self,
        method: str,
        path: str,
        kind: type[T] | None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        seconds: float = CHANGE_S,
    ) -> T:
        """Ask for a change, once: if the answer is lost, the same key is sent again, and the coordinator answers as before.

        Args:
            seconds: ``WORK_S`` for what the coordinator has much to do for before it answers.
        """
        data = None if body is None else msgspec.json.encode(body)
        sent = {**(headers or {}), "Idempotency-Key": secrets.token_hex(16)}
        if body is not None:
            sent["Content-Type"] = "application/json"

        async def once() -> T:
            async with self.request(method, path, data=data, headers=sent, timeout=seconds) as response:
                answer = await read(response, MAX_ANSWER_BYTES)
                found: Any = None if kind is None else decode(answer, kind, self.base)
                return found  # type: ignore[no-any-return]

        return await self.again(once)

    async def pages(self, path: str, kind: type[T]) -> AsyncIterator[T]:
        """Every item of a list, page by page as they are needed."""
        whole: Any = tuple[kind, ...]  # type: ignore[valid-type]
        there = path
        while there:
            here = there

            async def once(here: str = here) -> tuple[tuple[T, ...], str]:
                async with self.request("GET", here) as response:
                    items = decode(await read(response, MAX_ANSWER_BYTES), whole, self.base)
                    following = response.links.get("next")
                return items, "" if following is None else str(following["url"]).partition(_ROOT)[2]

            items, there = await self.again(once)
            for item in items:
                yield item

    async def list(self, path: str, kind: type[T], limit: int | None = None) -> tuple[T, ...]:
        """All of a list, or its first ``limit`` items."""
        found: list[T] = []
        async with contextlib.aclosing(self.pages(path, kind)) as items:  # type: ignore[type-var]
            async for item in items:
                if limit is not None and len(found) >= limit:
                    break
                found.append(item)
        return tuple(found)

    async def again(self, once: Callable[[], Awaitable[T]], attempts: int | None = None) -> T:
        """Do something that may be repeated until it works, is refused, or the attempts (None: of a call) are used up."""
        failures = 0
        while True:
            try:
                return await once()
            except (UnreachableError, ProblemError) as error:
                working = isinstance(error, ProblemError) and error.code == "in_progress"
                silent = isinstance(error, SilentError) and attempts is None  # Somebody has waited long enough for it.
                if silent or not (working or is_passing(error)):
                    raise
                failures += 0 if working else 1  # What the coordinator still works on is waited for.
                if failures >= (attempts or self._attempts):
                    raise
                await self.pause(max(1, failures), error)

    async def pause(self, failures: int, error: ClientError | None = None) -> None:
        """Wait before another attempt, as long as the coordinator asks for, or longer each time."""
        asked = error.retry_after if isinstance(error, ProblemError) else None
        await self._sleep(backoff(failures, random.random) if asked is None else min(asked, MAX_PAUSE_S))

    async def wait(self, seconds: float) -> None:
        """Let time pass, as tests have it pass."""
        await self._sleep(seconds)

    @contextlib.asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = ANSWER_S,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request; its body may be read inside. ``timeout``: seconds until it begins; ``None``: only silence ends it."""
        limits = aiohttp.ClientTimeout(
            total=None, connect=CONNECT_S, sock_read=SILENCE_S if timeout is None else timeout
        )
        sent = dict(headers or {}) | ({"Authorization": f"Bearer {self._token}"} if self._token else {})
        url = f"{self.base}{_ROOT}{path}"
        try:
            async with contextlib.AsyncExitStack() as answered:
                async with asyncio.timeout(timeout):
                    response = await answered.enter_async_context(
                        self._session().request(
                            method, url, data=data, headers=sent, timeout=limits, allow_redirects=False
                        )
                    )
                if response.status >= 400:
                    raise _problem(self.base, response, await read(response, MAX_EVENT_BYTES))
                if response.status >= 300:
                    there = response.headers.get("Location", "")[:200]
                    raise UnreachableError(f"{self.base}{_way(self.base)} sends on to {there!r}: use that address")
                yield response
        except ClientError:
            raise
        except ProxyError as error:
            raise UnreachableError(f"{self.base} cannot be reached: {error}") from error
        except TimeoutError as error:
            raise _silent(self.base, error) from error
        except _TRANSIENT as error:
            way = f"{_way(self.base)} ({why(error)})"
            raise UnreachableError(f"{self.base} does not answer{way}: is it running?") from error
        except (aiohttp.ClientError, ValueError) as error:
            raise UnreachableError(f"{_stranger(self.base)}: no HTTP") from error

    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None or self._opened.closed:
            self._opened = open_session(read_bufsize=MAX_EVENT_BYTES)
        return self._opened


def place(kind: str, name: str) -> str:
    """The path of one thing by its id: ``jobs/ID`` of a ``job``, ``admin/nodes/ID`` of an ``admin/node``.

    Raises:
        ProblemError: no id looks like this; nothing is asked, as it would lead to another path.
    """
    if not _NAME.fullmatch(name):
        what = kind.rpartition("/")[2]
        raise ProblemError(404, "not_found", f"there is no {what} {name[:200]!r}: write its id", what)
    return f"{kind}s/{name}"


async def read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The whole answer, or ``limit`` bytes and one more of it, which then cannot be decoded.

    Raises:
        TimeoutError: it does not come, or slower than any line is.
    """
    body = bytearray()
    with told_of_waiting(response.url):
        async with asyncio.timeout(ANSWER_S) as until:
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > limit:
                    break
                until.reschedule((until.when() or 0.0) + len(chunk) / LEAST_RATE)
    return bytes(body)


def decode(data: bytes, kind: Any, base: str = "") -> Any:
    """An answer as a type. ``base``: whose, for the message.

    Raises:
        UnreachableError: it is not one that a coordinator gives.
    """
    try:
        return codec.decode_json(data, kind, MAX_ANSWER_BYTES)
    except codec.MessageError as error:
        if data.lstrip()[:1] == b"<":
            way = "is the address right, and does this network ask to sign in first?"
            raise UnreachableError(f"{_stranger(base)}: a web page; {way}") from error
        said = f"the answer of {base or 'the coordinator'} is not one that this version knows: {error}"
        raise UnreachableError(f"{said}; see whether the address is a coordinator's") from error


def is_passing(error: ClientError) -> bool:
    """Whether the same request may work later."""
    return isinstance(error, UnreachableError) or (isinstance(error, ProblemError) and error.status in _LATER)


def _silent(base: str, error: TimeoutError) -> ClientError:
    if error.errno is not None:  # The system's own patience is at an end.
        return UnreachableError(f"{base} does not answer{_way(base)} ({why(error)}): is it running?")
    look = "see whether address and port are the coordinator's, whether it is busy, and what stands between"
    return SilentError(f"{base} does not answer{_way(base)} ({NO_ANSWER}): {look}")


def _stranger(base: str) -> str:
    return f"at {base or 'this address'}{_way(base)} answers something that is no Cottage coordinator"


def _way(base: str) -> str:
    """The proxy on the way, which may be what has answered."""
    return through(parse_url(base)) if base else ""


def _problem(base: str, response: aiohttp.ClientResponse, body: bytes) -> ClientError:
    after = response.headers.get("Retry-After", "")
    wait = float(after) if after.isascii() and after.isdigit() and len(after) < 7 else None
    try:
        found = msgspec.json.decode(body, type=api.Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        text = f"{_stranger(base)}: HTTP {response.status}; see whether address and port are the coordinator's"
        if response.status >= 500:  # Of what stands before a coordinator.
            text = f"the coordinator at {base} does not answer{_way(base)} (HTTP {response.status}): is it running?"
        return ProblemError(response.status, STRANGER, text, retry_after=wait)
    if (response.status, found.code) == (404, STRANGER) and (url := parse_url(base)).path != "/":
        text = f"a coordinator answers at {url.origin()} and has nothing at {url.path[:200]}: leave that out of the address"
        return ProblemError(404, STRANGER, text)
    return ProblemError(response.status, found.code, found.detail, found.field, wait)
