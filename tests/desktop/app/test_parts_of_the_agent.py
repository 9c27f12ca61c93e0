"""The parts that need no process: budgets, plans, outboxes, the cache, earnings, settings, what is printed."""

import asyncio
import hashlib
import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.clock import SystemClock
from coordinator.web.transfers import MAX_TRANSFERS_PER_NODE
from desktop.agent.app.startup import _is_readable_on_the_way
from desktop.agent.base.budget import ByteBudget
from desktop.agent.base.config import Home, Settings
from desktop.agent.base.exception_groups import main_error
from desktop.agent.base.gpu import Device, detect, processor
from desktop.agent.base.log import MAX_TEXT, printable
from desktop.agent.base.payloads import SmallPayload
from desktop.agent.coordinator.artifacts import MAX_DOWNLOADS, MAX_LEFT, MAX_UPLOADS, Artifacts
from desktop.agent.coordinator.report_outbox import (
    MAX_UNACKNOWLEDGED,
    REPORTS_BURST,
    REPORTS_PER_S,
    ReportOutbox,
    ReportPace,
)
from desktop.agent.earnings.earnings import EarningsFile
from desktop.agent.errors import (
    ArtifactError,
    HomeBusyError,
    SandboxError,
    SettingsError,
    UnwantedError,
    WorkerProtocolError,
)
from desktop.agent.hardware.benchmark import ASKED_AGE_S, BUSY_AGE_S, MAX_AGE_S, measure
from desktop.agent.jobs.routing import KEPT_PLANS, Plans, RoutingVerdict
from desktop.agent.sandbox.base import SandboxLimits
from desktop.agent.sandbox.process import ProcessSandbox
from protocol.artifacts import audit_answer
from protocol.identity import NodeKey
from protocol.node import HeldLease, JobEarned
from protocol.task import TaskFailed
from protocol.worker import PeerHeader, TensorName
from tests.desktop.conftest import JOB, SCRIPT, plan_of
from tests.desktop.coordinator_double import PATIENCE_S, Double
from tests.support.clock import VirtualClock

A, B, C = (NodeKey(bytes([number]) * 32).address for number in (1, 2, 3))


def header(epoch: int, stage: int = 0, replica: int = 0) -> PeerHeader:
    return PeerHeader(JOB, stage, replica, 1, 0, TensorName("activation", epoch, 0, 0, 0))


# --- budgets ------------------------------------------------------------------------------------------------------------


async def test_a_budget_grants_in_the_order_of_asking() -> None:
    budget = ByteBudget(100, 10)
    await budget.take(80)
    order: list[str] = []

    async def ask(name: str, size: int) -> None:
        await budget.take(size)
        order.append(name)

    tasks = [asyncio.create_task(ask(name, size)) for name, size in (("large", 60), ("small", 5))]
    await asyncio.sleep(0)
    assert order == []  # The small one would fit, but waits behind the large one.
    budget.give(80)
    await asyncio.gather(*tasks)
    assert order == ["large", "small"]


async def test_a_piece_larger_than_the_budget_passes_alone() -> None:
    budget = ByteBudget(100, 10)
    await budget.take(500)
    assert not budget.try_take(1)
    budget.give(500)
    assert budget.try_take(1)


async def test_a_waiter_that_is_cancelled_leaves_no_hole() -> None:
    budget = ByteBudget(100, 10)
    await budget.take(100)
    first, second = (asyncio.create_task(budget.take(size)) for size in (90, 50))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    budget.give(100)
    await second
    assert budget.held == 50


@given(st.lists(st.integers(1, 150), max_size=30))
def test_a_budget_is_never_overdrawn_and_empty_again_at_the_end(sizes: list[int]) -> None:
    async def run() -> None:
        budget, held = ByteBudget(100, 4), []

        async def use(size: int) -> None:
            await budget.take(size)
            held.append(size)
            assert sum(held) <= 100 or len(held) == 1
            assert len(held) <= 4
            await asyncio.sleep(0)
            held.remove(size)
            budget.give(size)

        await asyncio.gather(*(use(size) for size in sizes))
        assert budget.held == 0

    asyncio.run(run())


# --- plans --------------------------------------------------------------------------------------------------------------


