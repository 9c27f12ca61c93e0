"""Passwords as argon2id hashes (RFC 9106, the second recommended choice), computed beside the event loop, a few at a time."""

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Final, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from coordinator.errors import InvalidError, TooManyError
from coordinator.services.accounts.budgets import MAX_HASHES

MIN_CHARACTERS = 10
MAX_CHARACTERS = 200  # Nobody hashes a novel on our processor.
AT_ONCE = 2  # 64 MiB and a core each.
RETRY_S = 5.0  # As many as wait are hashed within it.

T = TypeVar("T")

_HASHER: Final = PasswordHasher()


@cache
def _nobodys(hasher: PasswordHasher) -> str:
    """A hash to compare with where there is no account, so that it takes as long."""
    return hasher.hash("nobody has this password")


class Passwords:
    """``hasher``: tests bring a cheaper one."""

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._hasher: Final = hasher or _HASHER
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0
        self._nobodys = _nobodys(self._hasher)

    async def hash(self, password: str) -> str:
        """The hash to keep, with its parameters and salt (PHC format).

        Raises:
            InvalidError: too short, or too long. TooManyError: too many others wait for theirs.
        """
        if not MIN_CHARACTERS <= len(password) <= MAX_CHARACTERS:
            raise InvalidError(
                f"the password has {len(password)} characters: choose {MIN_CHARACTERS} to {MAX_CHARACTERS}", "password"
            )
        return await self._in_turn(lambda: self._hasher.hash(password))

    async def matches(self, kept: str, password: str) -> bool:
        """Whether the password is the one that was hashed; takes as long where there is no hash (``kept`` empty).

        Raises:
            TooManyError: too many others wait for theirs.
        """
        right = await self._in_turn(lambda: self._verify(kept or self._nobodys, password[: MAX_CHARACTERS + 1]))
        return right and bool(kept)

    def outdated(self, kept: str) -> bool:
        """Whether it should be hashed again with today's parameters."""
        return bool(kept) and self._hasher.check_needs_rehash(kept)

    async def _in_turn(self, work: Callable[[], T]) -> T:
        if self._waiting >= MAX_HASHES:
            raise TooManyError(f"{MAX_HASHES} others are signing in: try again in a moment", RETRY_S)
        self._waiting += 1
        try:
            async with self._turn:
                return await asyncio.to_thread(work)
        finally:
            self._waiting -= 1

    def _verify(self, kept: str, password: str) -> bool:
        try:
            return self._hasher.verify(kept, password)
        except (VerificationError, InvalidHashError):
            return False
