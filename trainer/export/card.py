"""The README of a finished folder: what the model began as, learnt from and how, its curve and its receipts. Free of torch."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from protocol.models.config_keys import OWN
from trainer.export.metrics_export import with_perplexity

_LICENSES = re.compile(
    r"apache-2\.0|mit|isc|zlib|unlicense|wtfpl|ecl-2\.0|artistic-2\.0|bsl-1\.0|gemma|grok2-community|llama[23](?:\.\d)?|"
    r"(?:a|l)?gpl(?:-[0-9.]+)?|eupl-1\.[12]|mpl-2\.0|ms-pl|epl-[12]\.0|afl-3\.0|bsd(?:-[0-9a-z-]+)?|cc(?:0|-by)[a-z0-9.-]*|"
    r"(?:bigscience-|creativeml-|bigcode-)?(?:bloom-rail-1\.0|openrail[a-z+-]*)|ofl-1\.1|ncsa|odbl|osl-3\.0|other|unknown"
)
"""What the Hub's front matter may name. Another licence is "other" there, with its name."""
_MERGED = (
    ("library_name: peft\n", "library_name: transformers\n"),
    ("base_model_relation: adapter\n", "base_model_relation: finetune\n"),
    ("\nAn adapter, ", "\nAn adapter, merged into the model that it adapts, "),
)
_BESIDE = "used beside"
_FACTS = {
    "loss_before": "held-out loss before",
    "loss_after": "held-out loss after",
    "accuracy": "held-out pairs told apart (accuracy)",
    "margin": "mean margin of their rewards",
    "tokens": "tokens",
    "audits": "audits that passed",
}
_RECEIPTS = {"job": "job", "submitter": "submitter", "escrow": "escrow", "paid": "paid", "refunded": "refunded"}
_KEPT = {"nf4": ", beside a model in 4 bits (QLoRA)", "int8": ", beside a model in 8 bits"}
_TRAINING = (
    "tokens",
    "sequence",
    "batch",
    "micro_batches",
    "inner_steps",
    "learning_rate",
    "warmup_steps",
    "sampling",
    "optimizer",
    "precision",
    "memory",
    "seed",
)
"""Settings that people look for. All of them are in the document at the end."""


def model_card(card: Mapping[str, Any], parameters: int, config: Mapping[str, Any], adapter: bool = False) -> str:
    """The folder's README.

    Args:
        card: ``name``; ``spec`` (the job document), ``data`` (names and counts), ``privacy`` (what was spent), ``rounds`` and
            ``receipts`` (lists of mappings), and single facts. Any of them may be missing.
        adapter: ``parameters`` are those of an adapter of ``config``'s model.
    """
    spec = _within(card, "spec")
    kind = "An adapter, low-rank matrices for" if adapter else "A"
    count = f"{parameters:,} parameters"
    what = (
        f"{kind} a {config.get('model_type')} language model: {count}"
        if adapter
        else (f"{kind} {config.get('model_type')} language model with {count}")
    )
    lines = [*_front(_within(spec, "model"), adapter), "", f"# {_cell(card.get('name', 'model'))}", ""]
    lines += [f"{what}, trained on a Cottage network.", ""]
    lines += _section("Base model", _base(spec, config, adapter))
    lines += _section("Data", _data(card, spec))
    lines += _section("Training", _settings(spec))
    lines += _section("Privacy", list(_within(card, "privacy").items()))
    lines += _section("Result", [(text, card[key]) for key, text in _FACTS.items() if card.get(key) is not None])
    for title, key in (("Training curve", "rounds"), ("Payments", "receipts")):
        rows = card.get(key)
        if isinstance(rows, list) and rows:
            lines += [f"## {title}", "", *_table([_shown(row, card) for row in rows if isinstance(row, Mapping)])]
    lines += _section("Receipts", [(text, card[key]) for key, text in _RECEIPTS.items() if card.get(key) is not None])
    if card.get("job"):
        lines += [f"What was paid and audited stands on the ledger: `cottage ledger check {_cell(card['job'])}`.", ""]
    if spec:
        lines += ["## Job", "", "```json", json.dumps(spec, indent=2, sort_keys=True), "```", ""]
    return "\n".join(lines)


def merged_card(text: str) -> str:
    """An adapter's README, for the model that it was merged into."""
    for before, after in _MERGED:
        text = text.replace(before, after, 1)
    return re.sub(rf"^\| {_BESIDE} \|.*\n", "", text, count=1, flags=re.MULTILINE)


