"""The words of the submitter's commands, and what each is told."""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from common.errors import WalletAddressError
from common.options import decimal
from common.options import whole as whole_number
from coordinator.client.books import AUDIT_STATES, KINDS
from coordinator.client.datasets import CHOICES
from coordinator.client.deployments import HOURS, MOST_STAGES, REPLICAS
from coordinator.client.login import take_token
from coordinator.client.text import parse_amount
from protocol.ids import is_id
from protocol.images.statement import Architecture
from protocol.job.job import Encoding, ServedWeights
from protocol.rest.admin import AdminJobState, AdminNodeState, AdminRowState
from protocol.rest.api import JobNotice
from protocol.serving import LONGEST
from protocol.wallets import wallet_address

MOST_HOURS = 24 * 90  # A job's longest deadline.
DEFAULT_SERVER = "http://127.0.0.1:8470"
SERVER_VARIABLE = "COTTAGE_SERVER"
EXITS = """\
exit status: 0 done; 1 the job failed or was cancelled, or the coordinator refused; 2 wrong use, or a file that cannot be used;
3 the coordinator does not answer; 4 not signed in, or not allowed; 130 interrupted"""
OPERATES = "operate a coordinator: nodes, jobs of all accounts, the outbox, room for files"
IMAGES = "Images of containers, sent without a registry. Who lends accepts the key that signs them, or none of them runs there."
ORDERS = (
    ("drain", "give a node no new seat; those that it has go to others as these come", False),
    ("undrain", "let a node have seats again", False),
    ("ban", "send a node away; nothing that was verified is taken, and no stake", True),
    ("unban", "let a banned node come back", True),
)
"""Word, what it does, whether it needs a reason."""
LISTS = ("entries", "audits", "totals")
GGUF_TYPES = ("f16", "bf16", "q8_0", "f32")
ASKS = {
    "pause": "pause a job once its round is complete; nothing is spent until it is resumed",
    "resume": "go on with a paused job",
    "stop": "end a job now and keep the model of its newest verified checkpoint; a deployment answers no more",
    "cancel": "end a job now; verified work is paid, the rest refunded",
}


def parser() -> argparse.ArgumentParser:
    """Every command of a submitter."""
    whole = argparse.ArgumentParser(prog="cottage", description="Train a model on the network.", epilog=EXITS)
    commands = whole.add_subparsers(dest="command", required=True)
    common = _common()
    _submitting(commands, common)
    _deploying(commands, common)
    _mapping(commands, common)
    _images(commands, common)
    _following(commands, common)
    _looking(commands, common)
    _account(commands, common)
    _books(commands, common)
    _operating(commands, common)
    _inviting(commands, common)
    return whole


def _common() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False, epilog=EXITS)
    server = os.environ.get(SERVER_VARIABLE, DEFAULT_SERVER)
    common.add_argument(
        "--server", default=server, metavar="URL", help=f"the coordinator (or ${SERVER_VARIABLE}); now {server}"
    )
    take_token(common)
    common.add_argument("--json", action="store_true", help="print JSON, for programs; nothing is asked")
    return common


def weighed(text: str) -> tuple[Path, float | None]:
    """A file, and how often its rows are trained on where that is said behind it, as FILE=2."""
    name, separator, weight = text.rpartition("=")
    if not separator or Path(text).exists():
        return Path(text), None
    return Path(name), decimal(weight)


