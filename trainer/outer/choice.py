"""The method that a job document asks for."""

from collections.abc import Sequence

from protocol.job.job import DGC_DENSITY, SPARSE_DENSITY, TrainingSpec
from protocol.job.updates import UPDATES
from trainer.codecs import CODECS
from trainer.codecs.sparse import TopK
from trainer.outer.checks import Combining
from trainer.outer.demo import DeMo
from trainer.outer.dgc import DGC
from trainer.outer.diloco import DiLoCo
from trainer.outer.every_step import Gradients, StepMethod
from trainer.outer.method import Layout, OuterMethod
from trainer.outer.streaming import Streaming
from trainer.stage.storage import Slot

SPARSE_FEEDBACK = 0.95  # SparseLoCo, arXiv 2508.15706, section 4.
FEEDBACK = 1.0  # Of codecs that lose half of a vector's length and more: all of it is sent later.


def outer_method(training: TrainingSpec, slots: Sequence[Slot], size: int) -> OuterMethod:
    """The method of a job on a stage whose flat vectors have ``size`` values."""
    layout = Layout(tuple(slots), size)
    update = UPDATES[training.pseudo_gradient]
    codec = CODECS[update.codec]
    rate, momentum, feedback = training.outer_learning_rate, training.outer_momentum, training.error_feedback
    if update.feedback and training.outer in ("diloco", "averaging") and feedback is None:
        feedback = FEEDBACK
    combining, short = Combining(training.aggregation, training.check_updates), training.memory == "lean"
    match training.outer:
        case "diloco":
            return DiLoCo("diloco", layout, codec, rate, momentum, feedback, combining, short=short)
        case "averaging":
            return DiLoCo("averaging", layout, codec, 1.0, 0.0, feedback, combining, short=short)
        case "sparseloco":
            kept = SPARSE_FEEDBACK if feedback is None else feedback
            return DiLoCo(
                "sparseloco", layout, TopK(training.density or SPARSE_DENSITY), rate, 0.0, kept, combining, short=short
            )
        case "streaming":
            return Streaming(layout, codec, rate, momentum, training.fragments, training.mixing, combining=combining)
        case "gradients" | "demo" | "dgc":
            return DiLoCo(training.outer, layout, codec, 1.0, 0.0)


def step_method(training: TrainingSpec) -> StepMethod | None:
    """What replicas exchange within each inner step of a job, if anything."""
    match training.outer:
        case "gradients":
            return Gradients()
        case "demo":
            return DeMo()
        case "dgc":
            return DGC(training.density or DGC_DENSITY)
        case _:
            return None
