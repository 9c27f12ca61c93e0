"""A node is its key: addresses, signatures and the file that keeps the secret."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.keypair import Keypair

from common import base58
from common.errors import BadAddressError, BadSignatureError, KeyFileError
from protocol.identity import NodeKey, parse_address, signed_bytes, verify


@pytest.fixture
def key() -> NodeKey:
    return NodeKey(bytes(range(32)))


def test_the_address_is_the_solana_address_of_the_same_seed(key: NodeKey) -> None:
    assert key.address == str(Keypair.from_seed(key.seed).pubkey())


def test_a_signature_verifies_for_its_context_and_parts(key: NodeKey) -> None:
    verify(key.address, key.sign("test/1", b"a", b"b"), "test/1", b"a", b"b")


@pytest.mark.parametrize(
    ("context", "parts"),
    [
        ("test/2", (b"a", b"b")),
        ("test/1", (b"ab", b"")),
        ("test/1", (b"", b"ab")),
        ("test/1", (b"ab",)),
        ("test/1", (b"a", b"b", b"")),
    ],
)
def test_a_signature_fits_nothing_else(key: NodeKey, context: str, parts: tuple[bytes, ...]) -> None:
    signature = key.sign("test/1", b"a", b"b")
    with pytest.raises(BadSignatureError):
        verify(key.address, signature, context, *parts)


def test_a_signature_by_another_key_is_refused(key: NodeKey) -> None:
    with pytest.raises(BadSignatureError, match=key.address):
        verify(key.address, NodeKey.generate().sign("test/1", b"a"), "test/1", b"a")


@pytest.mark.parametrize("length", [0, 63, 65])
def test_a_signature_of_another_length_is_refused(key: NodeKey, length: int) -> None:
    with pytest.raises(BadSignatureError, match=str(length)):
        verify(key.address, bytes(length), "test/1")


@pytest.mark.parametrize("context", ["", "x" * 65])
def test_a_context_has_bounds(key: NodeKey, context: str) -> None:
    with pytest.raises(ValueError, match="context"):
        key.sign(context, b"a")


@given(st.lists(st.binary(max_size=8), max_size=4), st.lists(st.binary(max_size=8), max_size=4))
def test_different_parts_never_sign_the_same_bytes(left: list[bytes], right: list[bytes]) -> None:
    assert (signed_bytes("c", *left) == signed_bytes("c", *right)) == (left == right)


def test_what_is_signed_can_not_be_a_solana_transaction() -> None:
    # A transaction opens with a count of signatures below 128 or a version byte of 0x80 + version, of which 0x80 and 0x81 exist.
    assert signed_bytes("c")[0] == 0xFF


@pytest.mark.parametrize(
    "point",
    [
        "00" * 32,
        "00" * 31 + "80",
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
        "ec" + "ff" * 30 + "7f",
    ],
)
def test_a_point_of_small_order_is_no_address(point: str) -> None:
    with pytest.raises(BadAddressError, match="small order"):
        parse_address(base58.encode(bytes.fromhex(point)))


def test_without_that_check_a_forged_signature_would_pass() -> None:
    """Why the points are refused: with the identity as key, R = identity and s = 0 sign everything."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    identity = b"\x01" + bytes(31)
    Ed25519PublicKey.from_public_bytes(identity).verify(identity + bytes(32), b"anything at all")
    with pytest.raises(BadAddressError):
        verify(base58.encode(identity), identity + bytes(32), "c", b"anything at all")


@pytest.mark.parametrize(
    "text", ["", "0OIl", "1" * 33, "z" * 44, "1" * 10_000, "é" * 32, "11111111111111111111111111111112 "]
)
def test_a_text_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadAddressError):
        parse_address(text)


@given(st.binary(max_size=base58.MAX_BYTES))
def test_base58_returns_what_was_encoded(data: bytes) -> None:
    assert base58.decode(base58.encode(data), len(data)) == data


def test_base58_has_bounds() -> None:
    assert len(base58.encode(b"\xff" * base58.MAX_BYTES)) <= base58.MAX_CHARS
    with pytest.raises(BadAddressError, match="too many"):
        base58.encode(bytes(base58.MAX_BYTES + 1))


def test_a_saved_key_comes_back_and_is_private(tmp_path: Path, key: NodeKey) -> None:
    path = tmp_path / "deep" / "node.json"
    key.save(path)
    assert NodeKey.load(path).address == key.address
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_saved_key_is_a_solana_key_file(tmp_path: Path, key: NodeKey) -> None:
    key.save(tmp_path / "k")
    assert str(Keypair.from_json((tmp_path / "k").read_text()).pubkey()) == key.address


def test_a_key_is_never_overwritten(tmp_path: Path, key: NodeKey) -> None:
    key.save(tmp_path / "k")
    with pytest.raises(KeyFileError, match="already holds a key"):
        NodeKey.generate().save(tmp_path / "k")
    assert NodeKey.load(tmp_path / "k").address == key.address
    assert len(list(tmp_path.iterdir())) == 1


def test_a_key_that_others_can_read_is_refused(tmp_path: Path, key: NodeKey) -> None:
    key.save(tmp_path / "k")
    os.chmod(tmp_path / "k", 0o640)
    with pytest.raises(KeyFileError, match="chmod 600"):
        NodeKey.load(tmp_path / "k")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"[1,2,3]",
        json.dumps([300] * 64).encode(),
        json.dumps(["a"] * 64).encode(),
        b"[" * 9000,
        b"\xff\xfe",
    ],
)
def test_a_file_that_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "k"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="not a key file"):
        NodeKey.load(path)


def test_a_key_with_a_foreign_public_half_is_refused(tmp_path: Path, key: NodeKey) -> None:
    path = tmp_path / "k"
    path.write_text(json.dumps(list(key.seed + NodeKey.generate().public)))
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="damaged"):
        NodeKey.load(path)


def test_a_missing_key_is_made_once(tmp_path: Path) -> None:
    first = NodeKey.load_or_generate(tmp_path / "k")
    assert NodeKey.load_or_generate(tmp_path / "k").address == first.address


def test_a_key_where_none_can_be_written_says_so(tmp_path: Path, key: NodeKey) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KeyFileError, match="cannot write"):
        key.save(tmp_path / "file" / "k")
    with pytest.raises(KeyFileError, match="cannot read"):
        NodeKey.load(tmp_path / "none")


def test_a_key_shows_its_address_and_never_its_seed(key: NodeKey) -> None:
    assert key.address in repr(key)
    assert key.seed.hex() not in repr(key)


def test_several_that_begin_at_once_in_one_folder_have_one_key(tmp_path: Path) -> None:
    for number in range(20):
        path, start = tmp_path / f"{number}.key", threading.Barrier(8)

        def begin(path: Path = path, start: threading.Barrier = start) -> str:
            start.wait()
            return NodeKey.load_or_generate(path).address

        with ThreadPoolExecutor(8) as pool:
            assert len({found.result() for found in [pool.submit(begin) for _ in range(8)]}) == 1
