"""How data channels are opened in band, and what kinds of messages they carry. Pure.

Sources: RFC 8832 (DCEP), RFC 8831, section 8 (payload protocol identifiers).
"""

from dataclasses import dataclass
from struct import unpack_from

DCEP = 50
STRING = 51
BINARY = 53
EMPTY_STRING = 56
EMPTY_BINARY = 57

ACK = 2
OPEN = 3
OPEN_HEADER = 12


@dataclass(frozen=True, slots=True)
class ChannelOpen:
    """The wish to open a channel."""

    label: str
    protocol: str
    ordered: bool
    max_retransmits: int | None
    max_lifetime_ms: int | None


def read_open(data: bytes) -> ChannelOpen | None:
    """Read a DATA_CHANNEL_OPEN message (RFC 8832, section 5.1); None if it is none."""
    if len(data) < OPEN_HEADER or data[0] != OPEN:
        return None
    kind, _, reliability, label_size, protocol_size = unpack_from("!BHLHH", data, 1)
    end = OPEN_HEADER + label_size
    if len(data) < end + protocol_size:
        return None
    try:
        label, protocol = data[OPEN_HEADER:end].decode(), data[end : end + protocol_size].decode()
    except UnicodeDecodeError:
        return None
    return ChannelOpen(
        label=label,
        protocol=protocol,
        ordered=not kind & 0x80,
        max_retransmits=reliability if kind & 3 == 1 else None,
        max_lifetime_ms=reliability if kind & 3 == 2 else None,
    )


def to_wire(data: bytes | str) -> tuple[int, bytes]:
    """The identifier and bytes of a message; SCTP knows no empty ones (RFC 8831, section 6.6)."""
    if isinstance(data, str):
        return (STRING, data.encode()) if data else (EMPTY_STRING, b"\0")
    return (BINARY, data) if data else (EMPTY_BINARY, b"\0")


def from_wire(protocol: int, data: bytes) -> bytes | str | None:
    """The message behind an identifier and bytes; None for identifiers that say nothing to us."""
    if protocol == BINARY:
        return data
    if protocol == STRING:
        return data.decode(errors="replace")  # As browsers do.
    if protocol == EMPTY_BINARY:
        return b""
    return "" if protocol == EMPTY_STRING else None
