"""``cottage ask``: ask a deployment's node directly, end to end encrypted; the coordinator is told how much was said.

Exit codes: as the other commands of a submitter; 1 also where no node could be reached, or answered.
"""

import argparse
import asyncio
import os
import secrets
import sys
from collections.abc import Sequence
from contextlib import aclosing

import msgspec

from common.console import Terminal
from common.errors import BadAddressError, TransportError
from common.options import decimal, whole
from common.terminal import complain, say, say_json
from common.urls import is_loopback
from coordinator.client.client import Client
from coordinator.client.commands.base import EXIT_INTERRUPTED, EXIT_REFUSED, EXIT_UNREACHABLE, EXIT_USAGE
from coordinator.client.deployments import adapter_models, never_chats
from coordinator.client.errors import ClientError, CoordinatorAddressError, UnreachableError
from coordinator.client.login import LoginFileError, complain_of_key, needs_key, take_token, token_of
from coordinator.client.options import DEFAULT_SERVER, EXITS, SERVER_VARIABLE
from cottage.private import PrivateClient
from protocol.codec import MessageError, convert
from protocol.identity import parse_address
from protocol.rest.completions import MAX_TEMPERATURE
from protocol.serving import AnsweredReport, GenerateCommand

EXIT_SIGNED_OUT = 4


def main(argv: Sequence[str]) -> int:
    """Ask, and print the answer as it comes; returns the exit code."""
    options = _parser().parse_args(argv)
    try:
        command = _command(options)
        return asyncio.run(_run(options, command))
    except (BadAddressError, MessageError, LoginFileError, CoordinatorAddressError) as error:
        complain("cottage ask", error)
        return EXIT_USAGE
    except UnreachableError as error:
        complain("cottage ask", error)
        return EXIT_UNREACHABLE
    except ClientError as error:
        return complain_of_key(error, EXIT_SIGNED_OUT if needs_key(error) else EXIT_REFUSED)
    except TransportError as error:
        way = "; nodes on this computer are asked with --loopback"
        complain("cottage ask", f"{error}{way if is_loopback(options.server) and not options.loopback else ''}")
        return EXIT_REFUSED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    server = os.environ.get(SERVER_VARIABLE, DEFAULT_SERVER)
    parser = argparse.ArgumentParser(
        prog="cottage ask",
        description="Ask a deployment of yours without the coordinator reading it: the words go to the node's key, "
        "end to end encrypted, and the coordinator is told how many tokens there were.",
        epilog=EXITS,
    )
    add = parser.add_argument
    add("deployment", metavar="DEPLOYMENT", help="its id; DEPLOYMENT:JOB for an adapter of it")
    add("words", metavar="WORDS", help="what is said; - reads it from standard input")
    add("--server", default=server, metavar="URL", help=f"the coordinator (or ${SERVER_VARIABLE}); now {server}")
    take_token(parser)
    add(
        "--text",
        action="store_true",
        help="go on with the words; else they are a message, in the model's chat template",
    )
    add(
        "--node",
        metavar="ADDRESS",
        help="talk with this node alone, else with whoever the coordinator names; where others hold the model with it, they read "
        "some of the words",
    )
    add("--tokens", type=whole, metavar="N", help="of the answer, at most; else as many as the model can read")
    add("--temperature", type=decimal, default=1.0, metavar="T", help="0 takes the likeliest token; default: 1")
    add("--seed", type=whole, metavar="N", help="the same one draws the same answer; else by lot")
    add("--loopback", action="store_true", help="the nodes are on this computer, as those of `cottage demo`")
    add("--json", action="store_true", help="one JSON document at the end")
    return parser


def _command(options: argparse.Namespace) -> GenerateCommand:
    """What is asked; raises MessageError, BadAddressError."""
    if options.node is not None:
        try:
            parse_address(options.node)
        except BadAddressError as error:
            raise BadAddressError(f"--node {options.node[:60]!r} is no node's address: {error}") from None
    words = sys.stdin.read() if options.words == "-" else options.words
    if not words.strip():
        raise MessageError("there are no words: say what the model is asked")
    what = {"prompt": words} if options.text else {"messages": [{"role": "user", "content": words}]}
    if options.temperature > MAX_TEMPERATURE:
        raise MessageError(f"--temperature is {options.temperature:g}, and is {MAX_TEMPERATURE:g} at most, as at /v1")
    seed = secrets.randbits(63) if options.seed is None else options.seed
    sampling = {"temperature": options.temperature, "seed": seed}
    command: GenerateCommand = convert(
        {"type": "generate", "id": "1", "tokens": options.tokens, "sampling": sampling, **what}, GenerateCommand
    )
    return command


def _tell(why: str) -> None:
    say(f"{why.removesuffix(': try again')}: waiting", error=True)


async def _numbered(client: Client, deployment: str, job: str) -> int:
    """The number of an adapter of a deployment, which its node knows it by; raises ClientError where it has none of this job."""
    adapters = adapter_models(await client.get(deployment))
    names = [name.partition(":")[2] for name, _ in adapters]
    if job not in names:
        known = ", ".join(name for name, _ in adapters) or "it has none"
        raise ClientError(f"deployment {deployment} has no adapter of job {job[:60]!r}: {known}")
    return names.index(job) + 1


async def _run(options: argparse.Namespace, command: GenerateCommand) -> int:
    text, out = list[str](), Terminal()
    deployment, is_adapter, job = options.deployment.partition(":")
    async with Client(options.server, token_of(options, options.server)) as coordinator:
        if is_adapter:
            command = msgspec.structs.replace(command, adapter=await _numbered(coordinator, deployment, job))
        elif command.messages and never_chats(await coordinator.get(deployment)):
            raise ClientError("this model has no chat template: have it continue the text, with --text")
        async with (
            PrivateClient(coordinator, deployment, node=options.node, loopback=options.loopback, waits=_tell) as client,
            aclosing(client.ask(command)) as reports,
        ):
            async for report in reports:
                if isinstance(report, AnsweredReport):
                    end = report
                else:
                    text.append(report.text)
                    if not options.json:
                        out.print(report.text, end="")
            nodes = list(dict.fromkeys(session.node for session in client.nodes))
            beside = dict.fromkeys(node for session in client.nodes for node in session.beside if node not in nodes)
    if options.json:
        say_json(
            {
                "text": "".join(text),
                "prompt": end.prompt,
                "tokens": end.tokens,
                "reason": end.reason,
                "nodes": [*nodes, *beside],
            }
        )
        return 0
    out.print()
    say(f"{end.tokens:,} tokens, {_readers(nodes, list(beside))}; the coordinator was told the counts", error=True)
    return 0


def _readers(nodes: Sequence[str], beside: Sequence[str]) -> str:
    """Who has read the words: ``nodes`` all of them, and those ``beside`` them what goes through their layers."""
    some = f", and in part by {', '.join(beside)}, which hold the model with it" if beside else ""
    return f"read by {', '.join(nodes)}{some}"
