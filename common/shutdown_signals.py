"""When somebody asks this program to end: SIGTERM and Ctrl-C, on Windows Ctrl-C and Ctrl-Break (closing its console, too).

Windows has no way to ask a program without a console; such a one needs a way of its own (``desktop.agent.app.status.ask_leave``).
"""

import asyncio
import signal
import sys
from collections.abc import Callable


def on_end(end: Callable[[], object], *, hangup: bool = False) -> None:
    """Have the running event loop, which is the main thread's, call ``end`` each time.

    Args:
        hangup: also when the terminal goes, where there is such a signal.
    """
    loop = asyncio.get_running_loop()
    if sys.platform == "win32":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGBREAK):
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(end))
    else:
        for number in (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if hangup else ())):
            loop.add_signal_handler(number, end)
