"""A dataset is read row by row before anybody pays: faults, repeats, secrets and personal data, each with its row."""

import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from protocol.job.job import DatasetFormat, DatasetSpec, TokenizerSpec
from protocol.rest.dataset import MAX_PLACES, CheckRequest, DatasetReport, Finding
from trainer.check import repeats
from trainer.check.report import check
from trainer.check.sensitive import KINDS, Scanner
from trainer.data.prepare import prepare
from trainer.errors import DataError
from trainer.formats.source import Dataset

CHANCE = random.Random(5)
WORDS = ["".join(CHANCE.choices("abcdefghijklmnopqrstuvwxyz", k=CHANCE.randint(2, 9))) for _ in range(500)]


def sentence(words: int = 30) -> str:
    return " ".join(CHANCE.choices(WORDS, k=words))


def key(length: int, letters: str = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789abcdefghijk") -> str:
    """A text that looks like a key; made here, so that no real form of one is in the source."""
    return "".join(CHANCE.choices(letters, k=length))


def look(
    path: Path,
    form: DatasetFormat = "jsonl",
    kind: str = "bytes",
    faulty: str = "refuse",
    field: str = "text",
    sequence: int = 16,
) -> DatasetReport:
    dataset = DatasetSpec("0" * 64, form, field, faulty=faulty)  # type: ignore[arg-type]
    scratch = path.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    seen = list[int]()
    asked = CheckRequest(dataset, TokenizerSpec(kind), sequence)  # type: ignore[arg-type]
    report = check(Dataset(path, dataset, path.name), asked, None, scratch, seen.append)
    assert list(scratch.iterdir()) == [], "nothing is left on the disk"
    if seen:
        assert seen == sorted(seen)
        assert seen[-1] == path.stat().st_size, "progress ends at the end"
    return report


def jsonl(path: Path, rows: list[str | bytes]) -> Path:
    lines = [row if isinstance(row, bytes) else json.dumps({"text": row}, ensure_ascii=False).encode() for row in rows]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def found(report: DatasetReport, kind: str) -> Finding:
    (finding,) = [finding for finding in report.findings if finding.kind == kind]
    return finding


def rows_of(report: DatasetReport, kind: str) -> list[int]:
    return [place.row for place in found(report, kind).places]


def test_every_row_that_cannot_be_read_is_named_and_the_others_are_counted(tmp_path: Path) -> None:
    good = [sentence() for _ in range(100)]
    rows: list[str | bytes] = [*good]
    rows[9:9] = [
        b'{"text": "caf\xe9"}',
        b"not json",
        b'{"body": "x"}',
        b'{"text": 3}',
        b"",
        b'{"text": ""}',
        b'["text"]',
    ]
    report = look(jsonl(tmp_path / "data", rows))
    assert (report.rows, report.usable) == (107, 100)
    assert report.characters == sum(map(len, good))
    assert rows_of(report, "bad-encoding") == [10]
    assert rows_of(report, "bad-row") == [11, 13, 16]
    assert rows_of(report, "no-field") == [12]
    assert "'body'" in found(report, "no-field").places[0].shown
    assert rows_of(report, "empty") == [14, 15]
    assert {f.severity for f in report.findings if f.kind in ("bad-encoding", "bad-row", "no-field")} == {"error"}
    assert "5 of 107 rows cannot be read" in report.problem
    assert str(tmp_path) not in str(report)


def test_rows_that_cannot_be_read_are_left_out_where_the_document_says_so(tmp_path: Path) -> None:
    rows: list[str | bytes] = [sentence() for _ in range(200)]
    rows[50:50] = [b"\xff\xfe\xff", b'{"other": "x"}']
    path = jsonl(tmp_path / "data", rows)
    report = look(path, faulty="skip")
    assert report.problem == ""
    assert {found(report, kind).severity for kind in ("bad-encoding", "no-field")} == {"warning"}
    with pytest.raises(DataError, match="row 51"):
        prepare(Dataset.of(path, "jsonl"), TokenizerSpec("bytes"), None, 0.1, 16, tmp_path / "refused")
    made = prepare(Dataset.of(path, "jsonl", faulty="skip"), TokenizerSpec("bytes"), None, 0.1, 16, tmp_path / "out")
    assert made.rows == 200
    assert made.train_tokens + made.heldout_tokens == report.tokens, "the report counts what training gets"


def test_plain_text_names_lines_and_leaves_the_bad_ones_out(tmp_path: Path) -> None:
    lines = [sentence().encode() + b"\n" for _ in range(300)]
    lines[100] = b"caf\xe9 au lait\n"
    path = tmp_path / "data"
    path.write_bytes(b"".join(lines))
    report = look(path, "text")
    assert rows_of(report, "bad-encoding") == [101]
    assert (report.rows, report.usable) == (300, 299)
    assert look(path, "text", faulty="skip").problem == ""
    made = prepare(Dataset.of(path, "text", faulty="skip"), TokenizerSpec("bytes"), None, 0.1, 16, tmp_path / "out")
    data = np.concatenate([np.fromfile(tmp_path / "out" / name, "<u4") for name in ("train.bin", "heldout.bin")])
    assert len(data) == made.train_tokens + made.heldout_tokens == sum(map(len, lines)) - len(lines[100])


def test_a_line_longer_than_a_block_is_one_row_whatever_characters_it_is_cut_between(tmp_path: Path) -> None:
    text = "x" + "größer" * 400_000
    (tmp_path / "data").write_text(f"{sentence()}\n{text}\n{sentence()}\n", "utf-8")
    report = look(tmp_path / "data", "text")
    assert (report.rows, report.usable, report.problem) == (3, 3, "")
    assert report.characters == len((tmp_path / "data").read_text("utf-8"))


def test_rows_that_come_again_are_found_word_for_word_and_nearly(tmp_path: Path) -> None:
    rows: list[str | bytes] = [sentence() for _ in range(400)]
    rows[200], rows[300] = rows[7], rows[7]
    rows[250] = f"{str(rows[9]).upper()}, 42!"
    report = look(jsonl(tmp_path / "data", rows))
    assert (found(report, "duplicate").rows, rows_of(report, "duplicate")) == (2, [201, 301])
    assert (found(report, "near-duplicate").rows, rows_of(report, "near-duplicate")) == (1, [251])
    assert found(report, "duplicate").severity == "notice"
    assert found(look(jsonl(tmp_path / "same", [sentence()] * 50)), "duplicate").severity == "warning"


def test_repeats_are_found_whatever_part_of_the_disk_they_are_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "_HELD", 97)
    chance = random.Random(2)
    content = [chance.randrange(700) for _ in range(2000)]
    seen = set[int]()
    again = [number for number, value in enumerate(content) if value in seen or seen.add(value)]  # type: ignore[func-returns-value]
    with repeats.Repeats(tmp_path) as kept:
        for number, value in enumerate(content):
            kept.add(number, b"%d" % value)
        assert kept.found(30) == (len(again), again[:30])
    assert list(tmp_path.iterdir()) == []


