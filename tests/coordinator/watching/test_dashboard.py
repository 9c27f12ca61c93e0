"""The dashboard, as far as that can be said without a Grafana: its own types know every field, and each metric is there."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.coordinator.watching.conftest import ROOM, exposed, named_in

DASHBOARD: dict[str, Any] = json.loads((ROOM / "dashboard.json").read_text())
SUBJECTS = [
    "At a glance",
    "Money",
    "Jobs",
    "Nodes",
    "Audits and looks",
    "Links and relays",
    "Requests",
    "Files and process",
]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def test_each_field_is_one_that_grafana_knows() -> None:
    register_default_plugins()
    known = json.loads(JSONEncoder().encode(Dashboard.from_json(DASHBOARD)))
    assert list(unknown(DASHBOARD, known)) == []


def unknown(written: Any, known: Any, place: str = "") -> Iterator[str]:
    """Where something that was written has not come through, or has come otherwise."""
    if isinstance(written, dict) and isinstance(known, dict):
        for key, value in written.items():
            yield from unknown(value, known[key], f"{place}/{key}") if key in known else [f"{place}/{key}"]
    elif isinstance(written, list) and isinstance(known, list) and len(written) == len(known):
        for number, (one, other) in enumerate(zip(written, known, strict=True)):
            yield from unknown(one, other, f"{place}/{number}")
    elif written != known:
        yield place


def test_a_field_that_grafana_does_not_know_is_found() -> None:
    register_default_plugins()
    wrong = json.loads(json.dumps(DASHBOARD))
    wrong["panels"][1]["targets"][0]["expression"] = "up"
    known = json.loads(JSONEncoder().encode(Dashboard.from_json(wrong)))
    assert list(unknown(wrong, known)) == ["/panels/1/targets/0/expression"]


def test_each_panel_has_a_title_a_sentence_a_unit_of_grafanas_and_queries() -> None:
    of_grafana = {value for name, value in vars(units).items() if isinstance(value, str) and not name.startswith("_")}
    titles = [panel["title"] for panel in panels()]
    assert len(set(titles)) == len(titles) > 25
    for panel in panels():
        assert panel["type"] in ("timeseries", "stat"), panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in of_grafana, panel["title"]
        refs = [target["refId"] for target in panel["targets"]]
        assert refs == sorted(set(refs)) != [], panel["title"]
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]


def test_each_subject_has_its_row_and_no_panel_lies_on_another() -> None:
    assert [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"] == SUBJECTS
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        for cell in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
            assert cell not in taken, f"{panel['title']} lies on {taken.get(cell)}"
            taken[cell] = panel["title"]


def test_each_metric_is_told_and_each_of_a_process_is_the_coordinators() -> None:
    told = exposed()
    for expression in expressions():
        named = list(named_in(expression))
        assert named, expression
        assert set(named) <= told.keys(), expression
        assert '{instance=~"$instance"' in expression or 'job="cottage",instance=~"$instance"' in expression
        assert ("process_" in expression) == ('job="cottage"' in expression), expression
        for inside in re.findall(r"(?:rate|increase)\(([a-z_]+)", expression):
            assert told[inside].type in ("counter", "histogram"), expression


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_each_expression_is_one_of_prometheus(tmp_path: Path) -> None:
    meant = [text.replace("$__rate_interval", "5m").replace("$instance", ".*") for text in expressions()]
    recorded = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(meant)]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    done = subprocess.run(["promtool", "check", "rules", str(tmp_path / "panels.yaml")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
