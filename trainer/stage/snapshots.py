"""States that a round's trace keeps, at little cost to training: memory is used again, hashing is left to a second thread.

Memory that the system gives out afresh costs ten times what copying into it does, and hashing needs no interpreter.
"""

from collections.abc import Iterable
from concurrent.futures import Future

from trainer.stage.background import BackgroundWork
from trainer.stage.stage import Stage, StageState


class SnapshotKeeper:
    """Copies and hashes the states of one stage."""

    def __init__(self) -> None:
        self._free: list[StageState] = []
        self._aside = BackgroundWork()

    def keep(self, stage: Stage) -> StageState:
        """A copy of the stage's state, in memory that was given back where there is some."""
        return stage.state(self._free.pop() if self._free else None)

    def give_back(self, states: Iterable[StageState]) -> None:
        """Take states that nobody reads any more; their memory becomes that of later ones."""
        # Those of one round are as many as the next one needs. What short ones are said from is the round's own.
        given = [state.moments_alone() for state in states]
        self._free = given or self._free

    def digest(self, state: StageState) -> Future[str]:
        """``state.digest()``, later; nobody may change the state before."""
        return self._aside.submit(state.digest)

    def digest_now(self, stage: Stage) -> Future[str]:
        """``stage.state_digest()``; whoever asks lets the stage be until it is there."""
        return self._aside.submit(stage.state_digest)
