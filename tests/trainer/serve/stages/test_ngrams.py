"""What an answer may go on with, by what followed the same words before."""

from trainer.serve.stages.ngrams import FIRST_GUESS, DraftedAnswer
from trainer.serve.stages.passes import DRAFTS


def test_what_followed_the_same_tokens_before_may_follow_again() -> None:
    assert DraftedAnswer([1, 2, 3, 4, 5, 9, 2, 3]).drafts(3) == (4, 5, 9)


def test_nothing_is_drafted_where_nothing_was_seen() -> None:
    assert DraftedAnswer([1, 2, 3, 4]).drafts(8) == ()
    assert DraftedAnswer([7]).drafts(8) == ()
    assert DraftedAnswer([1, 1, 1]).drafts(0) == ()


def test_what_was_seen_last_and_is_longest_comes_first() -> None:
    assert DraftedAnswer([5, 6, 1, 5, 6, 2, 5, 6]).drafts(1) == (2,)
    assert DraftedAnswer([9, 5, 6, 1, 8, 5, 6, 2, 9, 5, 6]).drafts(1) == (1,)


def test_a_period_goes_on_beyond_what_is_there() -> None:
    answer = DraftedAnswer([1, 2, 3, 1, 2, 3])
    assert answer.drafts(7) == (1, 2, 3)
    answer.learn(3, 3)
    answer.learn(6, 6)
    assert answer.drafts(7) == (1, 2, 3, 1, 2, 3, 1)


def test_fewer_are_drafted_while_they_are_wrong() -> None:
    answer = DraftedAnswer([1, 2] * 9)
    assert len(answer.drafts(99)) == FIRST_GUESS
    answer.learn(FIRST_GUESS, FIRST_GUESS)
    answer.learn(2 * FIRST_GUESS, 2 * FIRST_GUESS)
    assert len(answer.drafts(99)) == DRAFTS
    answer.learn(DRAFTS, 0)
    assert len(answer.drafts(99)) == 2
    answer.learn(2, 2)
    assert len(answer.drafts(99)) == 4
    answer.learn(0, 0)
    assert len(answer.drafts(99)) == 4


def test_tokens_that_are_added_are_looked_up_too() -> None:
    answer = DraftedAnswer([1, 2, 3])
    answer.extend([4, 1, 2])
    assert answer.drafts(2) == (3, 4)


def test_after_a_miss_more_tokens_must_be_alike() -> None:
    answer = DraftedAnswer([5, 6, 1, 9, 5, 6])
    assert answer.drafts(1) == (1,)
    answer.learn(1, 0)
    assert answer.drafts(1) == ()
    answer.extend([1, 9])
    assert answer.drafts(1) == (5,)
