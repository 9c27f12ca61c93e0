"""Elements in real containers of a stranger's image: what they find, what is taken of what they leave, how they end."""

import hashlib
import os
import secrets
import shutil
from pathlib import Path

import msgspec
import pytest

from protocol.job.array import CheckerSpec
from protocol.job.elements import DropElements
from protocol.job.results import packed
from tests.desktop.arrays.conftest import StartStage

pytestmark = pytest.mark.docker


async def test_elements_read_their_inputs_and_leave_results_that_are_the_same_everywhere(stage: StartStage) -> None:
    async with stage() as it:
        shared = it.coordinator.store(b"for all\n")
        assign = await it.array(inputs={"deep/er/shared.txt": shared}, environment={"GREETING": "hello"})
        assert (await it.ready(assign)).slots == 1
        script = 'cat /in/deep/er/shared.txt > all; mkdir sub; echo "$GREETING $COTTAGE_NAME" > sub/b; echo said; pwd'
        first = it.element(script)
        second = it.element("ls /in /in/deep/er > seen; cat /in/own > own", own=b"only mine")
        third = it.element("ls -A /in /out /tmp > seen")
        large = it.element("dd if=/dev/zero of=big bs=1024 count=3000 2>/dev/null")
        await it.send(assign, first, second, third, large)
        await it.coordinator.until(lambda: len(it.ends(assign)) == 4)
        ends = it.ends(assign)
        found = {"all": b"for all\n", "sub/b": b"hello e1\n"}
        assert it.files(ends[1]) == found
        assert ends[1].result == hashlib.sha256(packed(found)).hexdigest()
        assert ends[1].tail == ("said", "/out")
        assert it.files(ends[2])["own"] == b"only mine"
        assert it.files(ends[2])["seen"].split() == [
            b"/in:",
            b"deep",
            b"own",
            b"run.sh",
            b"/in/deep/er:",
            b"shared.txt",
        ]
        # Nothing of the runs before is there.
        assert it.files(ends[3])["seen"].split() == [b"/in:", b"deep", b"run.sh", b"/out:", b"seen", b"/tmp:"]
        assert it.files(ends[4]) == {"big": bytes(3_072_000)}
        assert ends[4].data is None
        assert (assign.lease, "result-4") in it.coordinator.answered
        assert it.begun(assign) == [1, 2, 3, 4]


async def test_each_way_to_end_is_told_as_what_it_was(stage: StartStage) -> None:
    async with stage() as it:
        assign = await it.array(seconds=5.0)
        await it.ready(assign)
        ways = {
            "exit 3": ("exited", 3),
            "sleep 60": ("time", 0),
            "dd if=/dev/zero of=/dev/null bs=200M count=1": ("memory", 0),
            "dd if=/dev/zero of=/out/x bs=1024 count=40000": ("disk", 0),
            "ln -s /etc/passwd link": ("disk", 0),
            "mkfifo pipe": ("exited", 1),
            "echo x > .hidden": ("disk", 0),
            "/no/such/program": ("exited", 127),
            "kill -9 $$": ("exited", 137),
            "mkdir a; cd a; mkdir b; cd ..; chmod 0 a; echo x > locked; chmod 0 locked": ("exited", 0),
            "echo fine > x": ("exited", 0),
        }
        ends = await it.run(assign, *ways)
        assert {script: (end.outcome, end.code) for script, end in zip(ways, ends, strict=True)} == ways
        said = {script: " ".join(end.tail) for script, end in zip(ways, ends, strict=True)}
        assert "limit of 5 seconds" in said["sleep 60"]
        assert "needed more memory" in said["dd if=/dev/zero of=/dev/null bs=200M count=1"]
        assert "it left a link ('link'), and only plain files are taken" in said["ln -s /etc/passwd link"]
        assert "Operation not permitted" in said["mkfifo pipe"]
        assert "cannot be the path of a file in a result" in said["echo x > .hidden"]
        assert it.files(ends[-2]) == {"locked": b"x\n"}
        assert it.files(ends[-1]) == {"x": b"fine\n"}


