"""The collectives, from two acts: put a tensor to a rank, take one from a rank.

Everybody talks to everybody directly: over home links a ring's 2(n-1) hops in turn cost more than its links save. Sums are made
in the order of the ranks, by one rank or by all from the same bytes, so all ranks hold the same bits. Tensors are on the CPU and
contiguous; results are new tensors.
"""

import asyncio
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from trainer.dist.mesh import Call
from trainer.errors import GroupError

SMALL = 64 << 10  # Bytes up to which a second hop takes longer than sending a tensor whole to everybody.

_OPERATIONS = ("SUM", "AVG", "MIN", "MAX", "PRODUCT")


def operation_name(op: object) -> str:
    """Which reduction torch means by ``op``.

    Raises:
        GroupError: one that there is not here.
    """
    for name in _OPERATIONS:
        if op == getattr(ReduceOp, name):
            return name
    raise GroupError(f"{op} cannot be reduced over Cottage links, only {', '.join(_OPERATIONS)}")


def fold(parts: Sequence[Tensor], operation: str) -> Tensor:
    """Reduce tensors of one shape in their order.

    Raises:
        GroupError: an average of integers.
    """
    total = parts[0].clone()
    if operation == "AVG" and not (total.is_floating_point() or total.is_complex()):
        raise GroupError(f"AVG of {total.dtype} has no exact answer: use SUM and divide")
    for part in parts[1:]:
        match operation:
            case "MIN":
                torch.minimum(total, part, out=total)
            case "MAX":
                torch.maximum(total, part, out=total)
            case "PRODUCT":
                total.mul_(part)
            case _:
                total.add_(part)
    return total.div_(len(parts)) if operation == "AVG" else total


async def exchange(
    call: Call, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor], step: int = 0
) -> dict[int, Tensor]:
    """Send to some ranks and receive from some, all at once; what goes from this rank to itself just stays.

    Args:
        incoming: by rank, tensors of the shape and type that will come.
    """
    own = call.mesh.rank
    async with asyncio.TaskGroup() as group:
        takes = {rank: group.create_task(call.take(rank, like, step)) for rank, like in incoming.items() if rank != own}
        for rank, tensor in outgoing.items():
            if rank != own:
                group.create_task(call.put(rank, tensor, step))
    return {rank: outgoing[own] if rank == own else takes[rank].result() for rank in incoming}


async def all_gather(call: Call, tensor: Tensor, step: int = 0) -> list[Tensor]:
    """Everybody's tensor, in the order of the ranks."""
    everybody = dict.fromkeys(range(call.mesh.size), tensor)
    parts = await exchange(call, everybody, everybody, step)
    return [parts[rank] for rank in everybody]


async def all_to_all(call: Call, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> list[Tensor]:
    """One tensor from each rank to each; ``incoming`` has the shapes."""
    parts = await exchange(call, dict(enumerate(outgoing)), dict(enumerate(incoming)))
    return [parts[rank] for rank in range(call.mesh.size)]


async def reduce_scatter(call: Call, shares: Sequence[Tensor], operation: str) -> Tensor:
    """The reduction of everybody's share for this rank; ``shares`` has one for each rank, maybe of different sizes."""
    own = shares[call.mesh.rank]
    parts = await exchange(call, dict(enumerate(shares)), dict.fromkeys(range(call.mesh.size), own))
    return fold([parts[rank] for rank in range(call.mesh.size)], operation)


async def all_reduce(call: Call, tensor: Tensor, operation: str) -> Tensor:
    """The reduction of everybody's tensor: small ones whole in one hop, others in two, each rank reducing its share.

    Returns:
        ``[numel]``.
    """
    size, flat = call.mesh.size, tensor.reshape(-1)
    if size <= 2 or flat.numel() * flat.element_size() <= SMALL:
        return fold(await all_gather(call, flat), operation)
    shares = list(flat.tensor_split(size))
    own = await reduce_scatter(call, shares, operation)
    parts = await exchange(call, dict.fromkeys(range(size), own), dict(enumerate(shares)), step=1)
    return torch.cat([parts[rank] for rank in range(size)])


async def broadcast(call: Call, tensor: Tensor, root: int) -> Tensor:
    """The root's tensor."""
    if call.mesh.rank != root:
        return await call.take(root, tensor)
    await exchange(call, dict.fromkeys(range(call.mesh.size), tensor), {})
    return tensor


async def gather(call: Call, tensor: Tensor, root: int) -> list[Tensor]:
    """Everybody's tensor at the root, nothing elsewhere."""
    incoming = dict.fromkeys(range(call.mesh.size), tensor) if call.mesh.rank == root else {}
    parts = await exchange(call, {root: tensor}, incoming)
    return [parts[rank] for rank in sorted(parts)]


async def scatter(call: Call, shares: Sequence[Tensor], like: Tensor, root: int) -> Tensor:
    """This rank's share of what the root has."""
    parts = await exchange(call, dict(enumerate(shares)) if call.mesh.rank == root else {}, {root: like})
    return parts[root]
