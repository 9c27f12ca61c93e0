"""Single examples of an owner's data: which rows they are, how they are drawn, and what a window of one holds."""

import hashlib
import json
import math
from collections import Counter
from datetime import datetime, tzinfo
from itertools import pairwise
from pathlib import Path
from typing import Literal, Self

import msgspec
import numpy as np
import pytest
from transformers.utils import chat_template_utils

from protocol.job.federated import FederatedSpec, HeldoutLoss, PrivacySpec
from protocol.job.job import DatasetFormat, DatasetSpec, JobSpec, ModelSpec, TokenizerSpec, TrainingSpec
from protocol.worker import OwnData
from tests.support.chat_templates import small_tokenizer
from trainer.check.own_check import look_at
from trainer.data import owned
from trainer.data.examples import OwnExamples, count_examples, write_examples
from trainer.data.marks import BEGINS, UNLEARNT, ids_of, learnt, positions_of
from trainer.data.owned import datasets_in, own_tokens
from trainer.data.text import documents
from trainer.errors import DataError
from trainer.files.inputs import InputFolder
from trainer.formats.source import Dataset

SEQUENCE, VOCABULARY = 16, 259
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def spec(sampling: float = 0.1) -> JobSpec:
    privacy = PrivacySpec("example", noise_multiplier=1.0, sampling=sampling)
    federated = FederatedSpec(("A" * 40, "B" * 40), 2, privacy=privacy)
    training = TrainingSpec(sequence=SEQUENCE, batch=8, micro_batches=1, inner_steps=2)
    return JobSpec(
        "wards", ModelSpec("tiny-llama"), 1, tokenizer=TokenizerSpec("bytes"), training=training, federated=federated
    )


def examples_of(path: Path, kind: DatasetFormat = "auto", sampling: float = 0.1) -> OwnExamples:
    own = OwnData(str(path), DatasetSpec("0" * 64, kind))
    found, held = own_tokens(own, spec(sampling), InputFolder(path.parent), VOCABULARY)
    assert held is None
    assert isinstance(found, OwnExamples)
    return found


def rows(tmp_path: Path, texts: list[str]) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def text_of(window: np.ndarray) -> str:  # type: ignore[type-arg]
    """What stands in a window of bytes, without its filling."""
    inside = ids_of(window[: length_of(window)])
    codes = {value: key for key, value in _bytes().items()}
    return "".join(codes[int(one)] for one in inside).replace("<|endoftext|>", "#").replace("\u0120", " ")


def length_of(window: np.ndarray) -> int:  # type: ignore[type-arg]
    later = np.flatnonzero(window[1:] & BEGINS)
    return int(later[0]) + 1 if len(later) else len(window)


def _bytes() -> dict[str, int]:
    from trainer.data.prepare import make_tokenizer

    return make_tokenizer(TokenizerSpec("bytes"), None, lambda: iter(())).get_vocab()


