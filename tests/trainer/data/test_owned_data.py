"""Data that stays at its owner: which files are read, what the check says, and that no token file is left behind."""

from pathlib import Path

import pytest

from protocol.job.federated import FederatedSpec
from protocol.job.job import DatasetSpec, JobSpec, ModelSpec, TokenizerSpec, TrainingSpec
from protocol.worker import OwnData
from trainer.check.own_check import look_at
from trainer.data import owned
from trainer.data.owned import datasets_in, own_tokens
from trainer.errors import DataError
from trainer.files.inputs import InputFolder

HOW = DatasetSpec("0" * 64, "text")
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
    tokens = own_tokens(OwnData(str(folder), HOW), spec(), InputFolder(tmp_path), VOCABULARY)
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
