"""A dataset's check over HTTP: asked for, running, done once, kept over a restart; hostile files end in words."""

import asyncio
import io
import json
import re
from pathlib import Path

import aiohttp
import pytest
from rich.console import Console

from common.untrusted_text import untrusted
from coordinator.client.cli import main
from coordinator.client.looks import check_table
from coordinator.client.text import count
from coordinator.errors import UnavailableError
from coordinator.services.artifacts.dataset_checks import MAX_QUEUED, DatasetChecks, Progress
from protocol.ids import Digest
from protocol.job.job import DatasetSpec, TokenizerSpec
from protocol.rest.dataset import Check, CheckRequest, DatasetReport, Finding, Place
from tests.coordinator.web.conftest import House
from tests.support.chat_templates import EOS, TEMPLATES, small_tokenizer, unmarked

ROWS = [json.dumps({"text": f"row {number} tells of a fox, a dog and {number * 7} hens"}) for number in range(3000)]


async def ask(
    http: aiohttp.ClientSession, house: House, artifact: str, wait: int = 20, **more: object
) -> dict[str, object]:
    body = {"dataset": {"artifact": artifact, "format": "jsonl"}, "tokenizer": {"kind": "bytes"}, **more}
    async with http.post(f"{house.api}/checks?wait={wait}", json=body) as response:
        answer: dict[str, object] = await response.json()
        assert response.status == 200, answer
        return answer


async def test_a_check_finds_faults_and_is_done_once(house: House, http: aiohttp.ClientSession) -> None:
    rows = [*ROWS[:1000], '{"txt": "x"}', '{"text": "write to jane@acme.org"}', *ROWS[1000:]]
    artifact = await house.dataset("\n".join(rows).encode())
    begun = await ask(http, house, artifact, wait=0)
    assert begun["state"] in ("queued", "running")
    done = await ask(http, house, artifact)
    assert (done["state"], done["id"]) == ("done", begun["id"])
    report = done["report"]
    assert isinstance(report, dict)
    assert (report["rows"], report["usable"], report["exact"]) == (3002, 3001, True)
    places = {finding["kind"]: [place["row"] for place in finding["places"]] for finding in report["findings"]}
    assert places["no-field"] == [1001]
    assert places["email"] == [1002]
    assert "jane@acme.org" not in json.dumps(report["findings"])
    assert "1 of 3,002 rows cannot be read" in report["problem"]
    kept = house.folder / "checks" / f"{done['id']}.json"
    stamp = kept.stat().st_mtime_ns
    await house.stop()
    await house.start()
    assert await ask(http, house, artifact, wait=0) == done, "kept over a restart"
    assert kept.stat().st_mtime_ns == stamp


async def test_the_tokenizer_asked_for_is_the_one_that_counts(house: House, http: aiohttp.ClientSession) -> None:
    artifact = await house.dataset("\n".join(ROWS).encode())
    bytes_ = await ask(http, house, artifact)
    merged = await ask(http, house, artifact, tokenizer={"kind": "bpe", "vocabulary": 400})
    assert bytes_["report"]["tokens"] > merged["report"]["tokens"] > 3000  # type: ignore[index]
    assert (bytes_["report"]["vocabulary"], merged["report"]["vocabulary"]) == (259, 400)  # type: ignore[index]


async def test_a_file_that_is_no_dataset_ends_in_words(house: House, http: aiohttp.ClientSession) -> None:
    failed = await ask(http, house, await house.dataset(b'[{"text": "good"}, {"text": "better"}]\n'))
    assert failed["state"] == "failed"
    assert failed["problem"] == "the dataset is one JSON document, not JSON lines: choose the format json, or auto"
    assert failed["report"] is None


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"dataset": {"artifact": "0" * 64}}, 404),
        ({"dataset": {"artifact": "../../etc/passwd"}}, 422),
        ({"dataset": {"artifact": "0" * 64}, "sequence": 0}, 422),
        ({"dataset": {"artifact": "0" * 64}, "more": 1}, 422),
    ],
)
async def test_what_cannot_be_checked_is_refused(
    house: House, http: aiohttp.ClientSession, body: dict[str, object], status: int
) -> None:
    async with http.post(f"{house.api}/checks", json=body) as response:
        assert response.status == status


async def test_a_queue_has_an_end_and_one_check_runs_at_a_time(house: House, tmp_path: Path) -> None:
    going, seen = asyncio.Event(), list[str]()

    class Slow:
        async def inspect(self, request: CheckRequest, progress: Progress, name: str = "") -> DatasetReport:
            seen.append(request.dataset.text_field)
            progress(7)
            await going.wait()
            return DatasetReport(1, 1, 1, 1, 1, 1, True, 259)

    artifact = await house.dataset()
    checks = DatasetChecks(tmp_path / "kept", house.artifacts, Slow())
    requests = [
        CheckRequest(DatasetSpec(artifact, text_field=f"f{n}"), TokenizerSpec("bytes")) for n in range(MAX_QUEUED + 1)
    ]
    async with asyncio.TaskGroup() as group:
        running = group.create_task(checks.run())
        for request in requests[:MAX_QUEUED]:
            await checks.ask(request)
        with pytest.raises(UnavailableError, match="wait for their check"):
            await checks.ask(requests[-1])
        found = await checks.get(requests[0], 0.01)
        assert (found.state, found.read, seen) == ("running", 7, ["f0"])
        going.set()
        assert (await checks.get(requests[MAX_QUEUED - 1], 5.0)).state == "done"
        assert seen == [f"f{n}" for n in range(MAX_QUEUED)]
        running.cancel()


def test_rows_of_which_nothing_is_shown_take_one_line_and_no_row_is_named_twice() -> None:
    alike = Finding("near-duplicate", "notice", untrusted("alike"), 40, tuple(Place(row) for row in (2, 3, 1204)))
    bad = (Place(7, untrusted("row 7 has a quote")), Place(21, untrusted("row 21, message 2, has no content")))
    faulty = Finding("bad-row", "error", untrusted("faulty"), 2, bad)
    secret = Finding("mail", "warning", untrusted("mail"), 1, (Place(1_234, untrusted("a…@example")),))
    report = DatasetReport(900, 1_300, 1_299, 800, 20, 850, True, 259, (alike, faulty, secret), format="csv")
    out = io.StringIO()
    Console(file=out, width=200).print(check_table(Check(Digest("0" * 64), "done", 900, 900, report)))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert "  rows 2, 3, 1,204 and 37 more" in lines
    assert "  row 7 has a quote" in lines
    assert "  row 21, message 2, has no content" in lines
    assert "  row 1,234  a…@example" in lines


async def test_the_command_shows_a_conversation_with_the_template_of_a_models_folder(
    house: House, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOS}))
    (tmp_path / "chat_template.jinja").write_text(unmarked(TEMPLATES["chatml"]))
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "So it is."}]
    (tmp_path / "chats.jsonl").write_text(f"{json.dumps({'messages': talk})}\n" * 90)
    words = ("--tokenizer", str(tmp_path), "--sequence", "64", "--server", house.url)
    assert await asyncio.to_thread(main, ["check", str(tmp_path / "chats.jsonl"), *words]) == 0
    said = " ".join(capsys.readouterr().out.split())
    answer = len(small_tokenizer().encode("So it is.<|im_end|>\n").ids)
    figures = rf"90 rows \(conversations\), 90 of them usable; \S+ tokens, {count(90 * answer)} of them learnt"
    assert re.search(figures, said)
    assert "<|im_start|>assistant↵ So it is.<|im_end|>↵" in said
    assert "held out and trained on, too, word for word" in said