async def test_a_checker_finds_inputs_and_the_files_of_a_result_and_says_what_it_makes_of_them(
    stage: StartStage,
) -> None:
    async with stage() as it:
        shared = it.coordinator.store(b"for all\n")
        checker = CheckerSpec(command=("sh", "/in/look.sh", "{name}"), seconds=5.0)
        assign = await it.array(inputs={"shared.txt": shared}, verify="checked", checker=checker)
        await it.ready(assign)
        result = {"sub/dir/answer": b"42\n", "empty": b"", "large": bytes(100_000)}
        archive = it.coordinator.store(packed(result))
        look = "cd /in; cat shared.txt own result/sub/dir/answer; wc -c result/large > /out/seen; ls result; echo $COTTAGE_SEED"
        cases = {
            "good": look,
            "bad": "echo it is not 42; exit 3",
            "slow": "sleep 60",
            "writes": "echo x > /in/result/empty",
        }
        runs = {}
        for name, script in cases.items():
            made = it.element("exit 9", own=b"only mine\n", **{"look.sh": script.encode()})
            runs[name] = msgspec.structs.replace(made, check=archive, seed="5" * 32)
        plain = it.element("ls -A /in > seen")
        await it.send(assign, *runs.values(), plain)
        await it.coordinator.until(lambda: len(it.ends(assign)) == 5)
        ends = {name: it.ends(assign)[run.run] for name, run in runs.items()}
        found = {name: (end.outcome, end.code) for name, end in ends.items()}
        assert found == {"good": ("exited", 0), "bad": ("exited", 3), "slow": ("time", 0), "writes": ("exited", 1)}
        said = ("for all", "only mine", "42", "empty", "large", "sub", "5" * 32)
        assert ends["good"].tail == said
        assert it.files(ends["good"]) == {"seen": b"100000 result/large\n"}
        assert ends["bad"].tail == ("it is not 42",)
        assert "limit of 5 seconds" in " ".join(ends["slow"].tail)
        # The next element finds nothing of the result that was looked at.
        assert it.files(it.ends(assign)[plain.run])["seen"].split() == [b"run.sh", b"shared.txt"]


async def test_what_is_no_archive_of_a_result_is_not_laid_in(stage: StartStage) -> None:
    async with stage() as it:
        assign = await it.array(verify="checked", checker=CheckerSpec(command=("sh", "/in/run.sh")))
        await it.ready(assign)
        hostile = packed({"a": b"x"}).replace(b"a" + bytes(99), b"../a" + bytes(96), 1)
        run = msgspec.structs.replace(it.element("exit 0"), check=it.coordinator.store(hostile))
        await it.send(assign, run)
        await it.coordinator.until(lambda: it.ends(assign))
        assert it.ends(assign)[run.run].outcome == "inputs"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="Linux tells which files are open")
async def test_what_waits_to_be_read_stays_in_the_cache_and_is_not_open(stage: StartStage, tmp_path: Path) -> None:
    async with stage() as it:
        shared = it.coordinator.store(secrets.token_bytes(70_000))
        assign = await it.array(inputs={"shared": shared})
        await it.ready(assign)
        script = "cat /in/* | wc -c > seen"
        held, *after = [
            it.element(what, **{f"own{number}": secrets.token_bytes(50_000) for number in range(5)})
            for what in ("sleep 60", *[script] * 3)
        ]
        await it.send(assign, held, *after)
        cache = tmp_path / "node" / "cache"
        own = {digest for run in after for name, digest in run.element.inputs.items() if name != "run.sh"}
        wanted = {shared} | own  # The script is so short that it waits in memory.
        await it.coordinator.until(lambda: held.run in it.begun(assign))
        await it.coordinator.until(lambda: wanted <= {path.name for path in cache.iterdir()})
        links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        assert [link for link in links if Path(link).is_relative_to(cache)] == []

        artifacts = it.running.agent._artifacts
        artifacts.limit(0)
        await artifacts.fetch(it.coordinator.store(b"further"))
        assert wanted <= {path.name for path in cache.iterdir()}
        await it.coordinator.command(it.running.address, assign, DropElements((held.run,)))
        await it.coordinator.until(lambda: {run.run for run in after} <= it.ends(assign).keys())
        for run in after:
            size = 70_000 + 5 * 50_000 + len(script)
            assert it.files(it.ends(assign)[run.run]) == {"seen": b"%d\n" % size}
        await artifacts.fetch(it.coordinator.store(b"one more"))
        assert not own & {path.name for path in cache.iterdir()}


async def test_a_disk_that_takes_no_inputs_says_nothing_of_an_element_and_ends_no_lease(
    stage: StartStage, tmp_path: Path
) -> None:
    async with stage() as it:
        assign = await it.array()
        await it.ready(assign)
        cache = tmp_path / "node" / "cache"
        shutil.rmtree(cache)
        (end,) = await it.run(assign, "echo a > x")
        assert (end.outcome, end.seconds) == ("owner", 0.0)
        cache.mkdir(mode=0o700)
        (end,) = await it.run(assign, "echo b > x")
        assert it.files(end) == {"x": b"b\n"}
