"""The submit form: its fields, and how what was typed becomes a job document with each error beside its field."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from common.errors import SecretPastedError, WalletAddressError
from coordinator.client.text import amount, parse_amount
from coordinator.errors import CottageError, InvalidError
from coordinator.web.documents import check_plain
from coordinator.web.http import MAX_JSON_BYTES
from protocol import codec
from protocol.evaluation import EvaluationSpec
from protocol.ids import is_id
from protocol.job.job import (
    DatasetSpec,
    Encoding,
    JobSpec,
    LoraSpec,
    ModelSpec,
    ParallelSpec,
    PreferenceSpec,
    TokenizerSpec,
    TrainingSpec,
)
from protocol.job.updates import UPDATES
from protocol.wallets import wallet_address

NO_DATASET = "0" * 64  # Stands in a quote for a dataset that is not uploaded yet: the price does not depend on it.
OWN_CONFIG = "config"
FROM_JOB = "job"
PREFERENCE = "training.preference.beta"
TASKS = "evaluation.tasks"
_types = cache(partial(get_type_hints, include_extras=True))  # Of each part, its fields' names and bounds.
_PARTS: Mapping[str, type[msgspec.Struct]] = {
    "model": ModelSpec,
    "dataset": DatasetSpec,
    "tokenizer": TokenizerSpec,
    "training": TrainingSpec,
    "training.lora": LoraSpec,
    "training.preference": PreferenceSpec,
    "parallel": ParallelSpec,
    "evaluation": EvaluationSpec,
}


FieldKind = Literal["whole", "decimal", "text", "choice", "amount", "names"]


@dataclass(frozen=True)
class Field:
    """One input. ``name`` is the path in the job document; an empty input leaves the document's default."""

    name: str
    label: str
    help: str
    kind: FieldKind


