"""What an array job costs, whether the network can run it, and whether everything that its document names is there."""

import math
from collections.abc import Sequence
from statistics import median

from coordinator.client.text import money
from coordinator.config import Config
from coordinator.domain import pricing
from coordinator.domain.arrays.looks import expected_looks
from coordinator.domain.arrays.tally import expected_checks
from coordinator.domain.arrays.votes import rules_of
from coordinator.domain.placement import Candidate
from coordinator.errors import InvalidError, NotFoundError
from coordinator.services.arrays.open_arrays import elements_of
from coordinator.services.arrays.published_images import PURPOSE, stated_at
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.file_ownership import FileOwnership
from coordinator.services.jobs.quotes import OPENING_LAMPORTS
from coordinator.services.network.market_price import MarketRate
from protocol.codec import MessageError
from protocol.ids import Digest
from protocol.job.array import ArraySpec, in_the_way
from protocol.job.job import JobSpec
from protocol.rest.api import Quote

IMAGE = "image"
"""The name of the image among the files that a node is given."""
CHECKER = "checker"
"""The name of the checker's image among them, where it is another one."""


async def files_of(
    array: ArraySpec, account_id: str, artifacts: ArtifactStore, ownership: FileOwnership
) -> dict[str, Digest]:
    """The files that its nodes are given, once everything that it names was found to be there, and the account's.

    Raises:
        NotFoundError: something is not there.
        InvalidError: an image is none; the list of elements is none, or has another number of them.
    """
    files = {IMAGE: array.image}
    if array.checker is not None and array.checker.image not in (None, array.image):
        files[CHECKER] = array.checker.image
    fields = [(f"array.{name}" if name == IMAGE else "array.checker.image", digest) for name, digest in files.items()]
    for field, digest in (*fields, ("array.elements", array.elements)):
        if not await artifacts.has(digest):
            raise NotFoundError(f"there is no file {digest}: upload it first", field)
    for field, digest in fields:
        # What came as an image was looked through then; another file may be one, too.
        if await ownership.purpose(account_id, digest) not in (None, PURPOSE):
            await stated_at(artifacts, digest, field)
    try:
        elements = await elements_of(artifacts, array.elements)
    except MessageError as error:
        raise InvalidError(str(error), "array.elements") from None
    if len(elements) != array.count:
        raise InvalidError(
            f"the list has {len(elements):,} elements, and array.count is {array.count:,}", "array.count"
        )
    named = {digest: f"array.inputs.{path}" for path, digest in array.inputs.items()}
    for element in elements:
        named |= {digest: f"array.elements: {path} of {element.name}" for path, digest in element.inputs.items()}
        if array.checker is not None and (lies := in_the_way(element.inputs)):
            where = f"{lies!r} of {element.name} lies where a checker finds a result"
            raise InvalidError(f"the input {where}: give it another path", "array.elements")
    await ownership.check(account_id, [(field, digest) for digest, field in named.items()])
    for digest, field in named.items():
        if not await artifacts.has(digest):
            raise NotFoundError(f"there is no file {digest}: upload it first", field)
    return files


