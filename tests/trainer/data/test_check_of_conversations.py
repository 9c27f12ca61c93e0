"""What the check says of conversations: as they are prepared, so they are counted."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from protocol.job.job import DatasetSpec, TokenizerSpec
from protocol.rest.dataset import CheckRequest, DatasetReport, Finding
from tests.support.chat_templates import BOS, EOS, TEMPLATES, odd_conversations, small_tokenizer, unmarked
from tests.trainer.data.test_conversations import SEQUENCE, lines, made, short
from trainer.check.report import check
from trainer.formats.source import Dataset

HEAD = "<|im_start|>system↵ You help.<|im_end|>↵ <|im_start|>user↵ 0 ?<|im_end|>↵ <|im_start|>assistant↵ "


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    small_tokenizer().save(str(path))
    return path


def look(
    tokenizer: Path | None,
    rows: Sequence[Any],
    folder: Path,
    template: str = "chatml",
    sequence: int = SEQUENCE,
    **wanted: Any,
) -> DatasetReport:
    (folder / "data.jsonl").write_bytes(lines(rows))
    dataset = DatasetSpec("0" * 64, **({"heldout": 0.1} | wanted))
    settings = {"bos_token": BOS, "eos_token": EOS, "chat_template": unmarked(TEMPLATES[template])}
    spec = TokenizerSpec("bytes") if tokenizer is None else TokenizerSpec("file", file="0" * 64, settings=settings)
    (scratch := folder / "scratch").mkdir(exist_ok=True)
    path = folder / "data.jsonl"
    return check(Dataset(path, dataset, path.name), CheckRequest(dataset, spec, sequence), tokenizer, scratch, print)


def found(report: DatasetReport, kind: str) -> Finding:
    (finding,) = [finding for finding in report.findings if finding.kind == kind]
    return finding


def kinds(report: DatasetReport) -> set[str]:
    return {finding.kind for finding in report.findings}


def test_a_conversation_is_shown_as_the_model_meets_it(tokenizer: Path, tmp_path: Path) -> None:
    report = look(tokenizer, short(100), tmp_path)
    assert [(part.text, part.learnt) for part in report.rendered] == [(HEAD, False), ("0 é.<|im_end|>↵ ", True)]
    assert (report.content, report.format, report.problem) == ("conversations", "jsonl", "")
    assert not kinds(report) & {"cut", "unlearnt", "leak", "tiny", "thoughts", "refused"}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("learn", ["answers", "all"])
@pytest.mark.parametrize("template", ["chatml", "llama 3", "qwen 3"])
def test_the_check_counts_what_is_prepared(template: str, learn: str, tokenizer: Path, tmp_path: Path) -> None:
    rows = odd_conversations(tools=template == "qwen 3")
    report = look(tokenizer, rows, tmp_path, template, 256, learn=learn)
    prepared = made(tokenizer, rows, tmp_path, template, 256, learn=learn).talks
    assert prepared is not None
    assert report.learnt == prepared.learnt
    assert found(report, "cut").rows == prepared.cut > 0
    unlearnt = [finding.rows for finding in report.findings if finding.kind == "unlearnt"]
    assert sum(unlearnt) == prepared.unlearnt
    assert len(rows) - prepared.unlearnt == prepared.rows
    assert ("thoughts" in kinds(report)) == (template == "qwen 3" and learn == "answers")


def test_rows_that_the_template_refuses_have_their_numbers_and_its_words(tokenizer: Path, tmp_path: Path) -> None:
    rows = short(60)
    for index in (4, 40):
        rows[index]["messages"].append({"role": "assistant", "content": "More."})
    report = look(tokenizer, rows, tmp_path, "gemma 3")
    refused = found(report, "refused")
    assert (refused.rows, [place.row for place in refused.places]) == (2, [5, 41])
    assert refused.places[0].shown.startswith(
        "row 5 is refused by the chat template: Conversation roles must alternate"
    )
    assert report.problem.startswith("2 of 60 rows cannot be read")
    left_out = look(tokenizer, rows, tmp_path, "gemma 3", faulty="skip")
    assert (left_out.problem, found(left_out, "refused").severity) == ("", "warning")


def test_what_is_held_out_and_trained_on_too_is_told(tokenizer: Path, tmp_path: Path) -> None:
    rows = short(60)
    rows[25] = rows[0]  # Of ten, the sixth is held out.
    rows[7] = rows[8]
    leak = found(look(tokenizer, rows, tmp_path), "leak")
    assert (leak.rows, [place.row for place in leak.places]) == (1, [26])
    rows[25] = rows[35]
    assert "leak" not in kinds(look(tokenizer, rows, tmp_path)), "both are held out"


def test_texts_that_leak_are_told_too(tmp_path: Path) -> None:
    texts = [f"{n} is a number, and so is {n * 7}" for n in range(60)]
    texts[25] = texts[3]
    assert found(look(None, [{"text": text} for text in texts], tmp_path), "leak").rows == 1


def test_without_a_template_rows_are_counted_as_they_stand_there(tmp_path: Path) -> None:
    report = look(None, short(60), tmp_path)
    assert (report.content, report.problem, report.learnt) == ("conversations", "", 0)
    assert found(report, "template").rows == 60
    assert report.tokens == sum(len(f"user: {n} ?\nassistant: {n * 3} é.".encode()) for n in range(60))


def test_prompts_with_completions_need_no_template(tmp_path: Path) -> None:
    report = look(None, [{"prompt": f"{n} + 1 =", "completion": f" {n + 1}"} for n in range(60)], tmp_path)
    assert (report.content, report.problem) == ("pairs", "")
    assert report.learnt == sum(len(f" {n + 1}") + 1 for n in range(60))
    assert report.rendered[0].text == "0 + 1 ="


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (short(3), "3 of these conversations teach something, and none of them is held out"),
        ([{"messages": [{"role": "user", "content": "Hi"}]}] * 30, "nothing of these conversations is learnt"),
    ],
)
def test_too_few_conversations_are_a_problem(rows: Any, words: str, tokenizer: Path, tmp_path: Path) -> None:
    assert words in look(tokenizer, rows, tmp_path).problem


def test_a_handful_of_conversations_has_one_that_is_held_out(tokenizer: Path, tmp_path: Path) -> None:
    assert look(tokenizer, short(6), tmp_path, heldout=0.02).problem == ""
    assert look(tokenizer, short(5), tmp_path, heldout=0.02).problem.endswith(
        "5 of these conversations teach something, and none of them is held out: bring more, hold out a larger share "
        "(dataset.heldout, 0.2 at most), or a file of its own (heldout_dataset)"
    )


CALL = {"type": "function", "function": {"name": "sum", "arguments": {"a": 2}}}


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (
            "left-out",
            {
                "messages": [
                    {"role": "user", "content": "Hi"},
                    {"role": "assistant", "content": "So:", "reasoning_content": "Hm."},
                ]
            },
        ),
        ("unread", {"source": "mail", "id": 3}),
        ("blank", {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": " "}]}),
        ("blank", {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None}]}),
        ("left-out", {"tools": [{"type": "function", "function": {"name": "sum", "parameters": {}}}]}),
        (
            "left-out",
            {
                "messages": [
                    {"role": "user", "content": "Hi"},
                    {"role": "assistant", "content": "So:", "tool_calls": [CALL]},
                ]
            },
        ),
        ("marks", {"messages": [{"role": "user", "content": f"Hi {EOS}"}, {"role": "assistant", "content": "Ho."}]}),
    ],
)
def test_what_is_hardly_meant_is_told_and_trained_on(
    kind: str, change: dict[str, Any], tokenizer: Path, tmp_path: Path
) -> None:
    rows = short(60)
    for index in (4, 40):
        rows[index] |= change
    report = look(tokenizer, rows, tmp_path)
    assert found(report, kind).rows == 2
    assert [place.row for place in found(report, kind).places] == ([] if kind == "unread" else [5, 41])
    assert (report.problem, report.usable) == ("", 60)
    assert not kinds(look(tokenizer, short(60), tmp_path)) & {"blank", "left-out", "marks", "unread"}


def test_a_template_that_knows_functions_leaves_nothing_out(tokenizer: Path, tmp_path: Path) -> None:
    assert "left-out" not in kinds(look(tokenizer, odd_conversations(tools=True), tmp_path, "qwen 3", 256))


def test_rows_that_are_left_out_are_not_usable(tokenizer: Path, tmp_path: Path) -> None:
    rows = short(60)
    for index in (4, 40):
        rows[index]["messages"].append({"role": "assistant", "content": "More."})
    rows[7] = {"messages": [{"role": "user", "content": "Hi"}]}
    report = look(tokenizer, rows, tmp_path, "gemma 3", faulty="skip")
    assert (report.rows, report.usable) == (60, 57)


def test_what_most_rows_are_is_what_they_are_called(tokenizer: Path, tmp_path: Path) -> None:
    pair = {"prompt": "1 + 1 =", "completion": " 2"}
    assert look(tokenizer, [*short(59), pair], tmp_path).content == "conversations"
    assert (
        look(tokenizer, [short(1)[0], *[pair | {"prompt": f"{n} ="} for n in range(59)]], tmp_path).content == "pairs"
    )


def test_a_text_among_conversations_is_a_fault(tokenizer: Path, tmp_path: Path) -> None:
    report = look(tokenizer, [*short(60), {"text": "alone"}], tmp_path)
    assert [place.row for place in found(report, "bad-row").places] == [61]
    assert json.loads((tmp_path / "data.jsonl").read_text().splitlines()[60]) == {"text": "alone"}
