"""API keys on this machine: one a coordinator, in a file that only its owner reads."""

import argparse
import os
from pathlib import Path

import msgspec

from common.errors import UrlError
from common.own_folders import NoHomeError, make_folder, settings_folder
from common.system_words import reason
from common.urls import parse_url
from coordinator.client.errors import ClientError, ProblemError, complain
from coordinator.client.line import STRANGER

TOKEN_VARIABLE = "COTTAGE_TOKEN"  # noqa: S105 - the name of a variable
CONFIG_VARIABLE = "COTTAGE_CONFIG"


class LoginFileError(Exception):
    """The file of keys cannot be read; the text says which one and the way out."""


def file_of_keys() -> Path:
    """Where the keys are: ``$COTTAGE_CONFIG``, or the folder that the system has for settings."""
    return settings_of_client() / "keys.json"


def settings_of_client() -> Path:
    """The folder of a submitter's keys: ``$COTTAGE_CONFIG``, or what the system has for settings."""
    named = os.environ.get(CONFIG_VARIABLE)
    return Path(named) if named else settings_folder()


def token_for(server: str) -> str | None:
    """The key for a coordinator: from ``$COTTAGE_TOKEN``, or that of ``cottage login``; None where there is none.

    Raises:
        LoginFileError: the file is damaged.
    """
    return os.environ.get(TOKEN_VARIABLE) or _read().get(_name(server))


def take_token(parser: argparse.ArgumentParser) -> None:
    """Give a command ``--token``; ``token_of`` reads it."""
    parser.add_argument(
        "--token", metavar="KEY", help=f"an API key (or ${TOKEN_VARIABLE}); without it, that of `cottage login`"
    )


def token_of(options: argparse.Namespace, server: str) -> str | None:
    """The key of a command: that of ``--token``, or else as ``token_for``.

    Raises:
        LoginFileError: the file is damaged.
    """
    return options.token or token_for(server)


def needs_key(error: Exception) -> bool:
    """Whether a coordinator refused whoever is not signed in, or may not do that."""
    return isinstance(error, ProblemError) and error.status in (401, 403) and error.code != STRANGER


def complain_of_key(error: Exception, status: int) -> int:
    """Say why a command cannot go on, and where a key is had if that is what it lacks; returns its exit status."""
    if needs_key(error):
        way = "`cottage login` keeps an API key; one is made on the coordinator's account page"
        return complain(ClientError(f"{error}; {way}"), status)
    return complain(error, status)


def remember(server: str, token: str | None) -> Path:
    """Keep the key for a coordinator, or with None forget it; returns the file.

    Raises:
        LoginFileError: the file is damaged, or cannot be written.
        OSError: its folder cannot be made.
    """
    path, keys = file_of_keys(), _read()
    if token is None:
        keys.pop(_name(server), None)
    else:
        keys[_name(server)] = token
    make_folder(path.parent)
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(keys)) + b"\n")
        os.replace(fresh, path)
    except OSError as error:
        raise LoginFileError(f"{path} cannot be written: {reason(error)}") from error
    return path


def _read() -> dict[str, str]:
    try:
        path = file_of_keys()
    except NoHomeError:
        return {}  # Nothing can be kept for a user without a home, and nothing is.
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except msgspec.MsgspecError as error:
        raise LoginFileError(f"{path} is damaged: delete it and run `cottage login` again") from error


def _name(server: str) -> str:
    try:
        return str(parse_url(server)).rstrip("/")
    except UrlError:
        return server.rstrip("/").lower()
