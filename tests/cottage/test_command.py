"""The umbrella command and the demo's command line."""

from pathlib import Path

import pytest

from cottage.cli import EXIT_INTERRUPTED, main
from cottage.demo.corpus import write_corpus
from cottage.demo.options import parse
from cottage.demo.run import DemoError, _make_room
from cottage.demo.screen import sparkline, wire_text


def test_without_a_word_the_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "demo" in capsys.readouterr().out


def test_an_unknown_word_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    assert "'trian'" in capsys.readouterr().err


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("cottage 0.")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--nodes", "0"], "--nodes 0"),
        (["--nodes", "1", "--stages", "2"], "needs at least as many nodes"),
        (["--stages", "9"], "--stages 9"),
        (["--tokens", "5"], "--tokens 5"),
        (["--json", "--keep"], "choose one"),
        (["--sandbox", "chroot"], "invalid choice"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_starts(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ending:
        parse(words)
    assert ending.value.code == 2
    assert text in capsys.readouterr().err


def test_replicas_are_the_whole_pipelines_that_the_nodes_allow() -> None:
    assert parse(["--nodes", "5", "--stages", "2"]).replicas == 2


def test_the_corpus_is_text_and_the_same_each_time(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    assert write_corpus(first, 200_000) == write_corpus(second, 200_000) == first.stat().st_size
    assert 150_000 < first.stat().st_size <= 200_000
    assert first.read_bytes() == second.read_bytes()
    assert "def " in first.read_text("utf-8")


def test_a_folder_with_somebody_s_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("do not lose")
    (tmp_path / "logs").mkdir()
    with pytest.raises(DemoError, match=r"thesis\.txt"):
        _make_room(tmp_path)
    assert (tmp_path / "logs").exists()


def test_what_an_earlier_demo_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "corpus.txt").write_text("old")
    _make_room(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_sparkline_falls_with_the_loss() -> None:
    line = sparkline([5.0, 4.0, 3.0, 2.0])
    assert line[0] == "█"
    assert line[-1] == "▁"
    assert sparkline([1.0]) == ""


def test_the_wire_text_gives_the_share_of_the_naive_bytes() -> None:
    assert wire_text(50_000_000, 1_000_000_000) == "50 MB, 5.0 % of the naive 1 GB"
    assert wire_text(0, 0) == "0 B"


def test_ctrl_c_while_packages_are_read_ends_it_quietly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_module: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cottage.cli.importlib.import_module", interrupted)
    assert main(["jobs"]) == EXIT_INTERRUPTED == 130
    assert capsys.readouterr() == ("", "")
