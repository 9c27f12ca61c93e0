"""The pages of the reference that are made from the code say what the code does."""

import dataclasses
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import msgspec
import pytest

from coordinator.config import Config
from cottage.cli import _ROLES
from protocol.job.job import JobSpec, TrainingSpec

PAGES = Path(__file__).parents[2] / "docs" / "reference"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    described = importlib.util.spec_from_file_location("generate", PAGES / "generate.py")
    assert described is not None
    assert described.loader is not None
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return module


def test_every_mark_of_a_page_has_something_that_fills_it(generate: ModuleType) -> None:
    marks = {mark for page in PAGES.glob("*.md") for mark in re.findall(r"<!-- generated: (\S+) -->", page.read_text())}
    assert marks == set(generate.GENERATED)


def test_the_job_document_has_every_field_with_its_default_and_its_words(generate: ModuleType) -> None:
    page = generate.job_document()
    for kind in (JobSpec, TrainingSpec):
        assert f"## {kind.__name__}\n" in page
        for field in msgspec.structs.fields(kind):
            assert f"\n| `{field.encode_name}` | " in page
    assert "| `over_budget` | `pause`, `refuse` | `refuse` | Of a job whose price is above its budget" in page


def test_the_configuration_has_every_setting_of_a_coordinator(generate: ModuleType) -> None:
    page = generate.configuration()
    assert [one.name for one in dataclasses.fields(Config) if f"| `{one.name}` | " not in page] == []
    assert "| `port` | `8470` |" in page


def test_the_interface_has_every_route_and_each_link_to_a_type_leads_to_it(generate: ModuleType) -> None:
    page = generate.rest()
    _, routes = generate.interface(Mock(), Mock(), Mock(), Mock())
    assert [route for route in routes if f"\n### `{route.method} {route.path}`" not in page] == []
    anchors = set(re.findall(r"\{ #(\S+) \}", page))
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= anchors


def test_the_command_has_every_word_and_those_below_it(generate: ModuleType) -> None:
    assert {"run", "earnings", "uninstall"} <= set(generate._words(generate.help_of("node")))
    assert all(generate.help_of(word).startswith("usage: ") for word in ("node", "quote", "serve"))
    assert {"node", "quote", "serve"} <= set(_ROLES)
