"""ID tokens: what an identity provider says of who signed in, believed once its signature and every claim hold.

Which algorithms count is decided here, and never by the token: only those with a public key, so that nothing that everybody may
read can make a token. Sources: OpenID Connect Core 1.0, sections 2 and 3.1.3.7; RFC 7515 to 7519; RFC 8725.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from joserfc import jws, jwt
from joserfc.errors import BadSignatureError, JoseError
from joserfc.jwk import ECKey, JWKRegistry, OKPKey, RSAKey

from common.untrusted_text import Told, Untrusted, untrusted
from coordinator.errors import UnauthorisedError, UnavailableError

KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    "Ed25519": "OKP",
}
"""The algorithms that count, each with the kind of its keys."""
MAX_TOKEN = 32_768  # Characters; with a hundred groups in it a token has ten thousand.
MAX_KEYS = 100  # Of a provider; the largest publish ten.
RSA_BITS = (2_048, 8_192)  # NIST SP 800-131A; above it a check takes longer than a stranger should cost.
LEEWAY_S = 60.0  # Between two machines' clocks.
MAX_AGE_S = 600.0  # It was made for this sign-in, which ends after five minutes.
MAX_SUBJECT = 255  # Characters, of ASCII: OpenID Connect Core, section 2.

PublicKey = RSAKey | ECKey | OKPKey


class UnknownKeyError(UnauthorisedError):
    """The token names a key that is not among those that are known; the provider may have a new one."""


class ProvenIdentity(Told, frozen=True):
    """Somebody whom a provider vouches for.

    Attributes:
        issuer, subject: who it is, together and for ever.
        name: what they are called there, by the first claim that says it; empty: none does.
    """

    issuer: str
    subject: str
    name: Untrusted = Untrusted("")


def read_keys(data: bytes) -> Sequence[PublicKey]:
    """The keys of a JWK set that a signature may be checked with; others are left out, as RFC 7517, section 5, has it.

    Raises:
        UnavailableError: it is no JWK set, or there is no key of use in it.
    """
    try:
        found = msgspec.json.decode(data, type=dict[str, Any]).get("keys")
    except (ValueError, RecursionError) as error:
        raise UnavailableError("the identity provider's keys are no JSON: ask whoever runs it") from error
    keys = [key for one in (found if isinstance(found, list) else [])[:MAX_KEYS] if (key := _key(one)) is not None]
    if not keys:
        raise UnavailableError("the identity provider has no key that a signature can be checked with")
    return keys


def _key(data: object) -> PublicKey | None:
    if not isinstance(data, dict) or data.get("use", "sig") != "sig" or data.get("kty") not in tuple(KINDS.values()):
        return None
    try:
        key = JWKRegistry.import_key(data)
        public = key.public_key if isinstance(key, RSAKey) else None
    except (JoseError, ValueError, TypeError, ArithmeticError):
        return None
    if isinstance(public, RSAPublicKey) and not RSA_BITS[0] <= public.key_size <= RSA_BITS[1]:
        return None
    return key if isinstance(key, RSAKey | ECKey | OKPKey) else None


def read_token(
    token: str, keys: Sequence[PublicKey], issuer: str, client: str, nonce: str, now: float
) -> ProvenIdentity:
    """Whom a token vouches for.

    Args:
        keys: of the issuer, newly fetched or kept.
        client: whom the token has to be for.
        nonce: of the sign-in that it has to be for.
        now: Unix seconds.
    Raises:
        UnknownKeyError: none of ``keys`` is the one that it names.
        UnauthorisedError: it does not hold; the text says what of it.
    """
    claims = _signed(token, keys)
    _check_whose(claims, issuer, client)
    _check_when(claims, now)
    said, subject = claims.get("nonce"), claims.get("sub")
    if not isinstance(said, str) or not secrets.compare_digest(said.encode("utf-8", "replace"), nonce.encode()):
        raise _refused("is for another sign-in")
    if not isinstance(subject, str) or not 1 <= len(subject) <= MAX_SUBJECT or not subject.isascii():
        raise _refused("does not say who signed in")
    return ProvenIdentity(issuer, subject, name_in(claims))


def name_in(claims: Mapping[str, Any]) -> Untrusted:
    """What somebody is called; empty where no claim says it."""
    email = claims.get("email")
    local = email.partition("@")[0] if isinstance(email, str) else ""
    for said in (claims.get("preferred_username"), claims.get("name"), local):
        if isinstance(said, str) and (shown := untrusted(" ".join(untrusted(said, 64).split()))):
            return shown
    return Untrusted("")


def _signed(token: str, keys: Sequence[PublicKey]) -> Mapping[str, Any]:
    """The claims of a token whose signature is one of the keys'."""
    if len(token) > MAX_TOKEN:
        raise _refused("is too long")
    try:
        header = jws.extract_compact(token.encode("ascii")).headers()
        algorithm, name = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in KINDS:
            raise _refused(f"is signed by {untrusted(algorithm, 40)!r}, which does not count here")
        key = _chosen([key for key in keys if key.key_type == KINDS[algorithm]], name)
        return jwt.decode(token, key, algorithms=[algorithm]).claims
    except BadSignatureError as error:
        raise _refused("has a signature that is not the provider's") from error
    except (JoseError, ValueError, TypeError, RecursionError) as error:
        raise _refused("cannot be read") from error


def _chosen(keys: Sequence[PublicKey], name: object) -> PublicKey:
    """The key of this name; without one the only key (OpenID Connect Core, section 10.1)."""
    fitting = [key for key in keys if name is None or key.kid == name]
    if not fitting:
        raise UnknownKeyError("the identity provider's answer is signed with a key that it does not publish")
    if len(fitting) > 1 and name is None:
        raise _refused("names none of the provider's keys")
    return fitting[0]


def _check_whose(claims: Mapping[str, Any], issuer: str, client: str) -> None:
    if claims.get("iss") != issuer:
        raise _refused(f"is from {untrusted(claims.get('iss'), 100)!r}, which is another provider")
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if client not in audiences:
        raise _refused("is for another site")
    if claims.get("azp", client) != client or (len(audiences) > 1 and "azp" not in claims):
        raise _refused("was given to another site")


def _check_when(claims: Mapping[str, Any], now: float) -> None:
    ends, made = (_moment(claims.get(name)) for name in ("exp", "iat"))
    if ends is None or made is None:
        raise _refused("does not say when it was made and when it ends")
    if now >= ends + LEEWAY_S or now - made > MAX_AGE_S:
        raise _refused("has ended; if that is so each time, the clock here or there is wrong")
    if made > now + LEEWAY_S:
        raise _refused("is from the future: the clock here or there is wrong")


def _moment(value: object) -> float | None:
    return (
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12 else None
    )


def _refused(why: str) -> UnauthorisedError:
    return UnauthorisedError(f"what the identity provider says of you {why}: begin again, or ask whoever runs it")
