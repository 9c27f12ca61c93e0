"""Texts as tokens, and what a tokenizer that has no token for unknown words does not know: named, never left out in silence."""

import logging
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer, models

from trainer.errors import DataError
from trainer.formats.rows import shown

TokenIds = NDArray[np.uint32]
LOG = logging.getLogger(__name__)
MOST_CHARACTERS = 4 << 20
_WAY_OUT = (
    "add one to its vocabulary and name it as unk_token (unk_id), take such documents out, or choose another tokenizer, such as "
    "tokenizer.kind bytes"
)


def encoded(tokenizer: Tokenizer, texts: Sequence[str], called: str, places: Sequence[str]) -> list[TokenIds]:
    """The tokens of texts.

    The library takes up to 200 bytes of memory for a character. So no more than ``MOST_CHARACTERS`` are given to it at once, and
    a longer text in parts, each of whole lines where it has some.

    Args:
        called: what the tokenizer's owner calls its file.
        places: the name of each text, for messages.
    Raises:
        DataError: it has no token for what it does not know, and a text has such; or it fails otherwise.
    """
    found: list[list[TokenIds]] = [[] for _ in texts]
    parts = ((index, part) for index, text in enumerate(texts) for part in _cut(text))
    for batch in batches(parts):
        numbers, written = zip(*batch, strict=True)
        made = encodings(tokenizer, written, called, [places[number] for number in numbers])
        for number, encoding in zip(numbers, made, strict=True):
            found[number].append(np.asarray(encoding.ids, np.uint32))
    return [parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in found]


def _cut(text: str) -> Iterator[str]:
    begin = 0
    while len(text) - begin > MOST_CHARACTERS:
        most = begin + MOST_CHARACTERS
        stop = text.rfind("\n", begin, most) + 1 or text.rfind(" ", begin + 1, most)
        stop = stop if stop > begin else most
        yield text[begin:stop]
        begin = stop
    yield text[begin:]


def batches(parts: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Numbered texts in parts of which the library may have each at once."""
    batch: list[tuple[int, str]] = []
    size = 0
    for part in parts:
        if batch and size + len(part[1]) > MOST_CHARACTERS:
            yield batch
            batch, size = [], 0
        batch.append(part)
        size += len(part[1])
    if batch:
        yield batch


def encodings(
    tokenizer: Tokenizer, texts: Sequence[str], called: str, places: Sequence[str], *, special: bool = False
) -> list[Encoding]:
    """The tokens of texts with where each stands; arguments as of ``encoded``.

    Args:
        special: with what the tokenizer puts around a text.
    """
    try:
        found: list[Encoding] = tokenizer.encode_batch(texts, add_special_tokens=special)
    except Exception as error:  # The library raises plain Exception for whatever a tokenizer cannot do.
        LOG.warning("a tokenizer failed: %s", error)
        at = next((index for index, text in enumerate(texts) if not _encodes(tokenizer, text)), 0)
        where = f"{places[at]} ({_begin(texts[at])})"
        if re.search(r"\bunk|missing \[?unk", str(error), re.IGNORECASE):
            unknown = _unknown(tokenizer, texts[at])
            raise DataError(
                "bad-tokenizer",
                f"{called} has no token for {unknown} in {where}, and none for unknown words: {_WAY_OUT}",
            ) from error
        raise DataError(
            "bad-tokenizer",
            f"{called} cannot split {where}: choose another tokenizer, such as tokenizer.kind bytes",
        ) from error
    return found


class DroppedCharacters:
    """Finds what merges (BPE) leave out in silence: characters without a token, where there is none for unknown ones either."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Look at what ``tokenizer`` knows; other kinds of tokenizers leave out nothing."""
        model = tokenizer.model
        plain = isinstance(model, models.BPE) and not (model.end_of_word_suffix or model.continuing_subword_prefix)
        self._looks = plain and not model.unk_token
        self._tokenizer = tokenizer
        self._known: dict[str, bool] = {}

    def first(self, text: str) -> str:
        """The first character of a text that would be left out, in words; empty where none would."""
        if not self._looks:
            return ""
        for character in set(text) - self._known.keys():
            self._known[character] = not self._drops(character)
        lost = next((character for character in text if not self._known[character]), "")
        return _in_words(lost) if lost else ""

    def _drops(self, character: str) -> bool:
        _, parts = _parts(self._tokenizer, character)
        return any(not self._tokenizer.model.tokenize(one) for part, _ in parts for one in part)


def _parts(tokenizer: Tokenizer, text: str) -> tuple[str, list[tuple[str, tuple[int, int]]]]:
    """A text as the tokenizer's model meets it: normalised, and its words with where they stand in that."""
    normal = text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)
    if tokenizer.pre_tokenizer is None:
        return normal, [(normal, (0, len(normal)))]
    return normal, tokenizer.pre_tokenizer.pre_tokenize_str(normal)


def _unknown(tokenizer: Tokenizer, text: str) -> str:
    """The first word or character of a text that the tokenizer has no token for."""
    normal, parts = _parts(tokenizer, text)
    whole = isinstance(tokenizer.model, models.WordLevel | models.WordPiece)
    for part, (begin, stop) in parts:
        if _takes(tokenizer, part):
            continue
        one = "" if whole else next((one for one in part if not _takes(tokenizer, one)), "")
        return _in_words(one) if one else f"the word {shown(normal[begin:stop])}"
    return "a word"


def _takes(tokenizer: Tokenizer, part: str) -> bool:
    try:
        tokenizer.model.tokenize(part)
    except Exception:  # noqa: BLE001 - the library raises nothing else.
        return False
    return True


def _encodes(tokenizer: Tokenizer, text: str) -> bool:
    try:
        tokenizer.encode(text, add_special_tokens=False)
    except Exception:  # noqa: BLE001 - the library raises nothing else.
        return False
    return True


def _in_words(character: str) -> str:
    return f"the character {character!r} (U+{ord(character):04X})"


def _begin(text: str) -> str:
    return shown(" ".join(text[:200].split()))
