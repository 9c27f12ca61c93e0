"""Weights fetched in ranges: only what a stage needs crosses, and nothing wrong is laid out."""

import errno
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save

from common.clock import SystemClock
from common.encrypted_files import SealedFile
from coordinator.errors import InvalidError
from coordinator.services.artifacts.weight_index import index_weights
from desktop.agent.coordinator.artifacts import Artifacts
from desktop.agent.errors import ArtifactError
from desktop.agent.jobs.weights import StageWeights
from protocol.job.job import ModelSpec
from protocol.models.model import resolve
from protocol.task import Layers, Plan
from tests.desktop.coordinator_double import Double

PLAN = Plan(0, (Layers(0, 2), Layers(2, 4), Layers(4, 6)), ())
CONFIG = resolve(
    ModelSpec(
        config={
            "model_type": "llama",
            "vocab_size": 50,
            "hidden_size": 8,
            "intermediate_size": 16,
            "num_hidden_layers": 6,
            "num_attention_heads": 1,
        }
    ),
    50,
)
GENERATOR = np.random.default_rng(1)
TENSORS = {
    "model.embed_tokens.weight": GENERATOR.standard_normal((50, 8), np.float32),
    "model.norm.weight": GENERATOR.standard_normal(8, np.float32),
    "lm_head.weight": GENERATOR.standard_normal((50, 8), np.float32),
} | {
    f"model.layers.{layer}.{name}": GENERATOR.standard_normal((16, 8), np.float32)
    for layer, name in itertools.product(range(6), ("mlp.up_proj.weight", "self_attn.q_proj.weight"))
}


def shards(coordinator: Double, folder: Path, count: int) -> str:
    """Store the model as ``count`` files, and its index; returns the index's digest."""
    names, files = sorted(TENSORS), []
    for number in range(count):
        data = save({name: TENSORS[name] for name in names[number::count]})
        (folder / f"{number}.safetensors").write_bytes(data)
        files.append((coordinator.store(data), folder / f"{number}.safetensors"))
    return coordinator.store(index_weights(files, CONFIG))


async def laid_out(weights: StageWeights, stage: int) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    """What the stage gets, as its worker reads it."""
    return load(SealedFile(await weights.lay_out(PLAN, stage), weights.key).read())


def described(file: int, begin: int, end: int) -> bytes:
    tensor = {"file": file, "begin": begin, "end": end, "dtype": "F32", "shape": [1], "sha256": "0" * 64}
    return json.dumps({"files": ["0" * 64], "tensors": {"a": tensor}}).encode()


@pytest.fixture
async def artifacts(coordinator: Double, tmp_path: Path) -> Artifacts:
    coordinator.tokens.add("token")
    store = Artifacts(coordinator.url, tmp_path / "cache", SystemClock())
    store.authorise("token")
    return store


@pytest.mark.parametrize("count", [1, 3])
async def test_each_stage_gets_its_tensors_and_all_get_the_model(
    coordinator: Double, artifacts: Artifacts, tmp_path: Path, count: int
) -> None:
    weights = StageWeights(artifacts, shards(coordinator, tmp_path, count), tmp_path)
    found: dict[str, np.ndarray] = {}  # type: ignore[type-arg]
    for stage in range(3):
        part = await laid_out(weights, stage)
        assert not found.keys() & part.keys()
        found |= part
    assert found.keys() == TENSORS.keys()
    assert all(np.array_equal(found[name], value) for name, value in TENSORS.items())
    await artifacts.aclose()


async def test_a_middle_stage_fetches_its_layers_and_nothing_else(
    coordinator: Double, artifacts: Artifacts, tmp_path: Path
) -> None:
    weights = StageWeights(artifacts, shards(coordinator, tmp_path, 1), tmp_path)
    path = await weights.lay_out(PLAN, 1)
    assert fetched(coordinator) == sum(value.nbytes for value in (await laid_out(weights, 1)).values()) == 2 * LAYER
    assert sum(bool(asked) for _, _, asked in coordinator.requests) == 1
    before = len(coordinator.requests)
    assert await weights.lay_out(PLAN, 1) == path
    assert len(coordinator.requests) == before
    await artifacts.aclose()


def fetched(coordinator: Double, since: int = 0) -> int:
    """Bytes of ranges that were asked for."""
    ranges = [asked for _, _, asked in coordinator.requests[since:] if asked]
    return sum(int(b) - int(a) + 1 for a, b in (asked.removeprefix("bytes=").split("-") for asked in ranges))


async def begun_before(coordinator: Double, artifacts: Artifacts, folder: Path) -> str:
    """The index of weights of which stage 1 was here for a lease that has ended."""
    index = shards(coordinator, folder, 1)
    (folder / "lease").mkdir()
    await laid_out(StageWeights(artifacts, index, folder / "lease"), 1)
    shutil.rmtree(folder / "lease")
    return index


OTHERS = Plan(0, (Layers(0, 3), Layers(3, 6)), ())
LAYER = 2 * 16 * 8 * 4


