"""What learnt, put back into the files of the model that it is a part of, where all else stays as it came. Free of torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protocol.models.model import DTYPES, PUBLISHED, STARTS_TIED
from protocol.models.tensor_names import HEAD, way_in
from trainer.errors import WeightsError
from trainer.export.hf_metadata import Weights, in_bytes
from trainer.export.published import copied

_KINDS = {kind: name for name, kind in DTYPES.items()}


def save_within(tensors: Weights, config: Mapping[str, Any], weights: Sequence[Path], out: Path) -> tuple[bool, str]:
    """Copy the files of a whole model into ``out``, with the parameters that a job knows in their places, in their types.

    Returns:
        as ``hf_metadata.save_weights``.
    Raises:
        WeightsError: the files are broken, or of another model.
    """
    places = copied(weights, out)
    tied = bool(config.get(STARTS_TIED, False))
    for name, tensor in tensors.items():
        found = way_in(places, name, tensor.shape, config, tied)
        if found is None:
            raise WeightsError("missing-tensor", f"the model's own weights have no tensor {name}")
        if name == HEAD and not found[0].key.endswith(HEAD):
            continue  # It is the embedding, which is written by its own name.
        for part in found:
            file, begin, kind = places[part.key]
            with file.open("r+b") as opened:
                opened.seek(begin)
                opened.write(in_bytes(np.ascontiguousarray(tensor[part.index]), _KINDS.get(kind, kind)))
    return tied, str(config.get(PUBLISHED, {}).get("dtype", "float32"))
