"""Bounded scalars of the wire: whoever holds one of these need not check it again."""

import re
from typing import Annotated, Final, NewType

from msgspec import Meta

from common.untrusted_text import Untrusted

NodeAddress = Annotated[str, Meta(min_length=32, max_length=44, pattern=r"^[1-9A-HJ-NP-Za-km-z]+$")]
"""Base58 of the 32 bytes of an Ed25519 public key: a node, an owner, a wallet."""

ID_PATTERN: Final = r"^[0-9a-f]{32}$"
"""How every id looks that the coordinator gives: jobs, leases, audits, uploads."""

JobId = Annotated[str, Meta(pattern=ID_PATTERN)]
LeaseId = Annotated[str, Meta(pattern=ID_PATTERN)]
InvitationCode = Annotated[str, Meta(max_length=64, pattern=r"^[1-9A-HJ-NP-Za-km-z]*$")]
"""What lets a machine in that was invited; empty: it has none."""

TraceParent = Annotated[str, Meta(max_length=55, pattern=r"^(00-[0-9a-f]{32}-[0-9a-f]{16}-0[01])?$")]
"""Of what a message is a part (W3C Trace Context, traceparent); empty: nobody follows it."""

AuditId = Annotated[str, Meta(pattern=ID_PATTERN)]
UploadId = Annotated[str, Meta(pattern=ID_PATTERN)]

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
NOT_SENT = "0" * 64
"""What a document that is only priced names in the place of weights that are not sent yet; no file has this digest."""
"""SHA-256 in hexadecimal: the name of an artifact, the root of a Merkle tree, the hash of a state."""

Fence = Annotated[int, Meta(ge=1, le=2**63 - 1)]
"""Grows with each new holder of the same work: a stale holder's writes are refused."""

Micro = NewType("Micro", int)
"""Smallest unit of the token: a millionth."""

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
StageIndex = Annotated[int, Meta(ge=0, lt=256)]
ReplicaIndex = Annotated[int, Meta(ge=0, lt=1024)]
RoundIndex = Annotated[int, Meta(ge=0, lt=2**31)]
StepIndex = Annotated[int, Meta(ge=0, lt=2**31)]
ShortText = Annotated[Untrusted, Meta(max_length=200, pattern=r"^[^\x00]*$")]
"""Text of others, on one line: the Struct that has it is a ``Told``, and so makes it safe to show."""

Mark = Annotated[str, Meta(max_length=200, pattern=r"^[ -~]*$")]
"""What machines read and compare, and people now and then: an address, a version, a class. Visible ASCII, or refused."""

LongText = Annotated[Untrusted, Meta(max_length=4000, pattern=r"^[^\x00]*$")]
MAX_LOSS = 1e9  # Nats a token; a guess without any knowledge has 12.
FiniteLoss = Annotated[float, Meta(ge=-MAX_LOSS, le=MAX_LOSS)]


def is_id(text: str) -> bool:
    """Whether ``text`` can be the id of a job, lease, audit or upload."""
    return re.fullmatch(ID_PATTERN, text) is not None