def _submitting(commands: Any, common: argparse.ArgumentParser) -> None:
    files = argparse.ArgumentParser(add_help=False)
    files.add_argument("document", type=Path, metavar="JOB", help="the job document, YAML or JSON")
    data = "upload this dataset and put it into the document; of several, FILE=2 is trained on twice"
    files.add_argument("--data", type=weighed, action="append", default=[], metavar="FILE[=WEIGHT]", help=data)
    files.add_argument(
        "--heldout-data",
        type=Path,
        metavar="FILE",
        help="a dataset of its own for the held-out loss; else a part of the others",
    )
    model = "the model to start from: its folder, its model.safetensors, or its name on the Hugging Face Hub, as NAME@REVISION"
    files.add_argument("--model", "--weights", type=Path, metavar="PATH", help=model)
    files.add_argument("--tokenizer", type=Path, metavar="FILE", help="upload this tokenizer.json")

    _add(commands, "quote", [common, files], "what a job would cost")
    submit = _add(commands, "submit", [common, files], "submit a job and fund it")
    submit.add_argument("--watch", action="store_true", help="follow it until it is over")
    _track(submit)
    _wallet(submit)
    submit.add_argument("--yes", action="store_true", help="do not ask before funding; --json does not ask either")
    submit.add_argument("--output", metavar="URL", help="send the model there, as `cottage output JOB URL` does")
    _output(submit)
    upload = _add(commands, "upload", [common], "upload a file; goes on where it was after a cut")
    upload.add_argument("file", type=Path, metavar="FILE")
    upload.add_argument(
        "--purpose", choices=("dataset", "weights", "tokenizer", "input"), default="dataset", help="default: dataset"
    )
    _dataset(upload)
    upload.add_argument("--resume", metavar="ID", help="go on with an upload that another process began")

    check = _add(commands, "check", [common], "look through a dataset row by row, before anybody pays for it")
    check.add_argument("file", type=Path, metavar="FILE", help="uploaded first; or the artifact of an upload")
    _dataset(check)
    tokenizer = (
        "a tokenizer.json, with what lies beside it, a model's folder or its name on the Hub; default: tokens are bytes"
    )
    check.add_argument("--tokenizer", type=Path, metavar="PATH", help=tokenizer)
    check.add_argument(
        "--sequence", type=whole_number, default=128, metavar="TOKENS", help="of the training; default: 128"
    )
    learn = "of conversations: the assistant's turns (the default), or all that is said"
    check.add_argument("--learn", choices=("answers", "all"), default="answers", help=learn)


def _deploying(commands: Any, common: argparse.ArgumentParser) -> None:
    deploy = _add(commands, "deploy", [common], "have a model answer on nodes of the network, and fund that")
    whose = "a job, whose model it is, a model's folder or weights there, or its name on the Hugging Face Hub, as NAME@REVISION"
    deploy.add_argument("model", metavar="MODEL", help=whose)
    deploy.add_argument(
        "--round",
        type=_between(1, 10**9),
        metavar="N",
        help="where MODEL is a job: its checkpoint after so many rounds; default: the finished model",
    )
    deploy.add_argument(
        "--replicas",
        type=_between(1, 64),
        default=REPLICAS,
        metavar="N",
        help="how often it is held; default: %(default)s",
    )
    stages = "nodes that hold it together, each some layers; default: one where it fits, else as few as it fits"
    deploy.add_argument("--stages", type=_between(1, MOST_STAGES), metavar="N", help=stages)
    held = "how nodes hold its matrices: int8 and nf4 (4 bits) take less memory, and are slower; default: %(default)s"
    deploy.add_argument("--weights", choices=get_args(ServedWeights), default="float32", help=held)
    beside = "a job whose adapter of this very model answers, too; may be given several times"
    deploy.add_argument("--adapter", action="append", default=[], type=_job_id, metavar="JOB", help=beside)
    drafts = "a small model with the same tokenizer, named as MODEL is, a job's checkpoint as JOB@N: "
    drafts += "it drafts where several nodes hold the model together"
    deploy.add_argument("--draft", metavar="MODEL", help=drafts)
    hours = "until it ends; default: 8"
    deploy.add_argument("--hours", type=_hours, default=HOURS, metavar="N", help=hours)
    most = "the most that is paid, such as 2.50; default: twice what being ready costs, or the least that is taken"
    deploy.add_argument("--budget", type=_paid, metavar="AMOUNT", help=most)
    context = f"tokens of a prompt with its answer; default: as many as the model reads, {LONGEST:,} at most"
    deploy.add_argument("--context", type=_between(64, LONGEST), metavar="N", help=context)
    idle = "let its nodes go after so many minutes without a request, until somebody asks; default: they stay"
    deploy.add_argument("--idle-minutes", type=_between(1, 10_080), metavar="N", help=idle)
    deploy.add_argument("--name", default="", metavar="NAME", help="how you find it again")
    _wallet(deploy)
    deploy.add_argument("--yes", action="store_true", help="do not ask before funding; --json does not ask either")


