"""The submit form: price while typing, review before anything is promised, errors beside their fields."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from aiohttp import hdrs, web

from common.untrusted_text import untrusted
from coordinator.client.text import amount, count, duration
from coordinator.errors import CottageError, ForbiddenError, FundsError
from coordinator.services.accounts.budgets import PRICES
from coordinator.services.artifacts.dataset_checks import DatasetChecks
from coordinator.services.artifacts.uploads import UploadService
from coordinator.services.jobs import ports
from coordinator.web.api import CHOICES
from coordinator.web.auth import costs, principal
from coordinator.web.documents import own_origin
from coordinator.web.pages.form_parts import FormFile, FormLimits, keep_file, read_parts
from coordinator.web.pages.forms import (
    ADAPTER,
    ADAPTER_SELECTS,
    BASIC,
    DEFAULTS,
    FROM_JOB,
    FULL,
    NO_DATASET,
    OTHERS,
    OWN_CONFIG,
    SELECTS,
    TASKS,
    Filled,
    fill,
    place,
    read,
    read_document,
)
from coordinator.web.pages.render import Renderer
from protocol.ids import is_id
from protocol.job.end_tokens import ends_of
from protocol.job.job import JobSpec, TokenizerSpec
from protocol.models.model import PRESETS, inspect_config
from protocol.rest.api import NewJob, NewUpload, Quote
from protocol.rest.dataset import Check, CheckRequest

_LIMITS: Final = FormLimits(100, 1 << 20, "shorten the config")
# A file in a plain form cannot resume; larger ones go through the page's script or `cottage submit`.
MAX_FORM_FILE = 256 << 20
REPORT_S = 1.0  # A part of the page waits so long for a check to end; then it says how far it is.
FUNDS_S = 2.0  # The price does not wait longer for the ledger to say what a wallet holds.
REVIEW_S = 20.0
DATASET = "dataset.artifact"
PENDING = ("queued", "running")  # States of a check that is not over.
MANY_EPOCHS = 20  # Models of language gain little beyond 4 (arXiv 2305.16264), and nothing beyond 40.

_Purpose = Literal["dataset", "weights", "tokenizer"]
# By the input of the file: its purpose, and the input that takes its digest.
_FILES: Final[Mapping[str, tuple[_Purpose, str]]] = {
    "dataset.upload": ("dataset", "dataset.artifact"),
    "model.upload": ("weights", "model.weights"),
    "tokenizer.upload": ("tokenizer", "tokenizer.file"),
}


class Submit:
    """Handlers of the form."""

    def __init__(
        self,
        jobs: ports.JobsPort,
        network: ports.NetworkPort,
        uploads: UploadService,
        checks: DatasetChecks,
        renderer: Renderer,
    ) -> None:
        self._jobs = jobs
        self._checks = checks
        self._network = network
        self._uploads = uploads
        self._renderer = renderer

    def register(self, app: web.Application) -> None:
        """Add the form to ``app``."""
        app.router.add_get("/submit", self.form)
        app.router.add_post("/submit", self.send)
        app.router.add_post("/submit/quote", self.quote)
        app.router.add_post("/submit/choices", self.choices)
        app.router.add_post("/submit/report", self.report)

    @costs(PRICES)
    async def form(self, request: web.Request) -> web.Response:
        """The empty form; with ``from`` that of an earlier job, with ``start`` one that starts from its model.

        With ``round`` beside ``start`` it is the checkpoint after so many rounds.
        """
        typed: dict[str, str] = {}
        earlier, start = request.query.get("from", ""), request.query.get("start", "")
        if is_id(earlier):
            await self._jobs.check_owner(earlier, principal(request).account_id)
            spec = (await self._jobs.get(earlier)).spec
            if spec.array is not None:
                raise web.HTTPSeeOther(f"/submit/array?from={earlier}", headers={hdrs.CACHE_CONTROL: "no-store"})
            if spec.serve is not None:
                served = spec.model.from_job
                way = f"/jobs/{earlier}" if served is None else f"/jobs/{served}/serve"
                raise web.HTTPSeeOther(way, headers={hdrs.CACHE_CONTROL: "no-store"})
            if spec.federated is not None:
                raise web.HTTPSeeOther(f"/jobs/{earlier}", headers={hdrs.CACHE_CONTROL: "no-store"})
            typed = fill(spec)
        if is_id(start):
            typed |= {
                "model.choice": FROM_JOB,
                "model.from_job": start,
                "model.from_round": request.query.get("round", ""),
            }
        if not (await self._network.view()).test_wallet:
            typed["payer"] = "own"
        return await self._show(request, Filled(read(typed, draft=True).values, {}, None, None), 200)

    @costs(PRICES)
    async def quote(self, request: web.Request) -> web.Response:
        """The price of what is typed so far: a part of the page."""
        typed, _ = await self._typed(request)
        filled = read(typed, draft=True)
        quote, problem = await self._price(request, filled)
        warnings = await self._warnings(filled, quote, await self._check(request, filled, 0.0))
        return self._renderer.page(
            request,
            "quote.html",
            quote=quote,
            problem=problem,
            filled=filled,
            labels=_labels(),
            fits=_fits(quote, filled),
            warnings=warnings,
        )

    @costs(PRICES, CHOICES)
    async def choices(self, request: web.Request) -> web.Response:
        """What would be cheaper or sooner: a part of the page."""
        typed, _ = await self._typed(request)
        filled = read(typed, draft=True)
        return self._renderer.page(request, "choices.html", choices=await self._cheaper(request, filled))

    @costs(None)
    async def report(self, request: web.Request) -> web.Response:
        """What the dataset holds, as far as it is read: a part of the page."""
        typed, _ = await self._typed(request)
        check = await self._check(request, read(typed, draft=True), REPORT_S)
        return self._renderer.page(request, "report.html", check=check)

    async def send(self, request: web.Request) -> web.Response:
        """Review what was typed; or, from the review, create the job."""
        typed, failed = await self._typed(request)
        if typed.get("action") == "document":
            return await self._take_over(request, typed)
        filled = read(typed)
        if typed.get("action") in ("edit", "quote"):
            return await self._show(request, Filled(filled.values, failed, None, None), 200, typed["action"] == "quote")
        errors = {**filled.errors, **failed}
        if errors or filled.spec is None:
            return await self._show(request, Filled(filled.values, errors, None, None), 422)
        check = await self._check(request, filled, REVIEW_S)
        if problem := _refused(check):
            return await self._show(request, Filled(filled.values, {DATASET: problem}, None, None), 422)
        if typed.get("action") == "create":
            return await self._create(request, filled, filled.spec)
        quote, problem = await self._price(request, filled)
        if problem:
            return await self._show(request, Filled(filled.values, {"": problem}, None, None), 422)
        return self._renderer.page(
            request,
            "review.html",
            filled=filled,
            quote=quote,
            shown=_shown(filled),
            fits=_fits(quote, filled),
            check=check,
            warnings=await self._warnings(filled, quote, check),
        )

    async def _take_over(self, request: web.Request, typed: Mapping[str, str]) -> web.Response:
        """Fill the form from the JSON beside it; where that is no job, say why and leave both as they are."""
        text = typed.get("document", "")
        try:
            values = read_document(text, typed)
        except CottageError as error:
            values = dict(read(typed, draft=True).values)
            return await self._show(request, Filled(values, {"document": error.detail}, None, None, text), 422)
        return await self._show(request, Filled(read(values, draft=True).values, {}, None, None), 200)

    async def _check(self, request: web.Request, filled: Filled, seconds: float) -> Check | None:
        """The check of the dataset that is chosen, if one is; it goes on by itself."""
        spec = filled.spec or _without_faults(filled)
        if spec is None or spec.dataset is None or spec.dataset.artifact == NO_DATASET:
            return None
        try:
            tokenizer = spec.tokenizer
            await own_origin(request, self._jobs, spec, whole=True)
            if spec.model.from_job is not None:
                own = await self._jobs.tokenizer(spec.model)
                tokenizer = msgspec.structs.replace(own, end=tokenizer.end or own.end)
            if tokenizer.kind == "file" and tokenizer.file is None:
                tokenizer = TokenizerSpec("bytes")  # The tokenizer is not there yet: the rows can be looked at.
            data = spec.dataset
            account_id = principal(request).account_id
            name = await self._jobs.file_name(account_id, data.artifact)
            asked = CheckRequest(data, tokenizer, spec.training.sequence, ends_of(spec.model))
            return await self._checks.get(asked, seconds, name, account_id)
        except CottageError as error:
            return Check(NO_DATASET, "failed", 0, 0, None, error.detail)

    async def _warnings(self, filled: Filled, quote: Quote | None, check: Check | None) -> list[str]:
        """What does not forbid the job, and is worth a second thought."""
        spec, found = filled.spec, []
        if spec is None:
            return []
        if check is not None and check.report is not None and check.report.tokens:
            times = spec.training.tokens / check.report.tokens
            if times > MANY_EPOCHS:
                held = f"{'' if check.report.exact else 'about '}{count(check.report.tokens)} tokens"
                found.append(f"the data has {held}, so each is read {times:,.0f} times: the model learns it by heart")
        if quote is not None and quote.hours_high > spec.deadline_hours:
            long = duration(quote.hours_high * 3600)
            found.append(f"it may take {long}, and the deadline is after {duration(spec.deadline_hours * 3600)}")
        typed = filled.values["budget"].strip()  # Else it is one that stands in while the form is filled.
        return found + (await self._lacking(NewJob(spec, filled.submitter)) if typed else [])

    async def _lacking(self, new: NewJob) -> list[str]:
        """Said before the job is created, which would be refused for it."""
        try:
            async with asyncio.timeout(FUNDS_S):
                await self._jobs.check_funds(new)
        except FundsError as error:
            return [error.detail]
        except (CottageError, TimeoutError):
            return []  # Whatever else is wrong is told where it belongs.
        return []

    async def _cheaper(self, request: web.Request, filled: Filled) -> Sequence[tuple[str, str]]:
        """Choices in words, with the fields of the form that they change, in JSON."""
        if filled.spec is None:
            return ()
        try:
            await own_origin(request, self._jobs, filled.spec)
            found = await self._jobs.choices(filled.spec)
        except CottageError:
            return ()
        return [(choice.text, json.dumps(_in_form(choice.changes))) for choice in found]

    async def _create(self, request: web.Request, filled: Filled, spec: JobSpec) -> web.Response:
        try:
            await own_origin(request, self._jobs, spec, whole=True)
            made = await self._jobs.create(NewJob(spec, filled.submitter), principal(request).account_id)
        except CottageError as error:
            errors = {place(error.field): error.detail}
            return await self._show(request, Filled(filled.values, errors, None, None), error.status)
        raise web.HTTPSeeOther(f"/jobs/{made.id}", headers={hdrs.CACHE_CONTROL: "no-store"})

    async def _price(self, request: web.Request, filled: Filled) -> tuple[Quote | None, str]:
        if filled.spec is None:
            return None, ""
        try:
            await own_origin(request, self._jobs, filled.spec)
            quote = await self._jobs.quote(filled.spec, principal(request).account_id)
        except CottageError as error:
            return None, error.detail
        return quote, ""

    async def _show(self, request: web.Request, filled: Filled, status: int, choices: bool = False) -> web.Response:
        draft = read(filled.values, draft=True)
        quote, problem = await self._price(request, draft)
        check = await self._check(request, draft, REPORT_S)
        if check is not None and check.state not in PENDING and (problem_of_data := _refused(check)):
            errors = {DATASET: problem_of_data, **filled.errors}  # First, as in the form.
            filled = Filled(filled.values, errors, None, filled.submitter, filled.document)
        return self._renderer.page(
            request,
            "submit.html",
            status,
            filled=filled,
            quote=quote,
            problem=problem,
            fits=_fits(quote, draft),
            basic=BASIC,
            full=FULL,
            selects=SELECTS,
            adapter=ADAPTER,
            adapter_selects=ADAPTER_SELECTS,
            fields={field.name: field for field in (*BASIC, *FULL, *ADAPTER, *OTHERS, *SELECTS, *ADAPTER_SELECTS)},
            from_job=FROM_JOB,
            document=filled.document or draft.document,
            check=check,
            warnings=await self._warnings(draft, quote, check),
            choices=await self._cheaper(request, draft) if choices else (),
            presets=_presets(),
            own_config=OWN_CONFIG,
            labels=_labels(),
            network=await self._network.view(),
        )

    async def _typed(self, request: web.Request) -> tuple[dict[str, str], dict[str, str]]:
        """The fields of the form, and errors of files that came with it (which become artifacts on the way).

        Raises: as ``read_parts``.
        """
        typed: dict[str, str] = {}
        failed: dict[str, str] = {}

        async def take(file: FormFile) -> None:
            purpose, target = _FILES[file.input]
            new = NewUpload(MAX_FORM_FILE, untrusted(file.name), purpose)
            try:
                typed[target] = await keep_file(request, self._uploads, new, file.pieces())
            except ForbiddenError:
                raise
            except CottageError as error:
                failed[target] = error.detail

        await read_parts(request, typed, _FILES, take, _LIMITS)
        return typed, failed


def _fits(quote: Quote | None, filled: Filled) -> dict[str, Any]:
    """How the quote looks beside the budget, and which of its problems the submitter can see now."""
    if quote is None:
        return {"problems": (), "proposal": "", "within": True, "typed": False}
    typed = bool(filled.values["budget"].strip()) and "budget" not in filled.errors
    data = None if filled.spec is None else filled.spec.dataset
    missing = data is not None and data.artifact == NO_DATASET
    problems = tuple(problem for problem in quote.problems if not (missing and NO_DATASET[:8] in problem))
    budget = filled.spec.budget if filled.spec is not None else 0
    return {
        "problems": problems,
        "proposal": amount(quote.price_high).replace(",", ""),
        "within": not typed or budget >= quote.price_high,
        "typed": typed,
    }


def _without_faults(filled: Filled) -> JobSpec | None:
    """The draft with the usual values in place of faulty ones: enough to look at the data, unless its own fields are at fault."""
    values = dict(filled.values)
    for _ in range(2):  # The whole document is looked at once every field can be read.
        found = read(values, draft=True)
        if any(name.startswith(("dataset.", "tokenizer.")) for name in found.errors):
            return None
        values |= {name: DEFAULTS[name] for name in found.errors if name in DEFAULTS}
    return read(values, draft=True).spec


def _refused(check: Check | None) -> str:
    """Why a dataset cannot be trained on; nothing where it can."""
    if check is None:
        return ""
    if check.state in PENDING:
        done = f"{100 * check.read // max(1, check.size)} %"
        return f"the data is still being checked, {done} is read: review the job again in a moment"
    return check.report.problem if check.report is not None else check.problem


def _in_form(changes: Mapping[str, str | int | float | None]) -> dict[str, str]:
    """Changes of a document as those of the form."""
    return {place(path): "" if value is None else str(value) for path, value in changes.items()}


def _shown(filled: Filled) -> dict[str, list[tuple[str, str, str]]]:
    """The form in its order: field, label, value; apart what is at its usual value."""
    values, labels = filled.values, _labels()
    idle = {"payer", "name", *({"submitter"} if filled.submitter is None else ())}
    for field, depends, needed in (
        ("model.config", "model.choice", OWN_CONFIG),
        ("model.from_job", "model.choice", FROM_JOB),
        ("model.from_round", "model.choice", FROM_JOB),
        *((field.name, "learns", "lora") for field in (*ADAPTER, *ADAPTER_SELECTS)),
        ("dataset.text_field", "dataset.format", "auto jsonl json csv parquet"),
        ("tokenizer.vocabulary", "tokenizer.kind", "bpe"),
        ("tokenizer.file", "tokenizer.kind", "file"),
    ):
        if values[depends] not in needed.split():
            idle.add(field)
    idle |= set() if values[TASKS] else {"evaluation.limit"}
    order = [
        "dataset.artifact",
        "dataset.format",
        "dataset.text_field",
        "model.choice",
        "model.config",
        "model.hub",
        "model.license",
        "model.weights",
        "model.from_job",
        "model.from_round",
        "learns",
    ]
    order += ["tokenizer.kind", "tokenizer.vocabulary", "tokenizer.file", "budget", "deadline_hours"]
    names = order + [name for name in values if name not in order]
    words = {select.name: dict(select.options) for select in (*SELECTS, *ADAPTER_SELECTS)}
    always = {*order, *(field.name for field in BASIC)}
    shown: dict[str, list[tuple[str, str, str]]] = {"main": [], "rest": []}
    for name in names:
        if values[name] and name in labels and name not in idle:
            usual = name not in always and values[name] == DEFAULTS[name]
            value = words.get(name, {}).get(values[name], values[name])
            shown["rest" if usual else "main"].append((name, labels[name], value))
    return shown


def _labels() -> dict[str, str]:
    more = {
        "model.choice": "Model",
        "model.config": "config.json",
        "model.hub": "Model of the Hub",
        "model.license": "Its licence",
        "model.weights": "Weights to start from",
        "model.from_job": "Start from job",
        "model.from_round": "Checkpoint after round",
        "learns": "What learns",
        "document": "JSON",
        "dataset.artifact": "Dataset",
        "dataset.format": "Format",
        "tokenizer.kind": "Tokenizer",
        "tokenizer.file": "tokenizer.json",
        "submitter": "Wallet",
        "payer": "Paid by",
    }
    return more | {field.name: field.label for field in (*BASIC, *FULL, *ADAPTER, *OTHERS, *SELECTS, *ADAPTER_SELECTS)}


def _presets() -> list[tuple[str, str]]:
    """Name and shape of each preset, the smallest first."""
    said = []
    for name, config in PRESETS.items():
        shape = inspect_config(config)
        words = f"{count(shape.parameters)} parameters: {config['model_type']}, {shape.layers} layers of width {shape.hidden}"
        said.append((shape.parameters, name, words))
    return [(name, words) for _, name, words in sorted(said)]
