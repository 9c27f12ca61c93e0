"""Values of a Hugging Face config, each within bounds that are named. Without torch."""

from collections.abc import Mapping
from typing import Any

MAX_LAYERS = 1024  # The deepest public model has 126.
MAX_WIDTH = 1 << 20  # Hidden, intermediate and head widths; the widest public model has 53,248.
MAX_VOCABULARY = 1 << 20
MAX_POSITIONS = 1 << 22
MAX_EXPERTS = 4096  # The largest public count in a layer is 512.
MAX_SHOWN = 80  # Characters of a strange value that a message repeats.


class ModelConfigError(ValueError):
    """A model config that cannot be trained here. The message names the value and the way out."""


def integer(config: Mapping[str, Any], key: str, low: int, high: int, default: int | None = None) -> int:
    """A whole number of the config within bounds; where it is missing or null, the default, if there is one."""
    value = config.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelConfigError(f"{key} is {shown(value)}: give a whole number from {low:,} to {high:,}")
    if not low <= value <= high:
        raise ModelConfigError(f"{key} is {value:,}: choose from {low:,} to {high:,}")
    return value


def number(config: Mapping[str, Any], key: str, low: float, high: float, *, zero: bool = False) -> None:
    """Refuse what is there and no number above ``low`` and up to ``high``. ``zero``: that is one, too."""
    value = config.get(key)
    if value is None:
        return
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if not plain or not (low < value <= high or (zero and value == 0)):
        yaml = ", with a point in it: YAML reads 1e-6 as text, 1.0e-6 as a number" if isinstance(value, str) else ""
        raise ModelConfigError(f"{key} is {shown(value)}: give a number above {low:g}, at most {high:g}{yaml}")


def flag(config: Mapping[str, Any], key: str, default: bool = False) -> bool:
    """A truth value of the config."""
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ModelConfigError(f"{key} is {shown(value)}: give true or false")
    return value


def divides(part: int, part_name: str, whole: int, whole_name: str) -> None:
    """Refuse a whole that is no multiple of its part."""
    if whole % part:
        raise ModelConfigError(f"{whole_name} {whole:,} is not a multiple of {part_name} {part:,}: change one of them")


def shown(value: object) -> str:
    """A value as a message repeats it."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
