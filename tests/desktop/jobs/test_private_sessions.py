"""A node's private sessions: a real agent, a real WebRTC connection on loopback, and a coordinator that carries envelopes."""

import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from common.clock import SystemClock
from common.errors import BadSignatureError, MalformedFrameError, PeerUnreachableError, SignalError
from coordinator.services.artifacts.model_archives import pack
from desktop.agent.jobs import private_door, private_talk
from desktop.agent.jobs.model_words import ModelReports
from desktop.agent.sandbox.base import SandboxLimits
from desktop.agent.sandbox.process import ProcessSandbox
from protocol.identity import NodeKey
from protocol.node import Assign
from protocol.private.sessions import (
    MARK,
    MAX_UNSIGNED,
    PrivateAnswer,
    PrivateCounts,
    PrivateOffer,
    PrivateTicket,
    SignedCounts,
    prompt_bound,
)
from protocol.private.signed_counts import check_counts, sign_counts
from protocol.serving import (
    AnsweredReport,
    CancelCommand,
    GenerateCommand,
    RefusedReport,
    Sampling,
    SketchReport,
    TextReport,
)
from protocol.task import AskModel, ModelSaid, StopTask, TaskReady
from tests.desktop.conftest import JOB, Running, StartAgent
from tests.desktop.coordinator_double import Double
from tests.desktop.jobs.test_answering_of_an_agent import LOADS_S, serving
from tests.desktop.scripted_worker import WORDS
from tests.trainer.serve.test_grammar import folder  # noqa: F401 - a fixture
from transport.peer.signalling import SignalKind, seal
from transport.private.channel import PrivateChannel
from transport.private.conversation import PrivateConversation, PrivateRefusedError
from transport.private.meeting import MeetingClient, Surroundings

MARKED = "quokka in the larder"
AROUND = Surroundings((), SystemClock(), loopback=True)


def ticket_of(client: NodeKey, job: str = JOB, tokens: int = 10_000, seconds: int = 60) -> PrivateTicket:
    return PrivateTicket(secrets.token_hex(16), job, client.address, tokens, int(time.time()) + seconds)


@dataclass
class Visitor:
    """A client of one session, and what was said for it."""

    coordinator: Double
    node: Running
    assign: Assign
    key: NodeKey
    ticket: PrivateTicket

    async def offer(self, envelope: bytes) -> PrivateAnswer:
        """Have the coordinator carry it, and wait for the answer."""
        before = len(self.answers())
        await self.coordinator.send(
            self.node.address, PrivateOffer(self.assign.lease, self.assign.fence, self.ticket, envelope)
        )
        await self.coordinator.until(lambda: len(self.answers()) > before)
        return self.answers()[-1]

    def answers(self) -> list[PrivateAnswer]:
        return [one for one in self.coordinator.private if isinstance(one, PrivateAnswer)]

    def counted(self) -> SignedCounts | None:
        """The newest that the coordinator was told of this session."""
        found = [one for one in self.coordinator.private if isinstance(one, PrivateCounts)]
        return next((one.counts for one in reversed(found) if one.session == self.ticket.session), None)

    @contextlib.asynccontextmanager
    async def channel(self) -> AsyncIterator[PrivateChannel]:
        meeting = MeetingClient(self.key, self.ticket.session, self.node.address, AROUND)
        answer = await self.offer(await meeting.offer())
        assert answer.envelope, answer.reason
        channel = await meeting.accept(answer.envelope)
        try:
            yield channel
        finally:
            await channel.aclose()

    @contextlib.asynccontextmanager
    async def talk(self) -> AsyncIterator[PrivateConversation]:
        async with self.channel() as channel:
            yield PrivateConversation(self.key, self.ticket.session, self.node.address, channel, SystemClock())


@contextlib.asynccontextmanager
async def visited(
    coordinator: Double, start_agent: StartAgent, name: str = "chatting", archive: bytes = b"", **ticket: int
) -> AsyncIterator[Visitor]:
    sandbox = ProcessSandbox(SandboxLimits(4096, 1)) if archive else None
    async with start_agent(sandbox=sandbox) as node:
        assign = serving(coordinator, node, name, archive)
        await coordinator.assign(node.address, assign)
        await coordinator.until(lambda: coordinator.bodies(TaskReady), LOADS_S)
        key = NodeKey.generate()
        yield Visitor(coordinator, node, assign, key, ticket_of(key, **ticket))


