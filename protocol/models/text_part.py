"""Configs of models that see or hear, too: their text part is trained, as the model that it is by itself. Free of torch.

What stands around it in the config is kept under ``AROUND``, and says that files have other names for its parameters.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from protocol.models.config_keys import OWN, TOKEN_IDS

AROUND = OWN + "around"
"""In the config of a job: that of the whole model, without its ``text_config``.

In place of it: what the text part's config said otherwise; or null, where the text part's keys stood among the others.
"""
_TEXT = "text_config"
_PLACES = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
"""Text parts that rotate by time, height and width. A text's three are equal, so they are plain models (arXiv 2409.12191)."""
_FLAT = {"qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}
"""Whole models whose published configs have no ``text_config``, but its keys among the others."""
_SEEN = re.compile(r"(?:vision|image|video)_|model_type$|architectures$")
_ROPE = ("rope_scaling", "rope_parameters")
_OF_PLACES = frozenset({"mrope_section", "mrope_interleaved"})
_SHARED = frozenset({"dtype", "torch_dtype", "tie_word_embeddings"}) | TOKEN_IDS
"""What such configs say once, for all parts."""
_BASE = "model."
_INSIDE = ("model.language_model.", "model.text_model.")
_BEFORE = "language_model."


def split(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """A config's text part, and what is around it; None where it is a text model's."""
    text = config.get(_TEXT)
    kind = _FLAT.get(str(config.get("model_type")))
    if kind is not None and text is None:
        around = {key: value for key, value in config.items() if _SEEN.match(key)}
        plain, said = _plain({key: value for key, value in config.items() if key not in around} | {"model_type": kind})
        return plain, around | {key: said[key] for key in _ROPE if key in said} | {_TEXT: None}
    if not isinstance(text, Mapping) or not isinstance(text.get("model_type"), str):
        return dict(config), None
    around = {key: value for key, value in config.items() if key != _TEXT}
    shared = {key: around[key] for key in _SHARED & around.keys()}
    plain, said = _plain({key: value for key, value in text.items() if key != "architectures"})
    return shared | plain, around | ({_TEXT: said} if said else {})


def _plain(text: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A text part as the plain model that it is, and what its config said otherwise."""
    family = _PLACES.get(text["model_type"])
    if family is None:
        return dict(text), {}
    said = {key: text[key] for key in ("model_type", *_ROPE) if key in text}
    plain = {**text, "model_type": family}
    for key in _ROPE:
        if isinstance(rope := plain.get(key), Mapping):
            kept = {one: value for one, value in rope.items() if one not in _OF_PLACES}
            plain[key] = kept | {one: "default" for one in ("type", "rope_type") if kept.get(one) == "mrope"}
    return plain, said


def can_join(around: object) -> bool:
    """Whether something is what ``split`` says is around a text part, as far as ``joined`` needs it."""
    return isinstance(around, Mapping) and isinstance(around.get(_TEXT, {}), Mapping | None)


def joined(text: Mapping[str, Any], around: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the whole model again."""
    own = {key: value for key, value in text.items() if key != "architectures"}
    said = around.get(_TEXT, {})
    if said is None:
        return {**own, **{key: value for key, value in around.items() if key != _TEXT}}
    return {**around, _TEXT: own | said}


def names(key: str) -> Iterator[str]:
    """What files of whole models call a parameter of their text part: as older versions wrote them, and newer ones."""
    yield _BEFORE + key
    for inside in _INSIDE:
        yield inside + key.removeprefix(_BASE) if key.startswith(_BASE) else key


def module_of(key: str) -> str:
    """Where a parameter is in the whole model's class."""
    return _INSIDE[0] + key.removeprefix(_BASE) if key.startswith(_BASE) else key


def parameter_of(module: str) -> str:
    """The inverse of ``module_of``."""
    return _BASE + module.removeprefix(_INSIDE[0]) if module.startswith(_INSIDE[0]) else module