def quote(
    spec: JobSpec, array: ArraySpec, able: Sequence[Candidate], why: str, limits: Config, rate: MarketRate
) -> Quote:
    """Price and problems. ``able``: nodes that could run it, busy or not; ``why`` there are none."""
    runs = _runs(array, len(able))
    looks = expected_looks(array.count, len(able)) if array.checker is not None else 0
    seconds = runs * (array.estimate or array.seconds) + looks * _look_seconds(array)
    longest = runs * array.seconds + looks * (0.0 if array.checker is None else array.checker.seconds)
    speed = median(one.flops for one in able) if able else 0.0
    least = limits.minimum_price
    likely = pricing.price(int(seconds * speed), rate.per_petaflop, 0)
    most = pricing.price(int(longest * speed), rate.per_petaflop, 0)
    checks = pricing.price(int(looks * _look_seconds(array) * speed), rate.per_petaflop, 0)
    hours = seconds / max(1, len(able)) / pricing.HOUR
    problems = [*_problems(array, able, why), *_misjudged(array)]
    if spec.budget < least:
        problems.append(
            f"the budget {money(spec.budget)} is below {money(least)}, the least that a job has in escrow here"
        )
    elif array.estimate is not None and able and spec.budget < likely:
        problems.append(
            f"the budget {money(spec.budget)} is below {money(likely)}, what {_elements(array)} of "
            f"{array.estimate:g} s cost: raise it, or ask for less"
        )
    return Quote(
        operations=float(seconds * speed),
        parameters=0,
        tokens=0,
        stages=1,
        replicas=array.copies,
        nodes_available=len(able),
        rounds=0,
        hours=hours,
        price=max(spec.budget, least),
        price_low=min(likely, spec.budget),
        price_high=max(spec.budget, least),
        memory_mb_per_stage=(array.memory_mb,),
        limit=f"{len(able)} nodes of {len({one.owner for one in able})} owners could run it",
        problems=tuple(problems),
        rate=rate.per_petaflop,
        price_likely=likely,
        fee_lamports=OPENING_LAMPORTS,
        reasons=(*filter(None, [rate.reason]), *_reasons(spec, array, runs, looks, likely, most, checks)),
        hours_low=hours,
        hours_high=longest / max(1, len(able)) / pricing.HOUR,
    )


def _runs(array: ArraySpec, nodes: int) -> int:
    """How often elements are run in all, where nothing goes wrong."""
    if array.verify == "spot-checked":
        return array.count + expected_checks(array.count, nodes)
    return array.count * array.copies


def _elements(array: ArraySpec) -> str:
    return "1 element" if array.count == 1 else f"{array.count:,} elements"


def _misjudged(array: ArraySpec) -> list[str]:
    """Estimates beyond the limit at which a run is ended."""
    found = [("", array.estimate, array.seconds)]
    found += [("checker.", array.checker.estimate, array.checker.seconds)] if array.checker is not None else []
    return [
        f"array.{part}estimate is {estimate:g} s, and each is ended after {seconds:g} s (array.{part}seconds): change one of them"
        for part, estimate, seconds in found
        if estimate is not None and estimate > seconds
    ]


def _problems(array: ArraySpec, able: Sequence[Candidate], why: str) -> list[str]:
    rules = rules_of(array)
    need, owners = rules.owners, {one.owner for one in able}
    if not able:
        return [why]
    if len(owners) < need:
        way = "ask for fewer owners, or set array.verify to trusted and name them"
        way = way if array.verify == "replicated" else "set array.verify to trusted and name them"
        what = "to run an element and look at its result" if rules.looks else "to run an element"
        return [f"{need} owners are {what}, and {len(owners)} could: {way}"]
    return []


def _look_seconds(array: ArraySpec) -> float:
    """Seconds that a checker likely takes: nobody who leaves it out means longer than the element itself."""
    if array.checker is None:
        return 0.0
    return array.checker.estimate or min(array.estimate or array.seconds, array.checker.seconds)


def _reasons(
    spec: JobSpec, array: ArraySpec, runs: int, looks: int, likely: int, most: int, checks: int
) -> tuple[str, ...]:
    each = "the element" if array.count == 1 else f"each of {array.count:,} elements"
    match array.verify:
        case "replicated":
            how = f"{each} is run by {array.owners} owners, who must agree: {runs:,} runs"
        case "checked":
            how = (
                f"{each} is run once, and your checker looks {looks:,} times: at each result at two "
                f"owners, and at others that try the owners; at {_look_seconds(array):g} s each that is {money(checks)} of it"
            )
        case "spot-checked":
            how = f"{each} is run once, and {runs - array.count:,} or so by a second owner, too: more often while a node is new"
        case "trusted":
            how = f"{each} is run once, by owners that you trust: nobody looks at the results"
    seconds = (
        f"{array.estimate:g} s each, as you estimate" if array.estimate else f"{array.seconds:g} s each, the limit"
    )
    return (
        how,
        f"with {seconds}, that is {money(likely)}; at the limit{'s' if looks else f' of {array.seconds:g} s'}, {money(most)}",
        f"{money(spec.budget)} at most: the array ends when that is used up, and what is left goes back",
        f"an element that fails is run again {math.floor(array.retries)} times at most",
    )
