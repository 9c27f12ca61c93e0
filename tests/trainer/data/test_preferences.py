"""Rows with a chosen and a rejected answer: each form in each format, as ``trl`` renders them, side by side in windows."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from protocol.job.job import DatasetSpec, TokenizerSpec
from protocol.rest.dataset import CheckRequest
from tests.support.chat_templates import BOS, EOS, TEMPLATES, odd_conversations, small_tokenizer, unmarked
from tests.trainer.data.test_chat_templates import chat, theirs
from tests.trainer.data.test_conversations import FORMATS, SEQUENCE, lines, text
from trainer.check.report import check
from trainer.data.data import TokenFile
from trainer.data.marks import BEGINS, UNLEARNT, answers_of, ids_of, pairs
from trainer.data.prepare import DatasetManifest, prepare
from trainer.data.talks import documents_of
from trainer.data.text import numbered
from trainer.errors import DataError
from trainer.formats.source import Dataset
from trainer.formats.talk import ChatMessages, Pair, Preference

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi é?"}]
YES, NO = ({"role": "assistant", "content": one} for one in ("Ho.", "Go away."))
BOTH = Preference(ChatMessages([*ASKED, YES], 2), ChatMessages([*ASKED, NO], 2))
FORMS: Mapping[str, tuple[dict[str, Any], Preference]] = {
    "lists": ({"prompt": ASKED, "chosen": [YES], "rejected": [NO]}, BOTH),
    "whole lists": ({"chosen": [*ASKED, YES], "rejected": [*ASKED, NO], "score": 3}, BOTH),
    "whole lists beside their prompt": (
        {"prompt": "Hi é?", "chosen": [*ASKED, YES], "rejected": [*ASKED, NO], "messages": [*ASKED, YES]},
        BOTH,
    ),
    "texts": (
        {"prompt": "2 + 2 =", "chosen": " 4", "rejected": " 5"},
        Preference(Pair("2 + 2 =", " 4"), Pair("2 + 2 =", " 5")),
    ),
    "whole texts": (
        {"chosen": "2 + 2 = 4", "rejected": "2 + 2 = 5"},
        Preference(Pair("2 + 2 =", " 4"), Pair("2 + 2 =", " 5")),
    ),
    "a text, and lists": (
        {"prompt": "Hi é?", "chosen": [YES], "rejected": [NO]},
        Preference(ChatMessages([ASKED[1], YES], 1), ChatMessages([ASKED[1], NO], 1)),
    ),
    "a list, and texts": ({"prompt": ASKED, "chosen": "Ho.", "rejected": "Go away."}, BOTH),
}


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_found_in_each_format(form: str, ending: str, tmp_path: Path) -> None:
    row, expected = FORMS[form]
    (tmp_path / f"data{ending}").write_bytes(FORMATS[ending]([row] * 3))
    found = list(numbered(Dataset.of(tmp_path / f"data{ending}")))
    assert [one.talk for one in found] == [expected] * 3
    assert found[0].text == expected.text()


def test_one_answer_is_taken_where_it_is_named(tmp_path: Path) -> None:
    for ending in (".jsonl", ".parquet"):
        (tmp_path / f"data{ending}").write_bytes(FORMATS[ending]([FORMS["whole lists"][0]] * 2))
        found = next(numbered(Dataset.of(tmp_path / f"data{ending}", text_field="chosen")))
        assert found.talk == ChatMessages([*ASKED, YES])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"chosen": [YES], "rejected": "No."}, "a chosen and a rejected answer that do not go together"),
        ({"chosen": None, "rejected": "No."}, "a chosen and a rejected answer that do not go together"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "the same answer as chosen and as rejected"),
        ({"chosen": [*ASKED, YES], "rejected": ASKED}, "an answer without messages"),
        (
            {"prompt": ASKED, "chosen": [YES], "rejected": [{"role": "assistant", "content": 3}]},
            "message 3, has something",
        ),
        ({"prompt": "a", "chosen": "b", "rejected": "\ud83d"}, "half a character"),
    ],
)
def test_rows_without_two_answers_say_why(row: Any, words: str, tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(one) + "\n" for one in (row, FORMS["texts"][0])))
    first, second = numbered(Dataset.of(tmp_path / "data.jsonl"))
    assert isinstance(first.text, DataError)
    assert words in first.text.detail
    assert isinstance(second.talk, Preference)


# --- as trl has it ------------------------------------------------------------------------------------------------------


def odd_preferences() -> list[dict[str, Any]]:
    """Conversations whose last answer is the chosen one, some with their prompt apart."""
    rows = []
    for index, row in enumerate(odd_conversations(tools=False)):
        *prompt, chosen = row["messages"]
        if chosen["role"] != "assistant" or not prompt:
            continue
        # Of other members the library makes another prompt.
        rejected = {
            **chosen,
            "content": f"No, {index} é 🙂 times.",
        }
        apart = {"prompt": prompt, "chosen": [chosen], "rejected": [rejected]}
        rows.append(apart if index % 2 else {"chosen": [*prompt, chosen], "rejected": [*prompt, rejected]})
    return rows


def by_trl(trl: Any, tokenizer: Any, rows: list[dict[str, Any]]) -> list[tuple[list[int], list[int], list[int]]]:
    """Tokens of prompt, chosen and rejected answer as ``DPOTrainer`` makes them."""
    from datasets import Dataset as Rows
    from trl.trainer.dpo_trainer import DPOTrainer

    # The library looks at the first row only to see of what form all are, and fills in members that others have.
    alike = defaultdict[str, list[int]](list)
    for number, row in enumerate(rows):
        members = {name: {*map(tuple, value)} if isinstance(value, list) else None for name, value in row.items()}
        alike[str({name: value and sorted(value) for name, value in members.items()})].append(number)
    found: dict[int, tuple[list[int], list[int], list[int]]] = {}
    nobody = SimpleNamespace(_tokenizer=tokenizer, _is_vision_dataset=False)
    args = SimpleNamespace(dataset_num_proc=None, max_length=None, truncation_mode="keep_start")
    for numbers in alike.values():
        given = Rows.from_list([rows[number] for number in numbers])
        for number, made in zip(
            numbers, DPOTrainer._prepare_dataset(nobody, given, tokenizer, args, "train"), strict=True
        ):
            found[number] = made["prompt_ids"], made["chosen_ids"], made["rejected_ids"]
    return [found[number] for number in range(len(rows))]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", [*TEMPLATES, "texts"])
def test_tokens_and_masks_are_those_of_trl(name: str, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="trl is not installed")
    tokenizer = small_tokenizer()
    template = unmarked(TEMPLATES["chatml" if name == "texts" else name])
    rows = odd_preferences()
    if name == "texts":
        rows = [{"prompt": f"{n} + é is", "chosen": f" {n} 🙂", "rejected": f" not {n}"} for n in range(40)]
        rows += [{"chosen": f"Is {n} much? Yes.", "rejected": f"Is {n} much? No."} for n in range(40)]
    (tmp_path / "data.jsonl").write_bytes(lines(rows))
    ours = [one.talk for one in numbered(Dataset.of(tmp_path / "data.jsonl"))]
    library = theirs(tokenizer, template)
    library.eos_token = EOS
    compared = 0
    made = documents_of(chat(tokenizer, template), [one for one in ours if one is not None], ["row"] * len(rows))
    for row, found, (prompt, *answers) in zip(rows, made, by_trl(trl, library, rows), strict=True):
        assert not isinstance(found, DataError), row
        for document, answer in zip(found, answers, strict=True):
            assert document.ids.tolist() == [*prompt, *answer]
            begins = int(np.flatnonzero(document.learnt)[0])
            assert document.learnt[begins:].all()
            # Where a prompt alone ends in other tokens than within the whole, the library learns that end of it, too.
            assert tokenizer.decode(document.ids[len(prompt) : begins].tolist()).strip() == ""
            compared += begins == len(prompt)
    assert compared > 1.9 * len(rows) or name == "llama 3", "the small tokenizer takes two line ends apart there"


# --- windows ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    small_tokenizer().save(str(path))
    return path


def few(count: int) -> list[dict[str, Any]]:
    return [
        {
            "prompt": [{"role": "user", "content": f"{n} ?"}],
            "chosen": [{"role": "assistant", "content": f"{n * 3} é." + " more" * (n % 5)}],
            "rejected": [{"role": "assistant", "content": f"no {n}"}],
        }
        for n in range(count)
    ]


def settings() -> dict[str, Any]:
    return {"bos_token": BOS, "eos_token": EOS, "chat_template": unmarked(TEMPLATES["chatml"])}


def made(
    tokenizer: Path,
    rows: Sequence[Any],
    out: Path,
    sequence: int = 2 * SEQUENCE,
    preference: bool = True,
    **wanted: Any,
) -> DatasetManifest:
    (out / "data.jsonl").write_bytes(lines(rows))
    spec = TokenizerSpec("file", file="0" * 64, settings=settings())
    data = Dataset.of(out / "data.jsonl", **wanted)
    return prepare(data, spec, tokenizer, 0.1, sequence, out, preference=preference)


def pairs_of(path: Path, sequence: int) -> list[tuple[list[int], list[int]]]:
    """The pairs of a file of windows, marks and all."""
    tokens = np.fromfile(path, "<u4").astype(np.int64)
    found = []
    for window in tokens[:-1].reshape(-1, sequence):
        edges = [*np.flatnonzero(window & BEGINS), sequence]
        parts = [window[first:last].tolist() for first, last in pairwise(edges)]
        if len(parts) % 2:
            assert all(one & UNLEARNT for one in parts.pop()), "what fills a window"
        found += list(zip(parts[::2], parts[1::2], strict=True))
    return found


def test_windows_have_whole_pairs_side_by_side(tokenizer: Path, tmp_path: Path) -> None:
    manifest = made(tokenizer, few(100), tmp_path)
    train, held = (pairs_of(tmp_path / f"{name}.bin", 2 * SEQUENCE) for name in ("train", "heldout"))
    assert (len(train), len(held)) == (90, 10)
    head = "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\n{} ?<|im_end|>\n<|im_start|>assistant\n"
    said = {
        tuple(head.format(n) + f"{answer}<|im_end|>\n" for answer in (f"{n * 3} é." + " more" * (n % 5), f"no {n}"))
        for n in range(100)
    }
    assert {(text(chosen), text(rejected)) for chosen, rejected in train + held} == said
    for pair in train:
        for answer in pair:
            taught = text([one for one in answer if not one & UNLEARNT])
            assert taught.endswith("<|im_end|>\n")
            assert "user" not in taught
    assert manifest.talks is not None
    assert (manifest.talks.rows, manifest.talks.cut, manifest.talks.unlearnt) == (100, 0, 0)
    everything = np.concatenate([np.array(one) for pair in train + held for one in pair])
    assert manifest.talks.learnt == int((everything & UNLEARNT == 0).sum())


def test_targets_know_their_answers(tokenizer: Path, tmp_path: Path) -> None:
    manifest = made(tokenizer, few(100), tmp_path)
    file = TokenFile(tmp_path / "train.bin", 2 * SEQUENCE, manifest.vocabulary)
    windows, _ = file.sample(1, 0, 0, 8)
    numbers, count = answers_of(windows), pairs(windows)
    assert numbers.max() == 2 * count, "what is not learnt has the number behind the last"
    for number in range(2 * count):
        (row,) = set(np.nonzero(numbers == number)[0].tolist())
        answer = ids_of(windows)[row, 1:][numbers[row] == number]
        assert text(answer.tolist()).startswith("no ") == bool(number % 2)
        assert text(answer.tolist()).endswith("<|im_end|>\n")


def test_a_pair_that_is_too_long_is_cut_alike_and_counted(tokenizer: Path, tmp_path: Path) -> None:
    rows = few(60)
    rows[3]["chosen"][0]["content"] = rows[3]["rejected"][0]["content"] = "a quick brown fox " * 100
    rows[3]["chosen"][0]["content"] += "!"
    rows[8]["chosen"][0]["content"] = "a quick brown fox " * 100
    rows[9]["prompt"][0]["content"] = "a quick brown fox " * 100  # Both answers lie beyond the window.
    manifest = made(tokenizer, rows, tmp_path)
    assert manifest.talks is not None
    assert (manifest.talks.rows, manifest.talks.cut, manifest.talks.unlearnt) == (59, 2, 1)
    lengths = [tuple(map(len, pair)) for pair in pairs_of(tmp_path / "train.bin", 2 * SEQUENCE)]
    assert (SEQUENCE, SEQUENCE) in lengths
    assert any(sum(pair) == 2 * SEQUENCE and pair[0] > pair[1] for pair in lengths), "the shorter one stays whole"


@pytest.mark.parametrize(
    ("rows", "preference", "words"),
    [
        (
            few(60),
            False,
            r"has rows with a chosen and a rejected answer: give training\.preference, with training\.lora",
        ),
        (
            [{"messages": [*ASKED, YES]}] * 60,
            True,
            r"training\.preference learns from rows with .*, and data\.jsonl has one answer to each prompt",
        ),
        ([{"text": "a"}] * 60, True, "and data.jsonl has texts"),
        (
            [*few(30), {"messages": [*ASKED, YES]}],
            True,
            r"row 31 of data\.jsonl has one answer, and the rows before it have two",
        ),
        (
            [{"messages": [*ASKED, YES]}] * 30 + few(3),
            False,
            "row 31 of data.jsonl has two answers, and the rows before it are",
        ),
    ],
)
def test_other_rows_than_those_that_are_asked_for_are_refused(
    rows: Any, preference: bool, words: str, tokenizer: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=words):
        made(tokenizer, rows, tmp_path, preference=preference)


def test_the_check_shows_both_answers_and_counts_what_is_prepared(tokenizer: Path, tmp_path: Path) -> None:
    rows = few(100)
    rows[3]["chosen"][0]["content"] = "a quick brown fox " * 100
    prepared = made(tokenizer, rows, tmp_path).talks
    assert prepared is not None
    (scratch := tmp_path / "scratch").mkdir()
    path = tmp_path / "data.jsonl"
    spec, dataset = TokenizerSpec("file", file="0" * 64, settings=settings()), DatasetSpec("0" * 64, heldout=0.1)
    request = CheckRequest(dataset, spec, 2 * SEQUENCE)
    report = check(Dataset(path, dataset, path.name), request, tokenizer, scratch, print)
    assert (report.content, report.problem, report.learnt) == ("preferences", "", prepared.learnt)
    assert {one.kind: one.rows for one in report.findings if one.kind in ("cut", "preferences")} == {
        "cut": 1,
        "preferences": 100,
    }
    for parts, answer in ((report.rendered, "0 é."), (report.rejected, "no 0")):
        assert parts[0].text.endswith("<|im_start|>assistant↵ ")
        assert [(part.text, part.learnt) for part in parts[1:]] == [(f"{answer}<|im_end|>↵ ", True)]
