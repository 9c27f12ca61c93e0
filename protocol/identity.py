"""A node is its Ed25519 key: the same 32 bytes are its address among peers and on the ledger."""

import contextlib
import json
import os
import secrets
import sys
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from common import base58
from common.errors import BadAddressError, BadSignatureError, KeyFileError
from common.system_words import reason

ADDRESS_BYTES = 32
SIGNATURE_BYTES = 64
MAX_CONTEXT_BYTES = 64  # A context is a short constant such as "cottage/signal/1".
MAX_KEY_FILE_BYTES = 4096  # 64 numbers with commas take under 400; a larger file is something else.

# 0xff opens neither a Solana transaction (its first byte counts signatures or names a version up to 127) nor
# anything else this key signs, so no signature made here can be replayed as a payment.
_PREFIX = b"\xffcottage-signature-1"

# Points of order 1, 2, 4 and 8: under such a "key" one signature fits many messages. Among them is the address
# of Solana's system program (32 zero bytes). The sign bit is masked before comparing.
_SMALL_ORDER = frozenset(
    bytes.fromhex(text)
    for text in (
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
    )
)


def parse_address(address: str) -> bytes:
    """Return the 32 public bytes behind an address.

    Raises:
        BadAddressError: not base58 of 32 bytes, or a point that cannot be an honest key.
    """
    public = base58.decode(address, ADDRESS_BYTES)
    if public[:31] + bytes([public[31] & 0x7F]) in _SMALL_ORDER:
        raise BadAddressError(f"{address} is a point of small order: no node can have it as its key")
    return public


def signed_bytes(context: str, *parts: bytes) -> bytes:
    """Encode what a signature covers: every part with its length, so that parts cannot be cut differently.

    Raises:
        ValueError: the context is empty or longer than ``MAX_CONTEXT_BYTES`` bytes.
    """
    name = context.encode()
    if not 1 <= len(name) <= MAX_CONTEXT_BYTES:
        raise ValueError(f"signature context {context!r} must have 1 to {MAX_CONTEXT_BYTES} bytes")
    pieces = [_PREFIX, len(name).to_bytes(1, "big"), name, len(parts).to_bytes(4, "big")]
    for part in parts:
        pieces += (len(part).to_bytes(8, "big"), part)
    return b"".join(pieces)


def verify(address: str, signature: bytes, context: str, *parts: bytes) -> None:
    """Check a signature made by ``NodeKey.sign``.

    Raises:
        BadAddressError: ``address`` is none.
        BadSignatureError: the signature does not fit address, context and parts.
    """
    public = parse_address(address)
    if len(signature) != SIGNATURE_BYTES:
        raise BadSignatureError(f"a signature has {SIGNATURE_BYTES} bytes, this one {len(signature)}")
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, signed_bytes(context, *parts))
    except InvalidSignature:
        raise BadSignatureError(f"the signature for {context!r} is not by {address}") from None


class NodeKey:
    """The secret of one node."""

    def __init__(self, seed: bytes) -> None:
        """Take a seed of 32 bytes.

        Raises:
            ValueError: another length.
        """
        if len(seed) != 32:
            raise ValueError(f"a key seed has 32 bytes, not {len(seed)}")
        self._seed = seed
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self._public = self._key.public_key().public_bytes_raw()
        self._address = base58.encode(self._public)

    @classmethod
    def generate(cls) -> "NodeKey":
        """Make a fresh key from the operating system's randomness."""
        return cls(secrets.token_bytes(32))

    def card(self, name: str) -> "NodeKey":
        """The key of a further card of this node's computer: the same each time, so that whoever has this key has that one, too.

        Source: HKDF with SHA-256 (RFC 5869), of the seed, with the card's name as what it is for.
        """
        derived = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"cottage card\x00" + name.encode())
        return NodeKey(derived.derive(self._seed))

    @property
    def seed(self) -> bytes:
        """The 32 secret bytes; ``solders.Keypair.from_seed`` makes the same key of them."""
        return self._seed

    @property
    def public(self) -> bytes:
        """The 32 public bytes."""
        return self._public

    @property
    def address(self) -> str:
        """Base58 of the public bytes: the Solana address and the address among peers."""
        return self._address

    def sign(self, context: str, *parts: bytes) -> bytes:
        """Sign ``parts`` for one purpose; a signature for one context is void in any other.

        Returns:
            64 bytes.
        Raises:
            ValueError: ``context`` is empty or too long.
        """
        return self._key.sign(signed_bytes(context, *parts))

    def __repr__(self) -> str:
        return f"NodeKey({self._address})"

    def save(self, path: Path) -> None:
        """Write the key where nobody else can read it, all or nothing, in the format of ``solana-keygen``.

        Raises:
            KeyFileError: the file exists (a lost key is lost money) or cannot be written.
        """
        text = json.dumps(list(self._seed + self._public)).encode()
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write_private(draft, text)
            _move_without_overwriting(draft, path)
        except OSError as error:
            raise KeyFileError(f"cannot write the key to {path}: {reason(error)}") from error
        finally:
            with contextlib.suppress(OSError):
                draft.unlink()

    @classmethod
    def load(cls, path: Path) -> "NodeKey":
        """Read a key that ``save`` or ``solana-keygen`` wrote.

        Raises:
            KeyFileError: no such file, readable by others, or not a key.
        """
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                text = file.read(MAX_KEY_FILE_BYTES + 1)
        except OSError as error:
            raise KeyFileError(f"cannot read the key {path}: {reason(error)}") from error
        if sys.platform != "win32" and mode & 0o077:
            raise KeyFileError(f"{path} is readable by others: run chmod 600 {path}, and make a new key if it leaked")
        return _parse_key(text, path)

    @classmethod
    def load_or_generate(cls, path: Path) -> "NodeKey":
        """Read the key at ``path``; make and save one where none is. Of several that do so at once all get the same.

        Raises:
            KeyFileError: as ``load`` and ``save``.
        """
        if path.exists():
            return cls.load(path)
        key = cls.generate()
        try:
            key.save(path)
        except KeyFileError:
            if not path.exists():
                raise
            return cls.load(path)  # Another process was quicker, and files appear whole.
        return key


def _parse_key(text: bytes, path: Path) -> NodeKey:
    try:
        numbers = json.loads(text[:MAX_KEY_FILE_BYTES])
        raw = bytes(numbers) if isinstance(numbers, list) else b""
    except (ValueError, TypeError, RecursionError):
        raw = b""
    if len(raw) != 64:
        raise KeyFileError(f"{path} is not a key file: expected a JSON list of 64 bytes")
    key = NodeKey(raw[:32])
    if key.public != raw[32:]:
        raise KeyFileError(f"{path} is damaged: its public half is not that of its secret half")
    return key


def _write_private(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _move_without_overwriting(draft: Path, path: Path) -> None:
    """Give ``draft`` its final name, or raise KeyFileError if another file has it."""
    try:
        if sys.platform == "win32":
            draft.rename(path)  # Windows refuses to rename onto a file.
            return
        os.link(draft, path)
    except FileExistsError:
        raise KeyFileError(f"{path} already holds a key: move it away before saving another") from None
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
