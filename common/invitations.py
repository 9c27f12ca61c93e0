"""Invitations to a network: the coordinator's address and its key in one link, written and read here and nowhere else.

::

    cottage://join?at=https%3A%2F%2Fcottage.example&key=7Kq9…     opens the app
    cottage://join?at=…&key=…&code=4vJ9…                          lets one machine in, where a network asks who comes
    https://cottage.example/join?key=7Kq9…                        the same as a page, on any device
    cottage://join?at=…&key=…&job=3f2a…                           to a federation of it, for owners of data
    https://cottage.example                                       the address alone: whoever answers there is believed

The key is what the coordinator has to prove when a node greets it, so whoever takes over the address is found out.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qsl, quote

from common import base58
from common.errors import BadAddressError, InvitationError, UrlError
from common.urls import MAX_URL, parse_url, parts

SCHEME, WORD, PAGE = "cottage", "join", "/join"
MAX_LINK = 3 * MAX_URL  # Each character of an address may be written as three.
KEY_BYTES = 32
_JOB = r"[0-9a-f]{32}"
_CODE = rf"[{base58.ALPHABET}]{{16,64}}"

Fault = Literal["empty", "address", "word", "part", "twice", "missing", "key", "long"]
"""What is wrong with an invitation, for programs that have words of their own; ``part``: it holds what is not known here."""


@dataclass(frozen=True)
class Invitation:
    """``url``: of the coordinator, without a path; ``key``: base58 of 32 bytes, empty where none is asked for.
    ``code``: a secret that lets one machine in; empty: the invitation is for everybody. ``job``: of a federation; empty: to the
    network alone."""

    url: str
    key: str = ""
    code: str = field(default="", repr=False)
    job: str = ""

    @property
    def link(self) -> str:
        """As the app is called with it."""
        return f"{SCHEME}://{WORD}?{self._said(at=quote(self.url, safe=''))}"

    @property
    def page(self) -> str:
        """As a page of the coordinator, which shows the link."""
        said = self._said()
        return f"{self.url}{PAGE}{f'?{said}' if said else ''}"

    def _said(self, **first: str) -> str:
        said = first | {"key": self.key, "code": self.code, "job": self.job}
        return "&".join(f"{name}={value}" for name, value in said.items() if value)


def is_link(text: str) -> bool:
    """Whether the system means us by it, though it may be malformed."""
    return text.strip().lower().startswith(f"{SCHEME}:")


def read(text: str) -> Invitation:
    """What a link, the address of the page of one, or a coordinator's address says.

    Raises:
        InvitationError: nothing that could be used; ``fault`` says which.
    """
    text = text.strip()
    if not text:
        raise InvitationError("there is no address and no invitation", "empty")
    if len(text) > MAX_LINK:
        raise InvitationError(
            f"the invitation is longer than {MAX_LINK:,} characters: it was not made by Cottage", "long"
        )
    return _of_link(text) if is_link(text) else _of_page(text)


def _of_link(text: str) -> Invitation:
    try:
        link = parts(text)
    except UrlError as error:
        raise InvitationError("the link cannot be read: copy the whole of it once more", "word") from error
    if link.netloc.lower() != WORD or link.path not in ("", "/") or link.fragment:
        raise InvitationError(f"the link is no invitation: one begins with {SCHEME}://{WORD}?", "word")
    said = _parts(link.query)
    if not said.get("at"):
        raise InvitationError("the invitation names no address: copy the whole of it once more", "missing")
    return Invitation(_address(said["at"]), *_secrets(said), _job(said))


def _of_page(text: str) -> Invitation:
    """An address, or the page of an invitation; the path of an address is nothing that a coordinator knows."""
    url = _address(text)
    page = parts(text)
    if page.path.rstrip("/") != PAGE:
        return Invitation(url)
    said = _parts(page.query)
    return Invitation(url, *_secrets(said), _job(said))


def _parts(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict", max_num_fields=8)
    except ValueError as error:
        raise InvitationError("the link cannot be read: copy the whole of it once more", "word") from error
    said = dict(pairs)
    if len(said) < len(pairs):
        raise InvitationError("the invitation says the same thing twice: ask for another one", "twice")
    if unknown := sorted(said.keys() - {"at", "key", "code", "job"}):
        shown = ascii(unknown[0][:40])
        raise InvitationError(f"the invitation holds {shown}, which this version does not know: update Cottage", "part")
    return said


def _address(text: str) -> str:
    try:
        return str(parse_url(text).with_path("").with_query(None))
    except UrlError as error:
        raise InvitationError(f"{error}, such as https://cottage.example", "address") from error


def _secrets(said: Mapping[str, str]) -> tuple[str, str]:
    """The key and the code."""
    key, code = _key(said.get("key", "")), said.get("code", "")
    if code and not re.fullmatch(_CODE, code):
        raise InvitationError("the code in the invitation is damaged: copy the whole of it once more", "key")
    return key, code


def _job(said: Mapping[str, str]) -> str:
    job = said.get("job", "")
    if job and not re.fullmatch(_JOB, job):
        raise InvitationError("the federation in the invitation is damaged: copy the whole of it once more", "key")
    return job


def _key(text: str) -> str:
    if text:
        try:
            base58.decode(text, KEY_BYTES)
        except BadAddressError as error:
            raise InvitationError(
                "the key in the invitation is damaged: copy the whole of it once more", "key"
            ) from error
    return text
