"""The form and the job document are one schema, both ways; and the data is looked at before anybody pays."""

import json
import re
from collections.abc import Iterator
from typing import get_args

import aiohttp
import msgspec
import pytest

from coordinator.errors import InvalidError
from coordinator.services.artifacts.models import _late
from coordinator.web.pages import serve, submit
from coordinator.web.pages.forms import DEFAULTS, fill, read, read_document
from protocol.evaluation import EvaluationSpec
from protocol.job.job import (
    DatasetSpec,
    JobSpec,
    LoraSpec,
    ModelSpec,
    ParallelSpec,
    PreferenceSpec,
    ServeSpec,
    TokenizerSpec,
    TrainingSpec,
)
from tests.coordinator.web.conftest import House
from tests.coordinator.web.pages.test_pages import form, token
from tests.protocol.test_wallets import SECRETS, WALLET


class Form:
    """A browser without scripts that fills in the form."""

    def __init__(self, http: aiohttp.ClientSession, house: House) -> None:
        self._http = http
        self._house = house

    async def post(self, fields: dict[str, str], status: int = 200, path: str = "/submit") -> str:
        csrf = {"csrf": await token(self._http, self._house)}
        async with self._http.post(f"{self._house.url}{path}", data=form({**csrf, **fields})) as response:
            page = await response.text()
            assert response.status == status, page
            return page


def every_field(kind: type[msgspec.Struct] = JobSpec, at: str = "") -> Iterator[str]:
    """Paths of all fields of the job document."""
    for field in msgspec.structs.fields(kind):
        inner = [
            part
            for part in (field.type, *get_args(field.type))
            if isinstance(part, type) and issubclass(part, msgspec.Struct)
        ]
        if not inner or field.name == "heldout_dataset":  # A table as it is, beside the list of further ones.
            yield f"{at}{field.encode_name}"
        else:
            yield from every_field(inner[0], f"{at}{field.encode_name}.")


def test_the_form_has_every_field_of_the_document() -> None:
    others = {"model.preset", "training.shares"}  # A choice of the model; what a run settles.
    others |= {name for name in every_field() if name.startswith("serve.")}  # A deployment has a form of its own.
    others |= {name for name in every_field() if name.startswith("array.")}  # An array has a form of its own.
    others |= {name for name in every_field() if name.startswith("federated.")}  # Is submitted as a document.
    assert set(every_field()) - others <= set(DEFAULTS)


def test_the_form_of_a_deployment_has_every_field_of_serving() -> None:
    of_files = {"draft_tokenizer"}  # The form's draft is a job's.
    asked = {one.encode_name for one in msgspec.structs.fields(ServeSpec)} - of_files
    assert {f"serve.{name}" for name in asked} <= set(serve.PLACES)


ODD = JobSpec(
    "odd",
    ModelSpec(config={"model_type": "llama", "hidden_size": 64}, weights="b" * 64),
    12_345_678,
    DatasetSpec("c" * 64, "parquet", "body", 0.1, "skip", weight=0.5),
    TokenizerSpec("file", file="d" * 64),
    TrainingSpec(
        tokens=123,
        sequence=64,
        batch=6,
        micro_batches=3,
        inner_steps=7,
        period="growing",
        shortest_period=2,
        lateness=3.5,
        learning_rate=1.25e-4,
        warmup_steps=0,
        weight_decay=0.0,
        outer_momentum=0.25,
        commit_every=3,
        seed=9,
        lora=LoraSpec(4, 8.5, ("q_proj",), "base"),
        preference=PreferenceSpec(0.25),
        optimizer="muon",
        decay="wsd",
        decay_share=0.5,
        final_rate=0.0,
        clip_norm=1.5,
        precision="bf16",
        loss_scale=2.0,
        outer="streaming",
        pseudo_gradient="int4",
        density=0.01,
        error_feedback=0.5,
        aggregation="trimmed",
        check_updates=False,
        fragments=3,
        mixing=0.5,
        overlap=2,
        activations="fp32",
        sampling="epochs",
        boundary_gradients="fp32",
        schedule="zero-bubble",
        lookahead=2,
        recompute=True,
    ),
    ParallelSpec(2, 3),
    1.5,
    "pause",
    "a note",
    (DatasetSpec("e" * 64, weight=2.5), DatasetSpec("f" * 64, "csv", "said")),
    DatasetSpec("9" * 64),
    EvaluationSpec(("arc_easy", "mmlu"), 30, True),
)

