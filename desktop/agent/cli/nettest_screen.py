"""A network test on a terminal: the bar while it runs, and what it has found."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from common.console import Terminal
from transport.nettest import words
from transport.nettest.phase import TOTAL_S, OnPhase
from transport.nettest.result import NetTest, PeerTest

TICK_S = 0.1

T = TypeVar("T")


async def with_bar(console: Terminal, work: Callable[[OnPhase], Coroutine[Any, Any, T]]) -> T:
    """Do ``work`` under a progress bar, which is removed at the end."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.completed:.0f} s"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("beginning", total=TOTAL_S)
        measuring = asyncio.ensure_future(work(lambda phase: bar.update(task, description=phase.text)))
        began = time.monotonic()
        try:
            while not measuring.done():
                await asyncio.wait([measuring], timeout=TICK_S)
                bar.update(task, completed=min(time.monotonic() - began, TOTAL_S))
            return measuring.result()
        finally:
            measuring.cancel()


def show(console: Terminal, test: NetTest) -> None:
    """Print the figures and what they mean."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("your router", words.nat(test))
    if test.public:
        table.add_row("seen as", test.public)
    table.add_row("IPv6", "yes" if test.ipv6 else "no")
    table.add_row("download", words.rate(test.down))
    table.add_row("upload", words.rate(test.up))
    if test.note:
        table.add_row("", test.note)
    for relay in test.relays:
        table.add_row("relay", f"{relay.relay}: {words.way(relay)}")
    console.print(table)
    for sentence in words.earning(test):
        console.print(f"- {sentence}")
    console.print(f"measured in {test.seconds:.1f} s", style="dim")


def show_link(console: Terminal, link: PeerTest) -> None:
    """Print the figures of a link to a peer."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("way", ("through a relay" if link.relayed else "direct") + f" ({link.pair})")
    table.add_row("round trip", f"{link.rtt_s * 1000:.1f} ms")
    table.add_row("loss", f"{link.loss:.2%}")
    table.add_row("to the peer", words.rate(link.up))
    table.add_row("from the peer", words.rate(link.down))
    if link.note:
        table.add_row("", link.note)
    console.print(table)
