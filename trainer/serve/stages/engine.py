"""One stage of a replica as an engine: one thread computes, and what neighbours and the coordinator say waits for it.

The first stage is asked and says what comes, as ``trainer.serve.engine`` does of a whole model. The others are told nothing but
who they are (``JoinStages``), and hear the rest from the stage before them.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from protocol.codec import MessageError
from protocol.plan import Plan
from protocol.serving import (
    CancelCommand,
    EmbedCommand,
    EngineCommand,
    EngineReport,
    GenerateCommand,
    PingCommand,
    PongReport,
    RefusedReport,
)
from protocol.worker import PeerSend, Setup, TensorName
from trainer.audit.environment import configure
from trainer.errors import DataError, WeightsError
from trainer.serve.adapters import AdapterFiles
from trainer.serve.requests import Requests
from trainer.serve.stages.draft_model import DraftModel, fitting
from trainer.serve.stages.drafting import Drafting
from trainer.serve.stages.draws import TokenDraws
from trainer.serve.stages.layers import StageLayers
from trainer.serve.stages.lead import MAX_DETAIL, PassLead
from trainer.serve.stages.order import PayloadOrder, PayloadRoom
from trainer.serve.stages.passes import (
    DrawnHeader,
    PassHeader,
    longest_payload,
    pack_drawn,
    pack_pass,
    unpack_drawn,
    unpack_pass,
)
from trainer.serve.stages.share import ModelShare, cache_size
from trainer.stage.model import Cut
from trainer.transfer import HostCopy

LOG = logging.getLogger("cottage.worker")

Say = Callable[[EngineReport], None]
Send = Callable[[PeerSend, tuple[bytes | memoryview, ...]], None]


class StageEngine:
    """One stage. An async context: leaving it ends its thread.

    Attributes:
        longest: tokens of a prompt with its answer.
        parameters: of this stage.
        leads: whether it is the first.
    """

    def __init__(
        self,
        folder: Path,
        setup: Setup,
        say: Say,
        send: Send,
        weights: Mapping[str, Any],
        adapters: Sequence[AdapterFiles] = (),
        draft: DraftModel | None = None,
    ) -> None:
        """Load a stage.

        Args:
            folder: of the model's small files.
            setup: says which stage of what plan this is; ``serve.context`` bounds ``longest``.
            say: takes what comes of requests, on the loop's thread.
            send: takes what goes to a neighbour, on the thread that computes.
            weights: of this stage at least, see ``ModelShare``. ``adapters``: as there.
            draft: what the first stage drafts with; one that knows other tokens than the model is left out.
        Raises:
            WeightsError: the model cannot be cut so, or is not whole.
        """
        configure(setup.threads, setup.device)
        assert setup.stage is not None
        assert setup.replica is not None
        self._layers_of, self._stage, self._replica = setup.plan.layers, setup.stage, setup.replica
        own, count = setup.plan.layers[setup.stage], len(setup.plan.layers)
        cut = Cut(own.first, own.last, setup.stage == 0, setup.stage == count - 1)
        served = setup.spec.serve
        held = "float32" if served is None else served.weights
        share = ModelShare(folder, cut, weights, setup.device, held, adapters)
        if setup.plan.layers[-1].last != share.shape.layers:
            raise WeightsError(
                "bad-model", f"the stages have {setup.plan.layers[-1].last} of {share.shape.layers} layers"
            )
        size = cache_size(share.shape, None if served is None else served.context)
        self.longest, self.parameters, self.leads = size.longest, share.parameters, cut.is_first
        self._hidden = share.shape.hidden
        self._say, self._send = say, send
        self._loop: asyncio.AbstractEventLoop | None = None
        self.layers = StageLayers(share, size, self._tell)
        templates = [one.template for one in adapters]
        requests = Requests(share.tokens, size.longest, templates) if self.leads else None
        drafting = Drafting(fitting(draft, share.tokens.vocabulary))
        self._lead = None if requests is None else PassLead(requests, share.tokens.ends, size, self._tell, drafting)
        self._draws = TokenDraws(share) if cut.is_last else None
        self._room = PayloadRoom((count + 2) * longest_payload(self._hidden))
        self._order = PayloadOrder(self._room)
        self._epoch: int | None = None
        self._broken = ""
        self._computing_since: float | None = None  # Of one piece of work; None: the thread waits.
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._ended: Future[None] = Future()
        self._thread = Thread(target=self._compute, name="stage", daemon=True)

    async def __aenter__(self) -> "StageEngine":
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)

    async def beside(self, reading: Coroutine[Any, Any, None]) -> BaseException | None:
        """Compute until ``reading``, which asks, is over; what ended the computing before that, if anything did."""
        asking = asyncio.ensure_future(reading)
        ended = asyncio.wrap_future(self._ended)
        waited: set[asyncio.Future[None]] = {asking, ended}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            asking.result()
            return None
        asking.cancel()
        return ended.exception() or RuntimeError("the stage computes no more")

    def ask(self, command: EngineCommand) -> None:
        """Begin what is asked; what comes of it is said."""
        lead = self._lead
        match command:
            case GenerateCommand() if lead is not None:
                self._inbox.put(lambda: lead.ask(command))
            case CancelCommand() if lead is not None:
                self._inbox.put(lambda: lead.cancel(command.id))
            case CancelCommand():
                pass
            case PingCommand():
                began = self._computing_since
                self._say(PongReport(command.id, 0.0 if began is None else time.monotonic() - began))
            case EmbedCommand() if lead is not None:
                self._inbox.put(lambda: lead.embed(command))
            case _:
                detail = "of the nodes that hold a model together the first one answers, and none does anything else"
                self._say(RefusedReport(command.id, "failed", detail))

    def join(self, plan: Plan, key: bytes = b"") -> None:
        """Go over to a plan's epoch: what is under way is dropped. ``key``: of sketches."""
        self._inbox.put(lambda: self._join(plan, key))

    def takes(self, name: TensorName, stage: int, replica: int, size: int) -> bool:
        """Whether such a payload of a neighbour is worth being read: it is the right one's, and not too long."""
        kind, sender = ("drawn", len(self._layers_of) - 1) if self.leads else ("pass", self._stage - 1)
        return (name.kind, stage, replica) == (kind, sender, self._replica) and size <= longest_payload(self._hidden)

    def deliver(self, name: TensorName, stage: int, replica: int, payload: bytes) -> None:
        """Take a neighbour's payload; what is not expected of it is dropped."""
        if not self.takes(name, stage, replica, len(payload)) or not self._room.take(len(payload)):
            LOG.warning("a payload of stage %d is dropped: %s of %s bytes", stage, name.kind, f"{len(payload):,}")
            return
        self._inbox.put(lambda: self._put(name, payload))

    def _tell(self, report: EngineReport) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._say, report)

    def _compute(self) -> None:
        """The thread: all that waits first, then one pass."""
        try:
            waits = True
            while True:
                try:
                    while True:
                        if waits:
                            self._computing_since = None
                        work = self._inbox.get(block=waits)
                        if work is None:
                            return
                        self._computing_since = time.monotonic()
                        work()
                        waits = False
                except Empty:
                    self._computing_since = time.monotonic()
                    waits = not (self._lead_on() or self._read_on())
        except BaseException as error:  # noqa: BLE001 - whoever waits beside raises it
            self._ended.set_exception(error)
        finally:
            if not self._ended.done():
                self._ended.set_result(None)

    def _join(self, plan: Plan, key: bytes) -> None:
        if self._epoch is not None and plan.epoch <= self._epoch:
            return
        if plan.layers != self._layers_of:
            raise MessageError("the stages are cut at other layers than this one was loaded for")
        self._epoch, self._broken = plan.epoch, ""
        self._forget()
        self.layers.key = key
        self._order.join(plan.epoch)
        if self._lead is not None:
            self._lead.join(len(plan.layers))
        self._follow()

    def _put(self, name: TensorName, payload: bytes) -> None:
        if self._order.put(name, payload):
            self._follow()

    def _follow(self) -> None:
        """Work on the payloads whose turn it is."""
        for number, payload in self._order.ready():
            if self._lead is not None:
                self._take_drawn(number, payload)
            else:
                self._pass_on(number, payload)

    def _take_drawn(self, number: int, payload: bytes) -> None:
        assert self._lead is not None
        try:
            self._lead.take(number, *unpack_drawn(payload, self._hidden))
        except (MessageError, DataError) as error:
            self._fail(str(error))

    def _fail(self, detail: str) -> None:
        """On the first stage: what is under way has failed, and all stages begin anew with the next pass."""
        assert self._lead is not None
        LOG.warning("answers under way have failed: %s", detail)
        self._forget()
        self._lead.fail(detail)

    def _forget(self) -> None:
        self.layers.forget()
        if self._draws is not None:
            self._draws.forget()

    def _lead_on(self) -> bool:
        """On the first stage: send a pass, if one can go out."""
        if self._lead is None or (made := self._lead.next_pass()) is None:
            return False
        number, header, tokens = made
        try:
            hidden = self.layers.run(header, torch.tensor(tokens, dtype=torch.long))
        except MessageError as error:  # A defect of this program, or of its memory.
            self._fail(str(error))
            header, hidden = PassHeader(broken=str(error)[:MAX_DETAIL]), None
        self._to(self._stage + 1, "pass", number, pack_pass(header, hidden))
        return True

    def _read_on(self) -> bool:
        """On the first stage, while lines carry: have the draft model read what it has not."""
        return self._lead is not None and self._lead.read_on()

    def _pass_on(self, number: int, payload: bytes) -> None:
        """On the other stages: do what a pass says, and hand on what comes of it."""
        try:
            header, states = unpack_pass(payload, self._hidden)
            if header.broken:
                raise MessageError(header.broken)
            if header.reset:
                self._broken = ""
            if self._broken:
                raise MessageError(self._broken)
            if self._draws is not None:
                self._draws.follow(header)
            hidden = self.layers.run(header, states)
            if hidden is not None and self._draws is None:
                hidden = HostCopy(hidden, torch.float32).arrived()  # It leaves anyway.
            if hidden is not None and not bool(torch.isfinite(hidden).all()):
                raise MessageError(f"what stage {self._stage} computed is not finite")
            self._hand_on(number, header, hidden)
        except MessageError as error:
            self._break(number, str(error))

    def _hand_on(self, number: int, header: PassHeader, hidden: Tensor | None) -> None:
        if self._draws is None:
            self._to(self._stage + 1, "pass", number, pack_pass(header, hidden))
            return
        rows, vectors = ((), None) if hidden is None else self._draws.draw(header, hidden)
        self._to(0, "drawn", number, pack_drawn(DrawnHeader(rows), vectors))

    def _break(self, number: int, detail: str) -> None:
        """Nothing is computed until the first stage, which hears of it by the others, has all begin anew."""
        if not self._broken:
            LOG.warning("pass %d cannot be computed: %s", number, detail)
            self._forget()
        self._broken = detail[:MAX_DETAIL]
        if self._draws is None:
            self._to(self._stage + 1, "pass", number, pack_pass(PassHeader(broken=self._broken), None))
        else:
            self._to(0, "drawn", number, pack_drawn(DrawnHeader(broken=self._broken)))

    def _to(self, stage: int, kind: Any, number: int, pieces: tuple[bytes | memoryview, ...]) -> None:
        assert self._epoch is not None
        name = TensorName(kind, self._epoch, 0, number, 0)
        self._send(PeerSend(stage, self._replica, name, sum(map(len, pieces))), pieces)
