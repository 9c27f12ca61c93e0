"""What coordinators have promised this node on the ledger, kept on its own disk: enough to be paid without any of them."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from common.system_words import reason
from desktop.agent.base.log import LOG
from desktop.agent.errors import SettingsError
from protocol.codec import MessageError, decode_json, encode_json
from protocol.merkle import MerkleProof
from protocol.node import LedgerInfo, Promised

MAX_OF_JOB = 4  # The ledger holds the newest root of a job; a few older ones may still be it while that is on its way.
MAX_BYTES = 64 << 10


class KeptPromise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A promise, and the ledger that it was made on."""

    ledger: LedgerInfo
    promised: Promised

    @property
    def proof(self) -> MerkleProof:
        """As the ledger takes it."""
        return MerkleProof(self.promised.index, self.promised.count, self.promised.path)


class PromiseFolder:
    """A folder with one file for each promise that may still be claimed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, ledger: LedgerInfo, promised: Promised) -> None:
        """Write a promise down; the smallest one of its job goes where there are too many."""
        path = self._folder / f"{promised.job}-{promised.root[:16]}.json"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft = path.with_suffix(".new")
            draft.write_bytes(encode_json(KeptPromise(ledger, promised)))
            draft.replace(path)
            kept = self.of_job(promised.job)
            for old in kept[MAX_OF_JOB:]:
                (self._folder / f"{promised.job}-{old.promised.root[:16]}.json").unlink(missing_ok=True)
        except OSError as error:
            LOG.error("the promise of job %s cannot be kept in %s: %s", promised.job[:8], self._folder, error)

    def of_job(self, job: str) -> list[KeptPromise]:
        """Promises of a job, the largest first."""
        found = [_read(path) for path in self._folder.glob(f"{job}-*.json")]
        return sorted(found, key=lambda kept: kept.promised.cumulative, reverse=True)

    def jobs(self) -> Sequence[str]:
        """Jobs that something was promised by."""
        return sorted({path.name.split("-")[0] for path in self._folder.glob("*-*.json")})


def _read(path: Path) -> KeptPromise:
    try:
        kept: KeptPromise = decode_json(path.read_bytes()[:MAX_BYTES], KeptPromise)
    except (OSError, MessageError) as error:
        raise SettingsError(f"{path} is no promise: {reason(error)}; remove it, or restore it from a backup") from error
    return kept
