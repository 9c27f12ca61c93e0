"""The whole path, as a user runs it: real processes, real WebRTC, a real Solana virtual machine, real training.

Every test checks the figures of the ``--json`` document by itself; the demo's own ``checks`` are one more witness.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WHOLE = ["--tokens", "120000"]  # Six rounds.
SHORT = [*WHOLE, "--no-reference"]
SHORTEST = ["--tokens", "60000", "--no-reference"]  # Three rounds: with four audits every member is drawn in the first.
LEAST = ["--tokens", "30000", "--no-reference"]  # Three rounds of one replica.
TIME_LIMIT = 900
DEMO = ("-m", "cottage", "demo")
SMALL = (str(Path(__file__).with_name("small_demo.py")),)  # Where it is not the learning that is shown.


def demo(tmp_path: Path, *words: str, program: Sequence[str] = SMALL) -> dict[str, Any]:
    """Run ``cottage demo --json`` to its end and return the document."""
    folder = tmp_path / "demo"
    command = [sys.executable, *program, "--json", "--dir", str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT, check=False)
    logs = "\n".join(
        f"== {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-25:])
        for log in sorted((folder / "logs").glob("*.log"))
    )
    assert done.stdout, f"no document; status {done.returncode}\n{done.stderr[-4000:]}\n{logs}"
    document: dict[str, Any] = json.loads(done.stdout)
    failed = [name for name, held in document["checks"].items() if not held]
    assert done.returncode == 0, f"status {done.returncode}; failed: {failed}\n{done.stderr[-4000:]}\n{logs}"
    assert not leftovers(folder), "the demo left processes behind"
    return document


def leftovers(folder: Path) -> list[int]:
    """Living processes whose command line names the demo's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes()
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if str(folder).encode() in line and state != "Z":
            found.append(int(entry.name))
    return found


def assert_money_adds_up(document: dict[str, Any]) -> None:
    """Escrow in, payouts and refund out, each node paid what was verified, nothing twice."""
    assert document["escrow"] > 0
    assert document["escrow"] == document["paid"] + document["refunded"]
    assert document["paid"] == sum(node["paid"] for node in document["nodes"])
    earned: dict[str, int] = {}
    for commit in document["commitments"]:
        if commit["state"] == "verified":
            earned[commit["node"]] = earned.get(commit["node"], 0) + commit["amount"]
    for node in document["nodes"]:
        assert node["paid"] == node["verified"]
    assert sum(earned.values()) == document["paid"]
    audited = {audit["round"] for audit in document["audits"] if audit["state"] == "passed"}
    for commit in document["commitments"]:
        if commit["amount"]:
            assert commit["round"] in audited or commit["drawable"]
    signatures = [receipt["signature"] for receipt in document["receipts"]]
    assert len(signatures) == len(set(signatures))
    assert all(receipt["state"] == "confirmed" for receipt in document["receipts"])


FAULTS = ("--fault", "kill-coordinator", "--fault", "kill-node")


def test_the_whole_path_trains_verifies_and_pays_though_a_node_and_its_coordinator_are_killed(tmp_path: Path) -> None:
    """With 0.2 M parameters, and so many rounds that some are verified before the node dies."""
    document = demo(tmp_path, "--tokens", "200000", "--no-reference", *FAULTS)
    assert_a_node_and_its_coordinator_died(document)
    assert document["loss_after"] < document["loss_before"] - 0.8


@pytest.mark.long
def test_the_demo_learns_more_than_half_of_what_one_process_does_though_both_are_killed(tmp_path: Path) -> None:
    document = demo(tmp_path, "--tokens", "160000", *FAULTS, program=DEMO)
    assert_a_node_and_its_coordinator_died(document)
    before, after, single = (document[f"loss_{name}"] for name in ("before", "after", "single_process"))
    assert before > 7.0, "a model that has learnt nothing is no better than chance over 2,048 tokens"
    assert (before - after) > 0.5 * (before - single)
    assert document["loss_model_folder"] == pytest.approx(after, abs=2e-3)
    assert document["bytes_sent"] < 0.05 * document["bytes_naive"], "all that went between nodes, edges included"


def assert_a_node_and_its_coordinator_died(document: dict[str, Any]) -> None:
    """The run went on to its model, and who died is paid for what had been verified."""
    assert_money_adds_up(document)
    of_coordinator, of_node = document["faults"]
    assert "started again" in of_coordinator
    assert "was killed" in of_node
    assert len(document["audits"]) >= document["rounds"]
    [lost] = [node for node in document["nodes"] if node["state"] == "lost"]
    paid_rounds = {c["round"] for c in document["commitments"] if c["node"] == lost["node"] and c["amount"]}
    assert paid_rounds, "rounds that were verified before the node died are paid"
    assert lost["rounds"] < document["rounds"]
    seated = [node for node in document["nodes"] if node["stage"] is not None and node is not lost]
    assert sorted((node["stage"], node["replica"]) for node in seated) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(document["nodes"]) <= len(seated) + 2, "the lost one, and the operator's machine, which came to look"
    assert (Path(document["model_dir"]) / "model.safetensors").exists()


@pytest.mark.long
@pytest.mark.parametrize("lie", ["gradient", "substitute"])
def test_a_node_that_lies_is_caught_and_loses_stake(tmp_path: Path, lie: str) -> None:
    document = demo(tmp_path, *SHORTEST, "--lie", lie, "--audits", "4")
    assert_money_adds_up(document)
    found = [audit for audit in document["audits"] if audit["state"] == "failed"]
    failed = {audit["node"] for audit in found}
    assert len(failed) == 1
    liar = next(node for node in document["nodes"] if node["node"] in failed)
    assert liar["paid"] == 0
    assert document["slashed"] > 0


@pytest.mark.docker
def test_a_pipeline_of_docker_sandboxes_trains_and_is_paid(tmp_path: Path, docker_engine: str) -> None:
    """Stages in containers; replicas in containers are in ``tests/installer/test_clean_system.py``."""
    document = demo(tmp_path, *LEAST, "--nodes", "2", "--sandbox", "docker", "--image-from-host")
    assert_money_adds_up(document)
    seats = [(node["stage"], node["replica"]) for node in document["nodes"] if node["stage"] is not None]
    assert sorted(seats) == [(0, 0), (1, 0)]
    assert document["loss_after"] < document["loss_before"] - 0.5


def test_ctrl_c_leaves_no_process_behind(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    command = [sys.executable, *DEMO, "--json", "--nodes", "2", "--dir", str(folder), *SHORT]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert running.stderr is not None
    for line in running.stderr:
        if "nodes are online" in line or "is on the ledger" in line:
            break
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130
    assert not leftovers(folder)
