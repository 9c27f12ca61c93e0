"""Array jobs as the interface shows them."""

from typing import Literal

import msgspec

from common.untrusted_text import Untrusted, View
from protocol.ids import Digest, NodeAddress

ElementStateName = Literal["waiting", "running", "done", "failed"]


class ArrayView(msgspec.Struct, frozen=True):
    """How an array job stands.

    Attributes:
        count: elements. ``done``: those whose result holds; ``failed``: those that have none, and will have none.
        nodes: that run elements now. ``starting``: that fetch the image.
        runs: of elements that were paid, or will be. ``checked``: that more than one owner made.
        wrong: results, and verdicts about them, that other owners contradicted.
        looked: verdicts of the array's checker that hold. ``refused``: results that it refused, where it took another's.
    """

    count: int
    done: int
    failed: int
    nodes: int
    starting: int
    runs: int
    checked: int
    wrong: int
    looked: int = 0
    refused: int = 0


class ElementView(View, frozen=True):
    """What became of an element.

    Attributes:
        number: its place among those that have ended, in the order in which they did, from 1.
        result: SHA-256 of its result's archive, once it is done; ``size`` in bytes, ``files`` in it.
        seconds: that it took. ``runs``: how often it has been run to an end.
        code: exit code of its command, where that ended by itself.
        reason: why it failed. ``tail``: of its log, of one that is not done.
        nodes: whose results hold.
    """

    index: int
    name: Untrusted
    state: ElementStateName
    number: int = 0
    result: Digest | None = None
    size: int = 0
    files: int = 0
    seconds: float = 0.0
    runs: int = 0
    code: int | None = None
    reason: Untrusted = Untrusted("")
    tail: tuple[Untrusted, ...] = ()
    nodes: tuple[NodeAddress, ...] = ()
