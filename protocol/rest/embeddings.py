"""What programs ask of ``/v1/embeddings``, and what they are answered, in the words of OpenAI's API.

Source: platform.openai.com/docs/api-reference/embeddings.
"""

import base64
import struct
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from common.untrusted_text import View
from protocol.codec import MessageError
from protocol.rest.completions import MAX_NAME
from protocol.serving import MAX_EMBEDDED, MAX_TEXT, EmbedCommand, EmbeddedText, Token, Tokens

Text = Annotated[str, Meta(max_length=MAX_TEXT)]
_KINDS = "give a text, several, the tokens of one, or those of several"


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Texts to make embeddings of. ``input``: a text, several, the tokens of one, or those of several."""

    model: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
    input: Text | Annotated[tuple[Text | Token | Tokens, ...], Meta(min_length=1)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None

    def unsupported(self) -> str:
        """The first field that would change the answer, and is not supported; empty: there is none."""
        return "" if self.dimensions is None else "dimensions"

    def command(self) -> EmbedCommand:
        """What is asked of the model.

        Raises:
            MessageError: there are too many texts, or several kinds of input at once, or one of them is empty.
        """
        texts = self._texts()
        for number, text in enumerate(texts, 1):
            if not text:
                raise MessageError(f"text {number:,} of {len(texts):,} is empty: leave it out", "input")
        return EmbedCommand("1", texts)

    def _texts(self) -> tuple[EmbeddedText, ...]:
        if isinstance(self.input, str):
            return (self.input,)
        tokens = tuple(one for one in self.input if isinstance(one, int))
        texts: tuple[EmbeddedText, ...] = tuple(one for one in self.input if not isinstance(one, int))
        if tokens:
            if texts:
                raise MessageError(f"input has several kinds of entries: {_KINDS}", "input")
            return (tokens,)
        if len({isinstance(one, str) for one in texts}) > 1:
            raise MessageError(f"input has several kinds of entries: {_KINDS}", "input")
        if len(texts) > MAX_EMBEDDED:
            raise MessageError(f"input has {len(texts):,} entries: {MAX_EMBEDDED:,} at most", "input")
        return texts


class Embedding(msgspec.Struct, frozen=True):
    """One text's embedding, of length 1: numbers, or the base64 of float32 in little-endian order."""

    index: int
    embedding: tuple[float, ...] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(View, frozen=True):
    """Tokens of all texts, twice, as OpenAI has it."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True):
    """Embeddings of all texts, in order."""

    data: tuple[Embedding, ...]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


def embeddings_of(request: EmbeddingRequest, vectors: Sequence[bytes], tokens: int) -> EmbeddingList:
    """The answer to a request; ``vectors``: float32, little-endian."""
    whole = request.encoding_format == "base64"
    data = tuple(
        Embedding(place, base64.b64encode(vector).decode() if whole else _numbers(vector))
        for place, vector in enumerate(vectors)
    )
    return EmbeddingList(data, request.model, EmbeddingUsage(tokens, tokens))


def _numbers(vector: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(vector) // 4}f", vector[: len(vector) // 4 * 4])
