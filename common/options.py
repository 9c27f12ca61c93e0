"""Types of options for ``argparse``, which says of Python's own only that a value is an invalid int."""

import argparse
import ipaddress
import math

from common.errors import UrlError
from common.urls import parse_host


def whole(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number: write digits, such as 20") from error


def decimal(text: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no number: write it as 20 or 0.5") from error
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no finite number: write it as 20 or 0.5")
    return value


def port(text: str) -> int:
    """A port to listen on; 0: any."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text[:40]} is no port: choose 0 to 65535")
    return value


def host(text: str) -> str:
    """A name or an address to listen on; one of IPv6 with brackets or without."""
    try:
        return parse_host(text)
    except UrlError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """A network of addresses."""
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        way = "write it as 192.168.1.0/24 or fd00::/8, with zeros behind the network's part"
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is no network: {way}") from error
