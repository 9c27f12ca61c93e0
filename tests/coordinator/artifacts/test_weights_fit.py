"""Weights that are not their config's are refused with the price: file, tensor and shape are named, nothing is paid."""

import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save

from coordinator.domain.job import JobState
from coordinator.errors import CottageError, InvalidError, NotFoundError
from coordinator.services.artifacts import model_files
from coordinator.services.artifacts.artifacts import ArtifactStore, file_digest
from coordinator.services.artifacts.datasets import read_safetensors
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.model_files import ModelFiles
from coordinator.services.artifacts.uploads import _check
from coordinator.services.artifacts.weight_index import check_fit, index_weights
from protocol.job.job import JobSpec, LoraSpec, ModelSpec, TokenizerSpec
from protocol.models.families import FAMILY
from protocol.models.model import resolve, tensors_of
from protocol.models.tensor_names import HEAD, ways, written
from protocol.models.weights import WeightIndex, belongs, safetensors_header
from protocol.rest.api import NewJob, NewUpload
from protocol.task import Layers
from tests.coordinator.bench import Bench
from tests.coordinator.fakes import spec
from tests.trainer.small import FAMILY_CONFIGS, VOCABULARY

FILE = "my model.safetensors"
NORM = "model.norm.weight"
Made = dict[str, NDArray[Any]]


def resolved(family: str, **more: Any) -> dict[str, Any]:
    config = FAMILY_CONFIGS[family] | {"vocab_size": VOCABULARY} | more
    return resolve(ModelSpec(config=config, weights="0" * 64), 259)


def made_for(config: dict[str, Any], way: str = "written") -> Made:
    """Weights that fit, as a file holds them."""
    parts = [
        (part, shape)
        for name, shape in tensors_of(config).all().items()
        for part in (written(name, shape, config) if way == "written" else next(ways(name, shape, config, False)))
    ]
    return {part.key: np.zeros(part.shape(shape), np.float32) for part, shape in parts}


def kept(tmp_path: Path, tensors: Made, name: str = "file") -> Path:
    path = tmp_path / name
    path.write_bytes(save(tensors))
    return path


def indexed(tmp_path: Path, tensors: Made, config: dict[str, Any] | None = None) -> WeightIndex:
    """What nodes are told of such a file."""
    made = index_weights([("1" * 64, kept(tmp_path, tensors))], config or resolved("llama"))
    return msgspec.json.decode(made, type=WeightIndex)


@pytest.mark.parametrize("way", ["written", "memory"])
@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_weights_of_every_family_fit_in_each_way_that_files_hold_them(family: str, way: str, tmp_path: Path) -> None:
    config = resolved(family)
    check_fit(config, [(FILE, kept(tmp_path, made_for(config, way)))])


@pytest.mark.parametrize("before", ["module.", "_orig_mod.", "base_model.model.", "language_model."])
@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral"])
def test_weights_of_a_model_within_another_are_told_with_what_stands_before_the_names(
    family: str, before: str, tmp_path: Path
) -> None:
    config = resolved(family)
    wrapped = {before + key: tensor for key, tensor in made_for(config).items()}
    with pytest.raises(InvalidError, match=rf"^{FILE} has no tensor .*: the names begin with '{before}', as torch"):
        check_fit(config, [(FILE, kept(tmp_path, wrapped))])


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


BUFFERS = {
    "gpt2": ("attn.bias", "attn.masked_bias", "crossattention.bias"),
    "gpt_neox": ("attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq"),
}
"""What older versions stored of a layer and nobody computes with."""


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_what_nobody_computes_with_passes_without_a_word(family: str, tmp_path: Path) -> None:
    config, layer = resolved(family), FAMILY[family].prefix + FAMILY[family].layers + "1."
    own = BUFFERS.get(family, ("self_attn.rotary_emb.inv_freq", "self_attn.q_proj._extra_state"))
    left = {layer + name: np.ones(3, np.float32) for name in own}
    assert check_fit(config, [(FILE, kept(tmp_path, made_for(config) | left))]) == ""


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_tensors_of_a_larger_model_or_another_one_are_refused_by_name(family: str, tmp_path: Path) -> None:
    config, fits, known = resolved(family), made_for(resolved(family)), FAMILY[family]
    layers = tensors_of(config).layers
    first = next(name for name in fits if name.startswith(f"{known.prefix}{known.layers}0."))
    norm = next(
        name
        for name in fits
        if ("norm" in name and name.endswith("weight") and "layers" not in name) or "ln_f.w" in name
    )
    foreign = [
        first.replace(f"{known.layers}0.", f"{known.layers}{layers}."),
        first.removeprefix(known.prefix).replace("0.", f"{layers + 7}.", 1),
        f"{known.prefix}{known.layers}0.self_attn.q_norm_of_another_family.weight",
        norm.replace(".weight", ".gain"),
        "lm_head.bias",
    ]
    for name in foreign:
        with pytest.raises(InvalidError) as refused:
            check_fit(config, [(FILE, kept(tmp_path, fits | {name: np.ones(3, np.float32)}))])
        said = refused.value.detail
        assert said.startswith(f"{FILE} has tensors that belong to another model than the config's")
        assert repr(name) in said
        above = name in foreign[:2]
        assert (f"and the config has {layers})" in said) == above


