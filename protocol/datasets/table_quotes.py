"""Quotes within quoted fields of a table: doubled, as RFC 4180 has them, or with a backslash before, as MySQL and Spark write."""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

_OTHER_BACKSLASHES: Final = re.compile(r'\\+(?!["\\])')


def with_backslashes(lines: Sequence[str], delimiter: str) -> bool:
    """Whether more rows have as many fields as the first line if a backslash takes the quote after it into the text.

    It does not in a path such as ``C:\\data\\``: there a quote closes the field.
    """
    if not any('\\"' in line for line in lines):
        return False
    return _fitting(quoted_rows(lines, delimiter, strict=True)) > _fitting(
        csv.reader(lines, delimiter=delimiter, strict=True)
    )


def spanning(lines: Sequence[str]) -> bool:
    """Whether a table with tabs is one both ways: with a row in each line, and with quoted fields that go over several lines.

    As text/tab-separated-values has it, quotes are letters there, and each line is a row.
    """
    if len({line.count("\t") for line in lines}) != 1:
        return False
    try:
        rows = [row for row in csv.reader(lines, delimiter="\t", strict=True) if row]
    except csv.Error:
        return False
    return 1 < len(rows) < len(lines) and len({len(row) for row in rows}) == 1


def quoted_rows(lines: Iterable[str], delimiter: str, **how: Any) -> Any:
    """A reader of ``csv`` to which a backslash before a quote, or before another one there, is none of the text; others are."""
    return csv.reader(_kept(lines), delimiter=delimiter, escapechar="\\", **how)


def _kept(lines: Iterable[str]) -> Iterator[str]:
    return (_OTHER_BACKSLASHES.sub(lambda found: 2 * found[0], line) for line in lines)


def _fitting(rows: Any) -> int:
    """Rows with as many fields as the first."""
    width, count = None, 0
    while True:
        try:
            row = next(rows, None)
        except csv.Error:
            continue
        if row is None:
            return count
        width = len(row) if width is None else width
        count += len(row) == width
