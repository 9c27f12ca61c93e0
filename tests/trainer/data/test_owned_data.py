"""Data that stays at its owner: which files are read, what the check says, and that no token file is left behind."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from protocol.codec import decode_json, encode_json
from protocol.federated.federations import OwnDataReport
from protocol.job.federated import FederatedSpec, HeldoutLoss, PrivacySpec
from protocol.job.job import DatasetSpec, JobSpec, ModelSpec, TokenizerSpec, TrainingSpec
from protocol.worker import OwnData
from trainer.__main__ import main
from trainer.check.own_check import look_at
from trainer.data import owned, text
from trainer.data.owned import datasets_in, own_tokens
from trainer.errors import DataError
from trainer.files.inputs import InputFolder

HOW, HOW_AUTO = DatasetSpec("0" * 64, "text"), DatasetSpec("0" * 64)
SEQUENCE, VOCABULARY = 16, 259
TEXT = "the quagga sleeps in bed 4711\n"


def spec() -> JobSpec:
    federated = FederatedSpec(("A" * 40, "B" * 40), 2)
    training = TrainingSpec(sequence=SEQUENCE, batch=2, micro_batches=1, inner_steps=2)
    model, tokenizer = ModelSpec("tiny-llama"), TokenizerSpec("bytes")
    return JobSpec("wards", model, 1, tokenizer=tokenizer, training=training, federated=federated)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    own = tmp_path / "own"
    (own / "deep" / ".git").mkdir(parents=True)
    (own / "b.txt").write_text(TEXT * 20)
    (own / "deep" / "a.txt").write_text(TEXT * 10)
    (own / "empty.txt").write_text("")
    (own / ".hidden").write_text("not this")
    (own / "deep" / ".git" / "config").write_text("nor this")
    return own


def test_a_folder_is_all_its_files_by_name_but_hidden_and_empty_ones(folder: Path) -> None:
    assert [one.name for one in datasets_in(folder, HOW)] == ["b.txt", "deep/a.txt"]
    assert [one.name for one in datasets_in(folder / "b.txt", HOW)] == ["b.txt"]


def test_nothing_to_read_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        datasets_in(tmp_path / "nowhere", HOW)
    (tmp_path / "bare").mkdir()
    with pytest.raises(DataError, match="no files with text"):
        datasets_in(tmp_path / "bare", HOW)


def test_all_of_it_becomes_tokens_and_no_file_of_them_is_left(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(owned.tempfile, "tempdir", str(scratch))
    tokens, held = own_tokens(OwnData(str(folder), HOW), spec(), InputFolder(tmp_path), VOCABULARY)
    assert held is None
    assert list(scratch.iterdir()) == []
    assert len(tokens) == 30 * len(TEXT), "nothing is held out"
    windows, _ = tokens.sample(1, 0, 0, 2)
    assert windows.shape == (2, SEQUENCE + 1)


def test_too_little_text_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("too short")
    with pytest.raises(DataError, match="bring more text"):
        own_tokens(OwnData(str(tmp_path / "short.txt"), HOW), spec(), InputFolder(tmp_path), VOCABULARY)
    assert "bring more text" in look_at(tmp_path / "short.txt", HOW, SEQUENCE).problem


def test_the_check_counts_all_files_and_names_where_it_found_what(folder: Path) -> None:
    (folder / "mail.txt").write_text("write to anna.schmidt@hospital.example, she knows\n" * 3)
    report = look_at(folder, HOW, SEQUENCE)
    assert (report.files, report.rows, report.usable, report.problem) == (3, 33, 33, "")
    assert any(found.text.startswith("mail.txt: ") for found in report.findings), report.findings


def test_a_part_of_running_text_is_held_back_where_the_job_asks_for_its_loss(tmp_path: Path) -> None:
    lines = [f"line {number} of what this owner has\n" for number in range(400)]
    (tmp_path / "own.txt").write_text("".join(lines))
    asked = spec()
    assert asked.federated is not None
    federated = msgspec.structs.replace(asked.federated, privacy=PrivacySpec(heldout=HeldoutLoss(10)))
    asked = msgspec.structs.replace(asked, federated=federated)
    train, held = own_tokens(OwnData(str(tmp_path / "own.txt"), HOW), asked, InputFolder(tmp_path), VOCABULARY)
    assert held is not None
    whole = sum(map(len, lines))
    assert len(train) + len(held) == whole
    assert 0.05 * whole < len(held) < 0.15 * whole
    assert held.heldout().shape[1] == SEQUENCE + 1


def test_who_has_too_little_to_hold_back_hears_so_before_joining(tmp_path: Path) -> None:
    """Else the worker would find out, and each of its rounds fail."""
    (tmp_path / "own.txt").write_text("".join(f"line {number}\n" for number in range(20)))
    assert look_at(tmp_path / "own.txt", HOW, SEQUENCE).problem == ""
    few = look_at(tmp_path / "own.txt", HOW, 60, 20)
    assert "held out, sequences of 60 need at least 61 of each: bring more text" in few.problem
    assert "a byte counts as a token" in few.problem
    (tmp_path / "own.txt").write_text("".join(f"line {number}\n" for number in range(2000)))
    assert look_at(tmp_path / "own.txt", HOW, 60, 20).problem == ""


def test_the_check_reads_what_is_held_back_of_the_federations_own_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And refuses words that it does not know, as they are of a newer federation."""
    (tmp_path / "own.txt").write_text("".join(f"line {number}\n" for number in range(20)))
    words = ["own", "--data", str(tmp_path / "own.txt"), "--how", encode_json(HOW).decode(), "--sequence", "60"]
    example = PrivacySpec("example", sampling=0.01, heldout=HeldoutLoss(20))
    for privacy, short in ((None, False), (PrivacySpec(heldout=HeldoutLoss(20)), True), (example, False)):
        told = [] if privacy is None else ["--privacy", encode_json(privacy).decode()]
        assert main([*words, *told]) == 0
        report = decode_json(capsys.readouterr().out.encode(), OwnDataReport)
        assert ("of each: bring more text" in report.problem) == short
        assert report.tokens == len((tmp_path / "own.txt").read_bytes())
    newer = encode_json(example).decode().replace('"one_in"', '"sooner":1,"one_in"')
    assert main([*words, "--privacy", newer]) != 0
    assert json.loads(capsys.readouterr().err)["code"] == "bad-document"


