"""What strangers may cost: answers to those without an allocation are few per address and few in all."""

import ipaddress

from transport.relay.usage import Bucket

SOURCE_RATE = 50.0  # Messages a second from one address: ten nodes behind one home's NAT that all begin at once.
SOURCE_BURST = 200.0
TOTAL_RATE = 4000.0  # About a third of one core at 80 us an answer: clients that have an allocation keep the rest.
TOTAL_BURST = 8000.0
MAX_SOURCES = 16384  # Remembered addresses, some 3 MB; a flood from forged ones pushes out the oldest.


class StrangerGuard:
    """Decides whether a message from an address without an allocation is read at all.

    The answer to a stranger goes to the address that the message claims, so a low rate per address also bounds what a forger
    can have the relay send to a victim.
    """

    def __init__(self) -> None:
        self._sources: dict[str, Bucket] = {}
        self._total = Bucket(TOTAL_RATE, TOTAL_BURST)

    def allows(self, address: str, now: float) -> bool:
        """Count one message from ``address`` at monotonic time ``now``."""
        source = _source(address)
        bucket = self._sources.pop(source, None) or Bucket(SOURCE_RATE, SOURCE_BURST)
        self._sources[source] = bucket
        if len(self._sources) > MAX_SOURCES:
            del self._sources[next(iter(self._sources))]
        return bucket.take(1, now) and self._total.take(1, now)


def _source(address: str) -> str:
    """An IPv4 address, or the 64 bits of an IPv6 network: whoever has one such address has them all."""
    if ":" not in address:
        return address
    return str(int(ipaddress.IPv6Address(address.partition("%")[0])) >> 64)