async def said(talk: PrivateConversation, command: GenerateCommand) -> tuple[str, list[int], AnsweredReport]:
    text, tokens, end = "", list[int](), None
    async for report in talk.ask(command):
        if isinstance(report, TextReport):
            text, tokens = text + report.text, tokens + list(report.tokens)
        else:
            end = report
    assert end is not None
    return text, tokens, end


async def test_a_real_model_talks_past_the_coordinator_and_its_client_signs_the_counts(
    coordinator: Double,
    start_agent: StartAgent,
    folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    pack(folder, tmp_path / "packed")
    async with visited(coordinator, start_agent, "moo", (tmp_path / "packed").read_bytes()) as visitor:
        command = GenerateCommand("x", MARKED, tokens=30, sampling=Sampling(seed=1))
        async with visitor.talk() as talk:
            text, tokens, end = await said(talk, command)
            begun = msgspec.structs.replace(command, begun=tuple(tokens[:9]))
            rest, behind, _ = await said(talk, begun)
            assert (len(tokens), end.tokens, tokens[9:]) == (30, 30, behind)
            assert text.endswith(rest)
            assert talk.counts == (2, 2 * end.prompt, 51)
        await coordinator.until(visitor.counted)
        counts = visitor.counted()
        assert counts is not None
        check_counts(counts, visitor.key.address, visitor.ticket.session, visitor.node.address)
        await coordinator.until(lambda: (visitor.counted() or counts).tokens == 51)
        # The same request, asked by the coordinator, has the same tokens.
        ask = AskModel(msgspec.structs.replace(command, id="open"))
        await coordinator.command(visitor.node.address, visitor.assign, ask)
        await coordinator.until(
            lambda: any(
                isinstance(one, AnsweredReport) for body in coordinator.bodies(ModelSaid) for one in body.reports
            )
        )
        reports = [one for body in coordinator.bodies(ModelSaid) for one in body.reports]
        assert [t for one in reports if isinstance(one, TextReport) for t in one.tokens] == tokens
        assert all(getattr(one, "id", "open") == "open" for one in reports)


async def test_a_client_that_signs_nothing_is_told_no_more_than_the_limit(
    coordinator: Double, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_talk, "SIGN_S", 0.3)
    async with visited(coordinator, start_agent) as visitor, visitor.channel() as channel:
        await channel.send(msgspec.json.encode(GenerateCommand("1", "hello")))
        tokens = 0
        while isinstance(
            report := msgspec.json.decode(await channel.receive(), type=TextReport | RefusedReport), TextReport
        ):
            tokens += len(report.tokens)
        assert tokens == MAX_UNSIGNED < WORDS
        assert (report.id, report.code) == ("session", "unsigned")
        assert visitor.counted() is None


async def test_who_signs_hears_all_of_it_and_its_node_is_told_so(coordinator: Double, start_agent: StartAgent) -> None:
    async with visited(coordinator, start_agent) as visitor, visitor.talk() as talk:
        text, tokens, end = await said(talk, GenerateCommand("1", "hello"))
        assert tokens == list(range(WORDS))
        assert text == "".join(f"{number} " for number in range(WORDS))
        assert end.prompt == 1
        await coordinator.until(lambda: (counts := visitor.counted()) is not None and counts.answers == 1)
        counts = visitor.counted()
        assert counts is not None
        assert (counts.answers, counts.prompt, counts.tokens) == (1, 1, WORDS)
        assert len(coordinator.private) < 20, "counts are told now and then, not with each signature"


@pytest.mark.parametrize("counts", [(2, 0, 0), (0, 9, 0), (0, 0, 99_999)])
async def test_counts_of_more_than_was_told_end_the_session(
    coordinator: Double, start_agent: StartAgent, counts: tuple[int, int, int]
) -> None:
    async with visited(coordinator, start_agent) as visitor, visitor.channel() as channel:
        session, node = visitor.ticket.session, visitor.node.address
        await channel.send(msgspec.json.encode(sign_counts(visitor.key, session, node, *counts)))
        report = msgspec.json.decode(await channel.receive(), type=RefusedReport)
        assert report.code == "counts"
        assert visitor.counted() is None


async def test_counts_that_another_key_signed_end_the_session(coordinator: Double, start_agent: StartAgent) -> None:
    async with visited(coordinator, start_agent) as visitor, visitor.channel() as channel:
        forged = sign_counts(NodeKey.generate(), visitor.ticket.session, visitor.node.address, 0, 0, 0)
        await channel.send(msgspec.json.encode(forged))
        with pytest.raises(PeerUnreachableError):
            await channel.receive()
        with pytest.raises(BadSignatureError):
            check_counts(forged, visitor.key.address, visitor.ticket.session, visitor.node.address)


async def test_a_session_has_its_tokens_and_no_more(coordinator: Double, start_agent: StartAgent) -> None:
    async with visited(coordinator, start_agent, tokens=100) as visitor, visitor.talk() as talk:
        await said(talk, GenerateCommand("1", "hello"))
        with pytest.raises(PrivateRefusedError) as refused:
            await said(talk, GenerateCommand("2", "again"))
        assert (refused.value.code, refused.value.another) == ("over", True)


async def test_an_answer_that_nobody_listens_to_ends_at_the_worker_and_is_signed(
    coordinator: Double, start_agent: StartAgent
) -> None:
    async with visited(coordinator, start_agent) as visitor, visitor.talk() as talk:
        answer = talk.ask(GenerateCommand("1", "hello"))
        async for _ in answer:
            break
        await answer.aclose()
        [task] = visitor.node.agent._holdings.tasks.values()
        await coordinator.until(lambda: not task.bridge.words.private)
        tokens = (await said(talk, GenerateCommand("2", "again")))[1]
        assert tokens[-1] == WORDS - 1
        await coordinator.until(lambda: (counts := visitor.counted()) is not None and counts.tokens == talk.counts[2])


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("twice", "offered before"),
        ("late", "time to begin is over"),
        ("another deployment", "another deployment"),
        ("another lease", "no model under that lease"),
        ("another fence", "no model under that lease"),
        ("another client", "delivered as from"),
        ("another session", "no offer of session"),
        ("an answer", "no offer of session"),
        ("no envelope", "malformed"),
    ],
)
async def test_a_ticket_holds_for_one_offer_of_one_client_under_one_lease(
    coordinator: Double, start_agent: StartAgent, case: str, why: str
) -> None:
    async with visited(coordinator, start_agent) as visitor:
        ticket, key, node = visitor.ticket, visitor.key, visitor.node.address
        if case == "late":
            visitor.ticket = ticket = ticket_of(key, seconds=-1)
        elif case == "another deployment":
            visitor.ticket = ticket = ticket_of(key, job="f" * 32)
        elif case == "another lease":
            visitor.assign = msgspec.structs.replace(visitor.assign, lease="f" * 32)
        elif case == "another fence":
            visitor.assign = msgspec.structs.replace(visitor.assign, fence=2)
        by = NodeKey.generate() if case == "another client" else key
        session = "e" * 32 if case == "another session" else ticket.session
        meeting = MeetingClient(by, session, node, AROUND)
        envelope = await meeting.offer()
        if case == "twice":
            assert (await visitor.offer(envelope)).envelope
        elif case == "an answer":
            envelope = seal(key, SignalKind.REQUEST, node, session=bytes.fromhex(session), now=time.time(), floor=1)
        elif case == "no envelope":
            envelope = b"{}"
        answer = await visitor.offer(envelope)
        assert not answer.envelope
        assert why in answer.reason
        await meeting.aclose()


