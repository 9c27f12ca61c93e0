"""The form of an array job: files and words arrive, the price is shown, the job is made."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from aiohttp import hdrs, web

from common.untrusted_text import untrusted
from coordinator.client.arrays import BUNDLE_BYTES, MAX_BUNDLED, SMALL_BYTES, array_budget, elements_of_files
from coordinator.client.errors import ClientError
from coordinator.client.text import amount
from coordinator.errors import CottageError, ForbiddenError
from coordinator.services.accounts.budgets import CHANGES, PRICES, UPLOADS
from coordinator.services.arrays.published_images import PublishedImages
from coordinator.services.artifacts.uploads import UploadService
from coordinator.services.jobs import ports
from coordinator.web.arrays.form import (
    BOUNDS,
    JOB,
    MORE,
    PROGRAM,
    SURE,
    ArrayAsked,
    again,
    place,
    read,
    usual,
)
from coordinator.web.auth import budgets_of, costs, principal
from coordinator.web.documents import own_origin
from coordinator.web.pages.form_parts import FormFile, FormLimits, keep_file, read_parts
from coordinator.web.pages.render import Renderer
from protocol import codec
from protocol.ids import Digest, is_id
from protocol.job.array import MAX_INPUTS, element_lines
from protocol.job.job import JobSpec
from protocol.rest.api import NewJob, NewUpload, Quote

# A file in a plain form cannot resume, and a page says nothing while they come; `cottage map` sends more, and larger ones.
MAX_FORM_FILES, MAX_FORM_FILE = 1_000, 256 << 20
_LIMITS: Final = FormLimits(60, 256 << 10, "submit it as a document")
_FILES: Final[Mapping[str, tuple[str, int]]] = {"files": ("elements", MAX_FORM_FILES), "shared": ("inputs", MAX_INPUTS)}
"""Inputs of files: the field that takes what becomes of them, and how many there may be."""


class ArraySubmit:
    """Handlers of the form."""

    def __init__(
        self,
        jobs: ports.JobsPort,
        network: ports.NetworkPort,
        uploads: UploadService,
        images: PublishedImages,
        renderer: Renderer,
    ) -> None:
        self._jobs, self._network, self._uploads, self._images = jobs, network, uploads, images
        self._renderer = renderer

    def register(self, app: web.Application) -> None:
        """Add the form to ``app``."""
        app.router.add_get("/submit/array", self.form)
        app.router.add_post("/submit/array", self.send)

    @costs(PRICES)
    async def form(self, request: web.Request) -> web.Response:
        """The empty form; with ``from`` that of an earlier array, with its files."""
        earlier, asked = request.query.get("from", ""), read(usual(), draft=True)
        if is_id(earlier):
            await self._jobs.check_owner(earlier, principal(request).account_id)
            spec = (await self._jobs.get(earlier)).spec
            if spec.array is not None:
                asked = again(spec)
        return await self._show(request, asked, 200)

    @costs(PRICES)
    async def send(self, request: web.Request) -> web.Response:
        """Take the files, and show the price; or create the job, which is funded on its own page."""
        typed, failed = await self._typed(request)
        priced = typed.get("action") != "create"
        asked = read(typed, draft=priced)
        if failed or (asked.document is None and not priced):
            return await self._show(request, replace(asked, errors={**asked.errors, **failed}), 422)
        if asked.document is None or priced:
            return await self._show(request, asked, 200)
        try:
            document = dict(asked.document)
            document["budget"] = document["budget"] or array_budget(await self._quoted(request, document))
            spec: JobSpec = codec.convert(document, JobSpec)
            await own_origin(request, self._jobs, spec, whole=True)
            await budgets_of(request).take(CHANGES, principal(request).account_id)
            made = await self._jobs.create(NewJob(spec, asked.submitter), principal(request).account_id)
        except CottageError as error:
            return await self._show(request, replace(asked, errors={place(error.field): error.detail}), error.status)
        raise web.HTTPSeeOther(f"/jobs/{made.id}", headers={hdrs.CACHE_CONTROL: "no-store"})

    async def _quoted(self, request: web.Request, document: Mapping[str, object]) -> Quote:
        spec: JobSpec = codec.convert({**document, "budget": document["budget"] or 1}, JobSpec)
        await own_origin(request, self._jobs, spec)
        return await self._jobs.quote(spec, principal(request).account_id)

    async def _price(self, request: web.Request, asked: ArrayAsked) -> tuple[Quote | None, int, str]:
        """The quote, the budget that it is for, and why there is no quote."""
        if asked.document is None:
            return None, 0, ""
        try:
            budget = asked.document["budget"] or array_budget(await self._quoted(request, asked.document))
            return await self._quoted(request, {**asked.document, "budget": budget}), budget, ""
        except CottageError as error:
            return None, 0, error.detail

    async def _show(self, request: web.Request, asked: ArrayAsked, status: int) -> web.Response:
        quote, budget, problem = await self._price(request, asked)
        return self._renderer.page(
            request,
            "array_submit.html",
            status,
            asked=asked,
            quote=quote,
            budget=budget,
            proposal=amount(budget).replace(",", ""),
            problem=problem,
            parts={"program": PROGRAM, "bounds": BOUNDS, "more": MORE, "sure": SURE, "job": JOB},
            images=await self._images.of_account(principal(request).account_id),
            most=(MAX_FORM_FILES, MAX_FORM_FILE >> 20, int(UPLOADS.burst)),
            network=await self._network.view(),
        )

    # --- what arrives -----------------------------------------------------------------------------------------------------

    async def _typed(self, request: web.Request) -> tuple[dict[str, str], dict[str, str]]:
        """The fields, with what has become of files among them, and errors of files.

        Raises: as ``read_parts``.
        """
        typed: dict[str, str] = {}
        failed: dict[str, str] = {}
        taken: dict[str, dict[str, Digest]] = {name: {} for name in _FILES}

        async def take(file: FormFile) -> None:
            await self._take(request, file, taken[file.input], failed)

        await read_parts(request, typed, _FILES, take, _LIMITS)
        if taken["shared"] and "inputs" not in failed:
            typed["inputs"] = codec.encode_json(taken["shared"]).decode()
        if taken["files"] and "elements" not in failed:
            await self._list(request, taken["files"], typed, failed)
        return typed, failed

    async def _take(
        self, request: web.Request, file: FormFile, taken: dict[str, Digest], failed: dict[str, str]
    ) -> None:
        """Keep one file. Once one of an input has failed, the others of it are read and forgotten."""
        target, most = _FILES[file.input]
        name = Path(file.name.replace("\\", "/")).name
        if target not in failed:
            if len(taken) >= most:
                failed[target] = f"more than {most:,} files: `cottage map` sends more"
            elif name in taken:
                failed[target] = f"two files are called {name[:80]!r}: rename one"
        if target not in failed:
            new = NewUpload(MAX_FORM_FILE, untrusted(name), "input")
            try:
                taken[name] = await keep_file(request, self._uploads, new, file.pieces(), _as_uploads)
            except ForbiddenError:
                raise
            except CottageError as error:
                failed[target] = f"{name[:80]}: {error.detail}"

    async def _list(
        self, request: web.Request, taken: Mapping[str, Digest], typed: dict[str, str], failed: dict[str, str]
    ) -> None:
        """The list of elements, one for each file, as an artifact of its own."""
        try:
            digests = {Path(name): digest for name, digest in taken.items()}
            # Names of files elsewhere: here nothing is looked for under them.
            lines = element_lines(elements_of_files({path: {path.name: path} for path in digests}, digests))
            new = NewUpload(len(lines), untrusted("elements.jsonl"), "input")
            elements = await keep_file(request, self._uploads, new, _once(lines))
        except ClientError as error:
            failed["elements"] = str(error)
        except CottageError as error:
            failed["elements"] = error.detail
        else:
            typed |= {"elements": elements, "count": str(len(taken))}


def _as_uploads(size: int) -> float:
    """As how many uploads a file counts: a small one as a part of an archive, in which ``cottage map`` sends them."""
    return 1.0 if size > SMALL_BYTES else max(1 / MAX_BUNDLED, size / BUNDLE_BYTES)


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data