def _mapping(commands: Any, common: argparse.ArgumentParser) -> None:
    what = "run a container once for each of many files, on nodes of the network, and fetch what it writes"
    mapped = _add(commands, "map", [common], what)
    mapped.add_argument("image", metavar="IMAGE", help="its name, as `cottage image list` shows it, or its artifact")
    command = "what runs, quoted as one word: {input} is the file in the container, {name} its name, {index} its number"
    mapped.add_argument("command_line", metavar="COMMAND", help=command)
    mapped.add_argument(
        "--over",
        nargs="+",
        required=True,
        metavar="FILE",
        help="the files, or patterns in quotes such as 'inputs/*.json'",
    )
    mapped.add_argument("--out", type=Path, required=True, metavar="DIR", help="where results go, a folder each")
    shared = "a file that each one reads, at /in/PATH; may be given several times"
    mapped.add_argument("--input", action="append", default=[], type=_placed, metavar="PATH=FILE", help=shared)
    mapped.add_argument("--env", action="append", default=[], type=_variable, metavar="NAME=VALUE", help="of each one")
    mapped.add_argument("--seconds", type=decimal, metavar="N", help="the most that one may take; default: 600")
    mapped.add_argument("--estimate", type=decimal, metavar="N", help="seconds that one likely takes, for the price")
    mapped.add_argument("--memory", type=whole_number, metavar="MB", help="the most that one may have; default: 1024")
    mapped.add_argument("--disk", type=whole_number, metavar="MB", help="the most that one may write; default: 1024")
    mapped.add_argument("--gpu", action="store_true", help="with a graphics card")
    mapped.add_argument("--retries", type=_between(0, 10), metavar="N", help="of one that fails; default: 2")
    batch = "elements that share a container, one after the other, for ones that take less than a second; default: 1"
    mapped.add_argument("--batch", type=_between(1, 256), metavar="N", help=batch)
    verify = "how results are made sure of; default: replicated, which runs each at several owners who must agree"
    mapped.add_argument("--verify", choices=("replicated", "checked", "spot-checked", "trusted"), help=verify)
    mapped.add_argument("--owners", type=_between(2, 7), metavar="N", help="that must agree; default: 2")
    check = (
        "a command that decides on each result, at two other owners: it takes what lies in /in/result by ending with 0"
    )
    mapped.add_argument("--check", metavar="COMMAND", help=check)
    mapped.add_argument("--check-image", metavar="IMAGE", help="where that command is in another image")
    mapped.add_argument("--check-estimate", type=decimal, metavar="N", help="seconds that it likely takes")
    trust = "the payout address of an owner whose machines may run it, and nobody else's; may be given several times"
    mapped.add_argument("--trust", action="append", default=[], type=wallet, metavar="ADDRESS", help=trust)
    mapped.add_argument("--hours", type=_hours, default=24.0, metavar="N", help="until it ends; default: 24")
    most = "the most that is paid, such as 2.50; default: a quarter more than it likely costs"
    mapped.add_argument("--budget", type=_paid, metavar="AMOUNT", help=most)
    mapped.add_argument("--name", default="", metavar="NAME", help="how you find it again")
    _wallet(mapped)
    mapped.add_argument("--yes", action="store_true", help="do not ask before funding; --json does not ask either")


def _placed(text: str) -> tuple[str, Path]:
    """A file, and where it lies in the container."""
    place, separator, file = text.partition("=")
    if not separator:
        place, file = Path(text).name, text
    if not Path(file).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {file!r}: write PATH=FILE, as in model.bin=data/model.bin")
    return place, Path(file)


def _variable(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} has no value: write NAME=VALUE")
    return name, value


def _job_id(text: str) -> str:
    if not is_id(text.strip()):
        raise argparse.ArgumentTypeError(f"{text!r} is no job: give its id, as `cottage jobs` shows it")
    return text.strip()


