"""Which element goes to whom: all elements of an array, what is under way, and what is still to be run.

Nothing here looks at all elements: giving and ending cost by what is given and ended. Elements that wait for further owners stand
in one line, and each node has its own place in it: what it has passed it need not look at again.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Final

import msgspec

from coordinator.domain.arrays.looks import MAX_DECOYS, standing
from coordinator.domain.arrays.votes import MAX_LOST, ElementCourse, ElementTry, VoteRules
from protocol.ids import Digest, NodeAddress
from protocol.job.elements import MAX_QUEUED, ElementEnd

AHEAD_S = 5.0  # Work that a node has in its queue, so that short elements do not wait for the line.
STRAGGLING = 3.0  # Times the usual time, after which an element that is still under way at the end is run once more,
STRAGGLING_S = 30.0  # and so many seconds at least.
MAX_SEEN = 32  # Results that a checker may be given in the place of another element's.
MOST_LOOKS = 3  # Of a node at one result, where nobody else is there and its own come to nothing.
ASTRAY, ASTRAY_PART = 4, 20
"""Batches that came to another result than holds, of several owners, after which each element runs alone, if that is one in so
many elements. Where they are one owner's, it is that owner."""
KEPT_TRIES = 24  # Of an element; those that came to nothing are forgotten first.


class ElementSeat(msgspec.Struct, frozen=True):
    """A lease that elements are given to. ``block``: of addresses, see ``coordinator.domain.arrays.apart``."""

    lease: str
    node: NodeAddress
    owner: NodeAddress
    block: str
    replica: int


