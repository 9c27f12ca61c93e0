"""What the owner wants: the switch, a pause, and the limits within which this computer lends."""

from typing import Annotated

import msgspec
from msgspec import Meta

HOURS = 7 * 24  # Of a week, from Monday 0:00 local time.
ALWAYS = "1" * HOURS

Minutes = Annotated[int, Meta(ge=0, le=24 * 60)]
Celsius = Annotated[int, Meta(ge=40, le=110)]
Gigabytes = Annotated[float, Meta(ge=0, le=10_000)]
Hours = Annotated[str, Meta(pattern=f"^[01]{{{HOURS}}}$")]


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The owner's settings. The defaults are safe: nobody loses a game, a battery or a night's sleep to a job.

    Attributes:
        idle_minutes: nobody has touched keyboard and mouse for so long; 0: lend while somebody works here, too.
        on_battery: lend without mains.
        for_games: step aside for full-screen programs and those of ``programs``.
        programs: names of executables, as the process list has them; case does not matter.
        max_celsius: the GPU's limit; it lends again once it is ``band_celsius`` below.
        hours: a week of ``1`` (lend) and ``0``, an hour each, from Monday 0:00 local time.
        on_metered: lend over a connection that costs by the byte.
        free_disk: gigabytes that stay free on the disk of the agent's folder.
        own_vram: gigabytes of the GPU's memory that are kept for the owner's own programs; jobs are offered the rest, and step
            aside when those programs want more.
    """

    idle_minutes: Minutes = 5
    on_battery: bool = False
    for_games: bool = True
    programs: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...], Meta(max_length=500)] = ()
    max_celsius: Celsius = 78
    band_celsius: Annotated[int, Meta(ge=1, le=30)] = 6
    hours: Hours = ALWAYS
    on_metered: bool = False
    free_disk: Gigabytes = 10.0
    own_vram: Gigabytes = 2.0


class OwnerWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the owner asked for by hand, or a new version.

    Attributes:
        on: the switch.
        finish: complete what runs, then switch off.
        renew: complete what runs, then begin anew as the program that lies there now; the switch stays as it is.
        paused_until: Unix seconds; 0: not paused. It ends by itself.
        here_until: Unix seconds until which it lends although somebody uses the computer.
    """

    on: bool = False
    finish: bool = False
    renew: bool = False
    paused_until: Annotated[float, Meta(ge=0)] = 0.0
    here_until: Annotated[float, Meta(ge=0)] = 0.0
