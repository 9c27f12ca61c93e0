"""``cottage serve``: run a coordinator."""

import argparse
import asyncio
import logging
import os
import sys
import tomllib
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any, TextIO, get_args

import configargparse

from common import gc_tuning, tracing
from common.errors import BadAddressError, IceConfigError, KeyFileError, UrlError
from common.log_lines import JsonLines, log_to
from common.options import decimal, host, network, port, whole
from common.shutdown_signals import on_end
from common.terminal import complain, say
from common.token_worth import TokenWorth
from common.urls import is_loopback, split
from coordinator.app import serve
from coordinator.config import Config, MailConfig, OfferedTasks, RetentionPolicy, TurnRelay
from coordinator.domain.cells import MAX_CELLS
from coordinator.domain.lenders import LendersListError
from coordinator.errors import InvalidError, StoreAwayError, StoreError, UnavailableError
from coordinator.services.artifacts.bucket.address import parse_bucket
from coordinator.services.artifacts.harness import offered
from coordinator.services.network.lenders import read_lenders
from coordinator.services.network.relays import check_relay_url
from coordinator.settings import (
    DATABASE_PASSWORD,
    DATABASE_URL,
    SettingError,
    add_identity,
    add_retention,
    cells_of,
    database_of,
    identity_of,
    public_url,
    rpc_url,
    secret_in,
)
from coordinator.store.faults import check_address
from ledger.errors import AmountError, LedgerError
from ledger.money import parse
from protocol.codec import MessageError, convert
from protocol.identity import parse_address
from protocol.network import MAX_RELAYS
from protocol.plan import MAX_REPLICAS
from protocol.rest.lending import LendingRule
from transport.ice.ice import IceServer, parse_ice

