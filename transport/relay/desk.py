"""Answers requests: who asks, whether they may, and what they get (RFC 8489 section 9.2, RFC 8656 sections 5-12)."""

import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_address

from aioice.stun import Class, Method

from common.clock import Clock
from transport.relay import message
from transport.relay.allocation import CHANNELS, Allocation, ClientPath, bind_any
from transport.relay.credentials import Credentials, Nonces, RelayGrant
from transport.relay.datagrams import SETS_DF, DatagramSocket, family_of
from transport.relay.errors import CredentialError, ListenError, MalformedMessageError, RequestRefusedError
from transport.relay.guard import StrangerGuard
from transport.relay.message import Address, Attribute, StunMessage
from transport.relay.options import RelayOptions
from transport.relay.peer_policy import PeerPolicy
from transport.relay.speed import SpeedTests
from transport.relay.usage import Bucket, Counters, Users

DEFAULT_LIFETIME_S = 600  # RFC 8656 section 7.2: never less is granted.
MAX_LIFETIME_S = 3600
UDP = 17 << 24  # REQUESTED-TRANSPORT: the protocol number and three reserved bytes.
FAMILIES = {1: socket.AF_INET, 2: socket.AF_INET6}

Attributes = list[tuple[Attribute, bytes]]
LOG = logging.getLogger(__name__)


