"""Every way to cheat ends as the catalogue says, and costs nobody else anything. ``benchmarks.trust.cheats`` runs many worlds."""

import asyncio
from collections.abc import Iterator

import pytest
from _pytest.mark.structures import ParameterSet

from tests.cheats.catalogue import BREAKING, CATALOGUE, HONEST, Cheat, Fate, fate

WORLDS = 3
SEEN_BY_CHANCE = 18  # Worlds of a cheat that is found by chance alone.


def fates(cheat: Cheat, worlds: int = WORLDS) -> list[Fate]:
    return [asyncio.run(fate(cheat, seed)) for seed in range(worlds)]


def one_of_each_end() -> Iterator[ParameterSet]:
    """One world of the first cheat of each end; the whole catalogue in several worlds is long."""
    ends = {"expelled"}  # It is found by chance, and needs many worlds.
    for cheat in CATALOGUE:
        name = cheat.name.replace(" ", "-")
        if cheat.ends not in ends:
            yield pytest.param(cheat, 1, id=f"{name}-once")
        ends.add(cheat.ends)
        worlds = SEEN_BY_CHANCE if cheat.ends == "expelled" else WORLDS
        yield pytest.param(cheat, worlds, marks=pytest.mark.long, id=name)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("cheat", "worlds"), list(one_of_each_end()))
def test_whoever_cheats_is_caught_unpaid_for_what_was_found_and_nobody_else_pays(cheat: Cheat, worlds: int) -> None:
    found = fates(cheat, worlds)
    missed = 0 if worlds == 1 else 1  # Once in a while a job ends before anybody looks.
    assert all(world.settled for world in found), "the submitter gets a model all the same"
    assert not any(world.honest_slashed or world.honest_banned for world in found)
    assert not any(world.paid_forged for world in found)
    assert not any(world.false_losses for world in found)
    caught = [world for world in found if world.rounds is not None]
    if cheat.ends in ("undecided", "replaced"):
        assert not caught
        assert all(world.slashed == 0 and not world.banned for world in found)
        return
    if cheat.ends == "expelled":  # Only canaries show it, and they go to others, too: 24 of 30 were caught.
        assert len(caught) >= SEEN_BY_CHANCE * (WORLDS - 1) // WORLDS
    else:
        assert len(caught) >= worlds - missed
    match cheat.ends:
        case "slashed":
            assert all(world.slashed == 500_000 and world.banned for world in caught)
        case "expelled":
            assert all(world.banned and world.slashed == 0 for world in caught)
        case "outvoted":
            assert all(world.faults and world.slashed == 0 and not world.banned for world in caught)
        case "repeated":
            assert all((world.slashed > 0) == (world.evaded > 1) for world in caught), "the first time costs no stake"
            assert all(world.slashed <= 50_000 * (world.evaded - 1) for world in caught if world.slashed)
            assert sum(world.slashed > 0 for world in caught) >= worlds - missed, "it goes on in the next job"


@pytest.mark.parametrize("worlds", [1, pytest.param(WORLDS, marks=pytest.mark.long)])
def test_without_a_cheat_every_audit_passes(worlds: int) -> None:
    for world in fates(HONEST, worlds):
        assert world.settled
        assert world.rounds is None
        assert world.audits >= 100
        assert (world.slashed, world.honest_slashed, world.banned, world.honest_banned) == (0, 0, False, 0)


@pytest.mark.long
def test_machines_that_hang_crash_and_are_cut_off_at_random_lose_no_stake_and_no_place() -> None:
    found: list[Fate] = []
    while len(found) < 8 or (len(found) < 40 and not any(world.honest_evaded for world in found)):
        found.append(asyncio.run(fate(BREAKING, len(found))))  # In one of ten or so somebody hangs just then.
    assert sum(world.honest_evaded for world in found) > 0, "some hung when they were asked"
    assert not any(world.slashed or world.honest_slashed or world.banned or world.honest_banned for world in found)
