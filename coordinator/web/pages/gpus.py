"""What a graphics card would earn here: a range from the market's own figures, less its electricity.

The ends are those between which nine of ten weeks of the network's machines lay. Where too few are known, the low end is what
machines were paid for their speed within the last week, and the high end work without a pause at the price of now.
"""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.errors import InvalidError
from protocol.rest.api import NodeView
from protocol.rest.market import Market

PETAFLOP = 10**15
MONTH_DAYS = 30
PART_LOW, PART_HIGH = 0.35, 0.7
"""Of a card's data sheet that training in float32 may reach: an assumption, until a machine with the card is measured here."""


@dataclass(frozen=True)
class GpuDataSheet:
    """A card by its maker's data sheet: float32 operations a second, and the board's power in watts."""

    name: str
    peak: float
    watts: int


GPUS = tuple(
    GpuDataSheet(name, teraflops * 1e12, watts)
    for name, teraflops, watts in (
        ("RTX 5090", 104.8, 575),
        ("RTX 5080", 56.3, 360),
        ("RTX 5070 Ti", 43.9, 300),
        ("RTX 5070", 30.9, 250),
        ("RTX 5060 Ti", 23.7, 180),
        ("RTX 4090", 82.6, 450),
        ("RTX 4080 SUPER", 52.2, 320),
        ("RTX 4080", 48.7, 320),
        ("RTX 4070 Ti SUPER", 44.1, 285),
        ("RTX 4070 Ti", 40.1, 285),
        ("RTX 4070 SUPER", 35.5, 220),
        ("RTX 4070", 29.1, 200),
        ("RTX 4060 Ti", 22.1, 160),
        ("RTX 4060", 15.1, 115),
        ("RTX 3090 Ti", 40.0, 450),
        ("RTX 3090", 35.6, 350),
        ("RTX 3080 Ti", 34.1, 350),
        ("RTX 3080", 29.8, 320),
        ("RTX 3070 Ti", 21.7, 290),
        ("RTX 3070", 20.3, 220),
        ("RTX 3060 Ti", 16.2, 200),
        ("RTX 3060", 12.7, 170),
        ("RTX 2080 Ti", 13.4, 250),
        ("RTX 2070", 7.5, 175),
        ("RTX 2060", 6.5, 160),
        ("GTX 1080 Ti", 11.3, 250),
        ("GTX 1070", 6.5, 150),
        ("GTX 1660", 5.0, 120),
        ("A100", 19.5, 400),
        ("H100 SXM", 66.9, 700),
        ("L40S", 91.6, 350),
        ("T4", 8.1, 70),
    )
)


@dataclass(frozen=True)
class GpuQuestion:
    """What a visitor typed. ``price_kwh`` and ``token`` in the visitor's own currency; ``watts`` 0: as the data sheet says."""

    gpu: str = "RTX 4070"
    hours: float = 8.0
    price_kwh: float = 0.30
    token: float = 1.0
    watts: float = 0.0


@dataclass(frozen=True)
class Estimate:
    """What a card earns in a month of 30 days: amounts in millionths, electricity in kWh and the visitor's currency.

    Attributes:
        measured: machines with this card whose own speed the estimate is from; 0: from the data sheet.
        speed: lowest and highest operations a second.
        learned: the range is from what machines' weeks brought.
        low, high: earned in a month; ``at_work``: the part of the time that the low end works.
        profit_low, profit_high: what is left of it after electricity, in the visitor's currency.
    """

    gpu: GpuDataSheet
    measured: int
    speed: tuple[float, float]
    learned: bool
    low: int
    high: int
    at_work: float
    watts: float
    kwh: float
    electricity: float
    profit_low: float
    profit_high: float


_BOUNDS = {"hours": (0.0, 24.0), "price_kwh": (0.0, 100.0), "token": (0.0, 1e6), "watts": (0.0, 5000.0)}
_NAMES = {"hours": "hours a day", "price_kwh": "price of a kWh", "token": "what one token is worth", "watts": "watts"}


def question(typed: dict[str, str]) -> GpuQuestion:
    """What was typed, by field; what is missing has its default.

    Raises:
        InvalidError: not a number, or beyond its bounds; an unknown card.
    """
    values: dict[str, float] = {}
    for name, (low, high) in _BOUNDS.items():
        text = typed.get(name, "").strip().replace(",", ".")
        if text:
            if not re.fullmatch(r"[0-9]{1,7}(\.[0-9]{1,9})?", text) or not low <= float(text) <= high:
                raise InvalidError(f"{text[:40]!r} as {_NAMES[name]}: write a number from {low:g} to {high:g}", name)
            values[name] = float(text)
    gpu = typed.get("gpu", GpuQuestion.gpu)
    if gpu not in {card.name for card in GPUS}:
        raise InvalidError(f"{gpu[:40]!r} is not in the list: choose the card that is nearest", "gpu")
    return GpuQuestion(gpu=gpu, **values)


def estimate(asked: GpuQuestion, market: Market, nodes: Sequence[NodeView]) -> Estimate:
    """What the card would earn in a month."""
    gpu = next(card for card in GPUS if card.name == asked.gpu)
    same = [node.flops for node in nodes if node.kind == "cuda" and card_of(node.device) == gpu.name and node.flops > 0]
    middle = statistics.median(same) if same else 0.0
    speed = (middle, middle) if same else (gpu.peak * PART_LOW, gpu.peak * PART_HIGH)
    seconds = asked.hours * 3600 * MONTH_DAYS
    price = market.rate / PETAFLOP
    if market.pay_low is not None and market.pay_high is not None:
        pay = market.pay_low / PETAFLOP, market.pay_high / PETAFLOP
    else:
        pay = min(market.paid_week / market.capacity_week, price) if market.capacity_week > 0 else 0.0, price
    low, high = (int(each * how * seconds) for each, how in zip(pay, speed, strict=True))
    watts = asked.watts or float(gpu.watts)
    kwh = watts / 1000 * asked.hours * MONTH_DAYS
    electricity = kwh * asked.price_kwh
    # A card that waits for work draws next to nothing.
    at_work = tuple(min(1.0, each / price) if price else 0.0 for each in pay)
    return Estimate(
        gpu=gpu,
        measured=len(same),
        speed=speed,
        low=low,
        high=high,
        learned=market.pay_low is not None,
        at_work=at_work[0],
        watts=watts,
        kwh=kwh,
        electricity=electricity,
        profit_low=low / 1e6 * asked.token - electricity * at_work[0],
        profit_high=high / 1e6 * asked.token - electricity * at_work[1],
    )


def card_of(device: str) -> str:
    """The card of the table that a device's own name means, the longest that fits: ``4070 Ti`` is no ``4070``. Empty: none."""
    words = f" {' '.join(re.findall(r'[a-z0-9]+', device.casefold()))} "
    found = [card.name for card in GPUS if f" {card.name.casefold()} " in words]
    return max(found, key=len, default="")
