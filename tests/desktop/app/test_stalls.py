"""An event loop that stands still is told of, with the call that held it up."""

import asyncio
import logging
import threading

import pytest

from desktop.agent.base import loop_watchdog

LOOK_S, STALL_S = 0.02, 0.05


async def test_what_holds_the_loop_up_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, looks, where = threading.Event(), list[str](), loop_watchdog.where

    def looked(thread: int) -> str:
        found = where(thread)
        if "a_call_that_waits" in found:
            looks.append(found)
        if len(looks) == 2:  # What the first look saw has been noted.
            seen.set()
        return found

    def a_call_that_waits() -> None:
        assert seen.wait(60)

    monkeypatch.setattr(loop_watchdog, "where", looked)
    with caplog.at_level(logging.WARNING, logger="cottage.agent"):
        async with loop_watchdog.told(STALL_S, LOOK_S):
            a_call_that_waits()
            async with asyncio.timeout(60):
                while not (found := [text for text in caplog.messages if "a_call_that_waits" in text]):
                    await asyncio.sleep(LOOK_S)
    assert found[0].startswith("the agent stood still for ")
    assert "tests/desktop/app/test_stalls.py:" in found[0]


async def test_a_loop_that_waits_for_events_is_held_up_by_nobody() -> None:
    loop_thread, over = threading.get_ident(), threading.Event()

    def look() -> bool:
        while not over.wait(0.001):
            if loop_watchdog.where(loop_thread) == loop_watchdog.STARVED:
                return True
        return False

    try:
        async with asyncio.timeout(60):
            assert await asyncio.to_thread(look)
    finally:
        over.set()
