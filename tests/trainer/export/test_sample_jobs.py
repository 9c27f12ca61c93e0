"""The job documents that come with the project are jobs."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from protocol.codec import convert
from protocol.job.job import JobSpec
from protocol.models.model import inspect_config, resolve

SAMPLES = sorted((Path(__file__).parents[3] / "assets" / "jobs").iterdir())


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_a_sample_job_is_a_job_once_its_data_is_uploaded(path: Path) -> None:
    load = json.loads if path.suffix == ".json" else yaml.safe_load
    document: dict[str, Any] = load(path.read_text())
    document["dataset"]["artifact"] = "0" * 64
    spec = convert(document, JobSpec)
    shape = inspect_config(resolve(spec.model, spec.tokenizer.vocabulary))
    shape.check_sequence(spec.training.sequence)
    assert shape.parameters > 10**6
