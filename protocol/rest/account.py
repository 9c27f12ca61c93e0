"""Accounts in the REST interface. Times are Unix seconds."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from common.untrusted_text import Untrusted, View

ScopeName = Literal["jobs:read", "jobs:write", "data:write", "account", "operate"]


class AccountView(View, frozen=True):
    """Who the request is from, and what it may do. ``open``: the coordinator has no sign-in."""

    id: str
    name: str
    role: Literal["operator", "submitter"]
    scopes: tuple[str, ...]
    open: bool


class NewKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``days`` until it expires; None: never."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    scopes: Annotated[tuple[ScopeName, ...], Meta(min_length=1, max_length=5)] = (
        "jobs:read",
        "jobs:write",
        "data:write",
    )
    days: Annotated[int, Meta(ge=1, le=3650)] | None = 90


class KeyView(View, frozen=True):
    """An API key. ``text`` is there in the answer that makes it, and never again."""

    id: str
    name: Untrusted
    scopes: tuple[str, ...]
    created: float
    expires: float | None
    used: float | None
    text: str = ""


class SessionView(View, frozen=True):
    """A browser that is signed in."""

    id: str
    method: str
    agent: Untrusted
    address: str
    created: float
    seen: float


class TrailView(View, frozen=True):
    """Something that was done. ``via``: how who did it was known; ``address``: where the request came from."""

    id: int
    account: str
    time: float
    action: str
    subject: str
    via: str
    address: str
