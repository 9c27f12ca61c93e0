"""Homes for simulated clusters: lines and distances as published, machines as sold. Every figure has its source.

Spread within a country: a log-normal distribution around the median. Its width follows from Ofcom's own percentiles: 3 % of lines
below 10 Mbit/s and 12 % below 30 at a median of 69.4 are widths of 1.03 and 0.71; 0.8 lies between.
"""

import math
from dataclasses import dataclass

from coordinator.domain.network import Line
from coordinator.domain.placement import Candidate
from coordinator.domain.placement.search import Chance

MEGABIT = 1e6 / 8
WIDTH = 0.8


@dataclass(frozen=True)
class Access:
    """Median rates of a kind of line in Mbit/s, and how often it is drawn in its country."""

    name: str
    down: float
    up: float
    source: str


US = "Ookla, United States, fourth quarter of 2022, medians by provider"
COUNTRIES: dict[str, tuple[Access, ...]] = {
    "United States": (
        Access("Comcast", 226.1, 20.4, US),
        Access("Charter", 225.3, 11.8, US),
        Access("Cox", 212.3, 10.7, US),
        Access("Altice", 190.8, 29.8, US),
        Access("AT&T", 187.1, 142.8, US),
        Access("Verizon", 183.2, 104.9, US),
    ),
    "United Kingdom": (Access("all lines", 69.4, 18.4, "Ofcom, UK home broadband performance, March 2023, medians"),),
    "elsewhere": (
        Access("all lines", 93.99, 48.36, "Ookla Speedtest Global Index, fixed lines, August 2024, medians"),
    ),
}
ACCESS_LATENCY = 0.014  # Round trip of a home to a near server: Ookla's median, United States, end of 2022.
ACCESS_WIDTH = 0.4
CITIES = {
    "Oregon": "United States",
    "Virginia": "United States",
    "Ohio": "United States",
    "Tokyo": "elsewhere",
    "Seoul": "elsewhere",
    "London": "United Kingdom",
    "Frankfurt": "elsewhere",
    "Ireland": "elsewhere",
}


@dataclass(frozen=True)
class Machine:
    """A graphics card: memory, and dense FP16 operations a second, FP32 accumulation (NVIDIA's Ampere and Ada white papers)."""

    name: str
    memory_mb: int
    peak: float


MACHINES = (
    Machine("RTX 4060", 8_000, 30e12),
    Machine("RTX 3060", 12_000, 25e12),
    Machine("RTX 4080", 16_000, 97e12),
    Machine("RTX 3090", 24_000, 71e12),
    Machine("RTX 4090", 24_000, 165e12),
)
UTILISATION = 0.36  # Of the peak: the lowest MFU of INTELLECT-1 (arXiv 2412.01152); kinds are drawn equally often.


class Homes:
    """``count`` homes drawn from ``seed``; implements the planner's ``MeasuredNetwork``."""

    def __init__(self, count: int, seed: int, between: dict[tuple[str, str], tuple[float, float]]) -> None:
        """``between``: milliseconds one way between cities, first of each pair."""
        chance, cities = Chance(seed), list(CITIES)
        self.candidates: list[Candidate] = []
        self.machine: dict[str, Machine] = {}
        self._city: dict[str, str] = {}
        self._line: dict[str, Line] = {}
        self._access: dict[str, float] = {}
        self._between = between | {(b, a): way for (a, b), way in between.items()}
        for number in range(count):
            name = f"home-{number}"
            machine = MACHINES[chance.below(len(MACHINES))]
            self._city[name] = cities[chance.below(len(cities))]
            kinds = COUNTRIES[CITIES[self._city[name]]]
            access = kinds[chance.below(len(kinds))]
            luck = WIDTH * _normal(chance)  # One line: who has a quick download has a quick upload.
            rates = [rate * MEGABIT * math.exp(luck) for rate in (access.up, access.down)]
            self._line[name] = Line(rates[0], rates[1], "port cone", False)
            self._access[name] = ACCESS_LATENCY * math.exp(ACCESS_WIDTH * _normal(chance))
            self.machine[name] = machine
            self.candidates.append(
                Candidate(name, name, machine.memory_mb, machine.peak * UTILISATION, "gpu", card=True)
            )

    def line(self, node: str) -> Line | None:
        """The home's line."""
        return self._line[node]

    def rtt(self, one: str, other: str) -> float | None:
        """Both ends' access, and the way between their cities there and back."""
        way = self._between.get((self._city[one], self._city[other]), (0.0, 0.0))[0]
        return self._access[one] + self._access[other] + 2 * way / 1000

    def nearest(self, node: str) -> str | None:
        """A relay in the home's city."""
        return self._city[node]

    def loss(self, one: str, other: str) -> float:
        """None: what is lost is sent again at line rate; see docs/benchmarks/links.md for what that costs."""
        return 0.0


def _normal(chance: Chance) -> float:
    """A standard normal number. Source: Box and Muller 1958."""
    return math.sqrt(-2 * math.log(1 - chance.share())) * math.cos(2 * math.pi * chance.share())