async def test_a_later_job_fetches_what_is_not_here_yet_and_no_more(
    coordinator: Double, artifacts: Artifacts, tmp_path: Path
) -> None:
    await begun_before(coordinator, artifacts, tmp_path)
    before = len(coordinator.requests)
    weights = StageWeights(artifacts, shards(coordinator, tmp_path, 3), tmp_path)  # Other files, of the same tensors.
    part = load(SealedFile(await weights.lay_out(OTHERS, 0), weights.key).read())
    assert len(part) == 3 * 2 + 1
    assert all(np.array_equal(value, TENSORS[name]) for name, value in part.items())
    assert fetched(coordinator, before) == 2 * LAYER + 50 * 8 * 4  # Layer 2 was here; 3 is of no use.
    before = len(coordinator.requests)
    (tmp_path / "third").mkdir()
    again = StageWeights(artifacts, weights._digest, tmp_path / "third")
    assert load(SealedFile(await again.lay_out(OTHERS, 0), again.key).read()).keys() == part.keys()
    assert fetched(coordinator, before) == 0
    await artifacts.aclose()


@pytest.mark.parametrize("damage", ["changed", "gone", "no room"])
async def test_what_was_here_and_is_not_what_it_was_is_fetched_again(
    coordinator: Double, artifacts: Artifacts, tmp_path: Path, damage: str
) -> None:
    index = await begun_before(coordinator, artifacts, tmp_path)
    [kept] = (tmp_path / "cache").glob("weights-*")
    match damage:
        case "changed":
            data = bytearray(kept.read_bytes())
            data[len(data) // 2] ^= 1
            kept.write_bytes(data)
        case "gone":
            kept.unlink()
        case _:
            artifacts.limit(1)
            await artifacts.fetch(coordinator.store(b"something else"))
            assert not kept.exists()
    before = len(coordinator.requests)
    part = await laid_out(StageWeights(artifacts, index, tmp_path), 1)
    assert len(part) == 4
    assert all(np.array_equal(value, TENSORS[name]) for name, value in part.items())
    assert fetched(coordinator, before) == 2 * LAYER
    await artifacts.aclose()


async def test_what_is_kept_outlives_a_connection_but_not_the_process(
    coordinator: Double, artifacts: Artifacts, tmp_path: Path
) -> None:
    index = await begun_before(coordinator, artifacts, tmp_path)
    for contents, missing in ((artifacts.contents, 0), (None, 2 * LAYER)):
        before = len(coordinator.requests)
        store = Artifacts(coordinator.url, tmp_path / "cache", SystemClock(), contents=contents)
        store.authorise("token")
        lease = tmp_path / str(missing)
        lease.mkdir()
        assert len(await laid_out(StageWeights(store, index, lease), 1)) == 4
        assert fetched(coordinator, before) == missing
        await store.aclose()
    await artifacts.aclose()


async def test_a_disk_without_links_keeps_nothing_and_works(
    coordinator: Double, artifacts: Artifacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr("os.link", refuse)
    assert len(await laid_out(StageWeights(artifacts, shards(coordinator, tmp_path, 1), tmp_path), 1)) == 4
    assert [*(tmp_path / "cache").glob("weights-*")] == []
    await artifacts.aclose()


async def test_a_range_goes_on_where_the_line_was_cut(
    coordinator: Double, artifacts: Artifacts, tmp_path: Path
) -> None:
    index = shards(coordinator, tmp_path, 1)
    await artifacts.fetch(index)
    coordinator.cut_after = 700
    part = await laid_out(StageWeights(artifacts, index, tmp_path), 1)
    assert all(np.array_equal(value, TENSORS[name]) for name, value in part.items())
    first, second = (asked.removeprefix("bytes=").split("-") for _, _, asked in coordinator.requests if asked)
    assert int(second[0]) == int(first[0]) + 700
    await artifacts.aclose()


async def test_a_tensor_that_was_changed_is_fetched_again_and_at_last_refused(
    coordinator: Double, artifacts: Artifacts, tmp_path: Path
) -> None:
    index = shards(coordinator, tmp_path, 1)
    described = json.loads(coordinator.artifacts[index])
    source, tensor = described["files"][0], described["tensors"]["model.layers.3.mlp.up_proj.weight"]
    data = bytearray(coordinator.artifacts[source])
    data[tensor["begin"] + 5] ^= 1
    coordinator.artifacts[source] = bytes(data)
    weights = StageWeights(artifacts, index, tmp_path)
    with pytest.raises(ArtifactError, match=r"tensor model\.layers\.3\.mlp\.up_proj\.weight has, 3 times"):
        await weights.lay_out(PLAN, 1)
    assert not (tmp_path / "weights-2-4.safetensors").exists()
    await weights.lay_out(PLAN, 0)
    await artifacts.aclose()


@pytest.mark.parametrize("index", [b"{}", b"\xff", described(1, 0, 4), described(0, 8, 4)])
async def test_an_index_that_cannot_be_is_refused(
    coordinator: Double, artifacts: Artifacts, tmp_path: Path, index: bytes
) -> None:
    with pytest.raises(ArtifactError, match="index of the weights"):
        await StageWeights(artifacts, coordinator.store(index), tmp_path).lay_out(PLAN, 0)
    await artifacts.aclose()


def test_a_shard_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(save(TENSORS))
    with pytest.raises(InvalidError, match="is in two of the files"):
        index_weights([("1" * 64, tmp_path / "a"), ("2" * 64, tmp_path / "a")], CONFIG)
