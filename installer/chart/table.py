"""The tables of the charts' values in docs/how-to/: `python -m installer.chart.table [FOLDER]` prints one."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from common.terminal import say

FOLDER = Path(__file__).parent


def of_values(folder: Path = FOLDER) -> str:
    """Each value, its default and its meaning, as rows of Markdown."""
    values = yaml.safe_load((folder / "values.yaml").read_text())
    schema = json.loads((folder / "values.schema.json").read_text())
    rows = [f"| `{name}` | {_shown(value)} | {told} |" for name, value, told in _leaves(values, schema)]
    return "\n".join(["| value | default | |", "|---|---|---|", *rows]) + "\n"


def _leaves(values: Mapping[str, Any], schema: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any, str]]:
    for key, value in values.items():
        told = schema["properties"][key]
        if "description" in told:
            yield f"{above}{key}", value, told["description"]
        else:
            yield from _leaves(value, told, f"{above}{key}.")


def _shown(value: object) -> str:
    if value in ("", [], {}):
        return ""
    if isinstance(value, dict):
        return "see `values.yaml`"
    return f"`{json.dumps(value)}`" if isinstance(value, bool) else f"`{value}`"


if __name__ == "__main__":
    say(of_values(*map(Path, sys.argv[1:2])).rstrip("\n"))
