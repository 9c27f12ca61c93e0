"""What a dataset's file is, by how it begins: its packing, its encoding and its format, whatever its name says.

Pure: it looks at bytes that somebody else has read. Clients look before they upload, the coordinator at the door, the trainer
before it reads; all see the same.
"""

import bz2
import csv
import io
import json
import lzma
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args

from common.zstd import Zstd, ZstdDataError
from protocol.datasets.encodings import encoding_of, foreign, has_controls, spelt_out
from protocol.datasets.field_names import TALKS, found_name
from protocol.datasets.foreign_files import markup, other_file
from protocol.datasets.table_quotes import quoted_rows, spanning, with_backslashes
from protocol.job.job import DatasetFormat

HEAD_BYTES = 256 << 10  # What is looked at, packed or not: hundreds of rows.
MAX_RECORDS = 200  # Of a table or of JSON lines that are looked at.
MAX_FRAMES = 64  # Packed one after the other, that are looked into: some programs pack each row, or nothing, by itself.
FEW_RECORDS = 10  # A text whose lines have equal numbers of commas by chance has fewer.
XZ_MEMORY = 128 << 20  # What unpacking may take; xz' strongest preset takes 65 MB.
DELIMITERS = ",\t;|"

Packing = Literal["", "gzip", "zstd", "bzip2", "xz"]

WORDS: Final[Mapping[str, str]] = {
    "text": "plain text",
    "jsonl": "JSON lines",
    "json": "one JSON document",
    "csv": "a table (CSV)",
    "parquet": "Parquet",
    "ids": "token ids in JSON lines",
    "npy": "a NumPy array",
    "uint16": "16-bit token ids",
    "uint32": "32-bit token ids",
}
ENDINGS: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys((".txt", ".text", ".md"), frozenset({"text"})),
    **dict.fromkeys((".jsonl", ".ndjson", ".jsonlines", ".ldjson"), frozenset({"jsonl", "ids"})),
    **dict.fromkeys((".json", ".jsonseq"), frozenset({"json", "jsonl", "ids"})),
    **dict.fromkeys((".csv", ".tsv", ".tab", ".psv"), frozenset({"csv"})),
    **dict.fromkeys((".parquet", ".pq", ".parq"), frozenset({"parquet"})),
    ".npy": frozenset({"npy"}),
    **dict.fromkeys((".bin", ".u16", ".u32"), frozenset({"uint16", "uint32"})),
}
"""What a name's ending promises; other endings promise nothing."""
_PACKED_ENDINGS: Final[Mapping[str, Packing]] = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".bz2": "bzip2",
    ".xz": "xz",
}
_PACKINGS: Final[Mapping[bytes, Packing]] = {
    b"\x1f\x8b\x08": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
}
_BZIP2_BLOCKS = (b"1AY&SY", b"\x17rE8P\x90")  # The first block's magic, or that of the end.
_BINARY = frozenset({"parquet", "npy"})  # Their first bytes say so: no text is one of them.
_IDS = (".bin", ".u16", ".u32")
RECORD = "\x1e"  # Stands before each record of a JSON text sequence (RFC 7464), as jq --seq writes it.
_SEQUENCE = re.compile(rf"\s*{RECORD}[\s{RECORD}]*[{{\[]")
_KEY = re.compile(r'\{\s*(?:"(?:[^"\\]|\\.)*"\s*:|\})', re.DOTALL)
_MESSAGES = re.compile(r'\[\s*\{\s*"(?:role|from)"\s*:')
_MEMBER = re.compile(r'\s*,?\s*"((?:[^"\\]|\\.)*)"\s*:\s*')
_COLUMN = re.compile(r"[\w .\-/()]{1,40}")
_JSON = json.JSONDecoder(strict=False, parse_int=lambda _: 0, parse_float=lambda _: 0.0)
_TOKENS = json.JSONDecoder(strict=False, parse_int=lambda text: int(text[:20]))


class ContentError(ValueError):
    """A file is no dataset, or it can be several things; the text says what to do."""