PAIR = json.dumps({"prompt": "so?", "chosen": "yes, it is", "rejected": "no, it is not"}) + "\n"


def checked(path: Path, privacy: PrivacySpec, capsys: pytest.CaptureFixture[str]) -> OwnDataReport | dict[str, str]:
    """What the check says of data before it is joined, as the agent asks for it: the report, or why it is refused."""
    words = ["own", "--data", str(path), "--how", encode_json(HOW_AUTO).decode(), "--sequence", str(SEQUENCE)]
    refused = main([*words, "--privacy", encode_json(privacy).decode()])
    told = capsys.readouterr()
    return json.loads(told.err) if refused else decode_json(told.out.encode(), OwnDataReport)  # type: ignore[no-any-return]


EXAMPLE = PrivacySpec("example", sampling=0.01)


def test_what_has_no_examples_is_said_before_it_is_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Else each start of it fails, again and again."""
    np.save(tmp_path / "ids.npy", np.arange(1000, 9000, dtype=np.uint16))
    (tmp_path / "pairs.jsonl").write_text(PAIR * 40)
    for name, said in {"ids.npy": "nobody knows where a text ends", "pairs.jsonl": "answers to compare"}.items():
        refused = checked(tmp_path / name, EXAMPLE, capsys)
        assert isinstance(refused, dict)
        assert refused["code"] == "no-examples"
        assert said in refused["detail"]
        with pytest.raises(DataError) as found:
            own_tokens(OwnData(str(tmp_path / name), HOW_AUTO), by_example(), InputFolder(tmp_path), VOCABULARY)
        assert found.value.detail == refused["detail"], "as each start says it"


def by_example(heldout: HeldoutLoss | None = None) -> JobSpec:
    one = spec()
    assert one.federated is not None
    privacy = msgspec.structs.replace(EXAMPLE, heldout=heldout, noise_multiplier=1.0)
    return msgspec.structs.replace(one, federated=msgspec.structs.replace(one.federated, privacy=privacy))


def test_what_no_federation_learns_from_is_said_before_it_is_joined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pairs.jsonl").write_text(PAIR * 40)
    refused = checked(tmp_path / "pairs.jsonl", PrivacySpec(), capsys)
    assert isinstance(refused, dict)
    assert "a chosen and a rejected answer" in refused["detail"]
    own = tmp_path / "own"
    own.mkdir()
    (own / "a.txt").write_text(TEXT * 40)
    (own / "b.jsonl").write_text(json.dumps({"prompt": "how is bed 7?", "completion": "asleep"}) + "\n")
    for privacy in (PrivacySpec(), EXAMPLE):
        refused = checked(own, privacy, capsys)
        assert isinstance(refused, dict)
        assert refused["code"] == "mixed-datasets"


def told_of_held(report: OwnDataReport | dict[str, str]) -> list[int]:
    assert isinstance(report, OwnDataReport)
    assert report.problem == ""
    return [found.rows for found in report.findings if found.kind == "heldout"]


@pytest.mark.parametrize(("rows", "words", "tells"), [(60, 5, False), (600, 5, True), (400, 0, False)])
def test_who_holds_back_too_little_to_tell_a_loss_hears_so_before_joining(
    rows: int, words: int, tells: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"bed {number}" + " asleep" * words for number in range(rows)]
    (tmp_path / "own.txt").write_text("".join(f"{line}\n" for line in lines))
    one_in = HeldoutLoss(4 if words else 400)
    _, held = own_tokens(OwnData(str(tmp_path / "own.txt"), HOW), by_example(one_in), InputFolder(tmp_path), VOCABULARY)
    assert (held is not None) == tells
    private = msgspec.structs.replace(EXAMPLE, heldout=one_in)
    told = told_of_held(checked(tmp_path / "own.txt", private, capsys))
    assert len(told) == (not tells)
    assert all(count < 32 for count in told)
    assert told_of_held(checked(tmp_path / "own.txt", EXAMPLE, capsys)) == []


def test_a_line_that_is_too_long_to_be_an_example_is_said_before_it_is_joined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "MAX_ROW_BYTES", 1000)
    monkeypatch.setattr(text, "_LINE", 400)
    (tmp_path / "own.txt").write_text(TEXT * 3 + "a word " * 200 + "\n")
    report = checked(tmp_path / "own.txt", EXAMPLE, capsys)
    assert isinstance(report, OwnDataReport)
    assert "row 4 of own.txt has more than" in report.problem
    assert checked(tmp_path / "own.txt", PrivacySpec(), capsys).problem == ""  # type: ignore[union-attr]


def table(path: Path, texts: list[str]) -> None:
    pq.write_table(pa.table({"name": [f"p{at}" for at in range(len(texts))], "notes": texts}), path)


def test_a_folder_of_parquet_tables_is_read_as_it_lies(tmp_path: Path) -> None:
    """As what hospitals' exports are: several files, of which one column is learnt from."""
    own = tmp_path / "own"
    own.mkdir()
    for part in range(3):
        table(own / f"part-{part}.parquet", [TEXT] * 10)
    how = DatasetSpec("0" * 64, text_field="notes")
    report = look_at(own, how, SEQUENCE)
    assert (report.files, report.rows, report.usable, report.problem) == (3, 30, 30, "")
    tokens, _ = own_tokens(OwnData(str(own), how), spec(), InputFolder(tmp_path), VOCABULARY)
    assert len(tokens) == 30 * (len(TEXT) + 1), "each row ends"
    (single,) = datasets_in(own / "part-1.parquet", how)
    assert single.name == "part-1.parquet"


def test_a_table_without_the_column_is_refused_with_those_it_has(tmp_path: Path) -> None:
    table(tmp_path / "ward.parquet", [TEXT] * 10)
    with pytest.raises(DataError, match="notes"):
        look_at(tmp_path / "ward.parquet", HOW_AUTO, SEQUENCE)
