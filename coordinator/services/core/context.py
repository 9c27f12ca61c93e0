"""What every service is handed: settings, time, chance, the store, news and counters."""

from collections.abc import Callable
from dataclasses import dataclass, field

from common.clock import Clock
from coordinator.bus import Bus
from coordinator.config import Config
from coordinator.domain.cells import WHOLE, Cell
from coordinator.metrics import Metrics
from coordinator.store.ports import Store


@dataclass(frozen=True)
class Context:
    """``entropy(n)`` returns n unpredictable bytes: ids and audit seeds come from it, and tests bring their own.

    Attributes:
        cell: whose jobs ``store`` has.
    """

    config: Config
    clock: Clock
    store: Store
    entropy: Callable[[int], bytes]
    bus: Bus = field(default_factory=Bus)
    metrics: Metrics = field(default_factory=Metrics)
    cell: Cell = WHOLE

    def new_id(self) -> str:
        """32 hexadecimal digits."""
        return self.entropy(16).hex()

    def new_job(self) -> str:
        """An id of a job that belongs to this cell."""
        while not self.cell.has(name := self.new_id()):
            pass
        return name
