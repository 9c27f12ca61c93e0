"""``cottage deploy``: a model that answers on nodes of the network, from its price to how it is asked."""

import argparse
from pathlib import Path
from typing import Any

from common.console import Terminal
from common.terminal import say_json
from coordinator.client.client import Client
from coordinator.client.commands.base import EXIT_REFUSED, CliUsageError
from coordinator.client.commands.follow import follow
from coordinator.client.commands.send import Later, hub_name, model_files_of
from coordinator.client.commands.submit import agreed, funded
from coordinator.client.deployments import (
    adapter_models,
    answers,
    chats,
    check_served,
    curl_of,
    deployment_document,
    deployment_name,
    point_of,
    texts_only,
    usual_budget,
)
from coordinator.client.errors import ClientError
from coordinator.client.show import deployment_quote_table
from protocol.asking import template_text
from protocol.ids import Digest, is_id
from protocol.rest import api


async def deploy(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage deploy``: show the price, begin, and wait until the first node answers."""
    later: Later = []
    model, name, chat, tokenizer = await _model_of(client, options, out, later)
    draft, draft_tokenizer = (None, None) if options.draft is None else await _draft_of(client, options, out, later)

    def document() -> dict[str, Any]:
        return tokenizer | deployment_document(
            model,
            options.budget or 1,
            options.replicas,
            options.hours,
            options.round,
            options.context,
            options.name or deployment_name(name),
            options.idle_minutes,
            options.stages,
            options.weights,
            options.adapter,
            draft,
            draft_tokenizer,
        )

    asked, quote = await _priced(client, document(), options)
    if later and not quote.problems:
        for send in later:
            await send()
        asked, quote = await _priced(client, document(), options)
    if options.json and quote.problems:
        raise ClientError("; ".join(quote.problems))
    if not options.json:
        out.print(deployment_quote_table(quote, asked["budget"], proposed=options.budget is None))
    if not chat and not options.json and not quote.problems:
        out.print(f"The model answers texts only: {texts_only(chat)}", soft_wrap=True)
    if quote.problems or not agreed(options, out):
        return EXIT_REFUSED
    job = await funded(client, await client.create_job(asked, options.wallet), options, out)
    if options.json:
        view = await client.wait(job.id, until=answers)
        say_json(view)
        return 0 if answers(view) else EXIT_REFUSED
    then = "Nodes load the model once it is funded" if job.state == "created" else "Nodes load the model"
    out.print(f"{job.id}  {job.state}. {then}; end it at any time: cottage stop {job.id}", soft_wrap=True)
    view = await follow(client, job.id, options, out, answers)
    if not answers(view):
        return EXIT_REFUSED
    out.print(how_to_ask(client.address, view, chat), soft_wrap=True)
    return 0


async def _priced(
    client: Client, document: dict[str, Any], options: argparse.Namespace
) -> tuple[dict[str, Any], api.Quote]:
    """A document with its budget, and what it costs; weights need not be there yet."""
    if options.budget is None:
        document["budget"] = usual_budget(await client.quote(document))
    return document, await client.quote(document)


async def _model_of(
    client: Client, options: argparse.Namespace, out: Terminal, later: Later
) -> tuple[str | dict[str, Any], str, bool, dict[str, Any]]:
    """What is to answer, for a document: a job or a model's files; its name, whether it chats, and its tokenizer."""
    path, (job, after) = Path(options.model), point_of(options.model)
    if not options.model.strip() or (not path.exists() and hub_name(path) is None and not is_id(job)):
        way = "name a job as `cottage jobs` shows it, a folder, or a model of the Hub"
        raise CliUsageError(f"there is neither a job nor a folder {options.model!r}: {way}")
    if not path.exists() and hub_name(path) is None:
        if None not in (after, options.round) and after != options.round:
            raise CliUsageError(
                f"{options.model} and --round {options.round} name two checkpoints: leave one of them out"
            )
        options.round = options.round if after is None else after
        source = await client.get(job)
        check_served(source, options.round)
        return source.id, source.name, chats(source), {}
    if options.round is not None:
        way = "leave it out" if options.draft is None else "leave it out; of a draft model's job it is --draft JOB@N"
        raise CliUsageError(f"--round is a checkpoint of a job, and {path} is none: {way}")
    document = await model_files_of(client, path, options, out, later)
    settings = document.get("tokenizer", {}).get("settings")
    whole = path.resolve() if path.exists() else path
    name = whole.parent.name if whole.is_file() else whole.name
    return document["model"], name, bool(template_text(settings)), {"tokenizer": document.get("tokenizer")}


async def _draft_of(
    client: Client, options: argparse.Namespace, out: Terminal, later: Later
) -> tuple[str | dict[str, Any], Digest | None]:
    """The draft model, for a document, and the tokenizer of its files."""
    job, after = point_of(options.draft)
    if is_id(job) and not Path(options.draft).exists():
        check_served(await client.get(job), after, f"--draft {job}@{{}}")
        return str(options.draft), None
    own = argparse.Namespace(**{**vars(options), "model": options.draft, "round": None})
    draft, _, _, named = await _model_of(client, own, out, later)
    return draft, named.get("tokenizer", {}).get("file")


def how_to_ask(address: str, view: api.JobView, chat: bool) -> str:
    """What a program needs to ask a deployment, and how it is looked after."""
    return "\n".join(
        (
            "",
            "It answers programs that speak OpenAI's API:",
            f"  base URL  {address}/v1",
            f"  model     {view.id}",
            *(f"  adapter   {model}  {title}" for model, title in adapter_models(view)),
            "  key       an API key of yours: cottage keys --new NAME makes one",
            "",
            f"  {curl_of(address, view.id, chat)}",
            *([] if chat else ["", f"Texts only: {texts_only(chat)}."]),
            "",
            f"cottage watch {view.id} follows it; cottage stop {view.id} ends it, and the rest comes back.",
        )
    )