def test_a_payload_is_judged_by_the_plan_of_its_epoch() -> None:
    plans = Plans(plan_of((0, 0, A), (1, 0, B)))
    plans.learn(plan_of((0, 0, C), (1, 0, B), epoch=1))
    assert plans.judge(A, header(0)) is RoutingVerdict.STALE
    assert plans.judge(C, header(1)) is RoutingVerdict.TAKE
    assert plans.judge(A, header(1)) is RoutingVerdict.FOREIGN
    assert plans.judge(C, header(1, stage=1)) is RoutingVerdict.FOREIGN
    assert plans.judge(C, header(1, replica=3)) is RoutingVerdict.FOREIGN
    assert plans.judge(A, header(2)) is RoutingVerdict.EARLY


def test_what_is_sent_goes_by_the_plan_in_force_and_nowhere_when_its_epoch_is_over() -> None:
    plans = Plans(plan_of((0, 0, A), (1, 0, B)))
    assert plans.node_of(0, 1, 0) == B
    plans.learn(plan_of((0, 0, A), (1, 0, C), epoch=1))
    assert plans.node_of(1, 1, 0) == C
    assert plans.node_of(0, 1, 0) is None
    assert plans.node_of(1, 2, 0) is None


def test_only_a_few_plans_are_kept_and_an_old_one_changes_nothing() -> None:
    plans = Plans(plan_of((0, 0, A)))
    for epoch in range(1, 50):
        plans.learn(plan_of((0, 0, B), epoch=epoch))
    plans.learn(plan_of((0, 0, C), epoch=3))
    assert plans.newest.epoch == 49
    assert len(plans._by_epoch) == KEPT_PLANS


def test_neighbours_are_the_next_stages_and_the_same_stage_of_other_replicas() -> None:
    members = [(stage, replica, f"{stage}{replica}") for stage in range(4) for replica in range(3)]
    plans = Plans(plan_of(*members))
    assert plans.neighbours(1, 1) == {"01", "21", "10", "12"}
    assert plans.neighbours(None, None) == set()


def test_who_is_expected_may_link_and_ask_and_speaks_for_nobody() -> None:
    plans = Plans(plan_of((0, 0, A), (1, 0, B)))
    plans.expect((C,))
    assert plans.neighbours(0, 0) == {B, C}
    assert plans.neighbours(None, None) == set(), "a spare has no links"
    assert (plans.names(C), plans.names(B)) == (True, True)
    assert plans.judge(C, header(0)) is RoutingVerdict.FOREIGN
    assert plans.node_of(0, 1, 0) == B
    plans.expect(())
    assert (plans.names(C), plans.neighbours(0, 0)) == (False, {B})


# --- reports ------------------------------------------------------------------------------------------------------------


def test_an_outbox_numbers_keeps_and_forgets_in_order() -> None:
    outbox = ReportOutbox(HeldLease("ab" * 16, 3))
    sent = [outbox.add(TaskFailed(str(number))) for number in range(5)]
    assert [report.seq for report in sent] == [1, 2, 3, 4, 5]
    outbox.acknowledge(3)
    outbox.acknowledge(1)
    assert outbox.waiting() == tuple(sent[3:])
    assert outbox.lossy(TaskFailed("x")).seq == 0
    assert outbox.add(TaskFailed("y")).seq == 6


def test_an_outbox_is_bounded_but_takes_the_last_word() -> None:
    outbox = ReportOutbox(HeldLease("ab" * 16, 3))
    for _ in range(MAX_UNACKNOWLEDGED):
        outbox.add(TaskFailed("x"))
    with pytest.raises(WorkerProtocolError):
        outbox.add(TaskFailed("x"))
    assert outbox.force(TaskFailed("the end")).seq == MAX_UNACKNOWLEDGED + 1


async def test_a_talkative_worker_is_slowed_down() -> None:
    clock = VirtualClock()
    pace = ReportPace(clock)
    passed = 0

    async def talk() -> None:
        nonlocal passed
        while True:
            await pace.wait()
            passed += 1
            await asyncio.sleep(0)

    talking = asyncio.create_task(talk())
    await clock.advance(0.01)
    for _ in range(40):
        await clock.advance(1 / REPORTS_PER_S)
    talking.cancel()
    assert REPORTS_BURST <= passed <= REPORTS_BURST + 45


def test_the_error_that_says_most_is_found_in_a_group() -> None:
    group = BaseExceptionGroup("g", [EOFError("socket"), BaseExceptionGroup("h", [SandboxError("cause")])])
    assert str(main_error(group, EOFError)) == "cause"
    assert str(main_error(BaseExceptionGroup("g", [EOFError("socket")]), EOFError)) == "socket"


# --- artifacts ----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def artifacts(coordinator: Double, tmp_path: Path) -> Artifacts:
    coordinator.tokens.add("the token of the test")
    store = Artifacts(coordinator.url, tmp_path / "cache", SystemClock(), cache_bytes=2500)
    store.authorise("the token of the test")
    return store


