"""Fixtures of the trainer's tests: one thread, and a job's folder."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

from protocol.job.job import JobSpec
from tests.trainer.router import MakeRouter, Router
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


@pytest.fixture
def routed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> MakeRouter:
    sockets = tmp_path_factory.mktemp("s")

    @asynccontextmanager
    async def make(spec: JobSpec, by_command: bool = False, recording: bool = False) -> AsyncIterator[Router]:
        async with Router(sockets, spec, folder, by_command) as router:
            router.recording = recording
            yield router

    return make
