"""Sums of owners' vectors of which nobody sees more than the sum: pairwise masks, seeds in shares, drop-outs at every phase.

::

    owner                         server
      KeysTold              ->               two X25519 keys, signed by the node key
                            <-    keys       of all who are here: at least ``least_summands``
      SharesTold            ->               of its seed and of its mask key, a share for each other owner, sealed
                            <-    boxes      of those who did so
      MaskedValues          ->               its vector under a mask with each of them, and one of its seed
                            <-    summands   whose vectors came
      ListSigned            ->               "I have seen this list"
                            <-    signatures at least ``least_summands`` of one list
      SharesShown           ->               of who is in the list a share of the seed, of who has gone one of the mask key

A mask of two owners is added by one and taken off by the other, so it is gone from the sum. That of a seed goes once the seed is
put together from shares; so does what those left over who have gone. Seed and mask key of one owner together would show its
vector: no owner shows shares of both, and all show theirs for one and the same list.

Sources: Bonawitz et al., ACM CCS 2017 (ePrint 2017/281), with its consistency check against servers that lie; Shamir, CACM 22
(1979) 612. Primitives are those of ``cryptography``: X25519, HKDF, ChaCha20, ChaCha20-Poly1305, Ed25519.
"""

from protocol.federated.sum_messages import KeysTold, ListSigned, MaskedValues, SharesShown, SharesTold, SumTerms
from protocol.secure_sum.messages import SecureSumError
from protocol.secure_sum.owner import SumOwner
from protocol.secure_sum.server import SumServer

__all__ = [
    "KeysTold",
    "ListSigned",
    "MaskedValues",
    "SecureSumError",
    "SharesShown",
    "SharesTold",
    "SumOwner",
    "SumServer",
    "SumTerms",
]
