"""Networks that an owner has joined: kept with their keys, found again by their address alone."""

import json
from pathlib import Path

import pytest

from common.invitations import Invitation
from desktop.agent.app import settings as owner
from desktop.agent.app.settings import SettingsChange, effect_of
from desktop.agent.base import networks
from desktop.agent.base.config import Home, Settings
from desktop.agent.cli import cli
from desktop.agent.errors import NoNetworkError
from protocol.identity import NodeKey

KEY, OTHER = NodeKey(b"a" * 32).address, NodeKey(b"b" * 32).address
FIRST, SECOND = Invitation("https://first.example", KEY), Invitation("https://second.example", OTHER)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path)


def change(home: Home, text: str) -> Settings:
    """As the window does it."""
    after = SettingsChange(coordinator=text).apply(home.settings(), KEY, networks.known(home.networks))
    home.remember(after)
    return after


def test_an_invitation_sets_address_and_key_and_an_address_alone_forgets_no_key(home: Home) -> None:
    assert change(home, FIRST.link).network == FIRST
    assert change(home, SECOND.page).network == SECOND
    assert change(home, "https://first.example").network == FIRST, "what was joined once is the same network"
    assert change(home, "https://first.example/join").network == FIRST
    assert change(home, "https://new.example").network == Invitation("https://new.example")
    assert networks.joined(home.networks) == (Invitation("https://new.example"), FIRST, SECOND)
    assert owner.view(home, "").networks == (Invitation("https://new.example").link, FIRST.link, SECOND.link)


def test_another_key_is_another_network(home: Home) -> None:
    before = change(home, FIRST.link)
    after = change(home, Invitation(FIRST.url, OTHER).link)
    assert effect_of(before, after) == "restart"
    assert networks.joined(home.networks) == (Invitation(FIRST.url, OTHER),)


def test_the_code_of_an_invitation_is_kept_and_a_later_one_takes_its_place(home: Home) -> None:
    first, second = "1" * 22, "2" * 22
    before = change(home, Invitation(FIRST.url, KEY, first).page)
    assert (before.invitation, before.network) == (first, Invitation(FIRST.url, KEY, first))
    assert change(home, FIRST.url) == before, "the address of a network that is known forgets nothing"
    after = change(home, Invitation(FIRST.url, "", second).link)
    assert (after.coordinator_key, after.invitation) == (KEY, second), "nor does a code alone"
    assert effect_of(before, after) == "restart", "it greets anew"
    assert change(home, SECOND.link).invitation == "", "a code is shown to nobody else"
    assert first not in repr(Invitation(FIRST.url, KEY, first))


def test_nothing_can_be_said_too(home: Home) -> None:
    change(home, FIRST.link)
    assert change(home, "").network == Invitation("")
    assert networks.joined(home.networks) == (FIRST,)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '["cottage://leave"]', "\x00"])
def test_a_damaged_list_is_an_empty_one(home: Home, content: str) -> None:
    home.networks.write_text(content)
    assert networks.known(home.networks) == ()
    change(home, FIRST.link)
    assert networks.known(home.networks) == (FIRST,)


def test_no_more_than_some_are_kept(home: Home) -> None:
    for number in range(networks.MAX_KEPT + 3):
        change(home, f"https://n{number}.example")
    kept = networks.joined(home.networks)
    assert len(kept) == networks.MAX_KEPT
    assert kept[0].url == f"https://n{networks.MAX_KEPT + 2}.example"


def test_the_command_takes_an_invitation_as_well(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["settings", "--home", str(home.path), "--json", "--coordinator"]
    assert cli.main([*words, FIRST.link]) == 0
    kept = json.loads(capsys.readouterr().out)["settings"]
    assert (kept["coordinator"], kept["coordinator_key"]) == (FIRST.url, KEY)
    assert cli.main([*words, "cottage://join?at=x"]) == 2
    said = capsys.readouterr().err
    assert "such as https://cottage.example" in said
    assert "--coordinator" in said, "whoever types it is told the option"


def test_run_takes_one_too(home: Home) -> None:
    options = cli._parser().parse_args(["run", "--home", str(home.path), "--coordinator", FIRST.page])
    assert cli._settings(options, home).network == FIRST
    options = cli._parser().parse_args(["run", "--home", str(home.path), "--coordinator", "cottage://join"])
    with pytest.raises(NoNetworkError, match="names no address"):
        cli._settings(options, home)
