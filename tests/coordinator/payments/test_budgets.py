"""What one account and all strangers together may ask for: each bound refuses, and whoever is known goes on beside it."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from argon2 import PasswordHasher

from coordinator.config import Config
from coordinator.domain.account import LOCAL_ACCOUNT, ROLE_SCOPES, Account, Principal, Role, Scope
from coordinator.domain.job import Job
from coordinator.domain.lease import Lease
from coordinator.errors import FullError, InvalidError, NotFoundError, TooManyError, UnauthorisedError
from coordinator.services.accounts import accounts as accounts_module
from coordinator.services.accounts import budgets as bounds
from coordinator.services.accounts import challenges as challenges_module
from coordinator.services.accounts import expiry, signin
from coordinator.services.accounts import passwords as passwords_module
from coordinator.services.accounts.accounts import IDLE_S, AccountService
from coordinator.services.accounts.budgets import UNUSED_S, Bodies, Budgets, LaneBudget, RateBudget
from coordinator.services.accounts.challenges import Challenges
from coordinator.services.accounts.passwords import Passwords
from coordinator.services.accounts.throttle import Throttle
from coordinator.services.artifacts import dataset_checks as checks_module
from coordinator.services.artifacts import file_ownership as files_module
from coordinator.services.artifacts import uploads as uploads_module
from coordinator.services.artifacts.dataset_checks import DatasetChecks
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.file_ownership import FileOwnership
from coordinator.services.artifacts.uploads import EMPTY_S, UploadService
from coordinator.services.jobs.idempotency import IdempotentAnswers
from coordinator.services.network import admission as crowds
from coordinator.services.network.nodes import NodeRefusedError
from coordinator.store.memory import MemoryStore
from coordinator.store.ports import col
from coordinator.store.records import KeyRecord, NodeRecord, SessionRecord, TrailRecord
from coordinator.web.auth import Auth
from protocol.job.job import DatasetSpec, TokenizerSpec
from protocol.rest.api import NewUpload
from protocol.rest.dataset import CheckRequest, DatasetReport
from tests.coordinator.bench import Bench
from tests.coordinator.rerun import digest
from tests.support.clock import VirtualClock

ADA, BOB, EVE = "a" * 32, "b" * 32, "e" * 32
FEW = RateBudget("prices", 3, 10, 5, 100)


def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "RATES", (FEW, *(rate for rate in bounds.RATES if rate.what != FEW.what)))


async def test_an_account_has_so_many_at_once_and_then_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    few(monkeypatch)
    clock = VirtualClock()
    budgets = Budgets(MemoryStore(), clock)
    for _ in range(3):
        await budgets.take(FEW, ADA)
    with pytest.raises(TooManyError) as refused:
        await budgets.take(FEW, ADA)
    assert refused.value.retry_s == pytest.approx(10)
    await budgets.take(FEW, BOB)
    await clock.advance(10)
    await budgets.take(FEW, ADA)


async def test_a_crowd_of_new_accounts_has_one_budget_and_keeps_nobody_out_who_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few(monkeypatch)
    bench = Bench()
    job = await bench.job()
    async with bench.store.transaction() as tx:
        await tx.update(msgspec.structs.replace(await tx.get(Job, job), account_id=ADA, paid=1))
    budgets = Budgets(bench.store, VirtualClock())
    for number in range(5):
        await budgets.take(FEW, f"{number:x}" * 32 if number else "f" * 32)
    with pytest.raises(TooManyError, match="new accounts"):
        await budgets.take(FEW, EVE)
    await budgets.take(FEW, ADA)
    for _ in range(100):
        await budgets.take(FEW, LOCAL_ACCOUNT)
    assert await budgets.known(ADA)
    assert not await budgets.known(EVE)


async def test_what_was_used_already_is_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    few(monkeypatch)
    clock = VirtualClock()
    budgets = Budgets(MemoryStore(), clock)
    await budgets.used(FEW, ADA, 7)
    await clock.advance(30)
    with pytest.raises(TooManyError) as refused:
        await budgets.take(FEW, ADA)
    assert refused.value.retry_s == pytest.approx(20)
    throttle = Throttle(clock, 1.0, 4.0)
    throttle.spend("a", 3.0)
    assert throttle.take("a") == 0.0
    assert throttle.take("a") == 1.0


async def test_a_lane_lets_in_so_many_of_one_and_of_all() -> None:
    lane = LaneBudget("checks", 1, 2, 30.0)
    with lane.enter(ADA):
        with pytest.raises(TooManyError, match="of yours"):
            lane.enter(ADA).__enter__()
        with lane.enter(BOB), pytest.raises(TooManyError, match="2 checks wait"):
            lane.enter(EVE).__enter__()
    with lane.enter(ADA):
        assert len(lane) == 1


def test_documents_that_arrive_have_room_of_one_sender_and_of_all() -> None:
    bodies = Bodies(10, 15)
    bodies.add(ADA, 10)
    for whose, size in ((ADA, 1), (BOB, 6)):
        with pytest.raises(TooManyError):
            bodies.add(whose, size)
    bodies.free(ADA, 10)
    bodies.add(BOB, 6)


async def test_a_queue_of_passwords_is_refused_beyond_what_is_hashed_within_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passwords_module, "MAX_HASHES", 3)
    go = threading.Event()

    class Slow(PasswordHasher):
        def verify(self, *args: object, **kwargs: object) -> bool:  # type: ignore[override]
            return go.wait(10)

    passwords = Passwords(Slow(1, 8, 1))
    trying = [asyncio.create_task(passwords.matches("", "a guess")) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyError, match="3 others"):
        await passwords.matches("", "one more")
    go.set()
    assert await asyncio.gather(*trying) == [False] * 3
    assert not await passwords.matches("", "later")


async def test_begun_sign_ins_of_everybody_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(challenges_module, "MAX_CHALLENGES", 6)
    clock = VirtualClock()
    challenges = Challenges(MemoryStore(), clock)
    for number in range(3):
        await challenges.keep(f"nonce {number}", "passkey", "", "text")
    with pytest.raises(TooManyError):
        await challenges.keep("one more", "passkey", "", "text")
    assert await challenges.take("nonce 0", "passkey") == "text"
    with pytest.raises(UnauthorisedError):
        await challenges.take("nonce 0", "passkey")


async def test_accounts_that_everybody_makes_have_a_rate_and_an_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(signin, "ALL_SIGN_UPS", 2.0)
    monkeypatch.setattr(signin, "MAX_ACCOUNTS", 4)
    clock = VirtualClock()
    auth = Auth(MemoryStore(), clock, Config(tmp_path, ""), Passwords(PasswordHasher(1, 8, 1)))
    await auth.accounts.create("operator", Role.OPERATOR)
    for number in range(2):
        await auth.sign_in.sign_up(f"name {number}", "a long password", "", f"192.0.2.{number}")
    with pytest.raises(TooManyError):
        await auth.sign_in.sign_up("one more", "a long password", "", "198.51.100.1")
    await clock.advance(signin.ALL_SIGN_UP_S * 2)
    await auth.sign_in.sign_up("later", "a long password", "", "198.51.100.2")
    with pytest.raises(FullError, match="4 accounts"):
        await auth.sign_in.sign_up("too late", "a long password", "", "198.51.100.3")


async def test_sessions_keys_and_the_trail_of_an_account_do_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in (("MAX_SESSIONS", 3), ("MAX_KEYS", 2), ("MAX_TRAIL", 5), ("PRUNE_EACH", 1)):
        monkeypatch.setattr(accounts_module, name, most)
    clock, store = VirtualClock(), MemoryStore()
    accounts = AccountService(store, clock)
    await accounts.create("operator", Role.OPERATOR)
    account = await accounts.create("Ada", Role.SUBMITTER)
    who = Principal(account.id, ROLE_SCOPES[Role.SUBMITTER], "Ada")
    cookies = []
    for _ in range(5):
        cookies.append(await accounts.begin_session(account.id, "password"))
        await clock.advance(1)
    assert [await accounts.by_session(cookie) is not None for cookie in cookies] == [False] * 2 + [True] * 3
    for _ in range(6):
        key, _ = await accounts.create_key(who, "key", frozenset({Scope.JOBS_READ}))
        await accounts.revoke_key(account.id, key.id)
    await clock.advance(IDLE_S + 1)
    await accounts.begin_session(account.id, "password")
    async with store.transaction() as tx:
        assert len(await tx.find(SessionRecord, col(SessionRecord.account_id).equals(account.id))) == 1, (
            "those that ended by themselves are gone"
        )
        assert len(await tx.find(KeyRecord, col(KeyRecord.account_id).equals(account.id))) == 3
        trail = await tx.find(TrailRecord, col(TrailRecord.account_id).equals(account.id))
        assert len(trail) == 5
        assert trail[-1].action == "session.began"
        assert len(await tx.find(TrailRecord, col(TrailRecord.account_id).equals(LOCAL_ACCOUNT))) == 1


async def test_answers_that_are_kept_for_repeated_requests_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    rate = RateBudget(bounds.ANSWERS.what, 2048, 1 / 16, 1 << 20, 1 / 64)
    monkeypatch.setattr(bounds, "RATES", (rate, *(one for one in bounds.RATES if one.what != rate.what)))
    clock, store = VirtualClock(), MemoryStore()
    replays = IdempotentAnswers(store, clock)
    async with replays.turn(ADA, "first", "f" * 64) as turn:
        turn.keep(200, "", b"x" * 4096)
    with pytest.raises(TooManyError):
        async with replays.turn(ADA, "second", "f" * 64):
            pass
    async with replays.turn(BOB, "first", "f" * 64) as turn:
        assert not turn.over
    await clock.advance(300)
    async with replays.turn(ADA, "first", "f" * 64) as turn:
        assert turn.over


class Reader:
    """Says of every dataset that it is none, once it may."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.seen: list[str] = []

    async def inspect(self, request: CheckRequest, progress: object, name: str = "") -> DatasetReport:
        self.seen.append(name)
        await self.go.wait()
        raise InvalidError("no dataset")


