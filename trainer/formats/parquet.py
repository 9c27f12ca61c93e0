"""Text from Parquet files, through pyarrow.

A file's own sizes are read before anything is unpacked, row groups one after the other, and only the text's column. Memory is
bounded by the largest row group; what lies about its size meets the limits that this process runs under.
"""

from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from protocol.datasets.field_names import found_name
from trainer.errors import DataError
from trainer.formats.conversations import BESIDE, names_talk, talk_of, without_nulls
from trainer.formats.rows import MAX_ROW_BYTES, DatasetRow, bad_encoding, choices, long_row, place
from trainer.formats.source import FREE_BYTES, MAX_DATASET_BYTES, MAX_RATIO

MAX_GROUP_BYTES = 2 << 30  # Of the text's column, unpacked; writers make groups of 64 MB to 1 GB.
MAX_FOOTER_ITEMS = 1_000_000
MAX_FOOTER_STRING = 16 << 20
MAX_BATCH_BYTES = 32 << 20  # Unpacked at once where rows share a long value; writers keep shared values below 1 MB.
_ROWS = 256
_DICTIONARY_HEADER = b"\x15\x04\x15"  # Field 1, an i32: 2 (a dictionary page); field 2, an i32.
_DICTIONARIES = frozenset({"PLAIN_DICTIONARY", "RLE_DICTIONARY"})


