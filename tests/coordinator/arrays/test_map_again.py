"""``cottage map`` a second time: the same command goes on beside its own results, another one is told apart."""

import shutil
from pathlib import Path

import pytest

from coordinator.client import Client
from coordinator.client.errors import ClientError
from protocol.job.elements import ElementEnd, ElementRun
from protocol.job.results import packed
from tests.coordinator.arrays.arrayed import right
from tests.coordinator.arrays.test_map_command import ArrayHouse, cottage, house, numbers  # noqa: F401 - a fixture


@pytest.fixture
async def adding(house: ArrayHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArrayHouse:  # noqa: F811
    """Nodes that add what they read, and a folder to work in with two of numbers in it."""

    def add(run: ElementRun) -> ElementEnd:
        house.ran.append(run.element.name)
        total = sum(int(house.artifacts.path(digest).read_text()) for digest in run.element.inputs.values())
        return right(run, packed({"total.txt": str(total).encode(), "log/steps.txt": b"1"}))

    for node in await house.nodes():
        node.answer = add
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for name in ("a", "b"):
        numbers(Path(name), [1, 2] if name == "a" else [3])
    return house


def totals(out: str) -> dict[str, str]:
    return {path.parent.name: path.read_text() for path in Path(out).glob("*/total.txt")}


SUMS = {"a": "3", "b": "3"}
FILES = {"n1.txt": "1", "n2.txt": "2", "n3.txt": "3"}


@pytest.mark.parametrize(
    ("over", "out", "expected"),
    [
        ("*/", "results", SUMS),
        ("*/", "results/deep/er", SUMS | {"results": None}),
        ("../work/*/", "results/", SUMS),
        ("[ab]/", "a/results", SUMS),
        ("**/*.txt", "results", FILES),
        ("[ab]/*.txt", ".", FILES),
        ("a/", "a/results", {"a": "3"}),
    ],
)
async def test_the_same_command_goes_on_where_its_results_lie_among_what_it_is_over(
    adding: ArrayHouse, capsys: pytest.CaptureFixture[str], over: str, out: str, expected: dict[str, str | None]
) -> None:
    if "results" in expected:
        numbers(Path("results"), [4])
        expected = expected | {"results": "4"}
    words = ("map", adding.image, "add /in/{name}", "--yes", "--estimate", "1", "--over", over, "--out", out)
    async with adding.running(), Client(adding.url) as client:
        assert await cottage(adding, *words) == 0
        (job,) = await client.jobs()
        ran = len(adding.ran)
        shutil.rmtree(Path(out) / next(iter(expected)))
        capsys.readouterr()
        assert await cottage(adding, *words) == 0
        assert f"Going on with job {job.id}" in capsys.readouterr().out
        assert [one.id for one in await client.jobs()] == [job.id]
    assert totals(out) == expected
    assert len(adding.ran) == ran


async def test_python_reads_no_results_of_an_earlier_time(adding: ArrayHouse) -> None:
    out = Path("a/results")
    async with adding.running(), Client(adding.url) as client:
        for _ in range(2):
            mapped = client.map(adding.image, ("add", "/in/{name}"), [Path("a")], out, 10**7)
            assert [one.element.state async for one in mapped] == ["done"]
            shutil.move(out / "a", out / f"earlier {len(adding.ran)}")
    assert sorted(path.read_text() for path in out.glob("*/total.txt")) == ["3", "3"]


async def test_elements_of_files_and_one_of_their_folder_are_two_commands(
    adding: ArrayHouse, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("map", adding.image, "add", "--yes", "--estimate", "1", "--out", "results", "--over")
    async with adding.running(), Client(adding.url) as client:
        assert await cottage(adding, *words, "a/*") == 0
        assert await cottage(adding, *words, "a/") == 2
        (job,) = await client.jobs()
    told = capsys.readouterr().err
    assert "was asked for something else" in told
    assert "or by an older version" in told
    assert f"cottage download {job.id} FOLDER" in told


async def test_results_that_would_lie_where_inputs_do_are_refused(
    adding: ArrayHouse, capsys: pytest.CaptureFixture[str]
) -> None:
    (Path("a") / "a").mkdir()
    words = ("map", adding.image, "add", "--yes", "--estimate", "1")
    for over, out, said in (
        ("*/", ".", "the result of a would lie where a is: name another folder in --out"),
        ("a/*.txt", "a", "the result of a/n1.txt would lie where a/n1.txt is"),
        ("a/", "a/", "results come to a, and nothing else is there: name another --out"),
    ):
        assert await cottage(adding, *words, "--over", over, "--out", out) == 2
        assert said in " ".join(capsys.readouterr().err.split())
    assert not list((adding.folder / "uploads").iterdir()), "nothing was sent"


@pytest.mark.parametrize("name", ["b:c", ".hidden", "deep/.d"])
async def test_a_file_that_cannot_be_an_input_is_named_though_its_folder_has_no_other(
    adding: ArrayHouse, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    file = Path("runs") / "one" / name
    file.parent.mkdir(parents=True)
    file.write_text("1")
    assert await cottage(adding, "map", adding.image, "x", "--over", "runs/*/", "--out", "results") == 1
    told = " ".join(capsys.readouterr().err.split())
    assert f"'{name}' in folder runs/one cannot be an input: " in told
    assert "name an element" not in told


@pytest.mark.parametrize(("inputs", "folder"), [(["a"], "a"), (["b", "a"], "."), (["a/n1.txt"], "a")])
async def test_pythons_map_refuses_results_that_would_lie_among_its_inputs(
    adding: ArrayHouse, inputs: list[str], folder: str
) -> None:
    async with Client(adding.url) as client:
        with pytest.raises(ClientError, match="would lie in it, or where it is"):
            async for _ in client.map("a" * 64, "x", [Path(one) for one in inputs], Path(folder), budget=1):
                pass
    assert not adding.ran
