"""Secure sums: exact, whoever drops out; below the threshold nothing; servers and owners that lie."""

import itertools
import random
import time
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import pytest

from protocol.identity import NodeKey
from protocol.secure_sum import (
    KeysTold,
    ListSigned,
    MaskedValues,
    SecureSumError,
    SharesShown,
    SharesTold,
    SumOwner,
    SumServer,
    SumTerms,
    lanes,
)
from protocol.secure_sum.grid import SumGrid
from protocol.secure_sum.masks import add_masks, add_vector, common_key
from protocol.secure_sum.shamir import PRIME, join, split

Gone = dict[int, set[int]]
"""By phase from 0 on, who says nothing in it and after it."""
NODES = [NodeKey(bytes([7, number]) * 16) for number in range(100)]


class Sum:
    """Owners and a server in one process."""

    def __init__(self, count: int, length: int = 50, seed: int = 1, name: str = "a sum") -> None:
        self.terms = SumTerms(name, tuple(node.address for node in NODES[:count]), length)
        self.owners = [SumOwner(self.terms, node) for node in NODES[:count]]
        self.names = [node.address for node in NODES[:count]]
        self.vectors = np.random.default_rng(seed).integers(0, 1 << 32, (count, length), dtype=np.uint32)
        self.server = SumServer(self.terms)

    def keys(self, here: Iterable[int]) -> list[KeysTold]:
        return [self.owners[number].keys() for number in here]

    def upto_masked(self, gone: Gone | None = None) -> list[MaskedValues]:
        """The first three phases, to what the owners send."""
        self.here = set(range(len(self.owners))) - (gone or {}).get(0, set())
        told = self.server.keys(self.keys(sorted(self.here)))
        self.here -= (gone or {}).get(1, set())
        self.boxes = self.server.boxes([self.owners[number].share(told) for number in sorted(self.here)])
        self.here -= (gone or {}).get(2, set())
        return [self.owners[n].mask(self.boxes[self.names[n]], self.vectors[n].tobytes()) for n in sorted(self.here)]

    def run(self, gone: Gone | None = None) -> npt.NDArray[np.uint32]:
        summands = self.server.summands(self.upto_masked(gone))
        self.counted = [self.names.index(owner) for owner in summands]
        self.here -= (gone or {}).get(3, set())
        signed = self.server.signatures([self.owners[number].sign(summands) for number in sorted(self.here)])
        self.here -= (gone or {}).get(4, set())
        total = self.server.total([self.owners[number].show(signed) for number in sorted(self.here)])
        return np.frombuffer(total, dtype="<u4")

    def due(self) -> npt.NDArray[np.uint32]:
        return self.vectors[self.counted].sum(0, dtype=np.uint32)


# --- the sum ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 4, 7, 12])
def test_the_sum_is_exact(count: int) -> None:
    made = Sum(count)
    assert np.array_equal(made.run(), made.due())
    assert made.counted == list(range(count)) or sorted(made.counted) == list(range(count))


@pytest.mark.parametrize("phase", range(5))
@pytest.mark.parametrize("count", [1, 3])
def test_owners_may_drop_out_in_every_phase(phase: int, count: int) -> None:
    made = Sum(10)
    gone = set(random.Random(phase).sample(range(10), count))
    assert np.array_equal(made.run({phase: gone}), made.due())
    assert set(made.counted) == set(range(10)) - (gone if phase < 3 else set())


def test_owners_may_drop_out_in_all_phases_of_one_sum() -> None:
    made = Sum(16)
    assert np.array_equal(made.run({0: {1}, 1: {2}, 2: {3, 15}, 3: {4}}), made.due())
    assert sorted(made.counted) == [n for n in range(16) if n not in {1, 2, 3, 15}]


@pytest.mark.parametrize("phase", range(5))
def test_of_too_few_owners_there_is_no_sum_and_it_says_how_many_there_are(phase: int) -> None:
    made = Sum(9)
    assert made.terms.least == 7
    with pytest.raises(SecureSumError, match=r"6 of 9 owners .* 7 and more|5 shares .* 6 put it together"):
        made.run({phase: {0, 4, 8}})


