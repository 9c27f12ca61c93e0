"""A test that says what is no text is told as any other, whichever process ran it."""

import os
import subprocess
import sys
from pathlib import Path

CONFTEST = "from tests.conftest import pytest_report_to_serializable, pytest_warning_recorded\n"
ODD = """
import logging
import warnings

def test_that_warns():
    warnings.warn(RuntimeWarning("a \\udce4"))

def test_that_logs():
    logging.getLogger("x").warning("b \\udce4")

def test_that_fails():
    logging.getLogger("x").warning("c \\udce4")
    assert not "d", "d \\udce4"
"""


def test_odd_text_of_a_test_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_odd.py").write_text(ODD)
    words = ["-p", "xdist.plugin", "-n", "1", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert "1 failed, 2 passed" in run.stdout, run.stdout + run.stderr
    assert {line[:1] for line in run.stdout.splitlines() if r" \udce4" in line} >= {"E", "W"}, run.stdout
    for said in "acd":
        assert rf"{said} \udce4" in run.stdout
