"""Requests before they begin."""

import msgspec

from coordinator.errors import InvalidError
from coordinator.services.serving.answers import AnswerUnderWay
from coordinator.services.serving.embeddings import EmbeddingsUnderWay
from protocol.codec import MAX_MESSAGE
from protocol.serving import AskCommand, EmbedCommand

_MESSAGE_ROOM = MAX_MESSAGE // 2

AskedOfHomes = AnswerUnderWay | EmbeddingsUnderWay


def request_of(command: AskCommand, context: int) -> AskedOfHomes:
    """A request that has not begun; raises InvalidError where no message holds it."""
    longest = max(command.texts, key=len) if isinstance(command, EmbedCommand) else command
    if len(msgspec.msgpack.encode(longest)) > _MESSAGE_ROOM:
        field = "input" if isinstance(command, EmbedCommand) else "messages"
        raise InvalidError(f"the request has more than {_MESSAGE_ROOM:,} bytes: shorten it", field)
    return (
        EmbeddingsUnderWay(command, context) if isinstance(command, EmbedCommand) else AnswerUnderWay(command, context)
    )
