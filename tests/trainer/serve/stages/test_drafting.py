"""Which drafts go out, and how many, by how often they came true and what they cost."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from protocol.serving import Sampling
from trainer.serve.stages.drafting import LATE, REST, AnswerDrafts, Drafting
from trainer.serve.stages.passes import DRAFTS

FRESH = list(range(100, 140))  # Nothing of it was there before.
TURN_S = 0.1


@dataclass
class CountingDrafter:
    """Drafts 7, 8, 9 and so on. ``cost``: seconds of a pass, by the clock that it moves."""

    cost: float
    longest: int = 1 << 20
    now: float = 0.0
    unread: int = 0
    asked: list[int] = field(default_factory=list)

    @property
    def pass_s(self) -> float:
        return self.cost

    def behind(self, _sequence: int, _tokens: Sequence[int]) -> int:
        return self.unread or 1

    def has_room(self, _sequence: int, count: int) -> bool:
        return count <= self.longest

    def read(self, _sequence: int, _tokens: Sequence[int]) -> None:
        self.unread = max(0, self.unread - 64)

    def propose(self, _sequence: int, _tokens: Sequence[int], _sampling: Sampling, count: int) -> tuple[int, ...]:
        self.now += count * self.cost
        self.asked.append(count)
        return tuple(range(7, 7 + count))

    def forget(self, _sequence: int) -> None:
        pass


def drafting(cost: float) -> tuple[Drafting, CountingDrafter]:
    model = CountingDrafter(cost)
    made = Drafting(model, clock=lambda: model.now)
    made.turned(TURN_S)
    return made, model


def turn(made: Drafting, answer: AnswerDrafts, true: int, most: int = DRAFTS) -> tuple[int, ...]:
    """A turn after which so many drafts came true at most."""
    drafts = made.drafts(answer, most)
    there = min(true, len(drafts))
    made.learn(answer, drafts, [*drafts[:there], 1000 + len(answer.so_far.tokens)])
    return drafts


def test_more_are_drafted_while_they_come_true_and_fewer_where_a_pass_costs_more() -> None:
    cheap, dear = drafting(TURN_S / 20)[0], drafting(TURN_S / 3)[0]
    found = []
    for made in (cheap, dear):
        answer = made.begin(FRESH, Sampling())
        for _ in range(40):
            turn(made, answer, DRAFTS)
        found.append(len(made.drafts(answer, DRAFTS)))
    assert found[0] == DRAFTS
    first = [
        len(made.drafts(made.begin(FRESH, Sampling()), DRAFTS))
        for made in (drafting(TURN_S / 20)[0], drafting(0.03)[0])
    ]
    assert first[0] > first[1] >= 1


def test_no_more_are_drafted_than_there_is_room_for() -> None:
    made, model = drafting(TURN_S / 100)
    answer = made.begin(FRESH, Sampling())
    assert len(turn(made, answer, 9, most=2)) == 2
    assert turn(made, answer, 9, most=0) == ()
    assert model.asked == [2]


def test_where_drafts_are_wrong_it_rests_and_tries_again_ever_more_seldom() -> None:
    made, model = drafting(TURN_S / 4)
    answer = made.begin(FRESH, Sampling())
    at = [place for place in range(30 * REST) if turn(made, answer, 0)]
    assert len(at) < 20
    gaps = [later - before for before, later in pairwise(at)]
    assert gaps[-1] > 4 * REST
    assert gaps == sorted(gaps), gaps
    assert model.now < 0.05 * 30 * REST * TURN_S, "what it costs is little beside the turns"


def test_one_that_came_true_after_a_rest_brings_it_back() -> None:
    made, _ = drafting(TURN_S / 4)
    answer = made.begin(FRESH, Sampling())
    for _ in range(20 * REST):
        turn(made, answer, 0)
    sooner = [bool(turn(made, answer, DRAFTS)) for _ in range(60 * REST)]
    assert all(sooner[-REST:]), "it drafts at every turn again"


def test_a_model_that_is_slower_than_a_turn_is_hardly_asked() -> None:
    made, model = drafting(3 * TURN_S)
    answer = made.begin(FRESH, Sampling())
    asked = [bool(turn(made, answer, DRAFTS)) for _ in range(REST - 1)]
    assert not any(asked)
    assert model.asked == []


def test_words_that_were_there_before_go_first_and_give_way_where_they_are_wrong() -> None:
    made, model = drafting(TURN_S / 10)
    answer = made.begin([1, 2, 3, 4, 5, 6] * 3, Sampling())
    assert made.drafts(answer, DRAFTS) == (1, 2, 3)
    assert model.asked == []
    made.learn(answer, (1, 2, 3), [1, 2, 3, 4])
    assert made.agreed == {"seen": 3, "model": 0}
    other = made.begin([1, 2, 3, 4, 5, 6] * 3, Sampling())
    other.chances["seen"] = 0.05
    assert made.drafts(other, DRAFTS)[0] == 7, "the model's"
    made.learn(other, (7, 8), [1, 2])
    assert other.chances["seen"] > 0.1, "what was not sent has shown what it was worth"
    assert made.proposed["model"] == 2
    assert made.agreed["model"] == 0


def test_a_prompt_is_read_while_there_is_time_and_drafts_wait_for_it() -> None:
    made, model = drafting(TURN_S / 10)
    answer = made.begin(FRESH, Sampling())
    model.unread = 200
    assert turn(made, answer, 1) == ()
    reads = 0
    while made.read_on([answer]):
        reads += 1
    assert reads == 3
    assert model.unread <= LATE
    assert turn(made, answer, 1)


def test_what_is_longer_than_the_model_reads_has_no_drafts_of_it() -> None:
    made, model = drafting(TURN_S / 10)
    model.longest, model.unread = 40, 300
    answer = made.begin(FRESH, Sampling())
    assert turn(made, answer, 1) == ()
    assert not made.read_on([made.begin([*FRESH, 1], Sampling())])


def test_without_a_model_what_was_seen_before_is_all_there_is() -> None:
    made = Drafting()
    answer = made.begin([1, 2, 3, 4, 5, 9, 2, 3], Sampling())
    assert made.drafts(answer, DRAFTS) == (4, 5, 9)
    assert not made.read_on([answer])
    made.end(answer)