BASIC = (
    Field(
        "training.tokens",
        "Tokens to train on",
        "All replicas together; the data is repeated when it is shorter.",
        "whole",
    ),
    Field("training.sequence", "Sequence length", "Tokens in one sample.", "whole"),
    Field("training.batch", "Batch", "Samples in one step of one replica.", "whole"),
    Field(
        "training.learning_rate",
        "Learning rate",
        "The highest; it warms up and falls. Empty: what is usual.",
        "decimal",
    ),
)
FULL = (
    Field("training.micro_batches", "Micro-batches", "Parts of a batch that stream through the stages.", "whole"),
    Field("training.inner_steps", "Steps between exchanges", "Inner steps of one outer round.", "whole"),
    Field("training.round_seconds", "Seconds of a round", "Empty: rounds of fixed steps.", "decimal"),
    Field("training.lateness", "Patience with a late replica", "In deviations; empty: the rounds' own.", "decimal"),
    Field("training.warmup_steps", "Warm-up steps", "", "whole"),
    Field("training.final_rate", "Last learning rate", "As a part of the highest.", "decimal"),
    Field("training.decay_share", "Quick fall's part", "Of the steps; for the fall called stable.", "decimal"),
    Field("training.loss_scale", "Scale of the loss", "For float16.", "decimal"),
    Field("training.clip_norm", "Gradient limit", "Of the whole model's norm; empty: none.", "decimal"),
    Field("training.weight_decay", "Weight decay", "", "decimal"),
    Field("training.outer_learning_rate", "Outer learning rate", "", "decimal"),
    Field("training.outer_momentum", "Outer momentum", "SparseLoCo needs 0.", "decimal"),
    Field("training.shortest_period", "Shortest round", "Growing rounds; empty: a quarter of the longest.", "whole"),
    Field("training.error_feedback", "Error feedback", "Of what was not sent; empty: the method's own.", "decimal"),
    Field("training.density", "Part that is sent", "SparseLoCo, DGC; empty: the method's own.", "decimal"),
    Field("training.fragments", "Fragments", "Streaming DiLoCo: parts that are exchanged in turn.", "whole"),
    Field("training.mixing", "Mixing", "Streaming DiLoCo: what a replica keeps of its own.", "decimal"),
    Field(
        "training.overlap",
        "Sent before the end",
        "Streaming DiLoCo: steps that hide the way of a round's part.",
        "whole",
    ),
    Field("training.commit_every", "Steps between commitments", "An audit runs so many again.", "whole"),
    Field("training.seed", "Seed", "The same seed gives the same first weights and order.", "whole"),
    Field("training.subspace", "Channels between stages", "Empty: all of them. From random weights only.", "whole"),
    Field("training.lookahead", "Looking ahead", "Further micro-batches in flight, against a long way.", "whole"),
    Field("parallel.stages", "Stages", "Empty: the scheduler chooses.", "whole"),
    Field("parallel.replicas", "Replicas", "Empty: the scheduler chooses.", "whole"),
    Field("dataset.heldout", "Held-out part", "Of the data, for the validation loss.", "decimal"),
    Field("dataset.weight", "Weight of the dataset", "How often each row is trained on, beside others.", "decimal"),
)
ADAPTER = (
    Field("training.lora.rank", "Adapter's rank", "Of its thin matrices.", "whole"),
    Field("training.lora.alpha", "Adapter's weight", "LoRA's alpha.", "decimal"),
    Field(
        "training.lora.targets", "Adapted layers", "Names such as q_proj, v_proj; empty: every linear layer.", "names"
    ),
    Field("training.lora.base_model", "Adapter of", "What the adapter names as its base model.", "text"),
    Field(
        PREFERENCE,
        "Weight of preferences",
        "DPO's beta, 0.1 mostly: for rows with a chosen and a rejected answer. Empty: for all others.",
        "decimal",
    ),
)
OTHERS = (
    Field("name", "Name", "How you find the job again.", "text"),
    Field(
        "dataset.text_field", "Field with the text", "A field, a column, or one within another: content.text.", "text"
    ),
    Field("tokenizer.vocabulary", "Vocabulary", "Entries of the tokenizer.", "whole"),
    Field("tokenizer.end", "End of a document", "The token after each; empty: the tokenizer's own.", "text"),
    Field("budget", "Budget", "Goes into escrow; what is not spent comes back.", "amount"),
    Field("deadline_hours", "Deadline, hours", "From now; what is not done by then is refunded.", "decimal"),
    Field("note", "Note", "For yourself.", "text"),
    Field(TASKS, "Tasks to try it with", "Of lm-evaluation-harness, before and after. Empty: none.", "names"),
    Field("evaluation.limit", "Examples of each task", "The first so many.", "whole"),
)


@dataclass(frozen=True)
class Select:
    """One choice among a few. ``options``: value and what it means."""

    name: str
    label: str
    options: tuple[tuple[str, str], ...]


