"""Tokens as text: whole characters, and nothing of what ends an answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.support.chat_templates import small_tokenizer
from trainer.serve.texts import TextStream

TOKENIZER: Tokenizer = small_tokenizer()
SAID = "A lemon is yellow. 🍋 é 你好! And sour."


def pieces(text: str, *stops: str) -> tuple[list[str], bool]:
    stream = TextStream(TOKENIZER, stops)
    found = [stream.add([token]) for token in TOKENIZER.encode(text, add_special_tokens=False).ids]
    return [*found, stream.end()], stream.stopped


def test_pieces_are_the_text_and_no_character_is_halved() -> None:
    found, stopped = pieces(SAID)
    assert "".join(found) == SAID
    assert not stopped
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(found)
    assert len([piece for piece in found if piece]) > 10


@pytest.mark.parametrize(
    ("stops", "left"),
    [
        (("yellow",), "A lemon is "),
        (("nowhere", "sour"), "A lemon is yellow. 🍋 é 你好! And "),
        (("yellow", "lemon"), "A "),
        (("🍋",), "A lemon is yellow. "),
        (("sour.!", "yellows"), SAID),
        (("low. 🍋 é",), "A lemon is yel"),
    ],
)
def test_an_answer_ends_before_the_first_stop_and_shows_nothing_of_it(stops: tuple[str, ...], left: str) -> None:
    found, stopped = pieces(SAID, *stops)
    assert ("".join(found), stopped) == (left, left != SAID)


@given(st.text(st.sampled_from("ab é🍋"), max_size=40), st.text(st.sampled_from("ab é🍋"), min_size=1, max_size=4))
def test_whatever_the_text_it_is_cut_at_the_stop(text: str, stop: str) -> None:
    before, there, _ = text.partition(stop)
    found, stopped = pieces(text, stop)
    assert "".join(found) == before
    assert stopped == bool(there)


def test_nothing_comes_after_a_stop() -> None:
    stream = TextStream(TOKENIZER, ["b"])
    assert stream.add(TOKENIZER.encode("abab", add_special_tokens=False).ids) == "a"
    assert (stream.add(TOKENIZER.encode("more", add_special_tokens=False).ids), stream.end()) == ("", "")
