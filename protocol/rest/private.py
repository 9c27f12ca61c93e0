"""How a client comes to a private session: ``protocol.private.sessions`` has the rest."""

from typing import Annotated

import msgspec
from msgspec import Meta

from common.untrusted_text import Untrusted, View
from protocol.ids import NodeAddress
from protocol.node import OfferedIceServer
from protocol.private.sessions import PrivateId, SealedEnvelope


class NewPrivateSession(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ask for a session. ``client``: a key that was made for it. ``avoid``: nodes that it shall not be with; ``node``: the only
    one that it may be with."""

    client: NodeAddress
    avoid: Annotated[tuple[NodeAddress, ...], Meta(max_length=64)] = ()
    node: NodeAddress | None = None


class PrivateSession(View, frozen=True):
    """A session that an offer can be made for.

    Attributes:
        node: who is to talk, and its Ed25519 key. ``name``: what its owner calls it.
        tokens: of prompts and answers, at most. ``expires``: Unix seconds until which the offer is taken.
        nodes: of how many it may take an answer: more than one where they hold the model together.
        beside: the others of these, which read some of the words. ``beside_names``: what their owners call them.
    """

    session: PrivateId
    node: NodeAddress
    name: Untrusted
    ice_servers: tuple[OfferedIceServer, ...]
    tokens: int
    expires: int
    nodes: int = 1
    beside: tuple[NodeAddress, ...] = ()
    beside_names: tuple[Untrusted, ...] = ()


class SealedOffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The client's offer, sealed."""

    envelope: SealedEnvelope


class SealedAnswer(msgspec.Struct, frozen=True):
    """The node's answer, sealed."""

    envelope: SealedEnvelope
