"""Claims of nodes that are in other cells: what is told of them, what others' claims do here, and who goes first."""

from coordinator.services.network.claims import CLAIM_S, LAPSE_S, SEEKING_S, WAY_S, Claims
from tests.sim.world import SimClock


class Far:
    """Nodes of other cells that could come."""

    def __init__(self) -> None:
        self.clock = SimClock()
        self.nodes: frozenset[str] = frozenset()
        self.claims = Claims(self.clock, beside=lambda: self.nodes)


def test_a_job_may_claim_what_is_free_elsewhere_and_its_cell_tells_which() -> None:
    far = Far()
    claims = far.claims
    assert not claims.is_due("a"), "nobody has anything"
    assert (claims.wanted(()), claims.away(())) == (1, {"a": frozenset()}), "it lacks one, at least"
    far.nodes = frozenset({"1", "2", "3"})
    assert claims.is_due("a")
    assert claims.spare("a") == {"1", "2", "3"}
    claims.claim("a", {"1", "2", "mine"})
    assert claims.away({"mine"}) == {"a": {"1", "2"}}
    assert claims.wanted({"mine"}) == 2
    assert claims.spare("b") == {"3"}, "another job here does not claim it twice"
    assert claims.away({"mine", "1", "2"}) == {"a": frozenset()}
    assert claims.wanted({"mine", "1", "2"}) == 0, "all of them have come"
    claims.drop("a")
    assert (claims.wanted(()), claims.away(())) == (0, {})


def test_a_job_that_looks_no_longer_is_forgotten_and_its_claim_lapses() -> None:
    far = Far()
    far.nodes = frozenset({"1"})
    assert far.claims.is_due("a")
    far.claims.claim("a", {"1"})
    far.clock.t += SEEKING_S
    assert far.claims.away(()) == {}, "its process has not looked at it for long"
    assert far.claims.claimed() == {"1"}
    far.clock.t += LAPSE_S
    assert far.claims.claimed() == set()


def test_a_node_on_its_way_from_another_cell_is_waited_for_a_while_though_it_is_in_neither() -> None:
    far = Far()
    far.nodes = frozenset({"1", "2"})
    far.claims.is_due("a")
    far.claims.claim("a", {"1", "mine"})
    far.nodes = frozenset({"2"})
    far.clock.t += CLAIM_S
    assert far.claims.renew("a", {"2", "mine"})
    assert far.claims.away({"mine"}) == {"a": {"1"}}, "so it is led here when it comes"
    assert not far.claims.renew("a", {"2"}), "of those that were here nobody is on a way"
    far.clock.t += WAY_S - 0.1
    assert far.claims.renew("a", {"2", "mine"})
    far.clock.t += 0.1
    assert not far.claims.renew("a", {"2", "mine"}), "it is lost"
    assert far.claims.renew("a", {"1", "mine"}), "or has come"
    far.clock.t += 1.0
    assert far.claims.renew("a", {"mine"}), "and may be on its way anew"


def test_what_arrays_wish_for_is_told_until_it_can_have_come() -> None:
    far = Far()
    far.claims.wish("array", {"1", "2"})
    far.clock.t += WAY_S - 0.1
    far.claims.wish("array", {"2"})
    assert far.claims.wishes() == {"1", "2"}
    far.clock.t += 0.1
    assert far.claims.wished("array") == {"2"}
    assert far.claims.wanted(()) == 1
    assert far.claims.wanted({"2"}) == 0, "it is here"


def test_what_arrays_wish_for_yields_to_what_jobs_wait_for() -> None:
    far = Far()
    far.claims.wish("array", {"1", "2"})
    assert far.claims.wishes() == {"1", "2"}
    far.claims.claim("a", {"1"})
    assert far.claims.wishes() == {"2"}
    assert far.claims.wanted(()) == 1
    far.claims.lends("array", None)
    assert far.claims.wishes() == set()


def test_claims_of_other_cells_hold_here_as_long_as_they_are_told() -> None:
    far = Far()
    far.claims.hear({"b": ("1", "2")})
    assert far.claims.called == {"1", "2"}
    assert far.claims.claimed() == {"1", "2"}
    assert far.claims.claimed("b") == set()
    assert far.claims.kept_from(lambda job: job == "b") == set(), "its own cell is told that they are free"
    assert far.claims.kept_from(lambda job: job == "c") == {"1", "2"}
    far.clock.t += LAPSE_S
    assert far.claims.called == {"1", "2"}
    far.claims.hear({})
    assert far.claims.claimed() == set()


def test_of_two_jobs_of_different_cells_the_first_by_name_goes_first_in_both() -> None:
    here, there = Far(), Far()
    here.claims.claim("b", {"1", "2", "3"})
    there.claims.claim("a", {"3", "4"})
    here.claims.hear({"a": ("3", "4")})
    there.claims.hear({"b": ("1", "2", "3")})
    assert here.claims.claimed() == {"3", "4"}, "it gives way whole: without one it could not begin"
    assert here.claims.called == {"3", "4"}
    assert there.claims.called == set()
    assert there.claims.claimed() == {"3", "4"}
    here.nodes = frozenset({"9"})
    assert not here.claims.is_due("b"), "it looks for others, after a while"
    here.clock.t += CLAIM_S
    assert here.claims.is_due("b")


def test_of_two_jobs_elsewhere_one_is_served_and_what_concerns_nobody_else_stays() -> None:
    far = Far()
    far.claims.claim("m", {"9"})
    far.claims.hear({"z": ("5",), "b": ("1", "2"), "c": ("2", "3")})
    assert far.claims.called == {"1", "2", "5"}
    assert far.claims.claimed() == {"1", "2", "5", "9"}


def test_what_could_go_from_here_are_spares_of_this_cell_alone() -> None:
    far = Far()
    far.nodes = frozenset({"far"})
    far.claims.lends("array", {"1", "2"})
    assert far.claims.loose() == {"1", "2"}
    assert far.claims.spare("a") == {"1", "2", "far"}