@dataclass(frozen=True)
class FileContent:
    """What a file is.

    Attributes:
        formats: what it can be, the likeliest first; more than one: somebody must say. None: nobody can tell by its beginning.
        encoding: of its characters: ``utf-8``, ``utf-16-le``, ...; empty where it has none, ``?`` for another than those.
        problem: why it is no dataset.
        note: what somebody may not have noticed, for the end of a sentence about it.
    """

    formats: tuple[DatasetFormat, ...] = ()
    packing: Packing = ""
    encoding: str = "utf-8"
    problem: str = ""
    note: str = ""


def recognise(
    head: bytes, whole: bool, name: str = "", text_field: str = "text", encoding: str = "auto"
) -> FileContent:
    """What a file is.

    Args:
        head: its first ``HEAD_BYTES``, or all of it.
        whole: ``head`` is all of it.
        name: its name, which decides only what the content leaves open.
        text_field: the field with the text; a table that has it is a table.
        encoding: of its characters, where somebody has said it.
    """
    packing = packing_of(head)
    if packing == "zstd" and head[:4] in _PACKINGS and head[4:5] and head[4] & 3:
        said = "it is packed with a dictionary (zstd -D), which is not in it: pack it again without one"
        return FileContent(packing=packing, problem=said)
    if packing:
        inner, ends = unpacked(head, packing)
        if inner is None or (whole and ends == "open" and len(inner) <= HEAD_BYTES):
            return FileContent(packing=packing, problem=f"its {packing} data are damaged, or were cut: pack it again")
        if packing_of(inner):
            return FileContent(packing=packing, problem="it is packed twice: unpack it once")
        head, whole = inner[:HEAD_BYTES], whole and ends == "ended" and len(inner) <= HEAD_BYTES
        if not head and not whole:
            return FileContent(packing=packing)  # Nothing here unpacks it: whoever can will look.
    found = _unpacked_content(head, whole, ending(name)[0], text_field, encoding)
    return FileContent(found.formats, packing, found.encoding, found.problem, found.note)


def settle(content: FileContent, name: str, wanted: str = "auto") -> DatasetFormat:
    """The format that a file is read in.

    Args:
        wanted: what somebody has said it is; ``auto``: nobody has.
    Raises:
        ContentError: it is no dataset, is certainly another thing than was said, or can be several.
    """
    if wanted in ("uint16", "uint32"):  # Ids may begin with any bytes.
        if (found := next(iter(content.formats), "")) in ("parquet", "npy"):
            raise ContentError(f"{name} is {WORDS[found]}, not {WORDS[wanted]}: choose the format {found}, or auto")
        return cast(DatasetFormat, wanted)
    if content.problem:
        raise ContentError(f"{name}: {content.problem}")
    if wanted == "auto":
        if len(content.formats) == 1:
            return content.formats[0]
        if _BINARY.intersection(content.formats[1:]):
            raise ContentError(
                f"{name} is plain text, whatever its ending says: choose the format text if that is meant"
            )
        choices = content.formats or get_args(DatasetFormat)[1:]
        shown = " or ".join(f"{choice} ({WORDS[choice]})" for choice in choices)
        raise ContentError(f"{name} can be {shown}: choose its format")
    chosen = cast(DatasetFormat, wanted)
    if content.formats and set(content.formats) <= {"uint16", "uint32"}:
        raise ContentError(f"{name} is binary data, not {WORDS[chosen]}; if it is token ids, choose uint16 or uint32")
    binary = chosen in _BINARY and content.formats[:1] != (chosen,)
    if content.formats and (binary or chosen not in content.formats) and not _readable_as(chosen, content.formats[0]):
        fits = content.formats[0]
        raise ContentError(f"{name} is {WORDS[fits]}, not {WORDS[chosen]}: choose the format {fits}, or auto")
    return chosen


def _readable_as(chosen: DatasetFormat, found: DatasetFormat) -> bool:
    """Whether somebody may mean it: all characters are plain text, and rows say for themselves what is wrong with them."""
    characters = frozenset({"text", "jsonl", "json", "csv", "ids"})
    if chosen == "text":
        return found in characters
    return (chosen, found) in {("json", "jsonl"), ("csv", "text"), ("jsonl", "text"), ("json", "text"), ("ids", "text")}


