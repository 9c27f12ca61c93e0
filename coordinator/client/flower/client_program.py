"""Runs a Flower ``ClientApp`` on one message, as an element of an array job does it in the submitter's own image.

It goes along with the messages as an input of the job, so an image needs Python, Flower and the app, and nothing of Cottage::

    python3 /in/flower/client_program.py MODULE:APP FOLDER       FOLDER: where the module lies

It reads what lies beside it, and leaves its answer in the folder that it starts in. Neither time nor address is in that, so
owners whose app computes the same leave the same bytes.

    message   Flower's ``Message`` without its content        content   the reply's ``RecordDict``
    content   its ``RecordDict``; not there where it is empty  error     in its place, where the app answers with one
    context   the client's ``Context``                         state     the records of its context, for its next message
"""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flwr.common.serde import context_from_proto, message_from_proto, recorddict_to_proto
from flwr.common.serde_utils import error_to_proto
from flwr.proto import message_pb2, recorddict_pb2

DATA = "data-path"
"""Name in ``node_config`` of the folder with the client's own files."""


def main(arguments: Sequence[str], beside: Path, out: Path) -> None:
    """Answer one message.

    Args:
        arguments: of the command line. beside: folder with the message. out: where the answer goes.
    """
    app = app_of(*arguments)
    message = message_pb2.Message.FromString((beside / "message").read_bytes())
    content = beside / "content"
    message.content.CopyFrom(recorddict_pb2.RecordDict.FromString(content.read_bytes() if content.exists() else b""))
    context = context_from_proto(message_pb2.Context.FromString((beside / "context").read_bytes()))
    if (data := beside.parent / "data").is_dir():
        context.node_config[DATA] = str(data)
    reply = app(message_from_proto(message), context)
    if reply.has_error():
        _write(out / "error", error_to_proto(reply.error))
    else:
        _write(out / "content", recorddict_to_proto(reply.content))
    _write(out / "state", recorddict_to_proto(context.state))


def app_of(name: str, folder: str) -> Any:
    """The app that ``MODULE:APP`` means, with the module in ``folder`` or installed."""
    sys.path.insert(0, folder)
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute or "app")


def _write(file: Path, message: Any) -> None:
    file.write_bytes(message.SerializeToString(deterministic=True))  # Maps have no order of their own.


if __name__ == "__main__":
    main(sys.argv[1:], Path(__file__).parent, Path.cwd())
