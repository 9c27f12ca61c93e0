"""Files that are no dataset, and texts that are more than their words: other programs' formats, by how they begin. Pure."""

import re
import zlib
from collections.abc import Mapping
from typing import Final

from protocol.datasets.encodings import has_controls

_OTHERS: Final[Mapping[bytes, str]] = {
    b"PK\x03\x04": "a zip archive (such as .zip, .xlsx or .docx): take the texts out of it first",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive: unpack it first",
    b"Rar!\x1a": "a RAR archive: unpack it first",
    b"\x04\x22\x4d\x18": "an LZ4 archive: unpack it first, or pack it with gzip or zstd",
    b"\x1f\x9d": "a file of compress (.Z): unpack it first, or pack it with gzip or zstd",
    b"LZIP": "an lzip archive: unpack it first, or pack it with xz",
    b"\x5d\x00\x00": "an old LZMA file (.lzma): unpack it first, or pack it with xz",
    b"\x89LZO": "an lzop archive: unpack it first, or pack it with gzip or zstd",
    b"\xff\x06\x00\x00sNaPpY": "a Snappy file: unpack it first, or pack it with gzip or zstd",
    b"%PDF": "a PDF: extract its text first",
    b"\xd0\xcf\x11\xe0": "an old Office document: save its text first",
    b"ARROW1": "an Arrow file (Feather): write it as Parquet",
    b"\xff\xff\xff\xff": "an Arrow stream, as save_to_disk of datasets writes it: write it as Parquet (to_parquet)",
    b"FEA1": "an old Feather file: write it as Parquet",
    b"ORC": "an ORC file: write it as Parquet",
    b"Obj\x01": "an Avro file: write it as JSON lines or Parquet",
    b"SQLite format 3\0": "an SQLite database: write its texts as JSON lines",
    b"PARE": "encrypted Parquet: write it without a key",
    b"\x89HDF": "an HDF5 file: write its texts as JSON lines",
    b"GGUF": "a model (GGUF), not a dataset",
    b"\x7fELF": "a program, not text",
    b"MZ": "a program, not text",
    b"\x89PNG": "a picture, not text",
    b"\xff\xd8\xff": "a picture, not text",
    b"GIF8": "a picture, not text",
    b"II*\0": "a picture, not text",
    b"RIFF": "sound, a picture or a film, not text",
    b"ID3": "sound, not text",
    b"OggS": "sound, not text",
    b"fLaC": "sound, not text",
}
POINTERS: Final[Mapping[bytes, str]] = {
    b"version https://git-lfs.github.com/spec/": "Git LFS, not the file that it stands for: fetch that (git lfs pull)",
    b"/annex/objects/": "git-annex, not the file that it stands for: fetch that (git annex get)",
    b"outs:\n- md5: ": "DVC, not the file that it stands for: fetch that (dvc pull)",
}
"""What stands in a repository for a large file: how it begins, and what it is of."""
_PICKLE = re.compile(rb"\x80[\x02-\x05].")
_FEW_BYTES = 1 << 16
_MIN_TAGS = 3  # That are closed: fewer may be a writer's own marks.
_MARKUP: Final[Mapping[str, re.Pattern[str]]] = {
    words: re.compile(begin, re.IGNORECASE)
    for words, begin in (
        ("HTML", r"<!doctype html|<html\b"),
        ("XML", r"<\?xml\b"),
        ("RTF", r"\{\\rtf"),
        ("PostScript", r"%!ps"),
        ("a web archive (WARC)", r"warc/"),
        (
            "an SQL dump",
            r"-- (?:\w+ )?(?:sql |database |table )?dump\b|(?:insert into|create table|copy|pragma) [^;]*[;(]",
        ),
        ("subtitles", r"webvtt\b|\d+\s*\n\s*\d\d:\d\d:\d\d[,.]\d{3} -->"),
        ("a mailbox", r"from \S+ [^\n]*\d\d:\d\d[^\n]*\n[\w-]+: "),
        ("LaTeX", r"\\documentclass\b"),
        ("BibTeX", r"@\w+\s*\{\s*[^\s,{}]+,\s*\n\s*\w+\s*="),
        ("CoNLL-U", r"# (?:newdoc|sent_id|global\.columns|text)\b[^\n]*="),
        ("a page with settings in YAML above it, as a README of the Hub", r"---\s*\n(?:[^\n]*\n){1,200}?---\s*\n"),
        ("YAML", r"(?:---\s*\n\s*)?- [\w-]+:\s(?:[^\n]*\n){1,200}?- [\w-]+:\s"),
        ("a script around JSON", r"[\w$][\w.$]*\s*(?:=\s*|\(\s*)[\[{]\s*[\[{\"]"),
    )
}
_COMMENTS = re.compile(r"(?:<!--.*?-->|(?:--|%|/\*|//)[^\n]*\n|\s)*", re.DOTALL)
_TAG = re.compile(r"<[a-z][\w:.-]*(?:\s[^<>]*)?/?>", re.IGNORECASE)
_CLOSED = re.compile(r"</[a-z][\w:.-]*\s*>", re.IGNORECASE)


def other_file(head: bytes) -> str:
    """What a file is that is no dataset, with the way out; empty where nothing at its beginning says that it is none."""
    for magic, what in _OTHERS.items():
        certain = not magic.isalnum() or has_controls(head[:4096].decode("latin-1"))  # "ORC" begins many a story.
        if head.startswith(magic) and certain:
            return f"this is {what}"
    if head[:2] in (b"x\x9c", b"x\xda") and _is_zlib(head):
        return "this is a zlib stream: pack it with gzip or zstd instead"
    for magic, what in POINTERS.items():
        if head.startswith(magic):
            return f"this is a pointer of {what}"
    if head[4:8] == b"\0\0\0\0" and head[8:10] == b'{"':
        return "this is the weights of a model (safetensors), not a dataset"
    if _PICKLE.match(head):
        return "this is a Python pickle, which is never opened here: write its texts as JSON lines"
    if head[257:262] == b"ustar":
        return "this is a tar archive: take the file out of it that holds the texts"
    if head[4:8] == b"ftyp":
        return "this is a film, not text"
    return ""


def _is_zlib(head: bytes) -> bool:
    try:
        return len(zlib.decompressobj().decompress(head, _FEW_BYTES)) > 0
    except zlib.error:
        return False


def markup(text: str) -> str:
    """What a text is beside its words, as a program wrote it: its syntax would be trained on, too. Empty where it is nothing."""
    text = text[:_FEW_BYTES].lstrip("\ufeff")
    past = found.end() if (found := _COMMENTS.match(text)) else 0
    for begin in {len(text) - len(text.lstrip()), past}:
        for words, known in _MARKUP.items():
            if known.match(text, begin):
                return words
    tags = _TAG.match(text, past) and len(_CLOSED.findall(text)) >= _MIN_TAGS
    return "text between tags, as HTML and XML have them" if tags else ""
