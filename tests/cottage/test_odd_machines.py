"""Machines and users as the world has them: no home, no folder to be in, a file or a link where a folder should be."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.own_folders import NoHomeError, data_folder, make_folder
from common.system_words import in_words, reason

HOMELESS = (
    "import os, pwd, sys; os.environ.pop('HOME', None); pwd.getpwuid = lambda _uid: {}[_uid]; "
    "[os.environ.pop(name, None) for name in list(os.environ) if name.startswith('XDG_')]; "
    "from cottage.cli import main; sys.exit(main(sys.argv[1:]))"
)
"""A user whom the system has no entry for, as in many containers."""


def _run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, **options)  # type: ignore[call-overload,no-any-return]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "words",
    [
        ["node", "status"],
        ["node", "limits"],
        ["logout"],
        ["login", "--token", "x", "--server", "http://127.0.0.1:9"],
        ["relay"],
        ["nettest"],
        ["auditor", "--coordinator", "http://127.0.0.1:9"],
    ],
)
def test_a_user_without_a_home_is_told_to_name_one(words: list[str]) -> None:
    done = _run(sys.executable, "-c", HOMELESS, *words)
    if words[0] == "login":  # Nobody answers there, which is found first.
        assert done.returncode == 3
    else:
        assert "this user has no home folder: set HOME to a folder" in done.stderr
        assert done.returncode in (1, 2, 5)
    assert "Traceback" not in done.stderr


def test_a_user_without_a_home_can_ask_and_lend_from_a_folder_that_is_named(tmp_path: Path) -> None:
    asked = _run(sys.executable, "-c", HOMELESS, "jobs", "--server", "http://127.0.0.1:9")
    assert (asked.returncode, "does not answer" in asked.stderr) == (3, True)
    lent = _run(sys.executable, "-c", HOMELESS, "node", "limits", "--up", "1M", "--home", str(tmp_path / "h"))
    assert (lent.returncode, lent.stderr) == (0, "")
    told = _run(sys.executable, "-c", HOMELESS, "node", "logs", "--support", "--home", str(tmp_path / "h"))
    assert (told.returncode, told.stderr) == (0, "")


def test_where_the_system_knows_no_home_the_error_is_one_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(_name: str) -> Path:
        raise RuntimeError("could not determine the home directory for '~', set an absolute HOME or XDG variable")

    monkeypatch.setattr("common.own_folders.platformdirs.user_data_path", nowhere)
    with pytest.raises(NoHomeError) as refused:
        data_folder()
    assert in_words(refused.value).startswith("this user has no home folder")


def test_a_file_or_a_link_where_a_folder_should_be_is_told_as_that(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere" / "x")
    (tmp_path / "round").symlink_to("round")
    for name, said in (
        ("file", "a part of its path is a file, no folder: name another place"),
        ("file/x", "a part of its path is a file, no folder: name another place"),
        ("lost", "it is a link that leads nowhere: mend it, or name another place"),
    ):
        with pytest.raises(OSError) as refused:
            make_folder(tmp_path / name)
        assert reason(refused.value) == said
        done = _run(sys.executable, "-m", "cottage", "node", "limits", "--home", str(tmp_path / name))
        assert (done.returncode, done.stderr) == (2, f"cottage node: --home {tmp_path / name} cannot be used: {said}\n")
    with pytest.raises(OSError) as refused:
        (tmp_path / "round").read_bytes()
    assert reason(refused.value) == "its links lead round in a circle: name another place"
    make_folder(tmp_path / "new" / "one")
    make_folder(tmp_path / "new" / "one")
    assert (tmp_path / "new" / "one").stat().st_mode & 0o077 == 0


def test_whoever_stands_in_a_folder_that_is_gone_is_told_so(tmp_path: Path) -> None:
    look = f'mkdir {tmp_path}/gone && cd {tmp_path}/gone && rmdir {tmp_path}/gone && exec "$0" -m cottage "$@"'
    for words in (["node", "limits", "--home", "h"], ["check", "x.txt", "--server", "http://127.0.0.1:9"]):
        done = _run("bash", "-c", look, sys.executable, *words)
        assert done.returncode == 2
        assert "the folder that this was started in is gone: change to another one (cd)" in done.stderr


def test_a_key_that_cannot_be_kept_names_its_file(tmp_path: Path) -> None:
    environment = os.environ | {"COTTAGE_CONFIG": str(tmp_path)}
    words = ["bash", "-c", 'ulimit -f 0; exec "$0" -m cottage logout', sys.executable]
    done = _run(*words, env=environment)
    assert done.returncode == 2
    assert f"{tmp_path / 'keys.json'} cannot be written: the file would become larger" in done.stderr


@pytest.mark.parametrize("number", [errno.ELOOP, errno.ENOMEM, errno.EIO, errno.ENFILE])
def test_more_of_the_systems_refusals_have_words_and_a_way_out(number: int) -> None:
    assert os.strerror(number) not in (said := reason(OSError(number, os.strerror(number))))
    assert ":" in said
