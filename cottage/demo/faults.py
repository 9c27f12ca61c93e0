"""Faults on purpose: ``kill -9`` of a node or of the coordinator, in the middle of a round."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from cottage.demo.network import DemoNetwork
from cottage.demo.options import Fault as FaultName
from cottage.demo.screen import DemoScreen, place
from protocol.rest import api

FIRST_ROUND = 2  # Two rounds are complete then: there is something to lose.
DOWN_S = 3.0


class Fault(Protocol):
    """Strikes once, when its moment has come."""

    async def consider(self, job: api.JobView, nodes: Sequence[api.JobNode]) -> None: ...

    def story(self) -> str: ...


class KillNode:
    """Ends one working node, its agent and its worker, without a word: once some of its work is verified, or a round before the
    last one."""

    def __init__(self, network: DemoNetwork, screen: DemoScreen, after: int) -> None:
        self._network = network
        self._screen = screen
        self._after = after
        self._victim: str | None = None

    async def consider(self, job: api.JobView, nodes: Sequence[api.JobNode]) -> None:
        if self._victim is not None or job.rounds_done < self._after:
            return
        working = [n for n in reversed(nodes) if n.state == "training" and n.stage is not None]
        target = next((n for n in working if n.verified), None)
        if target is None and working and job.rounds_done >= job.rounds_total - 2:
            target = working[0]
        if target is None:
            return
        provider = next(p for p in self._network.providers if p.key.address == target.node)
        assert provider.role is not None
        self._victim = f"{provider.name} ({place(target)}) was killed in round {job.rounds_done + 1}"
        self._screen.say(f"kill -9 of {provider.name}, {place(target)}")
        await self._network.household.kill(provider.role)

    def story(self) -> str:
        return self._victim or "no node was killed: the job ended too soon"


class KillCoordinator:
    """Ends the coordinator without a word and starts it again a little later."""

    def __init__(self, network: DemoNetwork, screen: DemoScreen, after: int) -> None:
        self._network = network
        self._screen = screen
        self._after = after
        self._round: int | None = None

    async def consider(self, job: api.JobView, nodes: Sequence[api.JobNode]) -> None:
        if self._round is not None or job.rounds_done < self._after:
            return
        self._round = job.rounds_done + 1
        assert self._network.coordinator is not None
        self._screen.say("kill -9 of the coordinator")
        await self._network.household.kill(self._network.coordinator)
        await asyncio.sleep(DOWN_S)
        await self._network.start_coordinator()
        self._screen.say("the coordinator is up again")

    def story(self) -> str:
        return (
            "the coordinator was not killed: the job ended too soon"
            if self._round is None
            else f"the coordinator was killed in round {self._round} and started again"
        )


def fault_for(name: FaultName, network: DemoNetwork, screen: DemoScreen, after: int) -> Fault:
    """The fault of that name, which strikes once ``after`` rounds are complete."""
    return (KillNode if name == "kill-node" else KillCoordinator)(network, screen, after)
