"""JSON files from a folder that somebody else filled. Free of torch."""

import json
from typing import Any

from common.encrypted_files import SealedFile
from common.errors import SealedFileError
from trainer.errors import DataError
from trainer.files.inputs import InputFile

MAX_JSON_BYTES = 16 << 20  # A config has kilobytes; a run's card with its curve and receipts some megabytes at most.


def read_json(path: InputFile) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        DataError: missing, too large, or no JSON object.
    """
    try:
        if (path.size if isinstance(path, SealedFile) else path.stat().st_size) > MAX_JSON_BYTES:
            raise DataError("too-large", f"{path.name} has more than {MAX_JSON_BYTES:,} bytes")
        text = path.read().decode() if isinstance(path, SealedFile) else path.read_text("utf-8")
        value = json.loads(text)
    except (OSError, SealedFileError, ValueError, RecursionError) as error:
        raise DataError("bad-json", f"{path.name} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError("bad-json", f"{path.name} is not a JSON object")
    return value
