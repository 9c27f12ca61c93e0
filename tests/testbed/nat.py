"""How a home's router treats what crosses it, as rules for nftables. Words after RFC 4787; the old names are those of RFC 3489.

A router that loads one of these rule sets replaces all it had before in one step, so no packet meets half of them.
"""

from enum import StrEnum


class Nat(StrEnum):
    """How a home's router treats UDP."""

    NONE = "no NAT"  # The home has a public address of its own and no firewall.
    FULL_CONE = "full cone"  # Whoever writes to the mapped port is let in.
    ADDRESS_CONE = "address-restricted cone"  # Only from addresses that the host has written to, whatever their port.
    PORT_CONE = "port-restricted cone"  # Only from the very address and port: a plain Linux router.
    SYMMETRIC = "symmetric"  # A fresh port for every destination: hole punching fails.
    NO_UDP = "no UDP"  # A company's firewall.


MAPPING_S = 120  # RFC 4787 section 4.3: not under two minutes.


def rules(nat: Nat, wan: str, *, hairpin: bool) -> str:
    """The rules of a router whose devices are ``wan`` and ``lan``.

    Args:
        nat: the kind.
        wan: its public IPv4 address.
        hairpin: whether a host of the home reaches another through the public address (RFC 4787 section 6).
    """
    chains = [_FIREWALL_V6]
    if nat is Nat.NO_UDP:
        chains.append(_chain("no_udp", "filter hook forward priority filter - 1", *_NO_UDP))
    if nat is not Nat.NONE:
        inbound = [f'iifname "wan" {_UDP} {_LET_IN[nat]}'] if nat in _LET_IN else []
        chains += [
            _REMEMBER,
            _chain("inbound", "nat hook prerouting priority dstnat", *inbound),
            _chain("outbound", "nat hook postrouting priority srcnat", f'oifname "wan" {_masquerade(nat)}'),
            *_FIREWALL_V4,
        ]
        if hairpin:
            chains += _hairpin(wan)
    return "\n".join(["flush ruleset", "table inet home {", _SETS, *chains, "}\n"])


def apart(prefix: str) -> str:
    """Rules beside ``rules``, in a table ``apart``, that drop all from and to an IPv4 prefix."""
    gate = _chain("apart", "filter hook forward priority -10", f"ip saddr {prefix} drop", f"ip daddr {prefix} drop")
    return f"table inet apart {{\n{gate}\n}}\n"


def _chain(name: str, place: str, *lines: str) -> str:
    return "\n    ".join([f"  chain {name} {{", f"type {place};", *lines]) + "\n  }"


_V4 = "meta nfproto ipv4"
_UDP = f"{_V4} meta l4proto udp"
# Only what crosses the router: kernels that filter bridges would otherwise part the hosts of one home, too.
_NO_UDP = ('iifname "wan" meta l4proto udp drop', 'oifname "wan" meta l4proto udp drop')
_UNKNOWN = "ct state != { established, related }"

# Linux keeps a host's own port wherever it is free, so the mapping does not depend on the endpoint; a map from that port to the
# host is all that a cone needs beside the kernel's own connections.
_SETS = f"""
  map mappings {{ type inet_service : ipv4_addr; flags dynamic,timeout; timeout {MAPPING_S}s; size 65535; }}
  set written {{ type ipv4_addr . inet_service; flags dynamic,timeout; timeout {MAPPING_S}s; size 65535; }}"""

_REMEMBER = _chain(
    "remember",
    "filter hook forward priority mangle",
    f'iifname "lan" oifname "wan" {_UDP} update @mappings {{ udp sport : ip saddr }}',
    f'iifname "lan" oifname "wan" {_UDP} update @written {{ ip daddr . udp sport }}',
)

_LET_IN = {
    Nat.FULL_CONE: "dnat ip to udp dport map @mappings",
    Nat.ADDRESS_CONE: "ip saddr . udp dport @written dnat ip to udp dport map @mappings",
}

# What nobody has asked for ends at the door without a trace: a connection that the kernel remembered would take the port from the
# host's own answer and spoil the hole.
_FIREWALL_V4 = (
    _chain("door", "filter hook input priority filter", f'iifname "wan" {_V4} meta l4proto != icmp {_UNKNOWN} drop'),
    _chain("gate", "filter hook forward priority filter", f'iifname "wan" {_V4} {_UNKNOWN} ct status & dnat == 0 drop'),
)
_FIREWALL_V6 = _chain(
    "gate_v6",
    "filter hook forward priority filter",
    f'iifname "wan" meta nfproto ipv6 meta l4proto != icmpv6 {_UNKNOWN} drop',
)


def _masquerade(nat: Nat) -> str:
    return f"{_V4} masquerade" + (" fully-random" if nat is Nat.SYMMETRIC else "")


def _hairpin(wan: str) -> list[str]:
    to_wan = f'iifname "lan" ip daddr {wan} meta l4proto udp dnat ip to udp dport map @mappings'
    disguise = f'iifname "lan" oifname "lan" {_V4} ct status dnat snat ip to {wan}'
    return [
        _chain("turn_back", "nat hook prerouting priority dstnat + 1", to_wan),
        _chain("disguise", "nat hook postrouting priority srcnat + 1", disguise),
    ]
