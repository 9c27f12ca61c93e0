"""What a handler needs, said beside the handler."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from coordinator.domain.account import Scope
from coordinator.services.accounts.budgets import CHANGES, RateBudget

H = TypeVar("H", bound=Callable[..., Any])
_MARK: Final = "cottage_access"
_COST: Final = "cottage_cost"


@dataclass(frozen=True)
class Access:
    """``public``: for everybody. ``shared``: for everybody where the job is. ``scope``: None: what its method suggests."""

    public: bool = False
    shared: bool = False
    scope: Scope | None = None


_DEFAULT: Final = Access()


def public(handler: H) -> H:
    """For everybody. A handler whose caller proves who it is in another way (a node's token, a signature) is public too."""
    setattr(handler, _MARK, Access(public=True))
    return handler


def shared(handler: H) -> H:
    """For everybody where the job in the path is shared, else for its owner."""
    setattr(handler, _MARK, Access(shared=True))
    return handler


def needs(scope: Scope) -> Callable[[H], H]:
    """For whoever is signed in and has ``scope``."""

    def mark(handler: H) -> H:
        setattr(handler, _MARK, Access(scope=scope))
        return handler

    return mark


def costs(rate: RateBudget | None, amount: float = 1.0) -> Callable[[H], H]:
    """What a request of an account is counted as; None: nothing here. Unless a handler says so, a change counts as one."""

    def mark(handler: H) -> H:
        setattr(handler, _COST, (rate, amount))
        return handler

    return mark


def cost_of(handler: Any, changes: bool) -> tuple[RateBudget | None, float]:
    """As what a request is counted, and how often."""
    found: tuple[RateBudget | None, float] = getattr(handler, _COST, (CHANGES if changes else None, 1.0))
    return found


def access_of(handler: Any) -> Access:
    """What was said about a handler."""
    found: Access = getattr(handler, _MARK, _DEFAULT)
    return found
