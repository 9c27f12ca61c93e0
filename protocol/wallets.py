"""Addresses of wallets as people paste them: the one place that reads them, for commands, settings, window and pages.

What surrounds an address does no harm and is taken off: blanks, breaks of lines, what does not show, quotes, and ``solana:`` of a
payment link. Everything else that lands in such a field by mistake is told apart, each with its way out. No message repeats what
was given: it may be the secret of a wallet.
"""

import re
import unicodedata

from common import base58
from common.errors import BadAddressError, SecretPastedError, WalletAddressError
from protocol.identity import ADDRESS_BYTES, parse_address

MAX_TEXT = 2000
"""Characters that a field has to take, for what does not belong there to be told apart."""
_COPY = "copy the address from the wallet itself"
_SECRET = (
    "this is {0}, not its address, and whoever has it has the money. Nothing of it is kept or sent from here. If anybody may "
    "have seen it (a shell keeps a history), move the money to a new wallet; then " + _COPY
)
_HARMLESS = 16  # Characters that no secret is as short as.
_PRIME = 2**255 - 19
_EDWARDS = -121665 * pow(121666, -1, _PRIME) % _PRIME
_WORDS = re.compile(r"(?:(?:\d{1,2}[.):]?\s*)?[^\W\d_]+[\s,;]+){8,}(?:\d{1,2}[.):]?\s*)?[^\W\d_]+")
_NUMBERS = re.compile(r"\[?\s*(?:\d{1,3}\s*,\s*){15,}\d{1,3}\s*,?\s*\]?")
_SECRET_HEX = re.compile(r"(?:0x)?(?:[0-9a-f]{64}|[0-9a-f]{128})", re.IGNORECASE)
_ETHEREUM = re.compile(r"(?:0x[0-9a-f]{1,62}|[0-9a-f]{40})", re.IGNORECASE)
_BITCOIN = re.compile(r"(?:bc|tb)1[02-9ac-hj-np-z]{6,87}", re.IGNORECASE)
_EXTENDED = re.compile(r"[tuvxyz]prv[1-9A-HJ-NP-Za-km-z]+")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):(?://)?", re.IGNORECASE)
_OF_THE_SYSTEM = re.compile(r"1{8}[1-9A-HJ-NP-Za-km-z]{0,2}$")
_PROGRAMS = frozenset(
    {
        "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA",
        "TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb",
        "ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL",
        "MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr",
        "metaqbxxUerdq28cj1RbAWkYQm3ybzjb6a8bt518x1s",
        "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v",
    }
)
"""Programs and tokens of others that stand where one looks for an address."""


def wallet_address(text: str) -> str:
    """The address of a wallet that can be paid, as it is kept.

    Raises:
        WalletAddressError: it is none; SecretPastedError where it is a secret instead.
    """
    address = any_address(text)
    if address in _PROGRAMS or _OF_THE_SYSTEM.search(address):
        raise WalletAddressError(f"this is the address of a program or a token of Solana, where money is lost: {_COPY}")
    if not on_curve(base58.decode(address, ADDRESS_BYTES)):
        what = f"{address[:4]}…{address[-4:]} is no wallet's own address but one that belongs to a token account or a program"
        raise WalletAddressError(
            f"{what}, and nobody could spend what is paid there: {_COPY}, not that of a token within it"
        )
    try:
        parse_address(address)
    except BadAddressError as error:
        raise WalletAddressError(f"nobody has the key of this address: {_COPY}") from error
    return address


def any_address(text: str) -> str:
    """The base58 text of 32 bytes, of whatever on the ledger; raises as ``wallet_address``."""
    whole = unicodedata.normalize("NFC", text[:MAX_TEXT])
    shown = "".join(" " if char.isspace() else char for char in whole if unicodedata.category(char) != "Cf")
    shown = shown.strip().strip("\"'<>`“”„«»").strip()
    _refuse_secrets(shown)
    bare = _without_scheme("".join(shown.split()))
    _refuse_secrets(bare)
    if not bare:
        raise WalletAddressError(f"there is no address: {_COPY}")
    if (other := _of_another_network(bare)) is not None:
        raise WalletAddressError(f"this is {other}, which this network cannot pay: give the address of a Solana wallet")
    try:
        content = base58.decode(bare)
    except BadAddressError:
        raise WalletAddressError(_no_base58(bare)) from None
    if len(content) != ADDRESS_BYTES:
        less = "too short" if len(content) < ADDRESS_BYTES else "too long"
        size = f"it is {less}, {len(content)} bytes and not {ADDRESS_BYTES}"
        raise WalletAddressError(f"{_named(bare)} is no address of Solana ({size}): {_COPY}, whole")
    return bare


def on_curve(public: bytes) -> bool:
    """Whether 32 bytes are a point of Ed25519, as every key is; what programs own is made to be none (RFC 8032, 5.1.3)."""
    y = (int.from_bytes(public, "little") & (1 << 255) - 1) % _PRIME
    square = y * y % _PRIME
    return pow((square - 1) * (_EDWARDS * square + 1), (_PRIME - 1) // 2, _PRIME) in (0, 1)


def _refuse_secrets(text: str) -> None:
    if _WORDS.fullmatch(text):
        raise SecretPastedError(_SECRET.format("the secret words of a wallet"))
    if _NUMBERS.fullmatch(text):
        raise SecretPastedError(_SECRET.format("the content of a wallet's key file"))
    if _SECRET_HEX.fullmatch(text) or _EXTENDED.fullmatch(text) or _is_key(text):
        raise SecretPastedError(_SECRET.format("the private key of a wallet (or the receipt of a payment)"))


def _is_key(text: str) -> bool:
    """Whether it is base58 of a private key: Solana's have 64 bytes, Bitcoin's 37 or 38 and a letter in front."""
    return (size := _bytes_of(text)) == 64 or (size in (37, 38) and text[0] in "59KLc")


def _bytes_of(text: str) -> int:
    """How many bytes a text of base58 stands for; 0 where it is none."""
    try:
        return len(base58.decode(text))
    except BadAddressError:
        return 0


def _without_scheme(text: str) -> str:
    scheme = _SCHEME.match(text)
    if scheme is None:
        return text
    rest, name = text[scheme.end() :], scheme[1].lower()
    if name in ("http", "https") or rest.lower().startswith(("https:", "https%3a")):
        raise WalletAddressError(f"this is a link, not an address: {_COPY}")
    if name not in ("solana", "ethereum", "bitcoin"):
        raise WalletAddressError(f"this is no address of Solana: {_COPY}")
    return re.split(r"[?@/#]", rest, maxsplit=1)[0]


def _of_another_network(text: str) -> str | None:
    if _ETHEREUM.fullmatch(text):
        return "an address of Ethereum"
    if _BITCOIN.fullmatch(text) or (text[0] in "123mn" and _bytes_of(text) == 25):
        return "an address of Bitcoin"
    return "an address of Tron" if text[0] == "T" and _bytes_of(text) == 25 else None


def _named(text: str) -> str:
    return repr(text) if len(text) <= _HARMLESS else "this"


def _no_base58(text: str) -> str:
    if text.lower().endswith((".sol", ".eth")):
        return f"this is a name, not an address: {_COPY}"
    if text.isascii() and text.isalnum() and 32 <= len(text) <= 44:
        return f"this is no address of Solana, which never has 0, O, I or l in it: do not type it, {_COPY}"
    return f"{_named(text)} is no address of Solana, which has 32 to 44 letters and digits: {_COPY}"
