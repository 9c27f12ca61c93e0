"""What an owner is told before it costs stake another time."""

from desktop.agent.activity import Activity
from transport.wire.task import EVASION_AGAIN_S, EVASION_BPS, TAMPER_AGAIN_S, TAMPER_BPS


def _again(within: float, share: int) -> str:
    days = f"{within / 86_400:.0f} days"
    return (
        "No other job is taken until you switch lending on again. "
        f"Another time within {days} costs {share / 100:g} % of this node's stake"
    )


AFTER_TAMPERING = _again(TAMPER_AGAIN_S, TAMPER_BPS)
AFTER_SILENCE = _again(EVASION_AGAIN_S, EVASION_BPS)


def unanswered(activity: Activity, now: float, at: float) -> str:
    """Take note that this computer did not show what was drawn of its work.

    The coordinator says it again at each connection; what the owner was told before is not told again.

    Args:
        at: when, in Unix seconds, as the coordinator names it.
    Returns:
        why no more is to be taken on; "" where the owner was told of it before.
    """
    detail = {"when": f"{at:.3f}", "until": f"{at + EVASION_AGAIN_S:.0f}", "percent": f"{EVASION_BPS / 100:g}"}
    if activity.holds("unanswered", detail):
        return ""
    text = (
        "this computer was asked to show a piece of its work for an audit, and did not, or showed that it is of another "
        f"environment class than it had said: that round is not paid. {AFTER_SILENCE}"
    )
    activity.add(now, "unanswered", text, "warning", **detail)
    return text
