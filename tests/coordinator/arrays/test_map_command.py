"""``cottage map`` against a real server, over files and folders of this disk; nodes stand in, and square what they are given."""

import asyncio
import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import aiohttp
import msgspec
import pytest
from aiohttp import web

from common.clock import SystemClock
from common.untrusted_text import Untrusted
from coordinator.app import add_interface
from coordinator.client import Client, ProblemError
from coordinator.client.arrays import folder_of
from coordinator.client.cli import main
from coordinator.client.errors import ArchiveError, ClientError
from coordinator.client.files import upload_file
from coordinator.config import Config
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.dataset_checks import DatasetChecks
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.file_ownership import FileOwnership
from coordinator.services.artifacts.uploads import UploadService
from coordinator.store.records import FileRecord
from coordinator.web.auth import Auth
from protocol.ids import Digest
from protocol.job.array import MAX_INPUTS
from protocol.job.elements import ElementEnd, ElementRun
from protocol.job.results import packed
from protocol.rest.api import NewUpload
from protocol.rest.arrays import ElementView
from tests.coordinator.arrays.arrayed import ArrayWorld, ElementNode, fails, right
from tests.support.arrays.images import files as layer
from tests.support.arrays.images import ready, saved


class ArrayHouse:
    """A server with its nodes. ``running``: they work; time passes for them turn by turn."""

    def __init__(self, folder: Path) -> None:
        self.artifacts = DiskArtifacts(folder / "artifacts")
        config = Config(data=folder, ledger_url="http://ledger.test", settle_every=2, minimum_price=1, open=True)
        self.world = ArrayWorld(config=config, artifacts=cast(ArtifactStore, self.artifacts))
        self.folder, self.config = folder, config
        self.url = ""
        self.auth = Auth(self.world.store, SystemClock(), config)
        self.image: Digest = ""
        self.ran: list[str] = []

    def square(self, run: ElementRun) -> ElementEnd:
        """What the container would do: it reads its one input, a number."""
        self.ran.append(run.element.name)
        (digest,) = run.element.inputs.values()
        number = int(self.artifacts.path(digest).read_text())
        if number < 0:
            return fails(run, 3)
        return right(run, packed({"square.txt": str(number * number).encode(), "log/steps.txt": b"1"}), 0.5)

    async def nodes(self, count: int = 3) -> list[ElementNode]:
        return [await self.world.come(number, pace=0.5, answer=self.square) for number in range(1, count + 1)]

    async def keep(self, data: bytes) -> Digest:
        async def chunks() -> AsyncIterator[bytes]:
            yield data

        return await self.artifacts.put(chunks(), None, len(data))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        stopping = asyncio.Event()

        async def turns() -> None:
            while not stopping.is_set():
                await self.world.turn()
                await asyncio.sleep(0.002)

        task = asyncio.create_task(turns())
        try:
            yield
        finally:
            stopping.set()
            await task


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[ArrayHouse]:
    built = ArrayHouse(tmp_path / "coordinator")
    parts, clock = built.world.parts, SystemClock()
    uploads = UploadService(built.folder / "uploads", built.artifacts, kept=FileOwnership(built.world.store, clock))
    checks = DatasetChecks(built.folder / "checks", built.artifacts, cast("object", None))  # type: ignore[arg-type]
    app = web.Application()
    add_interface(app, parts, uploads, checks, cast(ArtifactStore, built.artifacts), built.auth)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    built.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    built.image = await built.keep(b"an image")
    yield built
    await runner.cleanup()


def numbers(folder: Path, values: list[int]) -> Path:
    folder.mkdir()
    for value in values:
        (folder / f"n{value}.txt").write_text(str(value))
    return folder


async def cottage(house: ArrayHouse, *words: str) -> int:
    return await asyncio.to_thread(main, [*words, "--server", house.url])


def squares(out: Path) -> dict[str, str]:
    return {path.parent.name: path.read_text() for path in out.glob("*/square.txt")}


