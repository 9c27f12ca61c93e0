"""What is measured of cells at work is of processes that carry a cell each, all at a time, over one PostgreSQL."""

import argparse
from collections.abc import Mapping

import pytest

from benchmarks.upkeep import jobs_at_work, reports
from benchmarks.upkeep._cell_worlds import Meeting, check_cells, played_together
from coordinator.domain.cells import MAX_CELLS, Cell
from tests.support.databases import needs_postgres

CELLS = 2
JOBS, SECONDS, ROUNDS = 3, 6.0, 1
PARTS = [f"cell {number + 1} of {CELLS}" for number in range(CELLS)]
WHOLE = f"{CELLS} processes"


def adds_up(found: Mapping[str, Mapping[str, float]], *names: str) -> bool:
    """Whether what all processes did is what each of them did."""
    return all(found[WHOLE][name] == pytest.approx(sum(found[part][name] for part in PARTS), abs=0.2) for name in names)


@pytest.mark.slow
@needs_postgres
def test_jobs_of_all_cells_train_at_a_time_and_each_process_has_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    found = jobs_at_work.cell_figures(JOBS, SECONDS, CELLS)
    assert capfd.readouterr().err == "", "cells answer each other"
    assert list(found) == [*PARTS, WHOLE]
    assert [found[part]["at_work"] for part in PARTS] == [2, 1], "what another cell has at work is counted there"
    assert adds_up(found, "at_work", "reports_a_second", "cores", "node_cores")
    for row in found.values():
        assert row["wall_s"] > 0
        assert row["reports_a_job_and_minute"] > 10
        assert 0 < row["cores"] < CELLS
        assert row["coordinator_ms_a_job_and_minute"] > row["coordinator_ms_a_report"] > 0
    assert found[WHOLE]["database_ms_a_report"] > 0


@pytest.mark.slow
@needs_postgres
def test_one_process_with_all_jobs_is_measured_likewise() -> None:
    found = jobs_at_work.cell_figures(JOBS, SECONDS, 1)
    assert list(found) == ["1 process"]
    assert found["1 process"]["at_work"] == JOBS
    assert found["1 process"]["reports_a_second"] > 0


@pytest.mark.slow
@needs_postgres
def test_reports_of_all_cells_are_acknowledged_at_a_time(capfd: pytest.CaptureFixture[str]) -> None:
    found = reports.cell_figures(JOBS, ROUNDS, CELLS)
    assert capfd.readouterr().err == "", "cells answer each other"
    assert list(found) == [*PARTS, WHOLE]
    assert adds_up(found, "reports", "reports_a_second", "cores", "home_cores")
    for row in found.values():
        assert row["statements"] > row["transactions"] > 0
        assert 0 < row["ack_p50_ms"] <= row["ack_p99_ms"]
    assert all(found[part]["reports"] > 0 for part in PARTS)
    assert found[WHOLE]["database_ms"] > 0
    assert "database_ms" not in found[PARTS[0]], "PostgreSQL's is everybody's"


async def fails(_url: str, cell: Cell, meeting: Meeting) -> None:
    """The second one does."""
    await meeting.begun()
    assert cell.number == 0, "this one was to fail"
    meeting.measured(None)


@needs_postgres
def test_a_process_that_ends_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match=r"cell 1 of 2: its process has ended"):
        played_together(CELLS, fails)
    assert "this one was to fail" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("cells", "jobs", "says"), [(0, 9, f"1 to {MAX_CELLS}"), (17, 99, "--cells 17"), (3, 2, "say at least 3")]
)
def test_numbers_of_cells_that_cannot_be_are_refused(
    cells: int, jobs: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        check_cells(argparse.ArgumentParser(), cells, jobs)
    assert says in capsys.readouterr().err
