"""Writes the two program files that Solana's loaders read.

Source: https://github.com/anza-xyz/sbpf ``src/elf.rs``; Solana SIMD-0189 (stricter ELF headers, version 3).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import ClassVar

_HEADER_SIZE, _SEGMENT_SIZE, _SECTION_SIZE = 64, 56, 64
_SHARED_OBJECT, _MACHINE_BPF = 3, 247
_LOAD, _DYNAMIC = 1, 2
_EXECUTE, _READ = 1, 4
_CODE_BASE_V3 = 1 << 32
_CALL_RELOCATION = 10
_DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_REL, _DT_RELSZ, _DT_RELENT = 5, 6, 10, 11, 17, 18, 19
_PROGBITS, _STRTAB, _DYNAMIC_SECTION, _REL, _DYNSYM = 1, 3, 6, 9, 11
_ALLOC, _ALLOC_EXECUTE, _ALLOC_WRITE = 2, 6, 3


@dataclass(frozen=True)
class ProgramImage:
    """Linked code and read-only data, the entry's offset in the code, and where which system call is made."""

    code: bytes
    data: bytes
    entry: int
    syscalls: tuple[tuple[int, str], ...]

    CODE_OFFSET_V0: ClassVar[int] = _HEADER_SIZE + 3 * _SEGMENT_SIZE


def image_v3(image: ProgramImage) -> bytes:
    """Version 3: header, segments, data, code."""
    count = 2 if image.data else 1
    data_at = _HEADER_SIZE + count * _SEGMENT_SIZE
    code_at = data_at + len(image.data)
    segments = b""
    if image.data:
        segments += _segment(_LOAD, _READ, data_at, 0, len(image.data))
    segments += _segment(_LOAD, _EXECUTE, code_at, _CODE_BASE_V3, len(image.code))
    header = _header(3, _CODE_BASE_V3 + image.entry, count)
    return header + segments + image.data + image.code


@dataclass
class _Sections:
    """Section headers of a version 0 file and the string table with their names."""

    names: bytearray = field(default_factory=lambda: bytearray(b"\0"))
    headers: list[bytes] = field(default_factory=lambda: [bytes(_SECTION_SIZE)])

    def add(
        self, name: str, kind: int, flags: int, at: int, size: int, *, link: int = 0, info: int = 0, entry: int = 0
    ) -> None:
        address = at if flags else 0
        alignment = 1 if kind == _STRTAB else 8
        fields = (len(self.names), kind, flags, address, at, size, link, info, alignment, entry)
        self.headers.append(struct.pack("<IIQQQQIIQQ", *fields))
        self.names += name.encode() + b"\0"


def image_v0(image: ProgramImage) -> bytes:
    """Version 0: segments, the dynamic tables by which the loader resolves system calls, sections."""
    symbols, strings, numbers = _symbol_table(image.syscalls)
    code_at = ProgramImage.CODE_OFFSET_V0
    data_at = code_at + len(image.code)
    dynamic_at = data_at + len(image.data)
    symbols_at = dynamic_at + 8 * 16
    strings_at = symbols_at + len(symbols)
    relocations_at = strings_at + len(strings)
    relocations = b"".join(
        struct.pack("<QQ", code_at + at, numbers[name] << 32 | _CALL_RELOCATION) for at, name in image.syscalls
    )
    names_at = relocations_at + len(relocations)
    entries = (
        (_DT_REL, relocations_at),
        (_DT_RELSZ, len(relocations)),
        (_DT_RELENT, 16),
        (_DT_SYMTAB, symbols_at),
        (_DT_STRTAB, strings_at),
        (_DT_STRSZ, len(strings)),
        (_DT_SYMENT, 24),
        (0, 0),
    )
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)

    sections = _Sections()
    sections.add(".text", _PROGBITS, _ALLOC_EXECUTE, code_at, len(image.code))
    if image.data:
        sections.add(".rodata", _PROGBITS, _ALLOC, data_at, len(image.data))
    number = len(sections.headers)  # of the dynamic section; its symbols and strings follow it
    sections.add(".dynamic", _DYNAMIC_SECTION, _ALLOC_WRITE, dynamic_at, len(dynamic), link=number + 2, entry=16)
    sections.add(".dynsym", _DYNSYM, _ALLOC, symbols_at, len(symbols), link=number + 2, info=1, entry=24)
    sections.add(".dynstr", _STRTAB, _ALLOC, strings_at, len(strings))
    sections.add(".rel.dyn", _REL, _ALLOC, relocations_at, len(relocations), link=number + 1, entry=16)
    names_size = len(sections.names) + len(b".shstrtab\0")
    sections.add(".shstrtab", _STRTAB, 0, names_at, names_size)

    table_at = (names_at + names_size + 7) & ~7
    segments = (
        _segment(_LOAD, _READ | _EXECUTE, code_at, code_at, len(image.code) + len(image.data))
        + _segment(_LOAD, _READ, dynamic_at, dynamic_at, names_at - dynamic_at)
        + _segment(_DYNAMIC, _READ, dynamic_at, dynamic_at, len(dynamic))
    )
    header = _header(0, code_at + image.entry, 3, table_at, len(sections.headers))
    body = header + segments + image.code + image.data + dynamic + symbols + strings + relocations + sections.names
    return body + bytes(table_at - len(body)) + b"".join(sections.headers)


def _symbol_table(syscalls: tuple[tuple[int, str], ...]) -> tuple[bytes, bytes, dict[str, int]]:
    symbols, strings, numbers = bytearray(24), bytearray(b"\0"), dict[str, int]()
    for _, name in syscalls:
        if name not in numbers:
            numbers[name] = len(symbols) // 24
            symbols += struct.pack("<IBBHQQ", len(strings), 0x10, 0, 0, 0, 0)
            strings += name.encode() + b"\0"
    strings += bytes(-len(strings) % 8)
    return bytes(symbols), bytes(strings), numbers


def _header(version: int, entry: int, segments: int, sections_at: int = 0, sections: int = 0) -> bytes:
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    return identity + struct.pack(
        "<HHIQQQIHHHHHH",
        _SHARED_OBJECT,
        _MACHINE_BPF,
        1,
        entry,
        _HEADER_SIZE,
        sections_at,
        version,
        _HEADER_SIZE,
        _SEGMENT_SIZE,
        segments,
        _SECTION_SIZE,
        sections,
        max(0, sections - 1),
    )


def _segment(kind: int, flags: int, offset: int, address: int, size: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, size, size, 8)
