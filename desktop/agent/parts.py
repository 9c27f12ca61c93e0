"""What an agent is built from."""

from dataclasses import dataclass

from desktop.agent.config import Home, Settings
from desktop.agent.gpu import NOTHING, Device
from desktop.agent.lending.keeper import Readings
from desktop.agent.sandbox.base import Sandbox
from transport.clock import Clock
from transport.identity import NodeKey
from transport.wire.node import NodeProfile


@dataclass(frozen=True)
class Parts:
    """What the agent is built from."""

    home: Home
    settings: Settings
    key: NodeKey
    profile: NodeProfile
    sandbox: Sandbox
    clock: Clock
    device: Device = NOTHING
    readings: Readings | None = None
