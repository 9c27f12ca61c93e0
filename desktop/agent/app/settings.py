"""The owner's settings as the windows and ``cottage node settings`` show and change them, while the agent runs.

When lends and how much of the line are apart: ``desktop.agent.lending`` and ``desktop.agent.jobs.line_limits``.
"""

import os
import re
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from common.invitations import Invitation
from common.token_worth import CURRENCY
from desktop.agent.base import networks
from desktop.agent.base.config import Home, Settings, payee
from desktop.agent.base.gpu import lasting, total_memory_mb
from desktop.agent.errors import SettingsError
from desktop.agent.hardware.meters import gpus
from desktop.answers import SettingsAnswer
from ledger.errors import AmountError
from ledger.money import parse
from protocol.codec import MessageError, convert
from protocol.wallets import MAX_TEXT

Effect = Literal["now", "rejoin", "restart"]
_SPOKEN = frozenset({"name", "payout", "floor"})  # What the coordinator is told when this node connects.
_MONEY = frozenset({"electricity", "currency", "worth"})
_QUIET = _MONEY | {"resting", "disk_gb", "watts", "up", "down", "month", "polite", "updates", "at_login"}
_AMOUNTS = ("floor", "electricity", "worth", "bond")


class SettingsChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to change; None leaves it as it is. Amounts are tokens in decimals; ``payout`` "" is the node's own wallet.

    ``coordinator``: an invitation, too. ``floor``: for 10^15 operations. ``bond``: at a time.
    ``currency``: in which ``electricity`` (for a kWh) and ``worth`` (of a token) are; "": electricity is in tokens.
    ``threads`` and ``memory_mb`` 0: all, and half. ``gpu``: one, several with commas between, or ``all``.
    """

    coordinator: Annotated[str, Meta(max_length=2000)] | None = None
    name: Annotated[str, Meta(max_length=100)] | None = None
    payout: Annotated[str, Meta(max_length=MAX_TEXT)] | None = None
    floor: Annotated[str, Meta(max_length=40)] | None = None
    electricity: Annotated[str, Meta(max_length=40)] | None = None
    currency: Annotated[str, Meta(max_length=3)] | None = None
    worth: Annotated[str, Meta(max_length=40)] | None = None
    bond: Annotated[str, Meta(max_length=40)] | None = None
    threads: int | None = None
    memory_mb: int | None = None
    gpu: int | str | None = None
    disk_gb: int | None = None
    watts: int | None = None
    updates: bool | None = None
    at_login: bool | None = None

    def apply(self, settings: Settings, address: str, offered: Sequence[Invitation] = ()) -> Settings:
        """The settings after the change.

        Args:
            address: the node's own, which is what an empty payout stands for.
            offered: networks that are known, whose keys need not be given again.
        Raises:
            SettingsError: a value cannot be used; the text names it.
        """
        given = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        if self.coordinator is not None:
            settings = settings.joining(settings.meant(self.coordinator, offered))
            del given["coordinator"]
        if self.payout is not None:
            given["payout"] = payee(self.payout)
        try:
            for name in _AMOUNTS:
                if name in given:
                    given[name] = parse(str(given[name]).strip() or "0")
            if self.currency is not None:
                given["currency"] = _currency(self.currency)
            if "gpu" in given:
                given |= _lent(given["gpu"])
            changed: Settings = convert(msgspec.to_builtins(settings) | given, Settings)
        except (MessageError, AmountError) as error:
            raise SettingsError(f"the setting cannot be used: {error}") from error
        if changed.threads > (most := os.cpu_count() or 1):
            raise SettingsError(f"{changed.threads} processors are more than this computer has: at most {most}")
        if changed.memory_mb > (most := total_memory_mb()):
            raise SettingsError(f"{changed.memory_mb} MB of memory are more than this computer has: at most {most}")
        checked = changed if changed.coordinator else msgspec.structs.replace(changed, coordinator="http://localhost")
        checked.completed(address)  # Names the address or the wallet that cannot be used.
        return changed


def _lent(text: int | str) -> dict[str, object]:
    """What is lent by one number or identity, by several with commas between, or by ``all``: none of them is switched off.

    Raises:
        SettingsError: one of several is not here, or named twice.
    """
    if isinstance(text, int):
        return {"gpu": lasting(text), "cards": (), "resting": ()}
    words = [gpu.uuid for gpu in gpus()] if text.strip() == "all" else [word.strip() for word in text.split(",")]
    if not words:
        raise SettingsError("this computer has no NVIDIA GPU that could be lent")
    cards = [lasting(int(word) if re.fullmatch(r"-?[0-9]{1,3}", word) else word) for word in words]
    here = {gpu.uuid for gpu in gpus()}
    if len(cards) > 1 and (missing := [card for card in cards if card not in here]):
        raise SettingsError(f"GPU {missing[0]} is not in this computer, so it cannot be lent with others")
    if len(set(cards)) < len(cards):
        raise SettingsError("a GPU is named twice")
    return {"gpu": cards[0], "cards": tuple(cards[1:]), "resting": ()}


def _currency(text: str) -> str:
    code = text.strip().upper()
    if code and not re.fullmatch(CURRENCY, code):
        raise SettingsError(f"{text!r} is no currency: write its three letters, as EUR or USD")
    return code


SettingsView = SettingsAnswer[Settings]


def view(home: Home, version: str, effect: Effect = "now") -> SettingsView:
    """The settings of ``home`` on this computer."""
    settings = home.settings()
    offered = tuple(network.link for network in networks.known(home.networks))
    here = (os.cpu_count() or 1, total_memory_mb(), gpus())
    return SettingsView(settings, home.key().address, *here, version, effect, networks=offered)


def effect_of(before: Settings, after: Settings) -> Effect:
    """What it takes to go from one to the other."""
    changed = {name for name in Settings.__struct_fields__ if getattr(before, name) != getattr(after, name)}
    if changed <= _QUIET:
        return "now"
    return "rejoin" if changed <= _SPOKEN | _QUIET else "restart"
