"""A secure sum as a round's exchange of a federated job: what coordinator and owners' nodes say to each other, in order.

::

    coordinator                     owner's node
      SumStep(SumBegins)     ->                             with the round, while its worker trains
                             <-     SumSaid(KeysTold)
      SumStep(KeysOfAll)     ->
                             <-     SumSaid(SharesTold)
      SumStep(BoxesOfAll)    ->                             its worker has trained: the update is masked and stored
                             <-     SumSaid(VectorStored)
      SumStep(SummandsOfAll) ->
                             <-     SumSaid(ListSigned)
      SumStep(SignedByAll)   ->
                             <-     SumSaid(SharesShown)
      ApplyRound(total)      ->                             the sum, an artifact

A round has one sum. One that is done again has another name, other keys and other masks.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from protocol.federated.sum_messages import (
    MAX_LENGTH,
    MAX_SUMMANDS,
    KeysTold,
    ListSigned,
    SharesShown,
    SharesTold,
    SumTerms,
)
from protocol.ids import Count, Digest, JobId, NodeAddress, RoundIndex
from protocol.job.federated import FederatedSpec


class SumBegins(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="begins"):
    """``length``: values of each vector."""

    length: Annotated[int, Meta(ge=1, le=MAX_LENGTH)]


class KeysOfAll(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="all_keys"):
    told: Annotated[tuple[KeysTold, ...], Meta(max_length=MAX_SUMMANDS)]


class BoxesOfAll(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="all_boxes"):
    """``boxes``: for who is told, by who sealed them."""

    boxes: Annotated[dict[NodeAddress, Annotated[bytes, Meta(max_length=256)]], Meta(max_length=MAX_SUMMANDS)]


class SummandsOfAll(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="all_summands"):
    summands: Annotated[tuple[NodeAddress, ...], Meta(max_length=MAX_SUMMANDS)]


class SignedByAll(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="all_signed"):
    signed: Annotated[tuple[ListSigned, ...], Meta(max_length=MAX_SUMMANDS)]


class VectorStored(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="vector"):
    """``artifact``: little-endian uint32, masked; None: what was named was not stored under the lease."""

    owner: NodeAddress
    artifact: Digest | None


SumAsked = SumBegins | KeysOfAll | BoxesOfAll | SummandsOfAll | SignedByAll
SumAnswer = KeysTold | SharesTold | VectorStored | ListSigned | SharesShown


class SumStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="sum_step"):
    """For the agent of an owner, which alone has the key to sign with."""

    epoch: Count
    round: RoundIndex
    body: SumAsked


class SumSaid(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="sum_said"):
    """Each answer once; the agent's, too."""

    epoch: Count
    round: RoundIndex
    body: SumAnswer


def terms_of(job: JobId, federated: FederatedSpec, epoch: int, number: int, length: int) -> SumTerms:
    """Those of a round's sum: its roster are the owners that the job's document invites, in that order."""
    return SumTerms(f"{job}:{epoch}:{number}", federated.owners, length, federated.least_owners)
