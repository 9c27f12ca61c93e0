"""Texts that are more than their words are remarked on, whatever they are called; long rows go in parts."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from protocol.datasets.file_formats import recognise, remarks
from protocol.job.job import TokenizerSpec
from protocol.rest.dataset import CheckRequest
from trainer.check.report import check
from trainer.data import encoded, prepare
from trainer.data.text import pieces
from trainer.errors import DataError
from trainer.formats.source import Dataset

TEXTS = [f"Row {number}: the fox ran over {number * 7} hills" for number in range(40)]
SYNTAX = {
    "an SQL dump": "-- MySQL dump 10.13\nINSERT INTO `posts` VALUES " + ",".join(f"(1,'{text}')" for text in TEXTS),
    "SQL dump": "/* made by a program */\n\nCREATE TABLE posts (id int);\nINSERT INTO posts VALUES (1, 'x');\n",
    "subtitles": "\n\n".join(f"{n + 1}\n00:00:{n:02},000 --> 00:00:{n:02},900\n{text}" for n, text in enumerate(TEXTS)),
    "a mailbox": "".join(f"From a@b Mon Jan  1 00:00:00 2024\nSubject: x\n\n{text}\n\n" for text in TEXTS),
    "LaTeX": "% A comment\n\\documentclass{article}\n\\begin{document}\n" + "\n".join(TEXTS),
    "BibTeX": "".join(f"@book{{b{n},\n  title = {{{text}}}\n}}\n" for n, text in enumerate(TEXTS)),
    "CoNLL-U": "# sent_id = 1\n# text = The fox\n1\tThe\tthe\tDET\n2\tfox\tfox\tNOUN\n\n",
    "settings in YAML above": "---\nlicense: mit\ntags:\n- text\n---\n# My dataset\n" + "\n".join(TEXTS),
    "YAML": "".join(f"- text: {json.dumps(text)}\n  id: 1\n" for text in TEXTS),
    "a script around JSON": "window.YTD.tweets.part0 = [\n"
    + ",\n".join(json.dumps({"t": text}) for text in TEXTS)
    + "]",
    "between tags": "<mediawiki>\n" + "".join(f"<page><text>{text}</text></page>\n" for text in TEXTS),
    "text between tags": "".join(f'<doc id="1" title="x">\n{text}\n</doc>\n' for text in TEXTS),
    "tags": "<!-- made by hand -->\n<div class='a'>" + "".join(f"<p>{text}</p>\n" for text in TEXTS),
    "HTML": "<!DOCTYPE html>\n<html><body>hills</body></html>",
    "XML": '<?xml version="1.0"?>\n<a>hills</a>',
}


@pytest.mark.parametrize("what", SYNTAX)
@pytest.mark.parametrize("name", ["data.txt", "data"])
def test_syntax_that_plain_text_would_train_on_is_remarked_on(what: str, name: str) -> None:
    content = recognise(SYNTAX[what].encode(), True, name)
    assert content.formats == ("text",)
    [said] = remarks(content, name, "text")
    assert what in said
    assert said.endswith("its syntax is trained on, too")


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(TEXTS),
        "<s> A story that begins with a mark.\n",
        "<think>Once</think> upon a time.\n",
        "- Who is there? he asked: nobody said a word.\n- I am.\n",
        "---\n\nA chapter that begins with a line.\n\nAnd goes on.\n",
        "From there he went on: to the hills.\nThen home.\n",
        "1\n\nIt was 10:30 when they left the house.\n",
        "Create a table of hills (with foxes), he said.\n",
        "# Title\n\nA page in Markdown, with a <b>word</b> in bold.\n",
        "@fox he said { and ran.\n",
        "-- Who is there?\n-- Nobody.\n",
        "f(x) = [1, 2]\n",
        "",
    ],
)
def test_nothing_is_said_of_a_story(text: str) -> None:
    assert remarks(recognise(text.encode(), True, "data.txt"), "data.txt", "text") == []


def test_a_table_whose_names_stand_further_down_is_told_how_it_should_begin(tmp_path: Path) -> None:
    for before in ("# made by a program\n", "My export\n\n"):
        (tmp_path / "data.csv").write_text(before + "id,text\n" + "".join(f"1,{text}\n" for text in TEXTS))
        with pytest.raises(
            DataError, match="let the file begin with the line of the names, parted by commas, semicolons"
        ):
            list(pieces(Dataset.of(tmp_path / "data.csv", "csv")))


def test_a_file_without_rows_is_told_as_that(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("id,text\n")
    dataset = Dataset.of(tmp_path / "data.csv")
    request = CheckRequest(dataset.spec, TokenizerSpec("bytes"), 16)
    assert check(dataset, request, None, tmp_path, lambda _: None).problem.startswith("it has no rows")


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_the_library_of_tokenizers_gets_long_rows_in_parts(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes 200 bytes for a character: 50 MB in one row took 11 GB, and 256 books of 1 MB at once far more."""
    rows = [
        "".join(f"{text}\n" if n % 9 else f"{text} " for n, text in enumerate(TEXTS)) * count for count in (1, 9, 1, 4)
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows * 3))
    dataset, spec = Dataset.of(tmp_path / "data.jsonl"), TokenizerSpec(kind, vocabulary=400)  # type: ignore[arg-type]
    given: list[int] = []
    straight = encoded.encodings

    def counted(tokenizer: Tokenizer, texts: list[str], *more: object) -> object:
        given.append(sum(map(len, texts)))
        return straight(tokenizer, texts, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(encoded, "encodings", counted)
    found = {}
    for most in (1 << 22, 5_000):
        monkeypatch.setattr(encoded, "MOST_CHARACTERS", most)
        monkeypatch.setattr(prepare, "MOST_CHARACTERS", most)
        given.clear()
        out = tmp_path / str(most)
        prepare.prepare(dataset, spec, None, 0.25, 16, out)
        assert max(given) <= most < sum(given) or most > 5_000
        found[most] = np.fromfile(out / "train.bin", "<u4").tolist(), np.fromfile(out / "heldout.bin", "<u4").tolist()
        report = check(dataset, CheckRequest(dataset.spec, spec, 16), None, tmp_path, lambda _: None)
        assert (report.exact, report.tokens) == (True, sum(map(len, found[most])))
    assert found[5_000] == found[1 << 22], "a part ends with a line"
