"""The linker, the build, and the two sides of the program's interface."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import struct

import pytest
from solders.instruction import Instruction
from solders.keypair import Keypair

from ledger.local.chain import TransactionRefusedError
from ledger.local.genesis import deploy
from ledger.program import build
from ledger.program.build import HERE, VERSIONS, main, program_path
from ledger.program.codes import (
    ERROR_TEXTS,
    FRONTIER,
    MAX_BATCH,
    MAX_GROWTH,
    MAX_PAYEES,
    MAX_TABLE,
    Consent,
    MarketError,
    Operation,
)
from ledger.program.elf import ObjectFile, Relocation, Section, Symbol, read_object
from ledger.program.errors import ProgramLinkError
from ledger.program.layout import ESCROW_SIZE, JOB_OFFSET, PAYEE_SIZE, REASONS, STAKE_SIZE, VERSION
from ledger.program.link import Version, link, murmur3_32
from tests.ledger.world import TOKENS, World, key

EXIT = struct.pack("<BBhi", 0x95, 0, 0, 0)
ALLOCATED, EXECUTABLE, WRITABLE = 2, 4, 1


def _object(
    code: bytes, *, name: str = "a.o", symbol: str = "entrypoint", more: tuple[Section, ...] = ()
) -> ObjectFile:
    text = Section(".text", 1, ALLOCATED | EXECUTABLE, 0, 8, code)
    return ObjectFile(name, (text, *more), (Symbol(symbol, 0, 0, True),), ())


@pytest.mark.parametrize("version", VERSIONS)
def test_the_committed_program_is_the_one_whose_digest_is_committed(version: Version) -> None:
    blob = program_path(version).read_bytes()
    lines = (HERE / "market.sha256").read_text()
    assert f"{hashlib.sha256(blob).hexdigest()}  {program_path(version).name}\n" in lines


def test_the_sources_rebuild_to_the_committed_program_byte_for_byte() -> None:
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("ziglang, the compiler, is not installed: pip install ziglang==0.17.0")
    for version, blob in build.build().items():
        assert blob == program_path(version).read_bytes(), f"{program_path(version).name} differs from its sources"


def test_the_build_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert main(["--check"]) == 1
    assert "pip install ziglang" in capsys.readouterr().err


@pytest.mark.parametrize("version", VERSIONS)
def test_both_versions_load_through_the_real_loader_and_pay(world: World, version: Version) -> None:
    program = key(f"program v{version}")
    deploy(world.chain, world.genesis.root, program, program_path(version).read_bytes(), key("buffer"))
    world.market = type(world.market)(program.pubkey(), world.market.mint)
    escrow = world.open_escrow(500)
    world.send(world.settle(escrow, (world.node, 123)))
    assert world.tokens(world.node) == TOKENS + 123


@pytest.mark.parametrize("version", VERSIONS)
def test_a_corrupt_program_is_refused_by_the_loader(world: World, version: Version) -> None:
    code = bytearray(program_path(version).read_bytes())
    code[code.index(EXIT)] = 0xFF
    with pytest.raises(TransactionRefusedError, match=r"InvalidAccountData"):
        deploy(world.chain, world.genesis.root, Keypair.from_seed(b"\7" * 32), bytes(code), key("buffer"))


def test_the_smallest_program_runs(world: World) -> None:
    program = key("smallest")
    code = link([_object(struct.pack("<BBhi", 0xB7, 0, 0, 0) + EXIT)], 3)
    deploy(world.chain, world.genesis.root, program, code, key("buffer"))
    assert world.refusal(Instruction(program.pubkey(), b"", [])) is None


@pytest.mark.parametrize(
    ("name", "digest"),
    [("abort", 0xB6FC1A11), ("sol_log_", 0x207559BD), ("sol_invoke_signed_c", 0xA22B9C85), ("sol_sha256", 0x11F49D86)],
)
def test_system_calls_have_the_hashes_that_the_runtime_knows(name: str, digest: int) -> None:
    assert murmur3_32(name.encode()) == digest


@pytest.mark.parametrize("opcode", [0x04, 0x0C, 0x14, 0x1C, 0x24, 0x2C])
@pytest.mark.parametrize("version", VERSIONS)
def test_32_bit_arithmetic_is_refused_because_it_would_compute_something_else(opcode: int, version: Version) -> None:
    with pytest.raises(ProgramLinkError, match="-mcpu=v2"):
        link([_object(bytes([opcode]) + bytes(7) + EXIT)], version)


def test_an_immediate_that_looks_like_an_opcode_is_no_instruction() -> None:
    load = struct.pack("<BBhi", 0x18, 0, 0, 0x04) + struct.pack("<BBhi", 0x04, 0, 0, 0x04)
    link([_object(load + EXIT)], 3)


@pytest.mark.parametrize(("opcode", "version"), [(0xDB, 3), (0xC3, 0), (0x16, 0)])
def test_instructions_that_the_runtime_lacks_are_refused(opcode: int, version: Version) -> None:
    with pytest.raises(ProgramLinkError, match="instruction 0"):
        link([_object(bytes([opcode]) + bytes(7) + EXIT)], version)


def test_writable_globals_are_refused_by_name() -> None:
    data = Section(".data", 1, ALLOCATED | WRITABLE, 0, 8, b"12345678")
    with pytest.raises(ProgramLinkError, match=r"a\.o has 8 bytes in \.data"):
        link([_object(EXIT, more=(data,))], 3)


def test_a_name_defined_twice_or_nowhere_is_refused() -> None:
    with pytest.raises(ProgramLinkError, match=r"entrypoint is defined twice.*b\.o"):
        link([_object(EXIT), _object(EXIT, name="b.o")], 3)
    with pytest.raises(ProgramLinkError, match="no function 'entrypoint'"):
        link([_object(EXIT, symbol="main")], 3)


def test_data_that_no_object_defines_is_refused_by_name() -> None:
    load = Section(".text", 1, ALLOCATED | EXECUTABLE, 0, 8, bytes([0x18]) + bytes(15) + EXIT)
    lost = Symbol("lost", 0, 0, True)
    entry = Symbol("entrypoint", 1, 0, True)
    nothing = Section("", 0, 0, 0, 0, b"")
    unit = ObjectFile("a.o", (nothing, load), (entry, lost), (Relocation(1, 0, lost, 1),))
    with pytest.raises(ProgramLinkError, match=r"a\.o refers to lost"):
        link([unit], 3)


@pytest.mark.parametrize(
    ("blob", "why"),
    [(b"", "no 64-bit"), (b"\x7fELF\x01\x01" + bytes(60), "no 64-bit"), (b"\x7fELF\x02\x01" + bytes(60), "ELF type 0")],
)
def test_what_is_no_bpf_object_is_refused(blob: bytes, why: str) -> None:
    with pytest.raises(ProgramLinkError, match=why):
        read_object("odd.o", blob)


def test_c_and_python_agree_on_every_number() -> None:
    header = (HERE / "market.h").read_text()
    errors = {name: int(number) for name, number in re.findall(r"E_(\w+) = (\d+)", header)}
    assert errors == {error.name: error.value for error in MarketError}
    assert set(ERROR_TEXTS) == set(MarketError)
    defines = dict(re.findall(r"#define (\w+) (\d+)", header))
    ours = {
        "MAX_PAYEES": MAX_PAYEES,
        "MAX_GROWTH": MAX_GROWTH,
        "MAX_TABLE": MAX_TABLE,
        "MAX_BATCH": MAX_BATCH,
        "FRONTIER": FRONTIER,
        "REASONS": REASONS,
        "VERSION": VERSION,
    }
    assert {name: int(defines[name]) for name in ours} == ours
    consents = {name: int(number) for name, number in re.findall(r"CONSENT_(\w+) = (\d+)", header)}
    assert consents == {one.name: one.value for one in Consent}
    cases = re.findall(r"case (\d+): return (?:market_)?(\w+)\(call\)", (HERE / "entry.c").read_text())
    assert {name.upper(): int(number) for number, name in cases} == {one.name: one.value for one in Operation}


def test_the_layouts_have_the_sizes_that_the_program_allocates(world: World) -> None:
    stake = world.chain.account(world.open_stake(1))
    escrow = world.chain.account(world.open_escrow(1, b"\x2a" * 32, max_payees=5))
    assert stake is not None
    assert escrow is not None
    assert len(stake.data) == STAKE_SIZE
    assert len(escrow.data) == ESCROW_SIZE + 5 * PAYEE_SIZE
    assert escrow.data[JOB_OFFSET : JOB_OFFSET + 32] == b"\x2a" * 32
