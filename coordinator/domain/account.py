"""Accounts: who somebody is, and what a caller who has proven it may do."""

import enum
from collections.abc import Mapping

import msgspec

LOCAL_ACCOUNT = "0" * 32
"""The built-in account. It owns everything of an open coordinator, and the first who signs up becomes it: nothing is lost."""


class Role(enum.StrEnum):
    """Kinds of accounts."""

    OPERATOR = "operator"
    SUBMITTER = "submitter"


class Scope(enum.StrEnum):
    """What an API key may be limited to."""

    JOBS_READ = "jobs:read"
    JOBS_WRITE = "jobs:write"
    DATA_WRITE = "data:write"
    ACCOUNT = "account"
    OPERATE = "operate"


SCOPE_WORDS: Mapping[Scope, str] = {
    Scope.JOBS_READ: "see jobs, their curves, logs and models",
    Scope.JOBS_WRITE: "submit, fund, pause and cancel jobs",
    Scope.DATA_WRITE: "upload datasets, weights and tokenizers",
    Scope.ACCOUNT: "change the account: keys, sign-in, webhooks",
    Scope.OPERATE: "operate the coordinator: nodes, everybody's jobs and trail, metrics",
}

ROLE_SCOPES: Mapping[Role, frozenset[Scope]] = {
    Role.OPERATOR: frozenset(Scope),
    Role.SUBMITTER: frozenset(Scope) - {Scope.OPERATE},
}


class Account(msgspec.Struct, frozen=True):
    """Somebody who has jobs.

    Attributes:
        name: unique whatever its capitals; ``key`` is how it is compared.
        password: argon2id in PHC format; empty: signs in with a wallet or a passkey.
    """

    id: str
    name: str
    key: str
    role: Role
    created: float
    password: str = ""
    disabled: bool = False
    version: int = 0


class Principal(msgspec.Struct, frozen=True):
    """Who a request is from. ``session``: the browser's; ``key``: the API key's id; both empty on an open coordinator."""

    account_id: str
    scopes: frozenset[Scope]
    name: str = ""
    role: Role = Role.SUBMITTER
    session: str = ""
    key: str = ""


LOCAL_PRINCIPAL = Principal(LOCAL_ACCOUNT, ROLE_SCOPES[Role.OPERATOR], "", Role.OPERATOR)
"""Everybody who reaches the port of an open coordinator."""
