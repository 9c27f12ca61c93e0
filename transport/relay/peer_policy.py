"""Which addresses a client may send to through the relay: the public Internet, and nothing behind the relay's back."""

import ipaddress
from collections.abc import Iterable

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# The IANA registries of special addresses, and every IPv6 form that hides an IPv4 address (CVE-2020-26262 and its kin): a relay
# inside a data centre must not open the operator's own networks or the cloud's metadata service.
FORBIDDEN: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",
        "169.254.0.0/16",  # link-local; 169.254.169.254 serves a cloud machine's secrets
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "::/96",  # unspecified, loopback, IPv4-compatible
        "::ffff:0:0/96",  # IPv4-mapped
        "::ffff:0:0:0/96",  # IPv4-translated
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/23",  # Teredo among them
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
    )
)


class PeerPolicy:
    """The rule for peers.

    1. What the operator allows is allowed; an address of the relay's own machine only if it is named alone, not within a network.
    2. The relay's own addresses and ``FORBIDDEN`` are not. (Relayed addresses of this very relay are reached inside of it.)
    3. Everything else is.
    """

    def __init__(self, allowed: Iterable[Network], own: Iterable[str]) -> None:
        """``allowed`` networks beyond the public Internet; ``own`` addresses of the machine and those it is reached at."""
        self._allowed = tuple(allowed)
        self._own = frozenset(ipaddress.ip_address(text.partition("%")[0]) for text in own)

    def permits(self, text: str) -> bool:
        """Whether a client may exchange packets with this IP address."""
        try:
            ip = ipaddress.ip_address(text)
        except ValueError:
            return False
        if ip in self._own:
            return any(ip in network and network.num_addresses == 1 for network in self._allowed)
        return self.could_permit(text)

    def could_permit(self, text: str) -> bool:
        """Whether ``permits`` would say yes if the address were not the relay's own."""
        ip = ipaddress.ip_address(text)
        return any(ip in network for network in self._allowed) or not any(ip in network for network in FORBIDDEN)
