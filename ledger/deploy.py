"""Deploys the market program to a cluster, or upgrades it, through the upgradeable loader: ``cottage ledger deploy``.

Every step looks first at what the cluster has, so that a deployment that was cut anywhere goes on where it stopped:
program and buffers have addresses that follow from one secret, kept in a file before anything is sent. The buffer is
read back and only the chunks that differ are written.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from common.options import whole
from common.system_words import in_words
from common.terminal import say
from ledger.addresses import parse_address
from ledger.connection import Connection
from ledger.errors import AddressError, DeployError, LedgerError, TransactionExpiredError
from ledger.program import loader
from ledger.program.build import VERSIONS, program_path
from ledger.program.codes import REVISION
from ledger.program.elf import ObjectFile, Section, Symbol
from ledger.program.interface import MarketAddresses
from ledger.program.layout import read_terms
from ledger.program.link import Version, link
from ledger.sender import CONFIRM_TIMEOUT_S, Sender

MAX_AT_ONCE = 8  # Transactions under way together: quick, and below what public endpoints take for flooding.
MAX_ROUNDS = 20  # Of writing what is still missing: a cluster that drops half of everything needs seven.
FEE_LAMPORTS = 5000
SLOT_POLL_S, SLOT_POLLS = 0.1, 600  # A minute; a slot takes 0.4 s.
DEFAULT_TERMS = {
    "slash_bps": 5000,
    "challenger_bps": 5000,
    "cooldown": 86_400,
    "window": 86_400,
    "verdict_time": 86_400,
    "bond": 5_000_000,
}
_NEWEST: Version = 3
_OLDEST: Version = 0

Say = Callable[[str], None]


@dataclass(frozen=True)
class DeployTerms:
    """The market's terms, set while the deployer still may. See ``MarketAddresses.configure`` for their meaning and units."""

    mint: Pubkey
    treasury: Pubkey
    slash_bps: int = DEFAULT_TERMS["slash_bps"]
    challenger_bps: int = DEFAULT_TERMS["challenger_bps"]
    cooldown: int = DEFAULT_TERMS["cooldown"]
    window: int = DEFAULT_TERMS["window"]
    verdict_time: int = DEFAULT_TERMS["verdict_time"]
    bond: int = DEFAULT_TERMS["bond"]


@dataclass(frozen=True)
class Deployed:
    """A program on a cluster: its address, its sBPF version, its digest, and who may upgrade it."""

    program: str
    version: Version
    sha256: str
    authority: str | None


