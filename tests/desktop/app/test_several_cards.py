"""One agent that lends all cards of its computer: a node for each, one owner; each switched by itself."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from common.untrusted_text import untrusted
from desktop.agent.app import backup, computer, settings, startup, status, support
from desktop.agent.app.service import Service
from desktop.agent.app.status import CardOrder, CardsView
from desktop.agent.base.config import Home, Settings
from desktop.agent.cli import cli
from desktop.agent.earnings.earnings import together
from desktop.agent.earnings.records import EarningRecords
from desktop.agent.errors import GaveUpError, SandboxError, SettingsError
from desktop.agent.jobs.line_limits import LimitsChange
from desktop.agent.lending.keeper import LendingChange
from desktop.answers import EarningsSummary
from protocol.identity import verify
from protocol.node import CARD_CONTEXT, JobEarned, Tally
from protocol.task import BeginRound, RoundHolding, TaskReady
from tests.desktop.app.test_owner_of_an_agent import home, serving
from tests.desktop.conftest import JOB, assignment, plan_of
from tests.desktop.coordinator_double import Double
from tests.desktop.jobs.test_exchange_between_nodes import digest_of
from tests.desktop.nvml_double import Card, Driver
from tests.desktop.test_gpus_and_power import FIRST, SECOND
from tests.support.wait import HANGS_S

__all__ = ["home"]


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver(Card(FIRST), Card(SECOND, "NVIDIA GeForce RTX 3060", 12288))
    driver.install(monkeypatch)
    return driver


@contextlib.asynccontextmanager
async def lending(
    home: Home, coordinator: Double, monkeypatch: pytest.MonkeyPatch, resting: tuple[str, ...] = ()
) -> AsyncIterator[tuple[Service, str, str]]:
    """Both cards; with the addresses of their nodes."""
    kept = msgspec.structs.replace(home.settings(), gpu=FIRST, cards=(SECOND,), resting=resting, loopback=True)
    home.remember(msgspec.structs.replace(kept, memory_mb=2048, threads=2))
    first, second = home.key().address, home.key().card(SECOND).address
    async with serving(home, monkeypatch) as service:
        service.switch(True)
        wanted = {node for node, card in ((first, FIRST), (second, SECOND)) if card not in resting}
        await coordinator.until(lambda: wanted <= coordinator.nodes.keys())
        yield service, first, second


async def switch(home: Home, card: str | int, on: bool) -> CardsView:
    return await status.ask_for(home.socket, "cards", CardsView, CardOrder(card, on))


async def test_each_card_is_a_node_that_its_computer_vouches_for_and_one_wallet_is_paid(
    cards: Driver, home: Home, coordinator: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lending(home, coordinator, monkeypatch) as (_, first, second):
        [one] = [hello for hello in coordinator.hellos if hello.node == first]
        [other] = [hello for hello in coordinator.hellos if hello.node == second]
        assert (one.payout, other.payout) == (first, first)
        assert (one.profile.computer, one.vouched) == (None, b"")
        assert other.profile.computer == first
        verify(first, other.vouched, CARD_CONTEXT, second.encode())
        assert [hello.profile.device for hello in (one, other)] == [
            "NVIDIA GeForce RTX 4090",
            "NVIDIA GeForce RTX 3060",
        ]
        assert [hello.profile.beside_mb for hello in (one, other)] == [1024, 1024], "they share the main memory"
        told = await status.ask(home.socket)
        assert (told.node, told.state, told.memory_mb) == (first, "online", 2048)
        assert [(card.gpu, card.node, card.on, card.state) for card in told.cards] == [
            (FIRST, first, True, "online"),
            (SECOND, second, True, "online"),
        ]


async def test_two_cards_of_one_computer_hold_two_stages_of_a_job_and_exchange(
    cards: Driver, home: Home, coordinator: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lending(home, coordinator, monkeypatch) as (_, first, second):
        plan = plan_of((0, 0, first), (1, 0, second))
        seats = [(first, assignment(coordinator, plan, 0, 0)), (second, assignment(coordinator, plan, 1, 0))]
        for node, assign in seats:
            await coordinator.assign(node, assign)
        await coordinator.until(lambda: len(coordinator.bodies(TaskReady)) == 2)
        for node, assign in seats:
            await coordinator.command(node, assign, BeginRound(plan, 0, 0, 10, 100))
        await coordinator.until(lambda: len(coordinator.bodies(RoundHolding)) == 2)
        held = [coordinator.bodies(RoundHolding, assign.lease)[0].held for _, assign in seats]
        assert held == [{101: digest_of("gradient", 1, 0)}, {100: digest_of("activation", 0, 0)}]
        for node, assign in seats:
            held_by = {lease.lease for by, beat in coordinator.beats if by == node for lease in beat.leases}
            assert held_by == {assign.lease}
        told = await status.ask(home.socket)
        assert {(task.lease, task.gpu) for task in told.tasks} == {
            (seats[0][1].lease, FIRST),
            (seats[1][1].lease, SECOND),
        }
        assert len({task.pid for task in told.tasks}) == 2, "a worker each"
        assert {link.peer for link in told.links} == {first, second}


async def test_a_card_is_switched_off_and_on_while_the_other_works_on(
    cards: Driver, home: Home, coordinator: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lending(home, coordinator, monkeypatch) as (service, first, second):
        plan = plan_of((0, 0, first), (0, 1, second))
        for node, replica in ((first, 0), (second, 1)):
            await coordinator.assign(node, assignment(coordinator, plan, 0, replica, "checkpoint"))
        await coordinator.until(lambda: len(coordinator.bodies(TaskReady)) == 2)
        pid = {task.gpu: task.pid for task in (await status.ask(home.socket)).tasks}
        hellos = len([hello for hello in coordinator.hellos if hello.node == first])

        view = await switch(home, 2, on=False)
        assert [card.on for card in view.cards] == [True, False]
        await coordinator.until(lambda: second not in coordinator.nodes)
        async with asyncio.timeout(HANGS_S):
            while len(tasks := (await status.ask(home.socket)).tasks) > 1:
                await asyncio.sleep(0.02)
        assert [(task.gpu, task.pid) for task in tasks] == [(FIRST, pid[FIRST])], "the same worker goes on"
        assert len([hello for hello in coordinator.hellos if hello.node == first]) == hellos, "and the same connection"
        assert home.settings().resting == (SECOND,)

        await switch(home, SECOND, on=True)
        await coordinator.until(lambda: second in coordinator.nodes)
        await switch(home, FIRST, on=False)
        await coordinator.until(lambda: first not in coordinator.nodes)
        with pytest.raises(SettingsError, match="the last card"):
            await switch(home, SECOND, on=False)
        told = await status.ask(home.socket)
        assert (told.node, told.state, service.desk.on) == (first, "online", True), "it is the same computer"
        await switch(home, FIRST, on=True)
        await coordinator.until(lambda: first in coordinator.nodes)


async def test_rules_limits_and_the_end_are_for_all_cards(
    cards: Driver, home: Home, coordinator: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lending(home, coordinator, monkeypatch) as (service, first, second):
        await status.ask_lending(home.socket, LendingChange(pause_s=600.0))
        await coordinator.until(lambda: not coordinator.nodes)
        assert {card.state for card in (await status.ask(home.socket)).cards} == {"away"}
        await status.ask_lending(home.socket, LendingChange(pause_s=0.0))
        await coordinator.until(lambda: {first, second} <= coordinator.nodes.keys())
        view = await status.ask_limits(home.socket, LimitsChange(up="100k"))
        assert (view.limits.up, home.settings().up) == (100_000, 100_000)
        assert home.settings().cards == (SECOND,)
        live = service._agent
        assert isinstance(live, computer.Computer)
        assert {agent.limits().limits.up for agent in live._agents} == {100_000}
        assert len({id(agent._share) for agent in live._agents}) == 1, "one line"
        await status.ask_lending(home.socket, LendingChange(finish=True))
        await coordinator.until(lambda: not coordinator.nodes)
        async with asyncio.timeout(HANGS_S):
            while service.desk.on:
                await asyncio.sleep(0.02)


async def test_a_card_that_cannot_run_jobs_does_not_stop_the_others_and_is_tried_again(
    cards: Driver, home: Home, coordinator: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computer, "RETRY_S", 0.2)
    honest, broken = startup.prepare, True

    async def prepare(home: Home, settings: Settings, *more: object, **most: object) -> object:
        if settings.gpu == SECOND and broken:
            raise SandboxError("the card fell off the bus")
        return await honest(home, settings, *more, **most)  # type: ignore[arg-type]

    monkeypatch.setattr(startup, "prepare", prepare)
    kept = msgspec.structs.replace(home.settings(), gpu=FIRST, cards=(SECOND,), loopback=True, memory_mb=2048)
    home.remember(kept)
    second = home.key().card(SECOND).address
    async with serving(home, monkeypatch) as service:
        service.switch(True)
        await coordinator.until(lambda: home.key().address in coordinator.nodes)
        view = (await status.ask(home.socket)).cards
        assert [(card.state, card.trouble) for card in view] == [("online", ""), ("off", "the card fell off the bus")]
        broken = False
        await coordinator.until(lambda: second in coordinator.nodes)
        assert {card.trouble for card in (await status.ask(home.socket)).cards} == {""}


async def test_a_card_that_is_gone_is_not_replaced_by_the_processor(
    cards: Driver, home: Home, coordinator: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    del cards.cards[1]
    kept = msgspec.structs.replace(home.settings(), gpu=FIRST, cards=(SECOND,), loopback=True, memory_mb=2048)
    home.remember(kept)
    async with serving(home, monkeypatch) as service:
        service.switch(True)
        await coordinator.until(lambda: home.key().address in coordinator.nodes)
        view = (await status.ask(home.socket)).cards[1]
        assert (view.state, str(view.name)) == ("off", "not in this computer")
        assert SECOND in view.trouble
        assert len(coordinator.nodes) == 1


async def test_a_card_rests_and_the_others_go_on_where_that_cannot_be_written_down(
    cards: Driver, home: Home, coordinator: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_home: Home, _settings: Settings) -> None:
        raise SettingsError("settings.json.new cannot be written: no space is left")

    async with lending(home, coordinator, monkeypatch) as (service, first, second):
        live = service._agent
        assert isinstance(live, computer.Computer)
        monkeypatch.setattr(Home, "remember", full)
        [agent] = [agent for agent in live._agents if agent.status().node == second]
        agent._give_up(GaveUpError("somebody reached into a job", "tampered"))
        await coordinator.until(lambda: second not in coordinator.nodes)
        async with asyncio.timeout(HANGS_S):
            while [card.on for card in (await status.ask(home.socket)).cards] != [True, False]:
                await asyncio.sleep(0.02)
        assert first in coordinator.nodes
        assert service.desk.on


async def test_a_card_that_may_not_go_on_is_switched_off_until_its_owner_says_so(
    cards: Driver, home: Home, coordinator: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lending(home, coordinator, monkeypatch) as (service, first, second):
        live = service._agent
        assert isinstance(live, computer.Computer)
        [agent] = [agent for agent in live._agents if agent.status().node == second]
        agent._give_up(GaveUpError("somebody reached into a job", "tampered"))
        await coordinator.until(lambda: second not in coordinator.nodes)
        async with asyncio.timeout(HANGS_S):
            while not (view := (await status.ask(home.socket)).cards[1]).trouble:
                await asyncio.sleep(0.02)
        assert (view.on, view.trouble) == (False, "somebody reached into a job")
        assert home.settings().resting == (SECOND,)
        assert first in coordinator.nodes
        assert service.desk.on
        await switch(home, SECOND, on=True)
        await coordinator.until(lambda: second in coordinator.nodes)
        assert not (await status.ask(home.socket)).cards[1].trouble
        for one in live._agents:
            one._give_up(GaveUpError("somebody reached into all of them", "tampered"))
        async with asyncio.timeout(HANGS_S):
            while service.desk.on:
                await asyncio.sleep(0.02)
        assert "all of them" in (await status.ask(home.socket)).trouble


# --- what is kept ---------------------------------------------------------------------------------------------------


def test_what_a_job_has_brought_on_two_cards_is_added_up(tmp_path: Path, cards: Driver) -> None:
    home = Home.at(tmp_path)
    books = EarningRecords.at(home)
    beside = books.of_card(home.of_card(SECOND))
    url = "https://c.example"
    for at, (file, verified, paid) in enumerate(((books.earnings, 50, 20), (beside.earnings, 7, 7))):
        file.record_seat(url, f"{at}" * 32, JOB, "job", 100.0 + at)
        file.record_work(url, f"{at}" * 32, JOB, "job", 100.0 + at, 60.0, "")
        tallies = (Tally("paid", 1, paid),) if verified == paid else (Tally("paid", 1, paid), Tally("saving", 1, 30))
        file.record(url, JobEarned(JOB, verified, paid, "sig", "running", "held", tallies), 200.0 + at)
    books.close()
    again = EarningRecords.at(home)  # The second card's file is found, whatever is lent now.
    summary = again.summary(300.0, (), "", url)
    again.close()
    [job] = summary.jobs
    assert (summary.verified, summary.paid, job.verified, job.paid, job.seconds) == (57, 27, 57, 27, 120.0)
    assert (job.standing, job.first, job.changed) == ("pending", 200.0, 201.0)
    assert summary.days[-1].verified == summary.today


def test_one_summary_alone_stays_what_it_is() -> None:
    assert together([EarningsSummary(1, 1, None, ())]) == EarningsSummary(1, 1, None, ())


def test_a_cards_key_follows_from_the_computers_and_needs_no_backup(tmp_path: Path) -> None:
    key = Home.at(tmp_path / "one").key()
    again = backup.from_words(backup.to_words(key))
    assert again.card(SECOND).address == key.card(SECOND).address
    assert len({key.address, key.card(FIRST).address, key.card(SECOND).address}) == 3
    assert Home.at(tmp_path / "one").of_card(SECOND).key().address == key.card(SECOND).address


def test_a_backup_brings_cards_back_only_where_they_are(cards: Driver) -> None:
    kept = Settings(gpu=FIRST, cards=(SECOND,), resting=(SECOND,))
    assert backup.fitting(kept) == kept
    del cards.cards[1]
    assert backup.fitting(kept) == Settings(gpu=0)


# --- settings and commands --------------------------------------------------------------------------------------------


def test_all_cards_or_some_are_chosen_by_number_or_name(
    cards: Driver, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    words = ["settings", "--home", str(tmp_path)]
    assert cli.main([*words, "--gpu", "all"]) == 0
    assert Home.at(tmp_path).settings().lent == (FIRST, SECOND)
    assert "lent, too" in capsys.readouterr().out
    assert cli.main([*words, "--gpu", f"{SECOND},0"]) == 0
    assert Home.at(tmp_path).settings().lent == (SECOND, FIRST)
    for wrong in ("0,0", "0,5", "0,-1", "0,GPU-0000000000"):
        assert cli.main([*words, "--gpu", wrong]) != 0, wrong
    assert Home.at(tmp_path).settings().lent == (SECOND, FIRST)
    assert cli.main([*words, "--memory-mb", "600"]) != 0, "two cards need twice as much"
    capsys.readouterr()
    assert cli.main(["cards", "--home", str(tmp_path), "--off", "2", "--json"]) == 0
    view = json.loads(capsys.readouterr().out)
    assert [(card["gpu"], card["on"]) for card in view["cards"]] == [(SECOND, True), (FIRST, False)]
    assert cli.main(["cards", "--home", str(tmp_path)]) == 0
    assert "switched off" in capsys.readouterr().out
    assert cli.main(["cards", "--home", str(tmp_path), "--off", "1"]) != 0
    assert cli.main(["cards", "--home", str(tmp_path), "--off", "3"]) != 0
    assert cli.main([*words, "--gpu", "1"]) == 0
    kept = Home.at(tmp_path).settings()
    assert (kept.gpu, kept.cards, kept.resting) == (SECOND, (), ())
    capsys.readouterr()
    assert cli.main(["cards", "--home", str(tmp_path)]) == 0
    assert "--gpu all" in capsys.readouterr().out


def test_switching_a_card_is_in_force_at_once_and_lending_others_begins_anew() -> None:
    one = Settings(gpu=FIRST)
    both = Settings(gpu=FIRST, cards=(SECOND,))
    assert settings.effect_of(one, both) == "restart"
    assert settings.effect_of(both, Settings(gpu=FIRST, cards=(SECOND,), resting=(SECOND,))) == "now"


def test_the_report_for_support_names_no_card(cards: Driver, tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    home.remember(Settings(gpu=FIRST, cards=(SECOND,), resting=(SECOND,)))
    books = EarningRecords.at(home)
    said = support.report(home, books.activity, "1")
    books.close()
    assert "cards=" in said
    assert "resting=" in said
    assert "NVIDIA GeForce RTX 3060" in said
    assert SECOND not in said


async def test_nothing_that_a_card_is_called_reaches_a_screen_as_it_came(
    home: Home, coordinator: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(Card(FIRST), Card(SECOND, "card\x1b[2J\n"))
    driver.install(monkeypatch)
    home.remember(msgspec.structs.replace(home.settings(), gpu=FIRST, cards=(SECOND,)))
    async with serving(home, monkeypatch):
        view = (await status.ask(home.socket)).cards
    assert str(view[1].name) == str(untrusted("card\x1b[2J\n"))
    assert "\x1b" not in view[1].name
