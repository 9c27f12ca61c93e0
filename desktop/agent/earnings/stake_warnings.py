"""What an owner is told before it costs stake another time."""

from desktop.agent.base.activity import Activity
from desktop.agent.errors import GaveUpError
from protocol.task import EVASION_AGAIN_S, EVASION_BPS, TAMPER_AGAIN_S, TAMPER_BPS


def _gave_up(why: str, cause: str, within: float, share: int, **detail: str) -> GaveUpError:
    days, percent = f"{within / 86_400:.0f}", f"{share / 100:g}"
    text = (
        f"{why}. No other job is taken until you switch lending on again. "
        f"Another time within {days} days costs {percent} % of this node's stake"
    )
    return GaveUpError(text, cause, days=days, percent=percent, **detail)


def tampered(what: str) -> GaveUpError:
    """Why no more is to be taken on after somebody reached into a job; ``what``: how."""
    return _gave_up(what, "tampered", TAMPER_AGAIN_S, TAMPER_BPS, what=what)


def unanswered(activity: Activity, now: float, at: float) -> GaveUpError | None:
    """Take note that this computer did not show what was drawn of its work.

    The coordinator says it again at each connection; what the owner was told before is not told again.

    Args:
        at: when, in Unix seconds, as the coordinator names it.
    Returns:
        why no more is to be taken on; None where the owner was told of it before.
    """
    detail = {"when": f"{at:.3f}", "until": f"{at + EVASION_AGAIN_S:.0f}", "percent": f"{EVASION_BPS / 100:g}"}
    if activity.holds("unanswered", detail):
        return None
    what = (
        "this computer was asked to show a piece of its work for an audit, and did not, or showed that it is of another "
        "environment class than it had said: that round is not paid"
    )
    error = _gave_up(what, "unanswered", EVASION_AGAIN_S, EVASION_BPS)
    activity.add(now, "unanswered", str(error), "warning", **detail)
    return error
