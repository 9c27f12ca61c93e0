"""A model of a few thousand parameters with a chat template, in which a message is as in the text that it learnt."""

import json
from pathlib import Path

from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.model_archives import pack
from protocol.ids import Digest
from protocol.job.job import TokenizerSpec
from tests.trainer.small import SEQUENCE, VOCABULARY, config_of
from tests.trainer.worker.test_checkpoints import TEXT, checkpoints
from trainer.data.prepare import prepare
from trainer.export.assemble import assemble
from trainer.formats.source import Dataset

TEMPLATE = "{% for m in messages %}def {{ m.content }}{% endfor %}{% if add_generation_prompt %}_{% endif %}"


def small_model(folder: Path) -> Path:
    """Make it in a new folder; returns that of the model."""
    folder.mkdir()
    (folder / "text").write_text(TEXT)
    spec = TokenizerSpec(vocabulary=VOCABULARY)
    prepare(Dataset.of(folder / "text", "text"), spec, None, 0.1, SEQUENCE, folder / "job")
    model = folder / "model"
    assemble(checkpoints(folder, "llama"), config_of(), folder / "job" / "tokenizer.json", model, {})
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": TEMPLATE}))
    return model


async def pack_into(artifacts: DiskArtifacts, folder: Path, archive: Path) -> Digest:
    """Store a folder as the coordinator stores models."""
    pack(folder, archive)
    return await artifacts.put_file(archive)
