"""Which work one of the operator's own auditors could run again: by its class, its memory and its speed."""

from collections.abc import Mapping

from coordinator.config import Config
from coordinator.domain import placement
from coordinator.domain.placement import COMPUTE_SHARE
from coordinator.services.network.nodes import Nodes
from protocol.boundary import comparable_across
from protocol.job.job import TrainingSpec
from protocol.models.model import ModelShape
from protocol.task import Layers

# Times ``Config.audit_seconds`` that running a segment again may take; longer, and looks would not keep up.
LONGEST = 4.0


class Watching:
    """Knows what the operator's auditors can do, those that are away, too. One that was never here may be able to do anything."""

    def __init__(self, config: Config, nodes: Nodes) -> None:
        self._config = config
        self._nodes = nodes

    def exactly(self, env_class: str) -> bool:
        """Whether an auditor of the class looks, so that nobody else has to compare with a tolerance."""
        here = {auditor.env_class for auditor in self._nodes.auditors()}
        return env_class in here if here else self._may_be_of(env_class)

    def seats(self, training: TrainingSpec, env_class: str) -> bool:
        """Whether a node of a class can be looked at in a job at all, if operators look there."""
        if not self._config.auditors or comparable_across(training):
            return True
        return self._may_be_of(env_class)

    def watches(
        self, shape: ModelShape, training: TrainingSpec, layers: tuple[Layers, ...], stage: int, env_class: str
    ) -> bool:
        """Whether some auditor could run a segment of the stage again in time, as a machine of the class does it."""
        known = self._nodes.known_auditors()
        if not self._config.auditors:
            return False
        if len(known) < len(self._config.auditors):
            return True
        memory = placement.needed(shape, training, layers)
        tokens = training.commit_every * training.batch * training.sequence
        work = placement.operations_of(shape, training, layers[stage], stage == len(layers) - 1, tokens)
        longest = LONGEST * self._config.audit_seconds
        return any(
            (auditor.env_class == env_class or comparable_across(training))
            and auditor.holds(memory, stage)
            and work <= longest * COMPUTE_SHARE * auditor.flops
            for auditor in known
        )

    def unseen(
        self,
        shape: ModelShape,
        training: TrainingSpec,
        layers: tuple[Layers, ...],
        classes: Mapping[tuple[int, int], str],
    ) -> str:
        """Why a plan is not taken: strangers would work where only strangers can look. Empty: it is.

        Args:
            classes: seat (stage, replica) -> the environment class of who is to sit there. Those get none that ``seats`` denies.
        """
        if not self._config.auditors or self._config.unwatched:
            return ""
        for (stage, _), env_class in sorted(classes.items()):
            if self.seats(training, env_class) and not self.watches(shape, training, layers, stage, env_class):
                return (
                    f"none of the operator's machines could look at stage {stage} of {len(layers)} in time: choose a smaller "
                    f"training.commit_every than {training.commit_every}, a smaller batch or more stages, or ask the operator "
                    "for a larger auditor"
                )
        return ""

    def _may_be_of(self, env_class: str) -> bool:
        known = self._nodes.known_auditors()
        return len(known) < len(self._config.auditors) or any(c.env_class == env_class for c in known)
