"""Hostile checkpoints: nodes store them, so the coordinator opens them in a process with limits, and never as code (F23)."""

import json
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save
from tokenizers import Tokenizer
from tokenizers.models import BPE

from coordinator.domain.job import Job
from coordinator.errors import InvalidError, UnavailableError
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.models import TrainerTools
from coordinator.store.ports import col
from protocol.job.job import TokenizerSpec
from protocol.models.model import STARTS_LEARNT
from tests.coordinator.bench import Bench

WIDTH, INNER, VOCABULARY = 8, 12, 30
CONFIG = {
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
    "vocab_size": VOCABULARY,
}
LAYER = "anchor.model.layers.0."
SHAPES = {
    "anchor.model.embed_tokens.weight": (VOCABULARY, WIDTH),
    "anchor.model.norm.weight": (WIDTH,),
    "anchor.lm_head.weight": (VOCABULARY, WIDTH),
    LAYER + "input_layernorm.weight": (WIDTH,),
    LAYER + "post_attention_layernorm.weight": (WIDTH,),
    **{f"{LAYER}self_attn.{name}_proj.weight": (WIDTH, WIDTH) for name in "qkvo"},
    LAYER + "mlp.gate_proj.weight": (INNER, WIDTH),
    LAYER + "mlp.up_proj.weight": (INNER, WIDTH),
    LAYER + "mlp.down_proj.weight": (WIDTH, INNER),
}
UP = LAYER + "mlp.up_proj.weight"


def checkpoint(round_: object = 3, **changes: np.ndarray | None) -> bytes:
    """A good one but for ``changes``; None leaves a tensor out."""
    tensors = {name: np.full(shape, 0.5, np.float32) for name, shape in SHAPES.items()}
    tensors |= {"round": np.array([round_])} | changes  # type: ignore[operator]
    return save({name: value for name, value in tensors.items() if value is not None})


def headed(header: dict[str, object] | bytes, body: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def place(shape: Sequence[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}


MARK = "opened-as-code"
HOSTILE = {
    "a pickle": b"cos\nsystem\n(S'touch " + MARK.encode() + b"'\ntR.",
    "a pickle in an archive": b"PK\x03\x04" + bytes(26) + b"archive/data.pklcos\nsystem\n(S'touch x'\ntR.",
    "a header of eight exabytes": headed(b"{}", length=2**63),
    "a header that is all there is, and longer": headed(b"{}", length=3),
    "a header of brackets": headed(b"[" * 100_000),
    "tensors over each other": headed({"round": place([2], 0, 8), UP: place([2], 4, 12)}, bytes(12)),
    "a tensor behind the end": headed({"round": place([2], 0, 8)}, bytes(4)),
    "a shape beyond all numbers": headed({"round": place([2**62, 2**62], 0, 8)}, bytes(8)),
    "another type": checkpoint(**{UP: np.full(SHAPES[UP], 0.5, np.float64)}),
    "another shape": checkpoint(**{UP: np.full((INNER + 1, WIDTH), 0.5, np.float32)}),
    "no shape at all": checkpoint(**{UP: np.array(0.5, np.float32)}),
    "a tensor that is missing": checkpoint(**{UP: None}),
    "no number": checkpoint(**{UP: np.full(SHAPES[UP], np.nan, np.float32)}),
    "an infinite number": checkpoint(**{UP: np.full(SHAPES[UP], -np.inf, np.float32)}),
    "a round that is no number": checkpoint(float("nan")),
    "a round of no length": checkpoint(round=np.zeros(0, np.int64)),
    "no round": checkpoint(round=None),
}


class Desk:
    """The tools over a folder, and a job that waits for its model."""

    def __init__(self, folder: Path, job: Job, memory_mb: int) -> None:
        self.folder, self.job = folder, job
        self.artifacts = DiskArtifacts(folder / "artifacts")
        self.tools = TrainerTools(self.artifacts, folder / "scratch", 60.0, memory_mb)

    async def keep(self, data: bytes) -> str:
        path = self.folder / "file"
        path.write_bytes(data)
        return await self.artifacts.put_file(path)

    async def assemble(self, data: bytes) -> str:
        return await self.tools.assemble(self.job, [await self.keep(data)], [])


async def desk(folder: Path, memory_mb: int = 4096) -> Desk:
    bench = Bench()
    await bench.enter(1)
    name = await bench.job()
    async with bench.store.transaction() as tx:
        (job,) = await tx.find(Job, col(Job.id).equals(name))
    made = Desk(folder, job, memory_mb)
    tokenizer = Tokenizer(BPE()).to_str().encode()
    files = {"config.json": await made.keep(json.dumps(CONFIG).encode()), "tokenizer.json": await made.keep(tokenizer)}
    made.job = msgspec.structs.replace(job, files=files)
    return made


async def test_a_good_checkpoint_becomes_a_model(tmp_path: Path) -> None:
    made = await desk(tmp_path)
    assert await made.artifacts.has(await made.assemble(checkpoint()))


async def test_what_came_beside_the_weights_is_in_the_archive_and_not_in_its_readme(tmp_path: Path) -> None:
    made = await desk(tmp_path)
    settings, generation = (
        {"chat_template": "{{ a template }}", "eos_token": "</s>"},
        {"eos_token_id": [1, 2], "top_p": 0.5},
    )
    spec = msgspec.structs.replace(
        made.job.spec,
        tokenizer=TokenizerSpec("file", settings=settings),
        model=msgspec.structs.replace(made.job.spec.model, generation=generation),
    )
    config = await made.keep(json.dumps(CONFIG | {STARTS_LEARNT: True}).encode())
    made.job = msgspec.structs.replace(made.job, spec=spec, files=made.job.files | {"config.json": config})
    with zipfile.ZipFile(made.artifacts.path(await made.assemble(checkpoint()))) as packed:
        assert json.loads(packed.read("tokenizer_config.json")) == settings
        assert json.loads(packed.read("generation_config.json")) == generation
        assert b"a template" not in packed.read("README.md")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_checkpoint_is_refused_in_words_and_leaves_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # What runs as code would do so in the folder that the process begins in.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    made = await desk(tmp_path)
    with pytest.raises(InvalidError, match="checkpoint") as refused:
        await made.assemble(HOSTILE[name])
    assert "Traceback" not in refused.value.detail
    assert list((tmp_path / "scratch").iterdir()) == []
    assert not (tmp_path / MARK).exists()


async def test_a_tool_that_needs_more_memory_than_it_may_ends_and_the_coordinator_goes_on(tmp_path: Path) -> None:
    made = await desk(tmp_path, memory_mb=64)
    with pytest.raises(UnavailableError, match="putting the model together failed, and the coordinator's log says why"):
        await made.assemble(checkpoint())
    assert list((tmp_path / "scratch").iterdir()) == []