def queue_length(slots: int, usual: float, left: int, seats: int, batch: int = 1) -> int:
    """How many elements a node has at once, running ones included.

    Args:
        slots: that it runs at a time. usual: seconds of an element; 0: nobody knows yet. batch: that share a container.
        left: runs that nobody has been given yet. seats: nodes of the job.
    """
    ahead = 2 * slots * batch if usual <= 0 else slots * (1 + int(AHEAD_S / max(usual, 0.01)))
    fair = max(slots, left // (2 * max(1, seats)))  # Nobody sits on what others could run at the end.
    return max(1, min(ahead, fair, MAX_QUEUED))


class ArrayBoard:
    """All elements of an array job."""

    def __init__(
        self,
        job: str,
        count: int,
        rules: VoteRules,
        courses: Iterable[ElementCourse] = (),
        draw_seed: Callable[[], str] = str,
        batch: int = 1,
    ) -> None:
        """``courses``: of those elements that were begun. ``draw_seed``: a fresh one, for a result that is looked at.
        ``batch``: elements that share a container where nothing speaks against it."""
        self.job: Final = job
        self.count: Final = count
        self.rules: Final = rules
        self._draw_seed, self._batch = draw_seed, batch
        self._astray: dict[int, set[NodeAddress]] = {}  # Element -> owners whose batch came to something else.
        self._together = True
        self.changed: dict[int, ElementCourse] = {}
        self.done = self.failed = 0
        self._courses: dict[int, ElementCourse] = {}
        self._running: dict[str, dict[int, int]] = {}  # Lease -> run number -> element.
        self._missing: dict[int, int] = {}  # Elements that need further owners, and how many.
        self._further = 0  # Of all of them together.
        self._line: list[int] = []
        self._places: dict[str, int] = {}  # Node -> how much of the line it has passed.
        self._fresh = 0
        self._usual = (0.0, 0)
        self._looked = Counter[NodeAddress]()  # How often each node was asked to look.
        self._seen: dict[
            Digest, set[NodeAddress]
        ] = {}  # Results that came last, and owners who made or looked at each.
        self._stored: set[int] = set()
        for course in courses:
            self._take(course)
            self._stored.add(course.index)
            for one in course.tries:
                self._learn(one)
                self._looked[one.node] += one.of is not None
        for course in self._courses.values():
            for one in course.tries:
                self._shows(one.of, one.owner)
        self.changed.clear()

    # --- what there is ----------------------------------------------------------------------------------------------------

    def course(self, index: int) -> ElementCourse:
        """How an element stands."""
        return self._courses.get(index) or ElementCourse(self.job, index)

    def begun(self) -> Iterable[ElementCourse]:
        """All that anybody was given, in no order."""
        return self._courses.values()

    def of_lease(self, lease: str) -> dict[int, int]:
        """Run number -> element of what a lease has and has not ended, in the order in which it was given."""
        return self._running.get(lease, {})

    def leases(self) -> set[str]:
        """Those that have anything."""
        return {lease for lease, runs in self._running.items() if runs}

    def look_of(self, lease: str, run: int) -> tuple[Digest, str] | None:
        """The result that a run under way looks at, and its seed; None: it runs its element."""
        one = next(one for one in self.course(self._running[lease][run]).tries if one.run == run)
        return None if one.of is None else (one.of, one.seed or "")

    def is_alone(self, lease: str, run: int) -> bool:
        """Whether a run under way is to have a container of its own, though others of the array share theirs."""
        one = next(one for one in self.course(self._running[lease][run]).tries if one.run == run)
        return self._batch > 1 and one.of is None and not one.batched

    @property
    def batch(self) -> int:
        """How many elements share a container now. Where that often leads to other results, each has its own."""
        return self._batch if self._together else 1

    def looks_of(self, lease: str) -> set[Digest]:
        """Results that a lease's runs look at."""
        return {look[0] for run in self.of_lease(lease) if (look := self.look_of(lease, run)) is not None}

    def under_way(self, lease: str) -> list[ElementTry]:
        """What a lease has and has not ended."""
        found = [self._courses[index] for index in self.of_lease(lease).values()]
        return [one for course in found for one in course.running if one.lease == lease]

    def running(self) -> int:
        """Runs under way."""
        return sum(map(len, self._running.values()))

    def left(self) -> int:
        """Runs that nobody has been given yet, as far as is known."""
        return (self.count - len(self._courses)) * (self.rules.need + self.rules.looks) + self._further

    @property
    def over(self) -> bool:
        """Whether every element is done, or has failed."""
        return self.done + self.failed >= self.count

    @property
    def usual(self) -> float:
        """Seconds that an element takes on average; 0: none has ended yet."""
        seconds, number = self._usual
        return seconds / number if number else 0.0

    # --- giving -----------------------------------------------------------------------------------------------------------

    def give(
        self, seat: ElementSeat, room: int, number: int, now: float, alone: bool, decoy: Callable[[int], bool] = bool
    ) -> list[ElementTry]:
        """Give a node up to ``room`` elements.

        Args:
            number: of the first of these runs; the others follow it.
            alone: nothing else is under way, so what this node or its owner failed at it may try again.
            decoy: whether a node that has been asked to look so often is given another element's result instead, this time.
        Returns:
            the runs, each of another element.
        """
        given: list[ElementTry] = []
        place = self._places.get(seat.node, 0)
        while len(given) < room and place < len(self._line):
            index = self._line[place]
            place += 1
            if index not in self._missing:
                continue
            course = self.course(index)
            for of in self._wanted(course):
                if self._may(seat, course, alone, of):
                    asked = self._looked[seat.node]
                    other = self._decoy(course, seat.owner) if of is not None and decoy(asked) else None
                    given.append(self._begin(seat, index, number + len(given), now, other or of))
                    break
        self._places[seat.node] = place
        while len(given) < room:
            while self._fresh < self.count and self._fresh in self._courses:
                self._fresh += 1
            if self._fresh >= self.count:
                break
            given.append(self._begin(seat, self._fresh, number + len(given), now))
        return given

    def again(self, seat: ElementSeat, room: int, number: int, now: float) -> list[ElementTry]:
        """At the end, when nothing else is left for a node: run once more what is under way elsewhere for too long."""
        late = max(STRAGGLING_S, STRAGGLING * self.usual)
        given: list[ElementTry] = []
        under_way = {index for runs in self._running.values() for index in runs.values()}
        for index in sorted(under_way):
            course = self.course(index)
            if len(given) >= room:
                break
            for waits in [one for one in course.running if now - (one.begun or one.sent) > late]:
                if waits.of is None and self.rules.looks and any(one.result for one in course.tries if one.of is None):
                    continue  # One came first, so now owners are needed who have not run it.
                beside = sum(one.of == waits.of for one in course.running)
                if beside <= self._needed(course, waits.of) and self._may(seat, course, False, waits.of):
                    given.append(self._begin(seat, index, number + len(given), now, waits.of))
                    break
        return given

    def look_again(self) -> None:
        """Have everybody look at the whole line again: what a node had to pass may be for it by now."""
        self._line = list(self._missing)
        self._places.clear()

    def waiting(self) -> bool:
        """Whether some element waits for a further owner."""
        return bool(self._missing)

    def _wanted(self, course: ElementCourse) -> list[Digest | None]:
        """Results of an element that further owners are to look at, and None where they are to run it."""
        found = standing(course, self.rules)
        return [*(of for of, _ in found.looks), *([None] if found.missing else [])]

    def _needed(self, course: ElementCourse, of: Digest | None) -> int:
        if of is not None:
            return self.rules.looks
        return self.rules.need_checked if course.checked else self.rules.need

    def _decoy(self, course: ElementCourse, owner: NodeAddress) -> Digest | None:
        """The result of another element; None: there is none yet, or this one has had its decoys.

        Whoever has made it, or was shown it before, would know it for a decoy. So few have seen it, and not this owner.
        """
        own = {one.result for one in course.tries if one.of is None}
        known = {one.of for one in course.tries if one.of is not None} - own
        if len(known) >= MAX_DECOYS:
            return None
        new = [of for of, shown in self._seen.items() if of not in own | known and owner not in shown]
        return min(new, key=lambda of: len(self._seen[of]), default=None)

    def _shows(self, of: Digest | None, owner: NodeAddress) -> None:
        """An owner gets to know a result."""
        if of is not None and of in self._seen:
            self._seen[of].add(owner)

    def _may(self, seat: ElementSeat, course: ElementCourse, alone: bool, of: Digest | None) -> bool:
        """Whether a node may run an element, or look at a result of it, beside those that did, or do.

        Nobody looks at a result of one's own.
        """
        if seat.node in course.back and not alone:
            return False
        several = max(self.rules.owners, self.rules.need_failed) > 1
        if of is not None and sum(one.of == of and one.node == seat.node for one in course.tries) >= MOST_LOOKS:
            return False
        for one in course.tries:
            beside = one.of == of or (of is not None and one.of is None and one.result == of)
            if one.state in ("parted", "back"):
                continue  # It may run alone what came out otherwise in a batch.
            if not beside or (alone and one.ended and one.result is None and (of is None or one.outcome != "exited")):
                continue
            same = one.owner == seat.owner or (seat.block != "" and one.block == seat.block)
            if one.node == seat.node or (several and same):
                return False
        return True

    def _begin(self, seat: ElementSeat, index: int, number: int, now: float, of: Digest | None = None) -> ElementTry:
        course, seed = self.course(index), None
        if of is not None:
            self._looked[seat.node] += 1
            seed = next((one.seed for one in course.tries if one.of == of and one.seed), None) or self._draw_seed()
        one = ElementTry(number, seat.lease, seat.node, seat.owner, seat.block, seat.replica, now, of=of, seed=seed)
        if self.batch > 1 and of is None and not course.alone:
            one = msgspec.structs.replace(one, batched=True)
        self._shows(of, seat.owner)
        self._take(msgspec.structs.replace(course, tries=(*_kept(course.tries), one)))
        return one

    # --- what comes back --------------------------------------------------------------------------------------------------

    def started(self, lease: str, run: int, now: float) -> bool:
        """A run of a lease has begun; whether that is news. Told again, it does not begin later."""
        index = self.of_lease(lease).get(run)
        if index is None or any(one.run == run and one.begun is not None for one in self.course(index).tries):
            return False
        self._change(index, run, begun=now)
        return True

    def ended(self, lease: str, end: ElementEnd, operations: int, seconds: float) -> ElementCourse | None:
        """A run has ended; None: it is none of this lease, or is over already.

        Args:
            operations: what it counts as. seconds: that it took, as far as they are believed.
        """
        index = self.of_lease(lease).get(end.run)
        if index is None:
            return None
        if end.outcome == "owner":
            self._change(index, end.run, state="back", outcome="owner")
            return self.course(index)
        self._change(
            index,
            end.run,
            state="ended",
            outcome=end.outcome,
            code=end.code,
            result=end.result,
            size=end.size,
            files=end.files,
            seconds=seconds,
            operations=operations,
            tail=end.tail,
        )
        course = self.course(index)
        self._learn(next(one for one in course.tries if one.run == end.run))
        return course

    def gone(self, lease: str, run: int, lost: bool = True) -> ElementCourse | None:
        """A run came to nothing; ``lost``: with its node."""
        index = self.of_lease(lease).get(run)
        if index is None:
            return None
        course = self.course(index)
        tries = tuple(one for one in course.tries if one.run != run)
        del self._running[lease][run]
        count = course.lost + lost
        self._take(msgspec.structs.replace(course, tries=tries, lost=min(count, MAX_LOST)))
        return self.course(index)

    def left_by(self, lease: str, lost: int) -> list[ElementCourse]:
        """A lease is over: everything that it had comes to nothing.

        ``lost``: how many runs were lost with its node, as many as it has at a time; the rest only stood in its queue.
        """
        held = sorted(self.under_way(lease), key=lambda one: (one.begun is None, one.run))
        courses = [self.gone(lease, one.run, number < lost) for number, one in enumerate(held)]
        self._running.pop(lease, None)
        return [course for course in courses if course is not None]

    def draw(self, index: int) -> None:
        """Have a second owner run an element, too."""
        self._take(msgspec.structs.replace(self.course(index), checked=True))

    def part(self, course: ElementCourse, runs: Collection[int]) -> ElementCourse:
        """These runs were in batches that may have spoilt them: the element is run alone, by whoever ran it or by others."""
        tries = tuple(msgspec.structs.replace(one, state="parted") if one.run in runs else one for one in course.tries)
        self._take(msgspec.structs.replace(course, tries=tries))
        return self.course(course.index)

    def settle(self, course: ElementCourse) -> None:
        """An element is done, or has failed. Runs of it that are under way are to be dropped by whoever has them."""
        for one in course.running:
            self._running.get(one.lease, {}).pop(one.run, None)
        tries = tuple(one for one in course.tries if one.state != "running")
        self._take(msgspec.structs.replace(course, tries=tries))

    def reopen(self, course: ElementCourse, node: NodeAddress) -> None:
        """What a node said of an element does not count any more; it is open again."""
        self.done -= course.state == "done"
        self.failed -= course.state == "failed"
        tries = tuple(
            msgspec.structs.replace(one, state="void", paid=False) if one.node == node and one.ended else one
            for one in course.tries
        )
        self._courses.pop(course.index, None)
        self._take(msgspec.structs.replace(course, state="open", tries=tries, result=None, size=0, files=0, settled=0))

    # --- books ------------------------------------------------------------------------------------------------------------

    def stored(self, course: ElementCourse) -> None:
        """Take over the version of what was stored."""
        self._courses[course.index] = course
        self._stored.add(course.index)

    def is_stored(self, index: int) -> bool:
        """Whether an element has a record already."""
        return index in self._stored

    def _change(self, index: int, run: int, **fields: object) -> None:
        course = self.course(index)
        tries = tuple(msgspec.structs.replace(one, **fields) if one.run == run else one for one in course.tries)
        self._take(msgspec.structs.replace(course, tries=tries))

    def _take(self, course: ElementCourse) -> None:
        before = self._courses.get(course.index)
        self._courses[course.index] = self.changed[course.index] = course
        for one in course.tries:
            runs = self._running.setdefault(one.lease, {})
            if one.state == "running":
                runs[one.run] = course.index
            else:
                runs.pop(one.run, None)
        if course.state != "open" and (before is None or before.state == "open"):
            self.done += course.state == "done"
            self.failed += course.state == "failed"
            self._went_astray(course)
        missing, known = standing(course, self.rules).asked, self._missing.get(course.index, 0)
        self._further += missing - known
        if missing > known:
            self._line.append(course.index)
        if missing:
            self._missing[course.index] = missing
        else:
            self._missing.pop(course.index, None)

    def _went_astray(self, course: ElementCourse) -> None:
        if not course.alone or course.state != "done":
            return
        owners = {one.owner for one in course.tries if one.went_astray(course.result)}
        self._astray[course.index] = owners
        several = len(set().union(*self._astray.values())) > 1
        number = sum(map(len, self._astray.values()))
        if several and number >= ASTRAY and number * ASTRAY_PART > self.done:
            self._together = False

    def _learn(self, one: ElementTry) -> None:
        if not one.ended or one.result is None or one.of is not None:
            return
        seconds, number = self._usual
        self._usual = (seconds + one.seconds, number + 1)
        self._seen.setdefault(one.result, set()).add(one.owner)
        if len(self._seen) > MAX_SEEN:
            del self._seen[next(iter(self._seen))]


def _kept(tries: tuple[ElementTry, ...]) -> tuple[ElementTry, ...]:
    """Runs that are remembered: those that count, and the last of the others."""
    if len(tries) < KEPT_TRIES:
        return tries
    void = [one for one in tries if one.state == "void"]
    return tuple(one for one in tries if one not in void[: len(tries) - KEPT_TRIES + 1])
