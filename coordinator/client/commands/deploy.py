"""``cottage deploy``: a model that answers on nodes of the network, from its price to how it is asked."""

import argparse

from common.console import Terminal
from common.terminal import say_json
from coordinator.client.client import Client
from coordinator.client.commands.base import EXIT_REFUSED
from coordinator.client.commands.follow import follow
from coordinator.client.commands.submit import agreed, funded
from coordinator.client.deployments import (
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
from protocol.rest import api


async def deploy(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage deploy``: show the price, begin, and wait until the first node answers."""
    source = await client.get(options.job)
    check_served(source, options.round)
    name = options.name or deployment_name(source.name)
    document = deployment_document(
        source.id,
        options.budget or 1,
        options.replicas,
        options.hours,
        options.round,
        options.context,
        name,
        options.idle_minutes,
        options.stages,
    )
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
    out.print(how_to_ask(client.address, view, chats(source)), soft_wrap=True)
    return 0


def how_to_ask(address: str, view: api.JobView, chat: bool) -> str:
    """What a program needs to ask a deployment, and how it is looked after."""
    return "\n".join(
        (
            "",
            "It answers programs that speak OpenAI's API:",
            f"  base URL  {address}/v1",
            f"  model     {view.id}",
            "  key       an API key of yours: cottage keys --new NAME makes one",
            "",
            f"  {curl_of(address, view.id, chat)}",
            "",
            f"cottage watch {view.id} follows it; cottage stop {view.id} ends it, and the rest comes back.",
        )
    )
