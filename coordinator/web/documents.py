"""Job documents at the door: YAML or JSON, bounded in bytes, depth and numbers before anything is built from them."""

import asyncio
import math
import re
from typing import Any, TypeVar

import msgspec
import yaml
from aiohttp import web

from coordinator.errors import InvalidError, NotFoundError, TooLargeError
from coordinator.services.artifacts.file_ownership import sources
from coordinator.services.jobs import ports
from coordinator.web.auth import principal
from coordinator.web.http import MAX_JSON_BYTES, read_body
from protocol import codec
from protocol.ids import NOT_SENT
from protocol.job.job import JobSpec
from protocol.refusals import yaml_place
from protocol.rest.api import NewJob

T = TypeVar("T")

MAX_YAML_BYTES = 256 << 10  # YAML costs far more to parse than JSON.
MAX_DEPTH = 24
MAX_ENTRIES = 20_000  # Everything in the document counted; a large config.json has some hundreds.
_YAML_TYPES = frozenset({"application/yaml", "application/x-yaml", "text/yaml"})
_FLOAT = re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The safe loader, which also reads ``3e-3`` as the number that whoever wrote it meant."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789"))


async def read_document(request: web.Request, kind: type[T]) -> T:
    """The body as a ``kind``, from JSON or YAML as ``Content-Type`` says.

    Raises:
        InvalidError: of another type, malformed, or beyond the bounds; the message names the place.
        TooLargeError: beyond ``MAX_JSON_BYTES`` or ``MAX_YAML_BYTES``.
        MessageError: a field is missing, unknown or out of its bounds.
    """
    if request.content_type in _YAML_TYPES:
        value = await asyncio.to_thread(parse_yaml, await read_body(request, MAX_YAML_BYTES))
        document = codec.convert(value, kind)
    elif request.content_type == "application/json":
        document = codec.decode_json(await read_body(request), kind, MAX_JSON_BYTES)
    else:
        raise InvalidError(
            f"Content-Type is {request.content_type[:80]!r}: send application/json or application/yaml", "Content-Type"
        )
    if isinstance(document, JobSpec):
        return _sendable(document)  # type: ignore[return-value]
    if isinstance(document, NewJob):
        return msgspec.structs.replace(document, spec=_sendable(document.spec))  # type: ignore[return-value]
    return document  # type: ignore[no-any-return]


def _sendable(spec: JobSpec) -> JobSpec:
    """The document, as nodes can be sent it; raises InvalidError where something in it has no such form."""
    check_plain(spec.model.config, "model.config")
    check_plain(spec.model.generation, "model.generation")
    check_plain(spec.tokenizer.settings, "tokenizer.settings", codec.LARGEST_BITS)
    if spec.serve is not None and spec.serve.draft is not None:
        check_plain(spec.serve.draft.config, "serve.draft.config")
        check_plain(spec.serve.draft.generation, "serve.draft.generation")
    settings = codec.as_packed(spec.tokenizer.settings)
    return msgspec.structs.replace(spec, tokenizer=msgspec.structs.replace(spec.tokenizer, settings=settings))


async def own_origin(request: web.Request, jobs: ports.JobsPort, spec: JobSpec, whole: bool = False) -> None:
    """See that the jobs whose models another one names are the caller's own, and the files that it names too.

    Args:
        whole: the dataset too, which a quote does not need yet, nor weights that are ``NOT_SENT``.
    Raises:
        NotFoundError: one is not, or is not there.
    """
    account_id = principal(request).account_id
    if spec.model.from_job is not None:
        await jobs.check_owner(spec.model.from_job, account_id)
    beside = [] if spec.serve is None else [("serve.adapters", one.job) for one in spec.serve.adapters]
    if spec.serve is not None and spec.serve.draft is not None and spec.serve.draft.from_job is not None:
        beside.append(("serve.draft", spec.serve.draft.from_job))
    for field, job in beside:
        try:
            await jobs.check_owner(job, account_id)
        except NotFoundError as error:
            raise NotFoundError(error.detail, field) from error
    wanted = sources(spec)
    priced = [pair for pair in wanted if pair[0] != "dataset.artifact" and pair[1] != NOT_SENT]
    await jobs.check_files(account_id, wanted if whole else priced)


def parse_yaml(data: bytes) -> Any:
    """Plain data from one YAML document.

    Raises:
        InvalidError: malformed, with line and column; uses aliases; too deep, too large, or with numbers JSON has not.
        TooLargeError: more than ``MAX_YAML_BYTES``.
    """
    if len(data) > MAX_YAML_BYTES:
        raise TooLargeError(f"a YAML document of {len(data):,} bytes: at most {MAX_YAML_BYTES:,} are taken")
    try:
        text = data.decode()
        _refuse_aliases(text)
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of the safe loader
    except UnicodeDecodeError as error:
        raise InvalidError(f"the YAML document is not UTF-8 at byte {error.start:,}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidError(f"the YAML document cannot be read{yaml_place(error)}") from error
    check_plain(value)
    return value


def check_plain(value: Any, where: str = "", bits: int = 63) -> None:
    """See that plain data would survive a round trip through JSON and a database.

    Args:
        where: the field that they are of.
        bits: of an integer, at most.
    Raises:
        InvalidError: too deep or too large, a number that is not finite or has more bits, a zero character, another type.
    """
    queue: list[tuple[Any, int, str]] = [(value, 0, where)]
    count = 0
    while queue:
        item, depth, place = queue.pop()
        count += 1
        if depth > MAX_DEPTH or count + len(queue) > MAX_ENTRIES:
            raise InvalidError(
                f"the document is deeper than {MAX_DEPTH} levels or has more than {MAX_ENTRIES:,} entries"
            )
        if isinstance(item, dict):
            queue += [(key, depth + 1, place) for key in item]
            queue += [(part, depth + 1, f"{place}.{str(key)[:40]}".lstrip(".")) for key, part in item.items()]
        elif isinstance(item, list):
            queue += [(part, depth + 1, f"{place}[{number}]") for number, part in enumerate(item)]
        else:
            _check_scalar(item, f"{place}: " if place else "", bits)


def _check_scalar(item: Any, at: str, bits: int) -> None:
    match item:
        case None | bool():
            return
        case str():
            if "\0" in item:
                raise InvalidError(f"{at}a text holds a zero character: {item[:40]!r}")
        case int():
            if not -(2**bits) <= item < 2**bits:
                raise InvalidError(f"{at}a number of {item.bit_length()} bits: at most {bits} are taken")
        case float():
            if not math.isfinite(item):
                raise InvalidError(f"{at}the number {item}: only finite numbers are taken")
        case _:
            raise InvalidError(
                f"{at}a value of type {type(item).__name__} ({str(item)[:40]!r}): write it as text, in quotes"
            )


def _refuse_aliases(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            raise InvalidError(f"the YAML document uses the alias *{str(event.anchor)[:40]}: write the value out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise InvalidError(f"the YAML document is deeper than {MAX_DEPTH} levels")
