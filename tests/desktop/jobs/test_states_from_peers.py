"""A stage's state from several peers: whole and right, or not at all, whoever leaves, lies or stays silent meanwhile."""

import asyncio
import errno
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from common.clock import SystemClock
from common.encrypted_files import OVERHEAD, SEGMENT
from common.errors import MessageRefusedError, PeerUnreachableError
from desktop.agent.errors import PeerStateError
from desktop.agent.jobs.state_replication import Partial, States
from desktop.agent.jobs.state_store import KEPT, StateStore
from protocol.codec import encode
from protocol.state import PIECE_BYTES, PREFIX, Manifest, StateAsk, StateGive, digest_of, header, manifest_of
from protocol.task import KeptState
from transport.messages.lanes import Lane


class Hurry(SystemClock):
    """Pauses take no time."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


SECRET = bytes(range(32))


@dataclass
class Net:
    """Links in memory.

    Attributes:
        dies_after: how many more pieces a node gives before it is gone.
        lies: who gives wrong bytes. ``silent``: who hears nothing.
        held: what a node says waits for this.
    """

    folder: Path
    nodes: dict[str, States] = field(default_factory=dict)
    shelves: dict[str, StateStore] = field(default_factory=dict)
    dies_after: dict[str, int] = field(default_factory=dict)
    lies: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    pieces: dict[str, int] = field(default_factory=dict)
    held: dict[str, asyncio.Event] = field(default_factory=dict)
    given: list[bytes] = field(default_factory=list)

    def add(self, name: str) -> States:
        store = self.shelves[name] = StateStore(self.folder / name, SECRET)

        async def send(peer: str, lane: Lane, head: bytes, payload: bytes) -> None:
            await self._carry(name, peer, lane, head, payload)

        self.nodes[name] = States(name, store, send, Hurry())
        return self.nodes[name]

    async def _carry(self, sender: str, peer: str, lane: Lane, head: bytes, payload: bytes) -> None:
        await asyncio.sleep(0)
        if sender in self.held:
            await self.held[sender].wait()
        if len(payload) >= 5000:
            self.pieces[sender] = self.pieces.get(sender, 0) + 1
            self.given.append(bytes(payload))
            if sender in self.dies_after:
                self.dies_after[sender] -= 1
                if self.dies_after[sender] < 0:
                    raise PeerUnreachableError(f"{sender} has gone")
            payload = bytes(len(payload)) if sender in self.lies else payload
        if peer in self.silent:
            return
        if self.dies_after.get(peer, 0) < 0 or peer not in self.nodes:
            raise PeerUnreachableError(f"{peer} has gone")
        await self.nodes[peer].on_message(sender, lane, head, payload)


@asynccontextmanager
async def network(folder: Path, state: bytes, givers: int) -> AsyncIterator[tuple[Net, States, KeptState]]:
    net = Net(folder)
    names = [f"giver{number}" for number in range(givers)]
    digests = {await net.add(name).keep("job-0-0", state) for name in names}
    asker = net.add("asker")
    yield net, asker, KeptState(digests.pop(), tuple(names))
    for node in net.nodes.values():
        await node.aclose()


def some_state(pieces: float, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(int(pieces * PIECE_BYTES))


def damage(store: Path, *pieces: int) -> None:
    """A byte of each of these pieces is another one on the disk."""
    file = next(store.glob("*.sealed"))
    sealed = bytearray(file.read_bytes())
    for piece in pieces:
        sealed[piece * PIECE_BYTES // SEGMENT * (SEGMENT + OVERHEAD) + 100] ^= 1
    file.write_bytes(sealed)


async def test_all_who_have_it_give_a_part_of_it(tmp_path: Path) -> None:
    state = some_state(12.3)
    async with network(tmp_path, state, 3) as (net, asker, kept):
        assert (await asker.fetch(kept)).read() == state
        assert set(asker.taken) == set(kept.holders)
        counts = Counter(net.given)
        assert len(counts) == 13
        assert sum(count > 1 for count in counts.values()) <= 2, "only the last pieces are asked for more than once"


@pytest.mark.parametrize("pieces", [0.00001, 1.0, 1.5])
async def test_a_state_of_any_size_from_one_peer(tmp_path: Path, pieces: float) -> None:
    state = some_state(pieces)
    async with network(tmp_path, state, 1) as (_, asker, kept):
        assert (await asker.fetch(kept)).read() == state


async def test_a_giver_that_leaves_in_the_middle_is_replaced(tmp_path: Path) -> None:
    state = some_state(9.5)
    async with network(tmp_path, state, 3) as (net, asker, kept):
        net.dies_after = {"giver0": 2, "giver1": 1}
        assert (await asker.fetch(kept)).read() == state
        assert asker.taken["giver2"] >= 6


async def test_a_giver_that_falls_silent_holds_nothing_up(tmp_path: Path) -> None:
    state = some_state(6)
    async with network(tmp_path, state, 2) as (net, asker, kept):
        net.silent = {"giver0"}
        async with asyncio.timeout(20):  # Less than the giver would be waited for.
            assert (await asker.fetch(kept)).read() == state
        assert asker.taken == {"giver1": 6}


async def test_a_giver_of_wrong_bytes_is_known_at_its_first_piece(tmp_path: Path) -> None:
    state = some_state(8)
    async with network(tmp_path, state, 2) as (net, asker, kept):
        net.lies = {"giver0"}
        assert (await asker.fetch(kept)).read() == state
        assert net.pieces["giver0"] == 1
        assert asker.taken == {"giver1": 8}


async def test_a_download_that_failed_is_not_done_and_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("desktop.agent.jobs.state_replication.ANSWER_S", 1.0)
    state = some_state(7)
    async with network(tmp_path, state, 2) as (net, asker, kept):
        net.dies_after = {"giver0": 2, "giver1": 2}
        with pytest.raises(PeerStateError, match="4 of 7 pieces"):
            await asker.fetch(kept)
        net.dies_after = {}
        net.given.clear()
        assert (await asker.fetch(kept)).read() == state
        assert len(set(net.given)) == 3, "what came before is not asked for again"


async def test_what_a_broken_download_has_left_goes_with_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("desktop.agent.jobs.state_replication.ANSWER_S", 1.0)
    async with network(tmp_path, some_state(5), 1) as (net, asker, kept):
        net.dies_after = {"giver0": 2}
        with pytest.raises(PeerStateError, match="2 of 5 pieces"):
            await asker.fetch(kept)
        [part] = (tmp_path / "asker").iterdir()
        assert part.suffix == ".part"
        StateStore(tmp_path / "asker", SECRET)  # As the next agent does.
        assert list((tmp_path / "asker").iterdir()) == []


@pytest.mark.parametrize("links", [True, False])
def test_a_state_that_two_leases_wait_for_is_each_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    if not links:
        monkeypatch.setattr("os.link", refuse)
    store, state = StateStore(tmp_path, SECRET), some_state(2.5)
    manifest = manifest_of(state)
    partial = Partial(manifest, store.spool.begin(manifest.size))
    for piece in (2, 0, 1):
        assert partial.take(piece, state[manifest.span(piece)])
    first = partial.finished()
    second, third = store.spool.share(first), store.spool.share(first)
    first.end()  # Its worker has gone.
    digests = {store.keep("job-0-1", second), store.keep("job-0-2", third)}
    assert digests == {digest_of(encode(manifest))}
    assert len(list(tmp_path.glob("*.sealed"))) == 2
    assert second.read() == third.read() == state
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(("pieces", "givers"), [(1, 1), (5.5, 2)])
async def test_two_seats_that_fetch_one_state_at_a_time_both_get_it_once(
    tmp_path: Path, pieces: float, givers: int
) -> None:
    state = some_state(pieces)
    async with network(tmp_path, state, givers) as (net, asker, kept):
        first, second = await asyncio.gather(asker.fetch(kept), asker.fetch(kept))
        assert first.read() == second.read() == state
        assert len(net.given) < 2 * len(set(net.given))
        assert {await asker.keep("job-0-1", first), await asker.keep("job-0-2", second)} == {kept.manifest}
        assert asker._flights == {}


async def test_who_waits_for_the_state_of_another_seat_goes_on_where_that_gave_up(tmp_path: Path) -> None:
    state = some_state(3)
    async with network(tmp_path, state, 1) as (net, asker, kept):
        net.held["giver0"] = asyncio.Event()
        first, second = (asyncio.create_task(asker.fetch(kept)) for _ in range(2))
        for _ in range(5):
            await asyncio.sleep(0.01)
        first.cancel()  # A newer round of its seat began.
        net.held["giver0"].set()
        assert (await second).read() == state
        assert first.cancelled()


async def test_of_two_seats_each_asks_those_that_it_was_told_of(tmp_path: Path) -> None:
    state = some_state(2)
    async with network(tmp_path, state, 1) as (_, asker, kept):
        strangers = KeptState(kept.manifest, ("nobody",))
        lost, found = await asyncio.gather(asker.fetch(strangers), asker.fetch(kept), return_exceptions=True)
        assert isinstance(lost, PeerStateError)
        assert not isinstance(found, BaseException)
        assert found.read() == state


async def test_a_state_that_the_owner_lends_no_room_for_is_not_fetched(tmp_path: Path) -> None:
    async with network(tmp_path, some_state(3), 1) as (net, asker, kept):
        net.shelves["asker"].lend(2 << 20)
        with pytest.raises(OSError, match="of which jobs may have 2,097,152"):
            await asker.fetch(kept)
        assert net.pieces == {}


async def test_liars_alone_give_nothing(tmp_path: Path) -> None:
    async with network(tmp_path, some_state(3), 3) as (net, asker, kept):
        net.lies = set(kept.holders)
        with pytest.raises(PeerStateError):
            await asker.fetch(kept)
        assert await asyncio.to_thread(net.shelves["asker"].manifest, kept.manifest) is None


async def test_nobody_there_is_said_so(tmp_path: Path) -> None:
    async with network(tmp_path, some_state(1), 1) as (_, asker, kept):
        for strangers in ((), ("nobody",), ("asker",)):
            with pytest.raises(PeerStateError, match="none of"):
                await asker.fetch(KeptState(kept.manifest, strangers))


async def test_what_lies_on_the_own_shelf_is_asked_of_nobody(tmp_path: Path) -> None:
    state = some_state(2)
    async with network(tmp_path, state, 1) as (net, asker, kept):
        await asker.keep("job-0-1", state)
        assert (await asker.fetch(KeptState(kept.manifest, ()))).read() == state
        assert net.pieces == {}


async def test_a_damaged_file_of_the_own_shelf_is_fetched_anew(tmp_path: Path) -> None:
    state = some_state(2)
    async with network(tmp_path, state, 1) as (net, asker, kept):
        await asker.keep("job-0-1", state)
        file = next((tmp_path / "asker").glob("*.sealed"))
        file.write_bytes(b"x" + state[1:])
        assert (await asker.fetch(kept)).read() == state
        assert net.pieces == {"giver0": 2}


async def test_a_damaged_shelf_gives_no_wrong_state(tmp_path: Path) -> None:
    state = some_state(4)
    async with network(tmp_path, state, 2) as (_, asker, kept):
        next((tmp_path / "giver0").glob("*.sealed")).write_bytes(bytes(4 * PIECE_BYTES))
        damage(tmp_path / "giver1", 3)
        with pytest.raises(PeerStateError, match="3 of 4"):
            await asker.fetch(kept)


async def test_who_has_not_a_piece_is_asked_for_one_that_another_is_slow_with(tmp_path: Path) -> None:
    state = some_state(4)
    async with network(tmp_path, state, 2) as (net, asker, kept):
        net.held["giver0"] = asyncio.Event()  # It has the last piece only, and is slow to say so.
        damage(tmp_path / "giver0", 0, 1, 2)
        damage(tmp_path / "giver1", 3)
        fetching = asyncio.create_task(asker.fetch(kept))
        while len(set(net.given)) < 3:  # Those of giver1, the one that giver0 has in hand among them.
            await asyncio.sleep(0.001)
            assert not fetching.done(), "it gave up before giver0 had said anything"
        net.held["giver0"].set()
        assert (await fetching).read() == state


async def test_a_manifest_of_another_state_is_not_believed(tmp_path: Path) -> None:
    state, other = some_state(2), some_state(2, seed=2)
    async with network(tmp_path, state, 1) as (net, asker, kept):
        path = next((tmp_path / "giver0").glob("*.manifest"))
        path.write_bytes(encode(manifest_of(other)))
        with pytest.raises(PeerStateError):
            await asker.fetch(kept)
        assert net.pieces == {}


async def test_a_piece_that_nobody_asked_for_is_thrown_away(tmp_path: Path) -> None:
    state = some_state(2)
    async with network(tmp_path, state, 1) as (_, asker, kept):
        give = header(StateGive(kept.manifest, 0))
        await asker.on_message("giver0", Lane.BULK, give, bytes(PIECE_BYTES))
        assert (await asker.fetch(kept)).read() == state


@pytest.mark.parametrize("junk", [b"", b"\xc1", b"\x93\x01\x02\x03", encode(StateAsk("0" * 64))[:-1]])
async def test_a_malformed_message_is_refused(tmp_path: Path, junk: bytes) -> None:
    async with network(tmp_path, some_state(1), 1) as (_, asker, _kept):
        with pytest.raises(MessageRefusedError):
            await asker.on_message("giver0", Lane.CONTROL, PREFIX + junk, b"")


def test_a_manifest_with_too_few_pieces_is_none() -> None:
    whole = manifest_of(some_state(2))
    short = Manifest(whole.artifact, whole.size, whole.pieces[:1])
    assert whole.is_sound
    assert not short.is_sound


def test_a_shelf_keeps_the_newest_of_each_seat_and_finds_them_after_a_restart(tmp_path: Path) -> None:
    store = StateStore(tmp_path, SECRET)
    digests = [store.keep("job-0-0", f"state {number}".encode()) for number in range(KEPT + 2)]
    other = store.keep("job-1-0", b"another stage")
    again = StateStore(tmp_path, SECRET)
    assert [again.manifest(digest) is not None for digest in digests] == [False] * 2 + [True] * KEPT
    assert again.manifest(other) is not None
    assert digest_of(encode(manifest_of(b"another stage"))) == other


def test_a_full_shelf_forgets_the_oldest_but_never_the_one_just_kept(tmp_path: Path) -> None:
    store = StateStore(tmp_path, SECRET, limit=2_500)
    digests = [store.keep(f"job-{number}-0", bytes([number]) * 1000) for number in range(4)]
    assert [store.manifest(digest) is not None for digest in digests] == [False, False, True, True]
    large = store.keep("job-9-0", bytes(5000))
    assert store.manifest(large) is not None
    assert all(store.manifest(digest) is None for digest in digests)
