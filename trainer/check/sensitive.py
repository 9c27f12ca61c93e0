"""Secrets and personal data in text: keys with a known form, and numbers whose check digits are right.

All patterns go to RE2, which takes time linear in the text whatever it holds, first all at once to see which are worth a search.
Sources: the forms that the services document (also listed by detect-secrets and gitleaks); Luhn's algorithm, ISO/IEC 7812-1;
ISO 13616 for IBANs; RFC 7519 for tokens; ITU E.164 for telephone numbers.
"""

import bisect
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import re2
from stdnum import iban, luhn

_MEMORY = 64 << 20
_ENTROPY = 3.0  # Bits a character; "EXAMPLEKEYEXAMPLE" and placeholders such as xxxx stay below.
_KEEP = 4  # Characters of a secret that are shown at its beginning.


@dataclass(frozen=True)
class Pattern:
    """One kind of thing to find. ``holds``: what must be true of a match, beyond its form."""

    name: str
    group: Literal["secret", "personal"]
    says: str
    pattern: str
    holds: Callable[[str], bool] = lambda _found: True


def _varied(found: str) -> bool:
    """Whether a key looks drawn at random."""
    body = found[_KEEP:]
    counts = Counter(body)
    return -sum(n / len(body) * math.log2(n / len(body)) for n in counts.values()) >= _ENTROPY


def _card(found: str) -> bool:
    digits = "".join(filter(str.isdigit, found))
    return len(set(digits)) > 3 and digits[0] in "23456" and bool(luhn.is_valid(digits))


def _account(found: str) -> bool:
    return bool(iban.is_valid(found))


def _telephone(found: str) -> bool:
    digits = "".join(filter(str.isdigit, found))
    return 8 <= len(digits) <= 15 and len(set(digits)) > 3


def _address(found: str) -> bool:
    domain = found.rpartition("@")[2].lower()
    return not domain.endswith((".png", ".jpg", ".gif", ".svg")) and domain not in ("example.com", "example.org")


_GITHUB = r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,90})\b"
_MAIL = r"(?:^|[^\w/.@%+\-])([A-Za-z0-9][A-Za-z0-9._%+\-]{0,63}@(?:[A-Za-z0-9\-]{1,63}\.){1,4}[A-Za-z]{2,24})\b"
_ABROAD = r"(?:\+|\b00)[1-9](?:[ \-.()/]{0,2}[0-9]){7,14}\b"
_AMERICAN = r"\(?\b[2-9][0-9]{2}\)?[ \-.][2-9][0-9]{2}[\-.][0-9]{4}\b"

KINDS: Sequence[Pattern] = (
    Pattern("private-key", "secret", "private keys", r"-----BEGIN (?:[A-Z]{2,12} ){0,2}PRIVATE KEY(?: BLOCK)?-----"),
    Pattern("aws-key", "secret", "keys of AWS", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b", _varied),
    Pattern("github-token", "secret", "tokens of GitHub", _GITHUB, _varied),
    Pattern("gitlab-token", "secret", "tokens of GitLab", r"\bglpat-[A-Za-z0-9_\-]{20,}", _varied),
    Pattern("slack-token", "secret", "tokens of Slack", r"\bxox[abeoprs]-[0-9A-Za-z\-]{20,}", _varied),
    Pattern("google-key", "secret", "keys of Google", r"\bAIza[0-9A-Za-z_\-]{35}", _varied),
    Pattern("stripe-key", "secret", "keys of Stripe", r"\b[rs]k_(?:live|test)_[0-9A-Za-z]{20,}", _varied),
    Pattern("hugging-face-token", "secret", "tokens of Hugging Face", r"\bhf_[A-Za-z0-9]{34,}\b", _varied),
    Pattern("api-key", "secret", "keys of model services", r"\bsk-(?:[a-z]{2,8}-)?[A-Za-z0-9_\-]{24,}", _varied),
    Pattern("npm-token", "secret", "tokens of npm", r"\bnpm_[A-Za-z0-9]{36}\b", _varied),
    Pattern("sendgrid-key", "secret", "keys of SendGrid", r"\bSG\.[\w\-]{16,32}\.[\w\-]{16,64}", _varied),
    Pattern(
        "web-token",
        "secret",
        "signed web tokens",
        r"\beyJ[A-Za-z0-9_\-]{10,}\.eyJ[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{10,}",
    ),
    Pattern(
        "password-in-address",
        "secret",
        "addresses with a password",
        r"\b[a-z][a-z0-9+.\-]{1,15}://[^\s:/@'\"]{1,64}:[^\s:/@'\"]{3,128}@[\w.\-]+",
    ),
    Pattern("email", "personal", "e-mail addresses", _MAIL, _address),
    Pattern("card", "personal", "card numbers", r"\b[2-6][0-9]{3}(?:[ \-]?[0-9]){9,15}\b", _card),
    Pattern("iban", "personal", "bank accounts (IBAN)", r"\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]){11,30}\b", _account),
    Pattern("telephone", "personal", "telephone numbers", f"{_ABROAD}|{_AMERICAN}", _telephone),
)


@dataclass(frozen=True)
class Hit:
    """Something found in row ``row``, masked."""

    kind: Pattern
    row: int
    shown: str


class Scanner:
    """Finds them in blocks of rows."""

    def __init__(self) -> None:
        options = re2.Options()
        options.max_mem = _MEMORY
        self._any = re2.Set.SearchSet(options)
        for kind in KINDS:
            self._any.Add(kind.pattern)
        self._any.Compile()
        self._each = [re2.compile(kind.pattern, options) for kind in KINDS]

    def scan(self, rows: Sequence[tuple[int, bytes]]) -> Iterator[Hit]:
        """What is in rows of (number, UTF-8); nothing is found across two of them."""
        block = b"\n\n".join(content for _, content in rows)
        starts, at = list[int](), 0
        for _, content in rows:
            starts.append(at)
            at += len(content) + 2
        taken = bytearray(len(block))  # What is something already: an account's digits are no telephone.
        for index in sorted(self._any.Match(block) or ()):
            kind, part = KINDS[index], self._each[index].groups
            for match in self._each[index].finditer(block):
                found, (begin, end) = match.group(part).decode("utf-8", "replace"), match.span(part)
                if kind.holds(found) and 1 not in taken[begin:end]:
                    taken[begin:end] = b"\1" * (end - begin)
                    yield Hit(kind, rows[bisect.bisect_right(starts, begin) - 1][0], mask(kind, found))


def mask(kind: Pattern, found: str) -> str:
    """Enough to find the place, and too little to use: the beginning of a key, the end of a number, a mail's first letter."""
    match kind.name:
        case "private-key":
            return found
        case "email":
            name, _, domain = found.partition("@")
            return f"{name[0]}…@{domain[0]}…{domain[domain.rindex('.') :]}"
        case "password-in-address":
            return f"{found.partition('://')[0]}://…:…@{found.rpartition('@')[2]}"
        case "card" | "telephone" | "iban":
            return f"…{found[-3:]}"
        case _:
            return f"{found[:_KEEP]}… ({len(found)} characters)"
