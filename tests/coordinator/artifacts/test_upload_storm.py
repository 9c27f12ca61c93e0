"""Hostile uploads and archives leave nothing and take nobody's room; ``benchmarks.hostile.hostile_uploads`` does more."""

import pytest

from coordinator.domain.account import LOCAL_ACCOUNT
from coordinator.errors import TooManyError
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.uploads import MAX_OPEN_OF_ACCOUNT, UploadService
from protocol.rest.api import NewUpload
from tests.coordinator import archive_storm
from tests.coordinator.upload_storm import storm


@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_is_uploaded_nothing_stays_but_what_was_taken(seed: int) -> None:
    ends = await storm(300, seed)
    assert ends.get("taken", 0) > 10
    assert ends.get("invalid", 0) > 10
    assert ends.get("refused: too_many", 0) + ends.get("refused: full", 0) > 5, "a crowd meets the limits"
    assert sum(ends.values()) == 300


def test_whatever_an_archive_holds_nothing_stays_but_what_was_taken() -> None:
    ends = archive_storm.storm(300, 1)
    assert ends.pop("taken") > 30
    assert {"refused: damaged", "refused: not a plain file", "refused: would grow", "refused: too long"} <= ends.keys()


async def test_one_account_cannot_keep_the_others_out(tmp_path: object) -> None:
    uploads = UploadService(tmp_path / "u", DiskArtifacts(tmp_path / "a"))  # type: ignore[operator]
    for _ in range(MAX_OPEN_OF_ACCOUNT):
        await uploads.create(NewUpload(5), "a" * 32)
    with pytest.raises(TooManyError, match="of yours"):
        await uploads.create(NewUpload(5), "a" * 32)
    await uploads.create(NewUpload(5), "b" * 32)
    await uploads.create(NewUpload(5), LOCAL_ACCOUNT)
