"""The form of an array job, as browsers without scripts send it: files become elements, the price is shown, the job is made."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import aiohttp
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.client import Client
from coordinator.client.files import sha256_of
from coordinator.web.arrays import form as array_form
from protocol.codec import convert
from protocol.job.array import MAX_INPUTS, ArraySpec, CheckerSpec, read_elements
from protocol.job.job import JobSpec
from tests.coordinator.arrays.test_map_command import ArrayHouse, house  # noqa: F401 - a fixture
from tests.coordinator.web.deployments.test_serve_form import words
from tests.protocol.test_wallets import SECRETS, WALLET
from tests.support.arrays.images import files, ready, saved

Files = Sequence[tuple[str, str, bytes]]
TWO: Files = (("files", "n3.txt", b"3"), ("files", "n4.txt", b"4"))


async def pushed(url: str, folder: Path) -> str:
    """The artifact of an image that was pushed."""
    archive = folder / "image.tar"
    ready(saved(folder / "saved.tar", [files({"bin/square": b"square"})]), archive)
    async with Client(url) as client:
        await client.push_image(archive, "square:1", sha256_of(archive))
        return (await client.images())[0].artifact


class ArrayBrowser:
    """Fills in the form."""

    def __init__(self, http: aiohttp.ClientSession, house: ArrayHouse) -> None:  # noqa: F811
        self.http, self.url = http, house.url

    async def page(self, path: str = "/submit/array") -> str:
        async with self.http.get(self.url + path) as response:
            assert response.status == 200, path
            return await response.text()

    async def send(self, fields: dict[str, str], sent: Files = (), status: int | None = 200, page: str = "") -> str:
        found = re.search(r'name="csrf" value="([0-9a-f]{64})"', page or await self.page())
        assert found
        data = aiohttp.FormData()
        for name, value in {"csrf": found[1], **fields}.items():
            data.add_field(name, value)
        if not sent:
            data.add_field("files", b"", filename="")  # As a browser sends an input where nothing is chosen.
        for name, filename, content in sent:
            data.add_field(name, content, filename=filename)
        async with self.http.post(f"{self.url}/submit/array", data=data) as response:
            text = await response.text()
            assert response.status == status if status else response.status in (200, 404, 422), words(text)
            return text


@pytest.fixture
async def browser(house: ArrayHouse) -> AsyncIterator[ArrayBrowser]:  # noqa: F811
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        yield ArrayBrowser(http, house)


def typed_of(page: str) -> dict[str, str]:
    """What the form holds, hidden fields included."""
    found = dict(re.findall(r'<input type="(?:hidden|text)"[^>]*? name="(\w+)" value="([^"]*)"', page))
    found |= dict(re.findall(r'<textarea [^>]*name="(\w+)"[^>]*>([^<]*)</textarea>', page))
    for name, options in re.findall(r'<select [^>]*name="(\w+)">(.*?)</select>', page, re.DOTALL):
        found[name] = next(iter(re.findall(r'value="([^"]*)" selected', options)), "")
    return {name: value.replace("&#34;", '"').replace("&#39;", "'") for name, value in found.items() if name != "csrf"}


async def test_files_become_elements_and_the_job_is_made_at_the_price_that_was_shown(
    house: ArrayHouse,  # noqa: F811
    browser: ArrayBrowser,
    tmp_path: Path,
) -> None:
    await house.nodes()
    image = await pushed(house.url, tmp_path)
    asked = {
        "image": image,
        "command": "square {input}",
        "name": "squares",
        "estimate": "2",
        "environment": "A=1\r\nB=x y",
    }
    shown = await browser.send(asked | {"action": "quote"}, [*TWO, ("shared", "model.bin", b"weights")])
    said = words(shown)
    assert "2 files are here" in said
    assert "model.bin" in said
    assert "each of 2 elements is run by 2 owners, who must agree: 4 runs" in said
    async with Client(house.url) as client:
        assert not await client.jobs(), "a price makes nothing"
        await browser.send(typed_of(shown) | {"action": "create"}, page=shown)
        (job,) = await client.jobs()
        array = job.spec.array
        assert array is not None
        assert (job.name, array.command, array.count) == ("squares", ("square", "{input}"), 2)
        assert (array.environment, array.estimate, array.owners) == ({"A": "1", "B": "x y"}, 2.0, 2)
        assert sorted(array.inputs) == ["model.bin"]
        assert job.spec.budget == job.quote.price > 0, "nobody named one, so it is that of the page"
        listed = read_elements(house.artifacts.path(array.elements).read_bytes())
        assert [one.name for one in listed] == ["n3.txt", "n4.txt"]
        async with asyncio.timeout(60), house.running():
            await client.fund(job.id)
            found = {
                one.element.name: one.files[-1].read_text() async for one in client.results(job.id, tmp_path / "out")
            }
        assert found == {"n3.txt": "9", "n4.txt": "16"}
        page = await browser.page(f"/jobs/{job.id}")
        assert f"/submit/array?from={job.id}" in page
        again = typed_of(await browser.page(f"/submit/array?from={job.id}"))
        assert (again["elements"], again["count"], again["command"]) == (array.elements, "2", "square {input}")
        await browser.send(again | {"action": "create"})
        made, first = [one.spec for one in await client.jobs()]
        assert made == first == job.spec, "the same form again is the same job again"


async def test_what_is_missing_or_cannot_be_stands_beside_its_field(
    house: ArrayHouse,  # noqa: F811
    browser: ArrayBrowser,
    tmp_path: Path,
) -> None:
    await house.nodes()
    image = await pushed(house.url, tmp_path)
    missing = await browser.send({"action": "create"}, status=422)
    for name in ("image", "command", "elements", "name"):
        assert f'id="error-{name}"' in missing
    good = {"image": image, "command": "square", "name": "squares", "action": "create"}
    for fields, at, said in (
        ({"command": "sh -c 'x"}, "command", "a quotation mark has no second one"),
        ({"memory_mb": "3"}, "memory_mb", "must be at least 16"),
        ({"seconds": "long"}, "seconds", "is not a number"),
        ({"estimate": "900", "seconds": "5"}, "", "each is ended after 5 s"),
        ({"environment": "FOO"}, "environment", "is no NAME=VALUE"),
        ({"environment": "A=1\nA=2"}, "environment", "stands there twice"),
        ({"environment": "1=2"}, "environment", "has a name that has characters that are not taken here"),
        ({"verify": "checked"}, "check", "write the program that decides"),
        ({"check": "look"}, "check", "it is for results that are decided on by a program of yours"),
        ({"verify": "trusted"}, "trusted", "name the owners"),
        ({"verify": "trusted", "trusted": "me"}, "trusted", "characters"),
        ({"verify": "spot-checked", "batch": "8"}, "", "where one word is believed"),
        ({"budget": "much"}, "budget", "is not an amount"),
        ({"submitter": "me"}, "submitter", "is no address"),
        ({"image": "f" * 64}, "image", "there is no file"),
        ({"command": "x" * 30_000}, "command", "more than 20,000 characters"),
        ({"inputs": "{"}, "inputs", "cut off"),
        ({"elements": "e" * 64, "count": "3"}, "elements", "there is no file"),
    ):
        page = await browser.send(good | fields, () if "elements" in fields else TWO, status=None)
        assert said in words(page), fields
        assert not at or f'id="error-{at}"' in page, fields
    async with Client(house.url) as client:
        assert not await client.jobs()


async def test_files_that_cannot_be_elements_are_named(house: ArrayHouse, browser: ArrayBrowser) -> None:  # noqa: F811
    for sent, at, said in (
        ([("files", "n1.txt", b"1"), ("files", "n1.txt", b"2")], "elements", "two files are called 'n1.txt'"),
        ([("files", "n1.txt", b""), ("files", "n2.txt", b"2")], "elements", "n1.txt: the file is empty"),
        ([("files", ".hidden", b"1")], "elements", "no dot comes first"),
        ([("shared", "m", b"")], "inputs", "m: the file is empty"),
        ([("shared", f"m{number}", b"1") for number in range(MAX_INPUTS + 1)], "inputs", "more than 64 files"),
    ):
        page = await browser.send({"action": "quote"}, sent, status=422)
        assert f'id="error-{at}"' in page
        assert said in words(page)
        assert typed_of(page)["elements"] == "", "a part of the files is none of them"


async def test_no_file_is_read_before_the_forms_token(house: ArrayHouse, browser: ArrayBrowser) -> None:  # noqa: F811
    data = aiohttp.FormData()
    data.add_field("files", b"1", filename="n1.txt")
    async with browser.http.post(f"{browser.url}/submit/array", data=data) as response:
        assert response.status == 403
    assert not list((house.folder / "uploads").iterdir())


async def test_a_secret_is_not_shown_again(house: ArrayHouse, browser: ArrayBrowser) -> None:  # noqa: F811
    for secret in SECRETS.values():
        assert secret not in await browser.send({"submitter": secret, "action": "quote"}, status=None)


async def test_without_an_image_the_page_says_how_one_comes(house: ArrayHouse, browser: ArrayBrowser) -> None:  # noqa: F811
    said = words(await browser.page())
    assert "An image comes from a terminal: cottage image push FILE" in said
    assert "The price stands here once image, command and files are there." in said
    async with browser.http.get(f"{house.url}/submit") as response:
        assert 'href="/submit/array"' in await response.text()


def test_the_form_has_every_field_of_an_array_and_of_its_checker() -> None:
    asked = {one.place for one in array_form._FIELDS}
    beside = {(ArraySpec, name) for name in ("elements", "count", "inputs", "checker")}
    for kind in (ArraySpec, CheckerSpec):
        assert {(kind, one.encode_name) for one in msgspec.structs.fields(kind)} <= asked | beside


ODD = ArraySpec(
    image="a" * 64,
    command=("sh", "-c", "echo 'two words'\nls $1", ""),
    elements="b" * 64,
    count=7,
    inputs={"deep/model.bin": "c" * 64},
    environment={"A": "1=2", "B": ""},
    gpu=True,
    memory_mb=64,
    disk_mb=8,
    seconds=0.5 + 3600,
    retries=0,
    verify="checked",
    checker=CheckerSpec(command=("look", "{input}"), image="d" * 64, seconds=7.5, estimate=0.25),
    estimate=0.125,
    batch=64,
)


@pytest.mark.parametrize(
    "array",
    [
        ODD,
        ArraySpec(image="a" * 64, command=("x",), elements="b" * 64, count=1, owners=5),
        ArraySpec(image="a" * 64, command=("x",), elements="b" * 64, count=1, verify="spot-checked"),
        ArraySpec(
            image="a" * 64, command=("x",), elements="b" * 64, count=1, verify="trusted", trusted=(WALLET, WALLET)
        ),
    ],
)
def test_a_form_filled_from_a_document_asks_for_the_same(array: ArraySpec) -> None:
    spec = JobSpec("odd", budget=1_234_567, array=array, deadline_hours=3.5)
    found = array_form.read(array_form.fill(spec))
    assert found.errors == {}
    assert convert(found.document, JobSpec) == spec


def sent(values: Mapping[str, str]) -> dict[str, str]:
    """What a browser sends of what a page holds: line ends of a text are two characters, whatever they were."""
    return {name: re.sub(r"\r\n|\r|\n", "\r\n", text) for name, text in values.items()}


def test_what_does_not_go_into_the_form_is_told_beside_its_field() -> None:
    array = msgspec.structs.replace(ODD, environment={"A": "1", "B": "2\nC=3"})
    spec = JobSpec("odd", budget=1, array=array)
    assert array_form.fill(spec)["environment"] == "A=1"
    assert array_form.again(spec).errors["environment"].startswith("B has several lines")
    many = msgspec.structs.replace(ODD, environment={f"A{number}": "x" * 400 for number in range(64)})
    long = msgspec.structs.replace(ODD, command=("x", *["y" * 4_000] * 6))
    ends = msgspec.structs.replace(ODD, command=("x", "one\r\ntwo"))
    for changed, name in ((many, "environment"), (long, "command"), (ends, "command")):
        assert list(array_form.again(JobSpec("odd", budget=1, array=changed)).errors) == [name]
    assert "note" in array_form.again(JobSpec("odd", budget=1, array=ODD, note="for me")).errors[""]


ODD_TEXT = st.text(st.sampled_from("ab =\\'\"{}#\n\r\t\x0b\x1c\x85\xa0\u2028\ufeffü"), max_size=12)


@given(
    command=st.lists(ODD_TEXT, min_size=1, max_size=4).map(tuple),
    environment=st.dictionaries(st.sampled_from(["A", "B", "_c"]), ODD_TEXT),
    check=st.lists(ODD_TEXT, min_size=1, max_size=3).map(tuple),
    seconds=st.floats(1, 86_400),
    estimate=st.floats(0.001, 0.999),
)
def test_any_array_comes_back_out_of_its_form_the_same_or_it_is_told(
    command: tuple[str, ...], environment: dict[str, str], check: tuple[str, ...], seconds: float, estimate: float
) -> None:
    checker = msgspec.structs.replace(ODD.checker, command=check)
    array = msgspec.structs.replace(
        ODD, command=command, environment=environment, checker=checker, seconds=seconds, estimate=estimate
    )
    spec = JobSpec("odd", budget=1, array=array)
    told = array_form.again(spec).errors
    assert set(told) <= {"command", "environment", "check"}
    assert all("\r" in "".join(command) for name in told if name == "command"), "no word is lost without a reason"
    assert all(re.search(r"[\r\n]", "".join(environment.values())) for name in told if name == "environment")
    back = array_form.read(sent(array_form.fill(spec)), draft=True)
    if not told:
        assert back.errors == {}
        assert convert(back.document, JobSpec) == spec


async def test_what_an_array_that_is_run_again_lacks_is_told_on_the_page(
    house: ArrayHouse,  # noqa: F811
    browser: ArrayBrowser,
    tmp_path: Path,
) -> None:
    await house.nodes()
    shown = await browser.send(
        {"image": await pushed(house.url, tmp_path), "command": "square", "name": "squares", "action": "quote"}, TWO
    )
    await browser.send(typed_of(shown) | {"action": "create"}, page=shown)
    async with Client(house.url) as client:
        [job] = await client.jobs()
        assert job.spec.array is not None
        many = {f"A{number}": "x" * 400 for number in range(64)}
        array = msgspec.structs.replace(job.spec.array, environment=many)
        made = await client.create_job(msgspec.to_builtins(msgspec.structs.replace(job.spec, array=array)))
    page = await browser.page(f"/submit/array?from={made.id}")
    assert 'id="error-environment"' in page
    assert 'role="alert"' not in await browser.page(f"/submit/array?from={job.id}")
