"""Several elements in one container: each finds and leaves what it would alone, and what is no clean success is run alone."""

import asyncio
import contextlib
import os
import secrets
import shutil
import subprocess
import time
from pathlib import Path

import msgspec
import pytest
from docker.errors import APIError

from desktop.agent.arrays import held_array
from desktop.agent.arrays.batch_shell import LOOP, work_of
from desktop.agent.arrays.element_place import MOST_SPOILT
from protocol.job.elements import DropElements
from protocol.node import Assign
from protocol.task import TaskFailed
from tests.desktop.arrays.conftest import Stage, StartStage, archive_of
from tests.support.arrays.images import busybox_layer

pytestmark = pytest.mark.docker


class Made:
    """Containers of a lease that the engine makes from now on.

    Its own history will not do: it has the last 256 events of all, and tests beside this one use those up.
    """

    def __init__(self, it: Stage, assign: Assign) -> None:
        self._client, self._lease, self._found = it.sandbox.client, assign.lease, 0
        self._events = self._client.events(since=int(time.time()), decode=True, filters={"event": "create"})
        self._before = self._all()

    def count(self) -> int:
        """Until now, and no further."""
        found = self._all() - self._before
        self._events.close()
        return found

    def _all(self) -> int:
        """Read on until a volume's event that is made for that."""
        marker = self._client.volumes.create(f"cottage-test-{secrets.token_hex(8)}")
        try:
            for event in self._events:
                if event["Actor"]["ID"] == marker.name:
                    return self._found
                self._found += event["Actor"]["Attributes"].get("network.cottage.lease") == self._lease
        finally:
            marker.remove()
        raise AssertionError("the engine has ended its events")


async def test_elements_of_a_batch_share_a_container_and_find_nothing_of_each_other(stage: StartStage) -> None:
    async with stage() as it:
        shared = it.coordinator.store(b"for all\n")
        assign = await it.array(inputs={"deep/er/shared.txt": shared}, environment={"GREETING": "it's"}, batch=8)
        await it.ready(assign)
        made = Made(it, assign)
        first = it.element(
            'echo "$GREETING $COTTAGE_NAME $COTTAGE_ELEMENT" > said; echo printed; pwd; mkdir sub; echo x > sub/b'
        )
        second = it.element(
            "cat /in/own /in/deep/er/shared.txt > own; echo left > /tmp/left; sleep 60 & echo x > /tmp/.hidden",
            own=b"only mine\n",
        )
        third = it.element(
            "ls -A /in /out /tmp > seen; cat; ls -d /proc/[0-9]* | wc -l > processes; cat /proc/*/cmdline > names"
        )
        large = it.element("dd if=/dev/zero of=big bs=1024 count=3000 2>/dev/null")
        await it.send(assign, first, second, third, large)
        await it.coordinator.until(lambda: len(it.ends(assign)) == 4)
        ends = it.ends(assign)
        assert it.files(ends[1]) == {"said": b"it's e1 1\n", "sub/b": b"x\n"}
        assert ends[1].tail == ("printed", "/out")
        assert it.files(ends[2]) == {"own": b"only mine\nfor all\n"}
        assert it.files(ends[3])["seen"].split() == [b"/in:", b"deep", b"run.sh", b"/out:", b"seen", b"/tmp:"]
        assert b"sleep\x0060" not in it.files(ends[3])["names"], "it is ended, and may wait to be reaped"
        assert it.files(ends[4]) == {"big": bytes(3_072_000)}
        assert made.count() == 1


