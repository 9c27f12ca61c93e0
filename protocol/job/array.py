"""Array jobs: the ``array`` section of a job's document, and the list of its elements.

An *array job* runs one command of one container image many times, each time with other inputs. Each time is an *element*. The
list of elements is an artifact of its own, one JSON object a line, since there are up to ten thousand::

    {"name": "frame-001", "inputs": {"frame-001.json": "<SHA-256>"}, "arguments": ["--samples", "64"]}

What the command finds in its container:

    ``/in``     read-only: the array's own inputs (``ArraySpec.inputs``) and those of the element, at their paths
    ``/out``    empty, and the working directory: what it leaves there is the element's result (``protocol.job.results``)
    environment ``COTTAGE_ELEMENT`` (its index, from 0), ``COTTAGE_NAME``, then the array's own, then the element's own

There is no network, and nothing but ``/out`` and ``/tmp`` can be written to.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from protocol.codec import MessageError, decode_json, encode_json
from protocol.ids import Digest, NodeAddress

MAX_ELEMENTS = 10_000
MAX_BATCH = 256
MAX_LIST_BYTES = 32 << 20  # Of a list of elements: 3 KB each where there are ten thousand.
MAX_LINE_BYTES = 16 << 10  # Of one element: it crosses in one message with others.
INPUTS, OUTPUT = "/in", "/out"
"""Where a container has what it reads, and what it leaves."""
RESULT = "result"
"""Folder below ``INPUTS`` in which a checker finds the files of the result that it looks at."""
LOOKS = 2  # Owners that must come to the same verdict about a result, where a checker decides.

_SEGMENT = r"[^\x00-\x1f\x7f/\\:.][^\x00-\x1f\x7f/\\:]{0,119}"
RelativePath = Annotated[str, Meta(max_length=240, pattern=rf"^{_SEGMENT}(/{_SEGMENT}){{0,7}}$")]
"""Of a file below a folder: no part begins with a dot, so none leads out of it."""
ElementName = Annotated[str, Meta(max_length=120, pattern=rf"^{_SEGMENT}$")]
"""Of an element, and of the folder of its result."""
Argument = Annotated[str, Meta(max_length=4096, pattern=r"^[^\x00]*$")]
VariableName = Annotated[str, Meta(max_length=100, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Variables = Annotated[dict[VariableName, Argument], Meta(max_length=64)]
ElementIndex = Annotated[int, Meta(ge=0, lt=MAX_ELEMENTS)]
MAX_INPUTS = 64  # Of one element.
Inputs = Annotated[dict[RelativePath, Digest], Meta(max_length=MAX_INPUTS)]
"""Path below ``/in`` -> artifact."""
VerifiedBy = Literal["replicated", "checked", "spot-checked", "trusted"]
"""How results are made sure of.

``replicated``: so many distinct owners (``ArraySpec.owners``) must come to the same result, byte for byte; where they differ,
further owners run it. ``checked``: one owner runs each element, and a program of the submitter's own (``ArraySpec.checker``)
decides at two further owners whether its result is taken. ``spot-checked``: one owner runs each element, and a part of them, by
lot and more often for nodes without standing, is run by a second one. ``trusted``: owners that the submitter names run each
element once.
"""


class CheckerSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A program that decides whether a result is taken: it is if the program ends with 0.

    It has what the element had, the files of the result in ``/in/result``, and ``COTTAGE_SEED``: 32 hexadecimal digits which
    nobody knew before the result was there, the same for all who look at it. What it leaves in ``/out`` is a part of its
    verdict: two owners must come to the same bytes. ``command``: as ``ArraySpec.command``, with the element's arguments behind
    it. ``image``: the artifact of its image; None: the array's own. ``seconds``: after so long it is ended. ``estimate``:
    seconds that it takes on a usual node.
    """

    command: Annotated[tuple[Argument, ...], Meta(min_length=1, max_length=64)]
    image: Digest | None = None
    seconds: Annotated[float, Meta(ge=1, le=86_400)] = 600.0
    estimate: Annotated[float, Meta(gt=0, le=86_400)] | None = None


class ArraySpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A command that runs once for each element, see ``coordinator.services.arrays``.

    ``image``: the artifact of an OCI archive. ``command``: with ``{input}`` (path of the element's first input), ``{name}`` and
    ``{index}`` filled in, and the element's arguments behind it. ``elements``: the artifact of their list; ``count``: how many
    they are. ``inputs``, ``environment``: of all elements. ``memory_mb``, ``disk_mb``: of one, its scratch and result together.
    ``seconds``: after so long an element is ended. ``retries``: how often one that fails is run again. ``owners``: that must
    agree where results are ``replicated``. ``checker``: what decides where they are ``checked``. ``trusted``: payout addresses
    of the owners that may run it. ``estimate``: seconds that one takes on a usual node, for the price that a quote shows.
    ``batch``: how many elements share a container, one after the other; 1: each has its own.
    """

    image: Digest
    command: Annotated[tuple[Argument, ...], Meta(min_length=1, max_length=64)]
    elements: Digest
    count: Annotated[int, Meta(ge=1, le=MAX_ELEMENTS)]
    inputs: Inputs = {}
    environment: Variables = {}
    gpu: bool = False
    memory_mb: Annotated[int, Meta(ge=16, le=1 << 20)] = 1024
    disk_mb: Annotated[int, Meta(ge=1, le=1 << 20)] = 1024
    seconds: Annotated[float, Meta(ge=1, le=86_400)] = 600.0
    retries: Annotated[int, Meta(ge=0, le=10)] = 2
    verify: VerifiedBy = "replicated"
    owners: Annotated[int, Meta(ge=2, le=7)] = 2
    checker: CheckerSpec | None = None
    trusted: Annotated[tuple[NodeAddress, ...], Meta(max_length=64)] = ()
    estimate: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    batch: Annotated[int, Meta(ge=1, le=MAX_BATCH)] = 1

    def __post_init__(self) -> None:
        """Refuse a choice of owners that does nothing, or leaves nobody."""
        if self.batch > 1 and self.verify == "spot-checked":
            raise ValueError(
                f"array.batch is {self.batch} and array.verify spot-checked, where one word is believed: leave batch out, "
                "or have results replicated or checked"
            )
        if self.verify == "trusted" and not self.trusted:
            raise ValueError("array.verify is trusted: name the payout addresses of those owners in array.trusted")
        if self.verify != "trusted" and self.trusted:
            raise ValueError(f"array.trusted names owners, and array.verify is {self.verify}: set it to trusted")
        if self.verify == "checked" and self.checker is None:
            raise ValueError("array.verify is checked: name the program that decides in array.checker.command")
        if self.verify != "checked" and self.checker is not None:
            raise ValueError(f"array.checker names a program, and array.verify is {self.verify}: set it to checked")
        if self.checker is not None and (lies := in_the_way(self.inputs)):
            raise ValueError(f"array.inputs has {lies!r}, where a checker finds a result: give it another path")

    @property
    def copies(self) -> int:
        """Owners that run each element where nothing goes wrong, checks by lot not counted."""
        return self.owners if self.verify == "replicated" else 1

    def limit(self, look: bool) -> float:
        """Seconds after which a run is ended. ``look``: its checker runs, at a result."""
        return self.checker.seconds if look and self.checker is not None else self.seconds


class ArrayElement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One line of the list of elements. Names are unique."""

    name: ElementName
    inputs: Inputs = {}
    arguments: Annotated[tuple[Argument, ...], Meta(max_length=64)] = ()
    environment: Variables = {}


def element_lines(elements: Sequence[ArrayElement]) -> bytes:
    """The list of elements as its artifact has it."""
    return b"".join(encode_json(one) + b"\n" for one in elements)


def read_elements(data: bytes) -> tuple[ArrayElement, ...]:
    """The elements of a list.

    Raises:
        MessageError: a line is none, or too long, a name comes twice, or there are none or too many.
    """
    found: list[ArrayElement] = []
    seen: dict[str, int] = {}
    for number, line in _lines(data):
        if len(found) == MAX_ELEMENTS:
            raise MessageError(
                f"the list has more than {MAX_ELEMENTS:,} elements: make several arrays of it", "array.elements"
            )
        try:
            element: ArrayElement = decode_json(line, ArrayElement, MAX_LINE_BYTES)
        except MessageError as error:
            raise MessageError(f"line {number} of the list of elements: {error}", "array.elements") from None
        if (before := seen.setdefault(element.name, number)) != number:
            where = f"lines {before} and {number} of the list of elements"
            raise MessageError(f"{where} have one name: give each element its own", "array.elements")
        found.append(element)
    if not found:
        raise MessageError("the list of elements is empty: it has one JSON object a line", "array.elements")
    return tuple(found)


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    return ((number, line) for number, line in enumerate(data.split(b"\n"), 1) if line.strip())


def in_the_way(inputs: Iterable[str]) -> str | None:
    """The input that lies where a checker finds a result; None: none does."""
    return next((path for path in inputs if path.split("/")[0] == RESULT), None)


def command_of(array: ArraySpec, index: int, element: ArrayElement, check: bool = False) -> tuple[str, ...]:
    """What runs for an element, program first. ``check``: what looks at a result of it."""
    command = array.checker.command if check and array.checker is not None else array.command
    first = next(iter(element.inputs), None)
    filled = {"{name}": element.name, "{index}": str(index)} | ({"{input}": f"{INPUTS}/{first}"} if first else {})
    return (*(_filled(part, filled) for part in command), *element.arguments)


def _filled(part: str, values: Mapping[str, str]) -> str:
    for placeholder, value in values.items():
        part = part.replace(placeholder, value)
    return part


def environment_of(array: ArraySpec, index: int, element: ArrayElement, seed: str | None = None) -> dict[str, str]:
    """The variables that an element's command sees, beside its image's own. ``seed``: of what looks at a result."""
    own = {"COTTAGE_ELEMENT": str(index), "COTTAGE_NAME": element.name}
    return own | array.environment | element.environment | ({} if seed is None else {"COTTAGE_SEED": seed})


def inputs_of_element(array: ArraySpec, element: ArrayElement) -> dict[str, Digest]:
    """Path below ``/in`` -> artifact, the element's own before the array's."""
    return array.inputs | element.inputs
