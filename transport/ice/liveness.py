"""Whether a path still carries packets: counted in probes that went unanswered, not in seconds.

::

              silent though something was due            heard anything
      calm  ---------------------------------->  doubt  -------------> calm
                                                   | MIN_PROBES and silent_s of probes without a word
                                                   v
                                                  lost

When this process was held up for seconds, what the peer sent meanwhile is read before the next tick, so a hold-up is one silent
tick. While this machine is out of breath, and late with its own ticks, the peer's silence counts for less: it may run beside us.
At 5 % loss each way one probe in ten goes unanswered, and ten in a row once in 10^10 doubts.
"""

from dataclasses import dataclass

MIN_PROBES = 8  # 10^-8 a doubt at 5 % loss each way; a stutter of the radio link takes a few.
BUSY_PACKETS = 4  # Heard within one tick: a transfer is going on, and its silence means something at once.
MAX_EXCUSED = 10  # Silent ticks that came late; more, and the path may as well be lost.
CALM_TICK_S = 0.25  # An idle link costs four glances a second.


@dataclass(frozen=True)
class Tick:
    """What a tick asks for.

    Attributes:
        ping: greet the peer, as every ``ping_s``.
        probe: ask the path itself for a sign of life.
        lost: give the path up.
    """

    ping: bool
    probe: bool
    lost: bool


class Liveness:
    """Judges one path, tick by tick."""

    def __init__(self, ping_s: float, probe_s: float, silent_s: float) -> None:
        """Start calm.

        Args:
            ping_s: seconds between greetings on a calm path.
            probe_s: seconds between probes in doubt.
            silent_s: seconds of silence, probes going out all the while, after which the path is lost.
        """
        self._ping_s, self._probe_s = ping_s, probe_s
        self._enough = max(MIN_PROBES, round(silent_s / probe_s))
        self._calm_tick = min(CALM_TICK_S, ping_s)
        self._since_ping = ping_s
        self._awaited = False
        self._busy = False
        self._probes = 0
        self._excused = 0

    @property
    def interval(self) -> float:
        """Seconds until the next tick."""
        return self._probe_s if self._probes or self._busy else self._calm_tick

    @property
    def probes(self) -> int:
        """Probes sent since something was heard."""
        return self._probes

    def tick(self, heard: int, *, late: bool = False) -> Tick:
        """Judge the time since the last tick.

        Args:
            heard: packets and answers to probes that came in it.
            late: it took much longer than ``interval``.
        """
        self._since_ping += self.interval
        if heard:
            self._awaited, self._probes, self._excused, self._busy = False, 0, 0, heard >= BUSY_PACKETS
        elif late and self._excused < MAX_EXCUSED:
            self._excused += 1
        elif self._probes >= self._enough + self._excused:
            return Tick(ping=False, probe=False, lost=True)
        doubt = not heard and bool(self._probes or self._busy or self._awaited)
        ping = self._since_ping >= self._ping_s
        if ping:
            self._since_ping, self._awaited = 0.0, True
        if doubt:
            self._probes += 1
        return Tick(ping=ping, probe=doubt or ping, lost=False)