def _front(model: Mapping[str, Any], adapter: bool) -> list[str]:
    """What the Hub reads."""
    lines = ["---", f"library_name: {'peft' if adapter else 'transformers'}", "pipeline_tag: text-generation"]
    license_ = model.get("license")
    if isinstance(license_, str) and _LICENSES.fullmatch(license_):
        lines.append(f"license: {license_}")
    elif isinstance(license_, str):
        lines += ["license: other", f"license_name: {json.dumps(license_)}"]
    if isinstance(model.get("hub"), str):
        lines += [f"base_model: {model['hub'].partition('@')[0]}"]
        lines += [f"base_model_relation: {'adapter' if adapter else 'finetune'}"]
    return [*lines, "tags: [cottage]", "---"]


def _base_of(model: Mapping[str, Any]) -> str:
    """What an adapter belongs to."""
    if model.get("from_job"):
        return f"the whole model of job {model['from_job']} (`cottage download {model['from_job']} FOLDER --merged`)"
    if isinstance(model.get("hub"), str):
        return str(model["hub"]).partition("@")[0]
    return "the folder that the job was submitted with"


def _base(spec: Mapping[str, Any], config: Mapping[str, Any], adapter: bool) -> list[tuple[str, object]]:
    model = _within(spec, "model")
    rows: list[tuple[str, object]] = []
    if isinstance(model.get("hub"), str):
        name, _, commit = model["hub"].partition("@")
        rows += [("model", f"[{name}](https://huggingface.co/{name}/tree/{commit})"), ("commit", commit)]
    if model.get("license"):
        rows.append(("licence", model["license"]))
    if adapter:
        rows.append((_BESIDE, _base_of(model)))
    if model.get("from_job"):
        after = f", after round {model['from_round']}" if model.get("from_round") else ""
        rows.append(("from job", f"{model['from_job']}{after}"))
    weights = model.get("weights")
    files = [weights] if isinstance(weights, str) else list(weights or ())
    rows += [
        (f"weights {number}" if len(files) > 1 else "weights", f"SHA-256 `{one}`")
        for number, one in enumerate(files, 1)
    ]
    if spec and not files:
        rows.append(("weights", f"random, from seed {_within(spec, 'training').get('seed', 0)}"))
    shape = {key: value for key, value in config.items() if key in ("hidden_size", "num_hidden_layers", "vocab_size")}
    return rows + [(key.replace("_", " "), value) for key, value in shape.items() if not key.startswith(OWN)]


def _data(card: Mapping[str, Any], spec: Mapping[str, Any]) -> list[tuple[str, object]]:
    data, dataset = _within(card, "data"), _within(spec, "dataset")
    rows: list[tuple[str, object]] = [("file", data["name"])] if data.get("name") else []
    more = spec.get("more_datasets")
    every = [
        ("SHA-256", dataset),
        *(("further SHA-256", one) for one in more or ()),
        ("held out SHA-256", _within(spec, "heldout_dataset")),
    ]
    rows += [(name, f"`{one['artifact']}`") for name, one in every if isinstance(one, Mapping) and one.get("artifact")]
    rows += [(key.replace("_", " "), dataset[key]) for key in ("format", "learn", "heldout") if key in dataset]
    return rows + [
        (key.replace("_", " "), data[key]) for key in ("training_sequences", "heldout_sequences") if key in data
    ]


def _settings(spec: Mapping[str, Any]) -> list[tuple[str, object]]:
    training = _within(spec, "training")
    lora = _within(training, "lora")
    method = "all weights"
    if lora:
        learns = ", which of two answers is preferred (DPO)" if training.get("preference") else ""
        kept = learns + _KEPT.get(str(lora.get("quantize")), "")
        method = f"LoRA of rank {lora.get('rank')}, alpha {_cell(lora.get('alpha'))}{kept}"
    rows = [(key.replace("_", " "), training[key]) for key in _TRAINING if training.get(key) is not None]
    outer = _within(training, "outer").get("name") or training.get("outer")
    return (
        [("method", method), *rows, *([("outer method", outer)] if isinstance(outer, str) else [])] if training else []
    )


def _within(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key)
    return found if isinstance(found, Mapping) else {}


def _section(title: str, rows: Sequence[tuple[str, object]]) -> list[str]:
    if not rows:
        return []
    return [
        f"## {title}",
        "",
        "| | |",
        "| --- | --- |",
        *(f"| {_cell(name)} | {_cell(value)} |" for name, value in rows),
        "",
    ]


def compares_answers(card: Mapping[str, Any]) -> bool:
    """Whether a run's losses are of pairs of answers (DPO), of which no perplexity can be told."""
    return bool(_within(_within(card, "spec"), "training").get("preference"))


def _shown(row: Mapping[str, Any], card: Mapping[str, Any]) -> dict[str, Any]:
    found = row if compares_answers(card) else with_perplexity(row)
    return {key: value for key, value in found.items() if key != "time"}


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for row in rows:
        cells = (_cell(row.get(column)) for column in columns)
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _cell(value: object) -> str:
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
