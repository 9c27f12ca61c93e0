"""Whose an uploaded file is.

Artifacts have their SHA-256 for a name, and the ledger's pages publish some: knowing one is no right to it.
"""

from collections.abc import Callable, Iterable

from msgspec import UNSET

from common.clock import Clock
from coordinator.domain.account import LOCAL_ACCOUNT
from coordinator.domain.job import Job
from coordinator.errors import FullError, NotFoundError
from coordinator.services.accounts.budgets import ALL_SHARE, FILE_SHARE, MAX_FILES, MAX_FILES_KNOWN, MAX_FILES_OF_ALL
from coordinator.store.ports import Store, Transaction, col
from coordinator.store.records import FileRecord
from protocol.ids import Digest
from protocol.job.job import JobSpec, datasets_of
from protocol.rest.api import NewUpload

MAX_SHOWN_NAME = 80  # Characters of a file's name in a message.
COUNT_S = 600.0  # What all have is counted so often, and what comes in between is added.
RETRY_S = 3600.0
GIGABYTE = 10**9
CHECKED_TOGETHER = 500  # Files that are looked up at once; an array job names thousands.


class FileOwnership:
    """Over any store. The built-in account, which is the operator's, may use whatever lies there."""

    def __init__(self, store: Store, clock: Clock, disk: Callable[[], int] | None = None, days: int = 30) -> None:
        """``disk`` says how many bytes the disk has in all; None: as many as anybody likes. ``days``: that uploads stay."""
        self._days = days
        self._store = store
        self._clock = clock
        self._disk = disk
        self._counted = -COUNT_S
        self._known = {LOCAL_ACCOUNT}  # For good: they have trained a model.
        self._of_strangers = (0, 0)

    async def check_room(self, account_id: str, more: int, promised: int, files: int = 1) -> None:
        """See that an account may have ``more`` bytes in so many ``files`` beside those that it has.

        Args:
            promised: bytes that are on their way, of all accounts.
        Raises:
            FullError: it has its share, or all strangers have theirs, of the disk or in files.
        """
        if account_id == LOCAL_ACCOUNT or self._disk is None:
            return
        total = self._disk()
        async with self._store.transaction() as tx:
            known = bool(
                await tx.everywhere.find(Job, col(Job.account_id).equals(account_id), col(Job.paid) > 0, limit=1)
            )
            number, held = (
                await tx.sums(FileRecord, col(FileRecord.length), (), col(FileRecord.account_id).equals(account_id))
            ).get((), (0, 0))
        most = total * (2 if known else 1) // FILE_SHARE
        most_files = MAX_FILES_KNOWN if known else MAX_FILES
        if number + files > most_files or held + more > most:
            raise FullError(
                f"your {number:,} files have {held / GIGABYTE:,.1f} GB, and {most_files:,} files of "
                f"{most / GIGABYTE:,.1f} GB are what an account has here{'' if known else ' that has not trained a model yet'}: "
                f"files that no job names go after {self._days} days",
                RETRY_S,
                "length",
            )
        if not known:
            number, held = await self._strangers()
            if number + files > MAX_FILES_OF_ALL or held + promised > total // ALL_SHARE:
                raise FullError(
                    "accounts that have not trained a model yet have filled the room for their files: try again later",
                    RETRY_S,
                    "length",
                )

    async def _strangers(self) -> tuple[int, int]:
        """Files and bytes of accounts that are not known, as counted some minutes ago, with what has come since."""
        if self._clock.now() - self._counted >= COUNT_S:
            async with self._store.transaction() as tx:
                held = await tx.sums(FileRecord, col(FileRecord.length), (col(FileRecord.account_id),))
                for account in [str(account) for (account,) in held if account not in self._known]:
                    if await tx.everywhere.find(Job, col(Job.account_id).equals(account), col(Job.paid) > 0, limit=1):
                        self._known.add(account)
            found = [figures for (account,), figures in held.items() if account not in self._known]
            self._of_strangers = (sum(number for number, _ in found), sum(size for _, size in found))
            self._counted = self._clock.now()
        return self._of_strangers

    async def keep(self, account_id: str, artifact: Digest, new: NewUpload) -> None:
        """Note that an account has uploaded an artifact; a second time changes nothing."""
        purpose = "input" if new.purpose == "inputs" else new.purpose
        record = FileRecord(account_id, artifact, purpose, new.name, new.length, self._clock.time())
        async with self._store.transaction() as tx:
            if not await tx.find(
                FileRecord, col(FileRecord.account_id).equals(account_id), col(FileRecord.artifact).equals(artifact)
            ):
                await tx.insert(record)
                number, held = self._of_strangers
                self._of_strangers = (number + 1, held + new.length)

    async def check(self, account_id: str, wanted: Iterable[tuple[str, Digest]]) -> None:
        """See that every digest, given with its field, is a file of the account.

        Raises:
            NotFoundError: one is not, whether it is here or not.
        """
        if account_id == LOCAL_ACCOUNT:
            return
        fields = {digest: field for field, digest in wanted}
        digests = list(fields)
        async with self._store.transaction() as tx:
            for start in range(0, len(digests), CHECKED_TOGETHER):
                some = digests[start : start + CHECKED_TOGETHER]
                mine = col(FileRecord.account_id).equals(account_id)
                found = {one.artifact for one in await tx.find(FileRecord, mine, col(FileRecord.artifact).in_(some))}
                if missing := [digest for digest in some if digest not in found]:
                    detail = f"no artifact {missing[0][:80]!r} is here: upload it first"
                    raise NotFoundError(detail, fields[missing[0]])

    async def purpose(self, account_id: str, artifact: Digest) -> str | None:
        """What an account has uploaded a file for; None: it has not."""
        mine = col(FileRecord.account_id).equals(account_id)
        async with self._store.transaction() as tx:
            found = await tx.find(FileRecord, mine, col(FileRecord.artifact).equals(artifact))
        return found[0].purpose if found else None

    async def name(self, account_id: str, artifact: Digest) -> str:
        """What an account calls a file of its own, fit for a message; empty where it has given it no name."""
        async with self._store.transaction() as tx:
            return await _name(tx, account_id, artifact)


