"""Weights that are not their config's are refused with the price: file, tensor and shape are named, nothing is paid."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save

from coordinator.errors import CottageError, InvalidError
from coordinator.services.artifacts import ArtifactStore
from coordinator.services.uploads import _check
from coordinator.services.weights import check_fit, index_weights
from tests.coordinator.bench import Bench
from tests.coordinator.fakes import spec
from tests.trainer.small import FAMILY_CONFIGS, VOCABULARY
from transport.wire.api import NewUpload
from transport.wire.job import ModelSpec
from transport.wire.model import resolve, tensors_of
from transport.wire.stored import ways, written
from transport.wire.weights import safetensors_header

FILE = "my model.safetensors"
Made = dict[str, NDArray[Any]]


def resolved(family: str) -> dict[str, Any]:
    config = FAMILY_CONFIGS[family] | {"vocab_size": VOCABULARY}
    return resolve(ModelSpec(config=config, weights="0" * 64), 259)


def made_for(config: dict[str, Any], way: str = "written") -> Made:
    """Weights that fit, as a file holds them."""
    parts = [
        (part, shape)
        for name, shape in tensors_of(config).all().items()
        for part in (written(name, shape, config) if way == "written" else next(ways(name, shape, config, False)))
    ]
    return {part.key: np.zeros(part.shape(shape), np.float32) for part, shape in parts}


def kept(tmp_path: Path, tensors: Made) -> Path:
    path = tmp_path / "file"
    path.write_bytes(save(tensors))
    return path


@pytest.mark.parametrize("way", ["written", "memory"])
@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_weights_of_every_family_fit_in_each_way_that_files_hold_them(family: str, way: str, tmp_path: Path) -> None:
    config = resolved(family)
    check_fit(config, [(FILE, kept(tmp_path, made_for(config, way)))])


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_any_tensor_that_is_missing_or_of_another_shape_is_named(family: str, tmp_path: Path) -> None:
    config = resolved(family)
    fits = made_for(config)
    for key in random.Random(family).sample(sorted(fits), 4):
        tied = key == "lm_head.weight" and config["cottage_head_starts_tied"]
        if not tied:
            with pytest.raises(InvalidError) as refused:
                check_fit(config, [(FILE, kept(tmp_path, {k: v for k, v in fits.items() if k != key}))])
            assert refused.value.detail.startswith(f"{FILE} has no tensor ")
        longer = np.zeros((*fits[key].shape[:-1], fits[key].shape[-1] + 1), np.float32)
        with pytest.raises(InvalidError) as refused:
            check_fit(config, [(FILE, kept(tmp_path, fits | {key: longer}))])
        found, wanted = list(longer.shape), list(fits[key].shape)
        said = f"tensor {key} of {FILE} has the shape {found}, the config makes it {wanted}"
        assert refused.value.detail.startswith(said)


def test_a_missing_shard_is_told_of(tmp_path: Path) -> None:
    config = resolved("llama")
    fits = made_for(config)
    half = {key: value for key, value in fits.items() if "layers.2." not in key}
    with pytest.raises(InvalidError, match=r"none of the 2 files of weights has a tensor model\.layers\.2\."):
        check_fit(config, [("a", kept(tmp_path, half)), ("b", kept(tmp_path, half))])
    named = [(f"model-0000{number}-of-00003.safetensors", kept(tmp_path, half)) for number in (1, 3)]
    with pytest.raises(
        InvalidError, match=r"model\.layers\.2\..* all files of the model, model-00002-of-00003\.safetensors among"
    ):
        check_fit(config, named)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_value_that_is_not_finite_is_found_while_the_index_is_made(tmp_path: Path, value: float, dtype: type) -> None:
    tensor = np.full((3, 5), np.finfo(dtype).max, dtype)
    assert index_weights([("1" * 64, kept(tmp_path, {"w": tensor}))])
    tensor[2, 4] = value
    with pytest.raises(InvalidError, match=rf"^tensor w of {FILE}, of shape \[3, 5\], holds values that are NaN"):
        index_weights([("1" * 64, kept(tmp_path, {"w": tensor}))], {"1" * 64: FILE})


Spoiler = Callable[[Made, str, random.Random], bytes]


def _other_type(fits: Made, key: str, _: random.Random) -> bytes:
    return save(fits | {key: fits[key].astype(np.int8)})


def _fp8(fits: Made, key: str, _: random.Random) -> bytes:
    size = fits[key].size
    return safetensors_header({key: {"dtype": "F8_E4M3", "shape": [size], "data_offsets": [0, size]}}) + bytes(size)


def _renamed(fits: Made, key: str, _: random.Random) -> bytes:
    return save({("encoder." + name if name == key else name): value for name, value in fits.items()})


def _other_shape(fits: Made, key: str, chance: random.Random) -> bytes:
    return save(fits | {key: np.zeros((chance.randint(100, 200), 2), np.float32)})


def _other_vocabulary(fits: Made, _: str, chance: random.Random) -> bytes:
    return save(fits | {"model.embed_tokens.weight": np.zeros((chance.randint(400, 500), 32), np.float32)})


def _adapter(fits: Made, key: str, _: random.Random) -> bytes:
    return save({f"base_model.model.{key.removesuffix('.weight')}.lora_A.weight": fits[key]})


def _cut(fits: Made, _: str, chance: random.Random) -> bytes:
    return save(fits)[: -chance.randint(1, 900)]


def _damaged(fits: Made, _: str, chance: random.Random) -> bytes:
    content = bytearray(save(fits))
    content[8 + chance.randint(0, 20)] = 0xFF
    return bytes(content)


SPOILERS: list[tuple[Spoiler, bool]] = [
    (_other_type, True), (_fp8, True), (_renamed, True), (_other_shape, True), (_other_vocabulary, True),
    (_adapter, True), (_cut, False), (_damaged, False),
]  # fmt: skip
"""What spoils weights, and whether a tensor is at fault rather than the file."""


@pytest.mark.parametrize("seed", range(104))
async def test_a_hundred_bad_jobs_are_refused_before_money_moves(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    spoil, of_tensor = SPOILERS[seed % len(SPOILERS)]
    config = FAMILY_CONFIGS["llama"] | {"vocab_size": VOCABULARY}
    fits = made_for(resolved("llama"))
    (tmp_path / "bad").write_bytes(spoil(fits, chance.choice(sorted(fits)), chance))
    bench = Bench()
    for number in range(1, 5):
        await bench.enter(number)
    store = ArtifactStore(tmp_path / "artifacts")
    bench.parts.jobs._artifacts = store
    digest = await store.put_file(tmp_path / "bad")
    await bench.parts.jobs._files.keep("local", digest, NewUpload(5, FILE, "weights"))
    job = msgspec.structs.replace(spec(), model=ModelSpec(config=config, weights=digest))
    quote = await bench.parts.jobs.quote(job, "local")
    [problem] = quote.problems
    assert FILE in problem
    assert not of_tensor or ("tensor " in problem and "shape [" in problem)
    assert digest not in problem
    assert "Error" not in problem


def test_an_upload_is_refused_under_its_own_name(tmp_path: Path) -> None:
    fits = made_for(resolved("llama"))
    for spoil in (_adapter, _cut, _damaged, _fp8):
        (tmp_path / "bad").write_bytes(spoil(fits, "model.norm.weight", random.Random(1)))
        with pytest.raises(CottageError) as refused:
            _check(tmp_path / "bad", NewUpload(5, "adapter_model.safetensors", "weights"))
        assert refused.value.detail.startswith("adapter_model.safetensors")
        assert json.dumps(refused.value.detail).isascii()
