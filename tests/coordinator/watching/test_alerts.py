"""The alerts: what each is told of, and that nothing in them is made up."""

import re
import shutil
import subprocess
from pathlib import Path

import aiohttp
import pytest
import yaml

from coordinator.web.monitoring.watchers import METRICS
from tests.coordinator.watching.conftest import ALERTS, ROOM, RUNBOOK, exposed, named_in, rules
from tests.coordinator.web.conftest import House
from tests.cottage.test_commands_in_docs import help_of

CASES = Path(__file__).with_name("alerts.test.yaml")
DOCS = Path(__file__).parents[3] / "docs"
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def anchors(page: str) -> list[str]:
    """Of the headings of a page's second level, as MkDocs names them."""
    titles = re.findall(r"^## (.+)$", page, re.MULTILINE)
    return [re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles]


def test_each_metric_of_a_rule_is_one_that_is_told() -> None:
    told = exposed()
    for rule in rules():
        named = set(named_in(str(rule["expr"])))
        assert named or "up{" in str(rule["expr"]), rule["alert"]
        assert named <= told.keys(), rule["alert"]


def test_each_rule_says_how_bad_it_is_what_happened_and_where_it_stands_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) >= 12
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
        assert set(rule["annotations"]) == {"summary", "runbook"}, rule["alert"]
        assert "for" in rule or "increase(" in rule["expr"], f"{rule['alert']}: a moment is no reason to wake anybody"
        page, _, heading = rule["annotations"]["runbook"].partition("#")
        assert heading in anchors((DOCS / page).read_text()), rule["alert"]


def test_each_heading_of_the_runbook_is_an_alerts_and_says_three_things() -> None:
    text = RUNBOOK.read_text()
    named = [rule["annotations"]["runbook"].partition("#")[2] for rule in rules()]
    assert sorted(anchors(text)) == sorted(named)
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        assert re.findall(r"^\*\*(\w+)\.\*\* ", part, re.MULTILINE) == ["Means", "Look", "Do"], part[:40]


async def test_what_the_runbook_names_is_there(tmp_path: Path) -> None:
    text = RUNBOOK.read_text()
    assert set(named_in(text)) <= exposed().keys()
    places = set(re.findall(r"`(/[a-z][a-z0-9/-]+)`", text)) | set(re.findall(r"\bURL(/[a-z]+)", text))
    house = House(tmp_path)
    await house.start()
    assert house.app is not None
    routes = {resource.canonical for resource in house.app.router.resources()} | {METRICS}
    async with aiohttp.ClientSession() as http, http.get(f"{house.url}/docs/runbook") as answer:
        served = await answer.text()
    await house.stop()
    assert [anchor for anchor in anchors(text) if f'id="{anchor}"' not in served] == []
    assert len(places) > 8
    assert places <= routes
    options = set(re.findall(r"`(--[a-z][a-z-]+)`", text))
    assert len(options) > 5
    assert {option for option in options if option not in help_of("serve")} == set()


@needs_promtool
def test_prometheus_own_tool_takes_the_rules_and_tells_each_when_it_should() -> None:
    for words in (["check", "rules", str(ALERTS)], ["test", "rules", str(CASES)]):
        done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_prometheus_own_tool_takes_its_settings(tmp_path: Path) -> None:
    (tmp_path / "cottage.key").write_text("ck_key")
    shutil.copy(ALERTS, tmp_path)
    text = (ROOM / "prometheus.yaml").read_text()
    (tmp_path / "prometheus.yaml").write_text(
        text.replace("/etc/prometheus/cottage.key", str(tmp_path / "cottage.key"))
    )
    done = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yaml")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules())} rules found" in done.stdout


def test_each_alert_is_tried_with_what_it_is_told_of_and_with_what_it_is_not() -> None:
    cases = yaml.safe_load(CASES.read_text())["tests"]
    expected = {f"{rule['alert']} {how}": how == "is told" for rule in rules() for how in ("is told", "is quiet")}
    tried = {case["name"]: any(try_.get("exp_alerts") for try_ in case["alert_rule_test"]) for case in cases}
    assert tried == expected
