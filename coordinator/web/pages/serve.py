"""Serving a model at homes: the form on the page of the job that has made it, its price, and what comes of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, get_type_hints

import msgspec
from aiohttp import hdrs, web

from coordinator.client.deployments import (
    HOURS,
    REPLICAS,
    WEIGHTS_LABELS,
    deployment_document,
    deployment_name,
    point_of,
    usual_budget,
    usual_words,
)
from coordinator.client.text import money
from coordinator.errors import CottageError
from coordinator.services.accounts.budgets import CHANGES, PRICES
from coordinator.services.jobs import ports
from coordinator.web.auth import budgets_of, costs, principal
from coordinator.web.documents import own_origin
from coordinator.web.pages.account import read_form
from coordinator.web.pages.forms import read_wallet, typed_value
from coordinator.web.pages.render import Renderer
from coordinator.web.transfers import job_id
from protocol import codec
from protocol.ids import is_id
from protocol.job.job import JobSpec, ModelSpec, ServeSpec
from protocol.rest.api import JobView, NewJob, Quote
from protocol.serving import LONGEST

MAX_TYPED = 200  # Characters of a field.
MAX_LINES = 1000  # Of one with several lines: as many ids as there may be.


@dataclass(frozen=True)
class ServeField:
    """One input.

    Attributes:
        place: the type and field of the job document that bounds it.
        most: where less is taken here.
        choices: values with their labels, of which one is chosen.
    """

    name: str
    label: str
    help: str
    kind: Literal["whole", "decimal", "amount", "text", "choice", "job", "jobs"]
    place: tuple[type[msgspec.Struct], str] | None
    most: int | None = None
    choices: tuple[tuple[str, str], ...] = ()


MAIN = (
    ServeField(
        "replicas",
        "Replicas",
        "How often it is held: by one node, or by several together.",
        "whole",
        (ServeSpec, "replicas"),
    ),
    ServeField("hours", "Hours", "Until it ends.", "decimal", (JobSpec, "deadline_hours")),
    ServeField("budget", "Budget", "The most that is paid; the rest comes back.", "amount", (JobSpec, "budget")),
)
MORE = (
    ServeField("round", "Checkpoint after round", "Empty: the finished model.", "whole", (ModelSpec, "from_round")),
    ServeField(
        "context",
        "Length",
        f"Tokens of a prompt with its answer. Empty: the model's own, {LONGEST:,} at most.",
        "whole",
        (ServeSpec, "context"),
        LONGEST,
    ),
    ServeField(
        "stages",
        "Nodes of a replica",
        "Each holds some layers. Empty: one where the model fits, else as few as it fits.",
        "whole",
        (ServeSpec, "stages"),
    ),
    ServeField(
        "weights",
        "Weights",
        "How nodes hold its matrices. Fewer bits take less memory, and answer slower and a little otherwise.",
        "choice",
        (ServeSpec, "weights"),
        choices=tuple(WEIGHTS_LABELS.items()),
    ),
    ServeField(
        "idle",
        "Minutes without a request",
        "Then its nodes are let go until somebody asks. Empty: they stay.",
        "whole",
        (ServeSpec, "idle_minutes"),
    ),
    ServeField(
        "adapters",
        "Adapters",
        "Ids of jobs that adapted this very model, one a line. Each answers under a name of its own.",
        "jobs",
        (ServeSpec, "adapters"),
    ),
    ServeField(
        "draft",
        "Draft model",
        "Id of a job with a small model of the same tokenizer, ID@N for its checkpoint after N rounds. It speeds up replicas of "
        "several nodes; answers stay the same.",
        "job",
        (ServeSpec, "draft"),
    ),
    ServeField("name", "Name", "How you find it again.", "text", (JobSpec, "name")),
    ServeField("submitter", "Wallet that pays", "Empty: the coordinator's test wallet.", "text", None),
)
PLACES: Final[Mapping[str, str]] = {
    "serve.replicas": "replicas",
    "deadline_hours": "hours",
    "budget": "budget",
    "model.from_round": "round",
    "serve.context": "context",
    "serve.stages": "stages",
    "serve.weights": "weights",
    "serve.idle_minutes": "idle",
    "serve.adapters": "adapters",
    "serve.draft": "draft",
    "name": "name",
    "submitter": "submitter",
}
"""The form's field for one of the job document."""
_LABELS: Final = {one.name: one.label for one in (*MAIN, *MORE)}


