"""``python -m trainer``: worker, bench, prepare, check, own, single, judge, audit, assemble, merge, start, template, gguf,
sample, generate, evaluate, tasks.

Exit codes: 0 done; 3 the input cannot be used (JSON ``{"code", "detail"}`` on stderr); 1 anything else.
Only the verbs that compute import torch.
"""

import argparse
import asyncio
import json
import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

from common.log_lines import log_to
from common.output import guarded
from protocol.codec import MessageError, convert, decode_json
from protocol.evaluation import EvaluationSpec
from protocol.job.job import BesideDataset, DatasetFormat, Encoding, JobSpec, ServedWeights, TokenizerSpec
from protocol.models.model import ModelConfigError
from trainer.errors import InputError, TrainerError

EXIT_BAD_INPUT = 3

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # Nothing here ever asks the network for a model.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # Programs read what is printed here.


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    options = _parser().parse_args(arguments)
    log_to(logging.StreamHandler(sys.stderr), "%(asctime)s %(name)s %(message)s")
    try:
        return int(options.verb(options))
    except InputError as error:
        return _refuse(error.code, error.detail)
    except ModelConfigError as error:
        return _refuse("bad-model", str(error))
    except MessageError as error:
        return _refuse("bad-document", str(error))
    except TrainerError as error:
        return _refuse("failed", str(error))


def _refuse(code: str, detail: str) -> int:
    print(json.dumps({"code": code, "detail": detail}), file=sys.stderr)
    return EXIT_BAD_INPUT


def _worker(options: argparse.Namespace) -> int:
    from trainer.worker.worker import Worker

    return asyncio.run(Worker(options.pace).run(options.socket))


def _bench(options: argparse.Namespace) -> int:
    from trainer.audit.environment import bench

    print(json.dumps(bench(options.threads, options.device)))
    return 0


