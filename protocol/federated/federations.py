"""How an owner's node and the coordinator speak of a federated job, over the node's own connection, which proves its key.

node                       coordinator
  FederationWish           ->                      look at it; join, to exactly the terms that were looked at; leave
                      <-    FederationTold    what is asked, and how it stands; or why this node has no part in it
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from common.untrusted_text import Told, Untrusted, View
from protocol.ids import Count, Digest, JobId, LongText
from protocol.job.document_digest import document_digest
from protocol.job.federated import MAX_OWNERS
from protocol.job.job import JobSpec
from protocol.rest.api import JobStateName
from protocol.rest.dataset import Finding

MAX_FINDINGS = 200  # The worst come first.


class FederationWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="owner_wish"):
    """What an owner wants of a federated job.

    Attributes:
        terms: ``terms_digest`` of what its owner has seen; to join, it has to be the job's.
        rows: of the data, where its owner wants that to be told.
    """

    job: JobId
    what: Literal["look", "join", "leave"]
    terms: Digest | None = None
    rows: Count | None = None


class FederationTold(Told, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="federation"):
    """What the coordinator says of a federated job.

    Attributes:
        problem: why the node has no part in it, or the wish could not be granted; empty: all is well.
        spec: the job's document.
        parameters: of the model. ``owners``: how many have joined; ``joined``: this node has.
    """

    job: JobId
    problem: LongText = Untrusted("")
    spec: JobSpec | None = None
    state: JobStateName | None = None
    parameters: Count = 0
    owners: Annotated[int, Meta(ge=0, le=MAX_OWNERS)] = 0
    joined: bool = False
    rounds_done: Count = 0


class OwnDataReport(View, frozen=True):
    """What an owner's data holds, as its check has found it: for that owner alone.

    Attributes:
        rows: in all files; ``usable``: those that can be learnt from.
        tokens: that a tokenizer of bytes makes of it; 0: the check does not say.
        problem: why it cannot be learnt from as it is, and the way out; empty where it can.
    """

    files: int
    bytes: int
    rows: int
    usable: int
    characters: int
    findings: Annotated[tuple[Finding, ...], Meta(max_length=MAX_FINDINGS)] = ()
    problem: Untrusted = Untrusted("")
    tokens: int = 0


def terms_digest(spec: JobSpec) -> Digest:
    """SHA-256 of what an owner agrees to: all of the document but its budget, in hexadecimal."""
    return document_digest(msgspec.structs.replace(spec, budget=1))
