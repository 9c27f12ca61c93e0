"""``CottageGroup``: what ``torch.distributed`` calls.

A subclass of ``ProcessGroup`` in Python: torch 2.13 lets one stand for a whole group, while a Python subclass of ``Backend``
cannot be constructed there. A GPU's tensors travel through main memory.

Every rank makes the same collective calls in the same order, as always with torch; between two ranks, messages of one tag keep
their order. After a rank is lost the calls that need it fail at once, and others go on.
"""

import atexit
import contextlib
import itertools
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from trainer.dist import collectives
from trainer.dist.mesh import COLLECTIVE, POINT_TO_POINT, Call, Mesh
from trainer.dist.settings import GroupSettings
from trainer.dist.work import GroupWork
from trainer.errors import GroupError

DEFAULT_TIMEOUT = timedelta(minutes=30)  # torch's own.

Body = Callable[[Call], Coroutine[Any, Any, Sequence[Tensor]]]
"""Makes a call; returns what to write to its outputs."""


class CottageGroup(dist.ProcessGroup):
    """A process group over links between homes."""

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta | None = None,
        settings: GroupSettings | None = None,
    ) -> None:
        """Connect to all ranks.

        Args:
            store: where the ranks meet; its keys belong to this group alone.
            timeout: for connecting and for each call.
            settings: those of the environment by default.
        Raises:
            RankLostError: some ranks did not appear in time.
            GroupError: the settings cannot be.
        """
        super().__init__(rank, size)  # type: ignore[call-arg]  # a Python group has no Store
        settings = settings or GroupSettings.from_environment(os.environ)
        self._mesh = Mesh(settings, store, rank, size, (timeout or DEFAULT_TIMEOUT).total_seconds())
        self._calls = itertools.count()
        self._sent: Counter[tuple[int, int]] = Counter()
        self._received: Counter[tuple[int, int]] = Counter()
        atexit.register(_close, weakref.ref(self._mesh))

    @property
    def wire_bytes(self) -> int:
        """Bytes in DTLS datagrams sent so far, refreshed about once a second."""
        return self._mesh.wire_bytes

    def getBackendName(self) -> str:  # noqa: N802  (torch's name)
        """The name given to ``init_process_group``."""
        return "cottage"

    def set_timeout(self, timeout: timedelta) -> None:
        """Limit the calls from now on."""
        self._mesh.timeout = timeout.total_seconds()

    def shutdown(self) -> None:
        """Leave: what still waits fails, here at once, and elsewhere where it needs this rank."""
        self._mesh.close()

    def abort(self) -> None:
        """The same as ``shutdown``."""
        self._mesh.close("aborted")

    def _start(self, call: Call, outputs: Sequence[Tensor], body: Body) -> GroupWork:
        for output in outputs:
            if output.is_cuda:
                torch.cuda.current_stream(output.device).synchronize()
        work = GroupWork(outputs)

        def finished(made: "Future[Sequence[Tensor]]") -> None:
            threading.Thread(target=_complete, args=(work, outputs, made), name="cottage-work", daemon=True).start()

        self._mesh.start(call.within_the_limit(body)).add_done_callback(finished)
        return work

    def _collective(self, operation: str, outputs: Sequence[Tensor], body: Body) -> GroupWork:
        return self._start(Call(self._mesh, operation, COLLECTIVE, next(self._calls)), outputs, body)

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> GroupWork:  # type: ignore[override]
        """Reduce in place; all ranks get the same bits."""
        name = _operation(opts)
        own = [_host(tensor) for tensor in tensors]

        async def body(call: Call) -> list[Tensor]:
            whole = own[0] if len(own) == 1 else torch.cat([tensor.reshape(-1) for tensor in own])
            total = await collectives.all_reduce(call, whole, name)
            return list(torch.split(total, [tensor.numel() for tensor in own]))

        if len({tensor.dtype for tensor in own}) != 1:
            raise GroupError("all_reduce takes tensors of one type at a time")
        return self._collective(f"all_reduce {name}", tensors, body)

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> GroupWork:
        """Reduce several tensors in place."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Sequence[Tensor], opts: Any = None) -> GroupWork:  # type: ignore[override]
        """Reduce in place at the root."""
        name, root, own = _operation(opts), _root(opts), _host(tensors[0])

        async def body(call: Call) -> list[Tensor]:
            parts = await collectives.gather(call, own, root)
            return [collectives.fold(parts, name)] if parts else [own]

        return self._collective(f"reduce {name}", tensors, body)

    def broadcast(self, tensors: Sequence[Tensor], opts: Any = None) -> GroupWork:  # type: ignore[override]
        """Write the root's tensor everywhere."""
        root, own = _root(opts), _host(tensors[0])

        async def body(call: Call) -> list[Tensor]:
            return [await collectives.broadcast(call, own, root)]

        return self._collective("broadcast", tensors, body)

    def allgather(  # type: ignore[override]
        self, output_tensors: Sequence[Sequence[Tensor]], input_tensors: Sequence[Tensor], opts: Any = None
    ) -> GroupWork:
        """Write everybody's tensor to the list."""
        own = _host(input_tensors[0])

        async def body(call: Call) -> list[Tensor]:
            return await collectives.all_gather(call, own)

        return self._collective("all_gather", output_tensors[0], body)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> GroupWork:  # noqa: A002
        """Write everybody's tensor into one, in the order of the ranks."""
        return self.allgather([list(output.view(-1).chunk(self.size()))], [input])

    _allgather_base = all_gather_single

    def reduce_scatter(  # type: ignore[override]
        self, output_tensors: Sequence[Tensor], input_tensors: Sequence[Sequence[Tensor]], opts: Any = None
    ) -> GroupWork:
        """Write the reduction of everybody's share for this rank."""
        name, shares = _operation(opts), [_host(tensor) for tensor in input_tensors[0]]

        async def body(call: Call) -> list[Tensor]:
            return [await collectives.reduce_scatter(call, shares, name)]

        return self._collective(f"reduce_scatter {name}", output_tensors, body)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> GroupWork:  # noqa: A002
        """The same with all shares in one tensor."""
        return self.reduce_scatter([output], [list(input.reshape(-1).chunk(self.size()))], opts)

    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]

    def gather(  # type: ignore[override]
        self, output_tensors: Sequence[Sequence[Tensor]], input_tensors: Sequence[Tensor], opts: Any = None
    ) -> GroupWork:
        """Write everybody's tensor to the root's list."""
        root, own = _root(opts), _host(input_tensors[0])

        async def body(call: Call) -> list[Tensor]:
            return await collectives.gather(call, own, root)

        return self._collective("gather", output_tensors[0] if self.rank() == root else [], body)

    def scatter(  # type: ignore[override]
        self, output_tensors: Sequence[Tensor], input_tensors: Sequence[Sequence[Tensor]], opts: Any = None
    ) -> GroupWork:
        """Write this rank's share of the root's list."""
        root, like = _root(opts), _like(output_tensors[0])
        shares = [_host(tensor) for tensor in input_tensors[0]] if self.rank() == root else []

        async def body(call: Call) -> list[Tensor]:
            return [await collectives.scatter(call, shares, like, root)]

        return self._collective("scatter", output_tensors, body)

    def alltoall(
        self, output_tensors: Sequence[Tensor], input_tensors: Sequence[Tensor], opts: Any = None
    ) -> GroupWork:
        """Write one tensor of each rank."""
        shares, likes = [_host(tensor) for tensor in input_tensors], [_like(tensor) for tensor in output_tensors]

        async def body(call: Call) -> list[Tensor]:
            return await collectives.all_to_all(call, shares, likes)

        return self._collective("all_to_all", output_tensors, body)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
    ) -> GroupWork:
        """The same with all tensors in one, cut along the first axis as the sizes say, or evenly."""
        size = self.size()
        return self.alltoall(
            torch.split(output, list(output_split_sizes) or output.shape[0] // size),
            torch.split(input, list(input_split_sizes) or input.shape[0] // size),
        )

    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def barrier(self, opts: Any = None) -> GroupWork:
        """Done when everybody has called it."""

        async def body(call: Call) -> list[Tensor]:
            await collectives.all_gather(call, torch.empty(0))
            return []

        return self._collective("barrier", [], body)

    def send(self, tensors: Sequence[Tensor], dst: int, tag: int = 0) -> GroupWork:
        """Send one tensor; done when the other rank holds it, whether or not it has asked for it."""
        own = _host(tensors[0])

        async def body(call: Call) -> list[Tensor]:
            await call.put(dst, own)
            return []

        return self._start(self._message(self._sent, dst, tag), [], body)

    def recv(self, tensors: Sequence[Tensor], src: int, tag: int = 0) -> GroupWork:
        """Write the next tensor of that rank and tag."""
        like = _like(tensors[0])

        async def body(call: Call) -> list[Tensor]:
            return [await call.take(src, like)]

        return self._start(self._message(self._received, src, tag), tensors, body)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> GroupWork:
        """Not possible.

        Raises:
            GroupError: always.
        """
        raise GroupError("recv over Cottage links needs the rank that it is from: pass src")

    def _message(self, counter: "Counter[tuple[int, int]]", rank: int, tag: int) -> Call:
        number = counter[rank, tag]
        counter[rank, tag] += 1
        return Call(self._mesh, "send", POINT_TO_POINT, (tag << 32) + number)


def create(options: Any, backend_options: GroupSettings | None = None) -> CottageGroup:
    """Make the group that ``init_process_group`` or ``new_group`` asks for; ``pg_options`` may be ``GroupSettings``."""
    settings = backend_options or GroupSettings.from_environment(os.environ)
    ranks = options.global_ranks_in_group or range(options.group_size)
    settings = replace(settings, peers=settings.pinned(ranks))
    return CottageGroup(options.store, options.group_rank, options.group_size, options.timeout, settings)


def _close(mesh: "weakref.ref[Mesh]") -> None:
    """Say goodbye when the script ends without ``destroy_process_group``, so that nobody waits for this rank."""
    alive = mesh()
    if alive is not None:
        with contextlib.suppress(Exception):  # The program ends: there is nobody to tell.
            alive.close()


def _complete(work: GroupWork, outputs: Sequence[Tensor], made: "Future[Sequence[Tensor]]") -> None:
    try:
        error = made.exception()
        if error is None:
            for output, result in zip(outputs, made.result(), strict=True):
                output.detach().copy_(result.view(output.shape))
                if output.is_cuda:
                    torch.cuda.current_stream(output.device).synchronize()
    except Exception as failure:  # noqa: BLE001  # Whoever waits for the work is told, whatever it is.
        error = failure
    work.finish(error)


def _host(tensor: Tensor) -> Tensor:
    """What to send: contiguous, in main memory."""
    if tensor.is_sparse:
        raise GroupError("sparse tensors cannot go over Cottage links: use to_dense()")
    return tensor.detach().cpu().contiguous()


def _like(tensor: Tensor) -> Tensor:
    """Shape and type of what will come, for a tensor that is only written to."""
    return tensor.detach() if not tensor.is_cuda else torch.empty(tensor.shape, dtype=tensor.dtype)


def _operation(opts: Any) -> str:
    return collectives.operation_name(dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts))


def _root(opts: Any) -> int:
    return int(getattr(opts, "rootRank", 0))
