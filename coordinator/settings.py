"""What settings of ``cottage serve`` have in common, the database's, and the identity provider's. The rest are in ``cli``."""

import argparse
import os
from pathlib import Path
from typing import Final

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from common.errors import UrlError
from common.options import whole
from common.system_words import reason
from common.urls import is_loopback, parse_url
from coordinator.config import IdentityConfig, RetentionPolicy
from coordinator.services.accounts.identity_provider import WELL_KNOWN, check_address
from protocol.rest.admin import LEAST_JOB_FILES_DAYS, MOST_DAYS

SECRET: Final = "COTTAGE_IDENTITY_SECRET"  # noqa: S105 - where it is, and not what it is.
DATABASE_URL: Final = "COTTAGE_DATABASE_URL"
DATABASE_PASSWORD: Final = "COTTAGE_DATABASE_PASSWORD_FILE"  # noqa: S105 - where it is, and not what it is.
MAX_CLIENT = 255


class SettingError(Exception):
    """Options that do not go together, or a file that they name cannot be used."""


def secret_in(option: str, file: Path) -> str:
    """The one line of a file.

    Raises:
        SettingError: it cannot be read, or is empty.
    """
    try:
        secret = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{option} {file} cannot be read: {reason(error)}") from error
    if not secret:
        raise SettingError(f"{option} {file} is empty: write the secret there")
    return secret


def rpc_url(text: str) -> str:
    """Of a ledger's endpoint, which may have a user's name or a key in it."""
    try:
        parse_url(text, users=True)
    except UrlError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def public_url(text: str) -> str:
    """Of a site, as people and programs find it."""
    try:
        url = parse_url(text)
    except UrlError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if url.path.strip("/") or url.query:
        raise argparse.ArgumentTypeError(f"{text} is no address of a site: write it as https://cottage.example")
    return str(url.origin())


def add_retention(parser: argparse.ArgumentParser) -> None:
    """For how long files stay."""
    add, default = parser.add_argument, RetentionPolicy()
    files = "that a paid job's inputs, states and openings stay after its end (%(default)s)"
    add("--keep-job-files", type=job_files_days, default=default.job_files, metavar="DAYS", help=files)
    uploads = "that an uploaded file stays, and as long as a job names it (%(default)s)"
    add("--keep-uploads", type=uploads_days, default=default.uploads, metavar="DAYS", help=uploads)


def job_files_days(text: str) -> int:
    """Days that a job's files stay; not less than somebody may take to run a step again."""
    return _days(text, LEAST_JOB_FILES_DAYS)


def uploads_days(text: str) -> int:
    """Days that an uploaded file stays."""
    return _days(text, 1)


def _days(text: str, least: int) -> int:
    value = whole(text)
    if not least <= value <= MOST_DAYS:
        raise argparse.ArgumentTypeError(f"{text} is out of bounds: choose {least} to {MOST_DAYS} days")
    return value


def add_database(parser: argparse.ArgumentParser) -> None:
    """The database's settings, for commands that work beside the coordinator; both may be in the environment."""
    url = f"its database, where that is PostgreSQL; or {DATABASE_URL}"
    parser.add_argument("--database-url", default=os.environ.get(DATABASE_URL), help=url)
    file = os.environ.get(DATABASE_PASSWORD)
    said = f"its password; or {DATABASE_PASSWORD}"
    parser.add_argument("--database-password-file", type=Path, default=file, metavar="FILE", help=said)


def database_of(options: argparse.Namespace) -> str | None:
    """URL of the database that the options name, with the password of their file; None: SQLite in the data folder.

    Raises:
        SettingError: the file cannot be read, or has nobody to be the password of.
    """
    url: str | None = options.database_url
    file: Path | None = options.database_password_file
    if file is None:
        return url
    if url is None:
        raise SettingError("--database-password-file changes nothing without --database-url, which says whose it is")
    try:
        parsed = make_url(url)
    except ArgumentError:
        return url  # Whoever opens it says what is wrong.
    password = secret_in("--database-password-file", file)
    return parsed.set(password=password).render_as_string(hide_password=False)


def cells_of(options: argparse.Namespace, database: str | None) -> int:
    """How many cells the options name. ``database``: its URL, or None for SQLite in the data folder.

    Raises:
        SettingError: several would have no database that they can share, or no other coordinator would reach them.
    """
    cells: int = options.cells
    if cells > 1 and (database is None or not database.startswith("postgresql")):
        raise SettingError(
            f"--cells {cells} needs --database-url with a PostgreSQL: several coordinators cannot share a file of SQLite"
        )
    place: str | None = options.reachable_at
    if cells > 1 and place is not None and parse_url(place).scheme != "http":
        raise SettingError(
            f"--reachable-at {place} with --cells {cells}: others reach each cell at a port of its own, and without TLS: "
            f"write {parse_url(place).with_port(None).with_scheme('http').origin()}, or how else they see this machine"
        )
    return cells


def add_identity(parser: argparse.ArgumentParser) -> None:
    """The settings of the identity provider."""
    add = parser.add_argument_group(
        "identity provider",
        "people of an organisation sign in through it (OpenID Connect); see docs/how-to/accounts.md",
    ).add_argument
    issuer = "its issuer, such as https://id.example/realms/lab, below which /.well-known/openid-configuration is"
    add("--identity-provider", type=_issuer, metavar="URL", help=issuer)
    add("--identity-client", type=_client, metavar="ID", help="how it calls this coordinator: the client ID")
    secret = f"the client's secret, else in {SECRET}; without one the client is public, and PKCE has to do"
    add("--identity-secret", type=Path, metavar="FILE", help=secret)


def identity_of(options: argparse.Namespace) -> IdentityConfig | None:
    """The identity provider that the options name; None: they name none.

    Raises:
        SettingError: a part of it is missing, or nobody could come back from there.
    """
    issuer, client, file = options.identity_provider, options.identity_client, options.identity_secret
    if issuer is None:
        if client is not None or file is not None:
            given = "--identity-client" if client is not None else "--identity-secret"
            raise SettingError(
                f"{given} changes nothing without --identity-provider URL, which says whose client it is"
            )
        if options.who_may_lend == "verified":
            raise SettingError("--who-may-lend verified needs --identity-provider URL, which says whom it vouches for")
        return None
    if client is None:
        raise SettingError(
            "--identity-client is missing: make a client there, with the redirect address "
            f"{options.public_url or 'https://cottage.example'}/sign-in/identity, and name its ID"
        )
    if options.open:
        raise SettingError("--identity-provider with --open: where nobody signs in it changes nothing; leave one out")
    if options.public_url is None and (options.behind_proxy or not is_loopback(options.host)):
        raise SettingError("--identity-provider needs --public-url: the provider leads browsers back to that address")
    secret = os.environ.get(SECRET, "").strip() if file is None else secret_in("--identity-secret", file)
    return IdentityConfig(issuer, client, secret)


def _issuer(text: str) -> str:
    """Kept as it was typed, since providers compare it character for character."""
    try:
        check_address(text)
        url = parse_url(text)
    except UrlError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if url.query_string or url.fragment or "?" in text or "#" in text:
        raise argparse.ArgumentTypeError(f"{text} is no issuer: it has no ? and no # in it")
    if url.path.endswith(WELL_KNOWN):
        raise argparse.ArgumentTypeError(f"{text} is the address of its metadata: leave {WELL_KNOWN} out")
    return text


def _client(text: str) -> str:
    if not 1 <= len(text) <= MAX_CLIENT or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no client ID: copy it as the provider shows it")
    return text