def _wallet(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--wallet", type=wallet, metavar="ADDRESS", help="the wallet that funds it; without it, the test wallet does"
    )


def _dataset(command: argparse.ArgumentParser) -> None:
    command.add_argument("--format", choices=CHOICES, help="default: by the file's content")
    field = "field or column with the text, content.text for one within another; default: text"
    command.add_argument("--text-field", default="text", metavar="NAME", help=field)
    command.add_argument(
        "--encoding", choices=get_args(Encoding), default="auto", help="of its characters, if not UTF-8"
    )


def _images(commands: Any, common: argparse.ArgumentParser) -> None:
    words = commands.add_parser(
        "image", help="container images of your own, for array jobs: push, list", description=IMAGES, epilog=EXITS
    )
    actions = words.add_subparsers(dest="action", required=True, metavar="WORD")
    push = _add(actions, "push", [common], "sign an image and send it; goes on where it was after a cut")
    push.add_argument(
        "file", type=Path, metavar="ARCHIVE", help="as docker save IMAGE -o FILE writes it, or an OCI archive"
    )
    push.add_argument("--name", help="what it is called, such as sweep:1; default: the file's name")
    push.add_argument(
        "--key", type=Path, metavar="FILE", help="the key that signs; default: one of your own, made at the first push"
    )
    push.add_argument(
        "--architecture",
        choices=get_args(Architecture),
        default="amd64",
        help="which is meant where the archive has several; default: amd64",
    )
    push.add_argument("--resume", metavar="ID", help="go on with an upload of the same image that was begun")
    _add(actions, "list", [common], "the images that you have pushed, newest first")


def _following(commands: Any, common: argparse.ArgumentParser) -> None:
    jobs = _add(commands, "jobs", [common], "list jobs, newest first")
    _limit(jobs)
    for name, text in (("show", "one job as it is now"), ("job", "the same as show")):
        _job(_add(commands, name, [common], text))
    watch = _add(commands, "watch", [common], "follow a job until it is over")
    _job(watch)
    _track(watch)
    for name, text in ASKS.items():
        _job(_add(commands, name, [common], text))
    download = _add(commands, "download", [common], "fetch a finished model, or an array's results; checks SHA-256")
    _job(download)
    download.add_argument("folder", type=Path, metavar="DIR", help="where the model's folder goes")
    download.add_argument("--merged", action="store_true", help="an adapter together with the model that it adapts")
    gguf = "and as one GGUF file in the folder, for llama.cpp; f16 where no type is named"
    download.add_argument("--gguf", nargs="?", const="f16", choices=GGUF_TYPES, metavar="TYPE", help=gguf)
    push = "then send the folder to this repository of the Hugging Face Hub; one that is made is private"
    download.add_argument("--push", metavar="NAME", help=push)
    output = _add(commands, "output", [common], "have a model sent to a bucket of your own, or see how far that is")
    _job(output)
    key = "s3://BUCKET/PREFIX; its key is taken from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    output.add_argument("url", nargs="?", metavar="URL", help=key)
    output.add_argument("--remove", action="store_true", help="send nothing more there")
    _output(output)


def _track(command: argparse.ArgumentParser) -> None:
    """Where the curve goes. Its keys are in the environment, and stay on this computer."""
    places = "and have its rounds in a tracker of yours as they come: mlflow, mlflow:URI, wandb or wandb:PROJECT"
    command.add_argument("--track", metavar="TRACKER", help=f"follow it, {places}")


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
    trial.add_argument("prompt", metavar="TEXT", help="how the text begins, or what is said")
    trial.add_argument("--tokens", type=whole_number, default=100, metavar="N", help="tokens to add; default: 100")
    trial.add_argument(
        "--temperature", type=decimal, default=0.8, metavar="T", help="0 is the likeliest text; default: 0.8"
    )
    trial.add_argument(
        "--seed", type=whole_number, default=0, metavar="N", help="another one, another text; default: 0"
    )
    trial.add_argument(
        "--chat", action="store_true", help="TEXT is said to the model, in its own chat template; it answers"
    )
    trial.add_argument("--start", action="store_true", help="the model that the job started from answers, to compare")
    trial.add_argument("--round", type=whole_number, metavar="N", help="of another checkpoint than the newest")
    budget = _add(
        commands, "budget", [common], "raise the cap of a job or a deployment; one that paused for it goes on"
    )
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


