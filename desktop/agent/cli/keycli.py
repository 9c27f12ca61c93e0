"""``cottage node backup|restore|words``: the key is the node, its trust and its wallet."""

import argparse
import getpass
import os
from pathlib import Path

from common.system_words import reason
from common.terminal import given_line, say
from desktop.agent.app import backup
from desktop.agent.base.config import Home
from desktop.agent.errors import SettingsError

NEVER_ASKED = (
    "Whoever has these words has this node and its money. Write them on paper. "
    "Nobody of Cottage will ever ask for them, nor for those of another wallet."
)


def add_words(words: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the words to ``cottage node``."""
    save = words.add_parser("backup", help="write key, settings and rules into one encrypted file")
    save.add_argument("file", type=Path, help="a new file, best on another disk")
    bring = words.add_parser("restore", help="make this home the node of a backup, or of 24 words")
    bring.add_argument("file", type=Path, nargs="?", help="the backup; without it, the words are asked for")
    show = words.add_parser("words", help="show the key as 24 words, to be written on paper")
    for parser, action in ((save, _backup), (bring, _restore), (show, _words)):
        parser.add_argument("--home", type=Path, help="the agent's folder")
        parser.set_defaults(run=action)
    for parser in (save, bring):
        parser.add_argument("--passphrase-file", type=Path, help="its first line is the passphrase (it is asked for)")


def _backup(options: argparse.Namespace) -> int:
    home = Home.at(options.home)
    passphrase = _passphrase(options.passphrase_file, twice=True)
    address = backup.write(home, options.file, passphrase)
    say(f"{options.file} holds node {address}. Without its passphrase nobody can open it, nor can you.")
    return 0


def _restore(options: argparse.Namespace) -> int:
    home = Home.at(options.home)
    with home.locked():
        if options.file is not None:
            address = backup.restore(home, backup.read(options.file, _passphrase(options.passphrase_file, twice=False)))
        else:
            address = backup.restore_key(home, backup.from_words(_secret("The 24 words of a Cottage node: ")))
    say(f"{home.path} is node {address} now.")
    return 0


def _words(options: argparse.Namespace) -> int:
    home = Home.at(options.home)
    words = backup.to_words(home.key()).split()
    say(f"{NEVER_ASKED}", error=True)
    for row in range(0, len(words), 6):
        say("  ".join(f"{row + n + 1:2} {word:9}" for n, word in enumerate(words[row : row + 6])).rstrip())
    return 0


def _passphrase(file: Path | None, *, twice: bool) -> str:
    if file is not None:
        try:
            return file.read_text().split("\n", 1)[0]
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{file} cannot be read: {reason(error)}") from error
    passphrase = _secret("Passphrase: ")
    if twice and _secret("Once more: ") != passphrase:
        raise SettingsError("the two passphrases differ")
    return passphrase


def _secret(prompt: str) -> str:
    if not os.isatty(0):
        return given_line().rstrip("\n")
    return getpass.getpass(prompt)
