"""What the links of one node share about the network that it is in."""

from dataclasses import dataclass, field

from transport.ice.addresses import AddressWatch
from transport.ice.candidates import RelayMemory


@dataclass(frozen=True)
class Reach:
    """The node's surroundings.

    Attributes:
        watch: tells when addresses or routes have changed.
        relays: which way led to each relay last.
    """

    watch: AddressWatch = field(default_factory=AddressWatch)
    relays: RelayMemory = field(default_factory=RelayMemory)
