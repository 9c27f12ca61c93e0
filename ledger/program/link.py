"""A small linker: BPF objects from mainline LLVM become one Solana sBPF program, version 0 or 3.

Version 3 is a header, two segments (read-only data at 0, code at 2**32) and nothing else; a system call is
a ``call`` whose immediate is the murmur3 hash of its name. Version 0 needs sections and dynamic relocations.

Source: https://github.com/anza-xyz/sbpf (``doc/bytecode.md``, ``src/elf.rs``) and Solana SIMD-0161 to 0189.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ledger.program.elf import FLAG_ALLOCATED, FLAG_EXECUTABLE, ObjectFile, Symbol
from ledger.program.errors import ProgramLinkError
from ledger.program.image import ProgramImage, image_v0, image_v3

Version = Literal[0, 3]

_CODE_BASE_V3 = 1 << 32
_MEMORY_BASE_V0 = 1 << 32
_RELOCATE_LOAD, _RELOCATE_DATA, _RELOCATE_CALL = 1, 2, 10
_LOAD_IMMEDIATE = 0x18
_CALL_REGISTER = 0x8D
# sBPF sign-extends what these compute, mainline LLVM assumes zero extension: silently wrong code.
_ALU32_ARITHMETIC = frozenset({0x04, 0x0C, 0x14, 0x1C, 0x24, 0x2C})
_ATOMIC = frozenset({0xDB, 0xC3})
_JUMP32_CLASS = 6
_IGNORED = (".eh_frame", ".BTF", ".llvm")

_Place = tuple[Literal["code", "data"], int]


@dataclass
class _Layout:
    """Where everything went while linking."""

    code: bytearray = field(default_factory=bytearray)
    data: bytearray = field(default_factory=bytearray)
    sections: dict[tuple[int, int], _Place] = field(default_factory=dict)
    symbols: dict[str, _Place] = field(default_factory=dict)
    syscalls: list[tuple[int, str]] = field(default_factory=list)


def link(objects: Sequence[ObjectFile], version: Version, entry: str = "entrypoint") -> bytes:
    """Link ``objects`` into one program file.

    Raises:
        LinkError: an unsupported section, relocation or instruction, a name defined twice or nowhere.
    """
    layout = _Layout()
    _place_sections(objects, layout)
    _place_symbols(objects, layout)
    code_base, data_base = _bases(version, len(layout.code))
    for index, unit in enumerate(objects):
        _relocate(unit, index, layout, version, (code_base, data_base))
    _check_code(layout.code, version)
    if layout.symbols.get(entry, ("data", 0))[0] != "code":
        raise ProgramLinkError(f"no function {entry!r} in {', '.join(o.name for o in objects)}: define the entry point")
    image = ProgramImage(bytes(layout.code), bytes(layout.data), layout.symbols[entry][1], tuple(layout.syscalls))
    return image_v3(image) if version == 3 else image_v0(image)


def _bases(version: Version, code_length: int) -> tuple[int, int]:
    """Addresses of code and read-only data in the program's memory."""
    if version == 3:
        return _CODE_BASE_V3, 0
    code = _MEMORY_BASE_V0 + ProgramImage.CODE_OFFSET_V0
    return code, code + code_length


def _place_sections(objects: Sequence[ObjectFile], layout: _Layout) -> None:
    for unit_index, unit in enumerate(objects):
        for index, section in enumerate(unit.sections):
            if not section.flags & FLAG_ALLOCATED or not section.data or section.name.startswith(_IGNORED):
                continue
            if section.flags & FLAG_EXECUTABLE:
                target, kind = layout.code, "code"
            elif section.name.startswith((".rodata", ".data.rel.ro")):
                target, kind = layout.data, "data"
            else:
                raise ProgramLinkError(
                    f"{unit.name} has {len(section.data)} bytes in {section.name}: a program has no writable "
                    "globals, keep them on the stack"
                )
            target.extend(bytes(-len(target) % max(8, section.alignment)))
            layout.sections[unit_index, index] = ("code" if kind == "code" else "data", len(target))
            target.extend(section.data)
    layout.data.extend(bytes(-len(layout.data) % 8))


def _place_symbols(objects: Sequence[ObjectFile], layout: _Layout) -> None:
    for unit_index, unit in enumerate(objects):
        for symbol in unit.symbols:
            place = layout.sections.get((unit_index, symbol.section))
            if not symbol.is_global or place is None:
                continue
            if symbol.name in layout.symbols:
                raise ProgramLinkError(
                    f"{symbol.name} is defined twice, the second time in {unit.name}: make one static"
                )
            layout.symbols[symbol.name] = (place[0], place[1] + symbol.value)