SECRETS = {
    "private-key": "-----BEGIN RSA " + "PRIVATE KEY-----",
    "aws-key": "AKIA" + key(16, "ABCDEFGHIJKLMNOP234567"),
    "github-token": "ghp_" + key(36),
    "gitlab-token": "glpat-" + key(20),
    "slack-token": "xoxb-" + key(30),
    "google-key": "AIza" + key(35),
    "stripe-key": "sk_live_" + key(24),
    "hugging-face-token": "hf_" + key(34),
    "api-key": "sk-proj-" + key(40),
    "npm-token": "npm_" + key(36),
    "sendgrid-key": f"SG.{key(22)}.{key(43)}",
    "web-token": f"eyJ{key(20)}.eyJ{key(30)}.{key(40)}",
    "password-in-address": "postgres://app:hunter2secret@db.internal.net",
    "email": "jane.doe@mail.acme.co.uk",
    "iban": "DE89 3704 0044 0532 0130 00",
    "telephone": "+49 30 901820 17",
}


def luhn(digits: str) -> bool:
    """ISO/IEC 7812-1, written down once more."""
    doubled = [int(d) * (1 + at % 2) for at, d in enumerate(reversed(digits))]
    return sum(d - 9 * (d > 9) for d in doubled) % 10 == 0


def card(start: str, length: int) -> str:
    body = start + "".join(CHANCE.choices("0123456789", k=length - 1 - len(start)))
    return next(body + last for last in "0123456789" if luhn(body + last))


SECRETS["card"] = card("4", 16)


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_each_kind_of_secret_and_personal_data_is_found_in_its_row_and_masked(kind: str, tmp_path: Path) -> None:
    rows: list[str | bytes] = [sentence() for _ in range(60)]
    rows[41] = f"{sentence(5)} ({SECRETS[kind]}), {sentence(5)}"
    report = look(jsonl(tmp_path / "data", rows))
    assert rows_of(report, kind) == [42]
    shown = found(report, kind).places[0].shown
    if kind != "private-key":
        assert SECRETS[kind] not in shown
        assert len(shown) < 40
    assert {f.kind for f in report.findings} <= {kind, "tiny"}, "and nothing else"