async def test_what_is_no_clean_success_in_a_batch_is_run_alone_and_told_as_what_it_was_there(
    stage: StartStage,
) -> None:
    async with stage() as it:
        assign = await it.array(seconds=2.0, batch=64)
        await it.ready(assign)
        ways = {
            "echo a > x": ("exited", 0),
            "exit 3": ("exited", 3),
            "sleep 60": ("time", 0),
            "dd if=/dev/zero of=/dev/null bs=200M count=1": ("memory", 0),
            "dd if=/dev/zero of=/out/x bs=1024 count=40000": ("disk", 0),
            "ln -s /etc/passwd link": ("disk", 0),
            "/no/such/program": ("exited", 127),
            "kill -9 $$": ("exited", 137),
            "kill -9 $PPID; sleep 60": ("time", 0),
            "i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); done; echo b > x": ("exited", 0),
            "echo c > x": ("exited", 0),
        }
        scripts = list(ways)
        ends = [*await it.run(assign, *scripts[:4]), *await it.run(assign, *scripts[4:])]
        assert {script: (end.outcome, end.code) for script, end in zip(ways, ends, strict=True)} == ways
        assert it.files(ends[-2]) == {"x": b"b\n"}
        assert ends[-2].tail == tuple(str(number) for number in range(2980, 3000))
        assert it.files(ends[-1]) == {"x": b"c\n"}


async def test_one_that_depends_on_what_ran_before_is_run_alone_where_that_is_asked_for(stage: StartStage) -> None:
    async with stage() as it:
        assign = await it.array(batch=8)
        await it.ready(assign)
        # Processes are numbered one after the other, in each container anew.
        script = "echo $$ > seen; i=0; while [ $i -lt 99 ]; do ls > /dev/null; i=$((i+1)); done"
        first, second, third = it.element(script), it.element(script), it.element(script)
        await it.send(assign, first, second, msgspec.structs.replace(third, alone=True))
        await it.coordinator.until(lambda: len(it.ends(assign)) == 3)
        seen = [int(it.files(it.ends(assign)[run.run])["seen"]) for run in (first, second, third)]
        assert seen[0] < 99 < seen[1]
        assert seen[2] < 99


LEAVE = """
for folder in /tmp /dev/shm; do
  echo x > $folder/left; echo x > $folder/.hidden; mkdir -p $folder/a/b/c $folder/..odd
  echo x > $folder/a/b/c/d; chmod 0444 $folder/a/b/c/d; chmod 0555 $folder/a/b/c; chmod 0111 $folder/a/b; chmod 0 $folder/a
  ln -s /in/run.sh $folder/link; ln -s nowhere $folder/dangling
done
: > /dev/mqueue/left; echo done > x
"""
SEE = "ls -A /tmp /dev/shm /dev/mqueue > seen"
NOTHING = b"/dev/mqueue:\n\n/dev/shm:\n\n/tmp:\n"


async def test_files_that_an_element_leaves_wherever_it_may_are_gone_for_the_next(stage: StartStage) -> None:
    async with stage() as it:
        assign = await it.array(batch=8)
        await it.ready(assign)
        made = Made(it, assign)
        full = "dd if=/dev/zero of=/dev/shm/full bs=1024k count=60 2>/dev/null; echo done > x"
        ends = await it.run(assign, full, LEAVE, SEE, full)
        assert [it.files(end) for end in ends] == [{"x": b"done\n"}] * 2 + [{"seen": NOTHING}, {"x": b"done\n"}]
        assert made.count() == 1


# Deeper than a path may be long, which the image's ``rm`` cannot follow.
DEEP = """
cd /dev/shm; name=$(printf '%0200d' 0); i=0
while [ $i -lt 30 ]; do mkdir $name && cd -P $name || exit 1; i=$((i+1)); done
echo done > /out/x
"""


async def test_a_batch_ends_where_something_is_still_there(stage: StartStage) -> None:
    async with stage() as it:
        assign = await it.array(batch=8)
        await it.ready(assign)
        made = Made(it, assign)
        ends = await it.run(assign, DEEP, SEE, SEE)
        assert [it.files(end) for end in ends] == [{"x": b"done\n"}, {"seen": NOTHING}, {"seen": NOTHING}]
        assert made.count() == 2


