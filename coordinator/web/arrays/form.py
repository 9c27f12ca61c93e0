"""The form of an array job: a program in a container that runs once for each of many files, and the job document that it makes.

Files arrive with the form and become artifacts; the form then holds their digests, so a page that is shown again has them.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, get_type_hints

import msgspec

from coordinator.client.arrays import array_document, command_words
from coordinator.client.text import amount
from coordinator.web.pages.forms import read_wallet, typed_value
from protocol import codec
from protocol.job.array import MAX_ELEMENTS, ArraySpec, CheckerSpec, Inputs
from protocol.job.job import JobSpec

MAX_TYPED = 20_000  # Characters of a field: a command with its arguments, variables, or the digests of shared files.

FieldKind = Literal["whole", "decimal", "amount", "text", "choice", "tick", "words", "variables", "addresses", "image"]


@dataclass(frozen=True)
class ArrayField:
    """One input.

    Attributes:
        place: the type and field of the job document that bounds it.
        choices: values with their labels, of which one is chosen.
        verify: the one way to make sure of results for which it says something; None: for all.
    """

    name: str
    label: str
    help: str
    kind: FieldKind
    place: tuple[type[msgspec.Struct], str]
    choices: tuple[tuple[str, str], ...] = ()
    verify: str | None = None


PROGRAM = (
    ArrayField("image", "Image", "One that you have pushed.", "image", (ArraySpec, "image")),
    ArrayField(
        "command",
        "Command",
        "{input} is the element's file in the container, {name} its name, {index} its number. What it leaves where it starts, "
        "in /out, is the result.",
        "words",
        (ArraySpec, "command"),
    ),
)
BOUNDS = (
    ArrayField("seconds", "Seconds at most", "After so many an element is ended.", "decimal", (ArraySpec, "seconds")),
    ArrayField(
        "estimate",
        "Seconds, likely",
        "The price follows from it. Empty: as if each took the most.",
        "decimal",
        (ArraySpec, "estimate"),
    ),
    ArrayField("memory_mb", "Memory, MB", "The most that an element may have.", "whole", (ArraySpec, "memory_mb")),
    ArrayField("disk_mb", "Disk, MB", "The most that one may write, its result too.", "whole", (ArraySpec, "disk_mb")),
)
MORE = (
    ArrayField("retries", "Retries", "Of an element that fails.", "whole", (ArraySpec, "retries")),
    ArrayField(
        "batch",
        "Elements in a container",
        "One after the other, for those that take less than a second.",
        "whole",
        (ArraySpec, "batch"),
    ),
    ArrayField("gpu", "With a graphics card", "", "tick", (ArraySpec, "gpu")),
    ArrayField("environment", "Variables", "NAME=VALUE, one a line.", "variables", (ArraySpec, "environment")),
)
SURE = (
    ArrayField(
        "verify",
        "Results are",
        "What each costs stands beside the price.",
        "choice",
        (ArraySpec, "verify"),
        (
            ("replicated", "the same at several owners"),
            ("checked", "decided on by a program of yours"),
            ("spot-checked", "looked at now and then by a second owner"),
            ("trusted", "believed, of owners that you name"),
        ),
    ),
    ArrayField("owners", "Owners that must agree", "", "whole", (ArraySpec, "owners"), verify="replicated"),
    ArrayField(
        "check",
        "Program that decides",
        "It finds the result in /in/result, and takes it by ending with 0.",
        "words",
        (CheckerSpec, "command"),
        verify="checked",
    ),
    ArrayField(
        "check_image",
        "Its image",
        "Where it is another one.",
        "image",
        (CheckerSpec, "image"),
        verify="checked",
    ),
    ArrayField(
        "check_seconds",
        "Its seconds at most",
        "Empty: those of an element.",
        "decimal",
        (CheckerSpec, "seconds"),
        verify="checked",
    ),
    ArrayField("check_estimate", "Its seconds, likely", "", "decimal", (CheckerSpec, "estimate"), verify="checked"),
    ArrayField(
        "trusted",
        "Owners that you trust",
        "Addresses where they are paid, one a line.",
        "addresses",
        (ArraySpec, "trusted"),
        verify="trusted",
    ),
)
JOB = (
    ArrayField("name", "Name", "How you find it again.", "text", (JobSpec, "name")),
    ArrayField(
        "budget",
        "Budget",
        "The most that is paid; the rest comes back. Empty: a quarter more than it likely costs.",
        "amount",
        (JobSpec, "budget"),
    ),
    ArrayField("deadline_hours", "Hours", "Until it ends.", "decimal", (JobSpec, "deadline_hours")),
)
_FIELDS: Final = (*PROGRAM, *BOUNDS, *MORE, *SURE, *JOB)
_HINTS: Final[Mapping[type[msgspec.Struct], Mapping[str, Any]]] = {
    kind: get_type_hints(kind, include_extras=True) for kind in (ArraySpec, CheckerSpec, JobSpec)
}
_PLACES: Final[Mapping[str, str]] = {
    **{f"array.{name}": name for name in ("image", "elements", "inputs")},
    **{f"array.{one.name}": one.name for one in _FIELDS if one.place[0] is ArraySpec},
    **{f"array.checker.{one.place[1]}": one.name for one in _FIELDS if one.place[0] is CheckerSpec},
    **{one.name: one.name for one in JOB},
    "array.count": "elements",
    "submitter": "submitter",
}
_LABELS: Final = {
    **{one.name: one.label for one in _FIELDS},
    "elements": "Files",
    "inputs": "Files that each one reads",
    "submitter": "Wallet that pays",
}
UNTYPED: Final = {"elements": "", "count": "", "inputs": "", "submitter": ""}
"""Fields beside those of the document."""


@dataclass(frozen=True)
class ArrayAsked:
    """What was typed, and what it means: a document and its payer, or the errors by field.

    Attributes:
        document: without a budget where none was typed; None: the form cannot be read, or an image or files are missing.
        submitter: the wallet that pays; None: the coordinator's test wallet.
    """

    values: Mapping[str, str]
    errors: Mapping[str, str]
    document: Mapping[str, Any] | None = None
    submitter: str | None = None
    labels: Mapping[str, str] = field(default_factory=lambda: _LABELS)

    @property
    def shared(self) -> Sequence[str]:
        """Paths of the files that each element reads."""
        return sorted(_shared(self.values["inputs"], {}))


def usual() -> dict[str, str]:
    """The form as it is before anybody types."""
    found = dict(UNTYPED)
    for one in _FIELDS:
        kind, name = one.place
        default = next(part.default for part in msgspec.structs.fields(kind) if part.encode_name == name)
        open_ = kind is CheckerSpec or any(default is one for one in (msgspec.NODEFAULT, None, False, ()))
        found[one.name] = "" if open_ else _typed(default)
    return found


def fill(spec: JobSpec) -> dict[str, str]:
    """The form as it would have to be filled in to ask for an array job again, with the same files."""
    assert spec.array is not None
    array, checker = spec.array, spec.array.checker
    found = usual() | {"elements": array.elements, "count": str(array.count), "gpu": ""}
    found["inputs"] = codec.encode_json(array.inputs).decode() if array.inputs else ""
    for one in _FIELDS:
        kind, name = one.place
        whole = {ArraySpec: array, CheckerSpec: checker, JobSpec: spec}[kind]
        if whole is not None and one.kind != "amount":
            found[one.name] = _shown(one, getattr(whole, name))
    return found | {"budget": amount(spec.budget).replace(",", "")}


def again(spec: JobSpec) -> ArrayAsked:
    """The form of an array job (``fill``), in whose ``errors`` stand the fields that would not come back the same."""
    assert spec.array is not None
    back = read(fill(spec), draft=True)
    errors = dict(back.errors)
    parts = {ArraySpec: spec.array, CheckerSpec: spec.array.checker, JobSpec: spec}
    for one in _FIELDS:
        kind, name = one.place
        was = None if (part := parts[kind]) is None else getattr(part, name)
        if one.name not in errors and (_value(one, back.values[one.name], {}) or None) != (was or None):
            errors[one.name] = "it has characters that do not go into a form, so this is another one"
    if several := sorted(name for name, value in spec.array.environment.items() if re.search(r"[\r\n]", value)):
        errors["environment"] = f"{several[0]} has several lines, which do not go into a form: it is left out"
    if "inputs" not in errors and _shared(back.values["inputs"], {}) != spec.array.inputs:
        errors["inputs"] = "they are not those of before: choose them again"
    if spec.note:
        errors[""] = "the job has a note, for which this form has no place: it is left out"
    return replace(back, errors=errors)


def read(typed: Mapping[str, str], draft: bool = False) -> ArrayAsked:
    """Make a job document of a form; what is missing is as ``usual``. ``draft``: nothing has to be there yet."""
    values = {name: _as_typed(name, typed.get(name, value)) for name, value in usual().items()}
    long = f"it has more than {MAX_TYPED:,} characters: submit it as a document"
    errors = {name: long for name, value in values.items() if len(value) > MAX_TYPED}
    values |= dict.fromkeys(errors, "")
    found = {one.name: _value(one, values[one.name], errors) for one in _FIELDS}
    _refuse_ways(values, errors)
    array = {one.name: found[one.name] for one in _FIELDS if one.place[0] is ArraySpec}
    array |= {"inputs": _shared(values["inputs"], errors) or None}
    if values["verify"] == "checked" and "check" not in errors:
        array["checker"] = _checker(found, errors)
    if values["verify"] != "replicated":
        array.pop("owners")
    if not (count := _count(values["count"])):
        values |= {"elements": "", "count": ""}
    there = values["image"] and values["command"] and values["elements"]
    if not draft:
        _refuse_missing(values, errors)
    submitter = read_wallet(values, errors) if values["submitter"] else None
    if errors or not there:
        return ArrayAsked(values, errors, None, submitter)
    own = {name: value for name, value in array.items() if value is not None and name not in ("image", "command")}
    name, hours = found["name"] or "array", found["deadline_hours"]
    document = array_document(
        name, array["image"], array["command"], values["elements"], count, found["budget"] or 0, own, hours
    )
    if fault := _fault(document):
        return ArrayAsked(values, fault, None, submitter)
    return ArrayAsked(values, errors, document, submitter)


def _as_typed(name: str, text: str) -> str:
    """A field without what browsers and people put around it. Blanks around the value of a variable are its own."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.strip("\n") if name == "environment" else text.strip()