MAX_URLS = 8  # Of one relay: UDP, TCP and TLS, each over IPv4 and IPv6, and two to spare.
BYTES_PER_MEGABIT = 125_000
EXIT_USAGE = 2
EXIT_LEDGER = 4
EXIT_DATA = 5


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or Ctrl-C.

    Returns:
        0 after a clean end, 2 for a wrong option, 4 without a usable ledger, 5 if the data folder or port is not usable.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["serve"]:
        arguments = arguments[1:]
    options = _parser().parse_args(arguments)
    plain = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    log_to(logging.StreamHandler(sys.stderr), JsonLines() if options.log_format == "json" else plain)
    for chatty in ("aiohttp.access", "httpx2", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    if options.ledger_url is None:
        say("cottage serve: no ledger: start one (cottage ledger serve) and name it with --ledger-url", error=True)
        return EXIT_USAGE
    try:
        config = _config(options)
        check_address(config.database)
        if options.check_config:
            tracing.start("cottage-coordinator")
            say("The settings can be used.")
            return 0
        asyncio.run(_run(config, options.ready_file))
    except tracing.TracingError as error:
        say(f"cottage serve: traces: {error}", error=True)
        return EXIT_USAGE
    except SettingError as error:
        complain("cottage serve", error)
        return EXIT_USAGE
    except LedgerError as error:
        say(f"cottage serve: the ledger at {options.ledger_url} cannot be used: {error}", error=True)
        return EXIT_LEDGER
    except StoreAwayError as error:
        say(f"cottage serve: the database does not answer: {error.cause}", error=True)
        return EXIT_DATA
    except (StoreError, KeyFileError, OSError) as error:
        complain("cottage serve", error)
        return EXIT_DATA
    return 0


async def _run(config: Config, ready_file: Path | None) -> None:
    stopping = asyncio.Event()
    on_end(stopping.set)
    try:
        tracing.start("cottage-coordinator")
    except tracing.TracingError as error:  # The variable may be there for other programs; --check-config refuses it.
        logging.getLogger("coordinator").warning("no traces are sent: %s", error)

    def ready(url: str) -> None:
        gc_tuning.settle()
        logging.getLogger("coordinator").info("serving on %s", url)
        if ready_file is not None:
            draft = ready_file.with_name(f".{ready_file.name}.draft")
            draft.write_text(url)
            os.replace(draft, ready_file)

    try:
        await serve(config, ready, stopping)
    finally:
        tracing.finish()


def _config(options: argparse.Namespace) -> Config:
    return Config(
        data=options.data,
        ledger_url=options.ledger_url,
        ledger_program=options.ledger_program,
        ledger_mint=options.ledger_mint,
        host=options.host,
        port=options.port,
        reachable_at=options.reachable_at,
        database_url=(database := database_of(options)),
        cells=cells_of(options, database),
        store=options.store,
        store_gigabytes=options.store_gigabytes,
        store_cache_gigabytes=options.store_cache_gigabytes,
        retention=RetentionPolicy(options.keep_job_files, options.keep_uploads),
        test_wallet=not options.no_test_wallet,
        open=_open(options),
        sign_up=not options.no_sign_up,
        public_url=options.public_url,
        identity=identity_of(options),
        behind_proxy=options.behind_proxy,
        lease_seconds=options.lease_seconds,
        return_seconds=options.return_seconds,
        heartbeat_seconds=min(options.heartbeat_seconds, options.lease_seconds / 3),
        start_grace_seconds=options.start_grace_seconds,
        who_may_lend=options.who_may_lend,
        lenders=_lenders(options),
        auditors=frozenset(options.auditor),
        own_auditor=not options.no_own_auditor,
        unwatched=options.unwatched,
        audits_per_round=options.audits_per_round,
        store_every=options.store_every,
        settle_every=options.settle_every,
        spares=options.spares,
        validations=options.validations,
        evaluators=options.evaluators,
        price_per_petaflop=options.price_per_petaflop,
        sol_price=options.sol_price,
        token_worth=options.token_worth,
        withdrawal_lamports=options.withdrawal_lamports,
        least_withdrawal=options.least_withdrawal,
        min_stake=options.min_stake,
        stun=tuple(options.stun),
        turn=_turn(options),
        relays=frozenset(options.relay),
        relay_user_rate=options.relay_user_rate,
        mail=_mail(options),
        webhook_networks=tuple(options.webhook_network),
        evaluation=_evaluation(options),
        evaluation_seconds=options.evaluation_seconds,
    )


def _number_of_cells(text: str) -> int:
    value = whole(text)
    if not 1 <= value <= MAX_CELLS:
        raise argparse.ArgumentTypeError(f"{text} is out of bounds: choose 1 to {MAX_CELLS} cells")
    return value


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = configargparse.ArgumentParser(
        prog="cottage serve",
        description="Run a coordinator: jobs, nodes, money, web pages.",
        config_file_parser_class=_ServeTable,
        add_config_file_help=False,
        allow_abbrev=False,  # In a file a part of a name is a mistake.
    )
    add = parser.add_argument
    default = Config(Path(), "")
    table = "a TOML file whose table [serve] has settings by their names here, such as port = 8470; what is typed counts more"
    add("--config", is_config_file=True, metavar="FILE", help=table)
    add("--check-config", action="store_true", help="say whether the settings can be used, and end")
    add("--data", type=Path, required=True, help="folder for the database, keys and files")
    add("--host", type=host, default=default.host, help="address to listen on (%(default)s)")
    add("--port", type=port, default=default.port, help="port, 0 for any (%(default)s)")
    others = (
        "where other coordinators reach this one, as http://NAME:PORT; the address that the database sees, if it is not given. "
        "With --cells the machine alone counts, as http://NAME, since each cell has a port of its own"
    )
    add("--reachable-at", type=public_url, metavar="URL", help=others)
    add("--ready-file", type=Path, help="write the base address here once it serves")
    add("--log-format", choices=["text", "json"], default="text", help="of each line on standard error (%(default)s)")
    add("--ledger-url", type=rpc_url, help="JSON-RPC of the ledger")
    add("--ledger-program", help="market program, where the ledger does not tell")
    add("--ledger-mint", help="token, where the ledger does not tell")
    add(
        "--database-url",
        env_var=DATABASE_URL,
        help="another database than SQLite in the data folder: postgresql+asyncpg://USER:PASSWORD@HOST/NAME",
    )
    password = "the database's password, where the address has none"  # noqa: S105 - says what it is for.
    add("--database-password-file", type=Path, metavar="FILE", env_var=DATABASE_PASSWORD, help=password)
    cells = "parts that the jobs are carried in, of which this and the other coordinators each take some (%(default)s)"
    add("--cells", type=_number_of_cells, metavar="N", default=default.cells, help=cells)
    _add_store(parser)
    add_retention(parser)
    add("--no-test-wallet", action="store_true", help="every job is funded by its submitter's own wallet")
    add("--lease-seconds", type=_positive, default=default.lease_seconds, help="silence after which a node has left")
    away = "an audit waits as long, in sum, for a node whose line is away, and takes its opening when it is back (%(default)s)"
    add("--return-seconds", type=_seconds, default=default.return_seconds, help=away)
    add("--heartbeat-seconds", type=_positive, default=default.heartbeat_seconds, help="at most a third of a lease")
    add("--start-grace-seconds", type=_seconds, default=default.start_grace_seconds, help="wait for late replicas")
    add("--audits-per-round", type=_count, default=default.audits_per_round, help="steps re-run after each round")
    add(
        "--store-every", type=_count, default=default.store_every, help="rounds between two states that are stored here"
    )
    add("--settle-every", type=_count, default=default.settle_every, help="rounds between two payouts")
    add("--spares", type=_count, default=default.spares, help="nodes held ready beside a job")
    add("--validations", type=_count, default=default.validations, help="between the first and the last")
    owners = "owners whose computers measure the held-out loss, where there are as many (%(default)s)"
    add("--evaluators", type=_at_least_one, default=default.evaluators, help=owners)
    add(
        "--sol-price",
        type=_count,
        default=default.sol_price,
        help="millionths for one SOL: small payouts wait (0: none do), and withdrawals pay fee and rent at this rate",
    )
    add("--token-worth", type=_worth, metavar="AMOUNT CURRENCY", help="of one token, shown to lenders, as '1 USD'")
    _add_withdrawals(parser)
    add("--price-per-petaflop", type=_count, default=default.price_per_petaflop, help="millionths for 10^15 operations")
    add("--min-stake", type=_count, default=default.min_stake, help="millionths that a node must have staked")
    _add_lenders(parser)
    _add_auditors(parser)
    _add_sign_in(parser)
    add_identity(parser)
    _add_relays(parser)
    _add_notices(parser)
    _add_evaluation(parser)
    return parser


class _ServeTable(configargparse.TomlConfigParser):  # type: ignore[misc]
    """Settings by their names without dashes: text, numbers, true for a flag, lists for what may be repeated."""

    def __init__(self) -> None:
        super().__init__(["serve"])

    def parse(self, stream: TextIO) -> dict[str, Any]:
        """The table; raises ``ConfigFileParserException`` where there is none, or a setting stands before it."""
        text = stream.read()
        found: dict[str, Any] = super().parse(StringIO(text))
        outside = [name for name, value in tomllib.loads(text).items() if not isinstance(value, dict)]
        if found and outside:
            raise configargparse.ConfigFileParserException(
                f"{stream.name} has {', '.join(outside)} outside of the table [serve]: write it below that line"
            )
        if not found:
            raise configargparse.ConfigFileParserException(f"{stream.name} has no settings in a table [serve]")
        return found


def _add_store(parser: argparse.ArgumentParser) -> None:
    default = Config(Path(), "")
    add = parser.add_argument_group(
        "files", "where datasets, states and models lie; see docs/how-to/operate.md"
    ).add_argument
    bucket = "a bucket instead of the data folder: s3://BUCKET/PREFIX; server and key as AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID ..."
    add("--store", type=_bucket, metavar="URL", help=bucket)
    holds = "gigabytes that the bucket may hold, of which accounts have shares (%(default)s)"
    add("--store-gigabytes", type=_gigabytes, default=default.store_gigabytes, metavar="GB", help=holds)
    stay = "of its files that stay in the data folder too (%(default)s)"
    add("--store-cache-gigabytes", type=_gigabytes, default=default.store_cache_gigabytes, metavar="GB", help=stay)


def _bucket(text: str) -> str:
    try:
        return str(parse_bucket(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _gigabytes(text: str) -> int:
    value = whole(text)
    if not 1 <= value <= 10**9:
        raise argparse.ArgumentTypeError(f"{text} is out of bounds: choose 1 to 1,000,000,000 GB")
    return value


def _add_withdrawals(parser: argparse.ArgumentParser) -> None:
    default, add = Config(Path(), ""), parser.add_argument
    a_day = "lamports a day for fees and rent of withdrawals, which come back in tokens; 0: offer none (%(default)s)"
    add("--withdrawal-lamports", type=_count, default=default.withdrawal_lamports, metavar="LAMPORTS", help=a_day)
    least = "millionths that must arrive of a withdrawal (%(default)s)"
    add("--least-withdrawal", type=_count, default=default.least_withdrawal, metavar="AMOUNT", help=least)


def _add_lenders(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("lenders", "whose machines may work here; see docs/how-to/operate.md").add_argument
    rule = (
        "whoever comes, who was invited, who is on the list of --lenders, or whom --identity-provider vouches for "
        "(%(default)s)"
    )
    add("--who-may-lend", choices=get_args(LendingRule), default="everybody", help=rule)
    listed = "who may lend, one a line: `node ADDRESS` or `owner ACCOUNT`; read again when it changes"
    add("--lenders", type=Path, metavar="FILE", help=listed)


def _lenders(options: argparse.Namespace) -> Path | None:
    file: Path | None = options.lenders
    if file is None:
        if options.who_may_lend == "listed":
            raise SettingError("--who-may-lend listed needs --lenders FILE, which says who is on the list")
        return None
    if options.who_may_lend == "everybody":
        raise SettingError(
            "--lenders changes nothing while everybody may lend: add --who-may-lend invited, listed or verified"
        )
    try:
        read_lenders(file)
    except LendersListError as error:
        raise SettingError(f"--lenders {file}: {error}") from error
    return file.resolve()


def _add_auditors(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "auditors", "the operator's own machines, which look at strangers' work; see docs/how-to/operate.md"
    ).add_argument
    named = "a `cottage auditor` of this address is the operator's; may be repeated"
    add("--auditor", type=_auditor, action="append", default=[], metavar="ADDRESS", help=named)
    trusting = "take jobs, too, that none of them could run again: there nodes that agree with each other are paid"
    add("--unwatched", action="store_true", help=trusting)
    add("--no-own-auditor", action="store_true", help="start none beside the coordinator, on one processor of its own")


def _add_sign_in(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("sign-in", "who may use the coordinator; see docs/how-to/accounts.md").add_argument
    add(
        "--open",
        action="store_true",
        help="no sign-in: whoever reaches the port may do all; only on a loopback address",
    )
    add(
        "--no-sign-up",
        action="store_true",
        help="no accounts but those of `cottage accounts add`, and of people whom --identity-provider vouches for",
    )
    add("--public-url", type=public_url, metavar="URL", help="where browsers find it, such as https://cottage.example")
    add("--behind-proxy", action="store_true", help="believe the X-Forwarded-For and -Proto of the proxy in front")


def _add_notices(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "notices", "what submitters are told of their jobs by mail and webhook; see docs/how-to/operate.md"
    ).add_argument
    add("--smtp", metavar="HOST:PORT", help="server that takes mail; without it none is sent")
    add("--smtp-from", metavar="ADDRESS", default="", help="whom mails are from; needed with --smtp")
    add(
        "--smtp-security",
        choices=["starttls", "tls", "none"],
        default="starttls",
        help="of the line to it (%(default)s)",
    )
    add("--smtp-user", default="", metavar="NAME", help="to sign in with")
    add("--smtp-password-file", type=Path, metavar="FILE", help="its password")
    add(
        "--webhook-network",
        type=network,
        action="append",
        default=[],
        metavar="CIDR",
        help="webhooks, and models for submitters' buckets, may also go to this network; may be repeated",
    )


def _add_evaluation(parser: argparse.ArgumentParser) -> None:
    default = Config(Path(), "")
    add = parser.add_argument_group(
        "evaluation", "tasks of lm-evaluation-harness that finished models are tried with; see docs/how-to/operate.md"
    ).add_argument
    offer = "a task that jobs may ask for, or a folder with tasks of your own; may be repeated. Needs cottage[evaluate]"
    add("--evaluation-tasks", action="append", default=[], metavar="NAME|FOLDER", help=offer)
    limit = "for all tasks of one model (%(default)s)"
    add("--evaluation-seconds", type=_day, default=default.evaluation_seconds, metavar="SECONDS", help=limit)


def _evaluation(options: argparse.Namespace) -> OfferedTasks:
    try:
        return offered(options.evaluation_tasks)
    except UnavailableError as error:
        raise SettingError(f"--evaluation-tasks: {error}") from error


def _day(text: str) -> float:
    value = decimal(text)
    if not 0 < value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text} is out of bounds: choose more than 0, at most 86400")
    return value


def _mail(options: argparse.Namespace) -> MailConfig | None:
    if options.smtp is None:
        return None
    try:
        host, port = split(options.smtp)
    except UrlError as error:
        raise SettingError(f"--smtp: {error}, such as mail.example.org:587") from error
    if "@" not in options.smtp_from:
        raise SettingError("--smtp-from is missing: name the address that mails are from")
    password = secret_in("--smtp-password-file", options.smtp_password_file) if options.smtp_password_file else ""
    security, user = options.smtp_security, options.smtp_user
    return MailConfig(host, port, options.smtp_from, security, user, password, options.public_url or "")


def _add_relays(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "relays", "what carries traffic between homes that cannot reach each other; see docs/how-to/operate.md"
    ).add_argument
    add(
        "--relay",
        type=_relay,
        action="append",
        default=[],
        metavar="ADDRESS",
        help="a `cottage relay` of this address may announce itself; may be repeated",
    )
    add(
        "--relay-user-rate",
        type=_rate,
        default=0.0,
        metavar="MBIT",
        help="Mbit/s for one node in one job on every `cottage relay`; 0 for no limit (0)",
    )
    add(
        "--turn",
        type=_turn_url,
        action="append",
        default=[],
        metavar="URL",
        help="another relay, such as turn:HOST:3478?transport=udp; may be repeated",
    )
    add(
        "--turn-secret-file",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="its shared secret (coturn's static-auth-secret); one for each --turn in order, or one for all",
    )
    add(
        "--stun",
        type=_stun_url,
        action="append",
        default=[],
        metavar="URL",
        help="a STUN server beside the relays, such as stun:HOST:3478; may be repeated",
    )


def _open(options: argparse.Namespace) -> bool:
    if options.open and not is_loopback(options.host):
        raise SettingError(
            f"--open on {options.host}: without sign-in anybody who reaches it could spend your money; "
            "leave --open out, or listen on 127.0.0.1"
        )
    return bool(options.open)


def _turn(options: argparse.Namespace) -> tuple[TurnRelay, ...]:
    """The relays of ``--turn``; URLs of one host with one secret are ways to one relay."""
    urls: list[str] = options.turn
    files: list[Path] = options.turn_secret_file
    if len(files) not in (1, len(urls)) and (urls or files):
        raise SettingError(f"--turn-secret-file was given {len(files)} times: give one for each --turn, or one for all")
    if len(options.stun) > MAX_URLS:
        raise SettingError(f"--stun was given {len(options.stun)} times: at most {MAX_URLS} are of use")
    found: dict[tuple[str, str], list[str]] = {}
    for url, file in zip(urls, files * len(urls) if len(files) == 1 else files, strict=False):
        found.setdefault((parse_ice(url).host, secret_in("--turn-secret-file", file)), []).append(url)
    relays = tuple(TurnRelay(tuple(ways), secret) for (_, secret), ways in found.items())
    if len(relays) > MAX_RELAYS or any(len(relay.urls) > MAX_URLS for relay in relays):
        raise SettingError(f"--turn: at most {MAX_RELAYS} relays with {MAX_URLS} URLs each")
    return relays


def _relay(text: str) -> str:
    return _address(text, "relay")


def _auditor(text: str) -> str:
    return _address(text, "auditor")


def _address(text: str, role: str) -> str:
    try:
        parse_address(text)
    except BadAddressError as error:
        raise argparse.ArgumentTypeError(f"{error}: `cottage {role}` shows its address when it starts") from error
    return text


def _turn_url(text: str) -> str:
    try:
        check_relay_url(text)
    except InvalidError as error:
        raise argparse.ArgumentTypeError(error.detail) from error
    return text


def _stun_url(text: str) -> str:
    try:
        server = IceServer(text)
    except IceConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    assert not server.is_relay  # A relay without credentials is refused above.
    return text


def _rate(text: str) -> float:
    value = decimal(text)
    if not 0 <= value <= 1e6:
        raise argparse.ArgumentTypeError(f"{text} is out of bounds: choose 0 to 1,000,000 Mbit/s")
    return value * BYTES_PER_MEGABIT


def _positive(text: str) -> float:
    value = decimal(text)
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is out of bounds: choose more than 0, at most 3600")
    return value


def _seconds(text: str) -> float:
    value = decimal(text)
    if not 0 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is out of bounds: choose 0 to 3600")
    return value


def _count(text: str) -> int:
    value = whole(text)
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{text} is out of bounds: choose a number from 0")
    return value


def _worth(text: str) -> TokenWorth:
    amount, _, currency = text.strip().partition(" ")
    try:
        worth: TokenWorth = convert({"currency": currency.strip().upper(), "millionths": parse(amount)}, TokenWorth)
    except (AmountError, MessageError) as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}; write an amount and a currency, as 0.92 EUR") from error
    return worth


def _at_least_one(text: str) -> int:
    value = whole(text)
    if not 1 <= value <= MAX_REPLICAS:
        raise argparse.ArgumentTypeError(f"{text} is out of bounds: choose 1 to {MAX_REPLICAS}")
    return value


if __name__ == "__main__":
    sys.exit(main())
