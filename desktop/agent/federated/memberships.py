"""Federated jobs that this node's owner has joined: with which data, to what terms, and how many rounds were begun of them.

Kept in one file of the home folder. A round is written down before its worker hears of it, so that neither a crash of the
agent nor a coordinator that forgets can have more updates leave than the owner agreed to.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from common.untrusted_text import View
from desktop.agent.base.log import LOG
from desktop.agent.errors import SettingsError
from protocol.codec import MessageError, decode_json, encode_json
from protocol.federated.federations import terms_digest
from protocol.identity import NodeKey
from protocol.ids import Count, Digest, JobId
from protocol.job.federated import PrivacyUnit
from protocol.job.job import DatasetSpec, JobSpec

MAX_FEDERATIONS = 256
MAX_TOLD = 1 << 20  # Bytes of what workers have said; then it begins anew.
NO_FILE = "0" * 64  # A dataset's artifact, of data that is none.


class JoinedFederation(View, frozen=True):
    """One federated job.

    Attributes:
        coordinator: whose it is. ``data``: the file or folder that it may read; ``dataset``: how.
        terms: ``terms_digest`` of the document that the owner has seen.
        begun: rounds that were begun here, as often as a worker began them. ``most``: that may be; None: there is no budget.
        epsilon, delta: what all of them may tell of a ``unit``; None: nothing limits it.
        left: its owner has left it; what was begun stays counted, should they join once more.
    """

    job: JobId
    name: str
    coordinator: str
    data: Annotated[str, Meta(min_length=1, max_length=4096)]
    dataset: DatasetSpec
    terms: Digest
    most: int | None
    epsilon: float | None
    delta: float | None
    begun: Count = 0
    left: bool = False
    unit: PrivacyUnit = "owner"


class Memberships:
    """What ``file`` remembers."""

    def __init__(self, file: Path, key: NodeKey | None = None) -> None:
        """``key``: the node's, which takes part in secure sums; raises SettingsError where the file is damaged."""
        self._file, self.key = file, key
        try:
            found = decode_json(file.read_bytes(), list[JoinedFederation])
        except FileNotFoundError:
            found = []
        except (OSError, MessageError) as error:
            raise SettingsError(f"{file} cannot be used, so no federation goes on: {error}") from error
        self._known = {one.job: one for one in found}

    def tell(self, *lines: str) -> None:
        """Keep what a worker has said where its owner finds it: it may quote the data, so it is no part of the agent's log."""
        try:
            if self.told.exists() and self.told.stat().st_size > MAX_TOLD:
                self.told.unlink()
            with self.told.open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
        except OSError as error:
            LOG.warning("%s cannot be written: %s", self.told.name, error)

    @property
    def told(self) -> Path:
        """The file of that."""
        return self._file.with_suffix(".log")

    @property
    def joined(self) -> Mapping[str, JoinedFederation]:
        """By job."""
        return {job: one for job, one in self._known.items() if not one.left}

    def add(self, one: JoinedFederation) -> None:
        """Join, or join again with other data: what was begun stays counted. Raises SettingsError."""
        before = self._known.get(one.job)
        if before is not None:
            one = msgspec.structs.replace(one, begun=before.begun)
        elif len(self._known) >= MAX_FEDERATIONS:
            raise SettingsError(
                f"{MAX_FEDERATIONS} federations were joined here, which is all that this node remembers"
            )
        self._write(self._known | {one.job: one})

    def leave(self, job: str) -> None:
        """Take no part any more; nothing where it was not joined."""
        if job in self._known:
            self._write(self._known | {job: msgspec.structs.replace(self._known[job], left=True)})

    def refusal(self, job: str, spec: JobSpec) -> str:
        """Why a seat of this job is not taken; empty: its owner has agreed to just this."""
        one = self.joined.get(job)
        if one is None:
            return "this computer's owner has not joined this federation (`cottage node join`)"
        if one.terms != terms_digest(spec):
            return "the federation asks for something else than its owner has agreed to: look at it, and join again"
        if not Path(one.data).exists():
            return "the data that was named for this federation is not there any more"
        return ""

    def may_begin(self, job: str) -> bool:
        """Count a round that a worker begins, on the disk; False: the budget has no room for it. Raises SettingsError."""
        one = self.joined.get(job)
        if one is None or (one.most is not None and one.begun >= one.most):
            return False
        self._write(self._known | {job: msgspec.structs.replace(one, begun=one.begun + 1)})
        return True

    def _write(self, known: dict[str, JoinedFederation]) -> None:
        draft = self._file.with_name(f"{self._file.name}.new")
        try:
            with draft.open("wb") as file:
                file.write(encode_json(list(known.values())))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._file)
        except OSError as error:
            raise SettingsError(f"{draft} cannot be written: {error}") from error
        self._known = known