async def dataset_name(tx: Transaction, job: Job) -> str:
    """What a job's owner calls its dataset; empty where it has no name, or the job none."""
    if job.spec.dataset is None:
        return ""
    return await _name(tx, job.account_id, job.spec.dataset.artifact)


async def _name(tx: Transaction, account_id: str, artifact: Digest) -> str:
    found = await tx.find(
        FileRecord, col(FileRecord.account_id).equals(account_id), col(FileRecord.artifact).equals(artifact)
    )
    name = found[0].name if found else ""
    return "".join(character if character.isprintable() else "?" for character in name)[:MAX_SHOWN_NAME]


def sources(spec: JobSpec) -> list[tuple[str, Digest]]:
    """The uploaded files that a job names: field and digest."""
    found = [(f"{field}.artifact", one.artifact) for field, one in datasets_of(spec)]
    found += [("model.weights", digest) for digest in spec.model.weight_files]
    found += [("tokenizer.file", spec.tokenizer.file)] if spec.tokenizer.file is not None else []
    if spec.serve is not None and spec.serve.draft is not None:
        found += [("serve.draft.weights", digest) for digest in spec.serve.draft.weight_files]
    if spec.serve is not None and spec.serve.draft_tokenizer is not UNSET:
        found.append(("serve.draft_tokenizer", spec.serve.draft_tokenizer))
    if (array := spec.array) is not None:
        found += [("array.image", array.image), ("array.elements", array.elements)]
        if array.checker is not None and array.checker.image is not None:
            found += [("array.checker.image", array.checker.image)]
        found += [(f"array.inputs.{path}", digest) for path, digest in array.inputs.items()]
    return found
