"""An owner who leaves while the own data is still checked has joined nothing."""

import argparse
import asyncio
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import pytest

from common.untrusted_text import Untrusted
from desktop.agent.cli import federation_cli
from desktop.agent.errors import SandboxError, SettingsError
from desktop.agent.federated.joining import Joining, JoinOrder, LeaveFederationOrder
from desktop.agent.federated.memberships import Memberships
from desktop.agent.sandbox.base import Sandbox
from protocol.codec import encode_json
from protocol.federated.federations import FederationTold, FederationWish, OwnDataReport, terms_digest
from protocol.job.federated import HeldoutLoss, PrivacySpec
from protocol.job.job import JobSpec, TokenizerSpec, TrainingSpec
from protocol.rest.dataset import Finding
from tests.desktop.federated.test_owners_gate import HELD, JOB, SPEC

_EXAMPLE = PrivacySpec("example", sampling=0.01, noise_multiplier=1.0, most_rounds=2, heldout=HeldoutLoss(12))
assert SPEC.federated is not None
EXAMPLES = msgspec.structs.replace(SPEC, federated=msgspec.structs.replace(SPEC.federated, privacy=_EXAMPLE))
_ALONE = msgspec.structs.replace(_EXAMPLE, heldout=None)
UNMEASURED = msgspec.structs.replace(SPEC, federated=msgspec.structs.replace(SPEC.federated, privacy=_ALONE))


REPORT = OwnDataReport(files=1, bytes=9, rows=2, usable=2, characters=9)


class SlowSandbox:
    """Checks data until it is told to end. ``fails``: what it says where it cannot."""

    def __init__(self) -> None:
        self.began, self.goes_on, self.ended = asyncio.Event(), asyncio.Event(), False
        self.asked: list[str] = []
        self.fails, self.report = "", REPORT

    def data_inside(self, data: Path) -> str:
        return str(data)

    async def measure(self, words: Any, _timeout: float, _data: Path) -> bytes:
        self.asked = [*words]
        self.began.set()
        if self.fails:
            raise SandboxError(self.fails)
        try:
            await self.goes_on.wait()
        finally:
            self.ended = True
        return encode_json(self.report)


class Owner:
    """An agent's part in it, whose coordinator lets everybody join."""

    def __init__(self, folder: Path, spec: JobSpec = SPEC) -> None:
        self.spec = spec
        self.sandbox, self.memberships = SlowSandbox(), Memberships(folder / "federations.json")
        self.wishes: list[str] = []
        self.joining = Joining(self.memberships, cast(Sandbox, self.sandbox), self.send)
        data = folder / "data"
        data.mkdir()
        self.order = JoinOrder(JOB, terms_digest(spec), str(data))

    async def send(self, wish: FederationWish) -> None:
        self.wishes.append(wish.what)
        self.joining.told(FederationTold(JOB, spec=self.spec, joined=wish.what == "join"))


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


@pytest.mark.parametrize("spec", [SPEC, HELD, EXAMPLES, UNMEASURED])
async def test_the_check_knows_of_examples_and_of_what_is_held_back(spec: JobSpec, tmp_path: Path) -> None:
    """Of owners too little of it would fail each round, and of examples tell no loss; some data has no examples."""
    owner = Owner(tmp_path, spec)
    owner.sandbox.goes_on.set()
    view = await owner.joining.join(owner.order, "http://here")
    assert spec.federated is not None
    told = ["--privacy", encode_json(spec.federated.privacy).decode()]
    assert (owner.sandbox.asked[-2:] == told) == (spec is not SPEC)
    assert ("About 0 of these rows are held back" in " ".join(view.found)) == (spec is EXAMPLES)


async def test_how_many_are_held_back_is_said_once(tmp_path: Path) -> None:
    """A check that has counted them knows better than what follows from the number of rows."""
    owner = Owner(tmp_path, EXAMPLES)
    counted = Finding("heldout", "warning", Untrusted("held back to tell a loss of"), 5)
    owner.sandbox.report = msgspec.structs.replace(REPORT, findings=(counted,))
    owner.sandbox.goes_on.set()
    said = " ".join((await owner.joining.join(owner.order, "http://here")).found)
    assert "warning: held back to tell a loss of (5 rows)" in said
    assert "of these rows are held back" not in said


USAGE = "usage: trainer own [-h] --data DATA --how HOW --sequence SEQUENCE\n"
OLDER = [
    USAGE + "trainer own: error: unrecognized arguments: --privacy {}",
    "usage: trainer [-h] {worker,bench}\ntrainer: error: argument verb: invalid choice: 'own'",
    '{"code": "bad-document", "detail": "Object contains unknown field `sooner` - at `$.heldout`"}',
]


@pytest.mark.parametrize("said", OLDER)
@pytest.mark.parametrize("spec", [HELD, EXAMPLES, UNMEASURED])
async def test_an_image_that_is_older_than_what_is_asked_for_is_named_before_anything_is_joined(
    said: str, spec: JobSpec, tmp_path: Path
) -> None:
    owner = Owner(tmp_path, spec)
    owner.sandbox.fails = said
    with pytest.raises(SettingsError, match="take the newest with `cottage node image`, then join"):
        await owner.joining.join(owner.order, "http://here")
    assert owner.wishes == ["look"]
    assert owner.memberships.joined == {}


async def test_data_that_cannot_be_used_is_no_fault_of_an_image(tmp_path: Path) -> None:
    owner = Owner(tmp_path, HELD)
    owner.sandbox.fails = 'own --data /x: ended with 2: {"code": "no-rows", "detail": "invalid choice of a column"}'
    with pytest.raises(SettingsError, match="the data cannot be used: invalid choice of a column"):
        await owner.joining.join(owner.order, "http://here")


@pytest.mark.parametrize(
    ("kind", "spec", "tokens", "said", "short"),
    [
        ("bytes", SPEC, 900, "", False),
        ("file", SPEC, 0, "", False),
        ("file", SPEC, 4_000, "likely makes about 1,000 tokens", False),
        ("file", SPEC, 900, "likely makes about 225 tokens", True),
        ("file", EXAMPLES, 12_000, "likely makes about 3,000 tokens", False),
        ("file", HELD, 12_000, "likely makes about 3,000 tokens", True),
        ("file", HELD, 120_000, "likely makes about 30,000 tokens", False),
    ],
)
async def test_a_count_of_bytes_is_said_to_be_one(
    kind: Literal["bytes", "file"], spec: JobSpec, tokens: int, said: str, short: bool, tmp_path: Path
) -> None:
    """Only a tokenizer that is no file is known where data is checked."""
    training = TrainingSpec(sequence=256)
    file = "f" * 64 if kind == "file" else None
    owner = Owner(tmp_path, msgspec.structs.replace(spec, training=training, tokenizer=TokenizerSpec(kind, file=file)))
    owner.sandbox.report = msgspec.structs.replace(REPORT, tokens=tokens)
    owner.sandbox.goes_on.set()
    found = " ".join((await owner.joining.join(owner.order, "http://here")).found)
    assert (said in found) if said else ("bytes" not in found)
    assert ("shorter than the 256 tokens of one sequence" in found) == short
    assert ("what is held back is then likely" in found) == (short and spec is HELD)


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
