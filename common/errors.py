"""The errors of two machines talking.

::

    TransportError
    ├── IdentityError
    │   ├── BadAddressError         a text is not the address of a node
    │   │   └── WalletAddressError  a text is not the address of a wallet that can be paid
    │   │       └── SecretPastedError   it is the secret of one, which must go nowhere
    │   ├── BadSignatureError       a signature does not fit key, context and content
    │   └── KeyFileError            a key file cannot be used, or would be overwritten
    ├── MerkleError                 a leaf, index or count that no tree can hold
    ├── SignalError                 an envelope from the signalling server is refused (``reason`` names the rule)
    ├── IceConfigError              the address or secret of a STUN or TURN server is unusable
    ├── UrlError                    a text is not the address of a server
    ├── InvitationError             a text is neither an invitation to a network nor the address of one (``fault`` names the rule)
    ├── SealedFileError             an encrypted file was changed, cut, or belongs to another key
    ├── MessageLimitError           the caller hands over more than a message may hold
    ├── LinkError
    │   ├── MalformedFrameError     the peer broke the framing; its link closes
    │   └── ConnectError            no link came up in this attempt
    └── PeerError
        ├── PeerNotAllowedError     the peer is not in the plan
        ├── PeerUnreachableError    no acknowledgement in time
        ├── DeliveryFailedError     the peer has the message but could not take it
        ├── StreamBrokenError       a stream cannot go on where it was
        └── MessageRefusedError     raised by a handler: what the sender is told
"""


class TransportError(Exception):
    """Any failure of talking to another machine."""


class IdentityError(TransportError):
    """A key, address or signature is unusable."""


class BadAddressError(IdentityError):
    """A text is not the address of a node."""


class WalletAddressError(BadAddressError):
    """A text is not the address of a wallet that can be paid. The message does not repeat it."""


class SecretPastedError(WalletAddressError):
    """A text is the secret of a wallet, pasted by mistake: it must not be shown again, kept or sent."""


class BadSignatureError(IdentityError):
    """A signature does not fit key, context and content."""


class KeyFileError(IdentityError):
    """A key file cannot be read, written or trusted."""


class MerkleError(TransportError):
    """A leaf, index or count that no tree can hold."""


class SealedFileError(TransportError):
    """An encrypted file was changed, cut, or belongs to another key."""


class SignalError(TransportError):
    """An envelope from the signalling server is refused.

    Attributes:
        reason: one word for counters and tests, such as ``expired`` or ``replayed``.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"signal refused ({reason}): {detail}")
        self.reason = reason


class IceConfigError(TransportError):
    """The address or secret of a STUN or TURN server is unusable."""


class UrlError(TransportError):
    """A text is not the address of a server."""


class InvitationError(TransportError):
    """A text is neither an invitation to a network nor the address of one.

    Attributes:
        fault: which rule it breaks, in a word (``common.invitations.Fault``).
    """

    def __init__(self, text: str, fault: str) -> None:
        super().__init__(text)
        self.fault = fault


class MessageLimitError(TransportError):
    """A message is larger than the transport carries."""


class LinkError(TransportError):
    """A link cannot be made or kept."""


class MalformedFrameError(LinkError):
    """The peer sent bytes that break the framing."""


class ConnectError(LinkError):
    """No link came up in this attempt."""


class PeerError(TransportError):
    """A message did not reach its peer."""


class PeerNotAllowedError(PeerError):
    """The peer is not among those that the plan names."""


class PeerUnreachableError(PeerError):
    """The peer did not acknowledge in time."""


class DeliveryFailedError(PeerError):
    """The peer received the message and could not take it."""


class StreamBrokenError(PeerError):
    """A stream cannot go on where it was: its producer failed it, or one side no longer has what the other lacks."""


class MessageRefusedError(PeerError):
    """Raised by a handler that will not take a message; the sender gets the text in its DeliveryFailedError."""
