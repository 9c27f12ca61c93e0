"""Models of the Hugging Face Hub by name, by the real command and the real library, against a server that plays the Hub."""

import asyncio
import io
import json
import os
import sys
import zipfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from coordinator.client import Client, ProblemError
from protocol.models.model import PRESETS, tensors_of
from protocol.rest.hub import HubFile, HubModelView
from tests.coordinator.web.conftest import House
from tests.coordinator.web.hub.server import TOKEN, Hub, hub
from tests.support.chat_templates import CHATML, small_tokenizer

NAME = "village/tiny-chat"


@dataclass
class Said:
    status: int
    out: str
    err: str


@dataclass
class Shell:
    """Somebody's command line, with a cache and a home of its own."""

    home: Path
    url: str
    hub: Hub
    token: str = ""
    own_hub: bool = True

    async def cottage(self, *words: str) -> Said:
        own = {"HOME": self.home, "HF_HOME": self.home / "hf", "COTTAGE_SERVER": self.url}
        own |= {"HF_ENDPOINT": self.hub.url} if self.own_hub else {"HF_HUB_OFFLINE": "1"}
        own["HF_HUB_DISABLE_XET"] = "1"  # A protocol of its own, for large files, which the server here does not speak.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "cottage",
            *words,
            env=kept
            | {name: str(value) for name, value in own.items()}
            | ({"HF_TOKEN": self.token} if self.token else {}),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        return Said(process.returncode or 0, out.decode(), err.decode())


@pytest.fixture
async def shell(house: House, tmp_path: Path) -> AsyncIterator[Shell]:
    document = {"name": "tuned", "dataset": {}, "budget": 9_000_000, "training": {"tokens": 4096, "sequence": 64}}
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "chats.jsonl").write_text('{"text": "to be or not to be"}\n' * 100)
    (tmp_path / "home" / "job.yaml").write_text(json.dumps(document))
    async with hub() as served:
        yield Shell(tmp_path / "home", house.url, served)


def model(folder: Path) -> Path:
    """A folder as repositories have them: weights in two shards beside the same in one file, and much that nobody needs."""
    folder.mkdir()
    tokenizer = small_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {**PRESETS["tiny-llama"], "vocab_size": tokenizer.get_vocab_size(with_added_tokens=True)}
    small = {"config": config, "generation_config": {"top_p": 0.9}, "tokenizer_config": {"chat_template": CHATML}}
    for name, content in small.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    values = {name: np.zeros(shape, np.float32) for name, shape in tensors_of(config).all().items()}
    names = sorted(values)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, inside in parts.items():
        save_file({name: values[name] for name in inside}, folder / file)
    places = {name: file for file, inside in parts.items() for name in inside}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    save_file(values, folder / "consolidated.safetensors")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"0" * 1000)
    return folder


async def submit(shell: Shell, *words: str) -> Said:
    files = [str(shell.home / "job.yaml"), "--data", str(shell.home / "chats.jsonl")]
    return await shell.cottage("submit", *files, "--yes", *words)


@pytest.mark.long
async def test_a_model_is_named_and_its_files_licence_and_commit_go_with_the_job(
    shell: Shell, house: House, tmp_path: Path
) -> None:
    there = shell.hub.add(NAME, model(tmp_path / "repository"), card={"license": "apache-2.0"})
    said = await submit(shell, "--model", NAME)
    assert said.status == 0, said.err
    assert f"{NAME} at commit {there.commit[:12]}: its licence is apache-2.0" in said.err
    (job,) = await house.cluster.list(5, None)
    assert job.spec.model.hub == f"{NAME}@{there.commit}"
    assert job.spec.model.license == "apache-2.0"
    assert len(job.spec.model.weight_files) == 2
    for number, digest in enumerate(job.spec.model.weight_files, 1):
        async with house.artifacts.files(digest) as (path,):
            assert path.read_bytes() == there.files[f"model-0000{number}-of-00002.safetensors"]
    assert job.spec.model.generation == {"top_p": 0.9}
    assert job.spec.tokenizer.settings is not None
    assert job.spec.tokenizer.settings["chat_template"] == CHATML
    fetched = {path for _, path, _ in shell.hub.asked if "/resolve/" in path}
    assert not any("onnx" in path or "consolidated" in path for path in fetched)


