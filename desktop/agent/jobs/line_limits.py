"""How much of the household's line jobs may use: limits up and down, a monthly cap, politeness; changed while running.

People write ``5M`` (five million bytes a second), ``40Mbit`` (the same), ``500G`` (a month's bytes) or ``off``.
"""

import re
from decimal import Decimal

import msgspec

from desktop.agent.base.config import MAX_LIMIT, MIN_RATE, Settings
from desktop.agent.errors import SettingsError
from desktop.answers import LimitsAnswer

OFF = "off"
_QUANTITY = re.compile(
    r"(?P<number>[0-9]{1,9}(\.[0-9]{1,6})?)\s?(?P<factor>[kmgt]?)(?P<unit>b|bit|)(/s)?", re.IGNORECASE
)
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


class LineLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the owner grants; bytes a second and bytes a calendar month (UTC), None: as much as there is.

    ``polite``: yield to the household's own traffic within moments.
    """

    up: int | None = None
    down: int | None = None
    month: int | None = None
    polite: bool = False

    @classmethod
    def of(cls, settings: Settings) -> "LineLimits":
        """The limits among the settings."""
        return cls(settings.up or None, settings.down or None, settings.month or None, settings.polite)

    def into(self, settings: Settings) -> Settings:
        """The settings with these limits."""
        return msgspec.structs.replace(
            settings, up=self.up or 0, down=self.down or 0, month=self.month or 0, polite=self.polite
        )


class LimitsChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to change, in people's words; None leaves it as it is."""

    up: str | None = None
    down: str | None = None
    month: str | None = None
    polite: bool | None = None

    def apply(self, limits: LineLimits) -> LineLimits:
        """The limits after the change.

        Raises:
            SettingsError: a value cannot be used; the text names it.
        """
        return LineLimits(
            up=limits.up if self.up is None else parse_rate("--up", self.up),
            down=limits.down if self.down is None else parse_rate("--down", self.down),
            month=limits.month if self.month is None else parse_quantity("--month", self.month),
            polite=limits.polite if self.polite is None else self.polite,
        )


LimitsView = LimitsAnswer[LineLimits]


def parse_quantity(option: str, text: str) -> int | None:
    """Bytes from what somebody wrote; None for ``off``.

    Raises:
        SettingsError: not a quantity, or out of its bounds.
    """
    if text.strip().lower() == OFF:
        return None
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise SettingsError(f"{option} {text[:40]!r} is no quantity: write 5M, 40Mbit, 500G or off")
    value = Decimal(match["number"]) * _FACTORS[match["factor"].lower()]
    found = int(value / 8 if match["unit"].lower() == "bit" else value)
    if not 0 < found <= MAX_LIMIT:
        raise SettingsError(
            f"{option} {text[:40]!r} is out of bounds: more than 0, at most {MAX_LIMIT:,} bytes, or off"
        )
    return found


def parse_rate(option: str, text: str) -> int | None:
    """Bytes a second from what somebody wrote; None for ``off``.

    Raises:
        SettingsError: as ``parse_quantity``, or too little to hold a link.
    """
    rate = parse_quantity(option, text)
    if rate is not None and rate < MIN_RATE:
        raise SettingsError(
            f"{option} {text[:40]!r} is {rate:,} bytes a second, too little to hold a link: at least {MIN_RATE:,}"
        )
    return rate


def show_rate(rate: int | None) -> str:
    """``5 MB/s (40 Mbit/s)``, or ``no limit``."""
    return "no limit" if rate is None else f"{_short(rate)}B/s ({_short(rate * 8)}bit/s)"


def show_quantity(size: int | None) -> str:
    """``500 GB``, or ``no limit``."""
    return "no limit" if size is None else f"{_short(size)}B"


def _short(value: int) -> str:
    for prefix, factor in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if value >= factor:
            return f"{value / factor:.4g} {prefix}"
    return f"{value} "
