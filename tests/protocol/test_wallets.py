"""What people paste where a wallet's address belongs: the harmless is taken, the rest told apart, and no secret repeated."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mnemonic import Mnemonic
from solders.pubkey import Pubkey
from spl.token.constants import ASSOCIATED_TOKEN_PROGRAM_ID, TOKEN_2022_PROGRAM_ID, TOKEN_PROGRAM_ID
from spl.token.instructions import get_associated_token_address

from common import base58
from common.errors import SecretPastedError, WalletAddressError
from protocol.identity import NodeKey
from protocol.wallets import any_address, on_curve, wallet_address

KEY = NodeKey(bytes(range(32)))
WALLET = KEY.address
SEED, WHOLE = KEY.seed, KEY.seed + KEY.public
PDA = str(Pubkey.find_program_address([b"vault"], TOKEN_PROGRAM_ID)[0])
TOKEN_ACCOUNT = str(get_associated_token_address(Pubkey.from_string(WALLET), TOKEN_PROGRAM_ID))
WORDS = Mnemonic("english").to_mnemonic(bytes(16))
LONG_WORDS = Mnemonic("english").to_mnemonic(SEED)

HARMLESS = [
    WALLET,
    f"  {WALLET}\t",
    f"{WALLET}\r\n",
    f"{WALLET[:20]}\n  {WALLET[20:]}",
    f"\ufeff{WALLET[:7]}\u200b{WALLET[7:]}\u200d",
    f"\u00a0{WALLET}\u2007",
    f"\u202a{WALLET}\u202c",
    f"'{WALLET}'",
    f"“{WALLET}”",
    f"solana:{WALLET}",
    f"SOLANA:{WALLET}?amount=1&spl-token={PDA}&label=Ada%20L",
    f"solana://{WALLET}/",
]

WRONG = {
    "": "there is no address: copy",
    " \u200b\n": "there is no address: copy",
    "solana:": "there is no address: copy",
    PDA: f"{PDA[:4]}…{PDA[-4:]} is no wallet's own address but one that belongs to a token account or a program",
    TOKEN_ACCOUNT: "belongs to a token account or a program, .* not that of a token within it",
    base58.encode(KEY.public[:31]): r"no address of Solana \(it is too short, 31 bytes and not 32\): copy",
    base58.encode(b"\1" + KEY.public): r"no address of Solana \(it is too long, 33 bytes and not 32\): copy",
    WALLET[:-1]: "too short|token account",
    WALLET + WALLET[:9]: "too long",
    "1" * 32: "program or a token of Solana",
    "So11111111111111111111111111111111111111112": "program or a token of Solana",
    "Vote111111111111111111111111111111111111111": "program or a token of Solana",
    "1nc1nerator11111111111111111111111111111111": "program or a token of Solana",
    str(TOKEN_PROGRAM_ID): "program or a token of Solana",
    str(TOKEN_2022_PROGRAM_ID): "program or a token of Solana",
    str(ASSOCIATED_TOKEN_PROGRAM_ID): "program or a token of Solana",
    "0x52908400098527886E0F7030069857D2E4169EE7": "address of Ethereum, which this network cannot pay",
    "52908400098527886e0f7030069857d2e4169ee7": "address of Ethereum",
    "ethereum:0x52908400098527886E0F7030069857D2E4169EE7@1": "address of Ethereum",
    "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa": "address of Bitcoin",
    "3J98t1WpEZ73CNmQviecrnyiWrnqRhWNLy": "address of Bitcoin",
    "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4": "address of Bitcoin",
    "BC1QW508D6QEJXTDG4Y5R3ZARVARY0C5XW7KV8F3T4": "address of Bitcoin",
    "bitcoin:1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa?amount=1": "address of Bitcoin",
    "TJCnKsPa7y5okkXvQAidZBzqx3QyQ6sxMW": "address of Tron",
    "solana:https%3A%2F%2Fpay.example%2Ftx": "this is a link",
    f"https://explorer.solana.com/address/{WALLET}": "this is a link",
    f"mailto:{WALLET}": "no address of Solana",
    "ada.sol": "this is a name, not an address",
    "ada.eth": "this is a name",
    WALLET[:9] + "0" + WALLET[10:]: "never has 0, O, I or l in it",
    "nobody": r"'nobody' is no address of Solana \(it is too short",
    "no wallet!": "'nowallet!' is no address of Solana, which has 32 to 44 letters and digits",
    "not a wallet": "'notawallet' is no address",
    "🦊" * 40: "this is no address of Solana",
    "x" * 5000: "no address of Solana|too long",
}

SECRETS = {
    "words": WORDS,
    "more words": LONG_WORDS,
    "words in lines": LONG_WORDS.replace(" ", "\n"),
    "words with commas": WORDS.replace(" ", ", "),
    "numbered words": " ".join(f"{n}. {word}" for n, word in enumerate(WORDS.split(), 1)),
    "numbered lines": "\n".join(f"{n}){word}" for n, word in enumerate(LONG_WORDS.split(), 1)),
    "capital words": WORDS.upper(),
    "Spanish words": Mnemonic("spanish").to_mnemonic(SEED),
    "Japanese words": Mnemonic("japanese").to_mnemonic(SEED),
    "a key file": json.dumps(list(WHOLE)),
    "a key file without its brackets": ",".join(map(str, WHOLE)),
    "a seed in numbers": json.dumps(list(SEED)),
    "base58": base58.encode(WHOLE),
    "base58 in two lines": base58.encode(WHOLE)[:40] + "\n" + base58.encode(WHOLE)[40:],
    "a link with it": f"solana:{base58.encode(WHOLE)}",
    "hexadecimal": WHOLE.hex(),
    "a seed in hexadecimal": SEED.hex().upper(),
    "Ethereum's": f"0x{SEED.hex()}",
    "Bitcoin's": "5HueCGU8rMjxEXxiPuD5BDku4MkFqeZyd4dZ1jvhTVqvbTLvyTJ",
    "Bitcoin's, compressed": "KwdMAjGmerYanjeui5SHS7JkmpZvVipYvB2LJGU1ZxJwYvP98617",
    "an extended one": "xprv9s21ZrQH143K3QTDL4LXw2F7HEK3wJUD2nW2nRk4stbPy6cq3jPPqjiChkVvvNKmPGJxWUtg6LnF5kejMRNNU3TGtRBeJgk33"
    "yuGBxrMPHi",
}


@pytest.mark.parametrize("text", HARMLESS)
def test_what_surrounds_an_address_does_no_harm(text: str) -> None:
    assert wallet_address(text) == any_address(text) == WALLET


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_wallets_address_is_told_apart_with_the_way_out(text: str) -> None:
    with pytest.raises(WalletAddressError, match=WRONG[text]) as refused:
        wallet_address(text)
    assert not isinstance(refused.value, SecretPastedError)
    assert len(text) <= 16 or text not in str(refused.value)


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_that_was_pasted_is_named_and_nothing_of_it_repeated(kind: str) -> None:
    for read in (wallet_address, any_address):
        with pytest.raises(SecretPastedError, match=r"whoever has it has the money.* move the money") as refused:
            read(SECRETS[kind])
        said = str(refused.value)
        assert not any(part in said for part in SECRETS[kind].split() if len(part) > 8)
        assert refused.value.__cause__ is None


def test_a_seed_in_base58_looks_like_an_address_and_is_not_repeated_either() -> None:
    seed = next(text for n in range(99) if not on_curve(base58.decode(text := base58.encode(bytes([n + 1] * 32)))))
    with pytest.raises(WalletAddressError) as refused:
        wallet_address(seed)
    assert seed not in str(refused.value)


@given(st.binary(min_size=32, max_size=32))
def test_what_lies_on_the_curve_is_what_the_ledgers_own_code_says(public: bytes) -> None:
    assert on_curve(public) == Pubkey.from_bytes(public).is_on_curve()


@given(st.binary(min_size=32, max_size=32))
def test_every_nodes_own_address_is_a_wallets(seed: bytes) -> None:
    assert wallet_address(NodeKey(seed).address) == NodeKey(seed).address


@given(st.text(max_size=300))
def test_no_text_is_more_than_it_can_tell_apart(text: str) -> None:
    with contextlib.suppress(WalletAddressError):
        assert len(base58.decode(wallet_address(text))) == 32
