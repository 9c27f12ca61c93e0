"""``cottage completion SHELL``: what a shell loads so that Tab completes words and options."""

import argparse
import sys
from collections.abc import Sequence

import argcomplete
from argcomplete.shell_integration import shellcode

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
    print(script(parser.parse_args(list(argv)).shell))
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

    whole = parser()
    (commands,) = [action for action in whole._actions if isinstance(action, argparse._SubParsersAction)]
    for word, text in words.items():
        if word not in commands.choices:
            added = commands.add_parser(word, help=text)
            if word == "completion":
                added.add_argument("shell", choices=tuple(USE))
    argcomplete.autocomplete(whole)
    sys.exit(0)