async def test_the_cache_lets_go_of_what_was_used_longest_ago(coordinator: Double, artifacts: Artifacts) -> None:
    digests = [coordinator.store(bytes([number]) * 1000) for number in range(3)]
    first = await artifacts.fetch(digests[0])
    await artifacts.fetch(digests[1])
    await artifacts.fetch(digests[0])
    third = await artifacts.fetch(digests[2])
    assert {path.name for path in first.path.parent.iterdir()} == {digests[0], digests[2]}
    assert third.read() == b"\2" * 1000
    await artifacts.aclose()


async def test_a_cached_file_that_was_changed_is_fetched_again(coordinator: Double, artifacts: Artifacts) -> None:
    digest = coordinator.store(b"truth")
    path = (await artifacts.fetch(digest)).path
    path.chmod(0o600)
    path.write_bytes(b"lie")
    assert (await artifacts.fetch_payload(digest)).read() == b"truth"
    await artifacts.aclose()


async def test_many_who_want_the_same_artifact_share_one_download(coordinator: Double, artifacts: Artifacts) -> None:
    digest = coordinator.store(b"wanted")
    await asyncio.gather(*(artifacts.fetch(digest) for _ in range(10)))
    assert len(coordinator.requests) == 1
    await artifacts.aclose()


async def test_a_store_that_always_sends_other_bytes_is_given_up(coordinator: Double, artifacts: Artifacts) -> None:
    digest = coordinator.store(b"truth")
    coordinator.damage = 100
    with pytest.raises(ArtifactError, match=digest):
        await artifacts.fetch(digest)
    await artifacts.aclose()


async def test_a_refused_upload_is_an_error_and_a_stored_one_can_be_repeated(
    coordinator: Double, artifacts: Artifacts
) -> None:
    digest = hashlib.sha256(b"mine").hexdigest()
    lease, answers = "a" * 32, audit_answer("b" * 32)
    await artifacts.upload(SmallPayload(b"mine"), digest, lease, answers)
    await artifacts.upload(SmallPayload(b"mine"), digest, lease, answers)
    assert coordinator.artifacts[digest] == b"mine"
    assert coordinator.answered == [(lease, answers)] * 2
    with pytest.raises(ArtifactError, match="422"):
        await artifacts.upload(SmallPayload(b"other"), digest, lease, answers)
    coordinator.unwanted.add(answers)
    with pytest.raises(UnwantedError, match="any more"):
        await artifacts.upload(SmallPayload(b"mine"), digest, lease, answers)
    await artifacts.aclose()


async def cancelled_underway(coordinator: Double, artifacts: Artifacts, data: bytes) -> str:
    """Begin to fetch ``data``, and let go of it once a part is here."""
    digest = coordinator.store(data)
    coordinator.hang_after = len(data) // 2
    fetching = asyncio.create_task(artifacts.fetch(digest))
    await coordinator.until(lambda: artifacts.arrived([digest]))
    coordinator.hang_after = None
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)
    return digest


def open_files(folder: Path) -> list[str]:
    """Which files in a folder this process has open."""
    links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [link for link in links if Path(link).parent == folder.resolve()]


async def test_a_cancelled_download_is_gone_on_with(coordinator: Double, artifacts: Artifacts, tmp_path: Path) -> None:
    data = bytes(range(200)) * 5_000
    artifacts.limit(10 * len(data))
    digest = await cancelled_underway(coordinator, artifacts, data)
    assert (await artifacts.fetch(digest)).read() == data
    assert coordinator.requests[-1][2].startswith("bytes=")
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {digest}
    await artifacts.aclose()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="Linux tells which files are open")
async def test_few_cancelled_downloads_keep_what_they_have(
    coordinator: Double, artifacts: Artifacts, tmp_path: Path
) -> None:
    artifacts.limit(1 << 30)
    for number in range(MAX_LEFT + 3):
        await cancelled_underway(coordinator, artifacts, bytes([number]) * 100_000)
    assert len(list((tmp_path / "cache").iterdir())) == MAX_LEFT
    assert len(open_files(tmp_path / "cache")) == MAX_LEFT
    await artifacts.aclose()


async def test_a_cancelled_download_of_which_nothing_came_leaves_nothing(
    coordinator: Double, artifacts: Artifacts, tmp_path: Path
) -> None:
    digest = coordinator.store(b"wanted")
    coordinator.tokens.clear()
    fetching = asyncio.create_task(artifacts.fetch(digest))
    await coordinator.until(lambda: coordinator.requests)
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)
    assert list((tmp_path / "cache").iterdir()) == []
    await artifacts.aclose()


