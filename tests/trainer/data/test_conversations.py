"""Datasets of conversations: each form in each format, their windows, what is cut, left out and held out."""

import csv
import io
import json
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from protocol.job.job import DatasetSpec, TokenizerSpec
from tests.support.chat_templates import BOS, EOS, TEMPLATES, TOOLS, odd_conversations, small_tokenizer, unmarked
from tests.support.dataset_files import PACK, PACKED_ENDINGS
from trainer.data import chat
from trainer.data.data import TokenFile
from trainer.data.marks import BEGINS, UNLEARNT, ids_of
from trainer.data.packing import best_fit
from trainer.data.prepare import DatasetManifest, prepare
from trainer.data.text import numbered
from trainer.errors import DataError
from trainer.formats.source import Dataset
from trainer.formats.talk import ChatMessages, Pair, Preference, Talk

CALL = {"type": "function", "function": {"name": "sum", "arguments": {"a": 2.5, "b": 12_345_678_901}}}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi é 🙂"},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "content": "7"},
    {"role": "assistant", "content": "Seven."},
]
FORMS: Mapping[str, tuple[dict[str, Any], Talk]] = {
    "messages": ({"messages": MESSAGES, "tools": TOOLS, "id": 3}, ChatMessages(MESSAGES, 0, TOOLS)),
    "sharegpt": (
        {
            "conversations": [{"from": "human", "value": "Hi é"}, {"from": "gpt", "value": "Ho."}],
            "system": "Be brief.",
        },
        ChatMessages([MESSAGES[0], {"role": "user", "content": "Hi é"}, {"role": "assistant", "content": "Ho."}]),
    ),
    "pair": ({"prompt": "Hi é", "completion": " Ho."}, Pair("Hi é", " Ho.")),
    "pair of messages": (
        {"prompt": MESSAGES[:2], "completion": MESSAGES[-1:]},
        ChatMessages([*MESSAGES[:2], MESSAGES[-1]], 2),
    ),
}
COUNT = 30


def table(rows: Sequence[Mapping[str, Any]]) -> bytes:
    sheet = io.StringIO(newline="")
    writer = csv.writer(sheet)
    writer.writerow(rows[0].keys())
    for row in rows:
        writer.writerow([one if isinstance(one, str | int) else json.dumps(one) for one in row.values()])
    return sheet.getvalue().encode()


def parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), sink)
    return sink.getvalue()


def lines(rows: Sequence[Any]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


FORMATS = {
    ".jsonl": lines,
    ".json": lambda rows: json.dumps(list(rows)).encode(),
    ".list.json": lambda rows: json.dumps({"version": 1, "data": list(rows)}, indent=1).encode(),
    ".csv": table,
    ".parquet": parquet,
}


@pytest.mark.parametrize("packing", ["", "gzip", "zstd"])
@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_found_in_each_format(form: str, ending: str, packing: str, tmp_path: Path) -> None:
    row, expected = FORMS[form]
    path = tmp_path / f"data{ending}{PACKED_ENDINGS.get(packing, '')}"
    data = FORMATS[ending]([row] * COUNT)
    path.write_bytes(PACK[packing](data) if packing else data)
    found = list(numbered(Dataset.of(path)))
    assert [one.talk for one in found] == [expected] * COUNT
    assert found[0].text == expected.text()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"messages": [{"role": "user", "content": 3}]}, "message 1, has something else than text"),
        ({"messages": [MESSAGES[1], "Hi"]}, "message 2, is no object with role and content"),
        ({"messages": [{"role": "", "content": "a"}]}, "message 1, does not say who speaks"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "a part that is no text"),
        ({"messages": [{"role": "user", "text": "a"}]}, "message 1, has no content, but 'text': rename it"),
        ({"messages": [{"role": "user", "Content": "a"}]}, "message 1, has no content, but 'Content': rename it"),
        ({"messages": [{"role": "assisstant", "content": "a"}]}, "who is nobody known here: did you mean assistant?"),
        ({"prompt": "a", "completion": "b", "label": False}, "an answer that is marked as a bad one (label)"),
        ({"question": "a", "answer": 3}, "something else than text as question or answer: write both as texts"),
        ({"chosen": "a", "rejected": "b"}, "two answers without a prompt, and nothing that both begin with"),
        ({"conversations": [{"from": "narrator", "value": "a"}]}, "is of 'narrator', who is nobody known here"),
        ({"conversations": [{"from": "function_call", "value": "sum 2"}]}, "without a name and arguments in JSON"),
        ({"prompt": "a", "completion": 3}, "a prompt and a completion that do not go together"),
        ({"messages": MESSAGES, "tools": "sum"}, "tools that are no list"),
        ({"messages": [{"role": "user", "content": "\ud83d"}]}, "half a character"),
    ],
)
def test_rows_that_are_no_conversation_say_why(row: Any, words: str, tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(one) + "\n" for one in (row, FORMS["messages"][0])))
    first, second = numbered(Dataset.of(tmp_path / "data.jsonl"))
    assert isinstance(first.text, DataError)
    assert words in first.text.detail
    assert second.talk is not None


