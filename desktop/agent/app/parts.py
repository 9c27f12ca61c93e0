"""What an agent is built from."""

from dataclasses import dataclass

from common.clock import Clock
from desktop.agent.base.config import Home, Settings
from desktop.agent.base.gpu import NOTHING, Device
from desktop.agent.lending.keeper import Readings
from desktop.agent.sandbox.base import Sandbox
from desktop.agent.sandbox.containers import Containers
from protocol.identity import NodeKey
from protocol.node import NodeProfile


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
