"""What the submitter's own checker says of results: whose is taken, who was outvoted, and who is to look further.

One owner runs an element, and two others run the checker on what came of it. Both must come to the same verdict, byte for byte;
where they differ, a third one looks. So a false result takes three owners who plot, all of them given the same element: the one
who made it, and both who looked. A result that was refused says nothing of its owner: a search may fail by bad luck.

A checker that says yes without looking is never wrong as long as everybody is honest. So some looks are *decoys*: they are given
the result of another element. Whatever the checker makes of it, two owners must say the same. Who is asked cannot tell.
"""

import math
from collections import defaultdict
from collections.abc import Collection

import msgspec

from coordinator.domain.arrays.votes import (
    FURTHER,
    ElementCourse,
    ElementTry,
    ElementVerdict,
    VoteRules,
    failed_runs,
    one_of_each_owner,
    owners_of,
    verdict,
)
from coordinator.domain.audits.rate import FLOOR
from coordinator.domain.audits.sampling import WHOLE
from protocol.ids import Digest
from protocol.job.array import LOOKS

DECOY_TRUST = 5
"""Looks of a node after which every second one is a decoy; all of its first ones are, one in twenty for ever."""
MAX_DECOYS = 3  # Of an element.
MAX_UNSEEN = 8  # Looks before which a result could not be laid, after which it is not taken.
UNSURE = frozenset({"time", "memory", "disk"})
"""Ends of a checker that may be its machine's doing: nobody is blamed for one."""


class Opinion(msgspec.Struct, frozen=True):
    """What owners make of one result.

    Attributes:
        taken: whether it is; None: they are not agreed yet. right, wrong: run numbers of those who said so, or something else.
        missing: how many more owners are to look. various: they never will agree. said: why it is not taken, in words of ours.
    """

    taken: bool | None = None
    right: tuple[int, ...] = ()
    wrong: tuple[int, ...] = ()
    missing: int = 0
    various: int = 0
    said: str = ""


def standing(course: ElementCourse, rules: VoteRules) -> ElementVerdict:
    """See where an element stands, whoever decides on its results."""
    if rules.looks == 0 or course.state != "open":
        return verdict(course, rules)
    return checked_verdict(course, rules)


def checked_verdict(course: ElementCourse, rules: VoteRules) -> ElementVerdict:
    """See where an element stands whose results a checker looks at."""
    runs = [one for one in course.tries if one.of is None]
    made: dict[Digest, list[ElementTry]] = defaultdict(list)
    for one in runs:
        if one.ended and one.result is not None:
            made[one.result].append(one)
    asked = dict.fromkeys([*made, *(one.of for one in course.tries if one.of is not None)])
    opinions = {of: opinion_of(course, of, owners_of(made.get(of, ())), rules) for of in asked}
    right = tuple(run for said in opinions.values() for run in said.right)
    wrong = tuple(run for said in opinions.values() for run in said.wrong)
    decoys = tuple((of, said.missing) for of, said in opinions.items() if of not in made and said.missing)
    refused = [one for result, group in made.items() if opinions[result].taken is False for one in group]
    taken = next((result for result in made if opinions[result].taken), None)
    if taken is not None:
        if decoys:
            return ElementVerdict("open", looks=decoys)
        counted = 1 + rules.looks - _looks_at(owners_of(made[taken]), rules)
        held = tuple(one.run for one in one_of_each_owner(made[taken])[:counted])
        return ElementVerdict("done", taken, (*held, *right), wrong, refused=tuple(one.run for one in refused))
    if various := max((said.various for said in opinions.values()), default=0):
        why = f"{various} owners came to {various} different verdicts: the checker is not deterministic"
        return ElementVerdict("failed", right=(*(one.run for one in runs if one.ended), *right), why=why)
    if len(owners_of(refused)) >= rules.refused:
        why = f"the checker refused the results of {len(owners_of(refused))} owners"
        if said := next((opinions[one.result].said for one in reversed(refused) if one.result), ""):
            why += f"; {said}"
        return ElementVerdict("failed", right=(*(one.run for one in refused), *right), wrong=wrong, why=why)
    if (failed := failed_runs(course, rules)) is not None:
        return msgspec.structs.replace(failed, right=(*failed.right, *right), wrong=wrong)
    waits = [result for result in made if opinions[result].taken is None]
    if not waits:
        running = sum(one.state == "running" for one in runs)
        return ElementVerdict("open", missing=max(0, 1 - running), looks=decoys)
    missing = opinions[waits[0]].missing
    return ElementVerdict("open", looks=(*decoys, *(((waits[0], missing),) if missing else ())))


