"""Writes ``protocol/models/hf_classes.py`` from transformers' own config classes: ``python -m tests.support.config_classes``.

The coordinator never imports transformers, so what its classes have stands in a file; a test compares the two.
"""

import dataclasses
import inspect
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers.configuration_utils import PreTrainedConfig
from transformers.generation.configuration_utils import GenerationConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from protocol.models.hf_classes import ConfigClass, Key

OUT = Path(__file__).parents[2] / "protocol/models/hf_classes.py"
FAMILIES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "mixtral",
    "qwen3_moe",
    "olmo2",
    "phi3",
    "smollm3",
    "gemma2",
    "gemma3_text",
    "granite",
    "gpt_neox",
    "gpt2",
)
_KINDS = {bool: "bool", int: "int", float: "float", str: "str", list: "list", dict: "dict", type(None): "null"}
_READ = re.compile(r"config\.([a-z][a-z0-9_]*)\b(?!\()")
_ASKED = re.compile(r"getattr\((?:self\.)?config, \"([a-z][a-z0-9_]*)\"")
_ROPES: dict[str, dict[str, float]] = {
    "default": {},
    "linear": {"factor": 2.0},
    "llama3": {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
}
_HEAD = '''"""What transformers' own config classes have: every key, the kinds of JSON that it takes, and its default.

Written by a program: ``python -m tests.support.config_classes``. ``protocol.models.config_keys`` says what is done about
each key.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Key(NamedTuple):
    """A key of a config class. ``kinds``: bool, int, float, str, list, dict, null."""

    kinds: tuple[str, ...]
    default: Any


class ConfigClass(NamedTuple):
    """One family's class.

    Attributes:
        architecture: the class of its causal language model.
        keys: beside those that every class has (``BASE``).
        aliases: other names of keys.
        ropes: kinds of rotary scaling that the class takes.
        asked: what the model's code asks its config for that the class does not have.
    """

    architecture: str
    keys: Mapping[str, Key]
    aliases: Mapping[str, str]
    ropes: tuple[str, ...]
    asked: tuple[str, ...]


'''


def kinds(hint: Any) -> tuple[str, ...]:
    """The kinds of JSON that a type hint takes."""
    return tuple(sorted(set(_kinds(hint))))


def _kinds(hint: Any) -> Iterator[str]:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        for part in get_args(hint):
            yield from _kinds(part)
    elif origin is Literal:
        yield from (_KINDS[type(value)] for value in get_args(hint))
    elif (origin or hint) in _KINDS:
        yield _KINDS[origin or hint]
    elif hasattr(hint, "__required_keys__"):  # A TypedDict, such as rotary parameters.
        yield "dict"


def keys_of(kind: type[PreTrainedConfig]) -> dict[str, Key]:
    """The fields of a config class by name."""
    hints = get_type_hints(kind, localns={"torch": torch})  # Their module knows it for type checkers only.
    return {one.name: Key(kinds(hints[one.name]), _default(one)) for one in dataclasses.fields(kind)}  # type: ignore[arg-type]


def _default(one: "dataclasses.Field[Any]") -> Any:
    value = one.default if one.default is not dataclasses.MISSING else None
    return value if isinstance(value, bool | int | float | str | None) else None


def _aliases(kind: type[PreTrainedConfig], own: dict[str, Key]) -> dict[str, str]:
    """The other name of each key that has two: the one that is a field is the key."""
    pairs = [pair if pair[1] in own else pair[::-1] for pair in kind.attribute_map.items()]
    return dict(sorted(pairs))


def _ropes(family: str, kind: type[PreTrainedConfig]) -> tuple[str, ...]:
    """The kinds of rotary scaling that a class takes, of those whose frequencies do not depend on the length of the input."""
    if not hasattr(kind(), "rope_parameters"):
        return ()
    found = []
    for name, more in _ROPES.items():
        rope = {"rope_type": name} | more
        try:
            kind(rope_parameters={"full_attention": rope} if family == "gemma3_text" else rope)
        except StrictDataclassError:
            continue
        found.append(name)
    return tuple(found)


def _asked(model: type, own: dict[str, Key], aliases: dict[str, str]) -> tuple[str, ...]:
    source = inspect.getsource(sys.modules[model.__module__])
    names = {name for pattern in (_READ, _ASKED) for name in pattern.findall(source)}
    return tuple(sorted(names - own.keys() - aliases.keys() - keys_of(PreTrainedConfig).keys()))


def classes() -> dict[str, ConfigClass]:
    """What the classes that are installed have, by family."""
    base = keys_of(PreTrainedConfig)
    found = {}
    for family in FAMILIES:
        kind = CONFIG_MAPPING[family]
        own = {name: key for name, key in keys_of(kind).items() if base.get(name) != key}
        model: Any = MODEL_FOR_CAUSAL_LM_MAPPING[kind]
        aliases = _aliases(kind, own)
        found[family] = ConfigClass(model.__name__, own, aliases, _ropes(family, kind), _asked(model, own, aliases))
    return found


def text() -> str:
    """The content of the file, not yet formatted."""
    lines = [_HEAD, f"VERSION = {transformers.__version__!r}\n\n", "BASE: Mapping[str, Key] = {\n"]
    lines += [f"    {name!r}: {_key(key)},\n" for name, key in keys_of(PreTrainedConfig).items()]
    lines.append("}\n\nGENERATION: frozenset[str] = frozenset({\n")
    lines += [f"    {name!r},\n" for name in sorted(GenerationConfig._get_default_generation_params())]
    lines.append("})\n\nCLASSES: Mapping[str, ConfigClass] = {\n")
    for family, found in classes().items():
        lines.append(f"    {family!r}: ConfigClass({found.architecture!r}, {{\n")
        lines += [f"        {name!r}: {_key(key)},\n" for name, key in found.keys.items()]
        lines.append(f"    }}, {found.aliases!r}, {found.ropes!r}, {found.asked!r}),\n")
    return "".join([*lines, "}\n"])


def _key(key: Key) -> str:
    return f"Key({key.kinds!r}, {key.default!r})"


if __name__ == "__main__":
    OUT.write_text(text(), "utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", str(OUT)], check=True)