async def test_a_coordinator_in_the_middle_is_found_by_the_client(coordinator: Double, start_agent: StartAgent) -> None:
    async with visited(coordinator, start_agent) as visitor:
        node, session = visitor.node.address, visitor.ticket.session
        meeting = MeetingClient(visitor.key, session, node, AROUND)
        offer = await meeting.offer()
        # It answers in the node's place, with a key and a connection of its own.
        own = NodeKey.generate()
        between = private_door.MeetingNode(own, visitor.ticket, AROUND)
        with pytest.raises(SignalError, match="recipient"):
            await between.answer(offer)
        middle = AROUND.connection()
        description = await middle.offer()
        forged = seal(
            own,
            SignalKind.ANSWER,
            visitor.key.address,
            session=bytes.fromhex(session),
            now=time.time(),
            floor=1,
            description=description,
        )
        with pytest.raises(SignalError, match="sender"):
            await meeting.accept(forged)
        # It swaps the fingerprint in what the node has signed.
        answer = await visitor.offer(offer)
        honest = msgspec.msgpack.decode(answer.envelope)
        body = msgspec.msgpack.decode(honest["body"])
        body |= {"fingerprint": description.fingerprint, "sdp": description.text}
        swapped = msgspec.msgpack.encode(honest | {"body": msgspec.msgpack.encode(body)})
        with pytest.raises(SignalError, match="signature"):
            await meeting.accept(swapped)
        await middle.close(1.0)
        await meeting.aclose()