SELECTS = (
    Select(
        "training.outer",
        "Learning between replicas",
        (
            ("diloco", "DiLoCo: rounds with momentum"),
            ("averaging", "Averaging: rounds without momentum"),
            ("streaming", "Streaming DiLoCo: a part of the layers a round"),
            ("sparseloco", "SparseLoCo: the largest values of a round"),
            ("gradients", "4-bit gradients at every step"),
            ("demo", "DeMo: the strongest frequencies at every step"),
            ("dgc", "DGC: the largest gradients at every step"),
        ),
    ),
    Select(
        "training.period",
        "Length of rounds",
        (("fixed", "fixed"), ("growing", "growing: short at first, and never shorter than the lines carry")),
    ),
    Select(
        "training.pseudo_gradient",
        "Exchange between replicas",
        tuple((name, f"{name}: {update.about}") for name, update in UPDATES.items()),
    ),
    Select(
        "training.exchange",
        "Way of the exchange",
        (("auto", "by shards from four replicas on"), ("mesh", "everybody to everybody"), ("shards", "by shards")),
    ),
    Select(
        "training.decay",
        "Fall of the learning rate",
        (("cosine", "cosine"), ("wsd", "stable, then quick at the end"), ("constant", "none")),
    ),
    Select("training.optimizer", "Optimizer", (("adamw", "AdamW"), ("muon", "Muon for matrices, AdamW for the rest"))),
    Select(
        "training.precision",
        "Precision of products",
        (("fp32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16, with a scaled loss")),
    ),
    Select(
        "training.activations",
        "Activations between stages",
        (
            ("int8", "int8: a quarter of the bytes"),
            ("int4", "int4: a seventh of the bytes"),
            ("aq4", "int4 of what changed, where the data repeats"),
            ("auto", "left to the plan: int8, or int4 where a line would hold computing up"),
            ("fp32", "float32: exact"),
        ),
    ),
    Select(
        "training.boundary_gradients",
        "Their gradients",
        (("auto", "as the activations"), ("int8", "int8"), ("int4", "int4"), ("fp32", "float32: exact")),
    ),
    Select(
        "training.schedule",
        "Order in the pipeline",
        (("1f1b", "one forward, one backward"), ("zero-bubble", "zero bubble")),
    ),
    Select(
        "training.memory",
        "Memory of a stage",
        (("float32", "float32"), ("lean", "lean: less than half, with bfloat16 products, for large models")),
    ),
    Select(
        "training.recompute",
        "Memory of layers",
        (("false", "kept for the way back"), ("true", "computed again: less memory, a third more work")),
    ),
    Select(
        "training.sampling",
        "Order of the data",
        (("random", "random places"), ("epochs", "each window once before any comes again")),
    ),
    Select(
        "training.aggregation",
        "Mean of the replicas",
        (("mean", "plain"), ("trimmed", "without the extremes"), ("clipped", "with limits on each")),
    ),
    Select(
        "training.check_updates",
        "Updates far from the others'",
        (("true", "left out"), ("false", "taken as they are")),
    ),
    Select(
        "dataset.faulty",
        "Rows that cannot be read",
        (("refuse", "refuse the dataset"), ("skip", "leave them out")),
    ),
    Select(
        "dataset.learn",
        "Of conversations is learnt",
        (("answers", "what the assistant says"), ("all", "all that is said")),
    ),
    Select(
        "dataset.encoding",
        "Characters",
        (("auto", "UTF-8, or UTF-16 where it looks so"), *((name, name) for name in get_args(Encoding)[1:])),
    ),
    Select(
        "over_budget",
        "Where the budget is too small",
        (("refuse", "do not start"), ("pause", "train as far as it goes, then pause with what was learned")),
    ),
)
ADAPTER_SELECTS = (
    Select(
        "training.lora.quantize",
        "The frozen model on nodes",
        (("none", "as it came"), ("nf4", "in 4 bits (QLoRA)"), ("int8", "in 8 bits")),
    ),
    Select(
        "training.lora.rslora",
        "Alpha is divided by",
        (("false", "the rank"), ("true", "its root (rsLoRA)")),
    ),
)
_YES_NO: Mapping[str, bool] = {"true": True, "false": False}
_CHOICES = {
    "model.choice": "tiny-llama",
    "dataset.format": "auto",
    "tokenizer.kind": "bpe",
    "payer": "test",
    "learns": "model",
}
_TABLES: Mapping[str, str] = {
    "model.config": "config.json",
    "model.generation": "generation_config.json",
    "tokenizer.settings": "tokenizer_config.json",
    "heldout_dataset": "dataset",
    "more_datasets": "list of datasets",
}
"""Inputs that hold the content of a JSON file, and what that is called."""
_PLAIN = (
    *_TABLES,
    "model.weights",
    "model.hub",
    "model.license",
    "model.from_job",
    "model.from_round",
    "dataset.artifact",
    "tokenizer.file",
    "evaluation.chat",
    "submitter",
)


