"""One rank of a test in a process of its own: ``python -m tests.trainer.dist_program SCENARIO``, with torch's own variables.

Prints what the test compares, one JSON object; gloo, in the same processes, is the reference.
"""

import json
import os
import signal
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

from trainer.dist import CottageGroup
from trainer.dist.hooks import four_bits
from trainer.errors import RankLostError


def noise(rank: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank))


def whole(rank: int, *shape: int) -> Tensor:
    """Small integers: their sums have no rounding, in whatever order."""
    return (noise(rank, *shape) * 8).round()


def results(group: Any) -> dict[str, Any]:
    """Every public call once."""
    rank, size = dist.get_rank(), dist.get_world_size()
    found: dict[str, Any] = {}
    for name, count in (("small", 9), ("large", 70_001)):
        dist.all_reduce(total := whole(rank, count), group=group)
        dist.all_reduce(most := noise(rank, count), dist.ReduceOp.MAX, group=group)
        dist.reduce(at_root := whole(rank, count), 1, group=group)
        dist.broadcast(told := noise(rank, count), 2, group=group)
        dist.all_gather(listed := [torch.empty(count) for _ in range(size)], noise(rank, count), group=group)
        dist.all_gather_single(rows := torch.empty(size * count), noise(rank, count), group=group)
        dist.reduce_scatter_single(share := torch.empty(count), whole(rank, size * count), group=group)
        dist.all_to_all_single(turned := torch.empty(size * 3, count), noise(rank, size * 3, count), group=group)
        at = [torch.empty(count) for _ in range(size)] if rank == 0 else None
        dist.gather(noise(rank, count), at, 0, group=group)
        shares = [noise(7 + i, count) for i in range(size)] if rank == 2 else None
        dist.scatter(mine := torch.empty(count), shares, 2, group=group)
        found[name] = [
            total,
            most,
            *([at_root] if rank == 1 else []),
            told,
            *listed,
            rows,
            share,
            turned,
            *(at or []),
            mine,
        ]
    dist.all_gather_object(objects := [None] * size, {"rank": rank, "text": "x" * rank}, group=group)
    dist.broadcast_object_list(said := [rank, "here"], 1, group=group)
    ahead, behind = (rank + 1) % size, (rank - 1) % size
    got = [torch.empty(5), torch.empty(5)]
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, noise(rank, 5), ahead, group, 1),
            dist.P2POp(dist.irecv, got[0], behind, group, 1),
            dist.P2POp(dist.isend, noise(rank + 9, 5), ahead, group, 2),
            dist.P2POp(dist.irecv, got[1], behind, group, 2),
        ]
    )
    for work in works:
        work.wait()
    dist.barrier(group=group)
    return found | {"objects": objects, "said": said, "got": got}


def same(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor):
        return torch.equal(left, right)
    if isinstance(left, list):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return bool(left == right)


def collectives() -> dict[str, bool]:
    gloo = dist.new_group(backend="gloo")
    ours, theirs = results(None), results(gloo)
    dist.all_reduce(rounded := noise(dist.get_rank(), 70_001))
    everybody = [torch.empty(70_001) for _ in range(3)]
    dist.all_gather(everybody, rounded, group=gloo)
    part = dist.new_group([0, 2])
    if dist.get_rank() != 1:
        dist.all_reduce(pair := torch.tensor([float(dist.get_rank())]), group=part)
        ours["pair"], theirs["pair"] = pair, torch.tensor([2.0])
    return {name: same(ours[name], theirs[name]) for name in ours} | {"bits": same(everybody, [rounded] * 3)}


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))


def learned(group: Any, hook: Any = None) -> list[float]:
    """Losses of 60 steps with DDP."""
    model = DistributedDataParallel(network(), process_group=group, bucket_cap_mb=0.01)
    if hook is not None:
        model.register_comm_hook(group, hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    samples = torch.Generator().manual_seed(100 + dist.get_rank())
    losses = []
    for _ in range(60):
        x = torch.randn(64, 16, generator=samples)
        loss = (model(x) - x.tanh().sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [*losses, *(parameter.double().sum().item() for parameter in model.parameters())]


def gradients() -> dict[str, Any]:
    gloo = dist.new_group(backend="gloo")
    return {"plain": learned(None), "gloo": learned(gloo), "four bits": learned(None, four_bits)}


def pipelined(group: Any, schedule: Any) -> list[float]:
    """Losses of three steps of two stages."""
    rank, layers = dist.get_rank(), network()
    module = layers[:2] if rank == 0 else layers[2:]
    stage = PipelineStage(module, rank, 2, torch.device("cpu"), group=group)
    runs = schedule(stage, 4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    found: list[float] = []
    for step in range(3):
        losses: list[Tensor] = []
        x = noise(step, 32, 16)
        optimizer.zero_grad()
        if rank == 0:
            runs.step(x)
        else:
            runs.step(target=x.sum(1, keepdim=True), losses=losses)
        optimizer.step()
        found += [loss.item() for loss in losses]
    return found + [parameter.double().sum().item() for parameter in module.parameters()]


def pipeline() -> dict[str, Any]:
    gloo = dist.new_group(backend="gloo")
    return {
        schedule.__name__: [pipelined(None, schedule), pipelined(gloo, schedule)]
        for schedule in (ScheduleGPipe, Schedule1F1B)
    }


def killed() -> dict[str, Any]:
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(torch.ones(100_000))
    except RankLostError as error:
        return {"ranks": sorted(error.ranks), "said": str(error)}
    return {}


def unfinished() -> dict[str, Any]:
    if dist.get_rank() == 1:
        sys.exit(0)
    try:
        dist.recv(torch.ones(1), 1)
    except RankLostError as error:
        return {"said": str(error)}
    return {}


def torchft() -> list[list[float]]:
    """Means that torchft's manager commits; every rank is a replica of its own, and rank 0 has the lighthouse."""
    from torchft import Manager
    from torchft.coordination import LighthouseServer
    from torchft.process_group import ProcessGroupWrapper

    class Links(ProcessGroupWrapper):
        def _create_pg(self, store: Any, rank: int, world_size: int) -> CottageGroup:
            return CottageGroup(store, rank, world_size, self._timeout)

        def getBackendName(self) -> str:  # noqa: N802
            return "cottage"

    rank, limit = dist.get_rank(), timedelta(seconds=60)
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=2, join_timeout_ms=60_000) if rank == 0 else None
    said = [f"http://127.0.0.1:{lighthouse.address().rpartition(':')[2]}" if lighthouse else ""]
    dist.broadcast_object_list(said, 0)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=Links(timeout=limit),
        load_state_dict=lambda _: None,
        state_dict=dict,
        min_replica_size=2,
        use_async_quorum=False,
        timeout=limit,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=said[0],
        replica_id=f"home-{rank}",
        hostname="127.0.0.1",
        init_sync=False,
    )
    found = []
    for step in range(3):
        manager.start_quorum()
        manager.allreduce(mean := torch.full((2,), float(rank + step))).wait()
        found.append([*mean.tolist(), float(manager.should_commit())])
    dist.barrier()
    manager.shutdown()
    if lighthouse is not None:
        lighthouse.shutdown()
    return found


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("cottage", timeout=timedelta(seconds=120))
    scenario = {
        "collectives": collectives,
        "gradients": gradients,
        "pipeline": pipeline,
        "torchft": torchft,
        "killed": killed,
        "unfinished": unfinished,
    }[sys.argv[1]]
    sys.stdout.write(json.dumps(scenario()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
