"""Names of fields and columns: those that nobody can tell apart by looking at them are one, and a near one is offered.

Composed or not, ``é`` is ``é``; marks of byte order, joiners and blanks around a name show nowhere. Case does.
"""

import difflib
import unicodedata
from collections.abc import Iterable

TALKS = ("messages", "conversations", "conversation", "dialogue")
"""What columns of messages are called; the text's own field goes before them."""
MAX_NAMES = 1000  # That are looked through for a near one.
_NEAR = 0.8


def as_seen(name: str) -> str:
    """A name as it looks: in composed characters, without those that show nowhere, with one blank for any."""
    composed = unicodedata.normalize("NFC", name)
    visible = "".join(one for one in composed if unicodedata.category(one) not in ("Cf", "Cc") or one.isspace())
    return " ".join(visible.split())


def found_name(field: str, names: Iterable[str]) -> str | None:
    """The name that is ``field``, or else the only one that looks the same; None where there is none, or several do."""
    given = list(names)
    if field in given:
        return field
    seen = as_seen(field)
    alike = [name for name in given if as_seen(name) == seen]
    return alike[0] if len(alike) == 1 else None


def near_name(field: str, names: Iterable[str]) -> str:
    """The name that somebody may have meant; empty where none is near."""
    folded = {as_seen(name).casefold(): name for name in list(names)[:MAX_NAMES]}
    near = difflib.get_close_matches(as_seen(field).casefold(), folded, 1, _NEAR)
    return folded[near[0]] if near else ""


def shown_name(name: str, most: int = 40) -> str:
    """A name in quotes, in which what shows nowhere is written out."""
    cut = name if len(name) <= most else f"{name[:most]}…"
    return repr(cut) if cut == unicodedata.normalize("NFC", cut) else ascii(cut)
