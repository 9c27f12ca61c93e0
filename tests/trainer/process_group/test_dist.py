"""The process group, rank by rank in one process: real links over loopback, a Store in memory."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from protocol.identity import NodeKey
from trainer.dist import CottageGroup, GroupSettings, mesh
from trainer.dist.collectives import fold
from trainer.dist.mesh import COLLECTIVE, Call, Name
from trainer.dist.work import GroupWork
from trainer.errors import GroupError, RankLostError

Groups = Callable[..., list[CottageGroup]]
LIMIT = timedelta(seconds=60)  # Of calls that succeed; a busy machine may take its time.


def settings(number: int) -> GroupSettings:
    return GroupSettings(key=NodeKey(bytes([number + 1] * 32)), loopback=True)


def connect(count: int, timeout: timedelta, chosen: Callable[[int], GroupSettings]) -> list[CottageGroup]:
    store = dist.HashStore()
    with ThreadPoolExecutor(count) as pool:
        made = [pool.submit(CottageGroup, store, rank, count, timeout, chosen(rank)) for rank in range(count)]
    failures = [error for work in made if (error := work.exception()) is not None]
    groups = [work.result() for work in made if work.exception() is None]
    if failures:
        for group in groups:
            group.shutdown()
        raise failures[0]
    return groups


@pytest.fixture(scope="module")
def three() -> Iterator[list[CottageGroup]]:
    groups = connect(3, LIMIT, settings)
    yield groups
    for group in groups:
        group.shutdown()


@pytest.fixture
def groups() -> Iterator[Groups]:
    made: list[CottageGroup] = []

    def make(
        count: int = 2, timeout: timedelta = LIMIT, chosen: Callable[[int], GroupSettings] = settings
    ) -> list[CottageGroup]:
        made.extend(connect(count, timeout, chosen))
        return made[-count:]

    yield make
    for group in made:
        group.shutdown()


def everywhere(members: list[CottageGroup], call: Callable[[CottageGroup], GroupWork]) -> None:
    for work in [call(group) for group in members]:
        work.wait()


def noise(rank: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank))


@pytest.mark.parametrize("shape", [(), (0,), (7,), (300, 211)], ids=str)
def test_a_sum_is_that_of_the_ranks_in_their_order_to_the_last_bit(
    three: list[CottageGroup], shape: tuple[int, ...]
) -> None:
    tensors = [noise(rank, *shape) for rank in range(3)]
    expected = fold(tensors, "SUM")
    everywhere(three, lambda group: group.allreduce([tensors[group.rank()]]))
    assert all(torch.equal(tensor, expected) for tensor in tensors)


@pytest.mark.parametrize("op", ["SUM", "AVG", "MIN", "MAX", "PRODUCT"])
@pytest.mark.parametrize("count", [5, 50_000])
def test_all_ranks_reduce_to_the_same_bits(three: list[CottageGroup], op: str, count: int) -> None:
    tensors = [noise(rank, count) for rank in range(3)]
    expected = fold(tensors, op)
    everywhere(three, lambda group: group.allreduce([tensors[group.rank()]], getattr(dist.ReduceOp, op)))
    assert all(torch.equal(tensor, expected) for tensor in tensors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool])
def test_every_type_of_number_travels(three: list[CottageGroup], dtype: torch.dtype) -> None:
    tensors = [(noise(rank, 11) * 9).abs().to(dtype) for rank in range(3)]
    outputs = [[torch.empty_like(tensor) for tensor in tensors] for _ in range(3)]
    everywhere(three, lambda group: group.allgather([outputs[group.rank()]], [tensors[group.rank()]]))
    assert all(torch.equal(got, sent) for row in outputs for got, sent in zip(row, tensors, strict=True))


def test_a_view_with_gaps_is_reduced_in_place(three: list[CottageGroup]) -> None:
    tensors = [torch.zeros(4, 6) for _ in range(3)]
    everywhere(three, lambda group: group.allreduce([tensors[group.rank()][:, ::2].add_(group.rank() + 1)]))
    assert all(torch.equal(tensor[:, ::2], torch.full((4, 3), 6.0)) for tensor in tensors)
    assert all(torch.equal(tensor[:, 1::2], torch.zeros(4, 3)) for tensor in tensors)


def test_a_tensor_longer_than_a_piece_arrives_whole(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "PIECE", 1000)
    pair = groups()
    sent, got = noise(1, 777), torch.empty(777)
    works = pair[0].send([sent], 1, 5), pair[1].recv([got], 0, 5)
    assert all(work.wait() for work in works)
    assert torch.equal(sent, got)


def test_messages_of_one_tag_keep_their_order_and_tags_do_not_wait_for_each_other(three: list[CottageGroup]) -> None:
    sends = [three[0].send([torch.tensor([10 * tag + i])], 1, tag) for tag in (3, 4) for i in range(3)]
    got = {}
    for tag in (4, 3):
        for i in range(3):
            tensor = torch.empty(1, dtype=torch.int64)
            three[1].recv([tensor], 0, tag).wait()
            got[tag, i] = tensor.item()
    assert got == {(tag, i): 10 * tag + i for tag in (3, 4) for i in range(3)}
    assert all(send.wait() for send in sends)


def test_a_callback_may_call_the_group_and_wait(three: list[CottageGroup]) -> None:
    """PowerSGD's hook does; in the mesh's own thread it would wait for itself."""
    first, second = ([torch.ones(4) for _ in range(3)] for _ in range(2))

    def then(group: CottageGroup) -> Tensor:
        group.allreduce([second[group.rank()]]).get_future().wait()
        return second[group.rank()]

    chains = [
        group.allreduce([first[group.rank()]]).get_future().then(lambda _, group=group: then(group)) for group in three
    ]
    assert all(torch.equal(chain.wait(), torch.full((4,), 3.0)) for chain in chains)


def test_a_future_is_complete_when_wait_returns(three: list[CottageGroup]) -> None:
    works = [group.allreduce([torch.ones(1)]) for group in three]
    for work in works:
        work.wait()
        assert work.get_future().done()
        assert work.is_completed()
        assert work.is_success()


def test_ranks_that_call_different_things_are_told(groups: Groups) -> None:
    pair = groups()
    work, other = pair[0].allreduce([torch.ones(3)]), pair[1].allreduce([torch.ones(4)])
    for each in (work, other):
        with pytest.raises(GroupError, match="same calls in the same order"):
            each.wait()
    sum_, maximum = pair[0].allreduce([torch.ones(3)]), pair[1].allreduce([torch.ones(3)], dist.ReduceOp.MAX)
    with pytest.raises(GroupError, match=r"rank 1 sent b'all_reduce MAX torch.float32'"):
        sum_.wait()
    with pytest.raises(GroupError, match=r"rank 0 sent b'all_reduce SUM torch.float32'"):
        maximum.wait()
    everywhere(pair, lambda group: group.barrier())


def test_a_rank_that_does_not_answer_is_named_when_the_time_is_up(groups: Groups) -> None:
    trio = groups(3)
    for group in trio:
        group.set_timeout(timedelta(seconds=0.5))
    works = [group.allreduce([torch.ones(1)]) for group in trio[:2]]
    for work in works:
        with pytest.raises(
            RankLostError, match=r"all_reduce SUM took longer than 0.5 s: rank 2 did not answer"
        ) as caught:
            work.wait()
        assert caught.value.ranks == {2}
        with pytest.raises(RuntimeError, match="rank 2"):
            work.get_future().wait()
        assert not work.is_success()


def test_whoever_waits_for_a_rank_that_leaves_is_told_at_once_and_the_others_go_on(groups: Groups) -> None:
    trio = groups(3)
    barred = trio[0].barrier()
    trio[2].shutdown()
    with pytest.raises(RankLostError, match="rank 2 is lost: it left the group"):
        barred.wait()
    with pytest.raises(RankLostError, match="rank 2 is lost"):
        trio[0].send([torch.ones(1)], 2).wait()
    got = torch.empty(1)
    trio[0].send([torch.ones(1)], 1)
    trio[1].recv([got], 0).wait()
    assert got.item() == 1.0


def test_what_waits_fails_when_the_group_is_aborted(groups: Groups) -> None:
    pair = groups()
    work = pair[0].recv([torch.empty(1)], 1)
    pair[0].abort()
    with pytest.raises(GroupError, match="aborted"):
        work.wait()
    with pytest.raises(GroupError, match="aborted"):
        pair[0].barrier().wait()
    pair[0].abort()


def test_a_rank_that_runs_ahead_waits_for_room_and_loses_nothing(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh, "MAX_UNCLAIMED", 4000)
    pair = groups()
    sends = [pair[0].send([torch.full((250,), float(i))], 1) for i in range(20)]
    everywhere(pair, lambda group: group.barrier())
    held = pair[1]._mesh._ranks[0].held
    assert held <= 4000
    assert not all(send.is_completed() for send in sends)
    for i in range(20):
        got = torch.empty(250)
        pair[1].recv([got], 0).wait()
        assert torch.equal(got, torch.full((250,), float(i)))
    assert all(send.wait() for send in sends)


def test_bytes_that_are_no_message_are_refused(groups: Groups) -> None:
    pair = groups()
    sender, receiver = pair[0]._mesh, pair[1]._mesh
    short = Name(COLLECTIVE, 10_000, 0, 0)
    with pytest.raises(RankLostError, match=r"knows no message with 15\+5 bytes"):
        sender.start(sender.put(1, short, b"", memoryview(b"12345"))).result()
    assert receiver._ranks[0].held == 0


def test_a_length_that_was_not_asked_for_never_becomes_a_tensor(groups: Groups) -> None:
    pair = groups()
    sender, receiver = pair[0]._mesh, pair[1]._mesh
    name = Name(COLLECTIVE, 0, 0, 0)
    sender.start(sender.put(1, name, b"broadcast torch.float32", memoryview(bytes(4096)))).result()
    call = Call(receiver, "broadcast", COLLECTIVE, 0)
    with pytest.raises(GroupError, match=r"of 4096 bytes, here is b'broadcast torch.float32' of 16"):
        receiver.start(call.take(0, torch.empty(4))).result()


def test_a_rank_that_never_comes_is_named() -> None:
    with pytest.raises(RankLostError, match=r"no link to rank 1, 2 within 0.5 s"):
        CottageGroup(dist.HashStore(), 0, 3, timedelta(seconds=0.5), settings(0))


def test_a_store_cannot_put_another_node_in_a_pinned_rank_s_place() -> None:
    peers = tuple(settings(rank).key.address for rank in (0, 7))
    with pytest.raises(GroupError, match=r"rank 1 says that it is .*, but COTTAGE_PEERS names"):
        connect(2, LIMIT, lambda rank: replace(settings(rank), peers=peers))


def test_two_ranks_with_one_key_are_refused() -> None:
    with pytest.raises(GroupError, match="two ranks have one key"):
        connect(2, LIMIT, lambda rank: settings(0))


def test_pinned_ranks_meet(groups: Groups) -> None:
    peers = tuple(settings(rank).key.address for rank in range(2))
    pair = groups(2, LIMIT, lambda rank: replace(settings(rank), peers=peers))
    everywhere(pair, lambda group: group.barrier())
    assert pair[0].wire_bytes >= 0


def test_more_ranks_than_links_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(GroupError, match="at most 65"):
        CottageGroup(dist.HashStore(), 0, 66, LIMIT, settings(0))


def test_what_cannot_be_done_says_so(three: list[CottageGroup]) -> None:
    with pytest.raises(GroupError, match="pass src"):
        three[0].recv_anysource([torch.empty(1)])
    with pytest.raises(GroupError, match="only SUM, AVG"):
        three[0].allreduce([torch.ones(1)], dist.ReduceOp.BXOR)
    with pytest.raises(GroupError, match="to_dense"):
        three[0].allreduce([torch.ones(2, 2).to_sparse()])
    with pytest.raises(GroupError, match="no exact answer"):
        fold([torch.ones(1, dtype=torch.int64)], "AVG")


def test_a_group_that_was_closed_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    for group in connect(2, LIMIT, settings):
        group.shutdown()
    assert {thread.name for thread in set(threading.enumerate()) - before if thread.name == "cottage-mesh"} == set()


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("COTTAGE_REACH_S", "soon", "COTTAGE_REACH_S='soon': expected seconds from 1 to 3600"),
        ("COTTAGE_REACH_S", "nan", "expected seconds"),
        ("COTTAGE_PEERS", "nobody", "COTTAGE_ variables cannot be used"),
        ("COTTAGE_ICE_SERVERS", "[{}]", "COTTAGE_ variables cannot be used"),
        ("COTTAGE_ICE_SERVERS", '[{"urls": ["turn:relay.example.org"]}]', "needs a user name and a credential"),
    ],
)
def test_an_unusable_variable_is_named(variable: str, value: str, message: str) -> None:
    with pytest.raises(GroupError, match=message):
        GroupSettings.from_environment({variable: value})


def test_the_environment_s_servers_and_peers_are_used() -> None:
    address = settings(0).key.address
    found = GroupSettings.from_environment(
        {
            "COTTAGE_ICE_SERVERS": '[{"urls": ["stun:stun.example.org:3478"]}]',
            "COTTAGE_PEERS": f"{address}, {settings(1).key.address}",
            "COTTAGE_LOOPBACK": "1",
            "COTTAGE_REACH_S": "5",
        }
    )
    assert [server.host for server in found.ice_servers] == ["stun.example.org"]
    assert found.pinned([1, 0]) == (settings(1).key.address, address)
    assert (found.loopback, found.reach_s) == (True, 5.0)
    with pytest.raises(GroupError, match="names 2 ranks, but there is a rank 2"):
        found.pinned([0, 2])
    assert GroupSettings.from_environment({}).pinned([5]) == ()
