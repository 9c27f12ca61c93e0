"""What a job brings, as its worker finds it: files by name, plain or encrypted. Free of torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from common.encrypted_files import SealedFile
from common.errors import SealedFileError
from protocol.models.weights import weights_name
from protocol.task import Layers
from trainer.errors import DataError

InputFile = Path | SealedFile
"""A file of the job: plain, or encrypted with a key that only agent and worker have."""

TRAIN, HELDOUT, CONFIG, MANIFEST = "train.bin", "heldout.bin", "config.json", "manifest.json"


@dataclass(frozen=True)
class InputFolder:
    """Files of a job by name, each encrypted where ``keys`` has its key; see ``Setup``."""

    path: Path
    keys: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    weights_key: bytes | None = field(default=None, repr=False)

    def has(self, name: str) -> bool:
        """Whether it is there."""
        return (self.path / name).exists()

    def file(self, name: str) -> InputFile:
        """That file; one that is missing and not encrypted is found to be so when it is read.

        Raises:
            DataError: it is encrypted, and missing, changed, or of another key.
        """
        return self._open(name, self.keys.get(name))

    def weights_of(self, layers: Layers) -> InputFile:
        """Safetensors: what an agent fetched for this very cut, or else the whole model; raises as ``file``."""
        name = weights_name(layers)
        return self._open(name, self.weights_key) if self.has(name) else self.file("model.safetensors")

    def _open(self, name: str, key: bytes | None) -> InputFile:
        path = self.path / name
        if key is None:
            return path
        try:
            return SealedFile(path, key)
        except (OSError, SealedFileError) as error:
            raise DataError("changed-file", f"{name} cannot be read: {error}") from error