@dataclass(frozen=True)
class ServeAsked:
    """What was typed, and what it means: a document and its payer, or the errors by field.

    Attributes:
        document: without a budget where none was typed.
        opened: whether something of the less usual fields is to be seen.
    """

    values: Mapping[str, str]
    errors: Mapping[str, str]
    document: Mapping[str, Any] | None = None
    submitter: str | None = None
    opened: bool = False
    main: tuple[ServeField, ...] = MAIN
    more: tuple[ServeField, ...] = MORE
    labels: Mapping[str, str] = field(default_factory=lambda: _LABELS)


def usual(job: JobView) -> ServeAsked:
    """The form as it is before anybody types: the finished model, or the newest checkpoint where there is none yet."""
    round_ = "" if job.model is not None or not job.checkpoint else str(job.checkpoint)
    values = {"replicas": str(REPLICAS), "hours": f"{HOURS:g}", "budget": "", "round": round_, "context": ""}
    values |= {"stages": "", "weights": "float32", "adapters": "", "draft": ""}
    return ServeAsked(values | {"idle": "", "name": deployment_name(job.name), "submitter": ""}, {})


def read(typed: Mapping[str, str], job: JobView) -> ServeAsked:
    """Make a job document of a form; what is missing is as ``usual``."""
    kinds = {one.name: one.kind for one in (*MAIN, *MORE)}
    values = {
        name: typed.get(name, value).strip()[: MAX_LINES if kinds[name] == "jobs" else MAX_TYPED]
        for name, value in usual(job).values.items()
    }
    errors: dict[str, str] = {}
    found = {one.name: _value(one, values[one.name], errors) for one in (*MAIN, *MORE) if one.place is not None}
    submitter = read_wallet(values, errors) if values["submitter"] else None
    opened = any(one.name in errors for one in MORE)
    if errors:
        return ServeAsked(values, errors, opened=opened)
    document = deployment_document(
        job.id,
        found["budget"] or 0,
        found["replicas"] or REPLICAS,
        found["hours"] or HOURS,
        found["round"],
        found["context"],
        found["name"] or deployment_name(job.name),
        found["idle"],
        found["stages"],
        found["weights"] or "float32",
        found["adapters"] or (),
        found["draft"],
    )
    return ServeAsked(values, errors, document, submitter, opened)


def _value(one: ServeField, text: str, errors: dict[str, str]) -> Any:
    """What was typed as a value within its bounds, None where nothing was."""
    if not text or one.place is None:
        return None
    if one.kind == "jobs":
        return _jobs(one, text, errors)
    if one.kind == "job":
        if is_id(point_of(text)[0]):
            return text
        errors[one.name] = f"{text[:40]!r} is no job: write the id of one, 32 hexadecimal digits"
        return None
    try:
        kind, name = one.place
        found = codec.convert(typed_value(one.kind, text), get_type_hints(kind, include_extras=True)[name])
        if one.most is None or found <= one.most:
            return found
        errors[one.name] = f"{found:,} is too many: write {one.most:,} at most"
    except codec.MessageError as error:
        errors[one.name] = error.words
    except ValueError as error:
        errors[one.name] = str(error)
    return None


def _jobs(one: ServeField, text: str, errors: dict[str, str]) -> list[str]:
    """Ids of jobs, one a line."""
    jobs = text.split()
    if strange := next((job for job in jobs if not is_id(job)), None):
        errors[one.name] = f"{strange[:40]!r} is no job: write ids of 32 hexadecimal digits, one a line"
        return []
    try:
        codec.convert({one.name: [{"job": job} for job in jobs]}, ServeSpec)
    except codec.MessageError as error:
        errors[one.name] = error.words
    return jobs


