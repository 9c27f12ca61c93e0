"""The command line through a real server, unpacking of hostile archives, and the words for figures."""

import asyncio
import gzip
import io
import itertools
import json
import os
import re
import stat
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from coordinator.client import ArchiveError, Client, ProblemError
from coordinator.client.archive import unpack
from coordinator.client.cli import main
from coordinator.client.datasets import DatasetError, shards
from coordinator.client.options import parser
from coordinator.client.show import quote_table
from coordinator.client.text import amount, count, duration, parse_amount, ratio, short, size, speed
from coordinator.services.jobs.quotes import impossible
from coordinator.web.pages.chart import nice_ticks
from coordinator.web.pages.curves import loss_chart
from protocol.rest.api import Metric
from tests.coordinator.web.conftest import House
from tests.coordinator.web.fake import address
from tests.coordinator.web.test_api import archive
from tests.protocol.test_wallets import SECRETS, WALLET
from tests.support.proxy import proxying

YAML = (
    "name: from the shell\nmodel: {preset: tiny-llama}\ndataset: {format: jsonl, text_field: body}\nbudget: 9000000\n"
)


async def cottage(*argv: str) -> int:
    return await asyncio.to_thread(main, list(argv))


async def test_a_coordinator_elsewhere_is_asked_through_the_proxy_which_is_named_where_it_fails(
    house: House, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_proxies: None
) -> None:
    elsewhere = f"http://cottage.test:{house.port}"
    async with proxying() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        async with Client(elsewhere, attempts=1) as client:
            with pytest.raises(ProblemError, match="answers to localhost only"):
                await client.keys()
        assert [(way, target.partition("?")[0]) for way, target in proxy.asked] == [
            ("GET", f"{elsewhere}/api/v1/account/keys")
        ]
        assert await cottage("jobs", "--server", house.url) == 0, "this machine is asked straight"
        assert len(proxy.asked) == 1
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert await cottage("jobs", "--server", elsewhere) == 3
    assert "the proxy http://127.0.0.1:9 (HTTP_PROXY) cannot be reached" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "form", "said"),
    [
        ("data.jsonl", b'{"body": "to be"}\n' * 9, "jsonl", ""),
        ("data.ndjson", b'{"body": "to be"}\n' * 9, "jsonl", ""),
        ("data.json", b'{"body": "to be"}\n' * 9, "jsonl", ""),
        ("data.json", b'[{"body": "to be"}]', "json", ""),
        ("data.csv", b"id,body\n1,to be\n2,or not\n", "csv", ""),
        ("data.csv", b'{"body": "to be"}\n' * 9, "jsonl", "data.csv is JSON lines, whatever its ending says"),
        ("data.txt", b'[{"body": "to be"}]', "json", "data.txt is one JSON document, whatever its ending says"),
        ("data", gzip.compress(b"to be\n" * 99, mtime=0), "text", ""),
        ("data.jsonl.gz", b'{"body": "to be"}\n' * 9, "jsonl", "data.jsonl.gz is not packed, whatever its ending says"),
        ("page.html", b"<!DOCTYPE html>\n<html>" * 9, "text", "page.html is HTML: its syntax is trained on, too"),
    ],
)
async def test_a_dataset_is_sent_as_what_it_is(
    house: House, files: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, form: str, said: str
) -> None:
    (files / name).write_bytes(content)
    (files / "job.yaml").write_text(YAML.replace("format: jsonl, ", ""))
    assert (
        await cottage("submit", str(files / "job.yaml"), "--data", str(files / name), "--yes", "--server", house.url)
        == 0
    )
    (view,) = await house.cluster.list(5, None)
    assert (view.spec.dataset.format, view.spec.dataset.text_field) == (form, "body")
    errors = capsys.readouterr().err
    assert said in errors
    assert bool(said) is ("cottage: data" in errors or "cottage: page" in errors)


