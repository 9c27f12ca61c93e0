"""Home peers for the planner's tests and benchmarks, drawn from a seed: unequal machines on unequal lines."""

from coordinator.domain.placement.cost import Load
from coordinator.domain.placement.fleet import Fleet
from coordinator.domain.placement.node import Candidate
from coordinator.domain.placement.search import Chance
from protocol.identity import NodeKey

MEGABIT = 1e6 / 8
SPEEDS = ((1.0, 0.2), (2.0, 0.3), (4.0, 0.3), (8.0, 0.2))  # Relative; a laptop to a large card.
UPLOADS = ((10, 0.2), (20, 0.25), (40, 0.25), (100, 0.2), (300, 0.1))  # Mbit/s.
LAYERS = 24
MICRO_BATCHES = 64
LAYER_S = 0.1  # Of a micro-batch at speed 1.
# Bytes of a micro-batch of 256 tokens of width 1,024 in 4 bits: machines and lines bound about equally.
BOUNDARY = 0.125e6
LARGE_BOUNDARY = 0.5e6  # Of 1,024 tokens: lines bound more.


def node(number: int, owner: int, memory_mb: int = 24_000, flops: float = 1e9) -> Candidate:
    """Candidate ``number``, paid to account ``owner``."""
    address = NodeKey((1 + number).to_bytes(32, "big")).address
    paid = NodeKey((10_001 + owner).to_bytes(32, "big")).address
    return Candidate(address, paid, memory_mb, flops, "cpu")


def peers(count: int, seed: int, uneven: bool = True) -> Fleet:
    """``count`` peers in regions of about six; ``uneven``: some ways between them are up to nine times slower than the lines."""
    chance = Chance(seed)
    speed = [_draw(SPEEDS, chance) * (0.8 + 0.4 * chance.share()) for _ in range(count)]
    up = [_draw(UPLOADS, chance) * MEGABIT * (0.8 + 0.4 * chance.share()) for _ in range(count)]
    down = [rate * (3, 5, 10)[chance.below(3)] for rate in up]
    region = [chance.below(max(2, count // 6)) for _ in range(count)]
    rtt = [[0.0] * count for _ in range(count)]
    way = [[1.0 + uneven * 8 * chance.share() ** 4 for _ in range(count)] for _ in range(count)]
    for a in range(count):
        for b in range(a):
            near = 0.008 + 0.017 * chance.share() if region[a] == region[b] else 0.06 + 0.12 * chance.share()
            rtt[a][b] = rtt[b][a] = near
    return Fleet(
        nodes=tuple(node(i, i, flops=speed[i]) for i in range(count)),
        speed=speed,
        memory=[1 << 40] * count,
        cards=[False] * count,
        up=up,
        down=down,
        byte=[[way[a][b] * max(1 / up[a], 1 / down[b]) for b in range(count)] for a in range(count)],
        rtt=rtt,
        measured=True,
    )


def load(ahead: int = MICRO_BATCHES, boundary: float = BOUNDARY) -> Load:
    """A model of 24 equal layers; with ``ahead`` micro-batches under way, no loop bounds the beat."""
    return Load(
        layers=LAYERS,
        layer_operations=LAYER_S,
        head_operations=0.0,
        forward_bytes=boundary,
        backward_bytes=2 * boundary,
        layer_bytes=0.0,
        embedding_bytes=0.0,
        head_bytes=0.0,
        micro_batches=MICRO_BATCHES,
        tokens=65_536.0,
        period=50,
        ahead=ahead,
    )


def _draw(choices: tuple[tuple[float, float], ...], chance: Chance) -> float:
    at = chance.share()
    for value, share in choices:
        at -= share
        if at < 0:
            return float(value)
    return float(choices[-1][0])
