"""What a network test means, in the words of the person whose line it is."""

from protocol.network import NatKind
from transport.nettest.result import NetTest, RelayResult

SLOW_UP = 1.25e6  # 10 Mbit/s: a pseudo-gradient of 100 MB then takes 80 s.
LOSSY = 0.02
BITS = 8e-6  # Mbit/s in a byte a second.

_NAT: dict[NatKind, tuple[str, str]] = {
    "none": ("no router in between", "every peer reaches you directly"),
    "full cone": ("full cone", "every peer reaches you directly"),
    "address cone": ("address-restricted cone", "nearly every peer reaches you directly"),
    "port cone": ("port-restricted cone", "most peers reach you directly"),
    "symmetric": (
        "symmetric",
        "peers with a port-restricted or symmetric router reach you through a relay only, which is somewhat slower",
    ),
    "no udp": (
        "UDP is blocked",
        "peers reach you through a relay over TCP only, which is slower; ask for UDP to be let out",
    ),
    "unknown": ("unknown kind", "no relay could tell how your router treats UDP"),
}


def nat(test: NetTest) -> str:
    """The router: ``port-restricted cone: most peers reach you directly``."""
    name, meaning = _NAT[test.nat]
    doubt = "" if test.nat_certain or test.nat == "unknown" else " (or more open: not all could be asked)"
    return f"{name}{doubt}: {meaning}"


def rate(value: float | None) -> str:
    """``94.1 Mbit/s``."""
    return "not measured" if value is None else f"{value * BITS:,.1f} Mbit/s"


def way(relay: RelayResult) -> str:
    """How a relay is reached: UDP with its loss, or TCP."""
    if relay.rtt_s is None:
        return "does not answer"
    return f"{relay.rtt_s * 1000:.1f} ms, " + (f"{relay.loss:.1%} lost" if relay.udp else "TCP only")


def earning(test: NetTest) -> list[str]:
    """What the figures mean for the jobs that this machine gets, the most important first."""
    found = []
    if not test.reached:
        return ["No relay answers: this machine cannot take part in jobs that span several homes."]
    if test.nat in ("symmetric", "no udp"):
        found.append(
            "Jobs go to homes whose messages take the shortest time: a router that opens up brings more of them."
        )
    if test.up is not None and test.up < SLOW_UP:
        found.append(
            f"{rate(test.up)} up makes the outer rounds wait for you: small models and short pipelines suit this line."
        )
    lossy = [relay for relay in test.relays if relay.udp and relay.loss >= LOSSY]
    if lossy:
        found.append("Packets get lost on the way out: Wi-Fi is the usual reason, a cable the usual cure.")
    return found or ["This line is good for every kind of job."]
