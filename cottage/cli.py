"""The umbrella command: finds the role that a word belongs to and loads only that role's packages."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence

from common.output import guarded
from common.own_folders import NoHomeError
from common.terminal import Waits, complain, say

_ROLES: dict[str, tuple[str, str, bool]] = {
    # word: (module with main(argv), what it does, keep the word in argv)
    "demo": ("cottage.demo.main", "a whole network on this PC: trains a model, verifies the work, pays for it", False),
    "serve": ("coordinator.cli", "run a coordinator", True),
    "admin": ("coordinator.client.cli", "operate a coordinator: nodes, jobs, the outbox, room for files", True),
    "invite": ("coordinator.client.cli", "invite a computer to lend, where the network asks who comes", True),
    "auditor": ("desktop.agent.cli.auditor_cli", "look at others' work for a coordinator's operator", False),
    "accounts": ("coordinator.admin.cli", "who may use a coordinator: list, add, password, role, disable, key", False),
    "backup": ("coordinator.admin.backup", "copy a coordinator's database, keys and files while it runs", True),
    "restore": ("coordinator.admin.backup", "bring a coordinator back from its backup", True),
    "relay": ("cottage.relay", "carry packets between homes that cannot reach each other directly", False),
    "nettest": ("cottage.nettest", "what this home's line is good for: router, round trips, rates", False),
    "node": ("desktop.agent.cli.cli", "lend this machine: run, status, earnings, limits, nettest, selftest", False),
    "desktop": ("desktop.gui.app", "the provider's window and tray", False),
    "quote": ("coordinator.client.cli", "what a job would cost", True),
    "submit": ("coordinator.client.cli", "submit a job", True),
    "deploy": ("coordinator.client.cli", "have a model answer on nodes", True),
    "map": ("coordinator.client.cli", "run a container once for each of many files", True),
    "jobs": ("coordinator.client.cli", "list jobs", True),
    "watch": ("coordinator.client.cli", "follow a job", True),
    "pause": ("coordinator.client.cli", "pause a job; nothing is spent until it is resumed", True),
    "resume": ("coordinator.client.cli", "go on with a paused job", True),
    "output": ("coordinator.client.cli", "have a model sent to a bucket of your own", True),
    "stop": ("coordinator.client.cli", "end a job now and keep its model", True),
    "cancel": ("coordinator.client.cli", "end a job now", True),
    "budget": ("coordinator.client.cli", "raise a job's cap", True),
    "checkpoints": ("coordinator.client.cli", "a job's stored states", True),
    "compare": ("coordinator.client.cli", "jobs side by side", True),
    "show": ("coordinator.client.cli", "one job as it is now", True),
    "job": ("coordinator.client.cli", "the same as show", True),
    "upload": ("coordinator.client.cli", "upload a dataset, weights or a tokenizer", True),
    "image": ("coordinator.client.cli", "container images of your own: push, list", True),
    "check": ("coordinator.client.cli", "look through a dataset before paying for it", True),
    "login": ("coordinator.client.cli", "keep an API key for a coordinator", True),
    "logout": ("coordinator.client.cli", "forget it", True),
    "keys": ("coordinator.client.cli", "list, make and revoke API keys", True),
    "trail": ("coordinator.client.cli", "what was done with your account", True),
    "notices": ("coordinator.client.cli", "where you are told of your jobs", True),
    "completion": ("cottage.completion", "completion for bash, zsh or fish", False),
    "logs": ("coordinator.client.cli", "a job's log", True),
    "try": ("coordinator.client.cli", "continue a text with a job's newest checkpoint", True),
    "ask": ("cottage.ask", "ask a deployment's node directly; the coordinator is told counts, and no word", False),
    "download": ("coordinator.client.cli", "fetch a finished model", True),
    "ledger": (
        "cottage.ledger",
        "show a job's or a node's money; check a coordinator's word; serve the embedded one",
        False,
    ),
}

EXIT_USAGE, EXIT_INTERRUPTED = 2, 130
LASTING = (["serve"], ["auditor"], ["relay"], ["demo"], ["desktop"], ["node", "run"], ["ledger", "serve"])
"""Commands that run on and on; nobody waits for them."""
ROOMS = ("cottage", "common", "coordinator", "desktop", "ledger", "protocol", "transport")
"""What is missing of these is a fault of ours, and no package to install."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``cottage WORD ...``; the exit status is the role's own, or 2 where the word is unknown."""
    return guarded(lambda: _role(argv))


def _role(argv: Sequence[str] | None) -> int:
    if "_ARGCOMPLETE" in os.environ:
        from cottage.completion import complete

        complete({word: text for word, (_, text, _) in _ROLES.items()})
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        say(_usage())
        return 0 if words else EXIT_USAGE
    if words[0] in ("-V", "--version"):
        from cottage import __version__

        say(f"cottage {__version__}")
        return 0
    role = _ROLES.get(words[0])
    if role is None:
        say(f"cottage: there is no command {words[0]!r}.\n\n{_usage()}", error=True)
        return EXIT_USAGE
    module, _, keep = role
    try:
        run: Callable[[Sequence[str]], int] = importlib.import_module(module).main
    except ImportError as error:  # A package, or a system library that one of them loads, is missing.
        if (error.name or "").split(".")[0] in ROOMS:
            raise
        say(
            f"cottage {words[0]} cannot start here: {error}. "
            f"Install this role: pip install 'cottage[{_extra(module)}]'",
            error=True,
        )
        return EXIT_USAGE
    except KeyboardInterrupt:  # While packages are read; roles know themselves how they end.
        return EXIT_INTERRUPTED
    Waits.spoken_of = words[:1] not in LASTING and words[:2] not in LASTING
    try:
        return run(words if keep else words[1:])
    except NoHomeError as error:
        complain(f"cottage {words[0]}", error)
        return EXIT_USAGE


def _extra(module: str) -> str:
    return {
        "desktop.gui.app": "desktop",
        "desktop.agent.cli.cli": "agent",
        "desktop.agent.cli.auditor_cli": "agent",
        "cottage.relay": "relay",
        "cottage.nettest": "agent",
        "cottage.ask": "agent",
    }.get(module, "coordinator")


def _usage() -> str:
    rows = "\n".join(f"  {word:<10} {text}" for word, (_, text, _) in _ROLES.items())
    return f"usage: cottage COMMAND ...\n\n{rows}\n\n  cottage COMMAND --help tells more."


if __name__ == "__main__":
    sys.exit(main())