def remarks(content: FileContent, name: str, chosen: str) -> list[str]:
    """What somebody should know of how a file is read: an ending that is wrong, syntax that is trained on, an encoding."""
    said = []
    last, packed = ending(name)
    promised = ENDINGS.get(last, frozenset())
    if promised and chosen not in promised:
        otherwise = "; if it is a text as it stands, choose the format text" if "text" in promised else ""
        said.append(f"{name} is {WORDS[chosen]}, whatever its ending says, and is read as that{otherwise}")
    if packed and not content.packing:
        said.append(f"{name} is not packed, whatever its ending says")
    likely = content.formats[0] if content.formats else chosen
    if chosen == "text" and likely != "text":
        said.append(f"{name} looks like {WORDS[likely]}: as plain text its syntax is trained on, too")
    if content.encoding.startswith(("utf-16", "utf-32", "gb18030")):
        said.append(f"{name} is written in {content.encoding.upper()}, and is read as that")
    if content.note and chosen in content.formats:
        said.append(f"{name} {content.note}")
    return said


def ending(name: str) -> tuple[str, Packing]:
    """The ending of a file's name below that of its packing, and the packing that it promises."""
    lowered = name.lower()
    packing: Packing = ""
    for last, kind in _PACKED_ENDINGS.items():
        if lowered.endswith(last):
            lowered, packing = lowered.removesuffix(last), kind
            break
    _, dot, last = lowered.rpartition(".")
    return (f".{last}" if dot else ""), packing


def packing_of(head: bytes) -> Packing:
    """How a file is packed."""
    if head and not (head := _past_skippable(head)):
        return "zstd"  # What is packed begins beyond the look; LZ4's programs write no such frames.
    found: Packing = next((packing for magic, packing in _PACKINGS.items() if head.startswith(magic)), "")
    return "" if found == "bzip2" and head[4:10] not in _BZIP2_BLOCKS else found


def _past_skippable(head: bytes) -> bytes:
    """What comes after frames that zstd and LZ4 pass over, as pzstd writes one first; empty where that is not looked at."""
    while head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5 and len(head) >= 8:
        head = head[8 + int.from_bytes(head[4:8], "little") :]
    return head


def unpacked(head: bytes, packing: Packing) -> tuple[bytes | None, Literal["ended", "more", "open", "unknown"]]:
    """The beginning of what is packed, and whether that is all of it, or ``head`` breaks off within it (``open``).

    None where it is damaged, and nothing where this machine cannot unpack it.
    """
    data, frames = b"", 0
    try:
        while True:
            made = _unpacker(packing)
            head = (_past_skippable(head) if packing == "zstd" else head) or head
            data += made.decompress(head, HEAD_BYTES + 1 - len(data))
            frames += 1
            if not made.eof:
                return data, "open"
            head = made.unused_data.lstrip(b"\0")  # Padding.
            if not head:
                return data, "ended"
            if len(data) > HEAD_BYTES or frames == MAX_FRAMES or packing_of(head) != packing:
                return data, "more"  # What is none is told when it is read, with the byte where it begins.
    except ImportError:
        return b"", "unknown"  # A client without the library: the coordinator looks.
    except (zlib.error, OSError, EOFError, lzma.LZMAError, ZstdDataError):
        return (data, "more") if frames else (None, "unknown")


def _unpacker(packing: Packing) -> Any:
    match packing:
        case "gzip":
            return zlib.decompressobj(31)
        case "bzip2":
            return bz2.BZ2Decompressor()
        case "zstd":
            return Zstd()
        case _:
            return lzma.LZMADecompressor(memlimit=XZ_MEMORY)