class Deployer:
    """One deployment. ``secret`` (32 bytes) decides all addresses; ``payer`` pays and is the first authority."""

    def __init__(self, connection: Connection, payer: Keypair, secret: bytes, say: Say = lambda _: None) -> None:
        self._connection, self._payer, self._secret, self._say = connection, payer, secret, say
        self._program = self._key("program")
        self._sender = Sender(connection, self._program.pubkey())

    @property
    def program(self) -> Pubkey:
        """Where the program is, or will be."""
        return self._program.pubkey()

    def _key(self, name: str) -> Keypair:
        return Keypair.from_seed(hashlib.sha256(b"cottage-deploy:" + name.encode() + self._secret).digest())

    async def run(self, authority: Pubkey | None, terms: DeployTerms | None = None) -> Deployed:
        """Deploy or upgrade, set terms, hand over; does whatever of it has not been done.

        Args:
            authority: who may upgrade the program and change its terms afterwards; None for nobody, ever.
            terms: what to configure; None to leave that to the authority. Terms that stand stay as they are.
        Raises:
            DeployError: the payer has too little, or at the address is another program that it may not upgrade.
        """
        present = await self._connection.accounts([self.program, loader.data_address(self.program)])
        entry, data = present
        version = None if data is None else _version_of(data.data)
        if entry is None or data is None or not entry.executable:
            version = await self._accepted_version()
            await self._deploy(version)
        elif version is None:
            version = await self._accepted_version()
            await self._upgrade(version, data.data)
        else:
            self._say(f"program {self.program} is deployed already")
        if terms is not None:
            await self._configure(terms)
        await self._hand_over(authority)
        digest = hashlib.sha256(program_path(version).read_bytes()).hexdigest()
        return Deployed(str(self.program), version, digest, None if authority is None else str(authority))

    async def _accepted_version(self) -> Version:
        """The newest sBPF version whose smallest program the cluster would deploy; tried out without sending."""
        owner, buffer, program = self._payer, self._key("probe buffer"), self._key("probe")
        code = _smallest(_NEWEST)
        rents = [await self._connection.rent(size) for size in (loader.BUFFER_HEADER + len(code), loader.PROGRAM_SIZE)]
        instructions = [
            *loader.create_buffer(owner.pubkey(), buffer.pubkey(), len(code), rents[0]),
            loader.write_chunk(owner.pubkey(), buffer.pubkey(), code, 0),
            *loader.deploy_buffer(owner.pubkey(), program.pubkey(), buffer.pubkey(), len(code), rents[1]),
        ]
        blockhash, _ = await self._connection.blockhash()
        message = MessageV0.try_compile(owner.pubkey(), instructions, [], blockhash)
        error, logs = await self._connection.trial(VersionedTransaction(message, [owner, buffer, program]))
        if error is None:
            return _NEWEST
        if any("sbpf_version" in line or "not enabled" in line for line in logs) or "InvalidAccountData" in error:
            self._say(f"the cluster takes no sBPF version {_NEWEST}: deploying version {_OLDEST}")
            return _OLDEST
        raise DeployError(f"{self._connection.url} would not deploy anything: {error}; {' / '.join(logs[-3:])}")

    async def _deploy(self, version: Version) -> None:
        owner, code, buffer = self._payer.pubkey(), _code(version), self._key(f"buffer {version}")
        await self._write(code, buffer)
        rent = await self._connection.rent(loader.PROGRAM_SIZE)
        self._say(f"deploying {self.program}")
        await self._send(loader.deploy_buffer(owner, self.program, buffer.pubkey(), len(code), rent), [self._program])

    async def _upgrade(self, version: Version, data: bytes) -> None:
        """Put this code in the place of another program's; jobs, stakes and disputes of that one go on."""
        owner, code = self._payer.pubkey(), _code(version)
        authority = _authority_in(data)
        if authority != owner:
            raise DeployError(
                f"{self.program} holds another program than this Cottage, and {authority or 'nobody'} may upgrade it: "
                "sign with that key, or use another --keys file, and let the jobs there end with the version that began them"
            )
        buffer = self._key(f"buffer {hashlib.sha256(code).hexdigest()}")
        await self._write(code, buffer)
        more = len(code) - (len(data) - loader.DATA_HEADER)
        if more > 0:
            await self._send([loader.extend(owner, self.program, more)], [])
            await self._next_slot()
        self._say(f"upgrading {self.program}")
        await self._send([loader.upgrade(owner, self.program, buffer.pubkey())], [])
        await self._next_slot()

    async def _next_slot(self) -> None:
        """A program changes once in a slot, and is called from the next one on."""
        seen = await self._connection.slot()
        for _ in range(SLOT_POLLS):
            if await self._connection.slot() > seen:
                return
            await asyncio.sleep(SLOT_POLL_S)
        raise DeployError(f"{self._connection.url} has made no slot after {seen}: run the command again later")

    async def _write(self, code: bytes, buffer: Keypair) -> None:
        held = (await self._connection.accounts([buffer.pubkey()]))[0]
        if held is None:
            rent = await self._connection.rent(loader.BUFFER_HEADER + len(code))
            await self._check_funds(rent, len(code))
            await self._send(loader.create_buffer(self._payer.pubkey(), buffer.pubkey(), len(code), rent), [buffer])
        await self._fill(buffer.pubkey(), code)

    async def _check_funds(self, rent: int, size: int) -> None:
        account = (await self._connection.accounts([self._payer.pubkey()]))[0]
        held = 0 if account is None else account.lamports
        needed = (
            rent + await self._connection.rent(loader.PROGRAM_SIZE) + FEE_LAMPORTS * (size // loader.WRITE_CHUNK + 8)
        )
        if held < needed:
            raise DeployError(f"{self._payer.pubkey()} holds {held} lamports, {needed} are needed: fund it")

    async def _fill(self, buffer: Pubkey, code: bytes) -> None:
        """Write until the buffer reads back as the code."""
        for _ in range(MAX_ROUNDS):
            account = (await self._connection.accounts([buffer]))[0]
            if account is None:
                raise DeployError(f"the buffer {buffer} vanished: was it closed? Start again with another --keys file")
            written = account.data[loader.BUFFER_HEADER :]
            missing = [
                offset
                for offset in range(0, len(code), loader.WRITE_CHUNK)
                if written[offset : offset + loader.WRITE_CHUNK] != code[offset : offset + loader.WRITE_CHUNK]
            ]
            if not missing:
                return
            self._say(f"writing {len(missing)} of {-(-len(code) // loader.WRITE_CHUNK)} chunks into {buffer}")
            for start in range(0, len(missing), MAX_AT_ONCE):
                part = missing[start : start + MAX_AT_ONCE]
                writes = (self._write_chunk(buffer, code, offset) for offset in part)
                for result in await asyncio.gather(*writes, return_exceptions=True):
                    if result is not None:
                        raise result
        raise DeployError(f"{MAX_ROUNDS} rounds did not fill the buffer {buffer}: run the command again later")

    async def _write_chunk(self, buffer: Pubkey, code: bytes, offset: int) -> None:
        try:
            await self._send([loader.write_chunk(self._payer.pubkey(), buffer, code, offset)], [])
        except TransactionExpiredError:
            return  # The next round sees that it is missing.

    async def _configure(self, terms: DeployTerms) -> None:
        market = MarketAddresses(self.program, terms.mint)
        account = (await self._connection.accounts([market.terms()]))[0]
        known = None if account is None else read_terms(account.data)
        if known is not None and known.revision >= REVISION:
            self._say("the terms are set already")
            return
        if known is not None:  # Those of a program from before: they stay, and tell that there is a newer one.
            names = ("slash_bps", "challenger_bps", "cooldown", "window", "verdict_time", "bond")
            terms = DeployTerms(terms.mint, known.treasury, **{name: getattr(known, name) for name in names})
        configure = market.configure(
            self._payer.pubkey(),
            terms.treasury,
            slash_bps=terms.slash_bps,
            challenger_bps=terms.challenger_bps,
            cooldown=terms.cooldown,
            window=terms.window,
            verdict_time=terms.verdict_time,
            bond=terms.bond,
        )
        await self._send([configure], [])
        self._say(f"the terms for token {terms.mint} are set")

    async def _hand_over(self, authority: Pubkey | None) -> None:
        account = (await self._connection.accounts([loader.data_address(self.program)]))[0]
        if account is None:
            raise DeployError(f"{self.program} has no code: run the command again")
        present = _authority_in(account.data)
        if present == authority:
            return
        if present != self._payer.pubkey():
            raise DeployError(f"{present or 'nobody'} may upgrade {self.program}: only that key can hand it over")
        await self._send([loader.set_authority(self._payer.pubkey(), self.program, authority)], [])
        self._say(f"upgrade authority: {authority or 'none, for ever'}")

    async def _send(self, instructions: Sequence[Instruction], others: Sequence[Keypair]) -> None:
        prepared = (await self._sender.window()).sign(self._payer, instructions, others)
        await self._sender.confirm(prepared, CONFIRM_TIMEOUT_S)


def _code(version: Version) -> bytes:
    return program_path(version).read_bytes()


def _version_of(data: bytes) -> Version | None:
    """Which build of this Cottage a program's data account holds; None for another program."""
    held = data[loader.DATA_HEADER :].rstrip(b"\0")
    return next((version for version in VERSIONS if _code(version).rstrip(b"\0") == held), None)


def _authority_in(data: bytes) -> Pubkey | None:
    """Who may upgrade, from a program's data account."""
    return Pubkey.from_bytes(data[13:45]) if data[12] else None


def _smallest(version: Version) -> bytes:
    """A program that does nothing: ``r0 = 0; exit``."""
    code = bytes([0xB7]) + bytes(7) + bytes([0x95]) + bytes(7)
    text = Section(".text", 1, 6, 0, 8, code)
    return link([ObjectFile("probe", (text,), (Symbol("entrypoint", 0, 0, True),), ())], version)


def read_keypair(path: Path) -> Keypair:
    """A key from a file: 64 hexadecimal digits, or the list of 64 numbers that Solana's own tools write.

    Raises:
        AddressError: neither.
    """
    text = path.read_text().strip()
    try:
        if text.startswith("["):
            return Keypair.from_bytes(bytes(json.loads(text)))
        return Keypair.from_seed(bytes.fromhex(text))
    except (ValueError, TypeError) as error:
        raise AddressError(f"{path} holds no key: expected 64 hexadecimal digits or a list of 64 numbers") from error


def keep_secret(path: Path) -> bytes:
    """The secret in ``path``, made and written down (readable by its owner alone) where there is none yet."""
    if not path.exists():
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_bytes(32).hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
    return bytes(read_keypair(path))[:32]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns 0, or 1 with a message on standard error."""
    arguments = parser().parse_args(argv)
    try:
        done = asyncio.run(_run(arguments))
    except (LedgerError, OSError) as error:
        say(f"{in_words(error)}\nRun the same command again to go on.", error=True)
        return 1
    say(f"program {done.program}\nsBPF version {done.version}, SHA-256 {done.sha256}")
    say(f"upgrade authority {done.authority or 'none'}")
    return 0


async def _run(arguments: argparse.Namespace) -> Deployed:
    successor = None if arguments.authority == "none" else parse_address(arguments.authority)
    terms = None
    if arguments.mint and arguments.treasury:
        chosen = {name: getattr(arguments, name) for name in DEFAULT_TERMS}
        terms = DeployTerms(parse_address(arguments.mint), parse_address(arguments.treasury), **chosen)
    elif successor is None:
        raise DeployError("with --authority none nobody can set terms later: give --mint and --treasury now")
    payer, secret = read_keypair(arguments.payer), keep_secret(arguments.keys)
    connection = Connection(arguments.cluster)
    try:
        deployer = Deployer(connection, payer, secret, _say)
        return await deployer.run(successor, terms)
    finally:
        await connection.aclose()


def _say(line: str) -> None:
    say(line, error=True)


def parser() -> argparse.ArgumentParser:
    """The options of ``cottage ledger deploy``."""
    parser = argparse.ArgumentParser(prog="cottage ledger deploy", description="Deploy the market program; resumable.")
    parser.add_argument("--cluster", required=True, help="JSON-RPC address")
    parser.add_argument("--authority", required=True, help="who may upgrade it afterwards: none, or an address")
    parser.add_argument("--payer", type=Path, required=True, help="file with the key that pays")
    parser.add_argument(
        "--keys", type=Path, default=Path("market-deploy.key"), help="file with the deployment's secret"
    )
    parser.add_argument("--mint", help="token whose terms to set")
    parser.add_argument("--treasury", help="token account that receives slashed stake")
    for name, value in DEFAULT_TERMS.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", dest=name, type=whole, default=value, help=f"default {value}"
        )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
