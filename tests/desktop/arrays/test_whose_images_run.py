"""Whose images run on a computer, and what else keeps one from running: told in words, before or after it was fetched."""

import asyncio

import pytest

from desktop.agent.app.uninstall import _remove_element_images
from desktop.agent.images.publishers import Publishers
from desktop.agent.sandbox.containers import element_repository
from protocol.job.elements import ArrayReady
from protocol.node import Assign
from protocol.task import TaskFailed
from tests.desktop.arrays.conftest import Stage, StartStage, archive_of
from tests.support.arrays.images import KEY, files

pytestmark = pytest.mark.docker


async def failed(it: Stage, assign: Assign) -> TaskFailed:
    await it.coordinator.until(lambda: it.coordinator.bodies(TaskFailed, assign.lease))
    assert not it.coordinator.bodies(ArrayReady, assign.lease)
    return it.coordinator.bodies(TaskFailed, assign.lease)[0]


async def test_an_image_runs_once_its_publisher_is_accepted_and_no_more_once_that_is_taken_back(
    stage: StartStage,
) -> None:
    async with stage(accepted=False) as it:
        refused = await failed(it, await it.array())
        assert f"cottage node images accept {KEY.address}" in refused.reason
        assert refused.cause == "inputs"  # It says nothing of this machine.
        fetched = [wanted for _, digest, wanted in it.coordinator.requests if digest == it.image]
        assert fetched == ["bytes=0-4607"]  # Nothing but the statement crossed the line.
        publishers = Publishers(it.running.home)
        (known,) = publishers.known()
        assert (known.stated.name, known.stated.publisher, known.layers) == ("made:here", KEY.address, ())
        publishers.accept(KEY.address, "A friend", 1.0)
        hellos = it.coordinator.hellos
        await it.coordinator.until(lambda: hellos[-1].profile.containers and it.running.address in it.coordinator.nodes)
        assert not hellos[0].profile.containers  # So nobody is offered an array whose image nobody would run.
        assign = await it.array()
        await it.ready(assign)
        assert [end.outcome for end in await it.run(assign, "echo x > x")] == ["exited"]
        publishers.remove("A friend")
        await it.coordinator.until(
            lambda: not hellos[-1].profile.containers and it.running.address in it.coordinator.nodes
        )
        assert "has not accepted" in (await failed(it, await it.array())).reason
        assert [end.code for end in await it.run(assign, "exit 4")] == [4]  # What has begun goes on.


async def test_images_of_the_release_key_are_accepted_without_being_asked_for(stage: StartStage) -> None:
    async with stage(accepted=False, release_key=KEY.address) as it:
        await it.ready(await it.array())


async def test_an_image_is_fetched_and_loaded_once(stage: StartStage) -> None:
    async with stage() as it:
        for _ in range(3):
            await it.ready(await it.array())
        wanted = [range_ for method, digest, range_ in it.coordinator.requests if (method, digest) == ("GET", it.image)]
        assert wanted == ["bytes=0-4607", ""]
        assert not list(it.running.home.cache.glob(it.image))  # The engine has it; the disk need not hold it twice.


async def test_what_was_changed_at_the_coordinator_is_found_before_the_engine_sees_it(
    stage: StartStage, tmp_path: object
) -> None:
    whole = bytearray(archive_of(tmp_path, layers=[files({"bin/tool": b"A" * 5000})]))  # type: ignore[arg-type]
    whole[whole.index(b"A" * 100)] = ord("B")
    async with stage(archive=bytes(whole)) as it:
        assert "is another one than its configuration names" in (await failed(it, await it.array())).reason
        assert it.sandbox.client.images.list(f"cottage-element-{it.sandbox.owner[:12]}") == []


async def test_what_is_no_image_or_has_no_room_fails_in_words(stage: StartStage) -> None:
    async with stage() as it:
        other = it.coordinator.store(b"x" * 10_000)
        assert "cannot run here: it is no image" in (await failed(it, await it.array(image=other))).reason
        assert "this computer lends none" in (await failed(it, await it.array(gpu=True))).reason
        assert "an element needs 1,000," in (await failed(it, await it.array(memory_mb=1_000_000))).reason
        agent = it.running.agent
        assert agent._arrays is not None
        agent._arrays.images.limit = 1000
        await agent._arrays.containers.unload(it.image)
        assert "jobs may have 0.0 GB of this computer's disk" in (await failed(it, await it.array())).reason


async def test_an_image_that_nobody_accepts_any_more_leaves_the_engine(stage: StartStage) -> None:
    async with stage() as it:
        assign = await it.array()
        await it.ready(assign)
        images = it.running.agent._arrays
        assert images is not None
        Publishers(it.running.home).remove(KEY.address)
        assert await images.images.sweep() == 0  # A job has it.
        it.coordinator.gone.append(assign.lease)
        await it.coordinator.until(lambda: not it.running.agent.held())
        await it.coordinator.until(lambda: it.left() == ([], []))
        assert await images.images.sweep() == 1
        assert await images.containers.held() == {}


async def test_who_uninstalls_is_left_without_images_of_strangers(stage: StartStage) -> None:
    async with stage() as it:
        await it.ready(await it.array())
        client, owner = it.sandbox.client, it.sandbox.owner
        client.images.get(f"{element_repository(owner)}:{it.image}").tag("cottage-element-another", "x")
        assert await asyncio.to_thread(_remove_element_images, client, owner) == 1
        assert client.images.list(element_repository(owner)) == []
        client.images.remove("cottage-element-another:x")  # Another home's stays until that one removes it.
