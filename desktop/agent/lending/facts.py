"""What the sensors say of this computer at one moment. None everywhere: the sensor cannot tell here."""

import msgspec


class Facts(msgspec.Struct, frozen=True):
    """One reading of everything.

    Attributes:
        at: Unix seconds.
        utc_offset: seconds that local time is ahead of UTC.
        idle_s: seconds since keyboard or mouse were touched; infinite where nobody can sit at this computer.
        on_battery: it runs without mains; False on computers that have no battery.
        fullscreen: the program that covers the whole screen, "" for none.
        programs: names of the running executables.
        celsius: of the hottest GPU that is lent.
        metered: the network says that it costs by the byte.
        free_disk: bytes on the disk of the agent's folder.
        own_vram: bytes of GPU memory that programs other than jobs use, on the GPU where they use most.
        cap_used: this month's allowance of bytes is used up.
        busy: jobs run here (or would, were they not paused).
        no_room: why the cluster that is lent has no place for a job; empty: it has, or none is lent.
    """

    at: float
    utc_offset: int = 0
    idle_s: float | None = None
    on_battery: bool | None = None
    fullscreen: str | None = None
    programs: frozenset[str] | None = None
    celsius: float | None = None
    metered: bool | None = None
    free_disk: int | None = None
    own_vram: int | None = None
    cap_used: bool = False
    busy: bool = False
    no_room: str = ""