async def test_checks_take_turns_between_accounts_and_an_account_has_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(checks_module, "MAX_CHECKS_EACH", 3)
    artifacts, reader = DiskArtifacts(tmp_path / "artifacts"), Reader()
    digest = await artifacts.put_file(Path(__file__))
    checks = DatasetChecks(tmp_path / "checks", artifacts, reader, Budgets(MemoryStore(), VirtualClock()))
    request = CheckRequest(DatasetSpec(digest), TokenizerSpec("bytes"), 16)
    for number in range(3):
        await checks.ask(request, f"ada {number}", ADA)
    with pytest.raises(TooManyError, match="3 datasets of yours"):
        await checks.ask(request, "ada 3", ADA)
    await checks.ask(request, "ada 1", ADA)  # One that waits already is asked after as often as one likes.
    await checks.ask(request, "bob", BOB)
    running = asyncio.create_task(checks.run())
    reader.go.set()
    assert (await checks.get(request, 10.0, "ada 2", ADA)).state == "failed"
    assert reader.seen == ["ada 0", "bob", "ada 1", "ada 2"]
    running.cancel()
    reports = sorted((tmp_path / "checks").iterdir())
    os.utime(reports[0], (0, 0))
    checks.sweep()
    assert sorted((tmp_path / "checks").iterdir()) == reports[1:]
    monkeypatch.setattr(checks_module, "MAX_KEPT", 1)
    checks.sweep()
    assert len(list((tmp_path / "checks").iterdir())) == 1


