"""A decision as a sentence for the command line and the log; the windows have their own, translated."""

import datetime as dt

from desktop.agent.lending.policy import Cause, Decision, HeldCause, State
from desktop.agent.lending.rules import Rules


def describe(decision: Decision, rules: Rules, utc_offset: int) -> str:
    """State, reason and what happens next."""
    match decision.state:
        case State.OFF:
            return "Off: your GPU is yours."
        case State.LENDING:
            return "Ready to lend."
        case State.FINISHING:
            return "Finishing what runs, then off."
    reason = because(decision.reasons[0], rules)
    until = decision.reasons[0].until
    form = "%d %B" if decision.reasons[0].cause is Cause.CAP else "%a %H:%M"
    ends = f" until {_clock(until, utc_offset, form)}" if until is not None else ""
    more = "" if decision.state is State.AWAY else " The job waits a moment, nothing is lost."
    return f"Paused{ends}: {reason}.{more}"


_BECAUSE = {
    Cause.OWNER: "you asked for a pause",
    Cause.ROOM: "other workloads of the cluster come first ({detail})",
    Cause.GAME: "{detail} is running",
    Cause.IN_USE: "somebody is at the computer; it lends after {rules.idle_minutes} quiet minutes",
    Cause.IDLE_UNKNOWN: "this system does not tell whether somebody is at the computer; "
    "set `cottage node rules --idle 0` to lend all the same",
    Cause.BATTERY: "the computer runs on battery",
    Cause.HOURS: "these are not your lending hours",
    Cause.TEMPERATURE: "the GPU is at {detail} °C; it goes on below {below} °C",
    Cause.VRAM: "your own programs use {detail} GB of the GPU's memory, and {rules.own_vram:g} are kept for them",
    Cause.METERED: "the network costs by the byte",
    Cause.CAP: "this month's data is used up; `cottage node limits --month` changes that",
    Cause.DISK: "only {detail} GB are free on the disk, and {rules.free_disk:g} are to stay free",
}


def because(reason: HeldCause, rules: Rules) -> str:
    """One cause, as the second half of a sentence."""
    below = rules.max_celsius - rules.band_celsius
    return _BECAUSE[reason.cause].format(detail=reason.detail, rules=rules, below=below)


def _clock(at: float, utc_offset: int, form: str) -> str:
    return dt.datetime.fromtimestamp(at, dt.timezone(dt.timedelta(seconds=utc_offset))).strftime(form)