def _typed(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return ", ".join(value) if isinstance(value, tuple | list) else str(value)


def _default(name: str) -> str:
    """What the job document takes for a field that is left out, as one would type it."""
    part, _, key = name.rpartition(".")
    fields = {field.encode_name: field for field in msgspec.structs.fields(_PARTS[part] if part else JobSpec)}
    value = fields[key].default
    return "" if value is msgspec.NODEFAULT or value is None else _typed(value)


DEFAULTS: Mapping[str, str] = (
    {field.name: _default(field.name) for field in (*BASIC, *FULL, *ADAPTER, *OTHERS, *SELECTS, *ADAPTER_SELECTS)}
    | _CHOICES
    | dict.fromkeys((*_PLAIN, PREFERENCE), "")
)
MAX_LENGTH = 1 << 20


@dataclass(frozen=True)
class Filled:
    """What was typed, and what it means: a job and its payer, or the errors by field.

    ``document``: the job document as far as it is there, in JSON.
    """

    values: Mapping[str, str]
    errors: Mapping[str, str]
    spec: JobSpec | None
    submitter: str | None
    document: str = ""


def read(typed: Mapping[str, str], draft: bool = False) -> Filled:
    """Make a job of a form.

    Args:
        typed: by field name; what is missing has its default, what is unknown is ignored.
        draft: for a quote: no name, dataset or budget is needed yet.
    """
    values = {name: typed.get(name, default)[:MAX_LENGTH] for name, default in DEFAULTS.items()}
    errors: dict[str, str] = {}
    document: dict[str, Any] = {"model": _model(values, errors), "dataset": {"format": values["dataset.format"]}}
    if values["dataset.artifact"]:
        document["dataset"]["artifact"] = values["dataset.artifact"]
    elif draft:
        document["dataset"]["artifact"] = NO_DATASET
    else:
        errors["dataset.artifact"] = "choose a file with the text to train on"
    document["tokenizer"] = {"kind": values["tokenizer.kind"]}
    if values["tokenizer.kind"] == "file":
        document["tokenizer"]["file"] = values["tokenizer.file"] or None
        if not values["tokenizer.file"] and not draft:
            errors["tokenizer.file"] = "choose a tokenizer.json, or another kind of tokenizer"
        _read_table(values, "tokenizer.settings", document["tokenizer"], errors)
    for name in ("heldout_dataset", "more_datasets"):
        _read_table(values, name, document, errors)
    for select in SELECTS:
        value = values[select.name]
        _put(document, select.name, _YES_NO.get(value, value), errors)
    adapter = values["learns"] == "lora"
    for field in (*BASIC, *FULL, *(ADAPTER if adapter else ()), *OTHERS):
        _read_field(field, values[field.name].strip(), document, errors, draft)
    for select in ADAPTER_SELECTS if adapter else ():
        _put(document, select.name, _YES_NO.get(values[select.name], values[select.name]), errors)
    started = values["model.weights"] or values["model.choice"] == FROM_JOB
    if adapter and not started:
        if not draft:
            errors["learns"] = "an adapter belongs to a model that has learnt already: choose its weights above"
        document["training"].pop("lora", None)
        document["training"].pop("preference", None)
    _complete_evaluation(values, document, errors)
    submitter = None if values["payer"] == "test" else read_wallet(values, errors)
    spec = None if errors else _whole(document, errors)
    return Filled(values, errors, spec, submitter, _shown(document, values))


def _complete_evaluation(values: Mapping[str, str], document: dict[str, Any], errors: dict[str, str]) -> None:
    """Leave it out where no tasks are asked for."""
    if not values[TASKS].strip():
        document.pop("evaluation", None)
    elif values["evaluation.chat"] == "true":
        _put(document, "evaluation.chat", True, errors)


def _shown(document: Mapping[str, Any], values: Mapping[str, str]) -> str:
    """The document as JSON, without what stands in for a part that is not there yet."""
    plain: dict[str, Any] = {"name": values["name"], "budget": document.get("budget", 0)} | dict(document)
    plain = {"name": plain.pop("name"), **plain} | ({} if values["budget"].strip() else {"budget": 0})
    plain["name"] = values["name"]
    if plain["dataset"].get("artifact") == NO_DATASET:
        plain["dataset"] = {key: value for key, value in plain["dataset"].items() if key != "artifact"}
    return json.dumps(plain, indent=2, ensure_ascii=False)


def read_document(text: str, typed: Mapping[str, str]) -> dict[str, str]:
    """The form that asks for the job of a JSON document; who pays stays as typed.

    Args:
        text: JSON of a whole job document; name, dataset and budget may be missing.
    Raises:
        InvalidError: no JSON, or no job; the message names the place.
    """
    try:
        document = codec.decode_json(text, Any, MAX_JSON_BYTES)
    except codec.MessageError as error:
        raise InvalidError(f"this is no JSON: {error}", "document") from error
    check_plain(document)
    if not isinstance(document, dict):
        raise InvalidError("a job is a table: it begins with { and ends with }", "document")
    if document.get("serve") is not None:
        way = "the page of the job whose model it is has “Serve it at homes”, and `cottage deploy JOB` asks for one"
        raise InvalidError(f"serve: this form is for jobs that learn, and this one answers: {way}", "document")
    if document.get("federated") is not None:
        way = "save it as a file, and `cottage submit FILE` asks for it"
        raise InvalidError(f"federated: this form is for jobs with a dataset: {way}", "document")
    dataset = document.get("dataset", {})
    filled = {
        **document,
        "name": document.get("name") or "draft",
        "budget": document.get("budget") or 1,
        "dataset": {"artifact": NO_DATASET, **dataset} if isinstance(dataset, dict) else dataset,
    }
    try:
        values = fill(codec.convert(filled, JobSpec))
    except codec.MessageError as error:
        raise InvalidError(str(error), "document") from error
    missing = {
        "name": "" if not document.get("name") else values["name"],
        "budget": "" if not document.get("budget") else values["budget"],
        "dataset.artifact": "" if values["dataset.artifact"] == NO_DATASET else values["dataset.artifact"],
    }
    return values | missing | {name: typed[name] for name in ("payer", "submitter") if name in typed}


def fill(spec: JobSpec) -> dict[str, str]:
    """The form as it would have to be filled in to ask for ``spec`` again."""
    document: dict[str, Any] = msgspec.to_builtins(spec)
    values = dict(DEFAULTS)
    for name in DEFAULTS:
        value: Any = document
        for key in name.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None and name not in (*_TABLES, "model.weights"):
            values[name] = _typed(value)
        elif name not in _PLAIN and name not in _CHOICES and not name.startswith(("training.lora", "evaluation")):
            values[name] = ""  # Left open, though a form has something there.
    values["learns"] = "model" if spec.training.lora is None else "lora"
    values["model.weights"] = " ".join(spec.model.weight_files)
    values["budget"] = amount(spec.budget).replace(",", "")
    values["model.choice"] = FROM_JOB if spec.model.from_job else spec.model.preset or OWN_CONFIG
    told = [msgspec.to_builtins(one) for one in spec.more_datasets]
    judged = None if spec.heldout_dataset is None else msgspec.to_builtins(spec.heldout_dataset)
    tables = (spec.model.config, spec.model.generation, spec.tokenizer.settings, judged, told or None)
    values |= {
        n: "" if table is None else json.dumps(table, indent=2) for n, table in zip(_TABLES, tables, strict=True)
    }
    return values


def place(field: str) -> str:
    """The form's field for a field of the job document; "" where it has none."""
    name = field.removeprefix("spec.").strip(".")
    if name == "model.preset":
        return "model.choice"
    while name and name not in DEFAULTS:
        inside = [known for known in DEFAULTS if known.startswith(name + ".")]
        if inside:
            return {"model": "model.choice", "dataset": "dataset.artifact", "tokenizer": "tokenizer.kind"}.get(
                name, inside[0]
            )
        name = name.rpartition(".")[0]
    return name


def _checkpoint(after: str, errors: dict[str, str]) -> dict[str, int]:
    if after and not (after.isascii() and after.isdigit() and 0 < len(after) < 10 and int(after)):
        errors["model.from_round"] = "give the number of a round, or leave it open for the finished model"
        return {}
    return {"from_round": int(after)} if after else {}


def _model(values: Mapping[str, str], errors: dict[str, str]) -> dict[str, Any]:
    files = values["model.weights"].split()  # One file, or the shards of a model that another client uploaded.
    model: dict[str, Any] = {"weights": files[0] if len(files) == 1 else files} if files else {}
    if values["model.choice"] == FROM_JOB:
        if not is_id(values["model.from_job"].strip()):
            errors["model.from_job"] = "give the id of a job: 32 hexadecimal digits"
        return {"from_job": values["model.from_job"].strip()} | _checkpoint(values["model.from_round"].strip(), errors)
    model |= {name: values[f"model.{name}"] for name in ("hub", "license") if files and values[f"model.{name}"]}
    _read_table(values, "model.generation", model, errors)
    if values["model.choice"] != OWN_CONFIG:
        return model | {"preset": values["model.choice"]}
    if values["model.config"].strip():
        _read_table(values, "model.config", model, errors)
    else:
        errors["model.config"] = "paste or choose a config.json"
    return model


def _read_table(values: Mapping[str, str], name: str, part: dict[str, Any], errors: dict[str, str]) -> None:
    """Put the content of a JSON file into its part of the document, where there is one."""
    if not values[name].strip():
        return
    file = _TABLES[name]
    try:
        table = codec.decode_json(values[name], Any, MAX_JSON_BYTES)
        check_plain(table, name)
    except codec.MessageError as error:
        errors[name] = f"not a {file}: {error}"
    except CottageError as error:
        errors[name] = error.detail
    else:
        part[name.rpartition(".")[2]] = table
        if not isinstance(table, dict if name != "more_datasets" else list):
            errors[name] = f"a {file} is a table: it begins with {{ and ends with }}"


def _read_field(field: Field, text: str, document: dict[str, Any], errors: dict[str, str], draft: bool) -> None:
    if not text:
        if field.name in ("name", "budget"):
            if draft:
                document[field.name] = "draft" if field.name == "name" else 2**63 - 1
            else:
                errors[field.name] = (
                    "give the job a name" if field.name == "name" else "say how much it may cost at most"
                )
        return
    try:
        value = typed_value(field.kind, text)
    except ValueError as error:
        errors[field.name] = str(error)
        return
    _put(document, field.name, value, errors)


def typed_value(kind: FieldKind, text: str) -> Any:
    """What was typed into a field as a value of its kind; raises ``ValueError`` with why it is none."""
    match kind:
        case "amount":
            return parse_amount(text)
        case "whole":
            return _whole_number(text)
        case "decimal":
            try:
                return float(text.replace(",", "."))
            except ValueError:
                raise ValueError(f"{text[:40]!r} is not a number") from None
        case "names":
            return re.split(r"[,\s]+", text)
        case "text" | "choice":
            return text


def _whole_number(text: str) -> int:
    digits = re.sub(r"[,_\s]", "", text)
    if not re.fullmatch(r"[0-9]{1,18}", digits):
        raise ValueError(f"{text[:40]!r} is not a whole number")
    return int(digits)


def _put(document: dict[str, Any], name: str, value: Any, errors: dict[str, str]) -> None:
    """Put a value in its place, if it is within the bounds of the document's type."""
    part, _, key = name.rpartition(".")
    kind = _types(_PARTS[part] if part else JobSpec)[key]
    try:
        codec.convert(value, kind)
    except codec.MessageError as error:
        errors[name] = error.words
        return
    for inner in part.split(".") if part else ():
        document = document.setdefault(inner, {})
    document[key] = value


def read_wallet(values: dict[str, str], errors: dict[str, str]) -> str | None:
    """The address that was typed as ``submitter``; None with an error where it is none."""
    try:
        return wallet_address(values["submitter"])
    except WalletAddressError as error:
        if isinstance(error, SecretPastedError):
            values["submitter"] = ""  # No page shows it again.
        errors["submitter"] = str(error)
        return None


def _whole(document: Mapping[str, Any], errors: dict[str, str]) -> JobSpec | None:
    try:
        spec: JobSpec = codec.convert(document, JobSpec)
    except codec.MessageError as error:
        errors[place(error.field)] = error.words
        return None
    return spec