async def test_what_cancelled_downloads_have_left_makes_room(
    coordinator: Double, artifacts: Artifacts, tmp_path: Path
) -> None:
    await cancelled_underway(coordinator, artifacts, b"a" * 200_000)
    wanted = await artifacts.fetch(coordinator.store(b"b" * 1000))
    assert list((tmp_path / "cache").iterdir()) == [wanted.path]
    await artifacts.aclose()


async def test_a_refused_artifact_leaves_nothing(artifacts: Artifacts, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="404"):
        await artifacts.fetch("0" * 64)
    assert list((tmp_path / "cache").iterdir()) == []
    await artifacts.aclose()


async def test_a_result_waits_for_no_download(coordinator: Double, artifacts: Artifacts) -> None:
    coordinator.hang_after = 0
    wanted = [coordinator.store(bytes([number])) for number in range(12)]
    fetching = [asyncio.create_task(artifacts.fetch(digest)) for digest in wanted]
    await coordinator.until(lambda: len(coordinator.requests) == MAX_DOWNLOADS)
    digest = hashlib.sha256(b"mine").hexdigest()
    async with asyncio.timeout(PATIENCE_S):
        await artifacts.upload(SmallPayload(b"mine"), digest, "a" * 32, audit_answer("b" * 32))
    assert coordinator.artifacts[digest] == b"mine"
    assert not any(task.done() for task in fetching)
    for task in fetching:
        task.cancel()
    await asyncio.gather(*fetching, return_exceptions=True)
    await artifacts.aclose()


def test_a_coordinator_grants_a_node_what_it_moves_at_once() -> None:
    assert MAX_DOWNLOADS + MAX_UPLOADS < MAX_TRANSFERS_PER_NODE


# --- earnings, settings, home -------------------------------------------------------------------------------------------


def test_earnings_never_fall_and_keep_their_receipt(tmp_path: Path) -> None:
    book = EarningsFile(tmp_path / "earnings.db")
    assert book.record("http://a", JobEarned(JOB, 10, 5, "sig1"), 1.0)
    assert not book.record("http://a", JobEarned(JOB, 10, 5, ""), 2.0)
    assert book.record("http://a", JobEarned(JOB, 8, 6, ""), 3.0)
    assert book.record("http://b", JobEarned(JOB, 1, 0), 4.0)
    book.record_wallet(A, 77, 5.0)
    book.close()
    summary = EarningsFile(tmp_path / "earnings.db").summary()
    assert (summary.verified, summary.paid) == (11, 6)
    assert [(job.coordinator, job.verified, job.paid, job.signature) for job in summary.jobs] == [
        ("http://b", 1, 0, ""),
        ("http://a", 10, 6, "sig1"),
    ]
    assert summary.wallet is not None
    assert summary.wallet.balance == 77


def test_settings_are_remembered_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    assert home.settings() == Settings()
    home.remember(Settings(coordinator="http://x:1", stake=5))
    assert home.settings().stake == 5
    (tmp_path / "settings.json").write_text('{"stake": "much"}')
    with pytest.raises(SettingsError, match=r"settings\.json"):
        home.settings()


@pytest.mark.parametrize("url", ["", "x", "ftp://a", "http://", "http://a:99999", "file:///etc/passwd"])
def test_a_coordinator_must_be_an_address(url: str) -> None:
    with pytest.raises(SettingsError):
        Settings(coordinator=url).completed(A)


@pytest.mark.parametrize(
    ("url", "readable"),
    [
        ("https://cottage.example", False),
        ("http://127.0.0.1:8000", False),
        ("http://[::1]:8000", False),
        ("http://localhost:8000", False),
        ("http://cottage.example", True),
        ("http://192.168.1.2:8000", True),
    ],
)
def test_plain_http_that_leaves_the_machine_is_noticed(url: str, readable: bool) -> None:
    assert _is_readable_on_the_way(url) is readable


def test_open_settings_are_filled_in() -> None:
    settings = Settings(coordinator="https://cottage.example").completed(A)
    assert settings.payout == A
    assert settings.threads >= 1
    assert settings.memory_mb >= 512
    assert settings.name


