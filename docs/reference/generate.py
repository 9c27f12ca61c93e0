"""Fills the pages of the reference from the code, while MkDocs builds them: each ``<!-- generated: NAME -->``."""

import ast
import contextlib
import dataclasses
import inspect
import io
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

sys.path.insert(0, str(Path(__file__).parents[2]))  # MkDocs loads a hook from its file.

import msgspec

from coordinator.config import Config
from coordinator.web.application import interface
from cottage.cli import _ROLES, main
from desktop.agent.base.config import Settings
from desktop.agent.lending.rules import Rules
from protocol.job.job import JobSpec

_MARK = re.compile(r"<!-- generated: ([a-z-]+) -->")
_SCHEMA = "#/components/schemas/"
_WORD = re.compile(r"^    ([a-z]+)(?:  |$)", re.MULTILINE)
_BOUNDS = (("minimum", "from"), ("exclusiveMinimum", "above"), ("maximum", "to"), ("exclusiveMaximum", "below"))


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs' event: the text of a page, before it is rendered."""
    return _MARK.sub(lambda found: GENERATED[found[1]](), markdown)


def help_of(*words: str) -> str:
    """What the command says of itself, in 100 columns."""
    said, columns = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main([*words, "--help"])
    finally:
        os.environ.pop("COLUMNS") if columns is None else os.environ.update(COLUMNS=columns)
    return said.getvalue().replace(str(Path.home()), "~").strip()


def commands() -> str:
    """Every command with its help, and the words of those that have some."""
    parts = []
    for word, (_, text, _) in _ROLES.items():
        told = help_of(word)
        parts.append(f"## cottage {word}\n\n{_sentence(text)}\n\n```text\n{told}\n```\n")
        if word in ("node", "accounts", "admin"):
            parts += [f"### cottage {word} {sub}\n\n```text\n{help_of(word, sub)}\n```\n" for sub in _words(told)]
        if word == "ledger":
            subs = sorted(set(re.findall(r"cottage ledger ([a-z]+)", told)) | set(_words(told)))
            parts += [
                f"### cottage ledger {sub}\n\n```text\n{said}\n```\n"
                for sub in subs
                if (said := help_of(word, sub)) != told
            ]
    return "\n".join(parts)


def _words(told: str) -> list[str]:
    return [word for word in _WORD.findall(told.partition("options:")[0]) if word.isalpha()]


def job_document() -> str:
    """Every field of a job document, by its part."""
    (schema,), parts = msgspec.json.schema_components([JobSpec], ref_template=_SCHEMA + "{name}")
    kinds = _structs(JobSpec)
    order = [schema["$ref"].removeprefix(_SCHEMA), *(name for name in kinds if name != "JobSpec")]
    return "\n".join(_struct(kinds[name], parts[name]) for name in order if name in parts)


def _structs(kind: type) -> dict[str, type]:
    """A struct and all that its fields are made of, in the order of the fields."""
    found = {kind.__name__: kind}
    for one in msgspec.structs.fields(kind):
        for part in _classes(one.type):
            found |= {name: inner for name, inner in _structs(part).items() if name not in found}
    return found


def _classes(kind: Any) -> Iterator[type]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for part in getattr(kind, "__args__", ()):
        yield from _classes(part)


def _struct(kind: type, schema: Mapping[str, Any]) -> str:
    told, required = _field_texts(kind), set(schema.get("required", ()))
    rows = []
    for name, part in schema["properties"].items():
        default = "needed" if name in required else _value(part.get("default"))
        rows.append(f"| `{name}` | {_kind(part)} | {default} | {_cell(told.get(name, ''))} |")
    return "\n".join(
        (
            f"## {kind.__name__}\n",
            _prose(kind),
            "",
            "| field | what it takes | by default | |",
            "|---|---|---|---|",
            *rows,
            "",
        )
    )


