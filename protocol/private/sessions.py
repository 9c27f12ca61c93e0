"""Private sessions: a client and a node talk over a WebRTC channel of their own, and the coordinator is told counts.

    client                     coordinator                  node
      NewPrivateSession   ->
                          <-     PrivateSession             which node, its key, relays, how many tokens
      sealed offer        ->     PrivateOffer       ->      with the ticket, over the node's own connection
                          <-     PrivateAnswer      <-      sealed answer, or why not
      ======================= DTLS between client and node ======================
      GenerateCommand, CancelCommand   ------------------>  JSON, cut into frames
      <------------------  TextReport, AnsweredReport, RefusedReport
      SignedCounts   ------------------------------------>
                                 PrivateCounts      <-      what the client has signed

The envelopes are ``transport.peer.signalling``'s. Their ``session`` is the session's id.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from common.untrusted_text import Told, Untrusted
from protocol.ids import ID_PATTERN, Count, Fence, JobId, LeaseId, NodeAddress, ShortText
from protocol.serving import AnsweredReport, CancelCommand, GenerateCommand, RefusedReport, TextReport

MAX_SEALED = 128 << 10  # An SDP of 64 KB, signed.
FRAME_BYTES = 16 << 10  # Of a data channel's message; every browser takes as much.
OPEN_S = 60  # For the offer, once the session is granted.
LIFE_S = 3600.0  # Of a session; then the client asks for another one.
SESSION_TOKENS = 1 << 20  # Of prompts and answers, in a session.
SIGN_EVERY = 64  # Tokens of answers after which a client signs.
MAX_UNSIGNED = 256  # Tokens of answers that a node tells without a signature.
MAX_ANSWERS = 4  # Of a session at a time.
MESSAGE_TOKENS, TEMPLATE_TOKENS = 32, 512  # That a chat template may put around each message, and before all of them.
MARK = "private:"  # How the names of private requests begin, at a node's worker; no others do.
REFUSED_SESSION = "session"  # A ``RefusedReport`` of this name is about the session, which is over.

PrivateId = Annotated[str, Meta(pattern=ID_PATTERN)]
SealedEnvelope = Annotated[bytes, Meta(max_length=MAX_SEALED)]


class PrivateTicket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a node is told of a session.

    Attributes:
        client: the key that the client has made for this session.
        tokens: of prompts and answers, at most. ``expires``: Unix seconds until which its offer is taken.
    """

    session: PrivateId
    job: JobId
    client: NodeAddress
    tokens: Annotated[int, Meta(ge=1, le=SESSION_TOKENS)]
    expires: Annotated[int, Meta(ge=0, lt=2**53)]


class SignedCounts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="counts"):
    """What a node has done in a session so far, as its client has counted and signed it (``protocol.private.signed_counts``).

    Attributes:
        answers: that have ended. ``prompt``: tokens of their prompts. ``tokens``: of all answers, also of those under way.
    """

    answers: Count
    prompt: Count
    tokens: Count
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]

    def follows(self, other: "SignedCounts | None") -> bool:
        """Whether nothing in it is less than in an earlier one."""
        return other is None or (
            self.answers >= other.answers and self.prompt >= other.prompt and self.tokens >= other.tokens
        )


FromClient = GenerateCommand | CancelCommand | SignedCounts
FromNode = TextReport | AnsweredReport | RefusedReport


def prompt_bound(command: GenerateCommand) -> int:
    """Tokens that a request's prompt has at most: one for each byte, and what a template puts around each message."""
    texts = (command.prompt, command.messages, command.tools, command.words)
    return len(msgspec.json.encode(texts)) + MESSAGE_TOKENS * len(command.messages) + TEMPLATE_TOKENS


# --- coordinator and node -----------------------------------------------------------------------------------------------


class PrivateOffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="private_offer"):
    """To the node: a client wants to talk, under this lease. The envelope is sealed by the ticket's client."""

    lease: LeaseId
    fence: Fence
    ticket: PrivateTicket
    envelope: SealedEnvelope


class PrivateAnswer(Told, frozen=True, forbid_unknown_fields=True, tag="private_answer"):
    """From the node: its sealed answer; empty: it does not talk, for this ``reason``."""

    session: PrivateId
    envelope: SealedEnvelope = b""
    reason: ShortText = Untrusted("")


class PrivateCounts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="private_counts"):
    """From the node: the newest counts that a session's client has signed. The same may come several times."""

    session: PrivateId
    counts: SignedCounts