async def test_an_answer_to_another_offer_is_refused(coordinator: Double, start_agent: StartAgent) -> None:
    async with visited(coordinator, start_agent) as visitor:
        one, other = (MeetingClient(visitor.key, visitor.ticket.session, visitor.node.address, AROUND) for _ in "ab")
        answer = await visitor.offer(await one.offer())
        await other.offer()
        with pytest.raises(SignalError, match="another offer"):
            await other.accept(answer.envelope)
        await one.aclose()
        await other.aclose()


async def test_sessions_end_with_their_lease(coordinator: Double, start_agent: StartAgent) -> None:
    async with visited(coordinator, start_agent) as visitor, visitor.channel() as channel:
        await coordinator.command(visitor.node.address, visitor.assign, StopTask("done"))
        report = msgspec.json.decode(await channel.receive(), type=RefusedReport)
        assert (report.id, report.code) == ("session", "gone")


async def test_after_a_reconnect_the_newest_counts_are_said_again(coordinator: Double, start_agent: StartAgent) -> None:
    async with visited(coordinator, start_agent) as visitor, visitor.talk() as talk:
        await said(talk, GenerateCommand("1", "hello"))
        await coordinator.until(lambda: (counts := visitor.counted()) is not None and counts.answers == 1)
        coordinator.private.clear()
        await coordinator.stop()
        await coordinator.start()
        await coordinator.until(visitor.counted)
        counts = visitor.counted()
        assert counts is not None
        assert counts.tokens == WORDS


@pytest.mark.parametrize("garbage", [b"no JSON", b'{"type":"embed","id":"1","texts":["a"]}', b"\xff" * 40_000])
async def test_what_is_no_message_ends_the_session_and_not_the_agent(
    coordinator: Double, start_agent: StartAgent, garbage: bytes
) -> None:
    async with visited(coordinator, start_agent) as visitor, visitor.channel() as channel:
        await channel.send(garbage)
        with pytest.raises((PeerUnreachableError, MalformedFrameError)):
            await channel.receive()
        await coordinator.until(lambda: not visitor.node.agent._private.sessions)
        assert visitor.node.agent.status().tasks[0].state == "running"


async def test_the_coordinator_cannot_name_a_private_request(coordinator: Double, start_agent: StartAgent) -> None:
    async with visited(coordinator, start_agent) as visitor:
        for body in (GenerateCommand(f"{MARK}1", "hello"), CancelCommand(f"{MARK}1"), GenerateCommand("open", "hello")):
            await coordinator.command(visitor.node.address, visitor.assign, AskModel(body))
        await coordinator.until(
            lambda: any(
                isinstance(one, AnsweredReport) for body in coordinator.bodies(ModelSaid) for one in body.reports
            )
        )
        names = {getattr(one, "id", "") for body in coordinator.bodies(ModelSaid) for one in body.reports}
        assert names == {"open"}


async def test_sketches_of_private_requests_go_nowhere() -> None:
    sent: list[ModelSaid] = []

    async def send(packet: ModelSaid, _reliable: bool) -> None:
        sent.append(packet)
        raise EOFError

    words = ModelReports(send)
    await words.put(ModelSaid((SketchReport(f"{MARK}1", "got", 0, b"12345678"), TextReport(f"{MARK}1", MARKED, (1,)))))
    words.say(RefusedReport(f"{MARK}2", "busy", MARKED))
    await words.put(ModelSaid((SketchReport("open", "got", 0, b"12345678"),)))
    words.begin()
    with pytest.raises(EOFError):
        await words.run()
    assert [report.id for report in sent[0].reports if isinstance(report, SketchReport)] == ["open"]
    assert len(sent[0].reports) == 1


def test_a_prompt_is_signed_for_as_what_it_can_have_at_most() -> None:
    said_much = GenerateCommand("1", messages=({"role": "user", "content": "ü" * 100},))
    assert 700 < prompt_bound(said_much) < 900
    assert prompt_bound(GenerateCommand("1", "a" * 1000)) - prompt_bound(GenerateCommand("1")) == 1000
