"""Writes the table of docs/reference/models.md, each key of a config: ``python -m tests.support.config_table``."""

import json
import textwrap
from pathlib import Path

from protocol.models import config_keys
from protocol.models.families import FAMILY
from protocol.models.hf_classes import CLASSES, VERSION

PAGE = Path(__file__).parents[2] / "docs/reference/models.md"
BEGIN, END = "<!-- begin: the table of keys, written by tests/support/config_table.py -->", "<!-- end -->"

LOOKED_AT = frozenset({"model_type", "architectures"})  # Before any other key, and not kept.


def cell(family: str, key: str) -> str:
    """One family and one key; empty where only a config without the key is trained."""
    if key in config_keys.taken(family):
        return "taken"
    if key in CLASSES[family].aliases:
        return f"= {CLASSES[family].aliases[key]}"
    if key in config_keys.SAME.get(family, {}):
        return f"as {config_keys.SAME[family][key][0]}"
    if key == "head_dim" and family != "gpt2":
        return "width / heads"
    if key in config_keys.FIXED:
        return " or ".join(f"`{json.dumps(value)}`" for value in config_keys.FIXED[key])
    return "any" if key in config_keys.HARMLESS else ""


def table() -> str:
    """The table, a row a key; then the keys that are the same thing to all families."""
    rows = sorted(
        {
            *config_keys.FIXED,
            *(key for family in FAMILY for key in {*config_keys.taken(family), *CLASSES[family].aliases}),
        }
    )
    cells = {key: [cell(family, key) for family in FAMILY] for key in rows}
    alike = {key: row[0] for key, row in cells.items() if len(set(row)) == 1}
    lines = [f"Of transformers {VERSION}:", "", f"| key | {' | '.join(FAMILY)} |", "|---" * (len(FAMILY) + 1) + "|"]
    lines += [f"| `{key}` | {' | '.join(row)} |" for key, row in cells.items() if key not in alike]
    taken = ", ".join(f"`{key}`" for key, value in alike.items() if value == "taken")
    fixed = "; ".join(f"`{key}`: {value}" for key, value in alike.items() if value != "taken")
    harmless = ", ".join(f"`{key}`" for key in sorted(config_keys.HARMLESS - set(rows) - LOOKED_AT))
    architectures = ", ".join(f"`{known.architecture}`" for known in CLASSES.values())
    rest = (
        "`model_type` names the family, and `architectures` is left out, `null`, or a list of the family's one: "
        f"{architectures}. "
        "Another is refused: a base model (such as `LlamaModel`) has no head in its weights, and a classifier has another one.",
        f"Taken by all families: {taken}.",
        f"By none, and only these values leave its arithmetic alone: {fixed}.",
        f"Harmless whatever they say: {harmless}.",
    )
    return "\n".join(
        [*lines, *(line for text in rest for line in ("", *textwrap.wrap(text, 150, break_on_hyphens=False)))]
    )


def page(text: str) -> str:
    """The page with its table as it is now."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
