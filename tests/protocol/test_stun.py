"""A STUN Binding against the bytes of the standard's own examples, a real server, and hostile answers."""

import pytest
from aioice import stun
from hypothesis import given
from hypothesis import strategies as st

from protocol.stun import Endpoint, StunError, decode_binding, encode_binding

TRANSACTION = bytes.fromhex("b7e7a701bc34d686fa87dfae")
# RFC 5769, sections 2.2 and 2.3, without MESSAGE-INTEGRITY and FINGERPRINT, which a Binding's asker need not understand.
OVER_IPV4 = bytes.fromhex(
    "0101001c 2112a442 b7e7a701bc34d686fa87dfae 8022000b 7465737420766563746f7220 00200008 0001a147e112a643"
)
OVER_IPV6 = bytes.fromhex(
    "01010028 2112a442 b7e7a701bc34d686fa87dfae 8022000b 7465737420766563746f7220"
    "00200014 0002a147 0113a9faa5d3f179bc25f4b5bed2b9d9"
)


def test_the_answers_of_the_standard_are_understood() -> None:
    assert decode_binding(OVER_IPV4, TRANSACTION) == Endpoint("192.0.2.1", 32853)
    assert decode_binding(OVER_IPV6, TRANSACTION) == Endpoint("2001:db8:1234:5678:11:2233:4455:6677", 32853)


def test_another_implementation_reads_the_question() -> None:
    message = stun.parse_message(encode_binding(TRANSACTION))
    assert (message.message_method, message.message_class) == (stun.Method.BINDING, stun.Class.REQUEST)
    assert message.transaction_id == TRANSACTION


@pytest.mark.parametrize("size", [0, 11, 13])
def test_a_transaction_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="12 bytes"):
        encode_binding(bytes(size))


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (b"", "no STUN answer"),
        (OVER_IPV4[:-4], "not whole"),
        (OVER_IPV4 + bytes(4), "not whole"),
        (b"\x01\x01" + bytes(2) + bytes(4) + TRANSACTION, "not STUN"),
        (b"\x01\x11" + OVER_IPV4[2:], "type 0x0111"),
        (encode_binding(TRANSACTION), "type 0x0001"),
        (OVER_IPV4[:2] + b"\x00\x00" + OVER_IPV4[4:20], "does not tell"),
        (OVER_IPV4[:-7] + b"\x03" + OVER_IPV4[-6:], "neither IPv4 nor IPv6"),
    ],
)
def test_an_answer_that_is_none_is_refused_with_its_reason(answer: bytes, complaint: str) -> None:
    with pytest.raises(StunError, match=complaint):
        decode_binding(answer, TRANSACTION)


def test_an_answer_to_another_question_is_refused() -> None:
    with pytest.raises(StunError, match="another question"):
        decode_binding(OVER_IPV4, bytes(12))


@given(st.binary(max_size=200))
def test_random_attributes_give_an_address_or_one_clear_error(tail: bytes) -> None:
    body = tail + bytes(-len(tail) % 4)
    answer = OVER_IPV4[:2] + len(body).to_bytes(2, "big") + OVER_IPV4[4:20] + body
    try:
        decode_binding(answer, TRANSACTION)
    except StunError:
        return
