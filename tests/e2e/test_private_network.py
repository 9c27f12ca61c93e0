"""The lesson of a private network as its reader types it: real programs, from the first command to a right that is taken back.

What is changed: the address of the lab, ports, and the sandbox. Strangers are turned away in ``test_who_may_lend``.
"""

import asyncio
import re
from pathlib import Path

import pytest

from common.invitations import read
from coordinator.services.network.lenders import NOT_INVITED, TAKEN_BACK
from tests.e2e.test_lessons import LESSONS, STAYS, Desk, desk_in, lines

LESSON = "private-network.md"
PASSWORD = "a password of the lab"

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def at_home(desk: Desk, line: str) -> str:
    """A line of the lesson for this machine alone."""
    line = line.replace("192.168.1.10%3A8470", f"127.0.0.1%3A{desk.coordinator}").replace("192.168.1.10", "127.0.0.1")
    return line.replace("--host 0.0.0.0", "").replace(" ID ", f" {desk.words.get('ID', 'ID')} ")


def shown_by(line: str) -> str:
    """What a program that stays says once it is ready."""
    return {"ledger": "", "serve": "serving", "node": "connected to"}[line.split()[1]]


@pytest.mark.timeout(900)
async def test_who_types_what_the_lesson_says_has_a_network_of_its_own(tmp_path: Path) -> None:
    async with desk_in(tmp_path) as lab:
        for line in lines(LESSON):
            here = at_home(lab, line)
            if line.startswith(STAYS):
                await lab.leave_open(here, shown_by(line))
                continue
            status, said = await lab.type(here, lab.words.get("TOKEN", PASSWORD))
            assert status == 0, f"{line}: {said}"
            if " key ada" in line:
                (lab.words["TOKEN"],) = re.findall(r"^cottage_\S+$", said, re.MULTILINE)
            elif "--note" in line:
                invitation = read(re.findall(r"^cottage://\S+$", said, re.MULTILINE)[0])
                lab.words |= {"KEY": invitation.key, "CODE": invitation.code}
            elif "--list" in line:
                assert "the machine by the window" in said
                (lab.words["ID"],) = re.findall(r"^([0-9a-f]{12}) .* used ", said, re.MULTILINE)
        async with asyncio.timeout(120):
            while f"is refused: {TAKEN_BACK}" not in " ".join((await lab.type("cottage node status"))[1].split()):
                await asyncio.sleep(0.5)
        assert f"*{NOT_INVITED}*" in (LESSONS / LESSON).read_text(), "what the lesson quotes is what is said"
        assert await lab.close() == [0, 0, 0], "Ctrl-C ends each in order"
