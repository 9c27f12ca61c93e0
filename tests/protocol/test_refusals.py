"""What the codec says of data that do not fit: the field, what it holds and what it may hold, in no library's words."""

from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from protocol.codec import MessageError, convert, decode, decode_json, encode
from protocol.job.job import JobSpec

_KINDS = Literal["cosine", "linear"]


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    steps: Annotated[int, Meta(ge=1, le=1024)]
    rate: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    schedule: _KINDS = "cosine"
    pairs: tuple[int, int] = (1, 1)
    even: tuple[Annotated[int, Meta(multiple_of=2)], ...] = ()


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=3, pattern=r"^[a-z]*$")] = "a"
    inner: Inner | None = None
    counts: dict[str, int] = {}
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")] | None = None
    flag: bool = False
    some: Annotated[tuple[int, ...], Meta(min_length=1, max_length=2)] = (1,)
    data: bytes = b""
    keyed: dict[Annotated[str, Meta(pattern=r"^[a-z]*$")], int] = {}


class First(msgspec.Struct, tag="first"):
    x: int


class Second(msgspec.Struct, tag="second"):
    y: int


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"nmae": "a"}, "it has no field 'nmae': the nearest is name"),
        ({"inner": {"step": 1}}, "inner has no field 'step': the nearest is steps"),
        ({"inner": {"qqqq": 1}}, "inner has no field 'qqqq': there are steps, rate, schedule, pairs, even"),
        ({"inner": {}}, "inner.steps is missing: give it"),
        ({"inner": {"steps": 0}}, "inner.steps is 0, and must be at least 1"),
        ({"inner": {"steps": 5000}}, "inner.steps is 5000, and must be at most 1,024"),
        ({"inner": {"steps": "ten"}}, "inner.steps is 'ten', and must be a whole number, not text"),
        ({"inner": {"steps": 1.5}}, "inner.steps is 1.5, and must be a whole number, not a number"),
        ({"inner": {"steps": None}}, "inner.steps must be a whole number, not empty"),
        ({"inner": {"steps": 1, "rate": 1.0}}, "inner.rate is 1.0, and must be less than 1"),
        ({"inner": {"steps": 1, "rate": 0}}, "inner.rate is 0, and must be more than 0"),
        ({"inner": {"steps": 1, "schedule": "cosin"}}, "inner.schedule is 'cosin': it is one of cosine, linear"),
        ({"inner": {"steps": 1, "pairs": [1]}}, "inner.pairs must have exactly 2 entries"),
        ({"inner": {"steps": 1, "even": [2, 3]}}, "inner.even[1] is 3, and must be a multiple of 2"),
        ({"inner": 3}, "inner must be a table of names and values or empty, not a whole number"),
        ({"name": ""}, "name must not be empty"),
        ({"name": "aaaa"}, "name must have at most 3 characters"),
        ({"name": "A"}, "name has characters that are not taken here"),
        ({"keyed": {"A": 1}}, "keyed has a name that has characters that are not taken here"),
        ({"name": 3}, "name must be text, not a whole number"),
        ({"counts": {"k": "v"}}, "counts (one of its entries) must be a whole number, not text"),
        ({"digest": "abc"}, "digest must be 64 characters of 0-9 and a-f"),
        ({"flag": "yes"}, "flag must be true or false, not text"),
        ({"some": []}, "some must not be empty"),
        ({"some": [1, 2, 3]}, "some must have at most 2 entries"),
        ({"data": "%%"}, "data must be bytes in base64"),
        ([1], "it must be a table of names and values, not a list"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_in_words(document: Any, said: str) -> None:
    with pytest.raises(MessageError) as from_plain:
        convert(document, Outer)
    with pytest.raises(MessageError) as from_json:
        decode_json(msgspec.json.encode(document), Outer)
    assert str(from_json.value) == said
    assert str(from_plain.value) == said or "steps is 1.5" in said


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it is empty"),
        (b'{"name":', "it is cut off: its end is missing"),
        (b'{"name": "\\ud83d"}', "it has half a character, as \\ud83d alone: mend that"),
        (b'{"flag": true,}', "it is no JSON, from line 1 on: '}'"),
        (b'{"inner":\n {"steps": NaN}}', "it holds NaN on line 2: only finite numbers are taken"),
        (b'{"inner": {"steps": -Infinity}}', "it holds -Infinity on line 1: only finite numbers are taken"),
        (b'{"name": NaNcy}', "it is no JSON, from line 1 on: 'NaNcy}'"),
        (b'{"name": "\xff"}', "it holds text that is not UTF-8"),
        (b"<html>sign in</html>", "it is no JSON, from line 1 on: '<html>sign in</html>'"),
    ],
)
def test_bytes_that_are_no_json_are_refused_in_words(data: bytes, said: str) -> None:
    with pytest.raises(MessageError) as refused:
        decode_json(data, Outer)
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\xc1", "it is no message, from byte 0 on"),
        (b"\x81", "it is cut off: its end is missing"),
        (msgspec.msgpack.encode({"type": "frist"}), "type is 'frist': it is one of first, second"),
        (msgspec.msgpack.encode({"x": 1}), "type is missing: give it"),
        (encode(First("no")), "x must be a whole number, not text"),  # type: ignore[arg-type]
    ],
)
def test_messages_between_machines_are_refused_in_words(data: bytes, said: str) -> None:
    with pytest.raises(MessageError) as refused:
        decode(data, First | Second)
    assert str(refused.value) == said


def test_field_and_words_are_apart_for_forms() -> None:
    with pytest.raises(MessageError) as refused:
        convert({"inner": {"steps": 0}}, Outer)
    assert (refused.value.field, refused.value.words) == ("inner.steps", "is 0, and must be at least 1")


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"modell": {}}, "it has no field 'modell': the nearest is model"),
        ({"name": "a", "training": {"batchh": 1}}, "training has no field 'batchh': the nearest is batch"),
        ({"training": {"quantize": "nf4"}}, "training has no field 'quantize': it is lora.quantize"),
        ({"training": {"lora": {"r": 8}}}, "training.lora has no field 'r': it is rank here"),
        ({"training": {"epochs": 3}}, "training has no field 'epochs': it is tokens here"),
        ({"tokens": 1000}, "it has no field 'tokens': it is training.tokens"),
    ],
)
def test_a_job_document_names_the_nearest_words(document: Any, said: str) -> None:
    with pytest.raises(MessageError) as refused:
        convert(document, JobSpec)
    assert str(refused.value).startswith(said)


def test_the_words_of_a_type_that_checks_itself_stay_as_they_are() -> None:
    class Span(msgspec.Struct):
        first: int
        last: int

        def __post_init__(self) -> None:
            if self.last < self.first:
                raise ValueError(f"it ends at {self.last}, before {self.first}: swap them")

    class Holder(msgspec.Struct):
        span: Span

    with pytest.raises(MessageError) as refused:
        convert({"span": {"first": 2, "last": 1}}, Holder)
    assert str(refused.value) == "span: it ends at 1, before 2: swap them"
    assert (refused.value.field, refused.value.words) == ("span", "it ends at 1, before 2: swap them")


def test_secrets_and_long_texts_are_not_repeated() -> None:
    class Login(msgspec.Struct):
        key: Annotated[str, Meta(max_length=8)]

    with pytest.raises(MessageError) as refused:
        convert({"key": "hunter2-hunter2"}, Login)
    assert str(refused.value) == "key must have at most 8 characters"
