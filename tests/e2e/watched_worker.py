"""``python -m trainer`` whose every byte to its agent is written to a file, too: ``--watch FILE`` beside the usual words."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from protocol.codec import encode
from trainer.__main__ import main as trainer
from trainer.worker import worker


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--watch", type=Path)
    options, others = parser.parse_known_args(words)
    if options.watch is not None:
        write, heard = worker.write_pieces, options.watch.open("ab", buffering=0)

        async def watched(writer: object, message: msgspec.Struct, pieces: Sequence[bytes | memoryview]) -> None:
            heard.write(b"".join((encode(message), *map(bytes, pieces))))
            await write(writer, message, pieces)  # type: ignore[arg-type]

        worker.write_pieces = watched  # type: ignore[assignment]
    return trainer(others)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