def _count(text: str) -> int:
    """How many elements there are. It is the page's own text, so one that is no such number is somebody's play: 0."""
    count = int(text) if re.fullmatch(r"[0-9]{1,5}", text) else 0
    return count if count <= MAX_ELEMENTS else 0


def place(path: str) -> str:
    """The form's field for a field of the job document; "" where it has none."""
    name = path.removeprefix("spec.").strip(".").partition(":")[0]
    while name and name not in _PLACES:
        name = name.rpartition(".")[0]
    return _PLACES.get(name, "")


def _fault(document: Mapping[str, Any]) -> dict[str, str]:
    """What is wrong with a document whose parts are well each by itself."""
    try:
        codec.convert({**document, "budget": document["budget"] or 1}, JobSpec)
    except codec.MessageError as error:
        return {place(error.field): error.words}
    return {}


def _refuse_missing(values: Mapping[str, str], errors: dict[str, str]) -> None:
    lacks = {
        "image": "choose the image in which the program is",
        "command": "write what runs for each file",
        "elements": "choose the files: it runs once for each",
        "name": "give the job a name",
    }
    errors |= {name: text for name, text in lacks.items() if not values[name] and name not in errors}


def _refuse_ways(values: Mapping[str, str], errors: dict[str, str]) -> None:
    """Words that would do nothing are said, not passed over. A number of owners is there from the start."""
    if values["verify"] == "trusted" and not values["trusted"]:
        errors["trusted"] = "name the owners, by the addresses where they are paid"
    for one in SURE:
        if one.verify not in (None, "replicated", values["verify"]) and values[one.name]:
            label = next(text for value, text in SURE[0].choices if value == one.verify)
            errors[one.name] = f"it is for results that are {label}: choose so above, or leave this empty"


