"""Checks addresses, seeds and hashes at the door, and turns them into the types of ``solders``."""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass

from solders.keypair import Keypair
from solders.pubkey import Pubkey

from common.errors import WalletAddressError
from ledger.errors import AddressError
from protocol.wallets import any_address

KEY_LENGTH = 32
_AUDIT = b"cottage-audit-01"
_JOB_ID = re.compile(r"[0-9a-f]{32}")
_PLACE = struct.Struct(">IIBHIB")  # Epoch, round, stage, replica, step, and what says that it is one.
_PLACE_MARK = 0xC1


@dataclass(frozen=True)
class StepPlace:
    """A committed step of a job, as a bonded dispute names it; the place after a round's last step is its outer step.

    ``step``: counted from 0 within the round, like the others.
    """

    job: str
    epoch: int
    round: int
    stage: int
    replica: int
    step: int

    @property
    def bytes(self) -> bytes:
        """The 32 bytes by which the ledger knows it (``place_of`` reads them back).

        Raises:
            AddressError: a number that no job of this network has.
        """
        if not _JOB_ID.fullmatch(self.job):
            raise AddressError(f"{self.job[:60]!r} is no job id: expected 32 hexadecimal digits in lower case")
        try:
            numbers = _PLACE.pack(self.epoch, self.round, self.stage, self.replica, self.step, _PLACE_MARK)
        except struct.error as error:
            raise AddressError(f"{self} names no step: {error}") from error
        return bytes.fromhex(self.job) + numbers


def place_of(content: bytes) -> StepPlace | None:
    """The committed step that a dispute is about; None where it is about something else."""
    if len(content) != KEY_LENGTH or content[-1] != _PLACE_MARK:
        return None
    return StepPlace(content[:16].hex(), *_PLACE.unpack(content[16:])[:-1])


def parse_address(text: str) -> Pubkey:
    """Read a base-58 address.

    Raises:
        AddressError: not the base-58 text of 32 bytes.
    """
    try:
        return Pubkey.from_string(text)
    except ValueError:
        pass
    try:
        return Pubkey.from_string(any_address(text))
    except WalletAddressError as error:
        raise AddressError(str(error)) from error


def keypair(seed: bytes) -> Keypair:
    """The Ed25519 key pair of a 32-byte seed.

    Raises:
        AddressError: the seed has another length; its bytes are not shown.
    """
    if len(seed) != KEY_LENGTH:
        raise AddressError(f"a seed of {len(seed)} bytes: an Ed25519 seed has {KEY_LENGTH}")
    return Keypair.from_seed(seed)


def address_of(seed: bytes) -> str:
    """The address that belongs to a seed."""
    return str(keypair(seed).pubkey())


def job_id(text: str) -> str:
    """A job's id as somebody typed it, in the form that everything else takes.

    Raises:
        AddressError: it is none.
    """
    plain = text.replace("-", "").lower()
    if not _JOB_ID.fullmatch(plain):
        raise AddressError(f"{text[:60]!r} is no job id: expected 32 hexadecimal digits")
    return plain


def job_bytes(job_id: str) -> bytes:
    """The 32 bytes by which the ledger knows a job.

    Args:
        job_id: the coordinator's id, 32 lower-case hexadecimal digits.
    Raises:
        AddressError: anything else.
    """
    if not _JOB_ID.fullmatch(job_id):
        raise AddressError(f"{job_id[:60]!r} is no job id: expected 32 hexadecimal digits in lower case")
    return hashlib.sha256(b"cottage-job:" + job_id.encode()).digest()


def audit_bytes(audit: str) -> bytes:
    """The 32 bytes by which the ledger knows an audit, from which its id can be read back (``audit_of``).

    Args:
        audit: the coordinator's id, 32 lower-case hexadecimal digits.
    Raises:
        AddressError: anything else.
    """
    if not _JOB_ID.fullmatch(audit):
        raise AddressError(f"{audit[:60]!r} is no audit: expected 32 hexadecimal digits in lower case")
    return bytes.fromhex(audit) + _AUDIT


def subject_bytes(subject: str) -> bytes:
    """What a dispute is about: an audit's id, or the 64 hexadecimal digits of a ``StepPlace``.

    Raises:
        AddressError: anything else.
    """
    if re.fullmatch(r"[0-9a-f]{64}", subject):
        return bytes.fromhex(subject)
    return audit_bytes(subject)


def audit_of(content: bytes) -> str | None:
    """The audit's id in what a dispute is about; None where that was made by other rules."""
    return content[:16].hex() if len(content) == KEY_LENGTH and content[16:] == _AUDIT else None


def check_job(job: bytes) -> bytes:
    """Check that ``job`` is what ``job_bytes`` returns: 32 bytes.

    Raises:
        AddressError: another length.
    """
    if len(job) != KEY_LENGTH:
        raise AddressError(f"a job of {len(job)} bytes: pass job_bytes(job_id), {KEY_LENGTH} bytes")
    return job


def check_hash(digest: bytes) -> bytes:
    """Check that ``digest`` is a SHA-256 digest that stands for something.

    Raises:
        AddressError: another length than 32 bytes, or all zero.
    """
    if len(digest) != KEY_LENGTH or not any(digest):
        raise AddressError(f"{digest[:40].hex()!r} is no digest: expected {KEY_LENGTH} bytes, not all zero")
    return digest
