"""``cottage deploy``: a model that answers on nodes of the network, from its price to how it is asked."""

import argparse
from pathlib import Path
from typing import Any

from common.console import Terminal
from common.terminal import say_json
from coordinator.client.client import Client
from coordinator.client.commands.base import EXIT_REFUSED, CliUsageError
from coordinator.client.commands.follow import follow
from coordinator.client.commands.send import hub_name, model_files_of
from coordinator.client.commands.submit import agreed, funded
from coordinator.client.deployments import (
    adapter_models,
    answers,
    chats,
    check_served,
    curl_of,
    deployment_document,
    deployment_name,
    usual_budget,
)
from coordinator.client.errors import ClientError
from coordinator.client.show import deployment_quote_table
from protocol.ids import is_id
from protocol.rest import api


async def deploy(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage deploy``: show the price, begin, and wait until the first node answers."""
    model, name, chat, tokenizer = await _model_of(client, options, out)
    document = deployment_document(
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
    )
    document |= tokenizer
    if options.budget is None:
        document["budget"] = usual_budget(await client.quote(document))
    quote = await client.quote(document)
    if options.json and quote.problems:
        raise ClientError("; ".join(quote.problems))
    if not options.json:
        out.print(deployment_quote_table(quote, document["budget"], proposed=options.budget is None))
    if quote.problems or not agreed(options, out):
        return EXIT_REFUSED
    job = await funded(client, await client.create_job(document, options.wallet), options, out)
    if options.json:
        view = await client.wait(job.id, until=answers)
        say_json(view)
        return 0 if answers(view) else EXIT_REFUSED
    out.print(f"{job.id}  {job.state}. Nodes load the model; end it at any time: cottage stop {job.id}", soft_wrap=True)
    view = await follow(client, job.id, options, out, answers)
    if not answers(view):
        return EXIT_REFUSED
    out.print(how_to_ask(client.address, view, chat), soft_wrap=True)
    return 0


async def _model_of(
    client: Client, options: argparse.Namespace, out: Terminal
) -> tuple[str | dict[str, Any], str, bool, dict[str, Any]]:
    """What is to answer, for a document: a job or a model's files; its name, whether it chats, and its tokenizer."""
    path = Path(options.model)
    if not options.model.strip() or (not path.exists() and hub_name(path) is None and not is_id(options.model)):
        way = "name a job as `cottage jobs` shows it, a folder, or a model of the Hub"
        raise CliUsageError(f"there is neither a job nor a folder {options.model!r}: {way}")
    if not path.exists() and hub_name(path) is None:
        source = await client.get(options.model)
        check_served(source, options.round)
        return source.id, source.name, chats(source), {}
    if options.round is not None:
        raise CliUsageError(f"--round is a checkpoint of a job, and {path} is none: leave it out")
    document = await model_files_of(client, path, options, out)
    settings = document.get("tokenizer", {}).get("settings") or {}
    whole = path.resolve() if path.exists() else path
    name = whole.parent.name if whole.is_file() else whole.name
    return document["model"], name, bool(settings.get("chat_template")), {"tokenizer": document.get("tokenizer")}


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
            "",
            f"cottage watch {view.id} follows it; cottage stop {view.id} ends it, and the rest comes back.",
        )
    )
