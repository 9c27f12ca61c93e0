"""A server whose network answers with models, and jobs of it."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from coordinator.client import Client
from tests.coordinator.web.conftest import House
from tests.coordinator.web.deployments.serving_cluster import ServingCluster
from tests.support.special_tokens import KNOWN, written

ENOUGH = 5_000_000


class ServingHouse(House):
    """As ``House``, and its cluster serves."""

    kind = ServingCluster


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    built = ServingHouse(tmp_path)
    await built.start()
    yield built
    await built.stop()
    assert not built.ears.undocumented(built.document)


async def finished(house: House, settings: dict[str, Any] | None = None) -> str:
    """A job that has a model."""
    data = await house.dataset()
    spec: dict[str, Any] = {"name": "moo", "model": {"preset": "tiny-llama"}, "dataset": {"artifact": data}}
    if settings is not None:
        spec["tokenizer"] = {"kind": "file", "file": data, "settings": settings}
    async with Client(house.url) as client:
        job = (await client.create_job(spec | {"budget": 9_000_000})).id
        await client.fund(job)
    house.cluster.run(job)
    await house.cluster.finish(job, b"PK\5\6" + b"\0" * 18)
    return job


def model_folder(folder: Path) -> Path:
    """The files of a model, of which only their names and the small ones' content are looked at."""
    written(KNOWN["qwen 2.5 instruct"], folder)
    (folder / "model.safetensors").write_bytes(save({"a": np.zeros(2, np.float32)}))
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": 200_000}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    return folder


async def deployed(house: House, periods: int = 0, replicas: int = 2, of: str = "") -> str:
    """A deployment that is funded; with ``periods`` it answers, and was paid so often."""
    async with Client(house.url) as client:
        made = await client.deploy(of or await finished(house), replicas, 8.0, ENOUGH)
    for _ in range(2 + periods if periods else 0):
        house.cluster.step(made.id)
    return made.id