class RelayDesk:
    """What all listeners of one relay share.

    Attributes:
        allocations: by relayed address as peers see it.
        speed: the speed tests.
    """

    def __init__(
        self,
        options: RelayOptions,
        clock: Clock,
        own: Iterable[str],
        watch: Callable[[Allocation], None],
        unwatch: Callable[[Allocation], None],
    ) -> None:
        """Make the desk of a relay.

        Args:
            own: IP addresses of this machine.
            watch: begins to read an allocation's socket.
            unwatch: ends it.
        """
        self.counters = Counters()
        self.bucket = Bucket(options.quota.total_rate)
        self.users = Users(options.quota.user_rate)
        self.allocations: dict[Address, Allocation] = {}
        self.speed = SpeedTests(options.quota, self.bucket, clock.now)
        self._options = options
        self._clock = clock
        self._watch = watch
        self._unwatch = unwatch
        self._credentials = Credentials(options.secret, options.realm)
        self._nonces = Nonces()
        self._guard = StrangerGuard()
        public = {options.public(ip) for ip in options.listen}
        self._policy = PeerPolicy(options.allowed, {*own, *options.listen, *public})
        self._neighbours = frozenset(ip for ip in public if self._policy.could_permit(ip))
        self._closed = frozenset(ip for ip in public if not self._policy.permits(ip))
        self._perform: dict[Method, Callable[[StunMessage, ClientPath, RelayGrant], Attributes]] = {
            Method.ALLOCATE: self._allocate,
            Method.REFRESH: self._refresh,
            Method.CREATE_PERMISSION: self._create_permission,
            Method.CHANNEL_BIND: self._channel_bind,
        }

    def relayed_at(self, address: Address) -> Allocation | None:
        """This relay's own allocation with such a relayed address."""
        return self.allocations.get(address)

    def closed(self, ip: str) -> bool:
        """Whether nothing but relayed addresses may be reached at this IP address: it is the relay's own."""
        return ip in self._closed

    def handle(self, data: bytes, client: ClientPath) -> None:
        """Answer one datagram that is no ChannelData of a known client."""
        now = self._clock.now()
        if client.allocation is None and not self._guard.allows(client.address[0], now):
            self.counters.drop("stranger")
            return
        try:
            request = message.parse(data)
            if request.kind == Class.INDICATION and request.method == Method.SEND:
                self._send_indication(request, client, now)
            elif request.kind == Class.REQUEST and request.method == Method.BINDING:
                self._binding(request, client)
            elif request.kind == Class.REQUEST:
                self._request(request, client, now)
        except MalformedMessageError:
            self.counters.drop("malformed")

    def release(self, allocation: Allocation) -> None:
        """End an allocation; a second time does nothing."""
        if self.allocations.pop(allocation.relayed, None) is None:
            return
        self._unwatch(allocation)
        allocation.socket.close()
        allocation.user.allocations -= 1
        allocation.client.allocation = None
        allocation.client.released()

    def release_expired(self) -> None:
        """End every allocation whose time is over."""
        now = self._clock.now()
        for allocation in [item for item in self.allocations.values() if item.expires <= now]:
            self.release(allocation)

    def _send_indication(self, request: StunMessage, client: ClientPath, now: float) -> None:
        """RFC 8656 section 11.2: what does not fit is dropped without a word."""
        allocation, peers, payload = client.allocation, request.peers(), request.get(Attribute.DATA)
        if allocation is None or len(peers) != 1 or payload is None or self._not_understood(request):
            self.counters.drop("malformed")
            return
        allocation.send(memoryview(payload), peers[0], now)

    def _binding(self, request: StunMessage, client: ClientPath) -> None:
        """Tell the client its address, from another address of the relay if it asks so (RFC 5780 section 6)."""
        change = request.number(Attribute.CHANGE_REQUEST) or 0
        way = client.changed(change)
        unknown = self._not_understood(request)
        if unknown or way is None:
            unknown = unknown or [Attribute.CHANGE_REQUEST]
            self._refuse(request, client, RequestRefusedError(420, "Unknown Attribute", unknown), [], None)
            return
        attributes = [
            (Attribute.XOR_MAPPED_ADDRESS, message.xor_address(client.address, request.transaction)),
            *zip(
                (Attribute.RESPONSE_ORIGIN, Attribute.OTHER_ADDRESS), map(message.address, way.origin()), strict=False
            ),
        ]
        self.counters.answer("binding", "ok")
        way.write(message.encode(request.method, Class.RESPONSE, request.transaction, attributes))

    def _request(self, request: StunMessage, client: ClientPath, now: float) -> None:
        try:
            grant = self._identify(request, client, now)
        except RequestRefusedError as refusal:
            challenge = [
                (Attribute.REALM, self._options.realm.encode()),
                (Attribute.NONCE, self._nonces.make(client.address, now)),
            ]
            self._refuse(request, client, refusal, [] if refusal.code == 400 else challenge, None)
            return
        try:
            unknown = self._not_understood(request)
            if unknown:
                raise RequestRefusedError(420, "Unknown Attribute", unknown)
            perform = self._perform.get(request.method)
            if perform is None:
                raise RequestRefusedError(400, "Bad Request")
            attributes = perform(request, client, grant)
        except MalformedMessageError as error:
            self._refuse(request, client, RequestRefusedError(400, str(error)), [], grant.key)
        except RequestRefusedError as refusal:
            self._refuse(request, client, refusal, [], grant.key)
        else:
            self.counters.answer(request.method.name.lower(), "ok")
            client.write(message.encode(request.method, Class.RESPONSE, request.transaction, attributes, grant.key))

    def _refuse(
        self,
        request: StunMessage,
        client: ClientPath,
        refusal: RequestRefusedError,
        more: Attributes,
        key: bytes | None,
    ) -> None:
        attributes = [(Attribute.ERROR_CODE, message.error(refusal.code, refusal.reason)), *more]
        if refusal.unknown:
            attributes.append((Attribute.UNKNOWN_ATTRIBUTES, message.unknown(refusal.unknown)))
        self.counters.answer(request.method.name.lower(), str(refusal.code))
        client.write(message.encode(request.method, Class.ERROR, request.transaction, attributes, key))

    def _identify(self, request: StunMessage, client: ClientPath, now: float) -> RelayGrant:
        """Who signed the request; RefusedError in the order of RFC 8489 section 9.2.4."""
        if not request.signed:
            raise RequestRefusedError(401, "Unauthorized")
        username, nonce = request.text(Attribute.USERNAME), request.get(Attribute.NONCE)
        if not username or nonce is None or request.get(Attribute.REALM) is None:
            raise RequestRefusedError(400, "Bad Request")
        if not self._nonces.valid(nonce, client.address, now):
            raise RequestRefusedError(438, "Stale Nonce")
        try:
            grant = self._credentials.grant(username, self._clock.time())
        except CredentialError:
            raise RequestRefusedError(401, "Unauthorized") from None
        if not request.signed_with(grant.key):
            raise RequestRefusedError(401, "Unauthorized")
        return grant

    def _allocate(self, request: StunMessage, client: ClientPath, grant: RelayGrant) -> Attributes:
        now = self._clock.now()
        held = client.allocation
        speed_test = request.number(Attribute.SPEED_TEST)
        if speed_test is not None:
            if held is not None:
                raise RequestRefusedError(437, "Allocation Mismatch")
            client.measure(self.speed.open(grant.user, speed_test))
            return []
        if held is not None and held.expires <= now:
            self.release(held)
            held = None
        if held is None:
            held = self._make(request, client, grant)
        elif held.transaction != request.transaction or held.user.name != grant.user:
            raise RequestRefusedError(437, "Allocation Mismatch")
        return [
            (Attribute.XOR_RELAYED_ADDRESS, message.xor_address(held.relayed, request.transaction)),
            (Attribute.LIFETIME, message.uint32(round(held.expires - now))),
            (Attribute.XOR_MAPPED_ADDRESS, message.xor_address(client.address, request.transaction)),
        ]

    def _make(self, request: StunMessage, client: ClientPath, grant: RelayGrant) -> Allocation:
        ip = self._relay_ip(request)
        lifetime = self._lifetime(request, grant)
        user = self.users.get(grant.user)
        if user.allocations >= self._options.quota.allocations_per_user:
            raise RequestRefusedError(486, "Allocation Quota Reached")
        if len(self.allocations) >= self._options.quota.allocations:
            raise RequestRefusedError(508, "Insufficient Capacity")
        bound = self._bind(ip)
        relayed = (self._options.public(ip), bound.address[1])
        allocation = Allocation(self, client, grant, user, bound, relayed)
        allocation.expires = self._clock.now() + lifetime
        allocation.transaction = request.transaction
        user.allocations += 1
        client.allocation = self.allocations[relayed] = allocation
        self._watch(allocation)
        return allocation

    def _relay_ip(self, request: StunMessage) -> str:
        """The address of this machine that fits what the client wants (RFC 8656 section 7.2)."""
        transport = request.number(Attribute.REQUESTED_TRANSPORT)
        if transport is None:
            raise RequestRefusedError(400, "Bad Request")
        if transport & 0xFF000000 != UDP:
            raise RequestRefusedError(442, "Unsupported Transport Protocol")
        wanted = request.number(Attribute.REQUESTED_ADDRESS_FAMILY)
        family = FAMILIES[1] if wanted is None else FAMILIES.get(wanted >> 24)
        ip = next((ip for ip in self._options.listen if family_of(ip) == family), None)
        if ip is None:
            raise RequestRefusedError(440, "Address Family not Supported")
        return ip

    def _bind(self, ip: str) -> DatagramSocket:
        options = self._options
        try:
            return bind_any(ip, options.min_port, options.max_port, offload=options.offload)
        except ListenError as error:
            LOG.warning("no room for an allocation: %s", error)
            raise RequestRefusedError(508, "Insufficient Capacity") from None

    def _lifetime(self, request: StunMessage, grant: RelayGrant) -> int:
        """Seconds: what is asked for within bounds, and never past the end of the credentials."""
        wanted = request.number(Attribute.LIFETIME) or 0
        left = int(grant.expires - self._clock.time())
        return max(1, min(max(wanted, DEFAULT_LIFETIME_S), MAX_LIFETIME_S, left))

    def _held(self, client: ClientPath, grant: RelayGrant) -> Allocation:
        allocation = client.allocation
        if allocation is None or allocation.expires <= self._clock.now():
            raise RequestRefusedError(437, "Allocation Mismatch")
        if allocation.user.name != grant.user:
            raise RequestRefusedError(441, "Wrong Credentials")
        return allocation

    def _refresh(self, request: StunMessage, client: ClientPath, grant: RelayGrant) -> Attributes:
        allocation = self._held(client, grant)
        family = request.number(Attribute.REQUESTED_ADDRESS_FAMILY)
        if family is not None and FAMILIES.get(family >> 24) != family_of(allocation.relayed[0]):
            raise RequestRefusedError(443, "Peer Address Family Mismatch")
        if request.number(Attribute.LIFETIME) == 0:
            self.release(allocation)
            return [(Attribute.LIFETIME, message.uint32(0))]
        lifetime = self._lifetime(request, grant)
        allocation.expires = self._clock.now() + lifetime
        return [(Attribute.LIFETIME, message.uint32(lifetime))]

    def _create_permission(self, request: StunMessage, client: ClientPath, grant: RelayGrant) -> Attributes:
        allocation = self._held(client, grant)
        peers = request.peers()
        if not peers:
            raise RequestRefusedError(400, "Bad Request")
        for ip, _ in peers:
            self._check_peer(ip, allocation)
        allocation.permit([ip for ip, _ in peers], self._clock.now(), self._options.quota.permissions)
        return []

    def _channel_bind(self, request: StunMessage, client: ClientPath, grant: RelayGrant) -> Attributes:
        allocation = self._held(client, grant)
        number = (request.number(Attribute.CHANNEL_NUMBER) or 0) >> 16
        peers = request.peers()
        if number not in CHANNELS or len(peers) != 1 or not peers[0][1]:
            raise RequestRefusedError(400, "Bad Request")
        self._check_peer(peers[0][0], allocation)
        if self.closed(peers[0][0]) and self.relayed_at(peers[0]) is None:
            raise RequestRefusedError(403, "Forbidden")
        allocation.bind(number, peers[0], self._clock.now(), self._options.quota.channels)
        return []

    def _check_peer(self, ip: str, allocation: Allocation) -> None:
        if not self._policy.permits(ip) and ip not in self._neighbours:
            raise RequestRefusedError(403, "Forbidden")
        if ip_address(ip).version != ip_address(allocation.relayed[0]).version:
            raise RequestRefusedError(443, "Peer Address Family Mismatch")

    def _not_understood(self, request: StunMessage) -> Sequence[int]:
        unknown = request.not_understood()
        if not SETS_DF and request.get(Attribute.DONT_FRAGMENT) is not None:
            unknown.append(Attribute.DONT_FRAGMENT)
        if not self.speed.offered and request.get(Attribute.SPEED_TEST) is not None:
            unknown.append(Attribute.SPEED_TEST)
        return unknown