def test_tensors_beside_the_model_are_a_doubt_with_three_names(tmp_path: Path) -> None:
    config = resolved("gemma3_text")
    one = {"score.weight": np.ones((2, 32), np.float32)}
    said = check_fit(config, [(FILE, kept(tmp_path, made_for(config) | one))])
    assert said.startswith(
        "the weights hold 1 tensor that this model has not, 'score.weight': it is left out, of training"
    )
    tower = {f"vision_tower.encoder.layers.{n}.mlp.fc1.bias": np.ones(3, np.float32) for n in range(1, 9)} | {
        "\u202e": one["score.weight"]
    }
    said = check_fit(config, [(FILE, kept(tmp_path, made_for(config) | tower))])
    assert said.startswith("the weights hold 9 tensors that this model has not, ")
    assert "and 6 more: they are left out" in said
    assert "\u202e" not in said


async def here(tmp_path: Path) -> tuple[Bench, ArtifactStore]:
    """A bench of four nodes, whose files are real."""
    bench, store = Bench(), DiskArtifacts(tmp_path / "artifacts")
    for number in range(1, 5):
        await bench.enter(number)
    bench.parts.jobs._artifacts = store
    bench.parts.jobs._model_files = ModelFiles(store)
    return bench, store


def of_llama(*weights: str) -> JobSpec:
    config = FAMILY_CONFIGS["llama"] | {"vocab_size": VOCABULARY}
    return msgspec.structs.replace(spec(), model=ModelSpec(config=config, weights=weights))


async def test_what_is_doubtful_about_weights_stands_in_quote_and_job(tmp_path: Path) -> None:
    bench, store = await here(tmp_path)
    tensors = made_for(resolved("llama")) | {"v_head.weight": np.ones(3, np.float32)}
    digest = await store.put_file(kept(tmp_path, tensors))
    quote = await bench.parts.jobs.quote(of_llama(digest))
    assert quote.problems == ()
    [told] = [reason for reason in quote.reasons if "'v_head.weight'" in reason]
    (tmp_path / "data").write_bytes(b"a")
    data = await store.put_file(tmp_path / "data")
    job = msgspec.structs.replace(of_llama(digest), dataset=msgspec.structs.replace(spec().dataset, artifact=data))
    made = await bench.parts.jobs.create(NewJob(job))
    assert told in made.quote.reasons


async def test_adapters_of_layers_that_the_model_has_not_are_told_with_the_price(tmp_path: Path) -> None:
    bench, store = await here(tmp_path)
    job = of_llama(await store.put_file(kept(tmp_path, made_for(resolved("llama")))))
    for targets, problem in (
        (("q_proj", "down_proj"), ""),
        (("q_proj", "query"), "training.lora.targets has 'query': this"),
    ):
        training = msgspec.structs.replace(job.training, lora=LoraSpec(targets=targets))
        quote = await bench.parts.jobs.quote(msgspec.structs.replace(job, training=training))
        assert "".join(quote.problems).startswith(problem)
        assert bool(quote.problems) == bool(problem)