def _unpacked_content(head: bytes, whole: bool, last: str, text_field: str, said: str) -> FileContent:
    if (problem := other_file(_past_skippable(head))) and last not in _IDS:
        return FileContent(encoding="", problem=problem)
    if head.startswith(b"PAR1"):
        return FileContent(("parquet",), encoding="")
    if head.startswith(b"\x93NUMPY"):
        return FileContent(("npy",), encoding="")
    encoding, mark = encoding_of(head, guess=last not in _IDS)
    if said not in ("auto", encoding):
        encoding, mark = said, 0
    if said == "auto" and (problem := foreign(head, encoding)):
        return FileContent(encoding="?", problem=problem)
    text = head[mark:].decode("latin-1" if encoding == "?" else encoding, "ignore")
    if whole and encoding == "utf-8" and text.rstrip("\0")[-1:] in ("\n", "}", "]"):
        text = text.rstrip("\0")  # Room that a crash has left there: it is refused as a row.
    if _SEQUENCE.match(text):
        text = text.replace(RECORD, "")
    if has_controls(text):
        return _binary(head, last)
    formats = _formats(text, whole, last, text_field)
    syntax = markup(text) if "text" in formats else ""
    note = f"is {syntax}: its syntax is trained on, too" if syntax else spelt_out(head)
    if formats == ("csv",) and _escapes_quotes(text, whole, text_field):
        note = 'has \\" for quotes within its texts, as MySQL and Spark write them, and they are read as quotes'
    elif (
        formats == ("csv",)
        and not note
        and '"' in text
        and spanning(text.splitlines(keepends=True)[: None if whole else -1])
    ):
        note = "has quotes that open in one line and close in another: each line is read as a row; if it is none, write commas"
    return FileContent(formats, encoding=encoding, note=note)


def _escapes_quotes(text: str, whole: bool, text_field: str) -> bool:
    found = table(text, whole, text_field, certain=True) if '\\"' in text else None
    return found is not None and with_backslashes(text.splitlines(keepends=True), found[0])


def _binary(head: bytes, last: str) -> FileContent:
    """Bytes that are no text: perhaps plain ids."""
    if last in (".u16", ".u32"):
        return FileContent(("uint16" if last == ".u16" else "uint32",), encoding="")
    if last in ("", ".bin", ".dat"):
        wide = not any(head[3::4]) and max(head[2::4], default=0) < 16  # No vocabulary has 2^20 entries.
        return FileContent(("uint32", "uint16") if wide else ("uint16", "uint32"), encoding="")
    return FileContent(
        encoding="", problem="this is binary data, not text: upload plain text, JSON lines, a table or Parquet"
    )


def _formats(text: str, whole: bool, last: str, text_field: str) -> tuple[DatasetFormat, ...]:
    begin = text.replace("\n\ufeff", "\n").lstrip("\ufeff \t\r\n")  # Joined files have marks within.
    if begin.startswith('"') and (texts := _texts(begin, whole, last)):
        return texts
    if begin.startswith("{") and (found := _objects(begin, whole, text_field)):
        return (found,)
    if begin.startswith("[") and (found := _arrays(begin, whole)):
        return (found,)
    formats = _table_or_text(text, whole, last, text_field)
    if formats == ("text",) and begin and (promised := ENDINGS.get(last, frozenset())) - {"text"}:
        # A spoilt file, or a wrong name: somebody must say.
        return "text", "json" if "json" in promised else next(
            form for form in get_args(DatasetFormat) if form in promised
        )
    return formats


def _lines(text: str, whole: bool) -> list[str]:
    """The first lines with something in them; one that the look cuts off is left out, unless it is the only one."""
    lines = text.split("\n", MAX_RECORDS)[:MAX_RECORDS]
    if not whole and len(lines) > 1 and len(lines) < MAX_RECORDS:
        lines.pop()
    return [line for line in lines if line.strip()]


def _objects(text: str, whole: bool, text_field: str) -> DatasetFormat | None:
    written = _lines(text, whole)
    lines = [_loaded(line) for line in written]
    objects = [line for line in lines if isinstance(line, dict)]
    if len(lines) > 1 and 2 * len(objects) >= len(lines):
        return "jsonl"
    if len(lines) > 1 and _is_row(written[0]) and 2 * sum(map(_is_row, written)) > len(written):
        return "jsonl"  # Each is refused with what is wrong in it.
    if len(lines) == 1 and objects:
        return "json" if _holds_rows(objects[0], text_field) else "jsonl"
    if _separated(text, whole, dict):
        return "jsonl"
    if not _KEY.match(text):
        return None
    return "jsonl" if "\n" not in text and _opens_with_text(text) else "json"


