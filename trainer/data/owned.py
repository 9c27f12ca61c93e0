"""Data that stays at its owner: read where it lies, made ready in the sandbox, and gone from its disk before training begins.

Free of torch. What is wrong with the data is for its owner alone: nothing here is written where others could read it.
"""

import shutil
import tempfile
from pathlib import Path

from common.encrypted_files import SealedFile
from protocol.job.end_tokens import ends_of
from protocol.job.federated import LEAST_HELD
from protocol.job.job import DatasetSpec, JobSpec
from protocol.worker import OwnData
from trainer.data.data import TokenFile
from trainer.data.examples import OwnExamples, write_examples
from trainer.data.prepare import prepare
from trainer.errors import DataError
from trainer.files.inputs import HELDOUT, TRAIN, InputFolder
from trainer.formats.source import Dataset

MAX_FILES = 10_000  # Of a folder; more are better joined into tables.
TOKENIZER = "tokenizer.json"
CALLED = "the job's tokenizer"


def datasets_in(path: Path, how: DatasetSpec) -> list[Dataset]:
    """The file, or all files of the folder and of those in it, by name; what is hidden or empty is left out.

    Raises:
        DataError: nothing can be read there, or far too many files are there.
    """
    try:
        if path.is_file():
            return [Dataset(path, how, path.name)]
        files = [file for file in _files_in(path) if file.stat().st_size]
    except OSError as error:
        raise DataError("missing-file", f"the data cannot be read: {error.strerror}") from error
    if not files:
        raise DataError("empty-dataset", "the folder has no files with text in them: name the one that has")
    if len(files) > MAX_FILES:
        raise DataError("too-large", f"the folder has {len(files):,} files, at most {MAX_FILES:,} are read: join some")
    return [Dataset(file, how, str(file.relative_to(path))) for file in files]


def _files_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError("missing-file", "there is no such file or folder, or the sandbox may not read it")
    return sorted(
        file
        for file in folder.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )


def own_tokens(own: OwnData, spec: JobSpec, folder: InputFolder, vocabulary: int) -> tuple[TokenFile, TokenFile | None]:
    """The tokens of an owner's data, by the job's tokenizer, and those held back, which no step learns from.

    Their files have no names any more once this returns. Where the privacy of single examples is counted, the tokens know which
    row they are of, and rows are drawn.

    Args:
        folder: the job's files, of which the tokenizer is one.
        vocabulary: of the model.
    Returns:
        and None where nothing is held back, or too few examples to tell a loss of.
    Raises:
        DataError: the data or the tokenizer cannot be used, or there is no room for the tokens.
    """
    found = datasets_in(Path(own.path), own.dataset)
    privacy = None if spec.federated is None else spec.federated.privacy
    one_in = 0 if privacy is None or privacy.heldout is None else privacy.heldout.one_in
    sequence = spec.training.sequence
    with scratch_folder() as folder_of_tokens:
        scratch = Path(folder_of_tokens)
        tokenizer = _tokenizer_in(folder, scratch) if spec.tokenizer.kind == "file" else None
        try:
            if privacy is not None and privacy.sampling is not None:
                held = (scratch / HELDOUT, one_in) if one_in else None
                starts, back = write_examples(found, spec, tokenizer, scratch / TRAIN, CALLED, held)
                drawn = OwnExamples(scratch / TRAIN, starts, sequence, vocabulary, privacy.sampling)
                if back is None or len(back) <= LEAST_HELD or back[-1] <= sequence:
                    return drawn, None
                return drawn, OwnExamples(scratch / HELDOUT, back, sequence, vocabulary, privacy.sampling)
            _prepared(found, spec, tokenizer, scratch, 1 / one_in if one_in else 0.0)
        except OSError as error:
            raise DataError(
                "too-large",
                f"there is no room in the sandbox for the tokens of the data ({error.strerror}): bring less of it",
            ) from error
        # Mapped: it needs no name.
        pieces = TokenFile(scratch / TRAIN, sequence, vocabulary)
        return pieces, TokenFile(scratch / HELDOUT, sequence, vocabulary) if one_in else None


def _prepared(found: list[Dataset], spec: JobSpec, tokenizer: Path | None, scratch: Path, heldout: float) -> None:
    first, *more = found
    ends, sequence = ends_of(spec.model), spec.training.sequence
    prepare(first, spec.tokenizer, tokenizer, heldout, sequence, scratch, ends, called=CALLED, more=more)


def _tokenizer_in(folder: InputFolder, scratch: Path) -> Path:
    found, place = folder.file(TOKENIZER), scratch / "job-tokenizer.json"
    if isinstance(found, SealedFile):
        place.write_bytes(found.read())
    else:
        shutil.copyfile(found, place)
    return place


def scratch_folder() -> "tempfile.TemporaryDirectory[str]":
    """A folder for its maker alone; in a container it is in memory."""
    return tempfile.TemporaryDirectory(prefix="cottage-own-")
