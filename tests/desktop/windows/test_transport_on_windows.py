"""Links between peers in Windows' own Python under Wine: the transport's own tests, run there, by the portable data path."""

import re
from pathlib import Path

import pytest

from tests.support.windows import LACKING, PYTHON, ROOT, TESTING, Windows, seen

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(LACKING), reason=f"links on Windows are tried with {', '.join(LACKING)}"),
]

QUICK = ("peer/test_peer_links.py", "sctp/test_datagram.py", "sctp/test_dtls.py", "sctp/test_mtu.py")
"""What is nearest to the system: links as nodes make them, its sockets and its event loop."""
LARGE = "test_messages_go_both_ways_on_all_lanes_at_once"
"""Half a minute of packets, one system call each."""
OTHERS = (
    "ice/test_path_signals.py",
    "peer/test_peer_crossings.py",
    "messages/test_message_streams.py",
    "sctp/association/test_association.py",
    "sctp/test_hostile_wire.py",
)
# Its folder comes last: what the program needs is the program's own.
RUN = """
import sys
sys.path.append(sys.argv[1])
import pytest
raise SystemExit(pytest.main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("names", "but", "least"),  # Of tests that run there; the others need Linux's own ways.
    [
        pytest.param(QUICK, LARGE, 150, id="quick"),
        pytest.param((*QUICK, *OTHERS), "none_of_these", 210, id="all", marks=pytest.mark.long),
    ],
)
def test_the_transports_own_tests_pass_there(
    windows: Windows, tmp_path: Path, names: tuple[str, ...], but: str, least: int
) -> None:
    (program := tmp_path / "run.py").write_text(RUN)
    files = [seen(ROOT / "tests" / "transport" / name) for name in names]
    said = windows.run(
        str(PYTHON),
        seen(program),
        seen(TESTING),
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=",
        "-q",
        "-k",
        f"not {but}",
        "--tb=short",
        f"--rootdir={seen(ROOT)}",
        f"--confcutdir={seen(ROOT / 'tests' / 'transport')}",
        *files,
        patience_s=900,
        PYTHONDONTWRITEBYTECODE="1",
    )
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None, said
    assert int(passed[1]) >= least, said
