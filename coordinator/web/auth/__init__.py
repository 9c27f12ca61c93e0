"""Who a request is from, and whether it may have what it asks for.

A handler says what it needs with ``@public`` or ``@needs(scope)``. One that says nothing is for signed-in people, with
``jobs:read`` for GET and ``jobs:write`` for the rest; ids of jobs and uploads in its path must be the caller's own. So a new
route is closed until somebody opens it.
"""

from coordinator.web.auth.access import Access, access_of, costs, needs, public, shared
from coordinator.web.auth.gate import Auth, budgets_of, owns, principal, visitor

__all__ = [
    "Access",
    "Auth",
    "access_of",
    "budgets_of",
    "costs",
    "needs",
    "owns",
    "principal",
    "public",
    "shared",
    "visitor",
]
