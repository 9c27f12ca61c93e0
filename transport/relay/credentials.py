"""Who may use the relay: time-limited passwords from a shared secret, and nonces that fit one client for a while."""

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

from aioice.turn import make_integrity_key

from transport.relay.errors import CredentialError
from transport.relay.message import Address

NONCE_LIFETIME_S = 3600.0  # RFC 8656 section 5: at least once an hour.
NONCE_MAC_BYTES = 8  # Guessing one of 2^64 within the hour is hopeless, and the 401 stays short.
_USERNAME = re.compile(r"(?P<expiry>[0-9]{1,12}):(?P<user>[A-Za-z0-9_\-]{1,128})")  # NODE-JOB has 77 characters.


@dataclass(frozen=True)
class RelayGrant:
    """What a user name promises; whether the client may use it shows its signature.

    Attributes:
        user: the part after the expiry, ``NODE`` or ``NODE-JOB``.
        expires: unix seconds.
        key: of MESSAGE-INTEGRITY.
    """

    username: str
    user: str
    expires: float
    key: bytes


class Credentials:
    """The passwords of one relay."""

    def __init__(self, secret: str, realm: str) -> None:
        """``secret`` is what whoever hands out credentials also has."""
        self._secret = secret.encode()
        self._realm = realm

    def grant(self, username: str, now: float) -> RelayGrant:
        """What ``username`` may do at unix time ``now``.

        Raises:
            CredentialError: malformed or expired.
        Source: draft-uberti-behave-turn-rest-00, section 2.2; the counterpart is ``transport.ice.ice.turn_credentials``.
        """
        match = _USERNAME.fullmatch(username)
        if match is None:
            raise CredentialError("a user name here is EXPIRY:USER")
        expires = float(match["expiry"])
        if expires <= now:
            raise CredentialError(f"the credentials ended {now - expires:.0f} s ago")
        password = base64.b64encode(hmac.new(self._secret, username.encode(), hashlib.sha1).digest()).decode()
        return RelayGrant(username, match["user"], expires, make_integrity_key(username, self._realm, password))


class Nonces:
    """Nonces without memory: a time, and a code over it and the client's address.

    A nonce that was overheard is worth nothing from another address, and nothing after ``NONCE_LIFETIME_S``.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def make(self, client: Address, now: float) -> bytes:
        """A nonce for ``client`` at monotonic time ``now``."""
        stamp = f"{int(now):x}"
        return f"{stamp}-{self._code(stamp, client)}".encode()

    def valid(self, nonce: bytes, client: Address, now: float) -> bool:
        """Whether ``make`` gave it to this client, not too long ago."""
        stamp, _, code = nonce.partition(b"-")
        try:
            made = int(stamp, 16)
            known = self._code(stamp.decode("ascii"), client)
        except ValueError:
            return False
        return hmac.compare_digest(code, known.encode()) and 0 <= now - made <= NONCE_LIFETIME_S

    def _code(self, stamp: str, client: Address) -> str:
        text = f"{stamp} {client[0]} {client[1]}".encode()
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()[: 2 * NONCE_MAC_BYTES]