@pytest.fixture
def coordinators_hub(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator reaches the Hub, with a token of its operator's; whoever submits does not."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", shell.hub.url)
    template = shell.hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    shell.own_hub = False


@pytest.mark.usefixtures("coordinators_hub")
async def test_the_coordinator_fetches_a_public_model_itself_and_goes_on_after_a_cut(
    shell: Shell, house: House, tmp_path: Path
) -> None:
    there = shell.hub.add(NAME, model(tmp_path / "repository"), card={"license": "apache-2.0"})
    shell.hub.cut = 1000
    said = await submit(shell, "--model", NAME)
    assert said.status == 0, said.err
    assert f"{NAME} at commit {there.commit[:12]}: its licence is apache-2.0" in said.err
    (job,) = await house.cluster.list(5, None)
    assert (job.spec.model.hub, job.spec.model.license) == (f"{NAME}@{there.commit}", "apache-2.0")
    assert job.spec.model.config == json.loads(there.files["config.json"])
    for number, digest in enumerate(job.spec.model.weight_files, 1):
        async with house.artifacts.files(digest) as (path,):
            assert path.read_bytes() == there.files[f"model-0000{number}-of-00002.safetensors"]
    assert job.spec.tokenizer.file is not None
    async with house.artifacts.files(job.spec.tokenizer.file) as (path,):
        assert path.read_bytes() == there.files["tokenizer.json"]
    assert job.spec.tokenizer.settings == {"chat_template": CHATML}
    assert sum("/cdn/" in path for _, path, _ in shell.hub.asked) > 3, "it was cut and gone on with"
    assert not [path for _, path, signed in shell.hub.asked if signed], "the operator's token is nobody else's"


@pytest.mark.usefixtures("coordinators_hub")
async def test_what_the_coordinator_may_not_fetch_is_fetched_by_who_may(
    shell: Shell, house: House, tmp_path: Path
) -> None:
    shell.hub.add(NAME, model(tmp_path / "repository"), gated=True)
    said = await submit(shell, "--model", NAME)
    assert said.status == 2
    assert f"{NAME} is gated: `cottage submit --model {NAME}` fetches it with your own token" in said.err
    assert "HF_HUB_OFFLINE is set, so the Hub is not asked" in said.err
    assert not [path for _, path, _ in shell.hub.asked if "/resolve/" in path]


@pytest.mark.usefixtures("coordinators_hub")
@pytest.mark.parametrize(
    "path", ["../../../api/whoami-v2", "a/../../../b.safetensors", "README.md", "model.safetensors"]
)
async def test_an_upload_is_pulled_from_a_model_of_the_hub_and_from_nowhere_else(
    shell: Shell, house: House, tmp_path: Path, path: str
) -> None:
    there = shell.hub.add(NAME, model(tmp_path / "repository"))
    async with Client(house.url, attempts=1) as client:
        with pytest.raises(ProblemError) as refused:
            await client.pull(HubModelView(NAME, there.commit, "", "", (), {}, {}), HubFile(path, 100))
    assert refused.value.status == (409 if path == "model.safetensors" else 422)
    assert len(shell.hub.asked) == (path == "model.safetensors")


@pytest.mark.long
async def test_a_second_job_fetches_nothing_again_and_a_branch_that_moved_on_is_another_commit(
    shell: Shell, house: House, tmp_path: Path
) -> None:
    there = shell.hub.add(NAME, model(tmp_path / "repository"))
    first = there.commit
    assert (await submit(shell, "--model", f"{NAME}@main")).status == 0
    shell.hub.asked.clear()
    assert (await submit(shell, "--model", NAME)).status == 0
    assert not [path for _, path, _ in shell.hub.asked if "/resolve/" in path]
    there.files["README.md"] += b"more\n"
    document = json.loads((shell.home / "job.yaml").read_text()) | {"model": {"hub": NAME}}
    (shell.home / "job.yaml").write_text(json.dumps(document))
    assert (await submit(shell)).status == 0
    jobs = await house.cluster.list(5, None)
    assert {job.spec.model.hub for job in jobs} == {f"{NAME}@{first}", f"{NAME}@{there.commit}"}


@pytest.mark.long
async def test_a_gated_model_needs_a_token_which_goes_to_the_hub_alone(
    shell: Shell, house: House, tmp_path: Path
) -> None:
    shell.hub.add(
        NAME, model(tmp_path / "repository"), card={"license": "other", "license_name": "village-1"}, gated=True
    )
    refused = await submit(shell, "--model", NAME)
    assert refused.status == 2
    assert f"{NAME} is gated: agree to its terms on its page, then `hf auth login` or set HF_TOKEN" in refused.err
    shell.token = TOKEN
    said = await submit(shell, "--model", NAME)
    assert said.status == 0, said.err
    assert "its licence is village-1 (gated: whoever uses it has agreed to its terms on its page)" in said.err
    assert not [path for _, path, signed in shell.hub.asked if path.startswith("/cdn/") and signed]
    (job,) = await house.cluster.list(5, None)
    assert TOKEN not in repr(job)
    assert TOKEN not in said.out + said.err
    kept = [path for path in house.folder.rglob("*") if path.is_file() and shell.home not in path.parents]
    assert not [path for path in kept if TOKEN.encode() in path.read_bytes()]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("village/nothing", "there is neither a folder village/nothing here nor such a repository on the Hub"),
        (f"{NAME}@v9", f"the Hub has no revision v9 of {NAME}"),
        ("village/pickled", "village/pickled has no *.safetensors: name the repository that it was made of"),
        ("village/packed", "village/packed has GGUF files: name the repository that it was made of"),
    ],
)
async def test_what_is_no_model_of_the_hub_is_told_with_the_way_out(
    shell: Shell, tmp_path: Path, name: str, says: str
) -> None:
    shell.hub.add(NAME, model(tmp_path / "repository"))
    for other, file in (("pickled", "pytorch_model.bin"), ("packed", "tiny-q8_0.gguf")):
        (tmp_path / other).mkdir()
        (tmp_path / other / file).write_bytes(b"0")
        shell.hub.add(f"village/{other}", tmp_path / other)
    said = await submit(shell, "--model", name)
    assert said.status == 2, said.err
    assert says in said.err


