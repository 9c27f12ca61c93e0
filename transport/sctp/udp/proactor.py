"""UDP on Windows' event loop, without four faults that it has in CPython 3.11 and later.

A datagram transport of ``ProactorEventLoop`` never ends where a datagram was on its way when it was closed (who waits for
``connection_lost`` waits for ever), keeps what is queued for ever after one datagram could not be sent, is deaf for ever after
one reading failed (which it does for each datagram that reached a closed port, as many connectivity checks do), and sends to
an IPv6 address only where that has all its four parts, while aioice gives two.

Source: python/cpython issues 156920, 156698 and 91227.
"""

from asyncio import proactor_events
from typing import Any

_Broken: Any = proactor_events._ProactorDatagramTransport  # type: ignore[attr-defined]  # It has no public name.
_IPV4_PARTS = 2
_PAUSE_S = 0.001
"""After a reading that failed: what fails again and again must not keep the loop busy."""


class DatagramTransport(_Broken):  # type: ignore[misc]
    """As the event loop's own; an error costs the datagram that it is about, and closing ends."""

    _closing: bool
    _read_fut: Any
    _write_fut: Any

    def close(self) -> None:
        """Read no more, send what is queued, and then tell the protocol."""
        if self._closing:
            return
        self._closing = True
        if self._read_fut is not None:
            self._read_fut.cancel()
            self._read_fut = None
        self._end_when_sent()

    def sendto(self, data: Any, addr: Any = None) -> None:
        """Send, or drop what comes after the end."""
        if self._closing:
            return
        if addr is not None and len(addr) == _IPV4_PARTS and ":" in addr[0]:
            addr = (*addr, 0, 0)  # Flow and scope.
        super().sendto(data, addr)

    def _loop_writing(self, fut: Any = None) -> None:
        if fut is not self._write_fut:
            return  # It has gone on already.
        super()._loop_writing(fut)
        if self._write_fut is not None or self._conn_lost:
            return
        self._maybe_resume_protocol()
        if self._buffer:
            self._loop.call_soon(self._loop_writing)
        elif self._closing:
            self._end_when_sent()

    def _loop_reading(self, fut: Any = None) -> None:
        if self._closing or fut is not self._read_fut:
            return
        super()._loop_reading(fut)
        if self._read_fut is None and not self._closing:
            self._loop.call_later(_PAUSE_S, self._loop_reading)

    def _end_when_sent(self) -> None:
        if not self._buffer and self._write_fut is None and not self._conn_lost:
            self._conn_lost += 1
            self._loop.call_soon(self._call_connection_lost, None)


def mend() -> None:
    """Have every loop make these from now on."""
    proactor_events._ProactorDatagramTransport = DatagramTransport  # type: ignore[attr-defined]
