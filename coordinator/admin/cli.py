"""``cottage accounts``: what an operator does with accounts at the machine itself, over the coordinator's database."""

import argparse
import asyncio
import getpass
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table

from common.clock import SystemClock
from common.console import Terminal
from common.options import whole
from common.terminal import complain, complain_of_no_answer, given_line, say, say_json
from coordinator.config import Config
from coordinator.domain.account import ROLE_SCOPES, Account, Principal, Role, Scope
from coordinator.errors import CottageError
from coordinator.services.accounts.accounts import AccountService
from coordinator.services.accounts.passwords import Passwords
from coordinator.settings import SettingError, add_database, database_of
from coordinator.store.sql import SqlStore

EXIT_REFUSED, EXIT_USAGE = 1, 2
DAY_S = 86_400.0

Work = Callable[[AccountService, argparse.Namespace], Awaitable[None]]


def main(argv: Sequence[str] | None = None) -> int:
    """Do one thing.

    Returns:
        0, or 1 where it is refused, 2 for a wrong option, or no password.
    """
    options = _parser().parse_args(argv)
    try:
        config = Config(options.data, "", database_url=database_of(options))
    except SettingError as error:
        complain("cottage accounts", error)
        return EXIT_USAGE
    if config.database_url is None and not (options.data / "coordinator.db").exists():
        say(f"cottage accounts: no coordinator has its data in {options.data}: name its --data folder", error=True)
        return EXIT_REFUSED
    try:
        asyncio.run(_run(config, options))
    except CottageError as error:
        complain("cottage accounts", error.detail)
        return EXIT_REFUSED
    except EOFError as error:
        return complain_of_no_answer("cottage accounts", error, EXIT_USAGE)
    return 0


async def _run(config: Config, options: argparse.Namespace) -> None:
    store = await SqlStore.open(config.database)
    try:
        work: Work = options.work
        await work(AccountService(store, SystemClock()), options)
    finally:
        await store.close()


async def _list(accounts: AccountService, options: argparse.Namespace) -> None:
    found = await accounts.all()
    if options.json:
        say_json([_plain(one) for one in found], indent=2)
        return
    table = Table("name", "role", "since", "signs in", box=None)
    for one in found:
        ways = ["password"] if one.password else []
        ways += sorted({way.kind for way in await accounts.credentials(one.id)})
        table.add_row(
            one.name,
            one.role,
            datetime.fromtimestamp(one.created, UTC).strftime("%Y-%m-%d"),
            "no: disabled" if one.disabled else ", ".join(ways),
        )
    Terminal().print(table if found else "No account yet: `cottage accounts add NAME --operator` makes the first.")


async def _add(accounts: AccountService, options: argparse.Namespace) -> None:
    first = not await accounts.any()
    role = Role.OPERATOR if options.operator or first else Role.SUBMITTER
    account = await accounts.create(options.name, role, await Passwords().hash(_password(options)))
    say(f"{account.name} is {'an' if role is Role.OPERATOR else 'a'} {role} of this coordinator")


async def _set_password(accounts: AccountService, options: argparse.Namespace) -> None:
    account = await accounts.by_name(options.name)
    await accounts.set_password(account.id, await Passwords().hash(_password(options)), "")
    say(f"{account.name} has another password; every browser is signed out")


async def _role(accounts: AccountService, options: argparse.Namespace) -> None:
    account = await accounts.by_name(options.name)
    await accounts.change(account.id, f"role.{options.role}", role=Role(options.role))
    say(f"{account.name} is {options.role} now")


async def _disable(accounts: AccountService, options: argparse.Namespace) -> None:
    account = await accounts.by_name(options.name)
    await accounts.change(account.id, "account.disabled", disabled=True)
    say(f"{account.name} can sign in no more, and its keys are refused; its jobs go on")


async def _enable(accounts: AccountService, options: argparse.Namespace) -> None:
    account = await accounts.by_name(options.name)
    await accounts.change(account.id, "account.enabled", disabled=False)
    say(f"{account.name} can sign in again")


async def _key(accounts: AccountService, options: argparse.Namespace) -> None:
    account = await accounts.by_name(options.name)
    who = Principal(account.id, ROLE_SCOPES[account.role], account.name, account.role)
    scopes = frozenset(Scope(one) for one in options.scope) or who.scopes
    life = None if options.days == 0 else options.days * DAY_S
    _, text = await accounts.create_key(who, options.label, scopes, life)
    say(text)


def _password(options: argparse.Namespace) -> str:
    if options.password_stdin:
        return given_line().rstrip("\n")
    return getpass.getpass(f"Password of {options.name}: ")


def _plain(account: Account) -> dict[str, object]:
    return {
        "id": account.id,
        "name": account.name,
        "role": account.role,
        "created": account.created,
        "password": bool(account.password),
        "disabled": account.disabled,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cottage accounts",
        description="Accounts of a coordinator, at its own machine; it may be running meanwhile.",
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="the coordinator's data folder (%(default)s)")
    add_database(parser)
    words = parser.add_subparsers(required=True, metavar="WORD")

    def word(name: str, text: str, work: Work, named: bool = True) -> argparse.ArgumentParser:
        made = words.add_parser(name, help=text, description=text)
        made.set_defaults(work=work)
        if named:
            made.add_argument("name", help="the account's name")
        return made

    listed = word("list", "every account", _list, named=False)
    listed.add_argument("--json", action="store_true", help="as JSON")
    added = word("add", "make an account; the first one operates the coordinator", _add)
    added.add_argument("--operator", action="store_true", help="it operates the coordinator")
    for one in (added, word("password", "give an account another password", _set_password)):
        one.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    word("role", "change what an account is", _role).add_argument("role", choices=[role.value for role in Role])
    word("disable", "let an account in no more", _disable)
    word("enable", "let an account in again", _enable)
    key = word("key", "make an API key and print it, this once", _key)
    key.add_argument("--label", default="command line", help="what the key is for (%(default)s)")
    key.add_argument(
        "--scope",
        action="append",
        default=[],
        choices=[scope.value for scope in Scope],
        help="what it may; may be repeated (all that the account may)",
    )
    key.add_argument("--days", type=whole, default=90, help="until it expires; 0: never (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