def _operating(commands: Any, common: argparse.ArgumentParser) -> None:
    whole = commands.add_parser(
        "admin", help=OPERATES, description=f"{OPERATES}; needs a key with the scope operate", epilog=EXITS
    )
    words = whole.add_subparsers(dest="action", required=True, metavar="WORD")
    nodes = _add(words, "nodes", [common], "nodes that ever were here, with their state and what they hold")
    nodes.add_argument(
        "search", nargs="?", default="", metavar="TEXT", help="how an address begins, or a part of the name"
    )
    nodes.add_argument("--state", choices=get_args(AdminNodeState), help="only those in this state")
    _limit(nodes)
    _node(_add(words, "node", [common], "one node"))
    for name, text, needed in ORDERS:
        order = _add(words, name, [common], text)
        _node(order)
        why = "its owner reads it, and so does the trail" if needed else "for the trail"
        order.add_argument("--reason", required=needed, default="", metavar="TEXT", help=why)
    jobs = _add(words, "jobs", [common], "jobs of all accounts, newest first, and what they wait for")
    jobs.add_argument(
        "--state", choices=get_args(AdminJobState), default="live", help="default: live, those that have not ended"
    )
    jobs.add_argument("--cancel", metavar="JOB", help="end this one: verified work is paid, the rest refunded")
    jobs.add_argument("--reason", default="", metavar="TEXT", help="why it is cancelled; its owner reads it")
    _limit(jobs)
    outbox = _add(words, "outbox", [common], "what the ledger has not confirmed, newest first")
    outbox.add_argument(
        "--state", choices=get_args(AdminRowState), help="only rows under way, or those that were given up"
    )
    _limit(outbox)
    _add(words, "lenders", [common], "who may lend, and what the list says")
    storage = _add(
        words, "storage", [common], "room for files, and what the next sweep removes, or would by other days"
    )
    dry = "as if --keep-%s of `cottage serve` were so: nothing is removed"
    storage.add_argument("--job-files", type=whole_number, metavar="DAYS", help=dry % "job-files")
    storage.add_argument("--uploads", type=whole_number, metavar="DAYS", help=dry % "uploads")


def _inviting(commands: Any, common: argparse.ArgumentParser) -> None:
    text = "invite a computer to lend, where the network asks who comes"
    invite = _add(commands, "invite", [common], text)
    invite.add_argument("--note", default="", metavar="TEXT", help="whom it is for")
    invite.add_argument(
        "--days", type=whole_number, default=7, metavar="N", help="until it ends unused, 1 to 365; default: 7"
    )
    invite.add_argument("--list", action="store_true", help="those that were made; an operator sees all")
    invite.add_argument("--withdraw", metavar="ID", help="take one back: who has used it may lend no more")


def _node(command: argparse.ArgumentParser) -> None:
    command.add_argument("node", metavar="NODE", help="its address, as `cottage admin nodes` shows it")


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


def _between(least: int, most: int) -> Callable[[str], int]:
    """A whole number within bounds, both of which may be taken."""

    def taken(text: str) -> int:
        if not least <= (number := whole_number(text)) <= most:
            raise argparse.ArgumentTypeError(f"{number} is out of reach: write {least:,} to {most:,}")
        return number

    return taken


def _hours(text: str) -> float:
    if not 0 < (hours := decimal(text)) <= MOST_HOURS:
        raise argparse.ArgumentTypeError(f"{hours:g} is out of reach: write hours above 0, {MOST_HOURS:,} at most")
    return hours


def _paid(text: str) -> int:
    if not (paid := _amount(text)):
        raise argparse.ArgumentTypeError("0 pays for nothing: write an amount above 0, such as 2.50")
    return paid


def _amount(text: str) -> int:
    try:
        return parse_amount(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