async def test_a_batch_ends_with_a_run_that_nobody_waits_for_and_is_held_with_its_owner(stage: StartStage) -> None:
    async with stage() as it:
        assign = await it.array(seconds=5.0, batch=8)
        await it.ready(assign)
        runs = [
            it.element("echo a > x"),
            it.element("sleep 50"),
            it.element("echo b > x"),
            it.element("sleep 2; echo c > x"),
        ]
        await it.send(assign, *runs[:3])
        await it.coordinator.until(lambda: runs[1].run in it.begun(assign))
        await it.coordinator.command(it.running.address, assign, DropElements((runs[1].run,)))
        await it.coordinator.until(lambda: it.ends(assign).keys() == {runs[0].run, runs[2].run})
        await it.send(assign, runs[3])
        await it.coordinator.until(lambda: runs[3].run in it.begun(assign))
        (task,) = it.running.agent._holdings.tasks.values()
        await task.freeze(True)
        await asyncio.sleep(6)  # Longer than its time, which does not count meanwhile.
        assert runs[3].run not in it.ends(assign)
        await task.freeze(False)
        await it.coordinator.until(lambda: runs[3].run in it.ends(assign))
        assert it.files(it.ends(assign)[runs[3].run]) == {"x": b"c\n"}


async def test_an_image_without_a_shell_runs_each_of_its_elements_alone(stage: StartStage, tmp_path: Path) -> None:
    layer = busybox_layer(tools=())
    async with stage(archive=archive_of(tmp_path, layers=[layer])) as it:
        assign = await it.array(command=("/bin/busybox", "sh", "/in/run.sh"), batch=8)
        await it.ready(assign)
        ends = await it.run(assign, "echo a > x", "echo b > x")
        assert [it.files(end) for end in ends] == [{"x": b"a\n"}, {"x": b"b\n"}]


async def test_who_reaches_into_a_batch_ends_the_lease_and_it_is_told(stage: StartStage) -> None:
    async with stage() as it:
        assign = await it.array(batch=8)
        await it.ready(assign)
        await it.run(assign, "echo a > x")  # Now it waits for the next.
        mine = {"label": f"network.cottage.lease={assign.lease}"}
        found = [
            one
            for one in it.sandbox.client.containers.list(filters=mine)
            if one.attrs["Config"]["Entrypoint"][0] == "sh"
        ]
        with contextlib.suppress(APIError):  # It may be dead before the command has begun.
            await asyncio.to_thread(found[0].exec_run, ["true"])
        await it.send(assign, it.element("echo b > x"))
        await it.coordinator.until(lambda: it.coordinator.bodies(TaskFailed, assign.lease))
        assert it.coordinator.bodies(TaskFailed, assign.lease)[0].tampered


def batches(it: Stage, assign: Assign) -> list[str]:
    """What the containers of a lease's batches are doing."""
    mine = {"label": f"network.cottage.lease={assign.lease}"}
    found = it.sandbox.client.containers.list(all=True, filters=mine, ignore_removed=True)
    return [one.status for one in found if (own := one.attrs["Config"])["OpenStdin"] and own["Entrypoint"][0] == "sh"]


async def test_a_batch_is_held_between_its_elements_too_and_ends_where_nothing_is_to_do(
    stage: StartStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_array, "IDLE_S", 600.0)
    async with stage() as it:
        assign = await it.array(batch=8)
        await it.ready(assign)
        await it.run(assign, "echo a > x")  # Whatever its image has left running there goes on.
        (task,) = it.running.agent._holdings.tasks.values()
        await task.freeze(True)
        assert batches(it, assign) == ["paused"]
        await task.freeze(False)
        assert batches(it, assign) == ["running"]
        monkeypatch.setattr(held_array, "IDLE_S", 0.5)
        (end,) = await it.run(assign, "echo b > x")
        assert it.files(end) == {"x": b"b\n"}
        await it.coordinator.until(lambda: not batches(it, assign))
        (end,) = await it.run(assign, "echo c > x")
        assert it.files(end) == {"x": b"c\n"}


async def test_a_run_alone_has_no_batch_beside_it(stage: StartStage) -> None:
    async with stage() as it:
        assign = await it.array(batch=8)
        await it.ready(assign)
        await it.run(assign, "echo a > x")
        alone = it.element("sleep 3; echo b > x")
        await it.send(assign, msgspec.structs.replace(alone, alone=True))
        await it.coordinator.until(lambda: alone.run in it.begun(assign))
        assert batches(it, assign) == []