async def test_a_tokenizer_of_the_data_and_a_warm_up_without_end_are_told_with_the_price(tmp_path: Path) -> None:
    bench, store = await here(tmp_path)
    job = of_llama(await store.put_file(kept(tmp_path, made_for(resolved("llama")))))
    made = msgspec.structs.replace(job, tokenizer=TokenizerSpec("bpe", vocabulary=259))
    (problem,) = (await bench.parts.jobs.quote(made)).problems
    assert problem.startswith(
        "tokenizer.kind bpe makes tokens of its own, which mean nothing to weights that have learnt"
    )
    slow = msgspec.structs.replace(job, training=msgspec.structs.replace(job.training, warmup_steps=10_000))
    reasons = (await bench.parts.jobs.quote(slow)).reasons
    assert any("training.warmup_steps 10,000 are more than the" in reason for reason in reasons)
    quick = msgspec.structs.replace(job, training=msgspec.structs.replace(job.training, warmup_steps=0))
    assert not any("warmup_steps" in reason for reason in (await bench.parts.jobs.quote(quick)).reasons)


async def test_weights_that_come_later_are_compared_before_a_job_is_made(tmp_path: Path) -> None:
    bench, store = await here(tmp_path)
    fits = made_for(resolved("llama"))
    (tmp_path / "first").write_bytes(save({k: v for k, v in fits.items() if "layers" not in k}))
    (tmp_path / "bad").write_bytes(save({k: v[..., :1] for k, v in fits.items() if "layers" in k}))
    first, later = await store.put_file(tmp_path / "first"), file_digest(tmp_path / "bad")
    (tmp_path / "data").write_bytes(b"a")
    data = await store.put_file(tmp_path / "data")
    job = msgspec.structs.replace(
        of_llama(first, later), dataset=msgspec.structs.replace(spec().dataset, artifact=data)
    )
    quote = await bench.parts.jobs.quote(job)
    assert quote.problems == ()
    assert any(reason.startswith("1 of 2 files of weights are not uploaded yet") for reason in quote.reasons)
    with pytest.raises(NotFoundError, match=later):
        await bench.parts.jobs.create(NewJob(job))
    await store.put_file(tmp_path / "bad")
    assert "has the shape" in (await bench.parts.jobs.quote(job)).problems[0]
    with pytest.raises(InvalidError, match="has the shape"):
        await bench.parts.jobs.create(NewJob(job))
    assert await bench.parts.jobs.list(10, None) == []


async def test_a_job_that_starts_from_anothers_model_is_compared_with_that_ones_config(tmp_path: Path) -> None:
    bench, store = await here(tmp_path)
    (tmp_path / "data").write_bytes(b"a")
    data = msgspec.structs.replace(spec().dataset, artifact=await store.put_file(tmp_path / "data"))
    origin = await bench.job(msgspec.structs.replace(spec(), dataset=data))
    config = resolved("llama")
    async with bench.parts.desk.open(origin) as work:
        work.job = msgspec.structs.replace(work.job, state=JobState.SETTLED, model="1" * 64, config=config)
    fits = made_for(config)
    good = await store.put_file(kept(tmp_path, fits))
    bad = await store.put_file(kept(tmp_path, {k: v for k, v in fits.items() if "layers.1" not in k}))
    for weights, problem in ((good, ""), (bad, "has no tensor model.layers.1.")):
        job = msgspec.structs.replace(spec(), model=ModelSpec(from_job=origin, weights=weights))
        problems = (await bench.parts.jobs.quote(job)).problems
        assert len(problems) == bool(problem)
        assert problem in "".join(problems)


async def test_files_are_read_once_in_a_thread_and_refusals_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, store = await here(tmp_path)
    threads: list[bool] = []

    def counted(*args: Any) -> str:
        threads.append(threading.current_thread() is threading.main_thread())
        return check_fit(*args)

    monkeypatch.setattr(model_files, "check_fit", counted)
    fits = made_for(resolved("llama"))
    good = await store.put_file(kept(tmp_path, fits))
    bad = await store.put_file(kept(tmp_path, {"a": fits["model.norm.weight"]}))
    for digest in (good, bad):
        before, threads[:] = len(threads), []
        quotes = [await bench.parts.jobs.quote(of_llama(digest)) for _ in range(3)]
        other = msgspec.structs.replace(of_llama(digest), budget=10**9)
        assert len({quote.problems for quote in quotes}) == 1
        await bench.parts.jobs.quote(other)
        assert threads == [False], before
    threads.clear()
    await bench.parts.jobs.quote(
        msgspec.structs.replace(
            of_llama(good), model=ModelSpec(config=of_llama().model.config | {"num_hidden_layers": 2}, weights=good)
        )
    )
    assert threads == [False], "another config is another question"


