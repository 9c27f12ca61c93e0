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


def because(reason: HeldCause, rules: Rules) -> str:
    """One cause, as the second half of a sentence."""
    match reason.cause:
        case Cause.OWNER:
            return "you asked for a pause"
        case Cause.GAME:
            return f"{reason.detail} is running"
        case Cause.IN_USE:
            return f"somebody is at the computer; it lends after {rules.idle_minutes} quiet minutes"
        case Cause.IDLE_UNKNOWN:
            return (
                "this system does not tell whether somebody is at the computer; "
                "set `cottage node rules --idle 0` to lend all the same"
            )
        case Cause.BATTERY:
            return "the computer runs on battery"
        case Cause.HOURS:
            return "these are not your lending hours"
        case Cause.TEMPERATURE:
            return f"the GPU is at {reason.detail} °C; it goes on below {rules.max_celsius - rules.band_celsius} °C"
        case Cause.VRAM:
            return f"your own programs use {reason.detail} GB of the GPU's memory, and {rules.own_vram:g} are kept for them"
        case Cause.METERED:
            return "the network costs by the byte"
        case Cause.CAP:
            return "this month's data is used up; `cottage node limits --month` changes that"
        case Cause.DISK:
            return f"only {reason.detail} GB are free on the disk, and {rules.free_disk:g} are to stay free"


def _clock(at: float, utc_offset: int, form: str) -> str:
    return dt.datetime.fromtimestamp(at, dt.timezone(dt.timedelta(seconds=utc_offset))).strftime(form)