def _prepare(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from trainer.data.prepare import prepare, prepare_tokenizer
    from trainer.files.json_file import read_json
    from trainer.formats.source import Dataset

    spec, tokenizer_file, called = TokenizerSpec(), options.tokenizer_file, ""
    if options.tokenizer:
        document = read_json(options.tokenizer)
        path, called = document.pop("path", None), str(document.pop("called", ""))
        tokenizer_file = Path(path) if isinstance(path, str) else tokenizer_file
        spec = convert(document, TokenizerSpec)
    if options.dataset is None:
        print(json.dumps(prepare_tokenizer(spec, tokenizer_file, options.out, options.end, called)))
        return 0
    wanted = {name: getattr(options, name) for name in ("text_field", "faulty", "encoding", "learn")}
    dataset = Dataset.of(options.dataset, options.format, options.name or "", weight=options.weight, **wanted)
    beside = decode_json(options.beside.read_bytes(), list[BesideDataset]) if options.beside else []
    more = [Dataset(Path(one.path), one.dataset, one.name) for one in beside if not one.judged]
    judged = next((Dataset(Path(one.path), one.dataset, one.name) for one in beside if one.judged), None)
    manifest = prepare(
        dataset,
        spec,
        tokenizer_file,
        options.heldout,
        options.sequence,
        options.out,
        options.end,
        called,
        options.preference,
        more,
        judged,
    )
    print(json.dumps(asdict(manifest)))
    return 0


def _check(options: argparse.Namespace) -> int:
    import msgspec

    from protocol.rest.dataset import CheckRequest
    from trainer.check.report import check
    from trainer.formats.source import Dataset

    request = decode_json(options.request.read_bytes(), CheckRequest)

    def progress(read: int) -> None:
        print(json.dumps({"read": read}), flush=True)

    dataset = Dataset(options.dataset, request.dataset, options.name or options.dataset.name)
    report = check(dataset, request, options.tokenizer_file, options.scratch, progress, options.tokenizer_name)
    options.out.write_bytes(msgspec.json.encode(report))
    return 0


def _own(options: argparse.Namespace) -> int:
    import msgspec

    from protocol.job.federated import PrivacySpec
    from protocol.job.job import DatasetSpec
    from trainer.check.own_check import look_at

    how, one_in, examples = decode_json(options.how.encode(), DatasetSpec), options.one_in, False
    if options.privacy is not None:
        privacy = decode_json(options.privacy.encode(), PrivacySpec)
        one_in, examples = 0 if privacy.heldout is None else privacy.heldout.one_in, privacy.per_example
    print(msgspec.json.encode(look_at(options.data, how, options.sequence, one_in, examples)).decode())
    return 0


def _single(options: argparse.Namespace) -> int:
    from trainer.export.single_process import train_single

    spec = decode_json(options.job.read_bytes(), JobSpec)

    def progress(point: dict[str, Any]) -> None:
        if options.progress:
            print(json.dumps(point), flush=True)

    result = train_single(spec, options.folder, options.replicas, options.threads, progress)
    options.out.write_text(json.dumps(result))
    return 0


def _assemble(options: argparse.Namespace) -> int:
    from trainer.export.assemble import assemble
    from trainer.files.json_file import read_json

    card = read_json(options.card) if options.card else {}
    beside = read_json(options.beside) if options.beside else {}
    config = read_json(options.config)
    count = assemble(options.checkpoint, config, options.tokenizer, options.out, card, beside, options.weights)
    print(json.dumps({"parameters": count, "out": str(options.out)}))
    return 0


def _merge(options: argparse.Namespace) -> int:
    from trainer.export.merge import merge
    from trainer.files.json_file import read_json

    generation = read_json(options.generation) if options.generation else None
    changed = merge(options.weights, options.adapter, read_json(options.config), options.out, generation)
    print(json.dumps({"matrices": changed, "out": str(options.out)}))
    return 0


def _start(options: argparse.Namespace) -> int:
    from trainer.export.merge import start
    from trainer.files.json_file import read_json

    start(options.weights, options.tokenizer, read_json(options.config), options.out, read_json(options.beside))
    print(json.dumps({"out": str(options.out)}))
    return 0


def _template(options: argparse.Namespace) -> int:
    from trainer.data.chat import template_fault
    from trainer.files.json_file import read_json

    print(json.dumps({"fault": template_fault(read_json(options.settings), "this model")}))
    return 0


def _gguf(options: argparse.Namespace) -> int:
    try:
        from trainer.export.gguf_export import write_gguf
    except ImportError as error:
        return _refuse("no-library", f"GGUF needs {error.name}, which is not here: pip install 'cottage[gguf]'")
    write_gguf(options.model, options.out, options.type)
    return 0


def _forge(options: argparse.Namespace) -> int:
    from trainer.audit.canary import forge

    forged, root = forge(options.opening.read_bytes(), options.leaves, options.step)
    options.out.write_bytes(forged)
    options.card.write_text(json.dumps({"root": root}))
    return 0


def _sample(options: argparse.Namespace) -> int:
    from trainer.export.inference import sample_text

    print(
        sample_text(options.model, options.prompt, options.tokens, options.seed, options.temperature, options.threads)
    )
    return 0


def _serve(options: argparse.Namespace) -> int:
    from trainer.serve.loop import serve

    asyncio.run(serve(options.model, options.threads, options.weights, options.adapter))
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from trainer.export.inference import evaluate

    print(json.dumps(evaluate(options.model, options.heldout, options.sequence, options.threads)))
    return 0


def _tasks(options: argparse.Namespace) -> int:
    if find_spec("lm_eval") is None:
        raise InputError("no-harness", 'lm-evaluation-harness is not installed: pip install "cottage[evaluate]"')
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # What a task or its library prints is no line of ours.
    from trainer.export.harness import end_with_input, run_tasks

    say = partial(print, file=out, flush=True)
    end_with_input()
    asked = decode_json(options.request.read_bytes(), EvaluationSpec)
    run_tasks(options.model, asked, options.include, options.threads, lambda line: say(json.dumps(line)))
    return 0


def _judge(options: argparse.Namespace) -> int:
    from trainer.worker.judge import judge_inputs, judge_record

    limits = (options.memory_mb, options.seconds)
    if options.inputs is not None:
        print(json.dumps(judge_inputs(options.inputs, options.threads, *limits)))
        return 0
    print(
        json.dumps(
            judge_record(
                options.record,
                options.step,
                options.replay,
                options.opening,
                options.job,
                options.folder,
                options.threads,
                limits,
                options.env_class,
                options.anchor,
            )
        )
    )
    return 0


def _audit(options: argparse.Namespace) -> int:
    import msgspec

    from trainer.worker.judge import audit

    report = audit(
        options.replay, options.opening, options.job, options.folder, options.threads, options.device, options.anchor
    )
    print(msgspec.json.encode(report).decode())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer", description="Train language models in pieces.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    worker = verbs.add_parser("worker", help="do one task for the agent behind a Unix socket or the standard streams")
    way = worker.add_mutually_exclusive_group(required=True)
    way.add_argument("--socket", type=Path, help="where the agent listens")
    way.add_argument("--stdio", action="store_true", help="the agent is at standard input and output")
    worker.add_argument(
        "--pace",
        type=float,
        metavar="SECONDS",
        help="for benchmarks: a forward pass of a micro-batch takes at least so long",
    )
    worker.set_defaults(verb=_worker)

    bench = verbs.add_parser("bench", help="measure this machine; prints JSON")
    bench.add_argument("--threads", type=int, default=1)
    bench.add_argument("--device", default="cpu")
    bench.set_defaults(verb=_bench)

    prepare = verbs.add_parser("prepare", help="tokenize a dataset; prints the manifest as JSON")
    prepare.add_argument("--dataset", type=Path, help="without one, the tokenizer alone is made")
    prepare.add_argument("--name", help="what people call the dataset; its file's own name")
    prepare.add_argument("--format", choices=get_args(DatasetFormat), default="auto")
    prepare.add_argument("--encoding", choices=get_args(Encoding), default="auto")
    prepare.add_argument("--text-field", default="text")
    prepare.add_argument(
        "--tokenizer", type=Path, help="JSON of the job's tokenizer section; may name the file of kind 'file' as 'path'"
    )
    prepare.add_argument("--tokenizer-file", type=Path, help="the same by argument")
    prepare.add_argument(
        "--end", type=int, action="append", default=[], metavar="ID", help="that the model's files name as an end"
    )
    prepare.add_argument("--heldout", type=_share, default=0.02)
    prepare.add_argument("--sequence", type=int, required=True)
    prepare.add_argument("--out", type=Path, required=True)
    prepare.add_argument("--faulty", choices=["refuse", "skip"], default="refuse", help="rows that cannot be read")
    prepare.add_argument("--learn", choices=["answers", "all"], default="answers", help="of conversations")
    prepare.add_argument("--preference", action="store_true", help="of two answers, which one is preferred")
    prepare.add_argument("--weight", type=float, default=1.0, help="how often each row is trained on")
    prepare.add_argument("--beside", type=Path, help="JSON of further datasets: a list of BesideDataset")
    prepare.set_defaults(verb=_prepare)

    check = verbs.add_parser(
        "check", help="say what a dataset holds, row by row; prints one JSON line for each few megabytes"
    )
    check.add_argument("--dataset", type=Path, required=True)
    check.add_argument("--name", help="what people call the dataset; its file's own name")
    check.add_argument("--request", type=Path, required=True, help="JSON of a CheckRequest")
    check.add_argument("--tokenizer-file", type=Path, help="the tokenizer.json that the request names")
    check.add_argument("--tokenizer-name", default="", help="what messages call it")
    check.add_argument("--scratch", type=Path, required=True, help="an existing folder for hashes of rows")
    check.add_argument("--out", type=Path, required=True, help="JSON of the report")
    check.set_defaults(verb=_check)

    single = verbs.add_parser("single", help="train the job's model in this one process, for comparison")
    single.add_argument("--job", type=Path, required=True)
    single.add_argument("--folder", type=Path, required=True)
    single.add_argument("--replicas", type=int, default=1)
    single.add_argument("--out", type=Path, required=True)
    single.add_argument("--threads", type=int, default=1)
    single.add_argument("--progress", action="store_true", help="print one JSON line a step")
    single.set_defaults(verb=_single)
    for add in (_own_parser, _judge_parser, _audit_parser, _finished_parsers):
        add(verbs)
    return parser


def _own_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    own = verbs.add_parser("own", help="say what the data of a federated job's owner holds; prints JSON for that owner")
    own.add_argument("--data", type=Path, required=True, help="a file or a folder")
    own.add_argument("--how", required=True, help="JSON of a DatasetSpec: how its files are read")
    own.add_argument("--sequence", type=int, required=True)
    own.add_argument(
        "--privacy", help="JSON of the federation's PrivacySpec; of what is held back enough has to be there"
    )
    own.add_argument(
        "--one-in", type=int, default=0, help="of so many pieces one is held back; agents of before say it so"
    )
    own.set_defaults(verb=_own)


def _judge_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    judge = verbs.add_parser("judge", help="run one operation of a disputed step; prints JSON")
    what = judge.add_mutually_exclusive_group(required=True)
    what.add_argument("--inputs", type=Path, help="an operation with its inputs, as a side of the dispute showed it")
    what.add_argument(
        "--record", type=int, help="the place of the operation whose record is wanted; needs what follows"
    )
    judge.add_argument("--step", type=int, default=0, help="within the round")
    judge.add_argument("--replay", type=Path, help="JSON of the ReplayStep")
    judge.add_argument("--opening", type=Path)
    judge.add_argument("--anchor", type=Path, help="of the round, where the opening does not show it")
    judge.add_argument("--job", type=Path)
    judge.add_argument("--folder", type=Path, help="of the job: config.json, train.bin, heldout.bin")
    judge.add_argument(
        "--class", dest="env_class", help="environment class of the dispute: refused on a machine of another"
    )
    judge.add_argument("--threads", type=int, default=1, help="as the environment class of the dispute says")
    judge.add_argument("--memory-mb", type=int, default=8192, help="that it may take")
    judge.add_argument("--seconds", type=int, default=120, help="of processor time")
    judge.set_defaults(verb=_judge)


def _audit_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    audit = verbs.add_parser("audit", help="run a committed step again, and say whether it was done; prints JSON")
    audit.add_argument("--replay", type=Path, required=True, help="JSON of the command that an auditor is given")
    audit.add_argument("--opening", type=Path, required=True)
    audit.add_argument("--anchor", type=Path, help="of the round, where the opening does not show it")
    audit.add_argument("--job", type=Path, required=True)
    audit.add_argument("--folder", type=Path, required=True, help="of the job: config.json, train.bin, heldout.bin")
    audit.add_argument("--threads", type=int, default=1, help="as the environment class of the step says")
    audit.add_argument("--device", default="cpu")
    audit.set_defaults(verb=_audit)


def _finished_parsers(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    assemble = verbs.add_parser("assemble", help="make one Hugging Face folder of stage checkpoints")
    assemble.add_argument("--checkpoint", type=Path, nargs="+", action="extend", required=True)
    assemble.add_argument("--config", type=Path, required=True)
    assemble.add_argument("--tokenizer", type=Path, required=True)
    assemble.add_argument("--out", type=Path, required=True)
    assemble.add_argument("--card", type=Path, help="JSON: name, facts, rounds, receipts, spec")
    assemble.add_argument(
        "--beside", type=Path, help="JSON: tokenizer_config.json and generation_config.json of the model's own folder"
    )
    assemble.add_argument(
        "--weights",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        help="safetensors that a tied model started from",
    )
    assemble.set_defaults(verb=_assemble)

    merge = verbs.add_parser("merge", help="make one Hugging Face folder of an adapter and the model that it adapts")
    merge.add_argument("--weights", type=Path, nargs="+", action="extend", required=True, help="safetensors, in order")
    merge.add_argument("--adapter", type=Path, required=True, help="the adapter's folder")
    merge.add_argument("--config", type=Path, required=True, help="the job's config.json")
    merge.add_argument("--generation", type=Path, help="the generation_config.json that the model came with")
    merge.add_argument("--out", type=Path, required=True)
    merge.set_defaults(verb=_merge)

    start = verbs.add_parser("start", help="make the Hugging Face folder of the model that a job started from")
    start.add_argument("--weights", type=Path, nargs="+", action="extend", required=True, help="safetensors, in order")
    start.add_argument("--config", type=Path, required=True, help="the job's config.json")
    start.add_argument("--tokenizer", type=Path, required=True)
    start.add_argument("--beside", type=Path, required=True, help="JSON: as of assemble")
    start.add_argument("--out", type=Path, required=True)
    start.set_defaults(verb=_start)

    template = verbs.add_parser("template", help="say why no conversation can be written with a chat template")
    template.add_argument("--settings", type=Path, required=True, help="a tokenizer_config.json")
    template.set_defaults(verb=_template)

    gguf = verbs.add_parser("gguf", help="make one GGUF file of a Hugging Face folder")
    gguf.add_argument("--model", type=Path, required=True, help="the folder")
    gguf.add_argument("--type", choices=["f32", "f16", "bf16", "q8_0"], default="f16", help="of its matrices")
    gguf.add_argument("--out", type=Path, required=True, help="the file that is made")
    gguf.set_defaults(verb=_gguf)

    _using_parsers(verbs)


def _using_parsers(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    forge = verbs.add_parser("forge", help="make an opening whose step was not done as it says, to test auditors with")
    forge.add_argument("--opening", type=Path, required=True)
    forge.add_argument("--leaves", type=int, required=True)
    forge.add_argument("--step", type=int, required=True, help="within the round")
    forge.add_argument("--out", type=Path, required=True)
    forge.add_argument("--card", type=Path, required=True, help="where the new root is written, as JSON")
    forge.set_defaults(verb=_forge)

    sample = verbs.add_parser("sample", help="generate text with a model folder")
    sample.add_argument("--model", type=Path, required=True)
    sample.add_argument("--prompt", required=True)
    sample.add_argument("--tokens", type=int, default=100)
    sample.add_argument("--seed", type=int, default=0)
    sample.add_argument("--temperature", type=float, default=0.8)
    sample.add_argument("--threads", type=int, default=1)
    sample.set_defaults(verb=_sample)

    served = verbs.add_parser(
        "serve", help="answer with a model folder, several requests at a time, a line of JSON each"
    )
    served.add_argument("--model", type=Path, required=True)
    served.add_argument("--threads", type=int, default=1)
    served.add_argument(
        "--weights", choices=get_args(ServedWeights), default="float32", help="how its matrices are held"
    )
    beside = "a folder of an adapter that requests may ask for, numbered from 1 in this order"
    served.add_argument("--adapter", type=Path, action="append", default=[], metavar="PATH", help=beside)
    served.set_defaults(verb=_serve)

    evaluate = verbs.add_parser("evaluate", help="held-out loss of a model folder; prints JSON")
    evaluate.add_argument("--model", type=Path, required=True)
    evaluate.add_argument("--heldout", type=Path, required=True)
    evaluate.add_argument("--sequence", type=int, required=True)
    evaluate.add_argument("--threads", type=int, default=1)
    evaluate.set_defaults(verb=_evaluate)

    tasks = verbs.add_parser(
        "tasks", help="try a model folder with tasks of lm-evaluation-harness; ends with its input"
    )
    tasks.add_argument("--model", type=Path, required=True, help="a whole model")
    tasks.add_argument("--request", type=Path, required=True, help="JSON of the EvaluationSpec")
    tasks.add_argument("--include", type=Path, action="append", default=[], help="a folder with tasks of one's own")
    tasks.add_argument("--threads", type=int, default=1)
    tasks.set_defaults(verb=_tasks)


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 0.5:
        raise argparse.ArgumentTypeError(f"{text} is not in (0, 0.5]")
    return value


if __name__ == "__main__":
    sys.exit(guarded(main))
