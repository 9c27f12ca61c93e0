"""The check of a dataset before anybody pays for training on it: what is asked, how far it is, and its report.

A row is a line of a text file, or a row of a JSONL or Parquet file; rows are counted from 1.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from common.untrusted_text import Untrusted, View
from protocol.ids import Digest
from protocol.job.end_tokens import MAX_ENDS
from protocol.job.job import DatasetFormat, DatasetSpec, TokenizerSpec

MAX_PLACES = 20  # Of each finding; its count goes on.
MAX_SAMPLES = 8
MAX_RENDERED = 1200  # Characters of the conversation that is shown as the model meets it.
MAX_SHOWN = 240  # Characters of a sample, or of what was found; the rest is left out.

Severity = Literal["error", "warning", "notice"]
"""``error``: the rows cannot be trained on; ``warning``: they can, and somebody should look first; ``notice``: good to know."""


class CheckRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which dataset, counted with which tokenizer, for sequences of which length.

    ``ends``: ids that the model's files name as ends, see ``protocol.job.end_tokens``.
    """

    dataset: DatasetSpec
    tokenizer: TokenizerSpec = TokenizerSpec()
    sequence: Annotated[int, Meta(ge=8, le=131_072)] = 128
    ends: Annotated[tuple[Annotated[int, Meta(ge=0, lt=2**31)], ...], Meta(max_length=MAX_ENDS)] = ()


class Place(View, frozen=True):
    """A row, and what is wrong there: for people, secrets masked."""

    row: int
    shown: Untrusted = Untrusted("")


class Finding(View, frozen=True):
    """One kind of thing that was found. ``kind`` is stable, for programs; ``rows`` counts all rows that have it."""

    kind: str
    severity: Severity
    text: Untrusted
    rows: int
    places: Annotated[tuple[Place, ...], Meta(max_length=MAX_PLACES)] = ()


class RenderedPart(View, frozen=True):
    """Of a rendered conversation, with ``↵`` for each line's end."""

    text: Untrusted
    learnt: bool


class DatasetReport(View, frozen=True):
    """What a dataset holds.

    Attributes:
        rows: in the file; ``usable``: those that can be trained on.
        tokens: of the usable rows by the tokenizer asked for; ``exact``: counted, else worked out from a part of the rows.
        longest: characters of the longest row.
        vocabulary: of the tokenizer.
        problem: why it cannot be trained on as it is, and the way out; empty where it can.
        format: what it was read as.
        content: what its rows are: texts, conversations, prompts with their completions, or with two answers of which one is
            preferred.
        learnt: of conversations and completions: tokens that are learnt; the rest is what they answer.
        rendered: the first conversation as the model meets it; of two answers the chosen one, ``rejected`` is the other.
    """

    bytes: int
    rows: int
    usable: int
    characters: int
    longest: int
    tokens: int
    exact: bool
    vocabulary: int
    findings: tuple[Finding, ...] = ()
    samples: tuple[Place, ...] = ()
    problem: str = ""
    format: DatasetFormat = "auto"
    content: Literal["texts", "conversations", "pairs", "preferences"] = "texts"
    learnt: int | None = None
    rendered: tuple[RenderedPart, ...] = ()
    rejected: tuple[RenderedPart, ...] = ()


class Check(View, frozen=True):
    """A check: ``read`` of ``size`` bytes so far. ``problem``: why there is no report, where it ended without one."""

    id: Digest
    state: Literal["queued", "running", "done", "failed"]
    read: int
    size: int
    report: DatasetReport | None = None
    problem: str = ""
