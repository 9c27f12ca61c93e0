"""Signs of life from a path: STUN checks on the nominated pair, answered by the peer's ICE whatever its SCTP is doing.

The answer also names the address from which the peer saw the probe come. When that changes, a router in between has given this
home another one, and what the peer sends to the old one is lost from now on.
"""

from collections import OrderedDict
from typing import Any

from aioice import stun

from common.urls import join

MAX_PENDING = 32  # Three seconds of probes in doubt; older answers tell nothing new.


class _Pending:
    """What aioice tells an answer to; a transaction without a timer."""

    def __init__(self, probe: "PathProbe", nonce: bytes) -> None:
        self._probe = probe
        self._nonce = nonce

    def response_received(self, message: stun.Message, addr: tuple[str, int]) -> None:
        """Called by aioice's protocol for every message with this transaction's id."""
        self._probe.take(self._nonce, message, addr)


class PathProbe:
    """Probes one nominated pair."""

    def __init__(self, connection: Any) -> None:
        """Take aioice's connection, with a nominated pair."""
        self._connection = connection
        self._pair = connection._nominated[1]
        self._key = connection.remote_password.encode()
        self._pending: OrderedDict[bytes, None] = OrderedDict()
        self._seen_as: tuple[str, int] | None = None
        self.answers = 0
        self.moved = ""

    def send(self) -> None:
        """Send one probe, about 100 bytes, unless the sockets are closed already; nothing waits for its answer."""
        if self._connection._closing:
            return
        request = self._connection.build_request(self._pair, nominate=False)
        request.add_message_integrity(self._key)
        transactions = self._pair.protocol.transactions
        transactions[request.transaction_id] = _Pending(self, request.transaction_id)
        self._pending[request.transaction_id] = None
        if len(self._pending) > MAX_PENDING:
            transactions.pop(self._pending.popitem(last=False)[0], None)
        self._pair.protocol.send_stun(request, self._pair.remote_addr)

    def take(self, nonce: bytes, message: stun.Message, addr: tuple[str, int]) -> None:
        """Count an answer that the peer has signed; forged ones are ignored."""
        genuine = message.message_class == stun.Class.RESPONSE and message.check_message_integrity(self._key)
        if not genuine or addr != self._pair.remote_addr:
            return
        self._pending.pop(nonce, None)
        self._pair.protocol.transactions.pop(nonce, None)
        seen_as = message.attributes.get("XOR-MAPPED-ADDRESS")
        if seen_as is not None and self._seen_as not in (None, seen_as):
            self.moved = f"the peer sees this node at {join(*seen_as)} now"
            return
        self._seen_as = self._seen_as or seen_as
        self.answers += 1

    def stop(self) -> None:
        """Forget what has not been answered."""
        for nonce in self._pending:
            self._pair.protocol.transactions.pop(nonce, None)
        self._pending.clear()