def _holds_rows(value: dict[str, Any], text_field: str) -> bool:
    """Whether an object in one line is a document with rows within, as a list, a column or by their names; or a row itself."""
    own = found_name(text_field, value)
    of_objects = [one[0] for one in value.values() if isinstance(one, list) and one and isinstance(one[0], dict)]
    if any(map(is_message, of_objects)) and not any(found_name(text_field, one) for one in of_objects):
        return False
    if own is not None and isinstance(value[own], str | dict):
        return isinstance(value[own], dict) or any(found_name(text_field, row) is not None for row in of_objects)
    objects = [one for one in value.values() if isinstance(one, dict)]
    lists = any(isinstance(one, list) and one and isinstance(one[0], str | list | None) for one in value.values())
    within = any(isinstance(inner, dict) for one in objects for inner in one.values())
    return bool(value) and (bool(of_objects) or lists or within or len(objects) == len(value) or _is_series(value))


def is_message(value: Mapping[str, Any]) -> bool:
    """Whether an object is a message of a conversation, as chat models' own programs or ShareGPT write it."""
    return value.keys() >= {"role", "content"} or value.keys() >= {"from", "value"}


def _is_series(value: dict[str, Any]) -> bool:
    """Whether texts have numbers for names, as pandas writes one column."""
    return all(name.isdecimal() and isinstance(one, str | None) for name, one in value.items())


def _is_row(line: str) -> bool:
    """Whether a line is an object, be it one that is written wrong; several in a line are another form."""
    line = line.strip().removesuffix(",")
    if not _KEY.match(line) or line[-1] != "}":
        return False
    try:
        return _JSON.raw_decode(line)[1] == len(line)
    except (ValueError, RecursionError):
        return True


def _texts(text: str, whole: bool, last: str) -> tuple[DatasetFormat, ...]:
    """What lines are that are all texts in JSON; people's speech in quotes looks the same, unless the ending says more."""
    lines = _lines(text, whole)
    if len(lines) < 2 or not all(isinstance(_loaded(line.rstrip().removesuffix(",")), str) for line in lines):
        return ()
    if "jsonl" in ENDINGS.get(last, frozenset()):
        return ("jsonl",)
    return ("jsonl", "text") if len(lines) >= FEW_RECORDS and last not in (".csv", ".tsv", ".tab", ".psv") else ()


def _separated(text: str, whole: bool, kind: type) -> bool:
    """Whether the first of several lines, and most of them, are values of a kind, be there a comma after each."""
    found = [isinstance(_loaded(line.rstrip().removesuffix(",")), kind) for line in _lines(text, whole)]
    return len(found) > 1 and found[0] and 2 * sum(found) > len(found)


def _opens_with_text(text: str) -> bool:
    """Whether a long object has messages, or is unfinished within them or within a text: then it is a long row.

    A document breaks off within a list or an object; one of texts with numbers for names is a column.
    """
    at, numbered = 1, 0
    while found := _MEMBER.match(text, at):
        at, numbered = found.end(), numbered + found[1].isdecimal()
        if _MESSAGES.match(text, at):
            return True
        try:
            _, at = _JSON.raw_decode(text, at)
        except (ValueError, RecursionError):
            return numbered < FEW_RECORDS and text[at : at + 1] not in ("[", "{", "")
    return False


def _arrays(text: str, whole: bool) -> DatasetFormat | None:
    lines = _lines(text, whole)
    if all(_is_ids(line) for line in lines[:-1] or lines):
        return "ids"
    inner = text[1:].lstrip()
    if inner[:1] in ('"', "[", "{") and _separated(text, whole, list):
        return "jsonl"  # Each row is refused with what it should be.
    if inner.startswith("{"):
        return "json" if _KEY.match(inner) else None
    if inner.startswith("["):
        return None
    if not inner.startswith('"'):
        return "json" if inner.startswith("]") and not inner[1:].strip() else None
    try:
        _, stop = _JSON.raw_decode(inner)
    except ValueError:
        return None if whole else "json"  # A string that goes on beyond what is looked at.
    return "json" if inner[stop:].lstrip()[:1] in (",", "]") else None


