"""Whose result of an element holds, who was wrong, and how many more owners are to run it.

A result holds once ``need`` distinct owners have come to it, byte for byte. With one wrong answer among them a further owner is
asked, and again, until one result has so many. So it takes ``need`` owners who plot, all of them given the same element, to have
a false one accepted; fewer are outvoted, however they answer, as soon as honest owners are there.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, assert_never

import msgspec

from common.untrusted_text import Told, Untrusted
from protocol.ids import Digest, NodeAddress
from protocol.job.array import LOOKS, ArraySpec
from protocol.job.elements import ElementOutcome, LookSeed

FURTHER = (
    3  # Different results beyond ``need`` that nobody agrees with; then it is the command, which is not deterministic.
)
REFUSED = 3
MAX_LOST = 8  # Nodes that vanish while they run an element, after which nobody is asked to run it any more.

TryState = Literal["running", "ended", "void", "parted", "back"]
"""What has ended counts, and nothing else. ``void``: its node was found wrong elsewhere. ``parted``: batches came to different
results. ``back``: its node gave it back, for its owner or because it could not run it."""
CourseState = Literal["open", "done", "failed"]


class ElementTry(Told, frozen=True):
    """One run of an element, by its number.

    Attributes:
        owner: where its node is paid. block: of addresses that the node comes from; empty: nothing is known of it.
        replica: the number of its lease's seat. sent: when, in Unix seconds.
        operations: what it counts as: its seconds at its node's speed.
        of: the result that the array's checker looks at; None: it runs the element itself. seed: of that look.
        batched: it may have shared a container with other elements.
        paid: it is among those that are paid.
    """

    run: int
    lease: str
    node: NodeAddress
    owner: NodeAddress
    block: str
    replica: int
    sent: float
    begun: float | None = None
    state: TryState = "running"
    outcome: ElementOutcome | None = None
    code: int = 0
    result: Digest | None = None
    size: int = 0
    files: int = 0
    seconds: float = 0.0
    operations: int = 0
    tail: tuple[Untrusted, ...] = ()
    of: Digest | None = None
    seed: LookSeed | None = None
    batched: bool = False
    paid: bool = False

    @property
    def ended(self) -> bool:
        """Whether it has ended, and counts."""
        return self.state == "ended"

    def went_astray(self, result: Digest | None) -> bool:
        """Whether its batch came to another result than this, which others came to alone."""
        return self.state == "parted" and self.result not in (None, result)


class ElementCourse(Told, frozen=True):
    """What became of an element so far, as it is stored. Elements that nobody has begun have none.

    Attributes:
        result: the artifact of its result's archive, once it is done. size: in bytes. files: in it.
        checked: by lot, a second owner runs it, too.
        lost: nodes that vanished while they ran it.
        reason: why it failed.
        settled: its number among those that are done or have failed, in the order in which they were; 0: it is open.
    """

    job: str
    index: int
    state: CourseState = "open"
    tries: tuple[ElementTry, ...] = ()
    result: Digest | None = None
    size: int = 0
    files: int = 0
    checked: bool = False
    lost: int = 0
    reason: Untrusted = Untrusted("")
    settled: int = 0
    version: int = 0

    @property
    def running(self) -> list[ElementTry]:
        """Runs that have not ended."""
        return [one for one in self.tries if one.state == "running"]

    @property
    def alone(self) -> bool:
        """Whether batches came to different results, so that it is run in containers of its own."""
        return any(one.state == "parted" for one in self.tries)

    @property
    def back(self) -> list[NodeAddress]:
        """Nodes that gave it back."""
        return [one.node for one in self.tries if one.state == "back"]

    @property
    def failures(self) -> list[ElementTry]:
        """Runs that ended without a result."""
        return [one for one in self.tries if one.ended and one.result is None and one.of is None]


class ElementVerdict(msgspec.Struct, frozen=True):
    """What follows from the runs of an element.

    Attributes:
        result: that holds; None: none does (yet).
        right: run numbers that are paid. wrong: those that said something else than what holds.
        missing: how many more owners are to run it now. looks: results at which so many more are to look.
        refused: run numbers whose results the checker refused, where another's was taken.
        why: it failed.
    """

    state: CourseState
    result: Digest | None = None
    right: tuple[int, ...] = ()
    wrong: tuple[int, ...] = ()
    missing: int = 0
    looks: tuple[tuple[Digest, int], ...] = ()
    refused: tuple[int, ...] = ()
    why: str = ""

    @property
    def asked(self) -> int:
        """How many more owners are to do something."""
        return self.missing + sum(count for _, count in self.looks)


class VoteRules(msgspec.Struct, frozen=True):
    """How an array's results are made sure of.

    Attributes:
        need: owners that must agree. need_checked: where an element is checked by lot.
        need_failed: owners that must see it fail alike, before it has failed. retries: how often one that fails is run again.
        looks: owners that must come to the same verdict where a checker decides (``domain.arrays.looks``); 0: none does.
    """

    need: int
    need_checked: int
    need_failed: int
    retries: int
    looks: int = 0

    @property
    def refused(self) -> int:
        """Owners whose results a checker refuses, after which an element has failed."""
        return max(REFUSED, 1 + self.retries)

    @property
    def owners(self) -> int:
        """How many have to be here, so that an element can come to its end."""
        return max(self.need, self.need_checked, self.need + self.looks)


def verdict(course: ElementCourse, rules: VoteRules) -> ElementVerdict:
    """See where an element stands."""
    if course.state != "open":
        return ElementVerdict(course.state, course.result)
    need = rules.need_checked if course.checked else rules.need
    by_result = _groups([one for one in course.tries if one.ended and one.result is not None])
    best = max(by_result, key=lambda result: (len(owners_of(by_result[result])), result), default="")
    agree = len(owners_of(by_result[best])) if best else 0
    if agree >= need:
        right = one_of_each_owner(by_result[best])[:need]
        # One owner's word against another's shows nothing of either.
        outvoted = [one.run for result, group in by_result.items() if result != best for one in group if agree > 1]
        return ElementVerdict("done", best, tuple(one.run for one in right), tuple(outvoted))
    if (failed := failed_runs(course, rules)) is not None:
        return failed
    if len(by_result) >= need + FURTHER:
        # It is the command's doing, so whoever ran it is paid, as far as an element is.
        several = tuple(group[0].run for group in by_result.values())[:need]
        why = f"{len(by_result)} owners came to {len(by_result)} different results: the command is not deterministic"
        return ElementVerdict("failed", right=several, why=why)
    return ElementVerdict("open", missing=max(0, need - agree - len(course.running)))


def rules_of(array: ArraySpec) -> VoteRules:
    """What a document asks for. Where one owner's result counts, one owner's word for a failure still does not."""
    match array.verify:
        case "replicated":
            return VoteRules(array.owners, array.owners, array.owners, array.retries)
        case "spot-checked":
            return VoteRules(1, 2, 2, array.retries)
        case "checked":
            return VoteRules(1, 1, 2, array.retries, LOOKS)
        case "trusted":
            return VoteRules(1, 1, 1, array.retries)
        case _:
            assert_never(array.verify)


def failed_runs(course: ElementCourse, rules: VoteRules) -> ElementVerdict | None:
    """Why nothing can come of the element by how its runs ended, if that is so."""
    failures = course.failures
    if len(failures) >= max(rules.need_failed, 1 + rules.retries):
        alike: dict[tuple[str, int], list[ElementTry]] = defaultdict(list)
        for one in failures:
            alike[one.outcome or "", one.code].append(one)
        most = max(alike.values(), key=lambda group: (len(owners_of(group)), group[0].run))
        agreed = len(owners_of(most)) >= rules.need_failed
        if not agreed and len(failures) < rules.need_failed + rules.retries + FURTHER:
            return None  # More are asked.
        right = tuple(one.run for one in one_of_each_owner(most)[: rules.need_failed]) if agreed else ()
        return ElementVerdict("failed", right=right, why=_words(most[0], len(failures)))
    if course.lost >= MAX_LOST and not course.running:
        return ElementVerdict("failed", why=f"{course.lost} nodes were lost while they ran it")
    if len(course.back) >= MAX_LOST and not course.running:
        return ElementVerdict("failed", why=f"{len(course.back)} times a node gave it back without a result")
    return None


def _groups(tries: Sequence[ElementTry]) -> dict[str, list[ElementTry]]:
    found: dict[str, list[ElementTry]] = defaultdict(list)
    for one in tries:
        found[one.result or ""].append(one)
    return dict(found)


def owners_of(tries: Sequence[ElementTry]) -> set[str]:
    """Whose they are."""
    return {one.owner for one in tries}


def one_of_each_owner(tries: Sequence[ElementTry]) -> list[ElementTry]:
    """The first of each owner."""
    first: dict[str, ElementTry] = {}
    for one in tries:
        first.setdefault(one.owner, one)
    return list(first.values())


def _words(one: ElementTry, times: int) -> str:
    ended = {
        "exited": f"the command ended with code {one.code}",
        "time": "the command took longer than its limit",
        "memory": "the command took more memory than it may",
        "disk": "the command wrote more than it may, or something that is no plain file",
        "inputs": "its inputs could not be had, or its result could not be taken",
        "owner": "its node was needed otherwise",
    }[one.outcome or "owner"]
    return ended if times == 1 else f"{ended}; it was tried {times} times"
