"""The words of the submitter's commands, and what each is told."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from common.errors import WalletAddressError
from common.options import decimal
from common.options import whole as whole_number
from coordinator.client.books import AUDIT_STATES, KINDS
from coordinator.client.datasets import CHOICES
from coordinator.client.login import TOKEN_VARIABLE
from coordinator.client.text import parse_amount
from protocol.job.job import Encoding
from protocol.rest.api import JobNotice
from protocol.wallets import wallet_address

DEFAULT_SERVER = "http://127.0.0.1:8470"
SERVER_VARIABLE = "COTTAGE_SERVER"
EXITS = """\
exit status: 0 done; 1 the job failed or was cancelled, or the coordinator refused; 2 wrong use, or a file that cannot be used;
3 the coordinator does not answer; 4 not signed in, or not allowed; 130 interrupted"""
LISTS = ("entries", "audits", "totals")
ASKS = {
    "pause": "pause a job once its round is complete; nothing is spent until it is resumed",
    "resume": "go on with a paused job",
    "stop": "end a job now and keep the model of its newest verified checkpoint",
    "cancel": "end a job now; verified work is paid, the rest refunded",
}


def parser() -> argparse.ArgumentParser:
    """Every command of a submitter."""
    whole = argparse.ArgumentParser(prog="cottage", description="Train a model on the network.", epilog=EXITS)
    commands = whole.add_subparsers(dest="command", required=True)
    common = _common()
    _submitting(commands, common)
    _following(commands, common)
    _looking(commands, common)
    _account(commands, common)
    _books(commands, common)
    return whole


def _common() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False, epilog=EXITS)
    server = os.environ.get(SERVER_VARIABLE, DEFAULT_SERVER)
    common.add_argument(
        "--server", default=server, metavar="URL", help=f"the coordinator (or ${SERVER_VARIABLE}); now {server}"
    )
    common.add_argument(
        "--token", metavar="KEY", help=f"an API key (or ${TOKEN_VARIABLE}); without it, that of `cottage login`"
    )
    common.add_argument("--json", action="store_true", help="print JSON, for programs")
    return common


def _submitting(commands: Any, common: argparse.ArgumentParser) -> None:
    files = argparse.ArgumentParser(add_help=False)
    files.add_argument("document", type=Path, metavar="JOB", help="the job document, YAML or JSON")
    files.add_argument("--data", type=Path, metavar="FILE", help="upload this dataset and put it into the document")
    files.add_argument(
        "--weights",
        type=Path,
        metavar="PATH",
        help="upload this model.safetensors, or a folder with shards, to start from",
    )
    files.add_argument("--tokenizer", type=Path, metavar="FILE", help="upload this tokenizer.json")

    _add(commands, "quote", [common, files], "what a job would cost")
    submit = _add(commands, "submit", [common, files], "submit a job and fund it")
    submit.add_argument("--watch", action="store_true", help="follow it until it is over")
    submit.add_argument(
        "--wallet", type=wallet, metavar="ADDRESS", help="the wallet that funds it; without it, the test wallet does"
    )
    submit.add_argument("--yes", action="store_true", help="do not ask before funding")
    submit.add_argument("--output", metavar="URL", help="send the model there, as `cottage output JOB URL` does")
    _output(submit)
    upload = _add(commands, "upload", [common], "upload a file; goes on where it was after a cut")
    upload.add_argument("file", type=Path, metavar="FILE")
    upload.add_argument(
        "--purpose", choices=("dataset", "weights", "tokenizer"), default="dataset", help="default: dataset"
    )
    _dataset(upload)
    upload.add_argument("--resume", metavar="ID", help="go on with an upload that another process began")

    check = _add(commands, "check", [common], "look through a dataset row by row, before anybody pays for it")
    check.add_argument("file", type=Path, metavar="FILE", help="uploaded first; or the artifact of an upload")
    _dataset(check)


def _dataset(command: argparse.ArgumentParser) -> None:
    command.add_argument("--format", choices=CHOICES, help="default: by the file's content")
    field = "field or column with the text, content.text for one within another; default: text"
    command.add_argument("--text-field", default="text", metavar="NAME", help=field)
    command.add_argument(
        "--encoding", choices=get_args(Encoding), default="auto", help="of its characters, if not UTF-8"
    )


def _following(commands: Any, common: argparse.ArgumentParser) -> None:
    jobs = _add(commands, "jobs", [common], "list jobs, newest first")
    _limit(jobs)
    for name, text in (
        ("show", "one job as it is now"),
        ("job", "the same as show"),
        ("watch", "follow a job until it is over"),
    ):
        _job(_add(commands, name, [common], text))
    for name, text in ASKS.items():
        _job(_add(commands, name, [common], text))
    download = _add(commands, "download", [common], "fetch a finished model; checks its SHA-256, goes on after a cut")
    _job(download)
    download.add_argument("folder", type=Path, metavar="DIR", help="where the model's folder goes")
    output = _add(commands, "output", [common], "have a model sent to a bucket of your own, or see how far that is")
    _job(output)
    key = "s3://BUCKET/PREFIX; its key is taken from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    output.add_argument("url", nargs="?", metavar="URL", help=key)
    output.add_argument("--remove", action="store_true", help="send nothing more there")
    _output(output)


def _output(command: argparse.ArgumentParser) -> None:
    """Where a model goes; the key is in the environment, where no list of processes shows it."""
    command.add_argument("--endpoint", default="", metavar="URL", help="the bucket's server; without it, AWS")
    command.add_argument("--region", default="us-east-1", metavar="NAME", help="default: %(default)s")
    command.add_argument("--with-checkpoints", action="store_true", help="send verified checkpoints there, too")


def _looking(commands: Any, common: argparse.ArgumentParser) -> None:
    logs = _add(commands, "logs", [common], "what the coordinator noted and the workers wrote")
    _job(logs)
    logs.add_argument("--search", default="", metavar="TEXT", help="only lines with this text")
    logs.add_argument(
        "--level",
        choices=["debug", "info", "warning", "error"],
        default="info",
        help="of the least important; default: info",
    )
    logs.add_argument(
        "--limit", type=whole_number, default=200, metavar="N", help="at most so many, the newest; default: %(default)s"
    )
    logs.add_argument("--follow", action="store_true", help="then every line as it comes, until the job is over")
    points = _add(commands, "checkpoints", [common], "the newest stored states of a job's model")
    _job(points)
    compare = _add(commands, "compare", [common], "jobs side by side: figures, loss by tokens, settings that differ")
    compare.add_argument("jobs", nargs="+", metavar="JOB", help="their ids, two or more")
    trial = _add(commands, "try", [common], "continue a text with a job's newest checkpoint")
    _job(trial)
    trial.add_argument("prompt", metavar="TEXT", help="how the text begins")
    trial.add_argument("--tokens", type=whole_number, default=100, metavar="N", help="tokens to add; default: 100")
    trial.add_argument(
        "--temperature", type=decimal, default=0.8, metavar="T", help="0 is the likeliest text; default: 0.8"
    )
    trial.add_argument(
        "--seed", type=whole_number, default=0, metavar="N", help="another one, another text; default: 0"
    )
    trial.add_argument("--round", type=whole_number, metavar="N", help="of another checkpoint than the newest")
    budget = _add(commands, "budget", [common], "raise a job's cap; one that paused for it goes on")
    _job(budget)
    budget.add_argument("amount", type=_amount, metavar="AMOUNT", help="tokens to add, such as 2.50")


def _account(commands: Any, common: argparse.ArgumentParser) -> None:
    _add(commands, "login", [common], "keep an API key for a coordinator on this machine")
    _add(commands, "logout", [common], "forget it")
    keys = _add(commands, "keys", [common], "list, make and revoke API keys")
    keys.add_argument("--new", metavar="NAME", help="make a key of this name; its text is shown once")
    keys.add_argument(
        "--days", type=whole_number, default=90, metavar="N", help="days until a new key expires; default: 90"
    )
    keys.add_argument(
        "--scope",
        action="append",
        metavar="SCOPE",
        help="what a new key may do, again for more; default: all that jobs need",
    )
    keys.add_argument("--revoke", metavar="ID", help="end a key at once")
    trail = _add(commands, "trail", [common], "what was done with the account, newest first")
    _limit(trail)
    trail.add_argument("--everybody", action="store_true", help="all accounts'; for operators")
    notices = _add(commands, "notices", [common], "where you are told of your jobs, and what became of it")
    _limit(notices)
    notices.add_argument("--webhook", metavar="URL", help='tell this address; "" for none')
    notices.add_argument("--mail", metavar="ADDRESS", help='write to this address, once it is confirmed; "" for none')
    notices.add_argument(
        "--when", action="append", choices=get_args(JobNotice), help="tell of this, again for more; default: of all"
    )
    notices.add_argument("--confirm", metavar="TOKEN", help="confirm a mail address with what was sent there")
    notices.add_argument("--test", action="store_true", help="send a test to every address that is switched on")


def _books(commands: Any, common: argparse.ArgumentParser) -> None:
    books = _add(commands, "ledger", [common], "the coordinator's books, which everybody may read")
    books.add_argument("list", choices=LISTS, help="transactions; audits; or where all the money is")
    books.add_argument("--job", metavar="JOB", help="only its")
    books.add_argument("--kind", action="append", choices=KINDS, help="of entries: only these, again for more")
    books.add_argument("--state", choices=AUDIT_STATES, help="of audits: only those in this state")
    _limit(books)


def _limit(command: argparse.ArgumentParser) -> None:
    command.add_argument("--limit", type=whole_number, default=20, metavar="N", help="at most so many; default: 20")


def _add(commands: Any, name: str, parents: Sequence[argparse.ArgumentParser], text: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(
        name, parents=parents, help=text, description=text, epilog=EXITS
    )
    return made


def _job(command: argparse.ArgumentParser) -> None:
    command.add_argument("job", metavar="JOB", help="its id, as `cottage jobs` shows it")


def wallet(text: str) -> str:
    """The address of a wallet."""
    try:
        return wallet_address(text)
    except WalletAddressError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _amount(text: str) -> int:
    try:
        return parse_amount(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
