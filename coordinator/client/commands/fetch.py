"""What comes out of a job: ``cottage try``, ``download`` and ``output``."""

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path

from common.console import Terminal
from common.terminal import say_json
from coordinator.client.arrays import PAGE as MOST_ELEMENTS
from coordinator.client.client import Client
from coordinator.client.commands.base import EXIT_REFUSED, CliUsageError, progress_bar, show
from coordinator.client.hub import push
from coordinator.client.show import evaluation_section, output_text
from protocol.codec import MessageError, convert
from protocol.rest import api


async def try_model(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage try``: a text goes on, or a model answers."""
    try:
        wanted = {"prompt": options.prompt, "tokens": options.tokens, "temperature": options.temperature}
        wanted |= {"seed": options.seed, "chat": options.chat, "start": options.start}
        request = convert(wanted, api.TrialRequest)
    except MessageError as error:
        raise CliUsageError(str(error)) from error
    if not options.json and not options.chat:
        out.print(options.prompt, end="")
    async for piece in client.generate(options.job, request, options.round):
        if options.json:
            say_json(piece)
        elif "text" in piece:
            out.print(piece["text"], end="")
    if not options.json:
        out.print()
    return 0


async def download(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """``cottage download``: the finished folder, and what is made of it; or an array's results."""
    if (await client.get(options.job)).spec.array is not None:
        return await _results(client, options, out)
    with progress_bar(out, options) as bar:
        task = bar.add_task("model", total=None)
        fetch = client.download_merged if options.merged else client.download_folder
        folder = await fetch(
            options.job, options.folder, lambda done, total: bar.update(task, completed=done, total=total)
        )
    found = (await client.get(options.job)).evaluation
    readme = folder / "README.md"
    if found is not None and (section := evaluation_section(found)) and readme.is_file():
        readme.write_text(readme.read_text("utf-8") + section, "utf-8")
    told, said = {"folder": str(folder)}, _opened(folder)
    if options.gguf is not None:
        file = folder / f"{folder.resolve().name}-{options.gguf}.gguf"
        await _write_gguf(folder, options.gguf, file)
        told["gguf"], said = str(file), f"{said}\nllama.cpp opens {file}"
    if options.push is not None:
        told["page"] = page = await asyncio.to_thread(push, folder, options.push)
        said += f"\nIt was sent to {page}"
    show(out, options, told, said)
    return 0


async def _results(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    """What an array's elements have left so far, in a folder each."""
    if options.merged or options.gguf is not None or options.push is not None:
        raise CliUsageError(
            f"job {options.job} runs containers: --merged, --gguf and --push are for models, leave them out"
        )
    number, last, faults = 0, 0, list[str]()
    while found := await client.elements(options.job, last, "done", limit=MOST_ELEMENTS):
        for element in found:
            if fault := (await client.taken(options.job, element, options.folder)).fault:
                faults.append(f"{element.name} (element {element.index}): {fault}")
            number, last = number + (not fault), element.number
    told = {"folder": str(options.folder), "results": number, "not_taken": faults}
    left_out = [f"{len(faults):,} more were not taken:", *faults] if faults else []
    show(out, options, told, "\n".join([f"{number:,} results are in {options.folder}", *left_out]))
    return EXIT_REFUSED if faults else 0


def _opened(folder: Path) -> str:
    """What opens a folder that was downloaded."""
    if not (folder / "adapter_config.json").is_file():
        return f"The model is in {folder}: AutoModelForCausalLM.from_pretrained opens it."
    beside = "PeftModel.from_pretrained of peft puts it beside its model, which README.md names"
    return f"The adapter is in {folder}: {beside}. With --merged the whole model comes."


async def _write_gguf(folder: Path, kind: str, file: Path) -> None:
    """Have the trainer's tool make it, which needs packages that a submitter may not have."""
    tool = ("-m", "trainer", "gguf", "--model", str(folder), "--type", kind, "--out", str(file))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *tool, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    if process.returncode:
        last = said.decode(errors="replace").splitlines()[-1:]
        try:
            detail = str(json.loads(last[0])["detail"])
        except (IndexError, ValueError, KeyError, TypeError):
            detail = f"no GGUF file was made of {folder}: {last[0] if last else 'the tool ended'}"
        raise CliUsageError(f"{detail}. The folder itself is whole: {folder}")


async def output(client: Client, options: argparse.Namespace, out: Terminal) -> int:
    if options.remove:
        await client.remove_output(options.job)
        show(out, options, {}, f"nothing more of {options.job} is sent to a bucket, and its key is forgotten")
        return 0
    if options.url is None:
        found = await client.output(options.job)
    else:
        found = await client.set_output(options.job, wanted_output(options.url, options))
    show(out, options, found, output_text(found))
    return EXIT_REFUSED if found.state == "failed" else 0


def wanted_output(url: str, options: argparse.Namespace) -> api.NewOutput:
    """Where a model is to go, with the key of the environment."""
    key, secret = (os.environ.get(name, "") for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
    if not key or not secret:
        raise CliUsageError("the bucket's key is missing: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    given = {"url": url, "key": key, "secret": secret, "endpoint": options.endpoint, "region": options.region}
    try:
        wanted: api.NewOutput = convert({**given, "checkpoints": options.with_checkpoints}, api.NewOutput)
    except MessageError as error:
        raise CliUsageError(f"{error.field or 'output'}: {error}") from error
    return wanted
