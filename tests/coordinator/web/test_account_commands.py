"""`cottage login`, `logout`, `keys` and `upload` against a coordinator that asks who somebody is."""

import asyncio
import getpass
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.client import Client, ProblemError, files
from coordinator.client.cli import main
from coordinator.client.line import HttpLine
from coordinator.client.login import CONFIG_VARIABLE, TOKEN_VARIABLE, file_of_keys, remember
from coordinator.domain.account import Scope
from cottage.cli import main as umbrella
from protocol.rest import api
from tests.coordinator.web.conftest import House
from tests.coordinator.web.test_tenants import member

Cottage = Callable[..., "asyncio.Future[int]"]


@pytest.fixture
def cottage(town: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cottage:
    """The command at ``town``, with settings of its own."""
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "config"))
    monkeypatch.setenv("COTTAGE_SERVER", town.url)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    return lambda *argv: asyncio.ensure_future(asyncio.to_thread(main, list(argv)))


async def key_of(town: House, name: str = "ada", scopes: frozenset[Scope] = frozenset(Scope)) -> str:
    return (await member(town, name, scopes))["Authorization"].removeprefix("Bearer ")


async def test_a_key_that_is_piped_in_is_kept_for_its_owner_only_and_used_from_then_on(
    town: House, cottage: Cottage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await key_of(town)
    assert await cottage("jobs") == 4
    assert "cottage login" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO(f"  {key} \n"))
    assert await cottage("login") == 0
    told = capsys.readouterr().out
    assert "as ada" in told
    assert key not in told
    assert file_of_keys().stat().st_mode & 0o777 == 0o600
    assert json.loads(file_of_keys().read_text()) == {town.url: key}
    assert await cottage("jobs") == 0
    assert await cottage("logout") == 0
    assert json.loads(file_of_keys().read_text()) == {}
    assert await cottage("jobs") == 4