def _is_ids(line: str) -> bool:
    if line[:1] != "[" or not line.rstrip().endswith("]"):
        return bool(re.fullmatch(r"\[[\s0-9,]+", line)) and len(line) > 1000  # A long row that the look cuts off.
    try:
        row = _TOKENS.decode(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(row, list) and bool(row) and all(type(entry) is int for entry in row)


def _loaded(line: str) -> Any:
    try:
        return _JSON.decode(line)
    except (ValueError, RecursionError):
        return None


def _table_or_text(text: str, whole: bool, last: str, text_field: str) -> tuple[DatasetFormat, ...]:
    tables = ENDINGS[".csv"] == ENDINGS.get(last)
    found = table(text, whole, text_field, certain=tables)
    if found is None:
        return ("csv", "text") if tables and text.strip() and "\n" in text.strip() else ("text",)
    _, header, fitting, records = found
    if found_name(text_field, header) is not None and (tables or len(header) > 1):
        return ("csv",)
    if len(header) < 2:
        if not tables:
            return ("text",)
        return ("csv",) if header[0] in TALKS else ("csv", "text")
    if tables:
        return ("csv",)
    named = all(_COLUMN.fullmatch(column) for column in header)
    return ("csv", "text") if named and fitting == records >= FEW_RECORDS else ("text",)


def table(text: str, whole: bool, text_field: str, *, certain: bool = False) -> tuple[str, list[str], int, int] | None:
    """How a text reads as a table: delimiter, columns, records that have as many fields, and records.

    None where it is none: no second record, or most records have another number of fields.

    Args:
        certain: it is a table, by its name or by what somebody said. Then a first line with the text's field is enough, and
            columns may be without names, as pandas leaves its index.
    """
    found = []
    for delimiter in (said,) if (said := said_delimiter(text)) else DELIMITERS:
        records = list(_records(text, whole, delimiter))
        header = [column.strip() for column in records[0]] if records else []
        asked = found_name(text_field, header) is not None
        named = certain and asked
        if len(records) < 2 and not named:
            continue
        # The last one may go on beyond what is looked at.
        records = records if whole or len(records) < 2 else records[:-1]
        fitting = sum(len(record) == len(header) for record in records)
        once = len(set(header)) == len(header) or asked
        titles = (any(header) if certain else all(header)) and once and records[0] not in records[1:]
        if named or (titles and 5 * fitting >= 4 * len(records)):
            found.append((asked, len(header) > 1, fitting, len(header), delimiter, header, len(records)))
    if not found:
        return None
    _, _, fitting, _, delimiter, header, count = max(found, key=lambda one: one[:4])
    return delimiter, header, fitting, count


def said_delimiter(text: str) -> str:
    """The delimiter that Excel writes into the first line (``sep=;``); empty where it has not."""
    first = text[:40].lstrip("\ufeff").split("\n", 1)[0].rstrip("\r")
    return first[4] if first.startswith("sep=") and len(first) == 5 else ""


def _records(text: str, whole: bool, delimiter: str) -> Iterator[list[str]]:
    # As ``csv`` wants them: other marks end no line.
    lines = list(io.StringIO(text.removeprefix("\ufeff"), newline=""))
    if said_delimiter(text):
        lines = lines[1:]
    if not whole and len(lines) > 1:
        lines.pop()
    lines = [line.lstrip("\ufeff") for line in lines]
    read = quoted_rows if with_backslashes(lines, delimiter) else csv.reader
    rows = read(lines, delimiter=delimiter)
    for _ in range(MAX_RECORDS):
        try:
            row = next(rows, None)
        except csv.Error:
            continue
        if row is None:
            return
        if row and (len(row) > 1 or row[0].strip()):
            yield row