def test_vectors_are_added_and_taken_off_modulo_their_values_whatever_their_length() -> None:
    drawn = np.random.default_rng(4)
    for count in (1, 2, 3, 5, 1023, (lanes.PART // 4) + 1, 40_001):
        ours, theirs = drawn.integers(0, 1 << 32, (2, count), dtype=np.uint32)
        ours[0], theirs[0], ours[-1], theirs[-1] = 0xFFFFFFFF, 1, 0, 0xFFFFFFFF
        total = bytearray(ours.tobytes())
        add_vector(total, theirs.tobytes())
        assert np.array_equal(np.frombuffer(total, "<u4"), ours + theirs)
        parts = [one.tobytes()[: lanes.PART] for one in (ours, theirs)]
        kept = np.frombuffer(lanes.summed(parts[0], [parts[1]] * 300, [parts[0]] * 301), "<u4")
        assert np.array_equal(kept, ((theirs - ours) * np.uint32(300))[: len(kept)])


def test_values_are_summed_to_a_step_of_their_grid() -> None:
    grid, drawn = SumGrid(1e-4, 5), np.random.default_rng(2)
    values = drawn.normal(0, 3, (5, 400))
    total = np.zeros(400, dtype=np.uint32)
    for one in values:
        whole = grid.whole(one)
        assert np.linalg.norm(whole * grid.step) <= np.linalg.norm(one)  # Towards zero.
        total += grid.vector(whole)
    assert np.abs(grid.values(total) - values.sum(0)).max() <= 5 * 1e-4 + 1e-12
    huge = grid.vector(np.array([1 << 60, -(1 << 60)]))
    assert np.array_equal(grid.values(huge), np.array([1.0, -1.0]) * grid.most * 1e-4)
    assert 5 * grid.most < 1 << 31


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("length", [100_000])
def test_a_hundred_owners_are_summed_in_seconds(length: int) -> None:
    """All owners' parts run here, one after the other; each owner's own takes a hundredth of that."""
    began, made = time.process_time(), Sum(100, length)
    assert np.array_equal(made.run({2: set(range(5))}), made.due())
    assert time.process_time() - began < 60


# --- what is seen -------------------------------------------------------------------------------------------------------------


def test_fewer_shares_than_the_threshold_fit_every_secret() -> None:
    """For any other secret there is one more share with which the same shares put that one together."""
    shares = split(bytes(range(32)), range(1, 10), 6)
    for other in (bytes(32), b"\xff" * 32, bytes(range(1, 33))):
        for known in itertools.islice(itertools.combinations(shares, 5), 20):
            points = {0: int.from_bytes(other, "big")} | {
                place: int.from_bytes(shares[place], "big") for place in known
            }
            missing = next(place for place in shares if place not in known)
            value = 0
            for place, number in points.items():
                above, below = 1, 1
                for another in points:
                    if another != place:
                        above, below = above * (missing - another) % PRIME, below * (place - another) % PRIME
                value = (value + number * above * pow(below, -1, PRIME)) % PRIME
            forged = {place: shares[place] for place in known} | {missing: value.to_bytes(33, "big")}
            assert join(forged) == other
    assert join({place: shares[place] for place in (2, 3, 5, 7, 8, 9)}) == bytes(range(32))


def test_the_field_is_one_and_every_secret_is_a_number_of_it() -> None:
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in range(2, 60))
    assert join(split(b"\xff" * 32, [1, 2, 3], 2)) == b"\xff" * 32
    with pytest.raises(ValueError, match="no number of the field"):
        join({1: b"\xff" * 33})


def spread(view: npt.NDArray[np.uint32]) -> float:
    """Chi-square of the bytes against all being as frequent, in standard deviations from what chance gives."""
    counts = np.bincount(view.view(np.uint8), minlength=256)
    expected = view.nbytes / 256
    return float((((counts - expected) ** 2 / expected).sum() - 255) / np.sqrt(2 * 255))


def colluders_view(vector: npt.NDArray[np.uint32], colluders: int, with_seed: bool = False) -> npt.NDArray[np.uint32]:
    """What a server and owners in league with it are left with of owner 0's vector, all masks that they know taken off.

    ``with_seed``: as many are in league as put its seed together; and with them all whom it shares masks with.
    """
    made = Sum(9, 4096, name=f"{colluders} {with_seed}")
    made.vectors[0] = vector
    sent = made.upto_masked()
    left = np.frombuffer(sent[0].values, dtype="<u4").copy()
    for number in range(1, 1 + colluders):
        owner, other = made.owners[number], made.names[0]
        key = common_key(owner._masking, owner._keys[other].masking, made.terms, "masking")
        add_masks(left, *(([], [key]) if other < made.names[number] else ([key], [])))
    if with_seed:
        shares = {}
        for number in range(1, 1 + colluders):
            opened = made.owners[number]._open(made.names[0], made.owners[number]._boxes[made.names[0]])
            assert opened is not None
            shares[made.names.index(made.names[number]) + 1] = opened[:33]
        add_masks(left, [], [join(dict(list(shares.items())[: made.terms.shares]))])
    return left


@pytest.mark.parametrize("colluders", [0, 2, 5])
def test_what_is_seen_below_the_threshold_does_not_depend_on_the_update(colluders: int) -> None:
    """Of two quite different vectors the views are as random bytes; with all in league the vector itself is left."""
    plain, other = np.zeros(4096, dtype=np.uint32), np.arange(4096, dtype=np.uint32) * 3
    views = [colluders_view(vector, colluders) for vector in (plain, other)]
    assert all(abs(spread(view)) < 5 for view in views)
    assert abs(np.corrcoef(views[0].astype(float), other.astype(float))[0, 1]) < 0.08
    assert abs(spread(plain)) > 1000  # The test would see what is not random.


def test_only_all_others_together_have_what_it_takes() -> None:
    vector = np.arange(4096, dtype=np.uint32) * 3
    assert np.array_equal(colluders_view(vector, 8, with_seed=True), vector)
    assert abs(spread(colluders_view(vector, 7, with_seed=True))) < 5  # One mask is left, of two who are honest.


def test_two_sums_of_the_same_vector_have_nothing_in_common() -> None:
    first, second = (Sum(4, 4096).upto_masked()[0].values for _ in range(2))
    assert abs(spread(np.frombuffer(first, "<u4") - np.frombuffer(second, "<u4"))) < 5


# --- a server that lies -------------------------------------------------------------------------------------------------------


def upto_signed(made: Sum) -> tuple[tuple[str, ...], list[ListSigned]]:
    summands = made.server.summands(made.upto_masked())
    return summands, [owner.sign(summands) for owner in made.owners]


def test_an_owner_shows_of_nobody_both_shares_however_it_is_asked() -> None:
    made = Sum(6)
    summands, signed = upto_signed(made)
    shown = made.owners[0].show(signed)
    assert not shown.seeds.keys() & shown.masking.keys()
    assert shown.seeds.keys() == set(summands) - {made.names[0]}
    with pytest.raises(SecureSumError, match="once, in order"):
        made.owners[0].show(signed)
    with pytest.raises(SecureSumError, match="once, in order"):
        made.owners[0].sign(summands[:5])


def test_one_list_for_some_and_another_for_others_is_found() -> None:
    """The server wants owner 5's seed of one half and its mask key of the other."""
    made = Sum(6)
    summands = made.server.summands(made.upto_masked())
    without = tuple(owner for owner in summands if owner != made.names[5])
    first = [made.owners[number].sign(summands) for number in (0, 1, 2, 5)]
    second = [made.owners[number].sign(without) for number in (3, 4)]
    with pytest.raises(SecureSumError, match="4 of 6 owners have signed the list"):
        made.owners[0].show(first)
    with pytest.raises(SecureSumError, match="not signed by it"):
        made.owners[1].show([*first, *second])
    with pytest.raises(SecureSumError, match="2 of 6 owners have signed"):
        made.owners[3].show(second)


def test_two_lists_are_never_both_signed_by_enough() -> None:
    for count in range(3, 101):
        terms = SumTerms("s", tuple(node.address for node in NODES[:count]), 1)
        both = 2 * terms.least - count  # So many at least have signed both.
        assert both > count / 3 - 1e-9
        assert terms.shares > count / 3


LIES: dict[str, tuple[str, Callable[[Sum], object]]] = {
    "keys of somebody else": (
        "not signed by it",
        lambda made: made.owners[0].share(
            [*made.keys(range(5)), KeysTold(made.names[5], bytes(32), bytes(32), NODES[4].sign("x", b""))]
        ),
    ),
    "keys of another sum": (
        "not signed by it",
        lambda made: made.owners[0].share([*made.keys(range(5)), Sum(6, name="another").owners[5].keys()]),
    ),
    "keys of a stranger": (
        "no owner of this sum",
        lambda made: made.owners[0].share([*made.keys(range(6)), Sum(7).owners[6].keys()]),
    ),
    "keys twice": (
        "two pairs of keys",
        lambda made: made.owners[0].share([*made.keys(range(6)), Sum(6).owners[3].keys()]),
    ),
    "not its own keys": (
        "own keys are not among",
        lambda made: made.owners[0].share([Sum(6).owners[0].keys(), *made.keys(range(1, 6)), *made.keys([0])][:6]),
    ),
    "too few keys": ("4 of 6 owners are here", lambda made: made.owners[0].share(made.keys(range(4)))),
}


@pytest.mark.parametrize("name", LIES)
def test_forged_keys_are_refused(name: str) -> None:
    said, lie = LIES[name]
    with pytest.raises(SecureSumError, match=said):
        lie(Sum(6))


def test_a_vector_leaves_only_with_masks_of_enough_and_a_list_has_to_have_it() -> None:
    made = Sum(6)
    told = made.server.keys(made.keys(range(6)))
    boxes = made.server.boxes([owner.share(told) for owner in made.owners])[made.names[0]]
    with pytest.raises(SecureSumError, match="1 of 6 owners have shared"):
        made.owners[0].mask({}, made.vectors[0].tobytes())
    with pytest.raises(SecureSumError, match="once, in order"):  # There is no second try, with whatever masks.
        made.owners[0].mask(boxes, made.vectors[0].tobytes())
    other = Sum(6)
    summands = other.server.summands(other.upto_masked())
    with pytest.raises(SecureSumError, match="nothing of it need be shown"):
        other.owners[0].sign(set(summands) - {other.names[0]})
    with pytest.raises(SecureSumError, match="had not shared"):
        other.owners[1].sign([*summands, NODES[50].address])


def test_a_key_with_which_all_agree_on_the_same_is_refused() -> None:
    made = Sum(4)
    node, told = NODES[3], made.keys(range(3))
    weak = (bytes(32), bytes(32))
    forged = KeysTold(node.address, *weak, node.sign("cottage secure sum keys", made.terms.digest, *weak))
    with pytest.raises(SecureSumError, match="no point to agree on"):
        made.owners[0].share([*told, forged])


# --- owners that lie ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lie", ["weak sealing", "weak masking", "another's"])
def test_one_owners_bad_keys_leave_that_owner_out_and_end_nobody_elses_part(lie: str) -> None:
    """The server passes on nothing at which the others would have to give up."""
    made = Sum(7)
    node, told = NODES[6], made.keys(range(7))
    sealing = bytes(32) if lie == "weak sealing" else told[6].sealing
    masking = {"weak masking": bytes(32), "another's": told[0].masking}.get(lie, told[6].masking)
    signature = node.sign("cottage secure sum keys", made.terms.digest, sealing, masking)
    passed = made.server.keys([*told[:6], KeysTold(node.address, sealing, masking, signature)])
    assert {keys.owner for keys in passed} == {*made.names[:6]}
    for owner in made.owners[:6]:
        owner.share(passed)


def test_a_false_share_is_found_or_spoils_the_sum_and_shows_nothing() -> None:
    made = Sum(7)
    summands = made.server.summands(made.upto_masked({2: {6}}))
    signed = made.server.signatures([made.owners[number].sign(summands) for number in range(6)])
    shown = [made.owners[number].show(signed) for number in range(6)]
    bent = {owner: (1).to_bytes(33, "big") for owner in shown[0].masking}
    with pytest.raises(SecureSumError, match=r"false|put nothing together"):
        made.server.total([SharesShown(shown[0].owner, shown[0].seeds, bent), *shown[1:]])


def test_boxes_that_cannot_be_opened_are_missing_shares_and_no_more() -> None:
    made = Sum(9)
    told = made.server.keys(made.keys(range(9)))
    shared = [owner.share(told) for owner in made.owners]
    spoilt = shared[8].boxes | {made.names[0]: b"not a box"}
    boxes = made.server.boxes([*shared[:8], SharesTold(made.names[8], spoilt)])
    sent = [
        owner.mask(boxes[name], vector.tobytes())
        for owner, name, vector in zip(made.owners, made.names, made.vectors, strict=True)
    ]
    summands = made.server.summands(sent)
    signed = made.server.signatures([owner.sign(summands) for owner in made.owners])
    shown = [owner.show(signed) for owner in made.owners]
    assert made.names[8] not in shown[0].seeds
    assert np.array_equal(np.frombuffer(made.server.total(shown), "<u4"), made.vectors.sum(0, dtype=np.uint32))


def test_vectors_of_another_length_and_second_ones_do_not_count() -> None:
    made = Sum(9)
    sent = made.upto_masked()
    bad = [MaskedValues(sent[0].owner, sent[0].values[:-4]), sent[1], sent[1], *sent[2:]]
    assert len(made.server.summands(bad)) == 8