async def test_a_key_that_is_typed_is_not_shown(
    town: House, cottage: Cottage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await key_of(town)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr(getpass, "getpass", lambda _prompt: key)
    assert await cottage("login") == 0
    shown = capsys.readouterr()
    assert f"{town.url}/account" in shown.out
    assert key not in shown.out + shown.err


@pytest.mark.parametrize(("typed", "status", "says"), [("cottage_0_nonsense", 4, "key"), ("", 2, "no key was given")])
async def test_a_key_that_does_not_work_is_not_kept(
    typed: str,
    status: int,
    says: str,
    town: House,
    cottage: Cottage,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await key_of(town)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{typed}\n"))
    assert await cottage("login") == status
    assert says in capsys.readouterr().err
    assert not file_of_keys().exists()


async def test_two_coordinators_keys_are_kept_side_by_side_and_a_variable_comes_first(
    town: House, cottage: Cottage, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, other = await key_of(town), await key_of(town, "bob")
    file_of_keys().parent.mkdir()
    file_of_keys().write_text('{"https://elsewhere.example": "theirs"}')
    assert await cottage("login", "--token", key) == 0
    assert json.loads(file_of_keys().read_text()) == {"https://elsewhere.example": "theirs", town.url: key}
    monkeypatch.setenv(TOKEN_VARIABLE, other)
    assert await cottage("keys", "--new", "of bob") == 0
    (account,) = [one for one in await town.accounts.all() if one.name == "bob"]
    assert "of bob" in {one.name for one in await town.accounts.keys(account.id)}


async def test_a_damaged_file_of_keys_is_named_and_left_as_it_is(
    town: House, cottage: Cottage, capsys: pytest.CaptureFixture[str]
) -> None:
    file_of_keys().parent.mkdir()
    file_of_keys().write_text("{")
    assert await cottage("jobs") == 2
    assert str(file_of_keys()) in capsys.readouterr().err
    assert file_of_keys().read_text() == "{"


async def test_a_key_is_made_listed_used_and_revoked(
    town: House, cottage: Cottage, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = await key_of(town)
    assert await cottage("login", "--token", owner) == 0
    capsys.readouterr()
    assert await cottage("keys", "--new", "laptop", "--scope", "jobs:read", "--days", "7", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["scopes"] == ["jobs:read"]
    assert made["expires"] - made["created"] == pytest.approx(7 * 86_400)
    assert await cottage("jobs", "--token", made["text"]) == 0
    assert await cottage("keys", "--token", made["text"]) == 4, "a key that may only read sees no keys"
    capsys.readouterr()
    assert await cottage("keys") == 0
    listed = capsys.readouterr().out
    assert "laptop" in listed
    assert made["id"] in listed
    assert made["text"] not in listed
    assert await cottage("keys", "--revoke", made["id"]) == 0
    assert await cottage("jobs", "--token", made["text"]) == 4
    assert await cottage("keys", "--revoke", made["id"]) == 1
    assert made["id"] in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--scope", "everything"], ["--days", "0"]])
async def test_a_key_out_of_bounds_is_not_made(
    wrong: list[str], town: House, cottage: Cottage, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await cottage("login", "--token", await key_of(town)) == 0
    assert await cottage("keys", "--new", "x", *wrong) == 1
    assert wrong[0].strip("-") in capsys.readouterr().err
    (account,) = await town.accounts.all()
    assert [one.name for one in await town.accounts.keys(account.id)] == ["test"]


async def test_a_file_is_uploaded_by_its_ending_and_can_be_gone_on_with(
    town: House, cottage: Cottage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await cottage("login", "--token", await key_of(town)) == 0
    data = b'{"body": "to be"}\n{"body": "or not"}\n'
    (tmp_path / "my data.jsonl").write_bytes(data)
    capsys.readouterr()
    assert await cottage("upload", str(tmp_path / "my data.jsonl"), "--text-field", "body", "--json") == 0
    out, err = capsys.readouterr()
    made = json.loads(out)
    assert town.artifacts.path(made["artifact"]).read_bytes() == data
    found = re.search(r"cottage upload '([^']+)' --resume ([0-9a-f]{32})", err)
    assert found
    assert found[2] == made["id"]
    assert await cottage("upload", found[1], "--resume", found[2], "--json") == 0
    assert json.loads(capsys.readouterr().out)["artifact"] == made["artifact"]


async def test_an_upload_that_was_interrupted_goes_on_from_the_bytes_that_are_there(
    town: House, cottage: Cottage, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await cottage("login", "--token", await key_of(town)) == 0
    data = bytes(range(65, 90)) * 100
    (tmp_path / "data.txt").write_bytes(data)
    monkeypatch.setattr(files, "PIECE_BYTES", 1000)
    send, offsets = files._send_piece, list[int]()

    async def counted(line: HttpLine, path: Path, upload: api.Upload) -> api.Upload:
        offsets.append(upload.offset)
        if len(offsets) == 2:
            raise KeyboardInterrupt  # As Ctrl-C does.
        return await send(line, path, upload)

    monkeypatch.setattr(files, "_send_piece", counted)
    assert await cottage("upload", str(tmp_path / "data.txt")) == 130
    found = re.search(r"--resume ([0-9a-f]{32})", capsys.readouterr().err)
    assert found
    assert await cottage("upload", str(tmp_path / "data.txt"), "--resume", found[1], "--json") == 0
    assert offsets == [0, 1000, 1000, 2000], "nothing is sent twice"
    assert town.artifacts.path(json.loads(capsys.readouterr().out)["artifact"]).read_bytes() == data


async def test_what_cannot_be_uploaded_is_refused_with_its_reason(
    town: House, cottage: Cottage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await cottage("login", "--token", await key_of(town)) == 0
    (tmp_path / "empty.txt").touch()
    (tmp_path / "lines.parquet").write_text("to be\nor not\n")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1, and then nothing more of it")
    (tmp_path / "model.safetensors").write_bytes(b"no safetensors at all")
    for argv, status, says in (
        (["empty.txt"], 1, "empty"),
        (["nothing.txt"], 2, "nothing.txt"),
        (["model.safetensors", "--purpose", "weights"], 1, "safetensors"),
        (["model.safetensors", "--resume", "0" * 32], 1, "no upload"),
        (["cut.parquet"], 1, "Parquet"),
        # Its content says otherwise than its ending, and the command decides.
        (["lines.parquet"], 2, "is plain text, whatever its ending says"),
        (["lines.parquet", "--format", "parquet"], 2, "not Parquet"),
    ):
        assert await cottage("upload", str(tmp_path / argv[0]), *argv[1:]) == status, argv
        assert says in capsys.readouterr().err


async def test_a_dataset_is_looked_through_before_anybody_pays(
    town: House, cottage: Cottage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await cottage("login", "--token", await key_of(town)) == 0
    file = tmp_path / "data.jsonl"
    file.write_text('{"body": "to be"}\n{"title": "no text"}\n{"body": "write to jane@acme.org"}\n' * 2)
    capsys.readouterr()
    assert await cottage("check", str(file), "--text-field", "body") == 1, "two rows cannot be trained on"
    told = capsys.readouterr().out
    assert "6 rows, 4 of them usable" in told
    assert re.search(r"error: .+\n  row 2\b", told)
    assert "jane@acme.org" not in told
    file.write_text("".join(f'{{"body": "line {number} of a play"}}\n' for number in range(200)))
    assert await cottage("check", str(file), "--text-field", "body", "--json") == 0
    report = json.loads(capsys.readouterr().out)["report"]
    assert (report["rows"], report["problem"]) == (200, "")
    file.write_bytes(b"PAR1 and then nothing of the kind PAR1")
    assert await cottage("check", str(file), "--format", "parquet") == 1


async def test_the_trail_says_what_was_done_and_the_operator_sees_everybodys(
    town: House, cottage: Cottage, capsys: pytest.CaptureFixture[str]
) -> None:
    ada, bob = await key_of(town), await key_of(town, "bob")
    assert await cottage("keys", "--new", "laptop", "--token", bob) == 0
    capsys.readouterr()
    assert await cottage("trail", "--token", bob) == 0
    assert "key.created" in capsys.readouterr().out
    assert await cottage("trail", "--everybody", "--token", bob) == 4
    capsys.readouterr()
    assert await cottage("trail", "--everybody", "--json", "--token", ada) == 0
    assert len({one["account"] for one in json.loads(capsys.readouterr().out)}) == 2


async def test_notices_are_set_tested_and_their_deliveries_shown(
    town: House, cottage: Cottage, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await cottage("login", "--token", await key_of(town)) == 0
    assert await cottage("notices", "--test") == 1
    assert "switched on" in capsys.readouterr().err
    assert await cottage("notices", "--webhook", "https://hooks.example.org/x", "--when", "done", "--json") == 0
    now = json.loads(capsys.readouterr().out)["notices"]
    assert (now["webhook"], now["webhook_kinds"]) == ("https://hooks.example.org/x", ["done"])
    assert await cottage("notices", "--mail", "ada@example.org", "--test") == 0
    told = capsys.readouterr().out
    assert "not confirmed yet" in told
    assert re.search(r"test .*https://hooks.example.org/x +waiting", told)
    assert now["secret"] not in told
    assert await cottage("notices", "--webhook", "") == 0
    assert "webhook  none" in capsys.readouterr().out
    assert await cottage("notices", "--confirm", "0" * 32) == 1


async def test_the_books_are_open_to_everybody(
    town: House, cottage: Cottage, capsys: pytest.CaptureFixture[str]
) -> None:
    key = await key_of(town)
    async with Client(town.url, key) as client:
        spec = {"name": "x", "model": {"preset": "tiny-llama"}, "budget": 9_000_000}
        data = (await client.upload(Path(__file__))).artifact
        job = (await client.create_job({**spec, "dataset": {"artifact": data}})).id
        await client.fund(job)
    town.cluster.run(job)
    capsys.readouterr()
    for words, says in (
        (["entries", "--kind", "fund"], "9.00"),
        (["entries", "--job", "0" * 32], "No such transactions"),
        (["audits", "--state", "passed", "--limit", "1"], "passed"),
        (["totals"], "deposited"),
    ):
        assert await asyncio.to_thread(umbrella, ["ledger", *words]) == 0
        shown = capsys.readouterr().out
        assert says in shown, words
        assert len(shown.splitlines()) < 8


CHECKS = {
    "check": (),
    "challenge": ("--round", "0", "--stage", "0", "--replica", "0", "--step", "0"),
    "claim": (),
}


@pytest.mark.parametrize("word", CHECKS)
async def test_whoever_checks_the_books_is_known_by_every_way_that_a_key_can_be_given(
    word: str, town: House, cottage: Cottage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []

    async def told(line: HttpLine, path: str, *_: object) -> None:
        asked.append(line._token)
        raise ProblemError(401, "unauthenticated", "nobody is signed in")

    monkeypatch.setattr(HttpLine, "get", told)
    words = ["ledger", word, "0" * 32, *CHECKS[word]]
    assert await asyncio.to_thread(umbrella, words) == 3
    assert capsys.readouterr().err.count("cottage login") == 1
    remember(town.url, "kept")
    assert await asyncio.to_thread(umbrella, words) == 3
    monkeypatch.setenv(TOKEN_VARIABLE, "of the variable")
    assert await asyncio.to_thread(umbrella, words) == 3
    assert await asyncio.to_thread(umbrella, [*words, "--token", "typed"]) == 3
    assert asked == [None, "kept", "of the variable", "typed"]
    file_of_keys().write_text("{")
    monkeypatch.delenv(TOKEN_VARIABLE)
    capsys.readouterr()
    assert await asyncio.to_thread(umbrella, words) == 2
    assert "run `cottage login` again" in capsys.readouterr().err


async def test_a_check_finds_a_job_of_ones_own_where_people_sign_in(
    town: House, cottage: Cottage, capsys: pytest.CaptureFixture[str]
) -> None:
    key = await key_of(town)
    async with Client(town.url, key) as client:
        spec = {"name": "x", "model": {"preset": "tiny-llama"}, "dataset": {"artifact": await _sent(client, town)}}
        job = (await client.create_job(spec | {"budget": 9_000_000})).id
    assert await asyncio.to_thread(umbrella, ["ledger", "check", job]) == 3
    assert "`cottage login` keeps an API key" in capsys.readouterr().err
    assert await asyncio.to_thread(umbrella, ["ledger", "check", job, "--token", key]) == 3
    assert "cottage login" not in capsys.readouterr().err, "only the ledger is not there"


async def _sent(client: Client, town: House) -> str:
    path = town.folder / "rows.txt"
    path.write_bytes(b"to be or not to be\n" * 200)
    return str((await client.upload(path)).artifact)
