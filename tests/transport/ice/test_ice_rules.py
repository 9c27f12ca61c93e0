"""Which servers and addresses ICE may use."""

import base64
import hashlib
import hmac

import pytest

from common.errors import IceConfigError
from transport.ice.ice import IceServer, candidate_allowed, filter_candidates, turn_credentials


def candidate(ip: str, port: int = 5000, kind: str = "host") -> str:
    return f"candidate:abc 1 udp 2130706431 {ip} {port} typ {kind}"


@pytest.mark.parametrize("ip", ["192.168.1.10", "10.0.0.1", "100.64.1.2", "8.8.8.8", "fd00::2", "2a00:1450::1"])
def test_addresses_of_homes_and_of_the_internet_are_allowed(ip: str) -> None:
    assert candidate_allowed(candidate(ip), loopback=False)


@pytest.mark.parametrize(
    "ip",
    [
        "0.0.0.0",
        "0.1.2.3",
        "224.0.0.251",
        "239.255.255.250",
        "255.255.255.255",
        "240.0.0.1",
        "169.254.169.254",
        "::",
        "ff02::1",
        "fe80::1",
        "::ffff:224.0.0.1",
        "::ffff:0.0.0.0",
        "::ffff:169.254.169.254",
        "1.2.3",
        "999.1.1.1",
        "1.2.3.4.5",
        "home.local",
        "example.com",
        "0x7f000001",
        "2130706433",
        "[::1]",
    ],
)
@pytest.mark.parametrize("loopback", [False, True])
def test_addresses_that_nobody_should_knock_at_are_not(ip: str, loopback: bool) -> None:
    assert not candidate_allowed(candidate(ip), loopback=loopback)


@pytest.mark.parametrize("ip", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_loopback_needs_the_configuration(ip: str) -> None:
    assert candidate_allowed(candidate(ip), loopback=True)
    assert not candidate_allowed(candidate(ip), loopback=False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "candidate:abc 1 tcp 1 192.168.1.1 9 typ host",
        "candidate:abc 2 udp 1 192.168.1.1 9 typ host",
        "candidate:abc 1 udp 1 192.168.1.1 0 typ host",
        "candidate:abc 1 udp 1 192.168.1.1 70000 typ host",
        "candidate:abc 1 udp 1 192.168.1.1 9 typ prflx",
        "candidate:a\x00c 1 udp 1 192.168.1.1 9 typ host",
    ],
)
def test_a_malformed_candidate_is_not_allowed(text: str) -> None:
    assert filter_candidates([text, candidate("10.0.0.1")], loopback=False) == [candidate("10.0.0.1")]


def test_relay_credentials_are_those_of_coturn() -> None:
    username, password = turn_credentials("s3cr3t", "node-7", now=1000.9, lifetime_s=60)
    assert username == "1060:node-7"
    assert base64.b64decode(password) == hmac.new(b"s3cr3t", b"1060:node-7", hashlib.sha1).digest()


@pytest.mark.parametrize(("secret", "user"), [("", "a"), ("s", ""), ("s", "a:b"), ("s", "x" * 65), ("s", "ä")])
def test_relay_credentials_need_a_secret_and_a_plain_user(secret: str, user: str) -> None:
    with pytest.raises(IceConfigError):
        turn_credentials(secret, user, now=0)


@pytest.mark.parametrize(
    "url",
    [
        "stun:stun.example.org:3478",
        "turn:10.0.0.1:3478?transport=tcp",
        "turns:relay.example.org?transport=tcp",
        "turn:relay",
    ],
)
def test_a_server_is_a_stun_or_turn_address(url: str) -> None:
    assert IceServer(url, "user", "password").is_relay == url.startswith("turn")


@pytest.mark.parametrize(
    ("url", "user"),
    [
        ("http://x", "u"),
        ("stun:", "u"),
        ("stun:x:99999", "u"),
        ("stun:x:0", "u"),
        ("stun:x?transport=udp", "u"),
        ("turn:x", ""),
        ("turn:x", "u" * 600),
    ],
)
def test_a_server_that_cannot_work_is_refused(url: str, user: str) -> None:
    with pytest.raises(IceConfigError):
        IceServer(url, user, user)