def test_who_speaks_is_known_by_other_names(tmp_path: Path) -> None:
    """A template would write a role that it does not know as it is, and nothing would be learnt."""
    roles = ["Human", "model", "USER", "Assistant", "developer"]
    turns = [{"role": role, "content": f"{role}!"} for role in roles]
    (tmp_path / "data.jsonl").write_bytes(lines([{"messages": turns}] * 2))
    talk = next(numbered(Dataset.of(tmp_path / "data.jsonl"))).talk
    assert isinstance(talk, ChatMessages)
    assert [one["role"] for one in talk.messages] == ["user", "assistant", "user", "assistant", "developer"]


@pytest.mark.parametrize("size", [150_000, 600_000, 1_500_000], ids=lambda size: f"{size / 1e6:g}MB")
@pytest.mark.parametrize("form", FORMS)
def test_lines_are_rows_however_long_the_first_one_is(form: str, size: int, tmp_path: Path) -> None:
    row, _ = FORMS[form]
    long = {"messages": [{"role": "user", "content": "word " * (size // 5)}, MESSAGES[-1]]}
    other = {"conversations": [{"from": "human", "value": "word " * (size // 5)}, {"from": "gpt", "value": "Ho."}]}
    for number, first in enumerate((long, other, {"id": 1, "tools": TOOLS, **long})):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(lines([first, row, row]))
        found = list(numbered(Dataset.of(path)))
        assert [isinstance(one.talk, ChatMessages | Pair) for one in found] == [True] * 3
        assert Dataset.of(path).format(Dataset.of(path).look()) == "jsonl"


ANSWERED = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho."}]


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"instruction": "Hi", "input": "", "output": "Ho."}, ANSWERED),
        (
            {"instruction": "Add.", "input": "3, 4", "output": "Ho.", "id": 3},
            [{"role": "user", "content": "Add.\n\n3, 4"}, ANSWERED[1]],
        ),
        ({"question": "Hi", "answer": "Ho."}, ANSWERED),
        ({"prompt": "Hi", "response": "Ho."}, ANSWERED),
        ({"input": "Hi", "output": "Ho."}, ANSWERED),
        ({"system": "Be brief.", "question": "Hi", "answer": "Ho."}, [MESSAGES[0], *ANSWERED]),
        ({"system": "Be brief.", "prompt": "Hi", "completion": "Ho."}, [MESSAGES[0], *ANSWERED]),
    ],
)
@pytest.mark.parametrize("ending", FORMATS)
def test_a_question_with_its_answer_is_a_conversation(
    row: dict[str, Any], messages: list[dict[str, Any]], ending: str, tmp_path: Path
) -> None:
    path = tmp_path / f"data{ending}"
    path.write_bytes(FORMATS[ending]([row] * COUNT))
    found = list(numbered(Dataset.of(path)))
    assert [one.talk for one in found] == [ChatMessages(messages, len(messages) - 1)] * COUNT


@pytest.mark.parametrize("name", ["question", "instruction", "prompt"])
@pytest.mark.parametrize("ending", FORMATS)
def test_two_answers_have_their_question_whatever_it_is_called(name: str, ending: str, tmp_path: Path) -> None:
    row = {"system": "Be brief.", name: "Hi", "chosen": "Ho.", "rejected": "What?"}
    path = tmp_path / f"data{ending}"
    path.write_bytes(FORMATS[ending]([row] * COUNT))
    for found in numbered(Dataset.of(path)):
        assert isinstance(found.talk, Preference)
        for talk, answer in ((found.talk.chosen, "Ho."), (found.talk.rejected, "What?")):
            assert talk == ChatMessages([MESSAGES[0], ANSWERED[0], {"role": "assistant", "content": answer}], 2)


def test_a_table_of_messages_alone_is_a_table(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_bytes(table([{"messages": ANSWERED}] * COUNT))
    assert [one.talk for one in numbered(Dataset.of(tmp_path / "data.csv"))] == [ChatMessages(ANSWERED)] * COUNT


@pytest.mark.parametrize("text", [None, ""])
def test_a_row_without_text_is_the_conversation_beside_it(text: str | None, tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_bytes(lines([{"text": text, "messages": ANSWERED}, {"text": text}]))
    first, second = numbered(Dataset.of(tmp_path / "data.jsonl"))
    assert (first.talk, second.text) == (ChatMessages(ANSWERED), "")


def test_a_call_as_it_was_written_once_is_one_of_today(tmp_path: Path) -> None:
    call = {"name": "sum", "arguments": '{"a": 2}'}
    turns = [
        ANSWERED[0],
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "content": "4"},
    ]
    row = {"messages": [*turns, ANSWERED[1]], "functions": [{"name": "sum", "parameters": {}}]}
    (tmp_path / "data.jsonl").write_bytes(lines([row] * 2))
    talk = next(numbered(Dataset.of(tmp_path / "data.jsonl"))).talk
    assert isinstance(talk, ChatMessages)
    assert talk.messages[1] == {"role": "assistant", "tool_calls": [{"type": "function", "function": call}]}
    assert talk.messages[2]["role"] == "tool"
    assert talk.tools == [{"type": "function", "function": {"name": "sum", "parameters": {}}}]


def test_fields_that_nobody_reads_are_known(tmp_path: Path) -> None:
    rows = [{"id": 3, "messages": ANSWERED, "source": "", "tags": []}, {"prompt": "a", "completion": "b", "topic": "c"}]
    (tmp_path / "data.jsonl").write_bytes(lines(rows))
    talks = [one.talk for one in numbered(Dataset.of(tmp_path / "data.jsonl"))]
    assert [talk.unread for talk in talks if talk is not None] == [("id",), ("topic",)]


def test_a_call_of_sharegpt_becomes_one_of_the_assistant(tmp_path: Path) -> None:
    turns = [
        {"from": "human", "value": "2 + 2?"},
        {"from": "function_call", "value": '{"name": "sum", "arguments": {"a": 2}}'},
        {"from": "observation", "value": "4"},
        {"from": "gpt", "value": "4."},
    ]
    (tmp_path / "data.jsonl").write_bytes(lines([{"conversations": turns}] * 2))
    talk = next(numbered(Dataset.of(tmp_path / "data.jsonl"))).talk
    assert isinstance(talk, ChatMessages)
    assert [one["role"] for one in talk.messages] == ["user", "assistant", "tool", "assistant"]
    assert talk.messages[1]["tool_calls"] == [{"type": "function", "function": {"name": "sum", "arguments": {"a": 2}}}]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [1, 3])
def test_conversations_over_several_lines_are_rows_though_they_hold_lists(
    form: str, count: int, tmp_path: Path
) -> None:
    row, expected = FORMS[form]
    (tmp_path / "data.json").write_text("\n".join(json.dumps(row, indent=1) for _ in range(count)))
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(count)))
    for name in ("data.json", "data.jsonl"):
        assert [one.talk for one in numbered(Dataset.of(tmp_path / name))] == [expected] * count


# --- windows ------------------------------------------------------------------------------------------------------------

SEQUENCE = 64


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    small_tokenizer().save(str(path))
    return path


def made(
    tokenizer: Path, rows: Sequence[Any], out: Path, template: str = "chatml", sequence: int = SEQUENCE, **wanted: Any
) -> DatasetManifest:
    out.mkdir(exist_ok=True)
    (out / "data.jsonl").write_bytes(lines(rows))
    settings = {"bos_token": BOS, "eos_token": EOS, "chat_template": unmarked(TEMPLATES[template])}
    spec = TokenizerSpec("file", file="0" * 64, settings=settings)
    return prepare(Dataset.of(out / "data.jsonl", **wanted), spec, tokenizer, 0.1, sequence, out)


def documents(path: Path) -> list[list[int]]:
    """The documents of a file of windows, marks and all, without what fills the windows."""
    tokens = np.fromfile(path, "<u4").astype(np.int64)
    assert len(tokens) % SEQUENCE == 1
    windows = tokens[:-1].reshape(-1, SEQUENCE)
    assert (windows[:, 0] & BEGINS).all()
    found: list[list[int]] = []
    for window in windows:
        edges = [*np.flatnonzero(window & BEGINS), SEQUENCE]
        parts = [window[first:last].tolist() for first, last in pairwise(edges)]
        assert all(part[0] & UNLEARNT for part in parts)
        found += [part for part in parts if not all(one & UNLEARNT for one in part)]
    return found


def short(count: int) -> list[dict[str, Any]]:
    return [
        {"messages": [{"role": "user", "content": f"{n} ?"}, {"role": "assistant", "content": f"{n * 3} é."}]}
        for n in range(count)
    ]


def text(ids: Sequence[int]) -> str:
    return str(small_tokenizer().decode(ids_of(np.array(ids)).tolist(), skip_special_tokens=False))


def test_windows_have_whole_conversations_of_which_answers_are_learnt(tokenizer: Path, tmp_path: Path) -> None:
    manifest = made(tokenizer, short(100), tmp_path)
    train, held = (documents(tmp_path / f"{name}.bin") for name in ("train", "heldout"))
    assert (len(train), len(held)) == (90, 10)
    said = sorted(text(one) for one in train + held)
    head = "<|im_start|>system\nYou help.<|im_end|>\n"
    assert said == sorted(
        f"{head}<|im_start|>user\n{n} ?<|im_end|>\n<|im_start|>assistant\n{n * 3} é.<|im_end|>\n" for n in range(100)
    )
    taught = {text([one for one in document if not one & UNLEARNT]) for document in train}
    assert all(one.endswith(" é.<|im_end|>\n") and "user" not in one for one in taught)
    assert manifest.talks is not None
    assert (manifest.talks.rows, manifest.talks.cut, manifest.talks.unlearnt) == (100, 0, 0)
    every = np.concatenate([np.array(one) for one in train + held])
    assert manifest.talks.learnt == int((every & UNLEARNT == 0).sum())
    assert json.loads((tmp_path / "manifest.json").read_bytes())["talks"]["learnt"] == manifest.talks.learnt
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(
        ["data.jsonl", "train.bin", "heldout.bin", "tokenizer.json", "manifest.json"]
    )


def test_the_same_file_gives_the_same_windows(tokenizer: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        made(tokenizer, odd_conversations(tools=False), tmp_path / name, "smollm 3")
    for name in ("train.bin", "heldout.bin", "manifest.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_long_conversations_are_cut_and_counted(tokenizer: Path, tmp_path: Path) -> None:
    rows = short(60)
    rows[3]["messages"][1]["content"] = "a quick brown fox " * 100
    rows[8]["messages"][0]["content"] = "a quick brown fox " * 100  # Its answer lies beyond the window.
    rows[9]["messages"].pop()
    manifest = made(tokenizer, rows, tmp_path)
    assert manifest.talks is not None
    assert (manifest.talks.rows, manifest.talks.cut, manifest.talks.unlearnt) == (58, 1, 2)
    assert max(map(len, documents(tmp_path / "train.bin"))) == SEQUENCE


def test_rows_that_the_template_refuses_are_named_or_left_out(tokenizer: Path, tmp_path: Path) -> None:
    rows = short(60)
    rows[40]["messages"].append({"role": "assistant", "content": "More."})
    with pytest.raises(DataError, match=r"row 41 of data\.jsonl is refused by the chat template: Conversation roles"):
        made(tokenizer, rows, tmp_path, "gemma 3")
    assert [one.name for one in tmp_path.iterdir()] == ["data.jsonl"]
    manifest = made(tokenizer, rows, tmp_path, "gemma 3", faulty="skip")
    assert manifest.talks is not None
    assert (manifest.talks.rows, manifest.talks.refused) == (59, 1)


def test_texts_among_conversations_are_refused(tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 31 of data\.jsonl is a text, and the rows before it are conversations"):
        made(tokenizer, [*short(30), {"text": "a"}], tmp_path)


def test_conversations_need_a_template_and_pairs_a_tokenizer_only(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "talks.jsonl").write_bytes(lines(short(60)))
    with pytest.raises(
        DataError, match=r"row 1 of talks\.jsonl is a conversation, and the tokenizer has no chat template"
    ):
        prepare(Dataset.of(tmp_path / "talks.jsonl"), TokenizerSpec("bytes"), None, 0.1, SEQUENCE, tmp_path)
    pairs = [{"prompt": f"{n} + 1 =", "completion": f" {n + 1}"} for n in range(100)]
    (tmp_path / "pairs.jsonl").write_bytes(lines(pairs))
    manifest = prepare(Dataset.of(tmp_path / "pairs.jsonl"), TokenizerSpec("bytes"), None, 0.1, SEQUENCE, tmp_path)
    assert manifest.talks is not None
    assert manifest.talks.learnt == sum(len(row["completion"]) + 1 for row in pairs), "and one end each"


def test_learning_all_leaves_out_nothing_but_what_begins(tokenizer: Path, tmp_path: Path) -> None:
    made(tokenizer, short(60), tmp_path, learn="all")
    found = documents(tmp_path / "train.bin")
    assert all(not any(one & UNLEARNT for one in document[1:]) for document in found)


def test_a_worker_reads_the_windows_and_finds_their_marks(tokenizer: Path, tmp_path: Path) -> None:
    manifest = made(tokenizer, short(60), tmp_path)
    file = TokenFile(tmp_path / "train.bin", SEQUENCE, manifest.vocabulary)
    windows, _ = file.sample(1, 0, 0, 8)
    assert (windows[:, 0] & BEGINS).all()
    assert (windows[:, 1:] & UNLEARNT == 0).any(axis=1).all(), "each window teaches something"


def test_documents_fill_windows_as_well_as_they_can() -> None:
    chance = np.random.default_rng(3)
    lengths = chance.integers(2, 513, 5000)
    windows = best_fit(lengths, 512)
    assert sorted(one for window in windows for one in window) == list(range(5000))
    assert all(sum(lengths[one] for one in window) <= 512 for window in windows)
    assert len(windows) <= 1.01 * -(-int(lengths.sum()) // 512)
    assert best_fit(np.array([3, 8, 5, 2, 6]), 8) == [[1], [4, 3], [2, 0]]


def test_what_is_learnt_is_a_field_of_the_document() -> None:
    document = {"artifact": "0" * 64, "learn": "all"}
    assert msgspec.convert(document, DatasetSpec).learn == "all"
    assert DatasetSpec("0" * 64).learn == "answers"
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(document | {"learn": "nothing"}, DatasetSpec)


@pytest.mark.parametrize("prints", ["x", ""])
def test_a_template_that_loops_is_given_up_at_its_first_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prints: str
) -> None:
    monkeypatch.setattr(chat, "RENDER_S", 0.2)
    template = prints
    for name in "abc":
        template = f"{{% for {name} in range(99999) %}}{template}{{% endfor %}}"
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps({"messages": MESSAGES[:2] + MESSAGES[-1:]}) + "\n" for _ in range(COUNT)))
    (tmp_path / "tokenizer.json").write_text(small_tokenizer().to_str())
    spec = TokenizerSpec("file", file="0" * 64, settings={"chat_template": template})
    began = time.process_time()
    with pytest.raises(DataError, match=r"takes longer than 0\.2 s to write one conversation: it may be in a loop"):
        prepare(Dataset.of(file), spec, tmp_path / "tokenizer.json", 0.1, 16, tmp_path / "out")
    assert time.process_time() - began < 10, "once, and not for each of them"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"messages": "hello"}, "for a conversation messages is a list of objects with role and content"),
        ({"prompt": "Hi", "chosen": "Ho"}, "a preference has both, and rejected is missing"),
    ],
)
def test_a_row_that_is_nearly_a_conversation_is_told_what_it_lacks(
    tmp_path: Path, row: dict[str, Any], says: str
) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(f"{json.dumps(row)}\n" * COUNT)
    with pytest.raises(DataError, match=says):
        prepare(Dataset.of(file), TokenizerSpec("bytes"), None, 0.1, 16, tmp_path / "out")
