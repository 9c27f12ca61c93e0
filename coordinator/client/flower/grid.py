"""A Flower ``Grid`` whose clients run as elements of array jobs: messages that are pushed together are one job.

    ServerApp -> Grid.push_messages -> [ upload -> quote -> job -> escrow ]      ...homes run the ClientApp...
    ServerApp <- Grid.pull_messages <- [ elements that ended -> replies ]

A node of Flower is a ``Partition`` here: files that its client reads, and its configuration. Which home runs it is the array's
to decide, another one in each round if need be. So what a client keeps (``Context.state``) comes back with each reply and goes
along with its next message.
"""

import asyncio
import contextlib
import tempfile
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from common.untrusted_text import untrusted
from coordinator.client.arrays import ElementResult, array_budget, array_document
from coordinator.client.client import FEW_ATTEMPTS, Client
from coordinator.client.errors import ClientError, ProblemError
from coordinator.client.line import ATTEMPTS
from protocol.ids import Digest
from protocol.job.array import ArrayElement

FLOWER = "flwr==1.42.0"  # What this was tried with: how Flower writes messages down is no part of its interface.

try:
    from flwr.app import Context, Error, Message, RecordDict
    from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
    from flwr.common.serde import context_to_proto, recorddict_from_proto, recorddict_to_proto
    from flwr.common.serde_utils import metadata_to_proto
    from flwr.proto import error_pb2, message_pb2, recorddict_pb2
    from flwr.serverapp import Grid
    from flwr.supercore.run import Run
    from flwr.supercore.task_identity import TaskIdentity
    from google.protobuf.message import DecodeError
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f'Flower is not installed: pip install "{FLOWER}"', name=missing.name) from missing

PROGRAM = Path(__file__).with_name("client_program.py")
FIRST_NODE = SUPERLINK_NODE_ID + 1  # The numbers below mean Flower's own server.
PLACE, DATA = "flower", "data"  # Folders below ``/in``.
POLL_S, LONGEST_POLL_S = 0.5, 5.0
LONGEST_HOURS = 24.0 * 90  # That a job may have.
_OVER = frozenset({"settled", "failed", "cancelled"})


class Partition(msgspec.Struct, frozen=True):
    """What one client has. ``data``: path below ``node_config["data-path"]`` -> file; ``config``: further ``node_config``."""

    data: Mapping[str, Path] = {}
    config: Mapping[str, str | int | float | bool] = {}


class _Sent(msgspec.Struct):
    """A message under way. ``job``, ``index``: the element that answers it."""

    message: Any
    job: str
    index: int


class _Round(msgspec.Struct):
    """A job with messages. ``after``: number of the last ended element that was seen. ``given_up``: it is to be cancelled."""

    escrow: int
    after: int = 0
    given_up: bool = False


