"""A prover that is away while something is drawn of it: the audit's time stands still, for so long in sum and no longer.

::

    here --(its line is away, it crashed)--> away --(back in time, with its worker)--> here: all that was due is due later by as
                                              |                                              long; after a crash that worker is
                                              |                                              another one, made of records
                                              +--(too long in sum, or back without)--> it has left

Who leaves on purpose gains nothing by it: nothing of it is paid meanwhile, and what it had committed to stays as it is.
"""

import msgspec

from coordinator.domain.audits.trust import Audit

NOTED_S = 10.0  # So often an absence is noted, so that a coordinator that begins anew, again and again, knows of it.


def seen(audit: Audit, *, here: bool, now: float, most: float) -> Audit:
    """The audit after a look at whether its prover is here.

    Args:
        most: seconds for which its time stands still, in sum.
    """
    if audit.away is None:
        return audit if here else msgspec.structs.replace(audit, away=now)
    if not here and now - audit.away < NOTED_S:
        return audit
    stood = _stands(audit, now, most)
    return msgspec.structs.replace(
        audit,
        away=None if here else now,
        absent=absence(audit, now),
        asked=audit.asked + stood,
        deadline=audit.deadline + stood,
    )


def absence(audit: Audit, now: float) -> float:
    """For how many seconds the prover has been away in sum."""
    return audit.absent + (0.0 if audit.away is None else max(0.0, now - audit.away))


def over(audit: Audit, now: float, most: float) -> bool:
    """Whether a prover that has nothing but its return left has been away for too long."""
    return audit.away is not None and absence(audit, now) >= most


def due(audit: Audit, now: float, most: float) -> float:
    """The deadline as it is by now: later by as long as the prover that is away just now may be."""
    return audit.deadline + _stands(audit, now, most)


def again(audit: Audit, now: float, deadline: float) -> Audit:
    """The audit after the coordinator itself was away, which is nobody's absence: all of its time begins anew."""
    away = None if audit.away is None else now
    return msgspec.structs.replace(audit, asked=now, deadline=deadline, away=away)


def _stands(audit: Audit, now: float, most: float) -> float:
    """For how long of the present absence the time stands still."""
    gone = absence(audit, now) - audit.absent
    return min(gone, max(0.0, most - audit.absent))
