"""The fine timer: it rings once for each time it was started, and never after its end."""

import asyncio
import os
import sys

import pytest

from transport.sctp.udp.timer import FineTimer, fine_timer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has timer files")


async def test_it_rings_once_and_again_when_it_is_started_again() -> None:
    rung = asyncio.Queue[bool]()
    timer = FineTimer(asyncio.get_running_loop(), lambda: rung.put_nowait(timer.waiting))
    for _ in range(3):
        assert timer.start(0.0003)
        assert timer.waiting
        assert await asyncio.wait_for(rung.get(), 5) is False, "who is rung may start it again"
    await asyncio.sleep(0.01)
    assert rung.empty()
    timer.close()


async def test_the_last_start_counts() -> None:
    loop, rung = asyncio.get_running_loop(), asyncio.Event()
    timer = FineTimer(loop, rung.set)
    timer.start(30.0)
    timer.start(0.0)
    await asyncio.wait_for(rung.wait(), 5)
    timer.start(0.0)
    timer.start(30.0)
    rung.clear()
    await asyncio.sleep(0.01)
    assert not rung.is_set()
    assert timer.waiting
    timer.close()


async def test_what_was_closed_does_not_ring_and_leaves_no_file() -> None:
    before, rung = len(os.listdir("/proc/self/fd")), asyncio.Event()
    timer = FineTimer(asyncio.get_running_loop(), rung.set)
    timer.start(0.0)
    timer.close()
    timer.close()
    await asyncio.sleep(0.01)
    assert not rung.is_set()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_where_no_file_is_left_there_is_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transport.sctp.udp.timer.sys.platform", "darwin")
    assert fine_timer(asyncio.get_running_loop(), lambda: None) is None