async def test_what_batches_never_do_is_run_alone_at_once(stage: StartStage) -> None:
    async with stage() as it:
        assign = await it.array(batch=8)
        await it.ready(assign)
        made = Made(it, assign)
        ends = await it.run(assign, *["exit 1"] * 8)
        assert {end.code for end in ends} == {1}
        assert made.count() == 8 + MOST_SPOILT


def harmless(folder: Path) -> str:
    """The loop for this machine, on which it would end and delete everything: what it empties lies in a folder."""
    loop = LOOP.replace("kill -s KILL", ": kill")
    for place in ("/tmp", "/dev/shm", "/dev/mqueue", "/proc/sysvipc"):
        assert f" {place}/*" in loop
        loop = loop.replace(f" {place}/", f" {folder}{place}/")
        (folder / place[1:]).mkdir(parents=True)
    assert all(word.startswith(str(folder)) for word in loop.split() if "*" in word)
    return loop


@pytest.mark.parametrize("shell", ["busybox", "dash", "bash"])
def test_variables_of_an_image_are_its_elements_own(shell: str, tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    words = [program, "sh"] if shell == "busybox" else [program]
    own = {"mark": "a", "work": "/app/work", "code": "/app/code", "one": "1"}
    line = work_of(("sh", "-c", 'echo "$mark $work $code $one"'), {"N": "1"})
    loop = harmless(tmp_path)
    asked = f"m\n{line}\nn\n{line}\n"
    done = subprocess.run(
        [*words, "-c", loop], input=asked, capture_output=True, text=True, check=True, env={**os.environ, **own}
    )
    assert done.stdout == "a /app/work /app/code 1\n\nm 0\na /app/work /app/code 1\n\nn 0\n"


@pytest.mark.parametrize("shell", ["busybox", "dash", "bash"])
def test_a_shell_runs_what_it_is_told_and_gives_marks_and_codes(shell: str, tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    words = [program, "sh"] if shell == "busybox" else [program]
    awkward = ("printf", "%s|", "it's", 'a "b" $HOME `id` \\', "", "*", "-n")
    lines = [work_of(awkward, {"NAME": "x y'z"}), work_of(("sh", "-c", "echo $NAME; exit 7"), {"NAME": "$(id)"})]
    asked = "".join(f"mark{number}\n{line}\n" for number, line in enumerate(lines))
    loop = harmless(tmp_path)
    done = subprocess.run([*words, "-c", loop], input=asked, capture_output=True, text=True, check=True)
    assert done.stdout == 'it\'s|a "b" $HOME `id` \\||*|-n|\nmark0 0\n$(id)\n\nmark1 7\n'


@pytest.mark.parametrize("shell", ["busybox", "dash", "bash"])
def test_a_shell_empties_its_places_and_tells_what_it_cannot_remove(shell: str, tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    words = [program, "sh"] if shell == "busybox" else [program]
    loop, queues = harmless(tmp_path), tmp_path / "proc/sysvipc/msg"
    places = [tmp_path / place for place in ("tmp", "dev/shm", "dev/mqueue")]
    queues.write_text("heading\n")
    leave = "; ".join(f"echo x > {place}/a; echo x > {place}/.b; mkdir -p {place}/..c/d" for place in places)
    asked = [leave, f"echo queue >> {queues}", "exit 3"]
    lines = [work_of(("sh", "-c", line), {"N": "1"}) for line in asked]
    told = "".join(f"m{number}\n{line}\n" for number, line in enumerate(lines))
    done = subprocess.run([*words, "-c", loop], input=told, capture_output=True, text=True, check=True)
    assert done.stdout == "\nm0 0\n\nm1 0 left\n\nm2 3 left\n"
    assert [list(place.iterdir()) for place in places] == [[], [], []]


def test_what_a_line_cannot_say_has_a_container_of_its_own() -> None:
    assert work_of(("a", "b\nc"), {"N": "1"}) is None
    assert work_of(("a",), {"N": "x\ry"}) is None
    assert work_of(("a", "x" * 20_000), {"N": "1"}) is None
