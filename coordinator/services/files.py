"""Whose an uploaded file is.

Artifacts have their SHA-256 for a name, and the ledger's pages publish some: knowing one is no right to it.
"""

from collections.abc import Iterable

from coordinator.domain.account import LOCAL_ACCOUNT
from coordinator.errors import NotFoundError
from coordinator.store.ports import Store
from coordinator.store.records import FileRecord
from transport.clock import Clock
from transport.wire.api import NewUpload
from transport.wire.ids import Digest
from transport.wire.job import JobSpec

MAX_SHOWN_NAME = 80  # Characters of a file's name in a message.


class Files:
    """Over any store. The built-in account, which is the operator's, may use whatever lies there."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def keep(self, account_id: str, artifact: Digest, new: NewUpload) -> None:
        """Note that an account has uploaded an artifact; a second time changes nothing."""
        record = FileRecord(account_id, artifact, new.purpose, new.name, new.length, self._clock.time())
        async with self._store.transaction() as tx:
            if not await tx.find(FileRecord, ("account_id", "=", account_id), ("artifact", "=", artifact)):
                await tx.insert(record)

    async def check(self, account_id: str, wanted: Iterable[tuple[str, Digest]]) -> None:
        """See that every digest, given with its field, is a file of the account.

        Raises:
            NotFoundError: one is not, whether it is here or not.
        """
        if account_id == LOCAL_ACCOUNT:
            return
        async with self._store.transaction() as tx:
            for field, digest in wanted:
                if not await tx.find(FileRecord, ("account_id", "=", account_id), ("artifact", "=", digest)):
                    raise NotFoundError(f"no artifact {digest[:80]!r} is here: upload it first", field)

    async def name(self, account_id: str, artifact: Digest) -> str:
        """What an account calls a file of its own, fit for a message; empty where it has given it no name."""
        async with self._store.transaction() as tx:
            found = await tx.find(FileRecord, ("account_id", "=", account_id), ("artifact", "=", artifact))
        name = found[0].name if found else ""
        return "".join(character if character.isprintable() else "?" for character in name)[:MAX_SHOWN_NAME]


def sources(spec: JobSpec) -> list[tuple[str, Digest]]:
    """The uploaded files that a job names: field and digest."""
    found = [("dataset.artifact", spec.dataset.artifact)]
    found += [("model.weights", digest) for digest in spec.model.weight_files]
    found += [("tokenizer.file", spec.tokenizer.file)] if spec.tokenizer.file is not None else []
    return found
