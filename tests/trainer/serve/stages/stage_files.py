"""What a node of a stage is given of a model's archive, made as the coordinator makes it and laid out as an agent does."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from coordinator.services.artifacts.artifacts import file_digest
from coordinator.services.artifacts.model_archives import make_stage_files, pack
from protocol.models.weights import WeightIndex, belongs, header, spans
from protocol.plan import Layers


@dataclass(frozen=True)
class CutModel:
    """A model's archive, with the files of its stages.

    Attributes:
        small: archive of the small files.
    """

    archive: Path
    small: Path
    index: WeightIndex

    @classmethod
    def of(cls, model: Path, folder: Path) -> "CutModel":
        """Pack a model's folder into ``folder``, which is made."""
        folder.mkdir()
        pack(model, folder / "model.zip")
        small, index = make_stage_files(file_digest(folder / "model.zip"), folder / "model.zip", folder)
        return cls(folder / "model.zip", small, msgspec.json.decode(index.read_bytes(), type=WeightIndex))

    def names(self, layers: Layers, last: int) -> list[str]:
        """Tensors of a stage, where the model has layers up to ``last``."""
        return belongs(self.index.tensors, layers, layers.first == 0, layers.last == last)

    def weights(self, layers: Layers, last: int) -> bytes:
        """The safetensors file of a stage."""
        wanted, data = spans(self.index, self.names(layers, last)), self.archive.read_bytes()
        return header(self.index, wanted) + b"".join(data[span.begin : span.end] for span in wanted)
