"""Every way to cheat ends as the catalogue says, and costs nobody else anything. ``benchmarks/cheats.py`` runs many worlds."""

import asyncio

import pytest

from tests.cheats.catalogue import CATALOGUE, Cheat, Fate, fate

WORLDS = 3


def fates(cheat: Cheat) -> list[Fate]:
    return [asyncio.run(fate(cheat, seed)) for seed in range(WORLDS)]


@pytest.mark.parametrize("cheat", CATALOGUE, ids=lambda cheat: cheat.name.replace(" ", "-"))
def test_whoever_cheats_is_caught_unpaid_for_what_was_found_and_nobody_else_pays(cheat: Cheat) -> None:
    found = fates(cheat)
    assert all(world.settled for world in found), "the submitter gets a model all the same"
    assert not any(world.honest_slashed or world.honest_banned for world in found)
    assert not any(world.paid_forged for world in found)
    caught = [world for world in found if world.rounds is not None]
    if cheat.ends == "undecided":
        assert not caught
        assert all(world.slashed == 0 and not world.banned for world in found)
        return
    assert len(caught) >= WORLDS - 1, "once in a while a job ends before anybody looks"
    match cheat.ends:
        case "slashed":
            assert all(world.slashed == 500_000 and world.banned for world in caught)
        case "expelled":
            assert all(world.banned and world.slashed == 0 for world in caught)
        case _:
            assert not any(world.slashed for world in caught)


def test_without_a_cheat_every_audit_passes() -> None:
    for world in fates(Cheat("nobody", {7: {}}, None, "harmless")):
        assert world.settled
        assert world.rounds is None
        assert world.audits >= 10
        assert (world.slashed, world.honest_slashed, world.banned, world.honest_banned) == (0, 0, False, 0)
