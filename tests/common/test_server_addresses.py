"""Addresses of servers: what is taken, how it is written, and which are the same."""

import argparse
import contextlib
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from common import options
from common.errors import UrlError
from common.urls import Ip, at, authority, ip_of, is_loopback, join, names, parse_host, parse_url, split, url_of
from coordinator.web.auth.origin import origin_of
from transport.relay.errors import OptionsError
from transport.relay.options import check_ip

SAME = {  # As it is typed: as it is kept, and what the Host header says.
    "https://cottage.example": ("https://cottage.example", "cottage.example"),
    "HTTPS://Cottage.Example.:443/": ("https://cottage.example/", "cottage.example"),
    "http://cottage.example:443": ("http://cottage.example:443", "cottage.example:443"),
    "http://münchen.example:80": ("http://xn--mnchen-3ya.example", "xn--mnchen-3ya.example"),
    "http://xn--mnchen-3ya.example": ("http://xn--mnchen-3ya.example", "xn--mnchen-3ya.example"),
    "http://ｃottage.example": ("http://cottage.example", "cottage.example"),
    "http://node_1:8470": ("http://node_1:8470", "node_1:8470"),
    "http://192.0.2.7:8470": ("http://192.0.2.7:8470", "192.0.2.7:8470"),
    "http://[::1]:8470": ("http://[::1]:8470", "[::1]:8470"),
    "http://[::1]": ("http://[::1]", "[::1]"),
    "http://[0:0:0:0:0:0:0:1]:80": ("http://[::1]", "[::1]"),
    "http://[2001:DB8::A]:8470/base": ("http://[2001:db8::a]:8470/base", "[2001:db8::a]:8470"),
    "http://[::ffff:192.0.2.7]:3": ("http://[::ffff:c000:207]:3", "[::ffff:c000:207]:3"),
    "http://[fe80::1%eth0]:8470": ("http://[fe80::1%eth0]:8470", "[fe80::1]:8470"),
    "http://[fe80::1%25eth0]:8470": ("http://[fe80::1%eth0]:8470", "[fe80::1]:8470"),
    "https://rpc.example/?api-key=3#top": ("https://rpc.example/?api-key=3", "rpc.example"),
}

REFUSED = {
    "": "http://HOST or https://HOST",
    "cottage.example": "http://HOST",
    "localhost:8470": "http://HOST",
    "ftp://cottage.example": "http://HOST",
    "http://": "http://HOST",
    "http:///path": "http://HOST",
    "http://:8470": "names no machine",
    "http://::1:8470": r"brackets, as in http://\[::1\]:8470",
    "http://[::1": "brackets",
    "http://[192.0.2.7]:80": "brackets",
    "http://name:0": "port 0",
    "http://name:65536": "1 to 65535",
    "http://name:99999/path": "1 to 65535",
    **{
        f"http://{host}:{port}": "1 to 65535"
        for host in ("name", "[::1]")
        for port in ("1_8470", "+18470", "٣", "8４70")
    },
    "http://name:1_8470/path:8470": "1 to 65535",
    "http://name:+1?port=:2": "1 to 65535",
    "http://name:x": "http://HOST",
    "http://na me": "spaces",
    "http://name\n:80": "spaces",
    "http://ada:secret@name": "user name in it: leave out",
    "http://ada@name": "user name in it",
    "http://127.1:80": "all four",
    "http://0x7f000001": "all four",
    "http://2130706433": "all four",
    "http://1.2.3.256": "all four",
    "http://a..b": "no name of a machine",
    "http://-a.example": "no name of a machine",
    "http://" + "a" * 64 + ".example": "no name of a machine",
    "http://[::1%eth0]:80": "only link-local",
    "http://[fe80::1%e th]:80": "brackets|spaces|only link-local",
    "http://[fe80::1]:8470": "fe80::1 is on every interface: .* fe80::1%eth0",
    "http://[FE80:0::A]": "fe80::a is on every interface: .* fe80::a%eth0",
    "http://a" + "/" * 3000: "longer than",
}


@pytest.mark.parametrize("text", SAME)
def test_an_address_is_kept_in_one_spelling(text: str) -> None:
    kept, said = SAME[text]
    url = parse_url(text)
    assert (str(url), authority(url)) == (kept, said)
    assert str(parse_url(str(url))) == kept
    assert names(said, url)


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_address_is_refused_with_the_way_out_and_without_its_secrets(text: str) -> None:
    with pytest.raises(UrlError, match=REFUSED[text]) as refused:
        parse_url(text)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "pair", "again"),
    [
        ("mail.example:587", ("mail.example", 587), "mail.example:587"),
        ("127.0.0.1:9641", ("127.0.0.1", 9641), "127.0.0.1:9641"),
        ("[::1]:9641", ("::1", 9641), "[::1]:9641"),
        ("[FE80::1%eth0]:0", ("fe80::1%eth0", 0), "[fe80::1%eth0]:0"),
        ("Localhost.:80", ("localhost", 80), "localhost:80"),
    ],
)
def test_a_pair_of_host_and_port_is_taken_apart_and_written_again(text: str, pair: tuple[str, int], again: str) -> None:
    assert split(text) == pair
    assert join(*pair) == again


