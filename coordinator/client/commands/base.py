"""What every command has: how it ends, what it prints, and the bar of what goes over the line."""

import argparse
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from common.console import Terminal
from common.terminal import say_json

EXIT_REFUSED, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_INTERRUPTED = 1, 2, 3, 130
EXIT_SIGNED_OUT = 4


class CliUsageError(Exception):
    """A file that is not there, does not hold what it should, or cannot be made."""


def progress_bar(out: Terminal, options: argparse.Namespace) -> Progress:
    """Bytes that go over the line, for people."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, console=out, disable=options.json or not out.is_terminal)


def show(out: Terminal, options: argparse.Namespace, value: Any, shown: Any) -> None:
    """Print a value: as JSON for programs, or as it is shown to people."""
    if options.json:
        say_json(value)
    else:
        out.print(shown, soft_wrap=isinstance(shown, str))
