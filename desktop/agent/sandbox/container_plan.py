"""What one container of a job is, before the engine is asked for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from desktop.agent.sandbox.base import SandboxLimits, Volume


@dataclass(frozen=True)
class ContainerPlan:
    """One container, with nothing but what stands here.

    Attributes:
        lease: whose it is.
        command: program first. trusted: it is Cottage's own, in its own image, and looks for ways out before it begins.
        folder: what it sees at ``/job``, read-only, with the socket that it speaks over; None: it speaks to nobody.
        data: a file or folder of the owner's that it may read.
        image: how the engine names it; empty: the sandbox's own.
        limits: what it may use. gpu: the card that it gets; empty: none.
        streams: it speaks over its standard streams, of which the engine keeps no log.
        volumes: folders in memory. environment: beside what every container has. working_dir: empty: the image's own.
    """

    lease: str
    command: Sequence[str]
    limits: SandboxLimits
    trusted: bool = True
    folder: Path | None = None
    data: Path | None = None
    image: str = ""
    gpu: str = ""
    streams: bool = False
    volumes: tuple[Volume, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    working_dir: str = ""
