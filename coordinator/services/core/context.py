"""What every service is handed: settings, time, chance, the store, news and counters."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from common.clock import Clock
from coordinator.bus import Bus
from coordinator.config import Config
from coordinator.domain.cells import WHOLE, Cell, cell_of
from coordinator.errors import OtherCellError
from coordinator.metrics import Metrics
from coordinator.store.ports import Store, Transaction


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

    @property
    def everywhere(self) -> Store:
        """The store with the jobs of every cell: for what is counted, shown or tidied up of all."""
        return self.store if self.cell.of == 1 else _Everywhere(self.store)

    def new_id(self) -> str:
        """32 hexadecimal digits."""
        return self.entropy(16).hex()

    def new_job(self) -> str:
        """An id of a job that belongs to this cell."""
        while not self.cell.has(name := self.new_id()):
            pass
        return name

    def check_own(self, job: str) -> None:
        """OtherCellError where a job is carried by another cell, whether there is one of that name or not."""
        if not self.cell.has(job):
            raise OtherCellError(job, cell_of(job, self.cell.of))


class _Everywhere:
    """Implements ``ports.Store`` by transactions of another one, so that they are shared and noticed as those are."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """As ``Transaction.everywhere`` has it."""
        async with self._store.transaction() as tx:
            yield tx.everywhere

    async def close(self) -> None:
        """It is another one's."""
