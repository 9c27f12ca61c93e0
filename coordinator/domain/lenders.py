"""The operator's list of who may lend: a text with a node or an owner a line, in the operator's own hands.

::

    # machines of the lab
    node  7KqX…           its key, as `cottage node status` shows it
    owner ada             an account here: she invites her own machines
"""

from typing import Final

import msgspec

from common import base58
from common.errors import BadAddressError

MAX_LINES: Final = 100_000  # More than a coordinator has nodes; each costs 100 bytes of memory.
MAX_BYTES: Final = 8 << 20
MAX_OWNERS: Final = 10_000  # Their accounts are asked for every few seconds, in one question.
ADDRESS_BYTES: Final = 32
MAX_OWNER = 64  # Characters; as the names of accounts.


class LendersListError(ValueError):
    """The list cannot be used. The text names the line and the way out."""


class LendersList(msgspec.Struct, frozen=True):
    """Who is on it. ``owners``: accounts by their folded names, each as it was written."""

    nodes: frozenset[str] = frozenset()
    owners: dict[str, str] = {}


def parse_lenders(text: str) -> LendersList:
    """What a list says.

    Raises:
        LendersListError: a line is none of its forms.
    """
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        raise LendersListError(f"it has {len(lines):,} lines: at most {MAX_LINES:,} are read")
    nodes: set[str] = set()
    owners: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        kind, *words = line.partition("#")[0].split() or [""]
        name = " ".join(words)
        match kind:
            case "":
                continue
            case "node":
                nodes.add(_node(number, name))
            case "owner":
                owners[_owner(number, name).casefold()] = name
            case _:
                raise LendersListError(
                    f"line {number}: it begins with {kind[:40]!r}: write `node ADDRESS`, or `owner ACCOUNT`"
                )
    if len(owners) > MAX_OWNERS:
        raise LendersListError(f"it names {len(owners):,} owners: at most {MAX_OWNERS:,} are looked for")
    return LendersList(frozenset(nodes), owners)


def _node(number: int, name: str) -> str:
    try:
        base58.decode(name, ADDRESS_BYTES)
    except BadAddressError as error:
        way = "copy the key that `cottage node status` shows, in capitals and small letters as it stands there"
        raise LendersListError(f"line {number}: {name[:60]!r} is no node: {error}; {way}") from error
    return name


def _owner(number: int, name: str) -> str:
    if not 1 <= len(name) <= MAX_OWNER or not name.isprintable():
        raise LendersListError(
            f"line {number}: {name[:40]!r} is no account: a name has 1 to {MAX_OWNER} characters that can be seen"
        )
    return name
