"""What can go wrong in a relay; the tree is drawn in the package's docstring."""

from collections.abc import Sequence

from common.errors import TransportError


class RelayError(TransportError):
    """A relay cannot serve."""


class OptionsError(RelayError):
    """An option of the operator cannot be used."""


class ListenError(RelayError):
    """An address or port cannot be used."""


class AnnounceError(RelayError):
    """The coordinator refuses the relay or cannot be reached."""


class CoturnError(RelayError):
    """Debian's relay is not there, or ended."""


class MalformedMessageError(RelayError):
    """Bytes are no STUN message."""


class CredentialError(RelayError):
    """A user name is malformed, expired or unknown."""


class RequestRefusedError(RelayError):
    """A request is answered with an error.

    Attributes:
        code: of RFC 8489 section 14.8 and RFC 8656 section 19.
        reason: a few words for whoever reads the client's log.
        unknown: with 420, the attributes that were not understood.
    """

    def __init__(self, code: int, reason: str, unknown: Sequence[int] = ()) -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        self.reason = reason
        self.unknown = unknown
