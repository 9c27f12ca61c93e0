"""What every service is handed: settings, time, chance, the store, news and counters."""

from collections.abc import Callable
from dataclasses import dataclass, field

from common.clock import Clock
from coordinator.bus import Bus
from coordinator.config import Config
from coordinator.metrics import Metrics
from coordinator.store.ports import Store


@dataclass(frozen=True)
class Context:
    """``entropy(n)`` returns n unpredictable bytes: ids and audit seeds come from it, and tests bring their own."""

    config: Config
    clock: Clock
    store: Store
    entropy: Callable[[int], bytes]
    bus: Bus = field(default_factory=Bus)
    metrics: Metrics = field(default_factory=Metrics)

    def new_id(self) -> str:
        """32 hexadecimal digits."""
        return self.entropy(16).hex()
