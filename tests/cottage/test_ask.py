"""``cottage ask`` and its client: over real WebRTC on loopback, with homes that talk behind a coordinator's web layer."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from common.errors import SignalError
from coordinator.client import Client
from coordinator.client.errors import ProblemError
from coordinator.errors import UnavailableError
from cottage import private
from cottage.ask import main
from cottage.private import PrivateClient, PrivateRefusedError
from protocol.asking import fault_of
from protocol.identity import NodeKey
from protocol.job.job import JobSpec, ModelSpec, ServedAdapter, ServeSpec, TokenizerSpec
from protocol.rest.private import NewPrivateSession, PrivateSession
from protocol.serving import AnsweredReport, GenerateCommand, Sampling, TextReport
from tests.coordinator.serving.talking_homes import LONG
from tests.coordinator.web.conftest import House
from tests.coordinator.web.test_life import started
from tests.support.wait import HANGS_S

SECRET = "quokka in the larder"
COMMAND = GenerateCommand("1", SECRET, sampling=Sampling(seed=5))


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    house = House(tmp_path)
    await house.start()
    yield house
    await house.stop()


async def said(client: PrivateClient, command: GenerateCommand = COMMAND) -> str:
    text = ""
    async for report in client.ask(command):
        if isinstance(report, TextReport):
            text += report.text
        else:
            assert isinstance(report, AnsweredReport)
    return text


async def test_the_command_prints_the_answer_and_who_read_the_words(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    job, home = await started(house), house.private.keys[0].address
    words = ["--server", house.url, "--loopback", "--seed", "5"]
    assert await asyncio.to_thread(main, [job, SECRET, *words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"text": SECRET, "prompt": 7, "tokens": 4, "reason": "stop", "nodes": [home]}
    assert await asyncio.to_thread(main, [job, SECRET, *words, "--text", "--node", home]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{SECRET}\n"
    assert f"4 tokens, read by {home}" in shown.err
    chat, text = house.private.models[home].asked
    assert (chat.messages, text.prompt) == (({"role": "user", "content": SECRET},), SECRET)
    assert chat.sampling.seed == text.sampling.seed == 5
    async with asyncio.timeout(HANGS_S):  # The last one is on its way while the command ends.
        while len(house.private.signed) < 2:
            await asyncio.sleep(0.01)
    assert [one.tokens for one in house.private.signed.values()] == [4, 4]


async def test_who_holds_the_model_with_the_node_is_said_to_have_read_some_of_the_words(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    job, (home, other) = await started(house), (key.address for key in house.private.keys)
    house.private.beside = [other]
    words = [job, SECRET, "--server", house.url, "--loopback"]
    assert await asyncio.to_thread(main, [*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"] == [home, other]
    assert await asyncio.to_thread(main, words) == 0
    assert f"read by {home}, and in part by {other}, which hold the model with it;" in capsys.readouterr().err


async def test_an_adapter_is_asked_by_its_name_at_v1(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    adapters = [ServedAdapter(name * 16) for name in ("0a", "0b")]
    job = await started(house)
    found = house.cluster._find(job)
    serve = ServeSpec(adapters=tuple(adapters))
    spec = JobSpec("a job", ModelSpec(from_job="ab" * 16), 1_000_000, serve=serve)
    found.view = msgspec.structs.replace(found.view, spec=spec, state="running")
    words = ["--server", house.url, "--loopback", "--text"]
    assert await asyncio.to_thread(main, [f"{job}:{adapters[1].job}", SECRET, *words]) == 0
    assert house.private.models[house.private.keys[0].address].asked[-1].adapter == 2
    assert await asyncio.to_thread(main, [f"{job}:{'0c' * 16}", SECRET, *words]) == 1
    assert f"has no adapter of job '{'0c' * 16}': {job}:{adapters[0].job}, " in capsys.readouterr().err


async def test_a_model_without_a_template_is_told_before_a_node_is_named(
    house: House, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, words = await started(house), ["--server", house.url, "--loopback"]
    found = house.cluster._find(job)
    tokenizer = TokenizerSpec("file", file="b" * 64)
    spec = JobSpec("a job", ModelSpec(config={}, weights="a" * 64), 1_000_000, tokenizer=tokenizer, serve=ServeSpec())
    found.view = msgspec.structs.replace(found.view, spec=spec, state="running")
    assert await asyncio.to_thread(main, [job, SECRET, *words]) == 1
    assert "this model has no chat template: have it continue the text, with --text" in capsys.readouterr().err
    assert not house.private._tickets
    assert await asyncio.to_thread(main, [job, SECRET, *words, "--text"]) == 0
    assert capsys.readouterr().out == f"{SECRET}\n"


async def test_too_long_an_answer_is_refused_by_the_node_in_the_words_of_v1(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    job, words = await started(house), ["--server", house.url, "--loopback", "--text"]
    model = house.private.models[house.private.keys[0].address]
    model.refuses = fault_of(GenerateCommand("1", SECRET, tokens=100_000), 64, "")
    assert await asyncio.to_thread(main, [job, SECRET, *words, "--tokens", "100000"]) == 1
    assert model.refuses[1] in capsys.readouterr().err
    assert len(model.asked) == 1, "no other node is asked for it"


async def test_what_cannot_be_asked_is_said_with_its_exit_code(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    job, words = await started(house), ["--server", house.url, "--loopback"]
    for argv, status, why in (
        ([job, SECRET, "--node", "nobody"], 2, "--node 'nobody' is no node's address"),
        ([job, " "], 2, "there are no words"),
        ([job, "", "--text"], 2, "there are no words"),
        ([job, SECRET, "--tokens", "0"], 2, "tokens"),
        (["f" * 32, SECRET], 1, "no job"),
        ([job, SECRET, "--node", NodeKey.generate().address], 1, "not "),
    ):
        assert await asyncio.to_thread(main, [*argv, *words]) == status, argv
        assert why in capsys.readouterr().err
    assert not any(model.asked for model in house.private.models.values())


async def test_where_a_home_is_gone_another_one_goes_on_with_the_same_seed(house: House) -> None:
    job = await started(house)
    one, other = (house.private.models[key.address] for key in house.private.keys)
    one.stops_after = 2
    text = ""
    async with Client(house.url) as coordinator, PrivateClient(coordinator, job, loopback=True) as client:
        async for report in client.ask(COMMAND):
            text += report.text if isinstance(report, TextReport) else ""
            if text == "quokka in" and not other.asked:
                await house.private.channels[0].aclose()
        assert [session.node for session in client.nodes] == [key.address for key in house.private.keys]
    assert text == SECRET
    assert (other.asked[0].begun, other.asked[0].sampling) == ((0, 1), COMMAND.sampling)


async def test_one_session_has_several_answers_and_signs_for_all_of_them(house: House) -> None:
    job = await started(house)
    async with Client(house.url) as coordinator, PrivateClient(coordinator, job, loopback=True) as client:
        assert await said(client) == SECRET
        assert (await said(client, msgspec.structs.replace(COMMAND, prompt="long"))).split()[-1] == str(LONG - 1)
        assert len(client.nodes) == 1
    async with asyncio.timeout(HANGS_S):
        while [one.answers for one in house.private.signed.values()] != [2]:
            await asyncio.sleep(0.02)
    assert [(one.prompt, one.tokens) for one in house.private.signed.values()] == [(14, LONG + 4)]


async def test_a_session_that_has_ended_meanwhile_is_begun_anew_with_the_same_home(house: House) -> None:
    job, home = await started(house), house.private.keys[0].address
    async with Client(house.url) as coordinator, PrivateClient(coordinator, job, node=home, loopback=True) as client:
        assert await said(client) == SECRET
        await house.private.channels[0].aclose()
        assert await said(client) == SECRET
        assert [session.node for session in client.nodes] == [home, home]


async def test_where_there_is_no_other_home_the_same_one_goes_on(house: House) -> None:
    house.private.keys = house.private.keys[:1]
    job, model = await started(house), house.private.models[house.private.keys[0].address]
    model.stops_after, text = 2, ""
    async with Client(house.url) as coordinator, PrivateClient(coordinator, job, loopback=True) as client:
        async for report in client.ask(COMMAND):
            text += report.text if isinstance(report, TextReport) else ""
            if text == "quokka in" and model.stops_after:
                model.stops_after = None
                await house.private.channels[0].aclose()
    assert text == SECRET


async def test_where_no_home_holds_the_model_yet_it_says_so_once_and_waits(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, opened, refusals = await started(house), house.private.open, [0, 0, 0]

    async def open_later(job: str, wanted: NewPrivateSession) -> PrivateSession:
        if refusals:
            refusals.pop()
            raise UnavailableError(f"no node of deployment {job} holds its model yet: try again")
        return await opened(job, wanted)

    monkeypatch.setattr(house.private, "open", open_later)
    monkeypatch.setattr(private, "AGAIN_S", 0.01)
    told: list[str] = []
    asking = Client(house.url, attempts=1)
    async with asking, PrivateClient(asking, job, loopback=True, waits=told.append) as client:
        assert await said(client) == SECRET
        assert [why.partition(" holds its model yet")[1] != "" for why in told] == [True]
        refusals[:] = [0] * 999
        monkeypatch.setattr(private, "WAIT_S", 0.05)
        await house.private.channels[0].aclose()
        with pytest.raises(ProblemError, match="holds its model yet"):
            await said(client)


async def test_whoever_is_in_the_middle_is_told_of_and_not_tried_around(house: House) -> None:
    job = await started(house)
    intruder = house.private.keys[1]

    def tamper(envelope: bytes) -> bytes:
        whole = msgspec.msgpack.decode(envelope)
        return msgspec.msgpack.encode(whole | {"signature": intruder.sign("cottage/signal/1", whole["body"])})

    house.private.tamper = tamper
    async with Client(house.url) as coordinator, PrivateClient(coordinator, job, loopback=True) as client:
        with pytest.raises(SignalError, match="signature"):
            await said(client)
    assert not any(model.asked for model in house.private.models.values())


async def test_a_home_that_does_not_answer_now_is_left_for_another_until_nobody_is_left(house: House) -> None:
    job = await started(house)
    one, other = (house.private.models[key.address] for key in house.private.keys)
    one.talks = False
    async with Client(house.url) as coordinator, PrivateClient(coordinator, job, loopback=True) as client:
        assert await said(client) == SECRET
        other.talks = False
        with pytest.raises(PrivateRefusedError, match="does not answer now"):
            await said(client)
    only = house.private.keys[0].address
    async with Client(house.url) as coordinator, PrivateClient(coordinator, job, node=only, loopback=True) as client:
        with pytest.raises(PrivateRefusedError):
            await said(client)
