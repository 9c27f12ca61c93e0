"""How a worker behaves: honestly, or with one lie, for the nodes that prove in tests that lies are caught."""

import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor

from trainer.operations.effects import Value
from trainer.operations.tracer import Meddle, Tracer
from trainer.outer import OuterMethod
from trainer.stage.stage import Stage

Lie = Literal["gradient", "commitment", "lazy", "substitute", "operation"]

EXAGGERATION = 10.0  # Enough to steer the mean of a few replicas.
WRONG_PRODUCT = 2  # Every stage with a layer has more products than that.


class Conduct:
    """Honest work: every hook leaves things as they are."""

    def skips(self) -> bool:
        """Whether the next step is pretended instead of computed; asked once a step."""
        return False

    def watching(self, stage: Stage) -> AbstractContextManager[object]:
        """What surrounds a step: nothing, or the trace that ``meddle`` needs."""
        meddle = self.meddle()
        return nullcontext() if meddle is None else Tracer(meddle=meddle).recording(stage.module, {})

    def gradients(self, stage: Stage) -> None:
        """May change the gradients before the update."""

    def meddle(self) -> Meddle | None:
        """What happens to the operations of the next step; asked once a step, and again when it is disputed."""
        return None

    def root(self, root: bytes) -> bytes:
        """The Merkle root that is reported."""
        return root

    def contribution(self, encoded: bytes, _method: OuterMethod, _round: int) -> bytes:
        """The pseudo-gradient that is sent and committed to beside the root; the last leaf binds ``encoded``."""
        return encoded


class WrongGradients(Conduct):
    """Walks up the loss instead of down, and commits to what came of it."""

    def gradients(self, stage: Stage) -> None:
        """Turn the gradients around."""
        stage.gradients.neg_()


class ForgedCommitment(Conduct):
    """Computes as it should and commits to something else."""

    def root(self, root: bytes) -> bytes:
        """A root under which there are no leaves."""
        return bytes(byte ^ 0xFF for byte in root)


class Lazy(Conduct):
    """Computes its first step and sends that one's payloads again ever after."""

    def __init__(self) -> None:
        self._worked = False

    def skips(self) -> bool:
        """True from the second step on."""
        worked, self._worked = self._worked, True
        return worked


class Substitute(Conduct):
    """Computes and commits to its steps as it should, and contributes something else than they gave."""

    def contribution(self, encoded: bytes, method: OuterMethod, round_index: int) -> bytes:
        """The same direction with ``EXAGGERATION`` times the norm."""
        return method.encode_update(method.decode_update(encoded, round_index).mul(EXAGGERATION), round_index)


class WrongOperation(Conduct):
    """Changes the lowest bit of one product of each step, and stands by it in a dispute."""

    def meddle(self) -> Meddle | None:
        """Of the product ``WRONG_PRODUCT`` of a step, counted from 0."""
        products = itertools.count()

        def flip(_index: int, name: str, written: Sequence[Value]) -> None:
            if name == "aten.mm.default" and next(products) == WRONG_PRODUCT:
                assert isinstance(written[0], Tensor)
                written[0].view(torch.int32).view(-1)[0].bitwise_xor_(1)

        return flip


def conduct(lie: Lie | None) -> Conduct:
    """The conduct for a ``--lie`` of the command line."""
    match lie:
        case None:
            return Conduct()
        case "gradient":
            return WrongGradients()
        case "commitment":
            return ForgedCommitment()
        case "lazy":
            return Lazy()
        case "substitute":
            return Substitute()
        case "operation":
            return WrongOperation()
