"""The folder that a worker finds its job in: ``config.json``, ``train.bin``, ``heldout.bin``, perhaps weights."""

from dataclasses import dataclass
from typing import Any

from protocol.job.job import JobSpec
from protocol.models.model import inspect_config, resolve
from protocol.worker import OwnData
from trainer.data.data import TokenFile
from trainer.data.owned import own_tokens
from trainer.files.inputs import CONFIG, HELDOUT, MANIFEST, TRAIN, InputFolder
from trainer.files.json_file import read_json


@dataclass
class JobFiles:
    """The job's files as a worker sees them; of an owner's data that has nothing held out, ``heldout`` is ``train``."""

    config: dict[str, Any]
    train: TokenFile
    heldout: TokenFile
    weights: InputFolder | None


def load_config(folder: InputFolder, spec: JobSpec) -> dict[str, Any]:
    """The resolved config: ``config.json``, or made from the job and the vocabulary in ``manifest.json``.

    Raises:
        DataError: neither file is there, or it is not JSON.
        ModelConfigError: it describes no model that can be trained.
    """
    if folder.has(CONFIG):
        return read_json(folder.file(CONFIG))
    return resolve(spec.model, int(read_json(folder.file(MANIFEST))["vocabulary"]))


def open_files(folder: InputFolder, spec: JobSpec, own: OwnData | None = None) -> JobFiles:
    """Everything that a member reads; ``own``: its owner's data, of a federated job.

    Raises:
        DataError, ModelConfigError: a file is missing or cannot be used.
    """
    config = load_config(folder, spec)
    shape = inspect_config(config)
    shape.check_sequence(spec.training.sequence)
    weights = folder if spec.model.weights is not None else None
    if own is not None:
        train, heldout = own_tokens(own, spec, folder, shape.vocabulary)
        return JobFiles(config, train, train if heldout is None else heldout, weights)
    return JobFiles(
        config,
        TokenFile(folder.file(TRAIN), spec.training.sequence, shape.vocabulary),
        TokenFile(folder.file(HELDOUT), spec.training.sequence, shape.vocabulary),
        weights,
    )