def test_a_row_of_a_table_a_line_of_a_text_and_a_conversation_are_one_example_each(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the first line\nanother one\n\nthe third\n")
    (tmp_path / "table.csv").write_text('name,text\na,"a row\nwith two lines"\nb,another row\nc,\n')
    talk = {"prompt": "how is bed 7?", "completion": "asleep"}
    (tmp_path / "talks.jsonl").write_text((json.dumps(talk) + "\n") * 5)
    for name, count in {"notes.txt": 3, "table.csv": 2, "talks.jsonl": 5}.items():
        found = examples_of(tmp_path / name)
        assert found.examples == count, name
        report = look_at(tmp_path / name, DatasetSpec("0" * 64), SEQUENCE)
        assert abs(report.usable - count) <= 1, (
            "what an owner is told are rows is what counts (an empty line is no row)"
        )


def test_windows_hold_one_example_alone_from_its_beginning(tmp_path: Path) -> None:
    found = examples_of(rows(tmp_path, ["a short row", "another"]), sampling=0.5)
    seen = {}
    while len(seen) < 2:
        windows, _ = found.sample(1, 0, 0, 8)
        for window in windows:
            assert window.shape == (SEQUENCE + 1,)
            text = text_of(window)
            seen[text] = window
            assert learnt(window[None]) == len(text) - 1, (
                "its first token follows nothing, and the filling is not learnt"
            )
            places = positions_of(window[None])
            assert places is not None
            assert places[0, : len(text)].tolist() == list(range(len(text)))
    assert set(seen) == {"a short row#", "another#"}, "each ends with the token between documents"


def test_a_long_example_is_drawn_one_window_at_a_time_and_all_of_it_is_learnt(tmp_path: Path) -> None:
    long = LETTERS * 3
    found = examples_of(rows(tmp_path, [long]), sampling=0.5)
    starts = Counter[str]()
    taught = set[int]()
    while sum(starts.values()) < 200:
        windows, _ = found.sample(1, 0, 0, 8)
        assert len(windows) <= 1, "never two windows of one example in a step"
        for window in windows:
            text = text_of(window).rstrip("#")
            starts[text] += 1
            at = sorted(starts).index(text)
            taught |= {at * 100 + place for place in range(len(text))}
    parts = math.ceil((len(long) + 1 - 1) / SEQUENCE)
    assert len(starts) == parts
    assert all(count > 200 / parts / 3 for count in starts.values()), starts
    joined = {long[at : at + SEQUENCE + 1] for at in range(0, len(long), SEQUENCE)}  # They share a token at their ends.
    assert set(starts) == joined


def test_examples_are_drawn_by_themselves_each_with_the_chance_that_is_counted(tmp_path: Path) -> None:
    """How often each comes, how often two come together, and how many come: Poisson sampling, and no batch of fixed size."""
    count, steps = 40, 3000
    found = examples_of(rows(tmp_path, [f"{chr(48 + number)} row" for number in range(count)]))
    taken = np.zeros((steps, count), dtype=bool)
    for step in range(steps):
        windows, _ = found.sample(1, 0, 0, 8)
        for window in windows:
            taken[step, ord(text_of(window)[0]) - 48] = True
        assert len(windows) == taken[step].sum()
    rate = found.rate(8)
    assert rate == 0.1, "the document's: 40 rows would give 0.2"
    error = math.sqrt(rate * (1 - rate) / steps)
    assert np.abs(taken.mean(0) - rate).max() < 5 * error
    together = (taken[:, 0::2] & taken[:, 1::2]).mean()
    assert together == pytest.approx(rate**2, rel=0.15)
    assert taken.sum(1).var() == pytest.approx(count * rate * (1 - rate), rel=0.15)


def test_who_has_many_examples_takes_each_more_rarely_and_nobody_more_often_than_agreed(tmp_path: Path) -> None:
    many = examples_of(rows(tmp_path, [f"row {number}" for number in range(1000)]))
    assert many.rate(8) == 8 / 1000
    few = examples_of(rows(tmp_path, [f"row {number}" for number in range(10)]))
    assert few.rate(8) == 0.1


def test_nobody_can_foresee_or_ask_which_were_drawn(tmp_path: Path) -> None:
    found = examples_of(rows(tmp_path, [f"row {number}" for number in range(200)]))
    drawn = [found.sample(1, 0, 0, 8) for _ in range(20)]
    assert len({windows.tobytes() for windows, _ in drawn}) == 20, "the same seed, step and replica: other examples"
    assert len({digest for _, digest in drawn}) == 1, "no digest of them goes into what is committed to"


@pytest.mark.parametrize(
    ("name", "content", "kind", "said"),
    [
        ("ids.jsonl", "[1, 2, 3]\n" * 40, "ids", "nobody knows where a text ends"),
        (
            "pairs.jsonl",
            '{"prompt": "so?", "chosen": "yes, it is", "rejected": "no, it is not"}\n' * 40,
            "auto",
            "answers to compare",
        ),
        ("short.txt", "a\n", "text", "bring more text"),
    ],
)
def test_what_has_no_examples_is_refused_with_the_way_out(
    name: str, content: str, kind: DatasetFormat, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=said):
        examples_of(tmp_path / name, kind)


def test_no_file_of_tokens_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(owned.tempfile, "tempdir", str(scratch))
    found = examples_of(rows(tmp_path, ["a row that can be read"] * 5))
    assert list(scratch.iterdir()) == []
    assert found.examples == 5, "the same text twice is two examples"


def test_a_token_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    path = rows(tmp_path, ["some text that is long enough"] * 3)
    own = OwnData(str(path), DatasetSpec("0" * 64))
    found, _ = own_tokens(own, spec(0.5), InputFolder(tmp_path), 20)

    def draw() -> None:
        for _ in range(100):
            found.sample(1, 0, 0, 8)

    with pytest.raises(DataError, match="the vocabulary has 20"):
        draw()


def test_other_jobs_read_windows_of_running_text_as_ever(tmp_path: Path) -> None:
    asked = spec()
    assert asked.federated is not None
    plain = msgspec.structs.replace(asked, federated=msgspec.structs.replace(asked.federated, privacy=PrivacySpec()))
    found, _ = own_tokens(
        OwnData(str(rows(tmp_path, ["words"] * 9)), DatasetSpec("0" * 64)), plain, InputFolder(tmp_path), VOCABULARY
    )
    assert not isinstance(found, OwnExamples)
    windows, _ = found.sample(1, 0, 0, 2)
    assert not (windows & (BEGINS | UNLEARNT)).any()


def held_of(path: Path, one_in: int = 4, sampling: float = 0.5) -> tuple[OwnExamples, OwnExamples | None]:
    asked = spec(sampling)
    assert asked.federated is not None
    assert asked.federated.privacy is not None
    privacy = msgspec.structs.replace(asked.federated.privacy, heldout=HeldoutLoss(one_in))
    asked = msgspec.structs.replace(asked, federated=msgspec.structs.replace(asked.federated, privacy=privacy))
    train, held = own_tokens(OwnData(str(path), DatasetSpec("0" * 64)), asked, InputFolder(path.parent), VOCABULARY)
    assert isinstance(train, OwnExamples)
    assert held is None or isinstance(held, OwnExamples)
    return train, held


def texts_in(found: OwnExamples) -> set[str]:
    return {text_of(window) for window in found.heldout()}


def test_examples_that_are_held_back_are_never_drawn_and_stay_so_when_others_come(tmp_path: Path) -> None:
    """Else an example would be told of by both, and have twice its budget. Which side it is on is a matter of itself."""
    texts = [f"bed {number}" for number in range(400)]
    train, held = held_of(rows(tmp_path, texts))
    assert held is not None
    assert train.examples + held.examples == 400
    assert 70 <= held.examples <= 130
    kept, back = texts_in(train), texts_in(held)
    assert len(kept) + len(back) == 400
    drawn = {text_of(window) for step in range(60) for window in train.sample(1, step, 0, 256)[0]}
    assert len(drawn) > 200
    assert not drawn & back
    again, still = held_of(rows(tmp_path, ["a new one", *texts[200:], *texts[:150], "another new one", texts[7]]))
    assert still is not None
    assert texts_in(still) - back <= {"a new one#", "another new one#"}
    assert texts_in(again) - kept <= {"a new one#", "another new one#"}


DATED = """{{- 'Today is ' + strftime_now('%d %b %Y') + '.' }}{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' }}{%- if m.role == 'assistant' %}{%- generation %}{{- m.content + '<|im_end|>' }}
{%- endgeneration %}{%- else %}{{- m.content + '<|im_end|>' }}{%- endif %}{%- endfor %}"""


@pytest.mark.parametrize("learn", ["answers", "all"])
def test_a_template_that_writes_todays_date_moves_no_example_to_the_other_side(
    learn: Literal["answers", "all"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that begins anew on another day would else learn from what it has measured with."""
    path = tmp_path / "talks.jsonl"
    talks = [(("user", f"bed {number}?"), ("assistant", f"asleep since {number}")) for number in range(200)]
    said = [{"messages": [{"role": role, "content": words} for role, words in talk]} for talk in talks]
    path.write_text("".join(json.dumps(talk) + "\n" for talk in said))
    tokenizer = small_tokenizer()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    asked = msgspec.structs.replace(
        spec(), tokenizer=TokenizerSpec("file", settings={"chat_template": DATED}), training=TrainingSpec(sequence=128)
    )
    found = datasets_in(path, DatasetSpec("0" * 64, learn=learn))

    def split_on(day: int) -> tuple[list[str], list[str], bytes]:
        class Day(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> Self:
                return cls(2026, 3, day)

        monkeypatch.setattr(chat_template_utils, "datetime", Day)
        files = tmp_path / "train", tmp_path / "held"
        cuts = write_examples(found, asked, tmp_path / "tokenizer.json", files[0], "its", (files[1], 4))
        sides = []
        for file, starts in zip(files, cuts, strict=True):
            assert starts is not None
            ids = ids_of(np.fromfile(file, "<u4")).tolist()
            texts = [tokenizer.decode(ids[begin:end]) for begin, end in pairwise(starts)]
            assert all(f"0{day} Mar 2026" in text for text in texts), "the template writes the date"
            sides.append([text.partition(".")[2] for text in texts])
        return sides[0], sides[1], files[1].read_bytes()

    kept, back, tokens = split_on(3)
    again, still, others = split_on(4)
    assert (kept, back) == (again, still)
    assert tokens != others
    assert 30 <= len(back) <= 70
    assert len(kept) + len(back) == 200


@pytest.mark.parametrize(("sequence", "windows"), [(4, 50), (512, 32), (1024, 32), (4096, 32), (400, 40)])
def test_long_windows_are_as_many_as_the_noise_that_is_promised_takes(
    sequence: int, windows: int, tmp_path: Path
) -> None:
    """The noise of a mean of fewer than 32 would be larger than page and quote say."""
    np.zeros(50 * 200, "<u4").tofile(tmp_path / "held")
    found = OwnExamples(tmp_path / "held", np.arange(51) * 200, sequence, VOCABULARY, 0.1)
    assert found.heldout().shape == (windows, sequence + 1)


def test_too_few_held_back_examples_are_none(tmp_path: Path) -> None:
    train, held = held_of(rows(tmp_path, [f"this is what lies on bed {number} of the ward" for number in range(60)]))
    assert held is None
    assert 30 <= train.examples < 60, "those that were to be measured with are learnt from all the same by nobody"


def test_a_line_of_megabytes_is_one_example_that_is_held_back_or_learnt_from(tmp_path: Path) -> None:
    """It is read a megabyte at a time: two examples of one row would tell of it twice what is counted."""
    lines = [f"bed {number} of the ward".encode() for number in range(200)]
    long = " ".join(f"day {day}: asleep, \u00e9veill\u00e9" for day in range(50_000)).encode()
    assert len(long) > 1 << 20
    path = tmp_path / "notes.txt"
    path.write_bytes(b"\n".join([*lines[:100], long, *lines[100:]]))
    assert examples_of(path).examples == 201
    train, held = held_of(path)
    assert held is not None
    assert train.examples + held.examples == 201
    assert sum(text.startswith("day ") for text in texts_in(train) | texts_in(held)) == 1
    tokens = sum(int(np.diff(one._starts).max() > SEQUENCE * 1000) for one in (train, held))
    assert tokens == 1, "all of it is on one side"


def test_a_last_line_stays_on_its_side_when_another_is_written_behind_it(tmp_path: Path) -> None:
    """Else what was learnt from is measured with once its owner adds to the file."""
    path = tmp_path / "notes.txt"
    words = [f"bed {number}" for number in range(300)]

    def sides(text: str) -> tuple[set[str], set[str]]:
        path.write_bytes(text.encode())
        train, held = held_of(path)
        assert held is not None
        kept, back = ({one.strip("\r\n\u010a\u010d") for one in texts_in(found)} for found in (train, held))
        assert len(kept) + len(back) == 300
        return kept, back

    before = sides("".join(f"{word}\n" for word in words))
    assert sides("\r\n".join(words)) == before, "whatever ends a line is no part of what it says"
    for last in words[:12]:
        assert sides("\n".join([*(word for word in words if word != last), last])) == before


def test_a_line_without_end_is_refused_or_left_out_as_a_row_of_json_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"bed 1 of the ward\n" + b"a word " * (10 << 20) + b"\nbed 2 of the ward\n")
    with pytest.raises(DataError, match=r"row 2 of notes\.txt has more than 67,108,864 bytes: split it"):
        list(documents(Dataset.of(path)))
    assert [row.number for row in documents(Dataset.of(path, faulty="skip"))] == [1, 3]


def test_a_line_is_drawn_with_its_end_so_that_it_stays_on_its_side(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(200)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    _, held = count_examples(datasets_in(tmp_path, DatasetSpec("0" * 64)), 4)
    ends = [hashlib.sha256(f"{line}\n".encode()).digest()[:8] for line in lines]
    assert held.examples == sum(int.from_bytes(end, "big") % 4 == 0 for end in ends)
