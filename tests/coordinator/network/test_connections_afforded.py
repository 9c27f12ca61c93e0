"""How many connections fit into what the system grants."""

import logging
import resource

import pytest

from coordinator.web import connections


@pytest.mark.parametrize(("granted", "fit"), [(64, 1), (1024, 768), (256, 1)])
def test_few_open_files_leave_few_connections_and_never_less_than_one(
    granted: int, fit: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (granted, granted))
    with caplog.at_level(logging.WARNING):
        assert connections.Connections(behind_proxy=False)._total == fit
    assert f"connections at a time: {fit}, since the system grants {granted} open files" in caplog.text