@pytest.mark.parametrize(
    "text",
    [
        "AKIA" + "X" * 16,
        "the isbn 9783161484100 and the order 4000000000000000",
        "4" + card("4", 16)[1:-1] + str((int(card("4", 16)[-1]) + 5) % 10) + "99999",
        "GB82 WEST 1234 5698 7654 33",
        "someone@example.com wrote to logo@2x.png",
        "in 1999-2004 they sold 1,234,567 pieces at 3.14159265358979",
        "192.168.100.200 at 2024-05-06T12:30:45.123456",
        "https://user@host.org/path and http://host:8080/x@y",
        "sk-learn-is-a-library and sk-" + "a" * 30,
    ],
)
def test_what_only_looks_like_it_is_left_alone(text: str) -> None:
    assert [hit.kind.name for hit in Scanner().scan([(1, text.encode())])] == []


def test_a_hundred_hits_are_counted_and_the_first_are_named(tmp_path: Path) -> None:
    rows: list[str | bytes] = [f"{sentence()} a.b{n}@acme.org and c@acme.org" for n in range(100)]
    finding = found(look(jsonl(tmp_path / "data", rows)), "email")
    assert (finding.rows, len(finding.places)) == (100, MAX_PLACES)


@pytest.mark.parametrize("form", ["text", "jsonl", "parquet"])
@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_the_tokens_of_the_report_are_those_that_training_gets(form: DatasetFormat, kind: str, tmp_path: Path) -> None:
    texts = [sentence() for _ in range(300)]
    path = tmp_path / "data"
    if form == "parquet":
        pq.write_table(pa.table({"text": texts}), path)
    elif form == "jsonl":
        jsonl(path, list(texts))
    else:
        path.write_text("\n".join(texts) + "\n")
    report = look(path, form, kind)
    made = prepare(Dataset.of(path, form), TokenizerSpec(kind), None, 0.1, 16, tmp_path / "out")  # type: ignore[arg-type]
    assert report.exact
    tokens = made.train_tokens + made.heldout_tokens
    assert report.tokens == tokens if form != "text" else abs(report.tokens / tokens - 1) < 0.01, "lines join in text"
    assert (report.rows, report.usable, report.problem) == (300, 300, "")
    assert report.vocabulary == made.vocabulary
    assert len(report.samples) == 8
    assert all(place.shown in texts[place.row - 1] for place in report.samples)


def test_of_a_large_file_a_part_is_tokenised_and_the_rest_worked_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = jsonl(tmp_path / "data", [sentence(CHANCE.randint(5, 200)) for _ in range(3000)])
    whole = look(path, kind="bpe")
    monkeypatch.setattr("trainer.check.report.COUNTED_BYTES", path.stat().st_size // 7)
    monkeypatch.setattr("trainer.check.report.BLOCK_BYTES", 10_000)
    part = look(path, kind="bpe")
    assert (whole.exact, part.exact) == (True, False)
    assert abs(part.tokens / whole.tokens - 1) < 0.02


@pytest.mark.parametrize(
    ("form", "content", "code"),
    [
        ("text", b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40, "binary-dataset"),
        ("jsonl", b"\0\1\2\3\4\5\6" * 100, "binary-dataset"),
        ("jsonl", b'[{"text": "a"}]', "wrong-format"),
        ("text", b"", "empty-dataset"),
        ("parquet", b"PAR1 nothing PAR1", "bad-parquet"),
    ],
)
def test_a_file_that_is_no_dataset_has_no_report(
    form: DatasetFormat, content: bytes, code: str, tmp_path: Path
) -> None:
    (tmp_path / "data").write_bytes(content)
    with pytest.raises(DataError) as caught:
        look(tmp_path / "data", form)
    assert caught.value.code == code


def test_too_little_text_is_a_problem_and_little_text_a_warning(tmp_path: Path) -> None:
    assert "too few" in look(jsonl(tmp_path / "few", ["a", "b"])).problem
    little = look(jsonl(tmp_path / "little", [sentence() for _ in range(50)]))
    assert little.problem == ""
    assert found(little, "tiny").severity == "warning"
    assert "look at the field's name" in look(jsonl(tmp_path / "none", [b'{"a": 1}', b'{"b": 2}'])).problem


def test_parquet_rows_without_text_are_empty_and_ids_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    texts = [sentence() for _ in range(40)]
    pq.write_table(pa.table({"body": [*texts, None, ""]}), tmp_path / "data")
    report = look(tmp_path / "data", "parquet", field="body")
    assert (report.usable, rows_of(report, "empty")) == (40, [41, 42])
    for more in range(60):  # Of such sizes, one in 13 is not reached by 49 times a float's share.
        pq.write_table(pa.table({"text": [*texts[:9], *texts[:39], "x" * more]}), tmp_path / f"{more}")
        assert look(tmp_path / f"{more}", "parquet").rows == 49
    np.arange(2000, dtype="<u2").tofile(tmp_path / "ids")
    with pytest.raises(DataError, match="the tokenizer has 259"):
        look(tmp_path / "ids", "uint16")
    (np.arange(2000) % 259).astype("<u2").tofile(tmp_path / "ids")
    assert look(tmp_path / "ids", "uint16").tokens == 2000