def test_a_missing_shard_is_told_of(tmp_path: Path) -> None:
    config = resolved("llama")
    fits = made_for(config)
    first = {key: value for key, value in fits.items() if "layers" not in key}
    other = {key: value for key, value in fits.items() if "layers" in key and "layers.2." not in key}
    parts = kept(tmp_path, first, "first"), kept(tmp_path, other, "other")
    with pytest.raises(InvalidError, match=r"none of the 2 files of weights has a tensor model\.layers\.2\."):
        check_fit(config, list(zip("ab", parts, strict=True)))
    names = (f"model-0000{number}-of-00003.safetensors" for number in (1, 3))
    named = list(zip(names, parts, strict=True))
    with pytest.raises(
        InvalidError, match=r"model\.layers\.2\..* all files of the model, model-00002-of-00003\.safetensors among"
    ):
        check_fit(config, named)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_value_that_is_not_finite_is_found_while_the_index_is_made(tmp_path: Path, value: float, dtype: type) -> None:
    config = resolved("llama")
    tensor: NDArray[Any] = np.full((3, 5), np.finfo(np.float32 if dtype is np.float64 else dtype).max, dtype)
    tensor[0] = -tensor[0]
    assert indexed(tmp_path, {NORM: tensor})
    tensor[2, 4] = value
    with pytest.raises(InvalidError, match=rf"^tensor {NORM} of {FILE}, of shape \[3, 5\], holds values that are NaN"):
        index_weights([("1" * 64, kept(tmp_path, {NORM: tensor}))], config, {"1" * 64: FILE})


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_double_that_is_infinite_as_a_float_is_found(tmp_path: Path, sign: float) -> None:
    infinite = float(np.finfo(np.float32).max) + 2.0**103  # Half way to what would be the next.
    for value, fits in ((np.nextafter(infinite, 0.0), True), (infinite, False), (1e300, False)):
        tensor = np.full((2, 2), sign * value)
        with np.errstate(over="ignore"):
            assert np.isfinite(tensor.astype(np.float32)).all() == fits
        if fits:
            assert indexed(tmp_path, {NORM: tensor})
            continue
        with pytest.raises(InvalidError, match="NaN or infinite in float32"):
            indexed(tmp_path, {NORM: tensor})


BESIDE: dict[str, Made] = {
    "a head of another model": {"mtp.lm_head.weight": np.zeros((8, 8), np.float32)},
    "a head's bias": {"draft.lm_head.bias": np.zeros(8, np.float32)},
    "a mask that is infinite": {"model.layers.0.attention.masked_bias": np.array(-np.inf, np.float16)},
    "a tower with NaN": {"vision_tower.layers.0.weight": np.full((2, 2), np.nan, np.float32)},
    "a name beyond all bounds": {"vision_tower." + "x" * 600: np.zeros(3, np.float32)},
    "a tensor of nothing": {"a": np.zeros((0, 4), np.float32)},
    "numbers of another type": {"steps": np.zeros(1, np.int64)},
}


@pytest.mark.parametrize("what", BESIDE)
def test_what_stands_beside_the_model_reaches_no_node_whatever_it_is(what: str, tmp_path: Path) -> None:
    """A node fetched all of it, took another model's head for the tied one, and could not read the index of a long name."""
    config = resolved("llama", tie_word_embeddings=True)
    fits = {name: value for name, value in made_for(config).items() if name != HEAD}
    check_fit(config, [(FILE, kept(tmp_path, fits | BESIDE[what]))])
    index = indexed(tmp_path, fits | BESIDE[what], config)
    assert index.tensors.keys() == fits.keys()
    last = tensors_of(config).layers
    assert FAMILY["llama"].embedding in belongs(index.tensors, Layers(1, last), False, True)