@pytest.mark.parametrize("read", [parse_host, options.host, check_ip, lambda text: split(f"[{text}]:80")])
def test_whoever_reads_an_address_wants_the_interface_of_a_link_local_one(read: Callable[[str], object]) -> None:
    with pytest.raises((UrlError, OptionsError, argparse.ArgumentTypeError), match="fe80::1%eth0"):
        read("fe80::1")
    read("fe80::1%eth0")


def test_what_a_request_says_needs_no_interface_for_none_is_ever_sent() -> None:
    assert names("[fe80::1]:8470", parse_url("http://[fe80::1%eth0]:8470"))
    assert origin_of("http://[fe80::1]:8470") == ("http", "fe80::1", 8470)


@pytest.mark.parametrize(
    "text",
    ["mail.example", "::1:25", "[::1]", "name:", "name:x", "name:65536", ":25", "", "[::1]25", "n:1_8", "n:+8", "n:٣"],
)
def test_a_pair_without_a_port_is_refused(text: str) -> None:
    with pytest.raises(UrlError):
        split(text)


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)), st.integers(1, 65_535))
def test_every_address_survives_being_written_and_read(ip: Ip, port: int) -> None:
    assume(ip.version == 4 or not ip.is_link_local)  # Such a one needs its interface.
    assert split(join(str(ip), port)) == (str(ip), port)
    url = parse_url(url_of(str(ip), port))
    if str(ip) not in ("0.0.0.0", "::"):
        assert (url.raw_host, url.port) == (str(ip), port)
    assert names(authority(url), url)


def test_whoever_listens_on_every_address_is_reached_at_this_machine() -> None:
    assert url_of("0.0.0.0", 8470) == "http://127.0.0.1:8470"
    assert url_of("::", 8470) == "http://[::1]:8470"
    assert url_of("::1", 8470) == "http://[::1]:8470"


@pytest.mark.parametrize(
    ("text", "loopback"),
    [
        ("localhost", True),
        ("LocalHost.", True),
        ("localhost:8470", True),
        ("app.localhost:1", True),
        ("127.0.0.1", True),
        ("127.9.9.9:80", True),
        ("::1", True),
        ("[::1]", True),
        ("[::1]:8470", True),
        ("[0:0:0:0:0:0:0:1]:80", True),
        ("[::ffff:127.0.0.1]:80", True),
        ("cottage.example", False),
        ("localhost.example", False),
        ("notlocalhost", False),
        ("192.168.1.2", False),
        ("[fe80::1%eth0]:80", False),
        ("::", False),
        ("0.0.0.0", False),
        ("127.0.0.1.example:80", False),
        ("127.1", False),
        ("", False),
        ("[", False),
        ("127.0.0.1:80:80", False),
        ("a b", False),
    ],
)
def test_loopback_is_what_means_this_machine_whatever_a_name_server_says(text: str, loopback: bool) -> None:
    assert is_loopback(text) is loopback


@pytest.mark.parametrize(
    ("said", "url", "fits"),
    [
        ("[::1]:8470", "http://[::1]:8470", True),
        ("[0:0:0:0:0:0:0:1]:8470", "http://[::1]:8470", True),
        ("::1", "http://[::1]:8470", True),
        ("[fe80::1]:8470", "http://[fe80::1%eth0]:8470", True),
        ("Cottage.Example.", "https://cottage.example", True),
        ("cottage.example:443", "https://cottage.example", True),
        ("münchen.example", "https://xn--mnchen-3ya.example", True),
        ("cottage.example:80", "https://cottage.example", False),
        ("evil.example", "https://cottage.example", False),
        ("[::2]:8470", "http://[::1]:8470", False),
        ("127.0.0.1:8470", "http://[::1]:8470", False),
        ("cottage.example@evil", "https://cottage.example", False),
        ("", "https://cottage.example", False),
    ],
)
def test_a_host_is_compared_by_what_it_means(said: str, url: str, fits: bool) -> None:
    assert names(said, parse_url(url)) is fits


def test_references_are_followed_from_an_address() -> None:
    base = parse_url("http://[::1]:8470/base")
    assert str(at(base, "/api/v1/node")) == "http://[::1]:8470/api/v1/node"
    assert str(at(base, "https://other.example/x")) == "https://other.example/x"
    with pytest.raises(UrlError, match="leads nowhere"):
        at(base, "http://[::1")


def test_an_address_within_ipv6_is_the_one_of_ipv4() -> None:
    assert str(ip_of("::ffff:192.0.2.7")) == "192.0.2.7"
    assert str(ip_of("fe80::1%eth0")) == "fe80::1"
    assert ip_of("cottage.example") is None


@given(st.text(max_size=60))
def test_no_text_breaks_the_readers(text: str) -> None:
    for read in (parse_url, parse_host, split):
        with contextlib.suppress(UrlError):
            read(text)
    is_loopback(text)


@pytest.mark.parametrize("text", ["http://http://cottage.example:8470", "https://https//cottage.example"])
def test_an_address_that_begins_twice_is_told_as_that(text: str) -> None:
    """It was a machine called ``http``."""
    with pytest.raises(UrlError, match=r"begins twice: write it as http://HOST"):
        parse_url(text)
    assert str(parse_url("http://http:80//x")) == "http://http//x", "a machine may be called so"
