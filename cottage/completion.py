"""``cottage completion SHELL``: what a shell loads so that Tab completes words and options."""

import argparse
import os
import sys
from collections.abc import Sequence

import argcomplete
from argcomplete.shell_integration import shellcode

from common.terminal import say

USE = {
    "bash": "cottage completion bash > ~/.local/share/bash-completion/completions/cottage",
    "zsh": "cottage completion zsh > ~/.zfunc/_cottage, with ~/.zfunc in $fpath before compinit",
    "fish": "cottage completion fish > ~/.config/fish/completions/cottage.fish",
}


def main(argv: Sequence[str]) -> int:
    """Print the script for a shell."""
    epilog = "; ".join(f"{shell}: {text}" for shell, text in USE.items())
    parser = argparse.ArgumentParser(prog="cottage completion", description=__doc__, epilog=epilog)
    parser.add_argument("shell", choices=tuple(USE))
    say(script(parser.parse_args(list(argv)).shell))
    return 0


def script(shell: str) -> str:
    """What ``shell`` loads. argcomplete has one text for bash and zsh, which begins with the mark of a zsh function."""
    text = shellcode(["cottage"], shell=shell)
    return text.removeprefix("#compdef cottage\n") if shell == "bash" else text


def complete(words: dict[str, str]) -> None:
    """Answer a shell that asks for completions, and end the process.

    Args:
        words: every command of ``cottage`` and what it does; those of submitters are completed with their options.
    """
    from coordinator.client.options import parser

    _complete_ledger(os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT") or 0)])

    whole = parser()
    (commands,) = [action for action in whole._actions if isinstance(action, argparse._SubParsersAction)]
    for word, text in words.items():
        if word not in commands.choices:
            added = commands.add_parser(word, help=text)
            if word == "completion":
                added.add_argument("shell", choices=tuple(USE))
    argcomplete.autocomplete(whole)
    sys.exit(0)


def _complete_ledger(line: str) -> None:
    """Complete ``cottage ledger WORD ...`` with the options of its word, and end; the books are a submitter's command."""
    from cottage.ledger import BOOKS, parser_of

    words = line.split() if line.endswith(" ") else line.split()[:-1]  # Without the one that is being typed.
    if words[1:2] != ["ledger"] or "".join(words[2:3]) in BOOKS:
        return
    made, behind = parser_of("".join(words[2:3]))
    os.environ["_ARGCOMPLETE"] = "3" if behind else "2"  # So many words stand before the parser's own.
    argcomplete.autocomplete(made)
    sys.exit(0)