async def test_map_sends_files_runs_them_and_brings_each_result_into_a_folder(
    house: ArrayHouse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await house.nodes()
    inputs, out = numbers(tmp_path / "inputs", list(range(12))), tmp_path / "results"
    words = ("map", house.image, "square {input}", "--over", f"{inputs}/*.txt", "--out", str(out), "--yes")
    async with house.running():
        assert await cottage(house, *words, "--estimate", "1") == 0
    assert squares(out) == {f"n{value}.txt": str(value * value) for value in range(12)}
    assert (out / "n3.txt" / "log" / "steps.txt").read_bytes() == b"1"
    said = " ".join(capsys.readouterr().out.split())
    assert "12 of 12 results are in" in said
    assert "each of 12 elements is run by 2 owners, who must agree: 24 runs" in said


async def test_the_same_command_goes_on_after_an_interruption_and_sends_and_runs_nothing_twice(
    house: ArrayHouse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await house.nodes()
    inputs, out = numbers(tmp_path / "inputs", list(range(20))), tmp_path / "results"
    words = ("map", house.image, "square {input}", "--over", f"{inputs}/*.txt", "--out", str(out), "--yes")
    first = asyncio.create_task(cottage(house, *words))
    async with house.running():
        while len(squares(out)) < 3 if out.exists() else True:
            await asyncio.sleep(0.01)
    notes = json.loads((out / ".cottage-map.json").read_text())
    async with Client(house.url) as client:
        assert [view.id for view in await client.jobs()] == [notes["job"]]
        async with house.running():
            again = await cottage(house, *words)
            await first
        assert again == 0
        assert [view.id for view in await client.jobs()] == [notes["job"]], "no second job was made"
    assert len(squares(out)) == 20
    assert len(house.ran) == 40
    assert f"Going on with job {notes['job']}" in capsys.readouterr().out


async def test_another_command_does_not_mix_its_results_into_the_folder(house: ArrayHouse, tmp_path: Path) -> None:
    await house.nodes()
    inputs, out = numbers(tmp_path / "inputs", [1, 2]), tmp_path / "results"
    words = ("map", house.image, "square {input}", "--over", f"{inputs}/*.txt", "--out", str(out), "--yes")
    async with house.running():
        assert await cottage(house, *words) == 0
        assert await cottage(house, *words, "--retries", "5") == 2


async def test_elements_that_fail_are_told_with_the_end_of_their_log_and_the_rest_is_there(
    house: ArrayHouse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await house.nodes()
    inputs, out = numbers(tmp_path / "inputs", [-4, *range(6)]), tmp_path / "results"
    words = ("map", house.image, "square {input}", "--over", f"{inputs}/*.txt", "--out", str(out), "--yes")
    async with house.running():
        assert await cottage(house, *words) == 1
    assert len(squares(out)) == 6
    said = " ".join(capsys.readouterr().out.split())
    assert "n-4.txt" in said
    assert "ended with code 3" in said
    assert "it is broken" in said
    async with Client(house.url) as client, aiohttp.ClientSession() as http:
        (view,) = await client.jobs()
        async with http.get(f"{house.url}/submit") as form, http.get(f"{house.url}/docs/run-containers") as guide:
            assert "/docs/run-containers" in await form.text()
            assert guide.status == 200
        async with http.get(f"{house.url}/jobs/{view.id}") as response:
            page = await response.text()
    assert response.status == 200
    for words_ in ("6 of 7", "n-4.txt", "Traceback", "it is broken", "results.tar", "cottage download"):
        assert words_ in page, words_


async def test_a_shared_page_shows_strangers_neither_names_nor_logs_of_elements(
    house: ArrayHouse, tmp_path: Path
) -> None:
    await house.nodes()
    inputs, out = numbers(tmp_path / "inputs", [-4, *range(3)]), tmp_path / "results"
    words = ("map", house.image, "square {input}", "--over", f"{inputs}/*.txt", "--out", str(out), "--yes")
    async with house.running():
        assert await cottage(house, *words) == 1
    async with Client(house.url) as client, aiohttp.ClientSession() as http:
        (view,) = await client.jobs()
        await client.share(view.id)
        house.auth.open_to_all = False  # Now nobody is signed in.
        async with http.get(f"{house.url}/jobs/{view.id}", headers={"Accept": "text/html"}) as response:
            page = await response.text()
        async with http.get(f"{house.url}/api/v1/jobs/{view.id}/elements") as refused:
            assert refused.status == 401
    assert response.status == 200
    assert "3 of 4" in page
    for hidden in ("n-4.txt", "Traceback", "it is broken", "results.tar", "cottage download"):
        assert hidden not in page, hidden


async def test_results_come_to_python_as_they_end_and_all_at_once_as_an_archive(
    house: ArrayHouse, tmp_path: Path
) -> None:
    await house.nodes()
    inputs = sorted(numbers(tmp_path / "inputs", list(range(5))).iterdir())
    found = {}
    async with house.running(), Client(house.url) as client:
        command = ("square", "{input}")
        async for result in client.map(house.image, command, inputs, tmp_path / "out", 9_000_000, seconds=60.0):
            found[result.element.name] = [path.name for path in result.files]
        (view,) = await client.jobs()
        archive = await client.download_results(view.id, tmp_path / "all.tar")
        with pytest.raises(ProblemError, match="neither done nor failed"):
            await client.elements(view.id, state="lost")  # type: ignore[arg-type]
        with pytest.raises(ProblemError, match="no element 7"):
            await client._line.get(f"jobs/{view.id}/elements/7/result.tar", ElementView)
        assert await cottage(house, "download", view.id, str(tmp_path / "again")) == 0
    assert found == {f"n{value}.txt": ["steps.txt", "square.txt"] for value in range(5)}
    assert squares(tmp_path / "again") == squares(tmp_path / "out")
    with tarfile.open(archive) as tar:
        assert sorted(tar.getnames()) == sorted(
            f"n{n}.txt/{name}" for n in range(5) for name in ("log/steps.txt", "square.txt")
        )


HOLES = 1 << 32  # Eleven octal digits.


def bomb() -> bytes:
    """A small archive of a file that says to be four gigabytes of holes."""
    info = tarfile.TarInfo("holes")
    info.type = tarfile.GNUTYPE_SPARSE
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[483:495] = f"{HOLES:o}".encode() + b"\0"
    block[148:156] = b" " * 8
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    return bytes(block) + packed({})


async def test_what_nodes_made_up_is_a_failure_and_the_others_results_come(
    house: ArrayHouse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_up = {"n1.txt": b"no archive", "n2.txt": gzip.compress(packed({"a": b"x"})), "n3.txt": bomb()}
    with tarfile.open(fileobj=io.BytesIO(bomb())) as tar:
        assert tar.getmember("holes").size == HOLES

    def plot(run: ElementRun) -> ElementEnd:
        return right(run, made_up[run.element.name]) if run.element.name in made_up else house.square(run)

    for node in await house.nodes():
        node.answer = plot
    inputs, out = numbers(tmp_path / "inputs", list(range(5))), tmp_path / "results"
    words = ("map", house.image, "square {input}", "--over", f"{inputs}/n[04].txt", f"{inputs}/n[1-3].txt")
    async with house.running(), Client(house.url) as client:
        assert await cottage(house, *words, "--out", str(out), "--yes") == 1
        (view,) = await client.jobs()
        archive = await client.download_results(view.id, tmp_path / "all.tar")
    assert set(squares(out)) == {"n0.txt", "n4.txt"}
    assert "its result could not be taken" in " ".join(capsys.readouterr().out.split())
    with tarfile.open(archive) as tar:
        assert {name.partition("/")[0] for name in tar.getnames()} == {"n0.txt", "n4.txt"}


async def test_many_short_files_go_in_few_archives_and_are_not_sent_again(house: ArrayHouse, tmp_path: Path) -> None:
    files = sorted(numbers(tmp_path / "inputs", list(range(1_200))).iterdir())
    (tmp_path / "inputs" / "long.txt").write_bytes(b"x" * (1 << 20) + b"y")
    done: list[Path] = []
    async with Client(house.url) as client:
        sent = await client.upload_inputs([*files, tmp_path / "inputs/long.txt"], {}, lambda path, _: done.append(path))
        assert len(sent) == len(done) == 1_201
        for path, digest in sent.items():
            assert house.artifacts.path(digest).read_bytes() == path.read_bytes()
        uploads = list((house.folder / "uploads").glob("*.json"))
        assert len(uploads) == 4, "three archives and the long one"
        known = {str(path): digest for path, digest in sent.items()}
        assert await client.upload_inputs(files, known) == {path: sent[path] for path in files}
        assert len(list((house.folder / "uploads").glob("*.json"))) == 4
    async with house.world.store.transaction() as tx:
        kept = await tx.find(FileRecord)
    assert {one.artifact for one in kept} == set(sent.values())
    assert {one.purpose for one in kept} == {"input"}


async def test_an_archive_of_inputs_that_lies_about_them_is_refused(house: ArrayHouse, tmp_path: Path) -> None:
    honest = hashlib.sha256(b"honest").hexdigest()
    cases = {
        "is not the SHA-256": packed({honest: b"another"}),
        "1 to": packed({hashlib.sha256(b"").hexdigest(): b""}),
        "is not taken": gzip.compress(packed({honest: b"honest"})),
        "is empty": packed({}),
    }
    async with Client(house.url) as client:
        for said, archive in cases.items():
            path = tmp_path / "inputs.tar"
            path.write_bytes(archive)
            new = NewUpload(len(archive), Untrusted("x"), "inputs")
            with pytest.raises(ProblemError, match=said):
                await upload_file(client._line, path, new, None, lambda _done, _all: None, lambda _upload: None)
    assert not await house.artifacts.has(honest)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("look", "--check", "it's"), "a quotation mark has no second one"),
        (("look 'in",), "a quotation mark has no second one"),
        (("look", "--check", " "), "--check ' ': it names no program"),
        (("look", "--verify", "checked"), "--check names the command"),
        (("look", "--verify", "spot-checked", "--check", "look"), "leave one out"),
    ],
)
async def test_words_that_cannot_be_are_refused_in_a_sentence_before_anything_is_sent(
    house: ArrayHouse, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    command, *more = words
    over = f"{numbers(tmp_path / 'inputs', [1])}/*.txt"
    assert await cottage(house, "map", house.image, command, "--over", over, "--out", str(tmp_path / "out"), *more) == 2
    assert told in capsys.readouterr().err


async def test_a_checker_is_named_on_the_command_line_and_decides(
    house: ArrayHouse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def look(run: ElementRun, data: bytes) -> ElementEnd:
        own = house.square(msgspec.structs.replace(run, check=None))
        return right(run, packed({"seen": (run.seed or "").encode()})) if own.data == data else fails(run, 4)

    liar, *others = await house.nodes(4)
    liar.answer = lambda run: right(run, packed({"square.txt": b"made up"}))
    for node in (liar, *others):
        node.look = look
    inputs, out = numbers(tmp_path / "inputs", list(range(9))), tmp_path / "results"
    words = ["map", house.image, "square {input}", "--over", f"{inputs}/*.txt", "--out", str(out), "--yes"]
    assert await cottage(house, *words, "--check-estimate", "1") == 2
    assert "--check names its command" in capsys.readouterr().err
    async with house.running(), Client(house.url) as client:
        assert (
            await cottage(
                house,
                *words,
                "--estimate",
                "2",
                "--verify",
                "checked",
                "--check",
                "look {input}",
                "--check-estimate",
                "1",
            )
            == 0
        )
        (view,) = await client.jobs()
        assert await cottage(house, "show", view.id) == 0
    assert squares(out) == {f"n{value}.txt": str(value * value) for value in range(9)}
    said = " ".join(capsys.readouterr().out.split())
    assert "your checker looks" in said
    assert view.array is not None
    assert view.array.looked >= 18
    assert "of them the checker's" in said


async def test_a_result_that_is_damaged_later_is_named_and_the_others_come(
    house: ArrayHouse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await house.nodes()
    inputs, out = numbers(tmp_path / "inputs", list(range(5))), tmp_path / "results"
    words = ("map", house.image, "square {input}", "--over", f"{inputs}/*.txt", "--out", str(out), "--yes")
    async with house.running(), Client(house.url) as client:
        assert await cottage(house, *words) == 0
        (view,) = await client.jobs()
        for element in await client.elements(view.id):
            if element.name in ("n1.txt", "n3.txt"):
                assert element.result is not None
                house.artifacts.path(element.result).write_bytes(b"junk")
        again = tmp_path / "again"
        assert await cottage(house, "download", view.id, str(again)) == 1
        said = " ".join(capsys.readouterr().out.split())
        assert "3 results are in" in said
        assert "2 more were not taken: " in said
        assert "n1.txt (element 1): " in said
        assert "n3.txt (element 3): " in said
        assert set(squares(again)) == {"n0.txt", "n2.txt", "n4.txt"}
        taken = [one async for one in client.results(view.id, tmp_path / "third")]
        assert sorted(one.element.name for one in taken if one.fault) == ["n1.txt", "n3.txt"]
        for name in ("n1.txt", "n4.txt"):
            shutil.rmtree(out / name)
        assert await cottage(house, *words) == 1
        assert set(squares(out)) == {"n0.txt", "n2.txt", "n3.txt", "n4.txt"}
        assert "4 of 5 results are in" in " ".join(capsys.readouterr().out.split())


async def test_batches_are_asked_for_on_the_command_line_and_not_where_one_word_is_believed(
    house: ArrayHouse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await house.nodes()
    inputs, out = numbers(tmp_path / "inputs", list(range(12))), tmp_path / "results"
    words = ["map", house.image, "square {input}", "--over", f"{inputs}/*.txt", "--yes", "--batch", "8"]
    async with house.running(), Client(house.url) as client:
        assert await cottage(house, *words, "--out", str(tmp_path / "none"), "--verify", "spot-checked") != 0
        captured = capsys.readouterr()
        assert "leave batch out" in " ".join((captured.out + captured.err).split())
        assert await cottage(house, *words, "--out", str(out)) == 0
        (view,) = await client.jobs()
    assert len(squares(out)) == 12
    stored = await house.world.stored(view.id)
    assert stored.spec.array is not None
    assert stored.spec.array.batch == 8


def test_a_coordinator_cannot_have_results_written_elsewhere(tmp_path: Path) -> None:
    for name in ("..", "../x", "/etc", "a/b", ""):
        with pytest.raises(ArchiveError, match="cannot be a folder's name"):
            folder_of(tmp_path, ElementView(0, name, "done"))  # type: ignore[arg-type]


async def test_what_cannot_be_mapped_is_said_before_anything_is_sent(
    house: ArrayHouse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = numbers(tmp_path / "inputs", [1])
    (inputs / "empty.txt").touch()
    (inputs / ".one").write_text("1")
    other = numbers(tmp_path / "other", [1])
    out = str(tmp_path / "out")
    for words, said in (
        (("a" * 64, "x", "--over", f"{inputs}/*.json", "--out", out), "there is no such file"),
        (("sweep:1", "x", "--over", f"{inputs}/n1.txt", "--out", out), "no image 'sweep:1' was pushed"),
        ((house.image, "x", "--over", f"{inputs}/*.txt", "--out", out, "--yes"), "empty.txt is empty"),
        (
            (house.image, "x", "--over", f"{inputs}/.one", "--out", out),
            ".one' cannot name an element: no dot comes first",
        ),
        ((house.image, "x", "--over", f"{inputs}/n1.txt", f"{other}/n1.txt", "--out", out), "have one name"),
        (
            (house.image, "x", "--over", f"{inputs}/n1.txt", "--out", out, "--verify", "trusted"),
            "--trust names the owners",
        ),
    ):
        assert await cottage(house, "map", *words) in (1, 2)
        captured = capsys.readouterr()
        assert said in captured.out + captured.err, said
        assert not list((house.folder / "uploads").iterdir()), "nothing was sent"
    for words, said in (
        ((house.image, "x", "--over", f"{inputs}/n1.txt", "--out", out, "--yes"), "no node runs containers here"),
    ):
        assert await cottage(house, "map", *words) in (1, 2)
        captured = capsys.readouterr()
        assert said in captured.out + captured.err, said


async def test_a_folder_is_an_element_with_all_that_lies_in_it(
    house: ArrayHouse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        numbers(tmp_path / name, [1, 2])
        (tmp_path / name / "deep").mkdir()
        (tmp_path / name / "deep" / "more.txt").write_text("7" if name == "a" else "9")
    (tmp_path / "beside.txt").write_text("5")
    placed: dict[str, dict[str, str]] = {}

    def read(run: ElementRun) -> ElementEnd:
        inputs = run.element.inputs
        placed[run.element.name] = {place: house.artifacts.path(digest).read_text() for place, digest in inputs.items()}
        total = sum(int(text) for text in placed[run.element.name].values())
        return right(run, packed({"total": str(total).encode()}))

    for node in await house.nodes():
        node.answer = read
    words = ("map", house.image, "add /in/{name}", "--yes", "--estimate", "1", "--over", f"{tmp_path}/?/")
    async with house.running():
        assert await cottage(house, *words, "--out", str(tmp_path / "totals")) == 0
        assert placed["a"] == {"a/deep/more.txt": "7", "a/n1.txt": "1", "a/n2.txt": "2"}
        assert {name: (tmp_path / "totals" / name / "total").read_text() for name in "ab"} == {"a": "10", "b": "12"}
        assert "2 of 2 results are in" in " ".join(capsys.readouterr().out.split())
        async with Client(house.url) as client:
            mapped = client.map(
                house.image, ("add", "/in/{name}"), [tmp_path / "b", tmp_path / "beside.txt"], tmp_path / "mixed", 10**7
            )
            assert {one.element.name async for one in mapped} == {"b", "beside.txt"}
    assert (tmp_path / "mixed" / "b" / "total").read_text() == "12"


async def test_a_folder_that_cannot_be_an_element_is_told_before_anything_is_sent(
    house: ArrayHouse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers(tmp_path / "many", list(range(MAX_INPUTS + 1)))
    (tmp_path / "none").mkdir()
    numbers(tmp_path / "hidden", [1, 2])
    (tmp_path / "hidden" / ".git").write_text("x")
    for name, said in (
        ("many", "has 65 files: 1 to 64 are taken"),
        ("none", "has 0 files: 1 to 64 are taken"),
        ("hidden", "hidden cannot be an input"),
    ):
        over = ("--over", f"{tmp_path}/{name}/", "--out", str(tmp_path / "out"), "--yes")
        assert await cottage(house, "map", house.image, "x", *over) in (1, 2)
        captured = capsys.readouterr()
        assert said in " ".join((captured.out + captured.err).split())
    assert await cottage(house, "map", house.image, "x", "--over", f"{tmp_path}/many", "--out", "out") == 2
    assert "end it with a slash" in " ".join(capsys.readouterr().err.split())
    assert not list((house.folder / "uploads").iterdir()), "nothing was sent"


async def test_why_elements_wait_is_said_beside_the_bar(
    house: ArrayHouse, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.client.commands.mapping.WAITS_S", 0.02)
    nodes = await house.nodes()
    for node in nodes:
        node.answer = lambda run, node=node: right(run, packed({"odd": str(node.number).encode()}))  # type: ignore[misc]
    inputs, out = numbers(tmp_path / "inputs", [1]), tmp_path / "results"
    words = ("map", house.image, "x", "--over", f"{inputs}/*.txt", "--out", str(out), "--yes")
    mapped = asyncio.create_task(cottage(house, *words))
    said = ""
    async with asyncio.timeout(60), house.running():
        while "a further one is to decide" not in said:
            await asyncio.sleep(0.02)
            said += capsys.readouterr().err
        for number in (4, 5):
            await house.world.come(number, pace=0.5, answer=house.square)
        assert await mapped == 0
    assert squares(out) == {"n1.txt": "1"}
    assert said.count("each of the 3 owners that are here has had its turn") == 1


async def test_a_list_without_images_says_how_one_comes(house: ArrayHouse, capsys: pytest.CaptureFixture[str]) -> None:
    assert await cottage(house, "image", "list") == 0
    assert "No images yet: `cottage image push FILE` sends one." in capsys.readouterr().out
    assert await cottage(house, "image", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


async def test_python_is_told_what_cannot_be_mapped_before_anything_is_sent(house: ArrayHouse, tmp_path: Path) -> None:
    inputs = numbers(tmp_path / "inputs", [1])
    for given, said in (
        ([], "there are no files"),
        ([inputs / "n1.txt", tmp_path / "other" / "n1.txt"], "have one name"),
    ):
        async with Client(house.url) as client:
            with pytest.raises(ClientError, match=said):
                async for _ in client.map(house.image, ["x"], given, tmp_path / "out", budget=1):
                    pass
    assert not list((house.folder / "uploads").iterdir())


async def test_a_file_that_is_no_image_is_told_before_anything_is_paid(
    house: ArrayHouse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await house.nodes()
    inputs, image = numbers(tmp_path / "inputs", [1]), tmp_path / "image.tar"
    ready(saved(tmp_path / "saved.tar", [layer({"bin/square": b"square"})]), image)
    async with Client(house.url) as client:
        sent = await client.upload_inputs([inputs / "n1.txt", image])
        words = ("--over", f"{inputs}/*.txt", "--out", str(tmp_path / "out"), "--yes")
        async with asyncio.timeout(60), house.running():
            assert await cottage(house, "map", sent[inputs / "n1.txt"], "x", *words) == 1
            assert f"the artifact {sent[inputs / 'n1.txt']} is no image" in capsys.readouterr().err
            assert not await client.jobs()
            assert await cottage(house, "map", sent[image], "x", *words) == 0, "it is one, whatever it was sent for"
