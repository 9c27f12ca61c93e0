"""Sealed envelopes: how two nodes agree on a link through a coordinator that need not be trusted.

The coordinator carries offers, answers and requests for an offer. Each is signed by the node key over its exact bytes and names
both nodes, the DTLS fingerprint, a nonce and an expiry; an answer also names the offer that it answers. The coordinator can drop
an envelope, and nothing else.
"""

import secrets
from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from common.errors import BadAddressError, BadSignatureError, SignalError
from protocol.codec import MessageError, decode, encode
from protocol.identity import SIGNATURE_BYTES, NodeKey, verify
from protocol.ids import NodeAddress
from transport.ice.sdp import MAX_SDP, Description, read_description

CONTEXT = "cottage/signal/1"
VERSION = 2  # Of all that two peers say to each other; in 2 frames carry CRC-32C.
MAX_ENVELOPE = MAX_SDP + 4096  # The description and everything around it.
LIFETIME_S = 60  # Gathering, two hops and a relay's allocation take seconds; a minute forgives a busy coordinator.
MAX_SKEW_S = 120  # Clocks of home PCs are minutes off now and then.
MAX_REMEMBERED = 256  # Nonces of one sender within the five minutes that they are kept; backoff makes far fewer.

Nonce = Annotated[bytes, Meta(min_length=16, max_length=16)]


class SignalKind(StrEnum):
    """What an envelope is."""

    OFFER = "offer"
    ANSWER = "answer"
    REQUEST = "request"
    UPGRADE = "upgrade"


class SignalBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is signed.

    Attributes:
        session: numbers of messages count within it: a new one after every restart, and when a peer is allowed anew.
        nonce: names this envelope.
        reply_to: the nonce of the offer or upgrade that an answer answers, or of the last one that a request's sender has seen.
        floor: the sender's messages with smaller ids are settled.
        sdp: empty in a request.
    """

    version: Annotated[int, Meta(ge=1, le=255)]
    kind: SignalKind
    sender: NodeAddress
    recipient: NodeAddress
    session: Nonce
    nonce: Nonce
    reply_to: Annotated[bytes, Meta(max_length=16)]
    expires: Annotated[int, Meta(ge=0, lt=2**53)]
    floor: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    fingerprint: Annotated[bytes, Meta(max_length=32)]
    sdp: Annotated[str, Meta(max_length=MAX_SDP)]


class SignalEnvelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A body as the very bytes that were signed, and the signature."""

    body: Annotated[bytes, Meta(max_length=MAX_ENVELOPE)]
    signature: Annotated[bytes, Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]


@dataclass(frozen=True)
class Opened:
    """An envelope that stood every check.

    Attributes:
        description: None in a request.
    """

    body: SignalBody
    description: Description | None


def seal(
    key: NodeKey,
    kind: SignalKind,
    recipient: str,
    *,
    session: bytes,
    now: float,
    floor: int,
    reply_to: bytes = b"",
    description: Description | None = None,
    nonce: bytes | None = None,
) -> bytes:
    """Build and sign an envelope; ``SignalBody`` explains the parts.

    Args:
        now: unix seconds.
        description: none in a request.
        nonce: 16 bytes that the caller has drawn; by default fresh ones.
    """
    body = SignalBody(
        version=VERSION,
        kind=kind,
        sender=key.address,
        recipient=recipient,
        session=session,
        nonce=nonce or secrets.token_bytes(16),
        reply_to=reply_to,
        expires=int(now) + LIFETIME_S,
        floor=floor,
        fingerprint=description.fingerprint if description else b"",
        sdp=description.text if description else "",
    )
    raw = encode(body)
    return encode(SignalEnvelope(raw, key.sign(CONTEXT, raw)))


class EnvelopeReader:
    """Opens envelopes that are meant for one node, each once."""

    def __init__(self, address: str, *, loopback: bool) -> None:
        """Take the node's own address, and whether loopback candidates are welcome."""
        self._address = address
        self._loopback = loopback
        self._seen: dict[str, OrderedDict[bytes, float]] = {}

    def open(self, sender: str, data: bytes, now: float) -> Opened:
        """Check an envelope that the coordinator says is from ``sender``.

        Args:
            now: unix seconds.
        Raises:
            SignalError: its ``reason`` is one of malformed, version, sender, signature, recipient, expired, replayed, sdp, size,
                fingerprint, overload.
        """
        body = self._verified(sender, data)
        if body.recipient != self._address:
            raise SignalError("recipient", f"it is for {body.recipient}, not for {self._address}")
        if not now - MAX_SKEW_S <= body.expires <= now + LIFETIME_S + MAX_SKEW_S:
            raise SignalError("expired", f"its time is over, or the clocks differ by more than {MAX_SKEW_S} s")
        description = self._described(body)
        self._remember(body, now)
        return Opened(body, description)

    def forget(self, sender: str) -> None:
        """Free what is remembered of a node that may no longer connect."""
        self._seen.pop(sender, None)

    def _verified(self, sender: str, data: bytes) -> SignalBody:
        try:
            envelope: SignalEnvelope = decode(data, SignalEnvelope, MAX_ENVELOPE)
            body: SignalBody = decode(envelope.body, SignalBody, MAX_ENVELOPE)
        except MessageError as error:
            raise SignalError("malformed", str(error)) from None
        if body.version != VERSION:
            raise SignalError(
                "version", f"version {body.version}; this node speaks {VERSION}: update the older of the two"
            )
        if body.sender != sender:
            raise SignalError("sender", f"delivered as from {sender}, but made by {body.sender}")
        try:
            verify(body.sender, envelope.signature, CONTEXT, envelope.body)
        except (BadSignatureError, BadAddressError) as error:
            raise SignalError("signature", str(error)) from None
        return body

    def _described(self, body: SignalBody) -> Description | None:
        if body.kind is SignalKind.REQUEST:
            if body.sdp or body.fingerprint:
                raise SignalError("sdp", "a request carries no session description")
            return None
        description = read_description(body.sdp, loopback=self._loopback)
        if description.fingerprint != body.fingerprint:
            raise SignalError("fingerprint", "the signed fingerprint is not the one in the session description")
        return description

    def _remember(self, body: SignalBody, now: float) -> None:
        seen = self._seen.setdefault(body.sender, OrderedDict())
        while seen and next(iter(seen.values())) < now:
            seen.popitem(last=False)
        if body.nonce in seen:
            raise SignalError("replayed", f"this {body.kind.value} was opened before")
        if len(seen) >= MAX_REMEMBERED:
            raise SignalError("overload", f"more than {MAX_REMEMBERED} envelopes by {body.sender} within minutes")
        seen[body.nonce] = now + LIFETIME_S + 2 * MAX_SKEW_S
