"""The node's key and settings as one encrypted file, and the key as 24 words.

The file is JSON: scrypt (RFC 7914) makes a key of the passphrase, AES-256-GCM (NIST SP 800-38D) encrypts with it and binds the
readable head. The words are the 32 bytes of the key's seed with a checksum of 8 bits, by BIP-39's English list: they restore
this node in Cottage. Other wallets derive another key from the same words, so they are not for them; ``node.key`` itself has
the format of ``solana-keygen``, which they read.
"""

import base64
import os
import secrets
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from mnemonic import Mnemonic
from msgspec import Meta

from common.errors import TransportError
from common.system_words import reason
from desktop.agent.base.config import Home, Settings
from desktop.agent.base.gpu import detect, total_memory_mb
from desktop.agent.errors import SettingsError
from desktop.agent.lending.keeper import load, store
from desktop.agent.lending.rules import Rules
from protocol.codec import MessageError, decode_json, encode_json
from protocol.identity import NodeKey

COST = 2**17  # 128 MB and a third of a second: OWASP's first choice for scrypt.
BLOCK = 8
MIN_PASSPHRASE = 8
MAX_FILE = 1 << 20
WORDS = 24

Seed = Annotated[bytes, Meta(min_length=32, max_length=32)]


class Sealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file. ``address``: whose it is, for its owner; ``cost``, ``salt``: scrypt's; ``data``: a sealed ``BackupContent``."""

    cottage: Literal["node backup 1"]
    address: Annotated[str, Meta(max_length=44)]
    cost: Annotated[int, Meta(ge=2**14, le=2**20)]
    salt: Annotated[bytes, Meta(min_length=16, max_length=16)]
    nonce: Annotated[bytes, Meta(min_length=12, max_length=12)]
    data: Annotated[bytes, Meta(max_length=MAX_FILE)]


class BackupContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a backup holds."""

    seed: Seed
    settings: Settings
    rules: Rules


def write(home: Home, file: Path, passphrase: str) -> str:
    """Write a backup of ``home``; returns the node's address.

    Raises:
        SettingsError: the passphrase is too short, the file exists or cannot be written, or the home is damaged.
    """
    if len(passphrase) < MIN_PASSPHRASE:
        raise SettingsError(
            f"a passphrase of {len(passphrase)} characters is guessed too soon: at least {MIN_PASSPHRASE}"
        )
    key = home.key()
    kept = BackupContent(key.seed, home.settings(), load(home.lending).rules)
    salt, nonce = secrets.token_bytes(16), secrets.token_bytes(12)
    data = AESGCM(_stretch(passphrase, salt, COST)).encrypt(nonce, encode_json(kept), _head(key.address, COST, salt))
    sealed = Sealed("node backup 1", key.address, COST, salt, nonce, data)
    try:
        with file.open("xb") as output:
            file.chmod(0o600)
            output.write(encode_json(sealed))
    except FileExistsError:
        raise SettingsError(f"{file} exists: a backup is never overwritten; choose another name") from None
    except OSError as error:
        raise SettingsError(f"{file} cannot be written: {reason(error)}") from error
    return key.address


def read(file: Path, passphrase: str) -> BackupContent:
    """Open a backup.

    Raises:
        SettingsError: it is no backup, is damaged, or the passphrase is another.
    """
    try:
        with file.open("rb") as source:
            sealed: Sealed = decode_json(source.read(MAX_FILE + 1), Sealed)
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {reason(error)}") from error
    except MessageError as error:
        raise SettingsError(f"{file} is no backup of a node: {error}") from error
    try:
        key = _stretch(passphrase, sealed.salt, sealed.cost)
        data = AESGCM(key).decrypt(sealed.nonce, sealed.data, _head(sealed.address, sealed.cost, sealed.salt))
        kept: BackupContent = decode_json(data, BackupContent)
    except InvalidTag:
        raise SettingsError(
            f"the passphrase does not open {file} (node {sealed.address}), or the file is damaged"
        ) from None
    except (MessageError, ValueError) as error:
        raise SettingsError(f"{file} was made by another version of Cottage: {error}") from error
    return kept


def restore(home: Home, kept: BackupContent) -> str:
    """Make ``home`` the node of a backup; returns its address. The same node's settings are replaced.

    Raises:
        SettingsError: another node lives there.
    """
    address = restore_key(home, NodeKey(kept.seed))
    home.remember(fitting(kept.settings))
    store(home.lending, kept.rules, 0.0)
    return address


def fitting(settings: Settings) -> Settings:
    """The settings without what only the computer of the backup had: its card, its processors, its memory."""
    gone = any(isinstance(card, str) and detect(card).gpu != card for card in settings.lent)
    return msgspec.structs.replace(
        settings,
        gpu=0 if gone else settings.gpu,
        cards=() if gone else settings.cards,
        resting=() if gone else settings.resting,
        threads=settings.threads if settings.threads <= (os.cpu_count() or 1) else 0,
        memory_mb=settings.memory_mb if settings.memory_mb <= total_memory_mb() else 0,
    )


def make_room(home: Home, key: NodeKey) -> None:
    """Put the key of a node that has done nothing yet aside, where ``key`` is another: it is kept beside.

    Raises:
        SettingsError: it cannot be put aside.
    """
    there, file = home.key(), home.path / "node.key"
    if there.address != key.address:
        try:
            file.rename(home.path / f"node-{there.address}.key")
        except OSError as error:
            raise SettingsError(f"{file} cannot be put aside: {reason(error)}") from error


def restore_key(home: Home, key: NodeKey) -> str:
    """Put ``key`` into ``home``; returns its address.

    Raises:
        SettingsError: another node lives there.
    """
    file = home.path / "node.key"
    try:
        if file.exists():
            there = NodeKey.load(file)
            if there.address != key.address:
                raise SettingsError(
                    f"{home.path} is the home of node {there.address}: restore {key.address} into another --home, "
                    f"or move {file} away"
                )
            return key.address
        key.save(file)
    except TransportError as error:
        raise SettingsError(str(error)) from error
    return key.address


def to_words(key: NodeKey) -> str:
    """The key as 24 words."""
    words: str = Mnemonic("english").to_mnemonic(key.seed)
    return words


def from_words(text: str) -> NodeKey:
    """The key that 24 words are.

    Raises:
        SettingsError: a word is unknown, one is missing, or they do not belong together.
    """
    book = Mnemonic("english")
    words = text.lower().split()
    unknown = [word for word in words if word not in book.wordlist]
    if unknown:
        close = [word for word in book.wordlist if word[:3] == unknown[0][:3]]
        hint = f": did you mean {', '.join(close[:3])}?" if close else ""
        raise SettingsError(f"{unknown[0][:20]!r} (word {words.index(unknown[0]) + 1}) is none of the words{hint}")
    if len(words) != WORDS:
        raise SettingsError(f"a node's key has {WORDS} words; these are {len(words)}")
    try:
        return NodeKey(bytes(book.to_entropy(words)))
    except ValueError:
        raise SettingsError("these words do not belong together: one is wrong, or two have changed places") from None


def _stretch(passphrase: str, salt: bytes, cost: int) -> bytes:
    return Scrypt(salt=salt, length=32, n=cost, r=BLOCK, p=1).derive(passphrase.encode())


def _head(address: str, cost: int, salt: bytes) -> bytes:
    return f"node backup 1|{address}|{cost}|{base64.b64encode(salt).decode()}".encode()