ONWARD = JobSpec("on", ModelSpec(from_job="a" * 32, from_round=7), 5_000_000, DatasetSpec("c" * 64))


async def test_tasks_are_asked_for_only_where_the_operator_offers_some(
    house: House, http: aiohttp.ClientSession
) -> None:
    async with http.get(f"{house.url}/submit") as response:
        assert "evaluation.tasks" not in re.sub(r"<textarea.*?</textarea>", "", await response.text(), flags=re.DOTALL)
    house.cluster.evaluation_tasks = ("arc_easy", "mmlu")
    async with http.get(f"{house.url}/submit") as response:
        page = await response.text()
    assert 'name="evaluation.tasks"' in page
    assert "Tasks offered here: arc_easy, mmlu." in page
    typed = {"name": "x", "budget": "5", "dataset.artifact": "c" * 64}
    assert read(typed | {"evaluation.limit": "7"}).spec == read(typed).spec, "a number of examples of nothing"
    found = read(typed | {"evaluation.tasks": "arc_easy, mmlu", "evaluation.limit": "7"}).spec
    assert found is not None
    assert found.evaluation == EvaluationSpec(("arc_easy", "mmlu"), 7)
    assert read(typed | {"evaluation.tasks": "../x"}).errors


@pytest.mark.parametrize(
    "spec", [ODD, ONWARD, msgspec.structs.replace(ODD, model=ModelSpec("tiny-llama"), training=TrainingSpec())]
)
def test_a_document_goes_through_the_form_and_comes_back_the_same(spec: JobSpec) -> None:
    again = read(fill(spec))
    assert again.errors == {}
    assert again.spec == spec
    shown = json.loads(again.document)
    assert msgspec.convert(shown, JobSpec) == spec, "the JSON beside the form is the whole document"
    values = read_document(again.document, {"payer": "test"})
    assert read(values).spec == spec


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "no JSON"),
        ("[1]", "a job is a table"),
        (
            '{"model": {"preset": "tiny-llama"}, "training": {"tokens": "many"}}',
            "training.tokens is 'many', and must be a whole number",
        ),
        ('{"model": {"preset": "tiny-llama"}, "fun": 1}', "fun"),
        ('{"model": {"preset": "tiny-llama"}, "training": {"learning_rate": 7}}', "at most 1"),
        ('{"dataset": {"artifact": "x"}}', "artifact"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_a_document_that_is_no_job_says_where_and_why(text: str, says: str) -> None:
    with pytest.raises(InvalidError, match=re.escape(says)) as caught:
        read_document(text, {})
    assert caught.value.field == "document"


async def test_the_json_beside_the_form_is_taken_over_or_refused_beside_it(
    house: House, http: aiohttp.ClientSession
) -> None:
    browser = Form(http, house)
    text = (
        '{"name": "from json", "model": {"preset": "small-llama"}, "training": {"tokens": 777000, "recompute": true}}'
    )
    page = await browser.post({"action": "document", "document": text, "name": "typed before"})
    assert 'value="from json"' in page
    assert 'value="777000"' in page
    assert re.search(r'value="true" selected', page)
    page = await browser.post({"action": "document", "document": '{"training": {"tokens": -1}}', "name": "kept"}, 422)
    assert 'value="kept"' in page, "the form stays as it was"
    assert "training.tokens" in page
    assert "&#34;tokens&#34;: -1" in page, "and so does the text"


async def test_refused_data_is_told_beside_its_field_together_with_every_other_error(
    house: House, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "REPORT_S", 60.0)  # As long as the check takes.
    browser = Form(http, house)
    good, short = await house.dataset(), await house.dataset(b"short")
    asked = {"name": "n", "budget": "9", "tokenizer.kind": "bytes", "action": "review"}
    wrong = {"budget": "", "training.learning_rate": "fast", "training.batch": "0"}
    page = await browser.post({**asked, **wrong, "dataset.artifact": short}, 422)
    assert "4 things need" in page
    assert set(re.findall(r'id="error-([^"]+)"', page)) == {"dataset.artifact", *wrong}
    problem = re.search(r'#field-dataset\.artifact">Dataset</a>: ([^<]+)</li>', page)
    assert problem is not None
    assert f"</svg>{problem[1]}</span>" in page, "beside the field"
    assert problem[1] not in page.partition('<div id="report"')[2].partition("</section>")[0], (
        "and not once more below it"
    )
    page = await browser.post({**asked, "dataset.artifact": short}, 422)
    assert "1 thing needs" in page
    page = await browser.post({**asked, **wrong, "dataset.artifact": good}, 422)
    assert "3 things need" in page
    part = await browser.post({**asked, **wrong, "dataset.artifact": short}, path="/submit/report")
    assert problem[1] in part, "the part that a script asks for says it by itself"
    unclear = {"dataset.artifact": short, "tokenizer.kind": "bpe", "tokenizer.vocabulary": "many"}
    page = await browser.post({**asked, **unclear}, 422)
    assert set(re.findall(r'id="error-([^"]+)"', page)) == {"tokenizer.vocabulary"}, (
        "how to look at it is not known yet"
    )


@pytest.mark.parametrize("kind", SECRETS)
async def test_a_secret_in_the_place_of_the_wallet_is_shown_to_nobody(
    kind: str, house: House, http: aiohttp.ClientSession
) -> None:
    typed = {"name": "n", "budget": "9", "payer": "own", "submitter": SECRETS[kind]}
    for action, status, told in (("review", 422, True), ("edit", 200, False)):
        page = await Form(http, house).post({**typed, "action": action}, status)
        assert ("whoever has it has the money" in page, 'id="error-submitter"' in page) == (told, told)
        assert not any(part in page for part in SECRETS[kind].split() if len(part) > 8)


def test_a_wallet_is_read_as_it_is_pasted() -> None:
    assert read({"payer": "own", "submitter": f"solana:{WALLET}\n"}, draft=True).submitter == WALLET


async def test_data_that_takes_too_long_to_make_ready_is_told_beside_its_field(
    house: House, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = _late("prepare", 900.0)

    async def create(*_: object) -> None:
        raise late

    monkeypatch.setattr(type(house.cluster), "create", create)
    asked = {"name": "n", "budget": "9", "tokenizer.kind": "bytes", "action": "create"}
    page = await Form(http, house).post({**asked, "dataset.artifact": await house.dataset()}, 422)
    assert 'id="error-dataset.artifact"' in page
    assert page.count(late.detail) == 2, "above the form and beside the field"


async def test_the_data_is_looked_at_before_a_job_can_be_reviewed(house: House, http: aiohttp.ClientSession) -> None:
    browser = Form(http, house)
    rows = [json.dumps({"text": f"a line about number {n} and its cousins"}) for n in range(500)]
    bad = await house.dataset("\n".join([*rows, '{"txt": "no text"}', '{"text": "mail bob@acme.org"}']).encode())
    asked = {"name": "n", "budget": "9", "dataset.artifact": bad, "dataset.format": "jsonl", "tokenizer.kind": "bytes"}
    page = await browser.post({**asked, "action": "review"}, 422)
    assert "1 of 502 rows cannot be read" in page
    page = await browser.post({**asked, "dataset.faulty": "skip", "action": "review"})
    assert "Is this right?" in page
    assert "e-mail addresses" in page
    assert "bob@acme.org" not in page
    assert "each is read" in page, "little data for so many tokens is worth a word"
    part = await browser.post({**asked, "dataset.faulty": "skip"}, path="/submit/report")
    assert "501 of 502 rows to train on" in part


async def test_what_is_learnt_of_prompts_with_completions_is_shown_before_anything_is_paid(
    house: House, http: aiohttp.ClientSession
) -> None:
    rows = [json.dumps({"prompt": f"{n} & 1 =\n", "completion": f"{n + 1}"}) for n in range(500)]
    artifact = await house.dataset("\n".join(rows).encode())
    asked = {"name": "n", "budget": "9", "dataset.artifact": artifact, "tokenizer.kind": "bytes"}
    browser = Form(http, house)
    await browser.post({**asked, "action": "review"})  # It waits for the check.
    part = await browser.post(asked, path="/submit/report")
    assert "Read as JSON lines: prompts with completions." in part
    assert f"{sum(len(str(n + 1)) + 1 for n in range(500)):,} of them learnt" in part
    assert '<span class="soft">0 &amp; 1 =↵ </span><span>1&lt;|end|&gt;</span>' in part.replace("endoftext", "end")
    asked["dataset.learn"] = "all"
    await browser.post({**asked, "action": "review"})
    everything = await browser.post(asked, path="/submit/report")
    assert "<span>0 &amp; 1 =↵ 1&lt;|end|&gt;</span>" in everything.replace("endoftext", "end")
