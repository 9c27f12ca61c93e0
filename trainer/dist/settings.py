"""What a process group takes from the environment.

=========================  ==========================================================================================
variable                   meaning
=========================  ==========================================================================================
``COTTAGE_KEY_FILE``       this rank's key, made where none is; without it every group has a fresh one
``COTTAGE_PEERS``          addresses of all ranks in order, separated by commas: who may pose as a rank is then fixed;
                           without it the ranks are who the Store says they are
``COTTAGE_ICE_SERVERS``    STUN and TURN servers as in browsers: ``[{"urls": [...], "username": "", "credential": ""}]``
``COTTAGE_REACH_S``        seconds without a link after which a rank is lost; 30 by default
``COTTAGE_LOOPBACK``       1: all ranks are on this machine
=========================  ==========================================================================================
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from common.errors import TransportError
from protocol.identity import NodeKey, parse_address
from protocol.node import MAX_ICE_SERVERS, OfferedIceServer
from trainer.errors import GroupError
from transport.ice.ice import IceServer
from transport.messages.limits import PeerLimits

DEFAULT_REACH_S = PeerLimits.reach_s


@dataclass(frozen=True)
class GroupSettings:
    """How this process meets the others.

    Attributes:
        key: this rank's key.
        peers: addresses of all ranks of the world; empty: the Store is believed.
        ice_servers: help to find a way between two homes.
        loopback: all ranks are on this machine.
        reach_s: seconds without a link after which a rank is lost.
    """

    key: NodeKey = field(default_factory=NodeKey.generate)
    peers: tuple[str, ...] = ()
    ice_servers: tuple[IceServer, ...] = ()
    loopback: bool = False
    reach_s: float = DEFAULT_REACH_S

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "GroupSettings":
        """Read the variables above.

        Raises:
            GroupError: one of them is unusable; the message names it.
        """
        path = environ.get("COTTAGE_KEY_FILE")
        try:
            key = NodeKey.load_or_generate(Path(path)) if path else NodeKey.generate()
            peers = tuple(part.strip() for part in environ.get("COTTAGE_PEERS", "").split(",") if part.strip())
            for peer in peers:
                parse_address(peer)
            servers = _ice_servers(environ.get("COTTAGE_ICE_SERVERS", "[]"))
        except (TransportError, msgspec.DecodeError) as error:
            raise GroupError(f"the COTTAGE_ variables cannot be used: {error}") from error
        loopback = environ.get("COTTAGE_LOOPBACK", "0") == "1"
        return cls(key, peers, servers, loopback, _seconds(environ.get("COTTAGE_REACH_S")))

    def pinned(self, ranks: Sequence[int]) -> tuple[str, ...]:
        """The addresses of a group's ranks (by their numbers in the world), or nothing where the Store is believed.

        Raises:
            GroupError: fewer addresses than ranks.
        """
        if self.peers and max(ranks) >= len(self.peers):
            raise GroupError(f"COTTAGE_PEERS names {len(self.peers)} ranks, but there is a rank {max(ranks)}")
        return tuple(self.peers[rank] for rank in ranks) if self.peers else ()


def _ice_servers(text: str) -> tuple[IceServer, ...]:
    offered = msgspec.json.decode(text, type=tuple[OfferedIceServer, ...])
    servers = tuple(IceServer(url, server.username, server.credential) for server in offered for url in server.urls)
    if len(servers) > MAX_ICE_SERVERS:
        raise GroupError(f"COTTAGE_ICE_SERVERS has {len(servers)} addresses, at most {MAX_ICE_SERVERS} can be used")
    return servers


def _seconds(text: str | None) -> float:
    try:
        seconds = DEFAULT_REACH_S if text is None else float(text)
    except ValueError:
        seconds = 0.0
    if not 1.0 <= seconds <= 3600.0:
        raise GroupError(f"COTTAGE_REACH_S={text!r}: expected seconds from 1 to 3600")
    return seconds
