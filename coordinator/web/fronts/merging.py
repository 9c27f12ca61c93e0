"""What several cells answer, as one answer. What one cell answers stays as it is.

A cell counts its own nodes, which are of one cell at a time: those are added up. What it reads in the database is of all cells,
so that it is the first one's; and so are the price, and what the first cell alone does.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from common.untrusted_text import untrusted
from protocol.rest.api import NetworkView, NodeView
from protocol.rest.market import Earnings, Health, HealthCheck, Link, Market, Region

CELLS: Final = "Cells"
NODES: Final = "Nodes"
LEDGER: Final = "Ledger"
_OF_EACH: Final = frozenset({NODES, "Auditors", LEDGER})  # What each cell's coordinator looks at for itself.
_STATES: Final = ("good", "warn", "bad")


def network(views: Sequence[NetworkView]) -> NetworkView:
    """The network at a glance."""
    first = views[0]
    if len(views) == 1:
        return first
    quiet = any(not view.notice for view in views)  # Each says that no node is here, of its own.
    return msgspec.structs.replace(
        first,
        nodes_online=sum(view.nodes_online for view in views),
        nodes_busy=sum(view.nodes_busy for view in views),
        memory_mb=sum(view.memory_mb for view in views),
        flops=sum(view.flops for view in views),
        notice=untrusted("") if quiet else first.notice,
    )


def nodes(lists: Sequence[Sequence[NodeView]]) -> Sequence[NodeView]:
    """Every node, those that are online first: as the cell has it where it is."""
    if len(lists) == 1:
        return lists[0]
    return sorted(_where_they_are(lists).values(), key=lambda node: (not node.online, node.since, node.node))


def regions(lists: Sequence[Sequence[Region]]) -> Sequence[Region]:
    """By name: machines are added up, and relays are those of the cell that knows most."""
    if len(lists) == 1:
        return lists[0]
    named: dict[str, Region] = {}
    for region in (region for one in lists for region in one):
        known = named.get(region.name, Region(region.name, 0, 0, 0, 0.0))
        named[region.name] = Region(
            region.name,
            max(known.relays, region.relays),
            known.nodes + region.nodes,
            known.busy + region.busy,
            known.flops + region.flops,
        )
    return sorted(named.values(), key=lambda region: (-region.flops, region.name))


def links(lists: Sequence[Sequence[Link]]) -> Sequence[Link]:
    """All of them; of one that two cells have heard of, what is worse."""
    if len(lists) == 1:
        return lists[0]
    found: dict[tuple[str, str], Link] = {}
    for link in (link for one in lists for link in one):
        known = found.get((link.one, link.other))
        if known is None or link.rtt_ms > known.rtt_ms:
            found[link.one, link.other] = link
    return list(found.values())


def market(markets: Sequence[Market]) -> Market:
    """Price and demand. What a week could have held lacks minutes of other cells' nodes, which are not stored yet."""
    first = markets[0]
    if len(markets) == 1:
        return first
    known = next((one for one in markets if one.pay_low is not None), first)
    return msgspec.structs.replace(
        first,
        offered=sum(one.offered for one in markets),
        willing=sum(one.willing for one in markets),
        capacity_week=max(one.capacity_week for one in markets),
        pay_low=known.pay_low,
        pay_high=known.pay_high,
    )


def earnings(told: Sequence[Earnings]) -> Earnings:
    """What a wallet has earned, and its machines as the cells have them where they are."""
    first = told[0]
    if len(told) == 1:
        return first
    here = _where_they_are([one.machines for one in told])
    return msgspec.structs.replace(first, machines=tuple(here[machine.node] for machine in first.machines))


def health(told: Sequence[tuple[int, Health]], cells: int) -> Health:
    """How all of ``cells`` do, by what those say that answer."""
    (_, first), *_ = told
    if cells == 1:
        return first
    here = _carried({cell for cell, _ in told}, cells)
    checks = [_check(one, _said_of(one.name, told)) if one.name in _OF_EACH else one for one in first.checks]
    return msgspec.structs.replace(first, checks=(here, *checks))


def _carried(answering: Collection[int], cells: int) -> HealthCheck:
    if silent := [cell for cell in range(cells) if cell not in answering]:
        named = ", ".join(str(cell + 1) for cell in silent)
        text = f"{len(answering)} of {cells} answer now; jobs wait in those that do not: {named}"
        return HealthCheck(CELLS, "bad", text)
    return HealthCheck(CELLS, "good", f"all {cells} answer")


def _said_of(name: str, told: Sequence[tuple[int, Health]]) -> Mapping[int, HealthCheck]:
    return {cell: check for cell, one in told for check in one.checks if check.name == name}


def _check(first: HealthCheck, said: Mapping[int, HealthCheck]) -> HealthCheck:
    """The worst, in the words of all where these differ. Nodes are led to where they lack: one cell's are enough for all."""
    by_state = {_STATES.index(check.state): check.state for check in said.values()}
    state = by_state[min(by_state) if first.name == NODES else max(by_state)]
    if first.name != NODES and len({check.text for check in said.values()}) == 1:
        return first if first.name == LEDGER else msgspec.structs.replace(first, text=f"in each cell: {first.text}")
    text = "; ".join(f"cell {cell + 1}: {check.text}" for cell, check in said.items())
    return HealthCheck(first.name, state, text)


def _where_they_are(lists: Sequence[Sequence[NodeView]]) -> Mapping[str, NodeView]:
    """Each node by its address, as the cell tells of it that it is connected to; else as the first does."""
    told: dict[str, list[NodeView]] = defaultdict(list)
    for node in (node for one in lists for node in one):
        told[node.node].append(node)
    return {name: max(views, key=lambda node: (node.online, node.busy)) for name, views in told.items()}
