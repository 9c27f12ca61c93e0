"""What several folders of tests need."""

import contextlib
import os
import sys
import warnings
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from common import gc_tuning
from tests.support import docker as docker_support
from tests.support import seeds, session, together
from tests.support.proxy import VARIABLES

MANY = 200
"""Tests that weigh so much."""


def pytest_configure(config: pytest.Config) -> None:
    """Be one neighbour of a job's container, whatever runs beside it."""
    stay = contextlib.ExitStack()
    stay.enter_context(session.one_session())
    config.add_cleanup(stay.close)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Some cases are long, before ``-m`` asks; end-to-end tests lie where the second run of ``make test`` looks."""
    seeds.thin_out(items)
    together.refuse_strays(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What twelve thousand tests import stays for the whole run: collections of garbage need not walk it again."""
    if len(session.items) > MANY:
        gc_tuning.settle()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What a draw costs is a test's own."""
    seeds.first_draw(item)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """No test ends the run by what it says."""
    return together.printable((yield))


@pytest.hookimpl(tryfirst=True)
def pytest_warning_recorded(warning_message: warnings.WarningMessage) -> None:
    """No warning ends the run by what it says."""
    together.tell_printable(warning_message)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> together.EngineInTurn | None:
    """``--dist loadgroup``: end-to-end tests beside one another, but for those that share an engine."""
    return together.EngineInTurn(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.fixture(autouse=True)
def new_databases_are_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tests open databases, in this process."""
    if (sql := sys.modules.get("coordinator.store.sql")) is not None:
        from tests.support.databases import migrate_a_copy

        monkeypatch.setattr(sql, "migrate", migrate_a_copy)


@pytest.fixture(scope="session")
def docker_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real engine with the real sandbox image."""
    reason = docker_support.why_not()
    if reason:
        pytest.skip(f"no Docker engine: {reason}")
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    with docker_support.shared_engine(shared / "docker") as host:
        yield host


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever proxies the machine of the tests has."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
