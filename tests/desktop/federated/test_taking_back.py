"""An owner who leaves while the own data is still checked has joined nothing."""

import argparse
import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from desktop.agent.cli import federation_cli
from desktop.agent.errors import SettingsError
from desktop.agent.federated.joining import Joining, JoinOrder, LeaveFederationOrder
from desktop.agent.federated.memberships import Memberships
from desktop.agent.sandbox.base import Sandbox
from protocol.codec import encode_json
from protocol.federated.federations import FederationTold, FederationWish, OwnDataReport, terms_digest
from tests.desktop.federated.test_owners_gate import JOB, SPEC


class SlowSandbox:
    """Checks data until it is told to end."""

    def __init__(self) -> None:
        self.began, self.goes_on, self.ended = asyncio.Event(), asyncio.Event(), False

    def data_inside(self, data: Path) -> str:
        return str(data)

    async def measure(self, _words: Any, _timeout: float, _data: Path) -> bytes:
        self.began.set()
        try:
            await self.goes_on.wait()
        finally:
            self.ended = True
        return encode_json(OwnDataReport(files=1, bytes=9, rows=2, usable=2, characters=9))


class Owner:
    """An agent's part in it, whose coordinator lets everybody join."""

    def __init__(self, folder: Path) -> None:
        self.sandbox, self.memberships = SlowSandbox(), Memberships(folder / "federations.json")
        self.wishes: list[str] = []
        self.joining = Joining(self.memberships, cast(Sandbox, self.sandbox), self.send)
        data = folder / "data"
        data.mkdir()
        self.order = JoinOrder(JOB, terms_digest(SPEC), str(data))

    async def send(self, wish: FederationWish) -> None:
        self.wishes.append(wish.what)
        self.joining.told(FederationTold(JOB, spec=SPEC, joined=wish.what == "join"))


async def test_leaving_while_data_is_checked_ends_the_check_and_joins_nothing(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    joins = asyncio.create_task(owner.joining.join(owner.order, "http://here"))
    await owner.sandbox.began.wait()
    with pytest.raises(SettingsError, match="being checked already"):
        await owner.joining.join(owner.order, "http://here")
    assert (await owner.joining.leave(LeaveFederationOrder(JOB))).joined == ()
    with pytest.raises(SettingsError, match="taken back"):
        await joins
    assert owner.sandbox.ended
    assert owner.wishes == ["look"], "the coordinator was never told of it"
    assert owner.memberships.joined == {}


async def test_it_can_be_joined_again_afterwards(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    joins = asyncio.create_task(owner.joining.join(owner.order, "http://here"))
    await owner.sandbox.began.wait()
    await owner.joining.leave(LeaveFederationOrder(JOB))
    with pytest.raises(SettingsError, match="taken back"):
        await joins
    owner.sandbox.goes_on.set()
    view = await owner.joining.join(owner.order, "http://here")
    assert view.report is not None
    assert list(owner.memberships.joined) == [JOB]
    await owner.joining.leave(LeaveFederationOrder(JOB))
    assert owner.wishes == ["look", "look", "join", "leave"]


async def test_an_agent_that_ends_meanwhile_ends_the_check(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    joins = asyncio.create_task(owner.joining.join(owner.order, "http://here"))
    await owner.sandbox.began.wait()
    joins.cancel()
    with pytest.raises(asyncio.CancelledError):
        await joins
    await asyncio.sleep(0)
    assert owner.sandbox.ended
    assert owner.memberships.joined == {}


def test_ctrl_c_takes_a_join_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, asked = Owner(tmp_path), list[str]()

    async def ask_for(_socket: Path, what: str, *_more: object) -> object:
        asked.append(what)
        if what == "federation/join":
            raise KeyboardInterrupt
        return owner.joining._view(FederationTold(JOB, spec=SPEC))

    monkeypatch.setattr(federation_cli.status, "ask_for", ask_for)
    words = argparse.ArgumentParser()
    federation_cli.add_words(words.add_subparsers())
    options = words.parse_args(
        ["join", "https://x/invite", "--data", owner.order.data, "--yes", "--home", str(tmp_path)]
    )
    with pytest.raises(KeyboardInterrupt):
        options.run(options)
    assert asked == ["federation", "federation/join", "federation/leave"]
