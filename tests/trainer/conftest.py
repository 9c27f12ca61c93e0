"""Fixtures of the trainer's tests: one thread, and a job's folder."""

import os
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

from tests.trainer.small import SEQUENCE, VOCABULARY, job_folder
from trainer.audit.environment import configure
from trainer.data.data import TokenFile


@pytest.fixture(autouse=True)
def one_thread() -> None:
    configure(1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return job_folder(tmp_path / "job")


@pytest.fixture
def tokens(folder: Path) -> TokenFile:
    return TokenFile(folder / "train.bin", SEQUENCE, VOCABULARY)
