"""Invitations: what is taken, how it is written, and what is said of those that are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import base58
from common.errors import InvitationError
from common.invitations import MAX_LINK, Invitation, is_link, read

CODE = "4vJ9dT3mVxXbq5rQ2nWgYh"
KEY = "7Kq9dT3mVxXbq5rQ2nWgYh8sLpZcJfRtAeUvBnMkDiEo"
AT = "https%3A%2F%2Fcottage.example"
GOOD = {
    f"cottage://join?at={AT}&key={KEY}": Invitation("https://cottage.example", KEY),
    f"COTTAGE://Join/?key={KEY}&at=https://Cottage.Example.:443/x?y": Invitation("https://cottage.example", KEY),
    f"  cottage://join?at={AT}\n": Invitation("https://cottage.example"),
    "cottage://join?at=http%3A%2F%2F%5B%3A%3A1%5D%3A8470": Invitation("http://[::1]:8470"),
    f"https://cottage.example/join?key={KEY}": Invitation("https://cottage.example", KEY),
    f"cottage://join?at={AT}&key={KEY}&code={CODE}": Invitation("https://cottage.example", KEY, CODE),
    f"https://cottage.example/join?key={KEY}&code={CODE}": Invitation("https://cottage.example", KEY, CODE),
    f"cottage://join?code={CODE}&at={AT}": Invitation("https://cottage.example", "", CODE),
    "https://cottage.example/join/": Invitation("https://cottage.example"),
    "https://cottage.example": Invitation("https://cottage.example"),
    "https://cottage.example/network?online=1": Invitation("https://cottage.example"),
    "http://[fe80::1%25eth0]:8470/": Invitation("http://[fe80::1%eth0]:8470"),
}
BAD = {
    "": "empty",
    " \t": "empty",
    "cottage.example": "address",
    "ftp://cottage.example": "address",
    "https://": "address",
    "https://ada:secret@cottage.example": "address",
    "http://host:0": "address",
    "cottage:": "word",
    "cottage://": "word",
    "cottage://leave?at=x": "word",
    f"cottage://join/deeper?at={AT}": "word",
    f"cottage:join?at={AT}": "word",
    f"cottage://[join?at={AT}": "word",
    f"cottage://join?at={AT}#more": "word",
    f"cottage://join?at={AT}&rest": "word",
    "cottage://join?at=%ff": "word",
    "cottage://join": "missing",
    "cottage://join?at=": "missing",
    f"cottage://join?key={KEY}": "missing",
    "cottage://join?at=cottage.example": "address",
    "cottage://join?at=javascript:alert(1)": "address",
    "cottage://join?at=file:///etc/passwd": "address",
    f"cottage://join?at={AT}%0Ax": "address",
    f"cottage://join?at={AT}&at=https://other.example": "twice",
    f"cottage://join?at={AT}&key={KEY}&key={KEY}": "twice",
    f"cottage://join?at={AT}&run=rm": "part",
    f"https://cottage.example/join?key={KEY}&next=x": "part",
    f"cottage://join?at={AT}&key=0OIl": "key",
    f"cottage://join?at={AT}&key={KEY[:-3]}": "key",
    f"cottage://join?at={AT}&key={KEY}1": "key",
    f"https://cottage.example/join?key={KEY}{KEY}": "key",
    f"cottage://join?at={AT}&code={CODE[:9]}": "key",
    f"cottage://join?at={AT}&code={CODE}0": "key",
    f"cottage://join?at={AT}&code={CODE * 4}": "key",
    f"cottage://join?at={AT}&code={CODE}%0A": "key",
    f"cottage://join?at={AT}&code={CODE}&code={CODE}": "twice",
    "cottage://join?at=" + "x" * MAX_LINK: "long",
}


@pytest.mark.parametrize(("text", "said"), GOOD.items())
def test_an_invitation_says_where_and_who(text: str, said: Invitation) -> None:
    assert read(text) == said


@pytest.mark.parametrize(("text", "fault"), BAD.items())
def test_what_is_no_invitation_is_refused_and_told_why(text: str, fault: str) -> None:
    with pytest.raises(InvitationError) as refused:
        read(text)
    assert refused.value.fault == fault
    assert "secret" not in str(refused.value)
    assert len(str(refused.value)) < 300


hosts = st.from_regex(r"[a-z][a-z0-9-]{0,20}[a-z0-9]\.example", fullmatch=True)
addresses = st.builds(
    lambda scheme, host, port: f"{scheme}://{host}" + (f":{port}" if port else ""),
    st.sampled_from(("http", "https")),
    hosts | st.just("127.0.0.1") | st.just("[::1]"),
    st.none() | st.integers(1024, 65535),
)
keys = st.just("") | st.binary(min_size=32, max_size=32).map(base58.encode)


@given(addresses, keys)
def test_what_is_written_is_read_back(url: str, key: str) -> None:
    invitation = Invitation(url, key)
    assert read(invitation.link) == read(invitation.page) == invitation
    assert is_link(invitation.link)
    assert not is_link(invitation.page)


@given(st.text(max_size=200))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    for one in (text, f"cottage://join?{text}", f"cottage://{text}", f"https://cottage.example/join?{text}"):
        try:
            again = read(one)
        except InvitationError:
            continue
        assert read(again.link) == again