def _checker(found: Mapping[str, Any], errors: dict[str, str]) -> dict[str, Any] | None:
    if found["check"] is None:
        errors["check"] = "write the program that decides, or choose another way"
        return None
    seconds = found["check_seconds"] or found["seconds"]
    parts = {"command": found["check"], "image": found["check_image"], "seconds": seconds}
    parts |= {"estimate": found["check_estimate"]}
    return {name: value for name, value in parts.items() if value is not None}


def _shared(text: str, errors: dict[str, str]) -> dict[str, str]:
    """What each element reads: path -> digest. It is the page's own text, so a fault is somebody's play."""
    if not text:
        return {}
    try:
        return dict(codec.decode_json(text, Inputs, MAX_TYPED))
    except codec.MessageError as error:
        errors["inputs"] = str(error)
        return {}


def _value(one: ArrayField, text: str, errors: dict[str, str]) -> Any:
    """What was typed as a value within its bounds, None where nothing was."""
    kind, name = one.place
    if not text:
        return None
    try:
        return codec.convert(_parsed(one, text), _HINTS[kind][name])
    except codec.MessageError as error:
        errors[one.name] = error.words
    except ValueError as error:
        errors[one.name] = str(error)
    return None


def _parsed(one: ArrayField, text: str) -> Any:
    match one.kind:
        case "words":
            return command_words(text)
        case "tick":
            return True
        case "addresses":
            return text.split()
        case "variables":
            return _variables(text)
        case "image":
            return text
        case "whole" | "decimal" | "amount" | "text" | "choice":
            return typed_value(one.kind, text)


def _variables(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in filter(str.strip, text.split("\n")):
        name, separator, value = line.partition("=")
        name = name.strip()
        if not separator:
            raise ValueError(f"{line[:40]!r} is no NAME=VALUE")
        if name in found:
            raise ValueError(f"{name[:40]!r} stands there twice")
        found[name] = value
    return found


def _shown(one: ArrayField, value: Any) -> str:
    match one.kind:
        case "words":
            return " ".join(map(_quoted, value))
        case "variables":
            return "\n".join(f"{name}={text}" for name, text in value.items() if not re.search(r"[\r\n]", text))
        case "addresses":
            return "\n".join(value)
        case _:
            return "" if value is None or value is False else _typed(value)


def _quoted(word: str) -> str:
    """A word of a command as ``command_words`` finds it again; ``{input}`` stays as it was typed."""
    return shlex.quote(word) if not word or re.search(r"[\s'\"\\]", word) else word


def _typed(value: Any) -> str:
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return "on" if value is True else str(value)
