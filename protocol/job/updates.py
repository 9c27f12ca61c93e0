"""How updates between replicas may be written: one table for the document, the planner, the form and the trainer.

A new way is a codec in a file of ``trainer/codecs`` and a row here: docs/how-to/extend/codec.md.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

UpdateName = Literal["int8", "int4", "int2", "coarse", "coarser", "fp32"]


class Update(msgspec.Struct, frozen=True):
    """One way to write a pseudo-gradient.

    Attributes:
        codec: its name in ``trainer.codecs.CODECS``.
        value_bytes: what a value takes in the mean, scales included.
        about: for whoever fills the form.
        feedback: so much is lost that a job has error feedback where its document does not say.
    """

    codec: str
    value_bytes: float
    about: str
    feedback: bool = False


_SCALE = 2 / 64  # Two bytes for each block of 64.
UPDATES: Mapping[UpdateName, Update] = {
    "int8": Update("int8-block", 1 + _SCALE, "a quarter of the bytes"),
    "int4": Update("int4-block", 0.5 + _SCALE, "an eighth of the bytes"),
    "int2": Update("int2-block", 0.25 + _SCALE, "a fourteenth of the bytes, with error feedback"),
    # As measured.
    "coarse": Update("coarse", 0.15, "a little over one bit a value, with error feedback", feedback=True),
    "coarser": Update("coarser", 0.08, "half of coarse, with error feedback", feedback=True),
    "fp32": Update("fp32", 4.0, "exact"),
}
