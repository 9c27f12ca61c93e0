"""What an agent is built from."""

from collections.abc import Callable
from dataclasses import dataclass

from common.clock import Clock
from desktop.agent.base.config import Home, Settings
from desktop.agent.base.gpu import NOTHING, Device
from desktop.agent.earnings.wallet import Purse
from desktop.agent.jobs.traffic_usage import LineShare
from desktop.agent.lending.keeper import Readings
from desktop.agent.sandbox.base import Sandbox
from desktop.agent.sandbox.containers import Containers
from protocol.identity import NodeKey
from protocol.network import NetworkReport
from protocol.node import NodeProfile


@dataclass(frozen=True)
class OtherCards:
    """What an agent has to know of the other cards of its computer; by itself, that there are none.

    ``pids``: their workers' processes, which are not their owner's. ``may_test``: this one is who tests the line, and none of the
    others uses it. ``measured``: told what it has found. ``line``: what all of them may use of it together; None: its own.
    ``purse``: what a card's stake comes from; None: its own wallet.
    """

    pids: Callable[[], tuple[int, ...]] = tuple
    may_test: Callable[[], bool] = lambda: True
    measured: Callable[[NetworkReport], None] = lambda _: None
    line: LineShare | None = None
    purse: Purse | None = None


@dataclass(frozen=True)
class AgentParts:
    """What the agent is built from."""

    home: Home
    settings: Settings
    key: NodeKey
    profile: NodeProfile
    sandbox: Sandbox
    clock: Clock
    device: Device = NOTHING
    readings: Readings | None = None
    containers: Containers | None = None
    """Of strangers' images; None: none run here."""
    release_key: str = ""
    computer: NodeKey | None = None
    """Whose further card this is; None: it is lent by itself, or is the first one."""
    others: OtherCards = OtherCards()