def spoilt_runs(course: ElementCourse, rules: VoteRules) -> frozenset[int]:
    """Runs in batches that count for nothing, since what ran before them may have spoilt them: the element is run alone.

    Where owners must agree, all of them once they differ. Where a checker decides, results may differ: what it refuses is meant.
    """
    runs = [one for one in course.tries if one.batched and one.ended]
    made = {one.result for one in runs if one.result is not None}
    if rules.looks == 0:
        return frozenset(one.run for one in runs) if len(made) > 1 or course.alone else frozenset()
    ended = [one for one in course.tries if one.of is None and one.ended]
    makers = {of: owners_of([one for one in ended if one.result == of]) for of in made}
    refused = {of for of in made if opinion_of(course, of, makers[of], rules).taken is False}
    return frozenset(one.run for one in runs if one.result in refused)


def _looks_at(makers: Collection[str], rules: VoteRules) -> int:
    """How many owners are to look at a result. Who came to the same bytes may not look, and counts as if they did."""
    return max(1, rules.looks - max(0, len(makers) - 1))


def opinion_of(course: ElementCourse, of: Digest, makers: Collection[str], rules: VoteRules) -> Opinion:
    """What was said of a result, or of a decoy. ``makers``: owners who have come to it, whose looks at it do not count."""
    looks = _looks_at(makers, rules)
    mine = [one for one in course.tries if one.of == of and one.owner not in makers]
    said: dict[str, list[ElementTry]] = defaultdict(list)
    for one in mine:
        if one.ended and one.outcome != "inputs":
            said[_vote(one)].append(one)
    best = max(said, key=lambda vote: (len(owners_of(said[vote])), vote), default="")
    agree = len(owners_of(said[best])) if best else 0
    if agree < looks:
        if len(said) >= looks + FURTHER:
            several = tuple(group[0].run for group in said.values())[:looks]  # Who looked is paid, as far as looks are.
            return Opinion(right=several, various=len(said))
        if sum(one.ended and one.outcome == "inputs" for one in mine) >= MAX_UNSEEN:
            return Opinion(False, said=f"{MAX_UNSEEN} times it could not be laid before the checker")
        running = sum(one.state == "running" for one in mine)
        return Opinion(missing=max(0, looks - agree - running))
    right = one_of_each_owner(said[best])[:looks]
    others = [one for vote, group in said.items() if vote != best for one in group]
    wrong = () if best in UNSURE else tuple(one.run for one in others if one.outcome not in UNSURE)
    # What it printed is its log, which stays with the owner.
    words = f"it ended for want of {best}" if best in UNSURE else ""
    return Opinion(best.startswith("yes"), tuple(one.run for one in right), wrong, said=words)


def _vote(one: ElementTry) -> str:
    """What a look has come to: bytes count where it says yes."""
    if one.result is not None:
        return f"yes {one.result}"
    return "no" if one.outcome == "exited" else str(one.outcome)


def decoy_rate(looked: int) -> int:
    """Probability, in millionths, that a node which has looked so often is given a decoy, where it could have one."""
    return max(FLOOR, -(-WHOLE * DECOY_TRUST // (DECOY_TRUST + looked)))


def expected_looks(elements: int, nodes: int) -> int:
    """How often checkers look in all, decoys included, where so many nodes look as often each."""
    wanted = LOOKS * elements
    each = math.ceil(wanted / max(1, nodes))
    decoys = sum(map(decoy_rate, range(each))) * nodes // WHOLE
    return wanted + LOOKS * min(MAX_DECOYS * elements, decoys)