class ServePages:
    """Handlers of the form."""

    def __init__(self, jobs: ports.JobsPort, network: ports.NetworkPort, renderer: Renderer) -> None:
        self._jobs = jobs
        self._network = network
        self._renderer = renderer

    def register(self, app: web.Application) -> None:
        """Add the form to ``app``."""
        app.router.add_get("/jobs/{job}/serve", self.form)
        app.router.add_post("/jobs/{job}/serve", self.send)
        app.router.add_post("/jobs/{job}/serve/quote", self.quote)

    @costs(PRICES)
    async def form(self, request: web.Request) -> web.Response:
        """The form on a page of its own."""
        job = await self._jobs.get(job_id(request))
        return await self._show(request, job, usual(job), 200)

    @costs(PRICES)
    async def quote(self, request: web.Request) -> web.Response:
        """The price of what is typed so far: a part of the page."""
        typed = await read_form(request)
        asked = read(typed, await self._jobs.get(job_id(request)))
        quote, proposal, problem = await self._price(request, asked)
        return self._renderer.page(
            request, "serve_quote.html", asked=asked, quote=quote, proposal=proposal, problem=problem
        )

    @costs(PRICES)
    async def send(self, request: web.Request) -> web.Response:
        """Show the price, or create the deployment, which is funded on its own page."""
        typed = await read_form(request)
        job = await self._jobs.get(job_id(request))
        asked = read(typed, job)
        if asked.document is None:
            return await self._show(request, job, asked, 422)
        if typed.get("action") == "quote":
            return await self._show(request, job, asked, 200)
        if not asked.document["budget"]:
            quote, proposal, _ = await self._price(request, asked)
            few = "" if quote is None else f": {money(proposal)} is {usual_words(quote, proposal)}"
            errors = {"budget": f"say how much it may cost at most{few}"}
            return await self._show(request, job, ServeAsked(asked.values, errors), 422)
        try:
            spec: JobSpec = codec.convert(asked.document, JobSpec)
            await own_origin(request, self._jobs, spec, whole=True)
            await budgets_of(request).take(CHANGES, principal(request).account_id)
            made = await self._jobs.create(NewJob(spec, asked.submitter), principal(request).account_id)
        except CottageError as error:
            place = PLACES.get(error.field.removeprefix("spec."), "")
            opened = place in {one.name for one in MORE}
            refused = ServeAsked(asked.values, {place: error.detail}, opened=opened)
            return await self._show(request, job, refused, error.status)
        raise web.HTTPSeeOther(f"/jobs/{made.id}", headers={hdrs.CACHE_CONTROL: "no-store"})

    async def _price(self, request: web.Request, asked: ServeAsked) -> tuple[Quote | None, int, str]:
        """The quote, the budget that is proposed where none was typed, and why there is no quote."""
        if asked.document is None:
            return None, 0, ""
        document, proposal = dict(asked.document), 0
        try:
            if not document["budget"]:
                least = await self._quoted(request, document | {"budget": 1})
                document["budget"] = proposal = usual_budget(least)
            return await self._quoted(request, document), proposal, ""
        except CottageError as error:
            return None, 0, error.detail

    async def _quoted(self, request: web.Request, document: Mapping[str, Any]) -> Quote:
        spec: JobSpec = codec.convert(document, JobSpec)
        await own_origin(request, self._jobs, spec)
        return await self._jobs.quote(spec, principal(request).account_id)

    async def _show(self, request: web.Request, job: JobView, asked: ServeAsked, status: int) -> web.Response:
        asked = replace(asked, document=read(asked.values, job).document)
        quote, proposal, problem = await self._price(request, asked)
        return self._renderer.page(
            request,
            "serve.html",
            status,
            job=job,
            asked=asked,
            quote=quote,
            proposal=proposal,
            problem=problem,
            network=await self._network.view(),
        )
