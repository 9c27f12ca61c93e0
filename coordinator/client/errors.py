"""Errors of the client.

ClientError
├── ProblemError       the coordinator refused; ``code``, ``detail`` and ``field`` are its own, ``status`` is HTTP's
├── AddressError       the text is not the address of a coordinator; also a ValueError
├── UnreachableError   no answer, or none that a coordinator gives; also a ConnectionError
│   └── SilentError    it takes the question and says nothing
└── ArchiveError       a model archive that is damaged or would write outside its folder
"""

from common import terminal


def complain(error: Exception, status: int) -> int:
    """Say on the terminal why a command cannot go on; returns its exit status."""
    terminal.complain("cottage", error)
    return status


class ClientError(Exception):
    """Base of everything that the client raises."""


class ProblemError(ClientError):
    """The coordinator's answer to what it could not do. ``retry_after``: seconds after which it asks to be asked again."""

    def __init__(self, status: int, code: str, detail: str, field: str = "", retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.field = field
        self.retry_after = retry_after


class CoordinatorAddressError(ClientError, ValueError):
    """What was given as the coordinator's address is none."""


class UnreachableError(ClientError, ConnectionError):
    """The coordinator does not answer at this address; a ConnectionError too, for those who wait for it to come back."""


class SilentError(UnreachableError):
    """The coordinator, or what has its address, takes the question and does not answer in time."""


class ArchiveError(ClientError):
    """The archive is not what the coordinator said, or not safe to unpack."""
