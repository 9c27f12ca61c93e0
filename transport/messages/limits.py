"""How much one node grants its peers, each limit with its reason. Sizes of frames and headers are in ``framing``."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PeerLimits:
    """Bounds of a ``PeerNet``; sizes in bytes, times in seconds.

    Both sides of a link must agree on the ``eager`` values: they are part of the protocol.
    """

    eager_message: int = 4 << 20  # An activation of a micro-batch goes without a round trip for permission.
    eager_window: int = 32 << 20  # Twice the bandwidth-delay product of 500 Mbit/s at 100 ms.
    eager_count: int = 1024  # Small control messages on the way at once.
    large_count: int = 64  # Large messages and streams announced and not yet acknowledged.
    waiting_sends: int = 4096  # Calls of send per peer; the next one waits before it is even queued.
    memory_per_peer: int = 2112 << 20  # One message of the greatest size and something beside it.
    memory_total: int = 2560 << 20  # ... and what others send meanwhile. Memory is only taken as bytes arrive.
    stream_window: int = 16 << 20  # Bytes of a stream on their way or not consumed: 1 Gbit/s at 130 ms.
    buffered_high: int = 4 << 20  # Queue before the wire at most: 4 ms at 8 Gbit/s; slower lines have 4 ms as well.
    # Bytes of unfinished SCTP messages: frames are short, so an honest peer has under 1 MB of them.
    fragments: int = 8 << 20
    ping_s: float = 1.0
    probe_s: float = 0.1  # In doubt: ten probes within ``silent_s``, about 100 bytes each.
    # Of probes without a word: the path is lost. A new one is up, and messages go on, within 3 s.
    silent_s: float = 1.0
    answer_s: float = 5.0  # The peer gathers for 2 s where a server does not answer, and signalling takes its time.
    connect_s: float = 20.0  # ICE with a relay takes up to 10 s where UDP is blocked.
    upgrade_s: float = 30.0  # Of a relayed link, until a direct way is looked for again; then twice as long each time.
    reach_s: float = 30.0  # A killed node is back within seconds, or its place is filled by another.
    resume_s: float = 60.0  # What arrived of a message waits so long for the next link: twice ``reach_s``.
    stall_s: float = 120.0  # A message that was granted memory must go on; the weights of the lanes see to it.
    close_s: float = 3.0  # Closing is a courtesy: nobody waits longer for it.
    max_peers: int = 64  # A node meets 2 neighbours and at most 8 replicas; 64 leaves room for change.
