"""How replicas learn from each other: one interface, and the methods of the literature that earn their place behind it.

``OuterMethod`` (``method``) exchanges once a round, ``StepMethod`` (``every_step``) once an inner step; ``outer_method`` and
``step_method`` make those that a job asks for.
"""

from trainer.outer.choice import outer_method, step_method
from trainer.outer.every_step import StepMethod
from trainer.outer.method import Contribution, Layout, Local, OuterMethod, OuterState, local_digest, momentum_type

__all__ = [
    "Contribution",
    "Layout",
    "Local",
    "OuterMethod",
    "OuterState",
    "StepMethod",
    "local_digest",
    "momentum_type",
    "outer_method",
    "step_method",
]
