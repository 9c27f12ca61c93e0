"""Links between peers in Windows' own Python under Wine: the transport's own tests, run there, by the portable data path."""

import re
from pathlib import Path

import pytest

from tests.support.windows import LACKING, PYTHON, ROOT, TESTING, Windows, seen

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.wall_clock,
    pytest.mark.skipif(bool(LACKING), reason=f"links on Windows are tried with {', '.join(LACKING)}"),
]

FILES = (
    "peer/test_peer_links.py",
    "ice/test_path_signals.py",
    "peer/test_peer_crossings.py",
    "messages/test_message_streams.py",
    "sctp/association/test_association.py",
    "sctp/test_datagram.py",
    "sctp/test_dtls.py",
    "sctp/test_hostile_wire.py",
    "sctp/test_mtu.py",
)
LEAST = 210
"""Tests of these that run there; the others need Linux's own ways."""
# Its folder comes last: what the program needs is the program's own.
RUN = """
import sys
sys.path.append(sys.argv[1])
import pytest
raise SystemExit(pytest.main(sys.argv[2:]))
"""


def test_the_transports_own_tests_pass_there(windows: Windows, tmp_path: Path) -> None:
    (program := tmp_path / "run.py").write_text(RUN)
    files = [seen(ROOT / "tests" / "transport" / name) for name in FILES]
    said = windows.run(
        str(PYTHON),
        seen(program),
        seen(TESTING),
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=",
        "-q",
        "--tb=short",
        f"--rootdir={seen(ROOT)}",
        f"--confcutdir={seen(ROOT / 'tests' / 'transport')}",
        *files,
        patience_s=900,
        PYTHONDONTWRITEBYTECODE="1",
    )
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None, said
    assert int(passed[1]) >= LEAST, said
