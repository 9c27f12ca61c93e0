"""Texts for people: where a stored text has an address, they read the node's name and the ends of the address."""

import re
from collections.abc import Iterable, Mapping, Sequence

from common.untrusted_text import Untrusted, untrusted
from coordinator.client.text import short
from coordinator.store.ports import Transaction, col
from coordinator.store.records import NodeRecord

MAX_NAME = 40  # Characters of a name within a sentence; a node may call itself by 200.
MAX_LISTED = 6  # Nodes named in one sentence; more are counted.

# 32 random bytes in base 58. Neither a job's id (32 characters) nor a digest (64) nor a signature (87) is as long.
_ADDRESS = r"(?<![0-9A-Za-z])[1-9A-HJ-NP-Za-km-z]{40,44}(?![0-9A-Za-z])"
_FIND = re.compile(_ADDRESS)
_REPLACE = re.compile(rf"(?:\bnode )?({_ADDRESS})")


async def names_in(tx: Transaction, texts: Iterable[str]) -> Mapping[str, str]:
    """Address -> name, for every node that the texts mention."""
    addresses = {address for text in texts for address in _FIND.findall(text)}
    if not addresses:
        return {}
    records = await tx.find(NodeRecord, col(NodeRecord.address).in_(tuple(sorted(addresses))))
    return {record.address: name for record in records if (name := _plain(record.profile.name))}


def readable(text: str, names: Mapping[str, str]) -> Untrusted:
    """The text with ``node3 (7NeW…dxwD)`` for an address, or for ``node`` and an address; unnamed ones are shortened."""
    return untrusted(_REPLACE.sub(lambda found: _title(found, names), text))


def listed(nodes: Sequence[str]) -> str:
    """Addresses as part of a sentence: ``A``, ``A and B``, ``A, B and 3 more``."""
    shown = [f"node {node}" for node in nodes[:MAX_LISTED]]
    if len(nodes) > MAX_LISTED:
        shown.append(f"{len(nodes) - MAX_LISTED} more")
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def _title(found: re.Match[str], names: Mapping[str, str]) -> str:
    address = found[1]
    if address in names:
        return f"{names[address]} ({short(address)})"
    return found[0].replace(address, short(address))


def _plain(name: str) -> str:
    words = " ".join(untrusted(name).split())
    return words if len(words) <= MAX_NAME else f"{words[: MAX_NAME - 1]}…"