@pytest.mark.parametrize(
    ("name", "content", "words", "says"),
    [
        ("ids.bin", bytes(range(250)) * 9, (), "ids.bin can be uint16 (16-bit token ids) or uint32"),
        (
            "lines.csv",
            b"one line\nand another\n",
            (),
            "lines.csv can be csv (a table (CSV)) or text (plain text): choose",
        ),
        ("a.json", b'[{"body": "a"}]', ("--format", "jsonl"), "a.json is one JSON document, not JSON lines: choose"),
        ("a.pdf", b"%PDF-1.7", (), "a.pdf: this is a PDF: extract its text first"),
        ("a.pdf", b"%PDF-1.7", ("--format", "text"), "a.pdf: this is a PDF: extract its text first"),
    ],
)
async def test_what_cannot_be_told_is_asked_and_what_is_none_is_refused_before_it_is_sent(
    house: House,
    files: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: bytes,
    words: Sequence[str],
    says: str,
) -> None:
    (files / name).write_bytes(content)
    assert await cottage("check", str(files / name), *words, "--server", house.url) == 2
    assert says in capsys.readouterr().err
    assert not list((house.folder / "uploads").glob("*"))


async def test_somebody_at_the_terminal_is_asked_which_it_is(
    house: House, files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (files / "lines.csv").write_bytes(b"one line\nand another\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("text\n"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert await cottage("upload", str(files / "lines.csv"), "--server", house.url) == 0
    assert "Which is it?" in capsys.readouterr().out


def folder_of(path: Path, *names: str, index: Sequence[str] = ()) -> Path:
    path.mkdir()
    for name in names:
        (path / name).write_bytes(b"")
    if index:
        document = {"weight_map": {f"w{number}": name for number, name in enumerate(index)}}
        (path / "model.safetensors.index.json").write_text(json.dumps(document))
    return path


def test_of_the_same_weights_twice_one_is_taken_and_the_other_named(tmp_path: Path) -> None:
    two = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    parts, whole, once = ("first.safetensors", "second.safetensors"), "consolidated.safetensors", "model.safetensors"
    cases: list[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = [
        ((*two, whole), two, two),
        ((*two, whole), (), two),
        ((*two, once), (), two),
        ((once, whole), (), (once,)),
        ((*parts, whole), parts, parts),
        (parts, (), parts),
        ((whole,), (), (whole,)),
    ]
    for number, (names, index, taken) in enumerate(cases):
        chosen, left = shards(folder_of(tmp_path / str(number), *names, index=index))
        assert sorted(path.name for path in chosen) == sorted(taken)
        assert {path.name for path in left} == set(names) - set(taken)


def test_a_shard_that_is_not_there_is_named(tmp_path: Path) -> None:
    one, two, three = (f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3))
    cases: list[tuple[tuple[str, ...], tuple[str, ...], str]] = [
        ((one, three), (), f"has not {two}, a part"),
        ((one, three), (one, two, three), f"has not {two}, a part"),
        ((two, "model.safetensors"), (), f"has not {one} and 1 more, a part"),
        (("first.safetensors",), ("first.safetensors", "second.safetensors"), "has not second.safetensors, a part"),
    ]
    for number, (names, index, words) in enumerate(cases):
        with pytest.raises(DatasetError, match=re.escape(words)):
            shards(folder_of(tmp_path / str(number), *names, index=index))


def test_shards_in_folders_below_are_taken_and_none_beyond_is(tmp_path: Path) -> None:
    one, two = "weights/model-0001.safetensors", "weights/deep/model-0002.safetensors"
    made = folder_of(tmp_path / "model", "consolidated.safetensors", index=(one, two))
    with pytest.raises(DatasetError, match=f"has not {two} and 1 more, a part of the same weights"):
        shards(made)
    (made / "weights" / "deep").mkdir(parents=True)
    for name in (one, two):
        (made / name).write_bytes(b"")
    chosen, left = shards(made)
    assert chosen == [made / two, made / one]
    assert [path.name for path in left] == ["consolidated.safetensors"]
    (tmp_path / "secret").write_bytes(b"")
    (made / "weights" / "link").symlink_to(tmp_path / "secret")
    for number, name in enumerate(
        (
            "../secret",
            str(tmp_path / "secret"),
            "weights/link",
            "weights/../../secret",
            "weights\\secret",
            "C:/secret",
            "//secret",
        )
    ):
        beyond = folder_of(tmp_path / str(number), index=(name,))
        (beyond / "weights").symlink_to(made / "weights")
        with pytest.raises(DatasetError, match=re.escape(f"names {name!r}, which is no file in its folder")):
            shards(beyond)


def test_shards_in_folders_of_a_snapshot_are_links_to_blobs(tmp_path: Path) -> None:
    cache = tmp_path / "models--ada--story"
    for below in ("blobs", "snapshots"):
        (cache / below).mkdir(parents=True)
    (cache / "blobs" / "ab12").write_bytes(b"")
    snapshot = folder_of(cache / "snapshots" / "one", index=("weights/model-0001.safetensors",))
    (snapshot / "weights").mkdir()
    (snapshot / "weights" / "model-0001.safetensors").symlink_to("../../../blobs/ab12")
    assert shards(snapshot) == ([snapshot / "weights" / "model-0001.safetensors"], [])


def test_a_gguf_file_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "tiny-q8_0.gguf").write_bytes(b"GGUF")
    with pytest.raises(DatasetError, match=r"is GGUF, .*: name the folder or the Hub's repository that it was made of"):
        shards(tmp_path / "tiny-q8_0.gguf")


def test_a_folder_without_weights_says_what_to_do_from_what_it_has(tmp_path: Path) -> None:
    adapter = "adapter_model.safetensors"
    cases: list[tuple[tuple[str, ...], str]] = [
        ((), "holds no *.safetensors: name the folder of a model, or its model.safetensors"),
        (
            ("pytorch_model.bin",),
            "holds no *.safetensors: transformers reads the model that is there, and save_pretrained writes",
        ),
        (("consolidated.00.pth",), "save_pretrained writes it as safetensors"),
        (("model.q4.gguf",), "a GGUF file cannot be trained further"),
        ((adapter, "adapter_config.json"), "holds an adapter, not a model: merge it"),
    ]
    for number, (names, words) in enumerate(cases):
        with pytest.raises(DatasetError, match=re.escape(words)):
            shards(folder_of(tmp_path / str(number), *names))
    folder_of(tmp_path / "above")
    folder_of(tmp_path / "above" / "snapshot", "model.safetensors")
    with pytest.raises(DatasetError, match="its folder snapshot does, name that"):
        shards(tmp_path / "above")
    cache = folder_of(tmp_path / "models--ada--story")
    folder_of(cache / "snapshots")
    for age, name in enumerate(("new", "old")):
        made = folder_of(cache / "snapshots" / name, "model.safetensors")
        os.utime(made, (1_700_000_000 - age, 1_700_000_000 - age))
    with pytest.raises(DatasetError, match="its folder snapshots/new does, the newest of 2, name that"):
        shards(cache)
    linked = folder_of(tmp_path / "linked")
    (linked / "model.safetensors").symlink_to("gone")
    with pytest.raises(DatasetError, match=r"model\.safetensors is a link to a file that is not there"):
        shards(linked)
    both = folder_of(tmp_path / "both", adapter, "adapter_config.json", "model.safetensors")
    assert [[path.name for path in paths] for paths in shards(both)] == [["model.safetensors"], [adapter]]


async def test_a_server_that_is_no_address_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert await cottage("jobs", "--server", "http://::1:8470") == 2
    assert "--server: 'http://::1:8470' is no address of a server" in capsys.readouterr().err


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(YAML + "training: {learning_rate: 3e-3, tokens: 50000}\n")
    (tmp_path / "data.jsonl").write_text('{"body": "to be"}\n{"body": "or not"}\n')
    return tmp_path


async def test_a_job_is_quoted_submitted_watched_and_downloaded_from_the_shell(
    house: House, files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTTAGE_SERVER", house.url)
    monkeypatch.setenv("COLUMNS", "140")
    job, data = str(files / "job.yaml"), str(files / "data.jsonl")
    assert await cottage("quote", job, "--data", data) == 0
    assert "2 stages × 2 replicas" in capsys.readouterr().out
    assert await cottage("submit", job, "--data", data, "--yes") == 0
    (view,) = await house.cluster.list(5, None)
    assert (view.state, view.name, view.spec.training.learning_rate) == ("funded", "from the shell", 0.003)
    assert view.id in capsys.readouterr().out
    house.cluster.run(view.id)
    await house.cluster.finish(view.id, archive())
    assert await cottage("watch", view.id) == 0
    assert "settled" in capsys.readouterr().out
    assert await cottage("jobs") == 0
    assert "from the shell" in capsys.readouterr().out
    assert await cottage("download", view.id, str(files / "model")) == 0
    assert (files / "model" / "config.json").read_text() == "{}"


async def test_several_datasets_go_with_their_weights(
    house: House, files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTTAGE_SERVER", house.url)
    for name in ("more.jsonl", "judged.jsonl", "odd=2"):
        (files / name).write_text(f'{{"text": "{name}"}}\n')
    job, data = str(files / "job.yaml"), ["--data", str(files / "data.jsonl"), "--data", f"{files / 'more.jsonl'}=2.5"]
    more = ["--data", str(files / "odd=2"), "--heldout-data", str(files / "judged.jsonl")]
    assert await cottage("submit", job, *data, *more, "--yes") == 0
    (view,) = await house.cluster.list(5, None)
    found = view.spec
    assert [one.weight for one in (found.dataset, *found.more_datasets)] == [1.0, 2.5, 1.0]
    assert found.heldout_dataset is not None
    every = [found.dataset, *found.more_datasets, found.heldout_dataset]
    assert len({one.artifact for one in every}) == 4
    capsys.readouterr()
    with pytest.raises(SystemExit):
        await cottage("submit", job, "--data", f"{files / 'more.jsonl'}=often")
    assert "'often' is no number" in capsys.readouterr().err


async def test_a_job_starts_from_one_model(
    house: House, files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTTAGE_SERVER", house.url)
    document = json.dumps({"model": {"from_job": "7" * 32}, "training": {}})
    (files / "again.json").write_text(document)
    assert await cottage("submit", str(files / "again.json"), "--model", str(files), "--yes") == 2
    assert (
        f"starts from job {'7' * 32} or from {files}: leave --model out, or model.from_job" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("config.json", "The model is in {}: AutoModelForCausalLM.from_pretrained opens it."),
        ("adapter_config.json", "The adapter is in {}: PeftModel.from_pretrained of peft puts it beside its model"),
    ],
)
async def test_what_was_downloaded_is_said_with_what_opens_it(
    name: str,
    words: str,
    house: House,
    files: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COTTAGE_SERVER", house.url)
    monkeypatch.setenv("COLUMNS", "400")
    assert await cottage("submit", str(files / "job.yaml"), "--data", str(files / "data.jsonl"), "--yes") == 0
    (view,) = await house.cluster.list(5, None)
    house.cluster.run(view.id)
    await house.cluster.finish(view.id, archive(name))
    capsys.readouterr()
    assert await cottage("download", view.id, str(files / "out")) == 0
    assert words.format(files / "out") in capsys.readouterr().out


async def test_with_json_every_command_prints_one_document_a_line(
    house: House, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--json", "--server", house.url]
    job, data = str(files / "job.yaml"), str(files / "data.jsonl")
    assert await cottage("quote", job, "--data", data, *common) == 0
    assert json.loads(capsys.readouterr().out)["stages"] == 2
    assert await cottage("submit", job, "--data", data, *common) == 0
    made = json.loads(capsys.readouterr().out)
    house.cluster.run(made["id"])
    assert await cottage("watch", made["id"], *common) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1]["job"]["state"] == "settled"
    assert await cottage("jobs", *common) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1


async def test_a_wallet_of_ones_own_is_told_what_to_open(
    house: House, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["submit", str(files / "job.yaml"), "--data", str(files / "data.jsonl"), "--yes", "--wallet", WALLET]
    assert await cottage(*argv, "--server", house.url) == 0
    out = capsys.readouterr().out
    assert "9.00" in out
    assert address("program") in out
    assert (await house.cluster.list(5, None))[0].state == "created"


async def test_each_kind_of_failure_has_its_exit_status_and_a_reason(
    house: House, files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_wait(_seconds: float) -> None: ...

    monkeypatch.setattr(Client.__init__, "__defaults__", (None, no_wait, 4))
    (files / "list.yaml").write_text("- 1\n")
    (files / "broken.json").write_text("{")
    (files / "bad.yaml").write_text(YAML.replace("9000000", "0"))
    data = ["--data", str(files / "data.jsonl"), "--server", house.url]
    for argv, status, says in (
        (["watch", "0" * 32, "--server", house.url], 1, "no job"),
        (["jobs", "--server", "http://127.0.0.1:9"], 3, "does not answer"),
        (["quote", str(files / "nothing.yaml"), *data], 2, "nothing.yaml"),
        (["quote", str(files / "list.yaml"), *data], 2, "is a table"),
        (["quote", str(files / "broken.json"), *data], 2, "broken.json"),
        (["quote", str(files / "bad.yaml"), *data], 1, "budget is 0, and must be at least 1"),
        (["quote", str(files / "job.yaml"), "--data", str(files / "nothing"), "--server", house.url], 2, "nothing"),
    ):
        assert await cottage(*argv) == status, argv
        shown = re.sub(r"\s+", " ", capsys.readouterr().err)
        assert says in shown
        assert "Traceback" not in shown


def zipped(fill: Callable[[zipfile.ZipFile], Any]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        fill(file)
    return out.getvalue()


def entry(name: str, mode: int = stat.S_IFREG | 0o644) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(name)
    made.external_attr = mode << 16
    return made


def many(file: zipfile.ZipFile) -> None:
    for number in range(10_001):
        file.writestr(str(number), "")


@pytest.mark.parametrize(
    "data",
    [
        b"not a zip",
        archive()[:-30],
        zipped(lambda file: file.writestr("../escape", "x")),
        zipped(lambda file: file.writestr("/etc/escape", "x")),
        zipped(lambda file: file.writestr("a/../../escape", "x")),
        zipped(lambda file: file.writestr("C:escape", "x")),
        zipped(lambda file: file.writestr("..\\escape", "x")),
        zipped(lambda file: file.writestr(entry("link", stat.S_IFLNK | 0o777), "/etc/passwd")),
        zipped(lambda file: file.writestr(entry("device", stat.S_IFCHR | 0o666), "")),
        zipped(lambda file: file.writestr("bomb", b"\0" * 50_000_000)),
        zipped(many),
    ],
    ids=["text", "cut", "up", "root", "through", "drive", "backslash", "link", "device", "bomb", "many"],
)
def test_a_hostile_archive_is_refused_whole(tmp_path: Path, data: bytes) -> None:
    source, folder = tmp_path / "x.zip", tmp_path / "deep" / "folder"
    source.write_bytes(data)
    with pytest.raises(ArchiveError):
        unpack(source, folder)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [source]


async def test_an_archive_with_another_hash_is_not_kept(house: House, tmp_path: Path) -> None:
    data = await house.dataset()
    async with Client(house.url) as client:
        job = await client.create_job(
            {"name": "x", "model": {"preset": "tiny-llama"}, "dataset": {"artifact": data}, "budget": 9_000_000}
        )
        await house.cluster.finish(job.id, archive())
        model = (await client.get(job.id)).model
        assert model is not None
        house.artifacts.path(model).write_bytes(b"something else")
        with pytest.raises(ArchiveError, match="SHA-256"):
            await client.download_folder(job.id, tmp_path / "out" / "model")
    assert list((tmp_path / "out").iterdir()) == []


@given(st.integers(-(2**63), 2**63))
def test_an_amount_is_exact_both_ways(micro: int) -> None:
    text = amount(micro)
    if 0 <= micro < 10**18:
        assert parse_amount(text) == micro
    assert re.fullmatch(r"-?\d{1,3}(,\d{3})*\.\d{2,6}", text)
    assert amount(micro, 6).partition(".")[2].__len__() == 6


@pytest.mark.parametrize("text", ["", ".", "1.2.3", "-1", "1e3", "٣", "1.1234567", "x", "1 000", "0x10", "9" * 13])
def test_what_is_no_amount_is_said_to_be_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"amount|finer|too large"):
        parse_amount(text)


def test_figures_read_as_people_write_them() -> None:
    assert [duration(s) for s in (None, -5, 0.4, 89, 119, 5400, 86400 * 3, 7261)] == [
        "not known yet",
        "0 s",
        "0 s",
        "89 s",
        "2 min",
        "1 h 30 min",
        "3 days",
        "2 h 1 min",
    ]
    assert [count(n) for n in (0, 9_999, 400_000, 2_560_000, 1e12)] == [
        "0",
        "9,999",
        "400,000",
        "2.56 million",
        "1 trillion",
    ]
    assert [size(n) for n in (0, 999, 1000, 41_800_000)] == ["0 B", "999 B", "1 kB", "41.8 MB"]
    assert speed(6.1e13) == "61 TFLOP/s"
    assert [ratio(*pair) for pair in ((0, 5), (10, 230), (30, 10))] == ["nothing sent yet", "23× less", "3× more"]
    assert short("x" * 44) == "xxxx…xxxx"


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9), st.integers(2, 9))
def test_ticks_enclose_what_they_measure(low: float, span: float, wanted: int) -> None:
    ticks = nice_ticks(low, low + span, wanted)
    assert len(ticks) >= 2
    assert ticks[0] <= low + 1e-6 * max(1, abs(low))
    assert ticks[-1] >= low + span - 1e-6 * max(1, abs(low + span))
    assert all(a < b for a, b in itertools.pairwise(ticks))


@given(
    st.lists(
        st.tuples(st.integers(0, 10**13), st.floats(-1e9, 1e9), st.sampled_from(["train", "validation"])), max_size=900
    )
)
def test_a_chart_of_any_points_stays_within_its_frame(points: list[tuple[int, float, Any]]) -> None:
    svg = str(loss_chart([Metric(0, 0, tokens, kind, loss, 0.0) for tokens, loss, kind in points], 1000))
    assert "nan" not in svg
    assert len(svg) < 400_000
    for x, y in re.findall(r'cx="([-\d.]+)" cy="([-\d.]+)"', svg):
        assert 0 <= float(x) <= 720
        assert 0 <= float(y) <= 340


def test_the_wallet_of_a_submission_is_read_before_anything_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    submit = ["submit", "job.yaml", "--server", "http://127.0.0.1:9", "--wallet"]
    assert parser().parse_args([*submit, f" solana:{WALLET}\n"]).wallet == WALLET
    for secret in SECRETS.values():
        with pytest.raises(SystemExit):
            main([*submit, secret])
        said = capsys.readouterr().err
        assert "argument --wallet: this is" in said
        assert not any(part in said for part in secret.split() if len(part) > 8)


def test_what_cannot_be_priced_is_told_without_figures() -> None:
    out = io.StringIO()
    Console(file=out, width=200).print(quote_table(impossible("the model has no layers", 4)))
    assert out.getvalue().strip() == "✗ the model has no layers"
