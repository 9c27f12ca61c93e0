"""Reads the relocatable BPF objects that mainline LLVM writes: the little of ELF that the linker needs.

Source: Tool Interface Standard ELF 1.2, and the 64-bit layout of the System V ABI.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ledger.program.errors import ProgramLinkError

SECTION_SYMBOLS = 2
SECTION_RELA = 4
SECTION_NOBITS = 8
SECTION_REL = 9
FLAG_ALLOCATED = 2
FLAG_EXECUTABLE = 4

_RELOCATABLE = 1
_MACHINE_BPF = 247
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQ")


@dataclass(frozen=True)
class Section:
    """One section: its name, header fields and bytes (zeros where the file holds none)."""

    name: str
    kind: int
    flags: int
    info: int
    alignment: int
    data: bytes


@dataclass(frozen=True)
class Symbol:
    """One symbol: where it is defined (section 0 means elsewhere) and whether others may see it."""

    name: str
    section: int
    value: int
    is_global: bool


@dataclass(frozen=True)
class Relocation:
    """One place, ``offset`` bytes into ``section``, that wants a symbol's address."""

    section: int
    offset: int
    symbol: Symbol
    kind: int


@dataclass(frozen=True)
class ObjectFile:
    """One compiled translation unit."""

    name: str
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    relocations: tuple[Relocation, ...]


def read_object(name: str, blob: bytes) -> ObjectFile:
    """Parse one object.

    Raises:
        LinkError: ``blob`` is no little-endian 64-bit relocatable BPF object, or uses RELA relocations.
    """
    if blob[:6] != b"\x7fELF\x02\x01":
        raise ProgramLinkError(f"{name} is no 64-bit little-endian ELF file: compile it with -target bpfel")
    kind, machine = struct.unpack_from("<HH", blob, 16)
    if (kind, machine) != (_RELOCATABLE, _MACHINE_BPF):
        raise ProgramLinkError(f"{name} has ELF type {kind} and machine {machine}, not 1 and 247: compile it with -c")
    table = struct.unpack_from("<Q", blob, 40)[0]
    count, names_at = struct.unpack_from("<2x2H", blob, 58)
    headers = [_SECTION_HEADER.unpack_from(blob, table + i * _SECTION_HEADER.size) for i in range(count)]
    sections = tuple(_read_section(blob, header, headers[names_at][4]) for header in headers)
    symbols = _read_symbols(blob, headers)
    return ObjectFile(name, sections, symbols, tuple(_read_relocations(name, sections, symbols)))


def _read_section(blob: bytes, header: tuple[int, ...], names: int) -> Section:
    name, kind, flags, _, offset, size, _, info, alignment, _ = header
    data = bytes(size) if kind == SECTION_NOBITS else blob[offset : offset + size]
    return Section(_text_at(blob, names + name), kind, flags, info, alignment, data)


def _read_symbols(blob: bytes, headers: list[tuple[int, ...]]) -> tuple[Symbol, ...]:
    symbols: list[Symbol] = []
    for header in headers:
        if header[1] != SECTION_SYMBOLS:
            continue
        names = headers[header[6]][4]
        for at in range(header[4], header[4] + header[5], _SYMBOL.size):
            name, info, _, section, value, _ = _SYMBOL.unpack_from(blob, at)
            symbols.append(Symbol(_text_at(blob, names + name), section, value, info >> 4 != 0))
    return tuple(symbols)


def _read_relocations(name: str, sections: tuple[Section, ...], symbols: tuple[Symbol, ...]) -> list[Relocation]:
    found: list[Relocation] = []
    for section in sections:
        if section.kind == SECTION_RELA:
            raise ProgramLinkError(f"{name} section {section.name} uses RELA relocations, which BPF objects never do")
        if section.kind != SECTION_REL:
            continue
        for offset, info in _RELOCATION.iter_unpack(section.data):
            found.append(Relocation(section.info, offset, symbols[info >> 32], info & 0xFFFFFFFF))
    return found


def _text_at(blob: bytes, offset: int) -> str:
    return blob[offset : blob.index(b"\0", offset)].decode()