async def test_a_hub_that_is_away_is_told(shell: Shell) -> None:
    shell.hub.url = "http://127.0.0.1:9"
    said = await submit(shell, "--model", NAME)
    assert said.status == 2
    assert "the Hub does not answer" in said.err


@pytest.mark.long
async def test_a_finished_model_is_sent_to_the_hub_for_its_owners_eyes(
    shell: Shell, house: House, tmp_path: Path
) -> None:
    shell.hub.add(NAME, model(tmp_path / "repository"))
    assert (await submit(shell, "--model", NAME)).status == 0
    (job,) = await house.cluster.list(5, None)
    files = {"config.json": b"{}", "model.safetensors": b"1" * 999, "README.md": b"---\nlicense: mit\n---\n"}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for inside, content in files.items():
            file.writestr(zipfile.ZipInfo(inside), content)
    await house.cluster.finish(job.id, packed.getvalue())
    house.cluster.run(job.id)
    words = ("download", job.id, str(tmp_path / "out"), "--push", "village/tuned")
    assert "the Hub does not allow this" in (await shell.cottage(*words)).err
    shell.token = TOKEN
    said = await shell.cottage(*words)
    assert said.status == 0, said.err
    assert f"It was sent to {shell.hub.url}/village/tuned" in said.out
    made = shell.hub.repositories["village/tuned"]
    assert made.private
    assert made.files == files
