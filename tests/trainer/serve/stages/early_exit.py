"""A draft model that is the first layers of another one, with its norm and head: the tokens are the same, the words are not."""

import json
import re
import shutil
from pathlib import Path

from safetensors.torch import save_file

from tests.trainer.serve.stages.ring import tensors_of
from trainer.serve.stages.draft_model import DraftModel

_LAYER = re.compile(r"\.layers\.(\d+)\.")


def early_exit(folder: Path, layers: int, made: Path) -> Path:
    """Make the folder ``made`` of the first layers of ``folder``'s model."""
    shutil.copytree(folder, made, ignore=shutil.ignore_patterns("*.safetensors", "*.index.json"))
    config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": layers}
    config.pop("layer_types", None)
    (made / "config.json").write_text(json.dumps(config))
    whole = tensors_of(folder)
    kept = {name: value for name, value in whole.items() if (at := _LAYER.search(name)) is None or int(at[1]) < layers}
    save_file(kept, made / "model.safetensors", metadata={"format": "pt"})
    return made


def draft_of(folder: Path, context: int = 256) -> DraftModel:
    """Load a folder's model as a draft."""
    return DraftModel(folder, tensors_of(folder), "cpu", context)
