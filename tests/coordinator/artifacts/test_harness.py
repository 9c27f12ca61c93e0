"""Tasks of lm-evaluation-harness on a model folder: the numbers are the library's own, and a task's fault is the task's."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from coordinator.config import OfferedTasks
from coordinator.errors import InvalidError, TookTooLongError, UnavailableError
from coordinator.services.artifacts import harness as offers
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.model_archives import pack
from coordinator.services.artifacts.models import TrainerTools
from protocol.codec import convert
from protocol.evaluation import EvaluationSpec, TaskResult
from protocol.job.job import TokenizerSpec
from trainer.data.prepare import make_tokenizer

lm_eval = pytest.importorskip("lm_eval", reason="lm-evaluation-harness (lm_eval) is not installed")

from trainer.export.harness import results_of, run_tasks  # noqa: E402

TASK = """\
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
"""
HANGING = "task: hanging\ncustom_dataset: !function slow.forever\noutput_type: multiple_choice\n"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Nobody's own datasets are met."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of an operator's own tasks: of two the data is here, of one it is not."""
    folder, chance = tmp_path_factory.mktemp("tasks"), random.Random(1)
    for name in ("numbers", "letters"):
        rows = [
            {
                "question": f"{chance.randint(0, 99)} and",
                "choices": [" a", " bcd", " efghij"],
                "answer": chance.randint(0, 2),
            }
            for _ in range(40)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, rows=folder / f"{name}.jsonl"))
    (folder / "broken.yaml").write_text(TASK.format(name="broken", rows=folder / "nowhere.jsonl"))
    (folder / "slow.py").write_text("import time\n\n\ndef forever(**_kwargs):\n    time.sleep(3600)\n")
    (folder / "hanging.yaml").write_text(HANGING)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small folder as jobs leave them."""
    folder = tmp_path_factory.mktemp("model")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=259, max_position_embeddings=128, **sizes)).save_pretrained(folder)
    plain = make_tokenizer(TokenizerSpec("bytes"), None, lambda: iter(()))
    PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<|endoftext|>").save_pretrained(folder)
    return folder


def expected(model: Path, tasks: Path, name: str, limit: int) -> list[TaskResult]:
    """As anybody runs it at home on the folder."""
    manager = lm_eval.tasks.TaskManager(include_path=str(tasks), include_defaults=False)
    args = f"pretrained={model}"
    found = lm_eval.simple_evaluate(
        "hf", args, tasks=[name], limit=limit, task_manager=manager, device="cpu", batch_size=1
    )
    values = found["results"][name]
    return [
        TaskResult(name, metric, values[f"{metric},none"], values[f"{metric}_stderr,none"], limit)
        for metric in ("acc", "acc_norm")
    ]


async def told(
    tools: TrainerTools, archive: str, asked: EvaluationSpec, folder: Path, seconds: float = 300.0
) -> list[Any]:
    offered = OfferedTasks(asked.tasks, (folder,))
    return [line async for line in tools.try_tasks(archive, asked, offered, seconds)]


@pytest.fixture
async def shop(tmp_path: Path, model: Path) -> tuple[TrainerTools, str]:
    """A coordinator's tools, and an archive of the model."""
    artifacts = DiskArtifacts(tmp_path / "artifacts")
    pack(model, tmp_path / "model.zip")
    archive = await artifacts.put_file(tmp_path / "model.zip")
    return TrainerTools(artifacts, tmp_path / "scratch", 60.0, 16_384), archive


async def test_a_coordinators_numbers_are_those_of_the_library_on_the_downloaded_folder(
    shop: tuple[TrainerTools, str], model: Path, tasks: Path
) -> None:
    asked = EvaluationSpec(("numbers", "broken", "letters"), 30)
    lines = await told(*shop, asked, tasks)
    assert [line["task"] for line in lines] == list(asked.tasks)
    for line in (lines[0], lines[2]):
        assert convert(line["results"], list[TaskResult]) == expected(model, tasks, line["task"], 30)
    assert lines[1]["problem"] == "task broken could not be run: FileNotFoundError", "and no path of this machine"
    assert len({result["value"] for line in (lines[0], lines[2]) for result in line["results"]}) > 1