def _field_texts(kind: type) -> dict[str, str]:
    """What a class says of its fields: the text below each, and those of ``Attributes``."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for line, below in zip(body.body, [*body.body[1:], None], strict=True):
        text = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            found[line.target.id] = str(text)
    listed = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2]
    for names, text in re.findall(r"^    ([a-z_, ]+): (.+(?:\n {8}.+)*)", listed, re.MULTILINE):
        found |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return found


def configuration() -> str:
    """What a coordinator, an agent and its rules are told, with what holds otherwise."""
    parts = ["## A coordinator\n", _prose(Config), "", "| setting | by default | |", "|---|---|---|"]
    told = _field_texts(Config)
    for one in dataclasses.fields(Config):
        default = "needed" if one.default is dataclasses.MISSING else _value(one.default)
        parts.append(f"| `{one.name}` | {default} | {_cell(told.get(one.name, ''))} |")
    for title, kind in (("An agent", Settings), ("When an agent lends", Rules)):
        (_,), schemas = msgspec.json.schema_components([kind], ref_template=_SCHEMA + "{name}")
        table = _struct(kind, schemas[kind.__name__]).partition("\n")[2]
        parts.append(f"\n## {title}\n{table}")
    return "\n".join(parts)


def rest() -> str:
    """Every route by its tag, then every type."""
    written, _ = interface(Mock(), Mock(), Mock(), Mock())
    document = written()
    parts = []
    for one in document["tags"]:
        tag = one["name"]
        parts.append(f"## {tag.capitalize()}\n\n{one['description']}\n")
        for path, methods in document["paths"].items():
            parts += [_operation(path, method, told) for method, told in methods.items() if tag in told["tags"]]
    parts.append("## Types\n")
    for name, schema in sorted(document["components"]["schemas"].items()):
        rows = [f"| `{field}` | {_kind(part)} |" for field, part in schema.get("properties", {}).items()]
        table = "\n".join(("| field | |", "|---|---|", *rows)) if rows else _kind(schema)
        parts.append(f"### {name} {{ #type-{name.lower()} }}\n\n{_cell(schema.get('description', ''))}\n\n{table}\n")
    return "\n".join(parts)


def _operation(path: str, method: str, told: Mapping[str, Any]) -> str:
    lines = [f"### `{method.upper()} {path}` {{ #{told['operationId'].lower()} }}\n", f"{_sentence(told['summary'])}\n"]
    lines += [
        f"- `{one['name']}` ({one['in']}): {_cell(one.get('description', ''))}" for one in told.get("parameters", ())
    ]
    for media, part in told.get("requestBody", {}).get("content", {}).items():
        lines.append(f"- takes {_kind(part['schema'])} as `{media}`")
    refused = []
    for status, answer in told["responses"].items():
        kinds = [f" {_kind(part['schema'])}" for part in answer.get("content", {}).values()][:1]
        if kinds == [" [Problem](#type-problem)"]:
            refused.append(status)
        else:
            lines.append(f"- {status}:{''.join(kinds)} {_cell(answer['description'])}")
    lines.append(f"- {', '.join(sorted(refused))}: [Problem](#type-problem)")
    return "\n".join((*lines, ""))


def _kind(schema: Mapping[str, Any]) -> str:
    """A JSON schema in words."""
    if "$ref" in schema:
        name = str(schema["$ref"]).removeprefix(_SCHEMA)
        return (
            f"[{name}](#type-{name.lower()})"
            if name not in _structs(JobSpec)
            else f"[{name}](job-document.md#{name.lower()})"
        )
    if "anyOf" in schema:
        return " or ".join(_kind(part) for part in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if schema.get("type") == "array":
        inner = schema.get("items")
        return f"list of {_kind(inner)}" if isinstance(inner, Mapping) and inner else "list"
    bounds = [f"{word} {schema[key]:,}" for key, word in _BOUNDS if key in schema]
    return " ".join((str(schema.get("type", "anything")).replace("null", "nothing"), *bounds))


def _value(default: Any) -> str:
    if default is None or default in ("", (), [], frozenset()):
        return ""
    if isinstance(default, Mapping):
        return "as below"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _prose(kind: type) -> str:
    own = inspect.cleandoc(vars(kind).get("__doc__") or "")  # Not what msgspec says of all structs.
    return re.sub(r"``", "`", own.partition("Attributes:")[0].strip())


def _cell(text: str) -> str:
    return " ".join(re.sub(r"``", "`", text).replace("|", "\\|").split())


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


GENERATED: Mapping[str, Callable[[], str]] = {
    "command": commands,
    "job-document": job_document,
    "configuration": configuration,
    "rest": rest,
}