async def test_files_have_a_share_of_the_disk_of_one_account_and_of_all_strangers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files_module, "MAX_FILES", 3)
    bench, clock = Bench(), VirtualClock()
    files = FileOwnership(bench.store, clock, lambda: 800)
    await files.check_room(ADA, 100, 100)
    with pytest.raises(FullError, match="your 0 files"):
        await files.check_room(ADA, 101, 101)
    job = await bench.job()
    async with bench.store.transaction() as tx:
        await tx.update(msgspec.structs.replace(await tx.get(Job, job), account_id=ADA, paid=1))
    await files.check_room(ADA, 200, 200)
    for number in range(4):
        await files.keep(f"{number + 1}" * 32, digest(str(number)), NewUpload(100))
    await files.check_room(EVE, 0, 0)
    with pytest.raises(FullError, match="accounts that have not trained a model yet"):
        await files.check_room(EVE, 1, 1)
    await files.check_room(ADA, 200, 200)
    await files.check_room(LOCAL_ACCOUNT, 10**9, 10**9)
    for number in range(3):
        await files.keep(BOB, digest(f"small {number}"), NewUpload(1))
    with pytest.raises(FullError, match="3 files of"):
        await files.check_room(BOB, 1, 1)


async def test_uploads_that_nobody_goes_on_with_make_place_and_their_ends_are_not_kept_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(uploads_module, "MAX_ENDED_OF_ACCOUNT", 2)
    clock = VirtualClock()
    uploads = UploadService(tmp_path / "u", DiskArtifacts(tmp_path / "a"), clock, max_open=2)
    begun = await uploads.create(NewUpload(6), EVE)
    await uploads.append(begun.id, 0, piece(b"to"))
    empty = await uploads.create(NewUpload(6), EVE)
    with pytest.raises(FullError):
        await uploads.create(NewUpload(6), ADA)
    await clock.advance(EMPTY_S + 1)
    mine = await uploads.create(NewUpload(6), ADA)
    with pytest.raises(NotFoundError):
        await uploads.get(empty.id)
    assert (await uploads.get(begun.id)).offset == 2, "what has bytes is waited for longer"
    await uploads.terminate(mine.id)
    for number in range(3):
        whole = await uploads.create(NewUpload(6), ADA)
        await uploads.append(whole.id, 0, piece(b"words%d" % number))
    again = UploadService(tmp_path / "u", DiskArtifacts(tmp_path / "a"), clock, max_open=2)
    last = await again.create(NewUpload(6), ADA)
    assert (await again.get(begun.id)).offset == 2, "another process goes on with them"
    assert len(list((tmp_path / "u").glob("*.json"))) == 2 + 2
    await again.terminate(last.id)