class CottageGrid(Grid):  # type: ignore[misc]
    """Carries the messages of a ``ServerApp`` to its ``ClientApp`` at homes, and pays for them.

    Use it as a context manager: what is under way at its end is cancelled, and what was not earned comes back. Replies come in
    the order of their messages, so sums of them do not depend on who was quicker. One process runs one ``ServerApp``. Calls wait,
    so they are for threads without an event loop.
    """

    def __init__(
        self,
        url: str,
        image: Digest,
        app: str,
        partitions: Sequence[Partition],
        budget: int,
        *,
        token: str | None = None,
        folder: str = "/app",
        python: str = "python3",
        run_id: int = 1,
        run_config: Mapping[str, str | int | float | bool] = {},
        array: Mapping[str, Any] = {},
    ) -> None:
        """Remember it all; nothing is sent yet.

        Args:
            url: of the coordinator; ``token``: an API key.
            image: the artifact that ``cottage image push`` named, with Python, Flower and the app.
            app: the ``ClientApp``, as ``module:name``; ``folder``: of the image, in which the module lies.
            partitions: what the clients have; each is a node of the grid.
            budget: the most that all rounds cost together, in millionths of the token; the test wallet pays.
            python: the interpreter in the image.
            run_config: of the app, on both sides.
            array: further fields of ``protocol.job.array.ArraySpec``, such as ``seconds``, ``memory_mb`` or ``verify``.

        Raises:
            ClientError: there is no partition.
        """
        if not partitions:
            raise ClientError("a grid has at least one partition: each is a client's")
        self._url, self._token = url, token
        self._image, self._command = image, (python, f"/in/{PLACE}/{PROGRAM.name}", app, folder)
        self._array = dict(array)
        self._budget, self._spent = budget, 0
        self._run = Run.create_empty(run_id)
        self.run_config = dict(run_config)
        self._partitions = {FIRST_NODE + number: one for number, one in enumerate(partitions)}
        self._states = {node: RecordDict() for node in self._partitions}
        self._uploaded: dict[str, Digest] = {}
        self._sent: dict[str, _Sent] = {}
        self._rounds: dict[str, _Round] = {}
        self._replies: dict[str, Any] = {}
        self._turn = threading.Lock()  # Flower's older servers send from a thread for each client.
        # As who starts a ServerApp sets them: messages that are made here are of this run.
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = run_id, 1, SUPERLINK_NODE_ID

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what is under way."""
        asyncio.run(self._cancel(list(self._sent)))

    def cost(self) -> int:
        """What all rounds have cost, in millionths, once those that have their replies are settled."""
        with self._turn:
            asyncio.run(self._counted())
        return self._spent

    # What Flower asks of a grid

    def set_run(self, run: Any) -> None:
        """Take Flower's record of the run."""
        self._run = run

    @property
    def run(self) -> Any:
        """Flower's record of the run."""
        return self._run

    def create_message(
        self, content: Any, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Any:
        """As ``Message`` makes one."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """One of each partition."""
        return list(self._partitions)

    def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
        """Begin one array job of them all; returns their ids.

        Raises:
            ClientError: a node is unknown or has a message already, the budget is used up, or the network cannot run it.
        """
        with self._turn:
            return asyncio.run(self._begin(list(messages)))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Any]:
        """The replies that are there; each comes once."""
        wanted = list(message_ids)
        asyncio.run(self._look(wanted))
        return self._taken(wanted)

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Iterable[Any]:
        """Push, and wait for all replies, or those that come within ``timeout`` seconds; the others are cancelled."""
        ids = list(self.push_messages(messages))
        asyncio.run(self._wait(ids, timeout))
        return self._taken(ids)

    def _client(self, attempts: int = ATTEMPTS) -> Client:
        # Hours of training outlive a coordinator that starts again.
        return Client(self._url, self._token, attempts=attempts)

    def _taken(self, ids: Sequence[str]) -> list[Any]:
        return [self._replies.pop(one) for one in ids if one in self._replies]

    # Messages go

    async def _begin(self, messages: Sequence[Any]) -> list[str]:
        self._check(messages)
        async with self._client() as client:
            with tempfile.TemporaryDirectory(prefix="cottage.flower.") as scratch:
                elements, shared = await self._elements(client, messages, Path(scratch))
            listed = await client.upload_elements(elements)
            hours = min(LONGEST_HOURS, max(one.metadata.ttl for one in messages) / 3600)
            array = {**self._array, "inputs": {**self._array.get("inputs", {}), **shared}}
            name = f"flower {messages[0].metadata.message_type} {messages[0].metadata.group_id}".strip()
            document = array_document(name, self._image, self._command, listed, len(elements), 1, array, hours)
            wanted = array_budget(await client.quote(document))
            if (left := await self._left(client, wanted)) <= 0:
                raise ClientError(f"the budget of {self._budget:,} millionths is used up: {self._spent:,} are spent")
            document["budget"] = min(left, wanted)
            if problems := (await client.quote(document)).problems:
                raise ClientError("; ".join(problems))
            job = (await client.create_job(document)).id
            self._rounds[job] = _Round(document["budget"])
            for index, message in enumerate(messages):
                self._sent[message.metadata.message_id] = _Sent(message, job, index)
            try:
                await client.fund(job)
            except BaseException:  # It may have been funded, though nobody will ask for it.
                await self._forget([one.metadata.message_id for one in messages])
                raise
        return [one.metadata.message_id for one in messages]

    def _check(self, messages: Sequence[Any]) -> None:
        """Name the messages, once it is clear that each can go."""
        busy = {one.message.metadata.dst_node_id for one in list(self._sent.values())}
        if not messages:
            raise ClientError("there is no message to push")
        for message in messages:
            node = message.metadata.dst_node_id
            if node not in self._partitions:
                raise ClientError(f"there is no node {node}: the grid has {FIRST_NODE} to {max(self._partitions)}")
            if node in busy:
                raise ClientError(f"node {node} has not answered its last message: what it keeps comes with that reply")
            busy.add(node)
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid.uuid4())  # Flower's own grids name them so, too.

    async def _elements(
        self, client: Client, messages: Sequence[Any], scratch: Path
    ) -> tuple[list[ArrayElement], dict[str, Digest]]:
        """An element for each message, and what all of them read."""
        files = [self._files(message, scratch) for message in messages]
        every = [PROGRAM, *(path for own in files for path in own.values())]
        sent = await client.upload_inputs(every, self._uploaded)
        kept = [PROGRAM, *(path for one in self._partitions.values() for path in one.data.values())]
        self._uploaded |= {str(path): sent[path] for path in kept if path in sent}
        inputs = [{name: sent[path] for name, path in own.items()} for own in files]
        shared = {f"{PLACE}/{PROGRAM.name}": sent[PROGRAM]}
        content = f"{PLACE}/content"
        if len({own.get(content) for own in inputs}) == 1 and content in inputs[0]:
            shared[content] = inputs[0][content]  # A model that goes to all.
            inputs = [{name: digest for name, digest in own.items() if name != content} for own in inputs]
        nodes = [message.metadata.dst_node_id for message in messages]
        elements = [
            ArrayElement(name=f"client-{node - FIRST_NODE}", inputs=own)
            for node, own in zip(nodes, inputs, strict=True)
        ]
        return elements, shared

    def _files(self, message: Any, scratch: Path) -> dict[str, Path]:
        """Path below ``/in`` -> file, of one message."""
        node = message.metadata.dst_node_id
        partition = self._partitions[node]
        config = {"partition-id": node - FIRST_NODE, "num-partitions": len(self._partitions), **partition.config}
        context = Context(self._run.run_id, node, config, self._states[node], self.run_config)
        written = {
            "message": message_pb2.Message(metadata=metadata_to_proto(message.metadata)),
            "context": context_to_proto(context),
            "content": recorddict_to_proto(message.content),
        }
        found = {f"{DATA}/{name}": path for name, path in partition.data.items()}
        for name, proto in written.items():
            if data := proto.SerializeToString(deterministic=True):  # An input has something in it.
                path = scratch / f"{node}-{name}"
                path.write_bytes(data)
                found[f"{PLACE}/{name}"] = path
        return found

    async def _counted(self) -> None:
        async with self._client() as client:
            await self._left(client, self._budget + 1)

    async def _left(self, client: Client, wanted: int) -> int:
        """What is left of the budget; where that is less than ``wanted``, once jobs that are done have said what they cost."""
        wait = POLL_S
        while True:
            await self._settle(client)
            left = self._budget - self._spent - sum(one.escrow for one in self._rounds.values())
            under_way = {one.job for one in list(self._sent.values())}
            if left >= wanted or not self._rounds.keys() - under_way:
                return left
            await asyncio.sleep(wait)
            wait = min(LONGEST_POLL_S, 2 * wait)

    async def _settle(self, client: Client) -> None:
        for job, one in list(self._rounds.items()):
            view = await client.get(job)
            if one.given_up and view.state not in _OVER:
                with contextlib.suppress(ProblemError):  # It has ended meanwhile.
                    view = await client.cancel(job)
            if view.state in _OVER and not any(one.job == job for one in list(self._sent.values())):
                self._spent += view.paid
                del self._rounds[job]

    # Replies come

    async def _wait(self, ids: Sequence[str], timeout: float | None) -> None:
        wait = POLL_S
        try:
            async with asyncio.timeout(timeout) as limit:
                while any(one in self._sent for one in ids):
                    found = await self._look(ids)
                    wait = POLL_S if found else min(LONGEST_POLL_S, 2 * wait)
                    if any(one in self._sent for one in ids):
                        await asyncio.sleep(wait)
        except BaseException as error:
            if not isinstance(error, TimeoutError) or not limit.expired():
                await self._forget(ids)
                raise
        await self._cancel(ids)

    async def _look(self, ids: Sequence[str]) -> int:
        """Take what has come for these messages; returns how many replies that were."""
        jobs = {self._sent[one].job for one in ids if one in self._sent}
        async with self._client() as client:
            return sum([await self._look_at(client, job) for job in jobs])

    async def _look_at(self, client: Client, job: str) -> int:
        view = await client.get(job)  # Before its elements: once it is over no more of them end.
        waiting = {one.index: name for name, one in list(self._sent.items()) if one.job == job}
        before = len(waiting)
        async for element in _ended(client, job, self._rounds[job].after):
            with tempfile.TemporaryDirectory(prefix="cottage.flower.") as scratch:
                result = await client.taken(job, element, Path(scratch))
                self._rounds[job].after = element.number
                if (name := waiting.pop(element.index, None)) is not None:
                    self._answer(name, self._reply(self._sent[name].message, result))
        if view.state in _OVER:
            why = view.sentence or view.reason or f"the job is {view.state}"
            for name in waiting.values():
                self._answer(
                    name, Message(Error(ErrorCode.NODE_UNAVAILABLE, str(why)), reply_to=self._sent[name].message)
                )
            waiting = {}
        return before - len(waiting)

    def _answer(self, name: str, reply: Any) -> None:
        self._replies[name] = reply
        del self._sent[name]

    def _reply(self, message: Any, result: ElementResult) -> Any:
        """What became of a message."""
        element = result.element
        if result.folder is None:
            why = result.fault or "\n".join([str(element.reason), *map(str, element.tail)])
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, why), reply_to=message)
        try:
            if (said := result.folder / "error").exists():
                error = error_pb2.Error.FromString(said.read_bytes())
                answer = Message(Error(error.code, str(untrusted(error.reason))), reply_to=message)
            else:
                answer = Message(_records(result.folder / "content"), reply_to=message)
            self._states[message.metadata.dst_node_id] = _records(result.folder / "state")
        except (
            OSError,
            DecodeError,
            ValueError,
            TypeError,
            AttributeError,
            LookupError,
        ) as fault:  # Of what strangers left.
            return Message(Error(ErrorCode.UNKNOWN, f"the result is no reply: {fault}"), reply_to=message)
        return answer

    async def _cancel(self, ids: Sequence[str], attempts: int = ATTEMPTS) -> None:
        """End the jobs of messages that nobody will ask for any more; what cannot be ended now is ended later."""
        gone = [self._sent.pop(one) for one in ids if one in self._sent]
        own = {one.job for one in gone}
        for job in own - {one.job for one in list(self._sent.values())}:
            if (one := self._rounds.get(job)) is not None:  # Another thread may have settled it.
                one.given_up = True
        if not (jobs := [job for job, one in list(self._rounds.items()) if one.given_up]):
            return
        async with self._client(attempts) as client:
            for job in jobs:
                # Of an earlier round it is tried again with the next; what has come of this one is not lost by it.
                with contextlib.nullcontext() if job in own else contextlib.suppress(ClientError):
                    if (await client.get(job)).state not in _OVER:
                        with contextlib.suppress(ProblemError):  # It has ended meanwhile.
                            await client.cancel(job)

    async def _forget(self, ids: Sequence[str]) -> None:
        """The same of messages whose ids nobody learns, since something else went wrong, which is what is told."""
        with contextlib.suppress(ClientError):
            await self._cancel(ids, FEW_ATTEMPTS)
        self._taken(ids)


async def _ended(client: Client, job: str, after: int) -> Any:
    """Elements that have ended by now."""
    while found := await client.elements(job, after):
        for element in found:
            after = max(after, element.number)
            yield element


def _records(file: Path) -> Any:
    return recorddict_from_proto(recorddict_pb2.RecordDict.FromString(file.read_bytes()))


def run_app(app: Any, grid: CottageGrid) -> Any:
    """Run a ``ServerApp`` to its end; returns its ``Context``, with what it keeps."""
    context = Context(grid.run.run_id, SUPERLINK_NODE_ID, {}, RecordDict(), grid.run_config)
    app(grid, context)
    return context