def _relocate(unit: ObjectFile, unit_index: int, layout: _Layout, version: Version, bases: tuple[int, int]) -> None:
    for relocation in unit.relocations:
        place = layout.sections.get((unit_index, relocation.section))
        if place is None:
            continue  # Debug sections are not part of the program.
        buffer, at = (layout.code if place[0] == "code" else layout.data), place[1] + relocation.offset
        target = _find(relocation.symbol, unit_index, layout)
        if relocation.kind == _RELOCATE_CALL:
            _relocate_call(layout, at, relocation.symbol.name, target, version)
            continue
        if target is None:
            raise ProgramLinkError(f"{unit.name} refers to {relocation.symbol.name}, which no object defines")
        base = (bases[0] if target[0] == "code" else bases[1]) + target[1]
        if relocation.kind == _RELOCATE_LOAD:
            address = base + struct.unpack_from("<i", buffer, at + 4)[0]
            struct.pack_into("<I", buffer, at + 4, address & 0xFFFFFFFF)
            struct.pack_into("<I", buffer, at + 12, address >> 32)
        elif relocation.kind == _RELOCATE_DATA:
            struct.pack_into("<Q", buffer, at, base + struct.unpack_from("<Q", buffer, at)[0])
        else:
            raise ProgramLinkError(
                f"{unit.name} has a relocation of type {relocation.kind} for {relocation.symbol.name}"
            )


def _find(symbol: Symbol, unit_index: int, layout: _Layout) -> _Place | None:
    if symbol.section:
        kind, offset = layout.sections[unit_index, symbol.section]
        return kind, offset + symbol.value
    return layout.symbols.get(symbol.name)


def _relocate_call(layout: _Layout, at: int, name: str, target: _Place | None, version: Version) -> None:
    """Point one call at a function of the program (relative) or at a system call (by name)."""
    if target is not None:
        instruction = struct.unpack_from("<i", layout.code, at + 4)[0]
        distance = target[1] + (instruction + 1) * 8 - at - 8
        struct.pack_into("<i", layout.code, at + 4, distance // 8)
        return
    layout.syscalls.append((at, name))
    if version == 3:
        layout.code[at + 1] &= 0x0F  # source register 0 marks a system call
        struct.pack_into("<I", layout.code, at + 4, murmur3_32(name.encode()))
    else:
        struct.pack_into("<i", layout.code, at + 4, -1)  # the loader fills it in


def _check_code(code: bytearray, version: Version) -> None:
    for at in _instructions(code):
        opcode = code[at]
        if opcode in _ALU32_ARITHMETIC:
            raise ProgramLinkError(f"32-bit arithmetic at instruction {at // 8}: compile with -mcpu=v2")
        if opcode in _ATOMIC:
            raise ProgramLinkError(f"atomic operation at instruction {at // 8}: a program has one thread, drop it")
        if version == 0 and opcode & 7 == _JUMP32_CLASS:
            raise ProgramLinkError(f"32-bit jump at instruction {at // 8}: compile with -mcpu=v2")
        if version == 0 and opcode == _CALL_REGISTER:
            # Mainline names the register in the destination field, version 0 in the immediate.
            register, code[at + 1] = code[at + 1] & 15, 0
            struct.pack_into("<I", code, at + 4, register)


def _instructions(code: bytearray) -> Iterable[int]:
    at = 0
    while at < len(code):
        yield at
        at += 16 if code[at] == _LOAD_IMMEDIATE else 8


def murmur3_32(key: bytes) -> int:
    """MurmurHash3 x86 32-bit with seed 0, by which sBPF names system calls.

    Source: https://github.com/aappleby/smhasher (public domain).
    """
    mask, value = 0xFFFFFFFF, 0
    whole = len(key) & ~3
    for (block,) in struct.iter_unpack("<I", key[:whole]):
        value ^= _scramble(block)
        value = (value << 13 | value >> 19) & mask
        value = (value * 5 + 0xE6546B64) & mask
    if tail := key[whole:]:
        value ^= _scramble(int.from_bytes(tail, "little"))
    value ^= len(key)
    value = (value ^ value >> 16) * 0x85EBCA6B & mask
    value = (value ^ value >> 13) * 0xC2B2AE35 & mask
    return value ^ value >> 16


def _scramble(block: int) -> int:
    block = block * 0xCC9E2D51 & 0xFFFFFFFF
    block = (block << 15 | block >> 17) & 0xFFFFFFFF
    return block * 0x1B873593 & 0xFFFFFFFF