async def test_who_never_did_anything_is_forgotten_and_who_did_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "PAGE", 2)
    monkeypatch.setattr(expiry, "MAX_ACCOUNTS_A_LOOK", 4)
    bench = Bench()
    look = bench.parts.forgetting.look
    gone, worked, paid, here = [(await bench.enter(number)) for number in range(1, 5)]
    await bench.job(nodes=0)
    async with bench.store.transaction() as tx:
        await tx.insert(Lease("1" * 32, "2" * 32, worked.node, worked.payout, 1, 0, 0, 0.0))
        await tx.update(msgspec.structs.replace(await tx.get(NodeRecord, paid.node), rounds=1))
    for session in (gone, worked, paid):
        bench.parts.nodes.leave(session)
    accounts = AccountService(bench.store, bench.clock)
    operator = await accounts.create("operator", Role.OPERATOR)
    made = [await accounts.create(f"name {number}", Role.SUBMITTER) for number in range(5)]
    await FileOwnership(bench.store, bench.clock).keep(made[1].id, digest("file"), NewUpload(1))
    assert await look() == (0, 0)
    bench.clock.t += UNUSED_S + 1
    await accounts.begin_session(made[3].id, "password")
    looks = [await look() for _ in range(3)]  # A few accounts at a time, in an order that their ids make.
    assert [sum(counts) for counts in zip(*looks, strict=True)] == [1, 3]
    async with bench.store.transaction() as tx:
        assert {record.address for record in await tx.find(NodeRecord)} == {worked.node, paid.node, here.node}
        assert {account.id for account in await tx.find(Account)} == {operator.id, made[1].id, made[3].id}
        trail = await tx.find(TrailRecord)
    assert {line.account_id for line in trail} == {operator.id, made[1].id, made[3].id}


async def test_keys_that_were_never_here_have_a_rate_in_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "ALL_NEW_KEYS", 2.0)
    bench = Bench()
    for number in (1, 2):
        await bench.enter(number, address=f"192.0.2.{number}")
    with pytest.raises(NodeRefusedError, match="many new keys are coming"):
        await bench.enter(3, address="192.0.2.3")
    await bench.enter(1, address="192.0.2.9")
    bench.clock.t += crowds.ALL_NEW_KEY_S
    await bench.enter(3, address="192.0.2.3")


async def piece(data: bytes) -> AsyncIterator[bytes]:
    yield data


def test_every_rate_has_a_bound_of_one_that_is_below_that_of_all() -> None:
    for rate in bounds.RATES:
        assert rate.burst <= rate.all_burst, rate
        assert rate.seconds >= rate.all_seconds, rate
