"""``cottage node`` on a computer with two cards, each of which is its processor: ``python -m tests.e2e.two_cards run ...``.

The driver is a double that names two cards; what they compute, processors do, in real workers.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pynvml

from desktop.agent.app import startup
from desktop.agent.base.config import Home
from desktop.agent.base.gpu import Device
from desktop.agent.cli import cli

CARDS = ("GPU-5d1c0e2a-1111-2222-3333-444455556666", "GPU-9f00aa12-1111-2222-3333-444455556666")


def as_processor(gpu: int | str, _sandbox: str = "") -> Device:
    """In place of ``startup.chosen``."""
    return Device("cpu", f"card {CARDS.index(str(gpu)) + 1}", 4096, "its processor", gpu=str(gpu))


def name_cards() -> None:
    """In place of the driver."""
    pynvml.nvmlInit = pynvml.nvmlShutdown = lambda: None
    pynvml.nvmlDeviceGetCount = lambda: len(CARDS)
    pynvml.nvmlDeviceGetHandleByIndex = lambda number: CARDS[number]
    pynvml.nvmlDeviceGetHandleByUUID = lambda uuid: uuid
    pynvml.nvmlDeviceGetUUID = lambda card: card
    pynvml.nvmlDeviceGetName = lambda card: f"card {CARDS.index(card) + 1}"
    pynvml.nvmlDeviceGetMemoryInfo = lambda _: SimpleNamespace(total=4 << 30, used=0)


if __name__ == "__main__":
    startup.chosen = as_processor
    name_cards()
    home = Home.at(Path(sys.argv[sys.argv.index("--home") + 1]))
    home.remember(msgspec.structs.replace(home.settings(), gpu=CARDS[0], cards=CARDS[1:], memory_mb=4096))
    sys.exit(cli.main())