def test_a_home_is_held_by_one_agent(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    with home.locked(), pytest.raises(HomeBusyError, match="already runs"):
        with Home.at(tmp_path).locked():
            pass
    with home.locked():
        pass


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    assert home.key().address == home.key().address
    (tmp_path / "node.key").chmod(0o644)
    with pytest.raises(SettingsError, match="chmod 600"):
        home.key()


# --- the machine --------------------------------------------------------------------------------------------------------


def test_a_machine_without_a_gpu_says_why_it_uses_its_processor() -> None:
    device = detect()
    assert device.memory_mb > 0
    assert device.name
    assert device.note.endswith((".", "desktop."))


async def test_the_machine_is_measured_once_for_the_same_code_device_and_threads(tmp_path: Path) -> None:
    broken = ProcessSandbox(SandboxLimits(512, 1), command=("/bin/false",))
    working = ProcessSandbox(SandboxLimits(512, 1), command=(sys.executable, str(SCRIPT)))
    cache, clock, device = tmp_path / "cache" / "bench.json", VirtualClock(), processor("")
    with pytest.raises(SandboxError, match="exit code 1"):
        await measure(broken, "code", device, 1, cache, clock)
    assert (await measure(working, "code", device, 1, cache, clock)).flops == 1e9
    assert (await measure(broken, "code", device, 1, cache, clock)).env_class == "scripted"
    for identity, other, threads in (
        ("edited", device, 1),
        ("code", device, 2),
        ("code", Device("cuda", "X", 1, ""), 1),
    ):
        with pytest.raises(SandboxError):
            await measure(broken, identity, other, threads, cache, clock)
    assert len(json.loads(cache.read_text())) == 1
    await clock.advance(MAX_AGE_S + 1)
    with pytest.raises(SandboxError):
        await measure(broken, "code", device, 1, cache, clock)


async def test_a_busy_machine_is_measured_again_soon_and_its_owner_can_ask_for_it(tmp_path: Path) -> None:
    said = tmp_path / "said.json"
    working = ProcessSandbox(SandboxLimits(512, 1), command=("/bin/sh", "-c", f"cat {said}"))
    cache, clock, device = tmp_path / "cache" / "bench.json", VirtualClock(), processor("")

    def computes(flops: float, share: float) -> None:
        found = {"flops": flops, "share": share, "env_class": "x", "device": "x", "memory_mb": 1, "threads": 1}
        said.write_text(json.dumps(found))

    computes(3e8, 0.2)
    first = await measure(working, "code", device, 1, cache, clock)
    assert first.was_busy
    computes(9e9, 0.99)
    assert await measure(working, "code", device, 1, cache, clock) == first
    await clock.advance(BUSY_AGE_S + 1)
    assert (await measure(working, "code", device, 1, cache, clock)).flops == 9e9
    computes(8e9, 0.99)
    assert (await measure(working, "code", device, 1, cache, clock, again=True)).flops == 9e9, "just measured"
    await clock.advance(ASKED_AGE_S + 1)
    assert (await measure(working, "code", device, 1, cache, clock)).flops == 9e9
    assert (await measure(working, "code", device, 1, cache, clock, again=True)).flops == 8e9


async def test_a_machine_is_measured_though_nothing_can_be_remembered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    working = ProcessSandbox(SandboxLimits(1024, 1), command=(sys.executable, str(SCRIPT)))
    in_the_way = tmp_path / "home"
    in_the_way.write_text("a service without a home")
    found = await measure(working, "code", processor(""), 1, in_the_way / "cache" / "bench.json", SystemClock())
    assert found.flops == 1e9
    assert "cannot be remembered" in caplog.text


async def test_agents_that_start_together_measure_once(tmp_path: Path) -> None:
    sandbox = ProcessSandbox(SandboxLimits(512, 1), command=(sys.executable, str(SCRIPT)))
    arguments = ("code", processor(""), 1, tmp_path / "bench.json", SystemClock())
    results = await asyncio.gather(*(measure(sandbox, *arguments) for _ in range(4)))
    assert len(set(results)) == 1
    broken = ProcessSandbox(SandboxLimits(512, 1), command=("/bin/false",))
    assert await measure(broken, *arguments) == results[0]


async def test_a_benchmark_that_never_ends_is_stopped(tmp_path: Path) -> None:
    sandbox = ProcessSandbox(SandboxLimits(512, 1), command=("/bin/sleep",))
    with pytest.raises(SandboxError, match="took longer"):
        await sandbox.measure(("100",), 0.2)


def test_text_from_elsewhere_cannot_move_the_cursor_or_forge_a_line() -> None:
    assert "\x1b" not in printable("\x1b[2J\r\nok")
    assert "\n" not in printable("a\nb")
    assert len(printable("x" * 10_000)) == MAX_TEXT