async def test_a_task_that_hangs_ends_with_the_time_that_there_is(shop: tuple[TrainerTools, str], tasks: Path) -> None:
    began = time.monotonic()
    with pytest.raises(TookTooLongError, match=r"evaluating the model took longer than 5 s.*evaluation\.limit"):
        await told(*shop, EvaluationSpec(("hanging",)), tasks, 5.0)
    assert time.monotonic() - began < 60


async def test_what_is_no_model_is_refused_in_a_sentence(
    shop: tuple[TrainerTools, str], tasks: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    pack(tmp_path / "empty", tmp_path / "empty.zip")
    archive = await DiskArtifacts(tmp_path / "artifacts").put_file(tmp_path / "empty.zip")
    with pytest.raises(InvalidError, match="lm-evaluation-harness cannot open the model: "):
        await told(shop[0], archive, EvaluationSpec(("numbers",)), tasks)


def test_the_process_ends_with_whoever_started_it(model: Path, tasks: Path, tmp_path: Path) -> None:
    (tmp_path / "request.json").write_bytes(msgspec.json.encode(EvaluationSpec(("hanging",))))
    words = ["tasks", "--model", str(model), "--request", str(tmp_path / "request.json"), "--include", str(tasks)]
    script = (
        "import subprocess, sys, time; "
        f"child = subprocess.Popen([sys.executable, '-m', 'trainer', *{words!r}], stdin=subprocess.PIPE); "
        "print(child.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 120
    while Path(f"/proc/{child}/stat").exists() and " Z " not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < deadline, "it goes on although nobody listens"
        time.sleep(0.2)


def test_an_operator_offers_a_folder_and_hears_of_what_is_none(tasks: Path, tmp_path: Path) -> None:
    assert offers.offered([str(tasks)]) == OfferedTasks(("broken", "hanging", "letters", "numbers"), (tasks,))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnavailableError, match="has no task: each is a YAML file"):
        offers.offered([str(tmp_path / "empty")])
    with pytest.raises(UnavailableError, match="nowhere is no folder"):
        offers.offered([str(tmp_path / "nowhere")])
    with pytest.raises(
        UnavailableError, match=r"a task is no name of a task; a folder is written with a slash, as \./tasks"
    ):
        offers.offered(["a task"])


def test_names_are_looked_for_in_the_librarys_own_tasks(tasks: Path) -> None:
    found = offers.offered(["hellaswag", str(tasks), "mmlu"])
    assert found.names[:3] == ("hellaswag", "mmlu", "broken")
    with pytest.raises(UnavailableError, match="knows no task nosuchtask: `lm_eval ls tasks` lists them"):
        offers.offered(["nosuchtask"])


def test_only_numbers_are_results() -> None:
    values = {"alias": "x", "acc,none": 0.5, "acc_stderr,none": "N/A", "f1,strict": 0.25, "f1_stderr,strict": 0.1}
    found = {"results": {"x": values | {"ppl,none": float("inf")}}, "n-samples": {"x": {"original": 9, "effective": 4}}}
    assert results_of(found) == [TaskResult("x", "acc", 0.5, None, 4), TaskResult("x", "f1,strict", 0.25, 0.1, 4)]
    with pytest.raises(ValueError, match="no metric of it"):
        results_of({"results": {"x": {"alias": "x"}}})


def test_a_model_can_be_tried_in_this_process(model: Path, tasks: Path) -> None:
    lines: list[Any] = []
    run_tasks(model, EvaluationSpec(("numbers",), 5), [tasks], 1, lines.append)
    assert [len(line["results"]) for line in lines] == [2]
