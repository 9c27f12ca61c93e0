"""Instructions of Solana's upgradeable loader: a buffer, its chunks, the deployment, the authority.

Source: agave ``sdk/program/src/loader_upgradeable_instruction.rs`` (the order of accounts and the layout of the data).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM
from solders.system_program import CreateAccountParams, create_account

from ledger.program.interface import LOADER

WRITE_CHUNK = 1000  # Bytes of program a transaction: what fits 1,232 with signature, keys and header.
MIN_EXTENSION = 10_240  # Clusters refuse to make room for less at a time.
BUFFER_HEADER, PROGRAM_SIZE, DATA_HEADER = 37, 36, 45
_INITIALIZE, _WRITE, _DEPLOY, _UPGRADE, _SET_AUTHORITY, _EXTEND = 0, 1, 2, 3, 4, 6
_RENT_SYSVAR = Pubkey.from_string("SysvarRent111111111111111111111111111111111")
_CLOCK_SYSVAR = Pubkey.from_string("SysvarC1ock11111111111111111111111111111111")


def data_address(program: Pubkey) -> Pubkey:
    """The account that will hold a program's code and authority."""
    return Pubkey.find_program_address([bytes(program)], LOADER)[0]


def create_buffer(owner: Pubkey, buffer: Pubkey, size: int, rent: int) -> list[Instruction]:
    """A buffer for a program of ``size`` bytes; ``rent`` covers BUFFER_HEADER more."""
    space = CreateAccountParams(
        from_pubkey=owner, to_pubkey=buffer, lamports=rent, space=BUFFER_HEADER + size, owner=LOADER
    )
    start = Instruction(LOADER, struct.pack("<I", _INITIALIZE), [_meta(buffer, "w"), _meta(owner)])
    return [create_account(space), start]


def write_chunk(owner: Pubkey, buffer: Pubkey, code: bytes, offset: int) -> Instruction:
    """Write the chunk of ``code`` that begins at ``offset``."""
    chunk = code[offset : offset + WRITE_CHUNK]
    data = struct.pack("<IIQ", _WRITE, offset, len(chunk)) + chunk
    return Instruction(LOADER, data, [_meta(buffer, "w"), _meta(owner, "s")])


def deploy_buffer(owner: Pubkey, program: Pubkey, buffer: Pubkey, size: int, rent: int) -> list[Instruction]:
    """Make the program from its buffer; ``rent`` is that of PROGRAM_SIZE bytes. ``owner`` may upgrade it."""
    entry = CreateAccountParams(from_pubkey=owner, to_pubkey=program, lamports=rent, space=PROGRAM_SIZE, owner=LOADER)
    accounts = [
        _meta(owner, "sw"),
        _meta(data_address(program), "w"),
        _meta(program, "w"),
        _meta(buffer, "w"),
        _meta(_RENT_SYSVAR),
        _meta(_CLOCK_SYSVAR),
        _meta(SYSTEM_PROGRAM),
        _meta(owner, "s"),
    ]
    return [create_account(entry), Instruction(LOADER, struct.pack("<IQ", _DEPLOY, size), accounts)]


def extend(payer: Pubkey, program: Pubkey, more: int) -> Instruction:
    """Make room for code that is ``more`` bytes longer, at least MIN_EXTENSION; ``payer`` pays the rent.

    The program can be upgraded from the next slot on.
    """
    accounts = [_meta(data_address(program), "w"), _meta(program, "w"), _meta(SYSTEM_PROGRAM), _meta(payer, "sw")]
    return Instruction(LOADER, struct.pack("<II", _EXTEND, max(more, MIN_EXTENSION)), accounts)


def upgrade(owner: Pubkey, program: Pubkey, buffer: Pubkey) -> Instruction:
    """Put a buffer's code in the place of a program's; ``owner`` may upgrade it, and gets the buffer's rent."""
    accounts = [
        _meta(data_address(program), "w"),
        _meta(program, "w"),
        _meta(buffer, "w"),
        _meta(owner, "w"),
        _meta(_RENT_SYSVAR),
        _meta(_CLOCK_SYSVAR),
        _meta(owner, "s"),
    ]
    return Instruction(LOADER, struct.pack("<I", _UPGRADE), accounts)


def set_authority(owner: Pubkey, program: Pubkey, successor: Pubkey | None) -> Instruction:
    """Hand the right to upgrade over, or give it up for ever with None."""
    accounts: Sequence[AccountMeta] = [_meta(data_address(program), "w"), _meta(owner, "s")]
    if successor is not None:
        accounts = [*accounts, _meta(successor)]
    return Instruction(LOADER, struct.pack("<I", _SET_AUTHORITY), accounts)


def _meta(key: Pubkey, flags: str = "") -> AccountMeta:
    return AccountMeta(key, is_signer="s" in flags, is_writable="w" in flags)
