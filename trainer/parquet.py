"""Text from Parquet files, through pyarrow. Free of torch.

A file's own sizes are read before anything is unpacked, row groups one after the other, and only the text's column. Memory is
bounded by the largest row group; what lies about its size meets the limits that this process runs under.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer.errors import DataError
from trainer.text import MAX_ROW_BYTES, Row, bad_encoding, long_row

MAX_GROUP_BYTES = 2 << 30  # Of the text's column, unpacked; writers make groups of 64 MB to 1 GB.
MAX_FOOTER_ITEMS = 1_000_000
MAX_FOOTER_STRING = 16 << 20
_ROWS = 256


def parquet_rows(path: Path, text_field: str) -> Iterator[Row]:
    """The rows of column ``text_field``, in order; nulls are empty.

    Raises:
        DataError: no Parquet file, broken, without such a column, with groups beyond the limit; or pyarrow is missing.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DataError(
            "no-parquet", "Parquet needs pyarrow here: install cottage[coordinator], or send JSONL"
        ) from error
    pa.set_memory_pool(pa.system_memory_pool())  # The default reserves address space, which limits count as used.
    try:
        with pq.ParquetFile(
            path, thrift_string_size_limit=MAX_FOOTER_STRING, thrift_container_size_limit=MAX_FOOTER_ITEMS
        ) as file:
            _check(path.name, file, text_field)
            size, rows = path.stat().st_size, max(1, file.metadata.num_rows)
            number = 0
            for batch in file.iter_batches(_ROWS, columns=[text_field], use_threads=False):
                for value in batch.column(0):
                    number += 1
                    share = size * number // rows - size * (number - 1) // rows  # Whole numbers, which add up to it.
                    yield Row(number, share, _value(f"row {number:,} of {path.name}", value))
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise DataError("bad-parquet", f"{path.name} cannot be read as Parquet: {str(error)[:300]}") from error


def _value(where: str, value: Any) -> str | DataError:
    try:
        text = value.as_py()
    except UnicodeDecodeError as error:
        return bad_encoding(where, error)
    if text is None:
        return ""
    return long_row(where) if len(text) > MAX_ROW_BYTES else str(text)


def _check(name: str, file: Any, text_field: str) -> None:
    import pyarrow as pa

    schema = file.schema_arrow
    if schema.names.count(text_field) != 1:
        raise DataError(
            "bad-parquet", f"{name} has no one column {text_field!r}: its columns are {', '.join(schema.names[:10])}"
        )
    kind = schema.field(text_field).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise DataError("bad-parquet", f"column {text_field!r} of {name} holds {kind}, not text")
    for index in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(index)
        columns = (group.column(number) for number in range(group.num_columns))
        size = sum(column.total_uncompressed_size for column in columns if column.path_in_schema == text_field)
        if not 0 <= size <= MAX_GROUP_BYTES:
            raise DataError("too-large", f"row group {index} of {name} unpacks to {size:,} bytes: write smaller groups")