def parquet_rows(source: BinaryIO, size: int, field: str, name: str) -> Iterator[DatasetRow]:
    """The texts of a column in order, or of a field within a column of structs (``content.text``); nulls are empty.

    Where there is none, and columns of conversations, those.

    Args:
        source: the file, to be read in any order.
        size: bytes of the dataset as it lies there.
    Raises:
        DataError: no Parquet file, broken, without such a column, with groups beyond the limit; or pyarrow is missing.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        detail = "Parquet needs pyarrow here: install cottage[coordinator] or cottage[trainer], or bring JSON lines"
        raise DataError("no-parquet", detail) from error
    pa.set_memory_pool(pa.system_memory_pool())  # The default reserves address space, which limits count as used.
    limits = {"thrift_string_size_limit": MAX_FOOTER_STRING, "thrift_container_size_limit": MAX_FOOTER_ITEMS}
    number, begun = 0, False
    try:
        with pq.ParquetFile(source, **limits) as file:
            talks = _talks(file.schema_arrow, field)
            field = field if talks else _check(name, file, field)
            _check_groups(name, file, talks or [field])
            begun = True
            for row in _rows(file, source, size, talks, field, name):
                number = row.number
                yield row
    except (pa.ArrowException, OSError, MemoryError, OverflowError, UnicodeDecodeError) as error:
        if not begun:
            detail = (
                f"{name} is no Parquet file, or is cut or damaged: its index (footer) cannot be read; write it anew"
            )
            raise DataError("bad-parquet", detail) from error
        detail = (
            f"{name} is damaged, or needs too much memory, after row {number:,}: write it anew, in smaller row groups"
        )
        raise DataError("bad-parquet", detail) from error


def _rows(file: Any, source: BinaryIO, size: int, talks: list[str], field: str, name: str) -> Iterator[DatasetRow]:
    """Of conversations in the columns ``talks``, or else of the texts of ``field``."""
    rows, held = max(1, file.metadata.num_rows), 0
    most = min(MAX_DATASET_BYTES, max(FREE_BYTES, MAX_RATIO * size))
    steps = [one.name for one in _path(list(file.schema_arrow), field)[1:]]
    for number, values in enumerate(_values(file, source, talks or [field]), 1):
        share = size * number // rows - size * (number - 1) // rows  # Whole numbers, which add up to it.
        if talks:
            row = _talk(number, share, dict(zip(talks, values, strict=True)), field, name)
        else:
            row = _row(number, share, values[0], steps, name)
        held += len(row.text) if isinstance(row.text, str) else 0
        if held > most:
            detail = f"{name} unpacks to more than {most:,} characters, as text does not: upload it as JSON lines"
            raise DataError("too-large", detail)
        yield row


def _values(file: Any, source: BinaryIO, columns: list[str]) -> Iterator[tuple[Any, ...]]:
    """One row group after the other: asked for all of them at once, the library holds all of them."""
    for group in range(file.metadata.num_row_groups):
        longest = max((_longest_repeated(source, chunk) for chunk in _chunks(file, group, columns)), default=0)
        rows = max(1, min(_ROWS, MAX_BATCH_BYTES // max(1, longest)))
        for batch in file.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False):
            found = [batch.column(0)] if len(columns) == 1 else [batch.column(one) for one in columns]
            yield from zip(*found, strict=True)


def _talk(number: int, size: int, values: Mapping[str, Any], field: str, name: str) -> DatasetRow:
    where = place(number, name)
    try:
        row = {column: without_nulls(value.as_py()) for column, value in values.items()}
    except UnicodeDecodeError as error:
        return DatasetRow(number, size, bad_encoding(where, error, "utf-8"), bytes(error.object[:400]))
    if all(value is None for value in row.values()):
        return DatasetRow(number, size, "")
    found = talk_of(row, field, where)
    if found is None:
        found = DataError("bad-row", f"{where} has no list of messages in {next(iter(row))!r}: write one there")
    made = DatasetRow.of(number, size, found)
    long = isinstance(made.text, str) and len(made.text) > MAX_ROW_BYTES
    return DatasetRow(number, size, long_row(where)) if long else made


def _longest_repeated(source: BinaryIO, chunk: Any) -> int:
    """Bytes of the longest value that rows of a chunk may share: its dictionary page, unpacked, is as long at the least.

    Source: parquet.thrift, ``PageHeader``: in Thrift's compact protocol its first fields are type and uncompressed_page_size.
    """
    if not _DICTIONARIES & set(chunk.encodings):
        return 0
    at = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    source.seek(max(0, at or 0))
    header = source.read(8)
    if header[:3] != _DICTIONARY_HEADER:
        return int(chunk.total_uncompressed_size)
    value = 0
    for index, byte in enumerate(header[3:]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value >> 1  # Zigzag: sizes are not negative.
    return int(chunk.total_uncompressed_size)


def _row(number: int, size: int, value: Any, steps: list[str], name: str) -> DatasetRow:
    where = place(number, name)
    for step in steps:
        if not value.is_valid:
            return DatasetRow(number, size, "")
        value = value[step]
    try:
        text = value.as_py()
        text = text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        return DatasetRow(number, size, bad_encoding(where, error, "utf-8"), bytes(error.object[:400]))
    if text is None:
        return DatasetRow(number, size, "")
    return DatasetRow(number, size, long_row(where) if len(text) > MAX_ROW_BYTES else str(text))


def _check(name: str, file: Any, field: str) -> str:
    """See that a column can be read; its path as the file spells it."""
    path = _path_of(file.schema_arrow, field, name)
    kind, field = path[-1].type, ".".join(one.name for one in path)
    if not _is_text(kind):
        raise DataError(
            "bad-parquet", f"column {field!r} of {name} holds {_words(kind)}, not text: name another column"
        )
    return field


def _check_groups(name: str, file: Any, columns: list[str]) -> None:
    for index in range(file.metadata.num_row_groups):
        size = sum(chunk.total_uncompressed_size for chunk in _chunks(file, index, columns))
        if not 0 <= size <= MAX_GROUP_BYTES:
            raise DataError("too-large", f"row group {index} of {name} unpacks to {size:,} bytes: write smaller groups")


def _chunks(file: Any, index: int, columns: list[str]) -> Iterator[Any]:
    group = file.metadata.row_group(index)
    within = tuple(f"{one}." for one in columns)
    found = (group.column(number) for number in range(group.num_columns))
    return (one for one in found if one.path_in_schema in columns or one.path_in_schema.startswith(within))


def _talks(schema: Any, field: str) -> list[str]:
    """The columns that conversations are in, where no column has the texts."""
    path = _path(list(schema), field)
    if path and not _is_conversation(path[-1].type):
        return []
    beside = [name for name in BESIDE if name in schema.names]
    if len(path) == 1:
        return [path[0].name, *(name for name in beside if name != path[0].name)]
    others = [one.name for one in schema if _is_conversation(one.type)]
    if found := names_talk(list(schema.names), field):
        return found
    return [others[0], *beside] if others else []


def _path_of(schema: Any, field: str, name: str) -> list[Any]:
    """A column, or the fields on the way to one within it.

    Raises:
        DataError: there is none, or several have the name.
    """
    if schema.names.count(field) > 1:
        raise DataError("bad-parquet", f"{name} has several columns {field!r}: give one of them another name")
    if path := _path(list(schema), field):
        return path
    paths = _text_paths(schema, "")
    advice = choices(field, paths, "those with text are") if paths else "none of its columns holds text"
    raise DataError("bad-parquet", f"{name} has no column {field!r}: {advice}")


def _path(fields: list[Any], field: str) -> list[Any]:
    """The fields on the way to one, by names with dots between, which names may have themselves; empty where there is none."""
    import pyarrow as pa

    named = {one.name: one for one in fields}
    if len(named) < len(fields) and sum(one.name == field for one in fields) > 1:
        return []
    if (own := found_name(field, named)) is not None:
        return [named[own]]
    at = field.find(".")
    while at >= 0:
        own = found_name(field[:at], named)
        first = None if own is None else named[own]
        if first is not None and pa.types.is_struct(first.type):
            inner = [first.type.field(index) for index in range(first.type.num_fields)]
            if rest := _path(inner, field[at + 1 :]):
                return [first, *rest]
        at = field.find(".", at + 1)
    return []


def _is_conversation(kind: Any) -> bool:
    """Whether a column has lists of messages."""
    import pyarrow as pa

    inner = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else None
    if inner is None or not pa.types.is_struct(inner):
        return False
    names = {inner.field(index).name for index in range(inner.num_fields)}
    return names >= {"role", "content"} or names >= {"from", "value"}


def _text_paths(fields: Any, before: str) -> list[str]:
    import pyarrow as pa

    found: list[str] = []
    for one in fields:
        if pa.types.is_struct(one.type) and before.count(".") < 3:
            found += _text_paths(
                [one.type.field(index) for index in range(one.type.num_fields)], f"{before}{one.name}."
            )
        elif _is_text(one.type):
            found.append(before + one.name)
    return found


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    tests = ("is_string", "is_large_string", "is_string_view", "is_binary", "is_large_binary", "is_binary_view")
    return any(getattr(pa.types, test)(kind) for test in tests)


def _words(kind: Any) -> str:
    """A column's type in words: of the kinds that there are, not Arrow's own spelling."""
    import pyarrow as pa

    kinds = {
        "numbers": ("is_integer", "is_floating", "is_decimal"),
        "lists": ("is_list", "is_large_list", "is_fixed_size_list"),
        "structs": ("is_struct",),
        "maps": ("is_map",),
        "times": ("is_temporal",),
        "true and false": ("is_boolean",),
        "nothing (every row is null)": ("is_null",),
    }
    for words, tests in kinds.items():
        if any(getattr(pa.types, test)(kind) for test in tests):
            return words
    return "something else"
