"""The session descriptions that two nodes exchange: one data-channel section, one SHA-256 fingerprint, nothing else.

A general SDP can ask an endpoint for cameras, codecs and several certificates. Nodes speak a small part of it, line by line from
a closed list, so that what is signed is all there is.
"""

import re
from dataclasses import dataclass

from common.errors import SignalError
from transport.ice.ice import MAX_CANDIDATES, filter_candidates

MAX_SDP = 64 * 1024  # 64 candidates take under 10 KB.
MAX_LINE = 512

_FINGERPRINT = re.compile(r"a=fingerprint:sha-256 (?P<value>(?:[0-9A-Fa-f]{2}:){31}[0-9A-Fa-f]{2})")
_OTHER_FINGERPRINT = re.compile(r"a=fingerprint:sha-(384|512) ")
_ALLOWED = tuple(
    re.compile(pattern)
    for pattern in (
        r"v=0",
        r"o=- [0-9]{1,20} [0-9]{1,20} IN IP4 0\.0\.0\.0",
        r"s=-",
        r"t=0 0",
        r"a=group:BUNDLE 0",
        r"a=msid-semantic:WMS \*",
        r"m=application [0-9]{1,5} UDP/DTLS/SCTP webrtc-datachannel",
        r"c=IN IP[46] [0-9A-Fa-f.:]{2,45}",
        r"a=mid:0",
        r"a=sctp-port:5000",
        r"a=max-message-size:[0-9]{1,10}",
        r"a=candidate:.+",
        r"a=end-of-candidates",
        r"a=ice-ufrag:[A-Za-z0-9+/]{4,256}",
        r"a=ice-pwd:[A-Za-z0-9+/]{22,256}",
        _FINGERPRINT.pattern,
        r"a=setup:(actpass|active|passive)",
    )
)
_ONCE = (
    "m=",
    "a=mid:",
    "a=fingerprint:",
    "a=ice-ufrag:",
    "a=ice-pwd:",
    "a=setup:",
    "a=sctp-port:",
    "a=max-message-size:",
)


@dataclass(frozen=True)
class Description:
    """A checked session description.

    Attributes:
        text: with only such candidates as may be knocked at.
        fingerprint: SHA-256 of the DTLS certificate, 32 bytes.
    """

    text: str
    fingerprint: bytes


def drop_other_fingerprints(text: str) -> str:
    """Return a local description with the SHA-256 fingerprint only."""
    return "".join(line for line in text.splitlines(keepends=True) if not _OTHER_FINGERPRINT.match(line))


def read_description(text: str, *, loopback: bool) -> Description:
    """Check a description and drop the candidates that nobody should knock at.

    Raises:
        SignalError: ``sdp`` for a foreign or repeated line, ``size`` for too much of it, ``fingerprint`` for none or several.
    """
    if len(text) > MAX_SDP:
        raise SignalError("size", f"session description of {len(text)} characters: at most {MAX_SDP}")
    lines = [line for line in text.replace("\r\n", "\n").split("\n") if line]
    for line in lines:
        if len(line) > MAX_LINE or not any(pattern.fullmatch(line) for pattern in _ALLOWED):
            raise SignalError("sdp", f"line {line[:80]!r} does not belong into a node's description")
    fingerprints = [match["value"] for line in lines if (match := _FINGERPRINT.fullmatch(line))]
    if len(fingerprints) != 1:
        raise SignalError("fingerprint", f"{len(fingerprints)} fingerprints in the description, expected one")
    for prefix in _ONCE:
        if sum(line.startswith(prefix) for line in lines) != 1:
            raise SignalError("sdp", f"the description must have exactly one line {prefix}")
    candidates = [line.removeprefix("a=") for line in lines if line.startswith("a=candidate:")]
    if len(candidates) > MAX_CANDIDATES:
        raise SignalError("size", f"{len(candidates)} candidates: at most {MAX_CANDIDATES}")
    kept = {f"a={candidate}" for candidate in filter_candidates(candidates, loopback=loopback)}
    lines = [line for line in lines if not line.startswith("a=candidate:") or line in kept]
    fingerprint = bytes.fromhex(fingerprints[0].replace(":", ""))
    return Description("".join(f"{line}\r\n" for line in lines), fingerprint)
