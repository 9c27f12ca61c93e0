"""The SDK on the command line: ``cottage submit``, ``jobs``, ``watch``, ``download`` and what else a submitter does."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence

from common.console import Terminal
from common.terminal import complain, complain_of_no_answer, say
from coordinator.client.client import Client
from coordinator.client.commands import account, deploy, fetch, follow, image, mapping, operate, submit
from coordinator.client.commands.base import (
    EXIT_INTERRUPTED,
    EXIT_REFUSED,
    EXIT_SIGNED_OUT,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    CliUsageError,
)
from coordinator.client.datasets import DatasetError
from coordinator.client.documents import DocumentError
from coordinator.client.errors import ClientError, CoordinatorAddressError, UnreachableError
from coordinator.client.hub import HubError
from coordinator.client.login import LoginFileError, complain_of_key, needs_key, token_of
from coordinator.client.options import parser
from coordinator.client.tracking import TrackerError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; ``argv`` begins with its name."""
    options = parser().parse_args(list(sys.argv[1:] if argv is None else argv))
    out = Terminal()
    try:
        return asyncio.run(_run(options, out))
    except UnreachableError as error:
        complain("cottage", error)
        return EXIT_UNREACHABLE
    except CoordinatorAddressError as error:
        say(f"cottage: --server: {error}", error=True)
        return EXIT_USAGE
    except ClientError as error:
        return complain_of_key(error, EXIT_SIGNED_OUT if needs_key(error) else EXIT_REFUSED)
    except (CliUsageError, DatasetError, DocumentError, HubError, LoginFileError, TrackerError, OSError) as error:
        complain("cottage", error)
        return EXIT_USAGE
    except EOFError as error:  # Whoever is asked ends the input in the place of an answer.
        return complain_of_no_answer("cottage", error, EXIT_USAGE)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


async def _run(options: argparse.Namespace, out: Terminal) -> int:
    if options.command == "logout":
        return account.forget(options, out)
    token = token_of(options, options.server)
    if options.command == "login":
        token = account.ask_key(options, out)
    async with Client(options.server, token) as client:
        if options.command == "login":
            return await account.login(client, token, options, out)
        return await _COMMANDS[options.command](client, options, out)


_COMMANDS: dict[str, Callable[[Client, argparse.Namespace, Terminal], Awaitable[int]]] = {
    "quote": submit.quote,
    "submit": submit.submit,
    "deploy": deploy.deploy,
    "map": mapping.map_files,
    "upload": submit.upload,
    "check": submit.check,
    "image": image.image,
    "jobs": follow.jobs,
    "show": follow.show_job,
    "job": follow.show_job,
    "watch": follow.watch,
    "logs": follow.logs,
    "checkpoints": follow.checkpoints,
    "compare": follow.compare,
    **dict.fromkeys(("pause", "resume", "stop", "cancel", "budget"), follow.change),
    "try": fetch.try_model,
    "download": fetch.download,
    "output": fetch.output,
    "keys": account.keys,
    "trail": account.trail,
    "notices": account.notices,
    "ledger": account.ledger,
    "admin": operate.admin,
    "invite": operate.invite,
}
