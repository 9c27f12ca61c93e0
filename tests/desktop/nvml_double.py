"""A driver with the cards that a test plugs in: answers what Cottage asks of NVML, in NVML's own errors and units."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest


@dataclass(eq=False)
class Card:
    """``watts``: what it draws now. ``administrator``: this process may set its limit."""

    uuid: str
    name: str = "NVIDIA GeForce RTX 4090"
    memory_mb: int = 24564
    used_mb: int = 1000
    celsius: int = 50
    watts: float = 100.0
    limit: int = 450_000
    administrator: bool = False
    processes: list[Any] = field(default_factory=list)


class Driver:
    """In ``cards`` the position is the number; a test may change the list at any time. ``mute``: it does not tell the draw."""

    def __init__(self, *cards: Card) -> None:
        self.cards, self.mute = list(cards), False

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        answers: dict[str, Any] = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetCount": lambda: len(self.cards),
            "nvmlDeviceGetHandleByIndex": self._at,
            "nvmlDeviceGetHandleByUUID": self._of,
            "nvmlSystemGetDriverVersion": lambda: "565.77",
            "nvmlDeviceGetUUID": lambda card: card.uuid,
            "nvmlDeviceGetName": lambda card: card.name,
            "nvmlDeviceGetMemoryInfo": lambda card: SimpleNamespace(
                total=card.memory_mb << 20, used=card.used_mb << 20
            ),
            "nvmlDeviceGetUtilizationRates": lambda card: SimpleNamespace(gpu=97),
            "nvmlDeviceGetTemperature": lambda card, _: card.celsius,
            "nvmlDeviceGetPowerUsage": self._draw,
            "nvmlDeviceGetEnforcedPowerLimit": lambda card: card.limit,
            "nvmlDeviceGetPowerManagementLimit": lambda card: card.limit,
            "nvmlDeviceGetPowerManagementDefaultLimit": lambda _: 450_000,
            "nvmlDeviceGetPowerManagementLimitConstraints": lambda _: (150_000, 600_000),
            "nvmlDeviceSetPowerManagementLimit": self._set,
            "nvmlDeviceGetComputeRunningProcesses": lambda card: card.processes,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(pynvml, name, answer)

    def _at(self, number: int) -> Card:
        if not 0 <= number < len(self.cards):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return self.cards[number]

    def _of(self, uuid: str) -> Card:
        for card in self.cards:
            if card.uuid == uuid:
                return card
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def _draw(self, card: Card) -> int:
        if self.mute:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return round(card.watts * 1000)

    def _set(self, card: Card, milliwatts: int) -> None:
        if not card.administrator:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        card.limit = milliwatts
