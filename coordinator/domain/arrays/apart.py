"""Who counts as one where owners are to be told apart: no two copies of an element go to one of these.

An owner is where work is paid. Two owners behind one block of addresses may well be one person with two wallets: 256 addresses of
IPv4, or the 2^80 of IPv6 that one customer is usually given. Addresses of the coordinator's own machine say nothing.
"""

import ipaddress

IPV4_BLOCK, IPV6_BLOCK = 24, 48


def block_of(address: str) -> str:
    """The block that an address is of, in words; empty where it tells nobody apart."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if found.is_loopback:
        return ""
    prefix = IPV4_BLOCK if found.version == 4 else IPV6_BLOCK
    return str(ipaddress.ip_network((found, prefix), strict=False))