QUANTISED: dict[str, Made] = {
    "GPTQ": {"qweight": np.zeros((4, 32), np.int32), "scales": np.zeros((1, 32), np.float16)},
    "bitsandbytes, 8 bits": {"weight": np.zeros((32, 32), np.int8), "SCB": np.zeros(32, np.float32)},
    "bitsandbytes, 4 bits": {"weight": np.zeros((512, 1), np.uint8), "weight.absmax": np.zeros(16, np.float32)},
    "FP8 with blocks": {"weight": np.zeros((32, 32), np.int8), "weight_scale_inv": np.zeros((1, 1), np.float32)},
    "compressed-tensors": {"weight_packed": np.zeros((32, 4), np.int32), "weight_scale": np.zeros((32, 1), np.float32)},
}


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_weights_are_told_as_that(kind: str, tmp_path: Path) -> None:
    """It was advised to upload all files of the model, or its config."""
    config, module = resolved("llama"), "model.layers.0.self_attn.q_proj."
    floats = {name: value for name, value in made_for(config).items() if not name.startswith(module)}
    packed = {module + name: value for name, value in QUANTISED[kind].items()}
    said = (
        rf"{FILE} holds quantised weights \(tensor '{module}[\w.]+' of shape \[.*take the model that they were made of"
    )
    with pytest.raises(InvalidError, match=said):
        check_fit(config, [(FILE, kept(tmp_path, floats | packed))])


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
    (_other_type, True),
    (_fp8, True),
    (_renamed, True),
    (_other_shape, True),
    (_other_vocabulary, True),
    (_adapter, True),
    (_cut, False),
    (_damaged, False),
]
"""What spoils weights, and whether a tensor is at fault rather than the file."""


@pytest.mark.parametrize("seed", range(104))
async def test_a_hundred_bad_jobs_are_refused_before_money_moves(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    spoil, of_tensor = SPOILERS[seed % len(SPOILERS)]
    fits = made_for(resolved("llama"))
    (tmp_path / "bad").write_bytes(spoil(fits, chance.choice(sorted(fits)), chance))
    bench, store = await here(tmp_path)
    digest = await store.put_file(tmp_path / "bad")
    await bench.parts.jobs._files.keep("local", digest, NewUpload(5, FILE, "weights"))
    quote = await bench.parts.jobs.quote(of_llama(digest), "local")
    [problem] = quote.problems
    assert FILE in problem
    assert not of_tensor or ("tensor " in problem and "shape [" in problem)
    assert digest not in problem
    assert "Error" not in problem


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"PK\x03\x04" + bytes(300), "a file of torch.save"),
        (b"\x80\x02}q\x00." + bytes(300), "a pickle, which is never opened"),
        (b"GGUF\x03\0\0\0" + bytes(300), "a GGUF file"),
        (b"\x89HDF\r\n\x1a\n" + bytes(300), "an HDF5 file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n", "a pointer of Git LFS"),
        (b"/annex/objects/SHA256E-s12--ab.safetensors\n", "a pointer of git-annex, not the file"),
        (b"<html>Sign in, please</html>", "has 28 bytes of text, such as the page of an error"),
        (b"Not found", "9 bytes of text"),
        (b"", "it is empty"),
        (b"\0" * 5, "does not begin with a header"),
        (b"\xff" * 900, "does not begin with a header"),
        (save({}), "there is no tensor in it"),
    ],
)
def test_what_is_no_safetensors_file_is_told_as_what_it_is(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(InvalidError) as refused:
        read_safetensors(tmp_path / "bad", FILE)
    assert refused.value.detail.startswith(FILE)
    assert words in refused.value.detail


def test_a_tensor_in_two_files_is_told_with_both(tmp_path: Path) -> None:
    config = resolved("llama")
    files = [(name, kept(tmp_path, made_for(config))) for name in ("a copy", "the model")]
    with pytest.raises(InvalidError, match="is in a copy and in the model: give each shard once"):
        check_fit(config, files)


def test_two_files_of_the_same_content_are_told_as_that(tmp_path: Path) -> None:
    config = resolved("llama")
    file = kept(tmp_path, made_for(config))
    said = r"is in two files of the same content, a\.safetensors: give each shard once"
    with pytest.raises(InvalidError, match=said):
        check_fit(config, [("a.safetensors", file)] * 2)


def test_an_upload_is_refused_under_its_own_name(tmp_path: Path) -> None:
    fits = made_for(resolved("llama"))
    for spoil in (_adapter, _cut, _damaged, _fp8):
        (tmp_path / "bad").write_bytes(spoil(fits, "model.norm.weight", random.Random(1)))
        with pytest.raises(CottageError) as refused:
            _check(tmp_path / "bad", NewUpload(5, "adapter_model.safetensors", "weights"))
        assert refused.value.detail.startswith("adapter_model.safetensors")
        assert json.dumps(refused.value.detail).isascii()
