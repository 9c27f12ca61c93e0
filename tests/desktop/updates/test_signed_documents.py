"""What holds for every kind of document that the release key signs: the same attacks on update manifest and image statement."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from desktop.agent.sandbox.statement import STATEMENT, Archive, Newest, SandboxImage
from desktop.agent.updates.manifest import MANIFEST, Seen
from protocol.codec import encode_json
from protocol.identity import NodeKey
from protocol.signatures.signed_documents import DocumentKind, digest_of
from tests.desktop.updates.support import KEY, described, manifest_of

NOW = 1_800_000_000
STRANGER = NodeKey(b"\7" * 32)


@dataclass
class Case:
    """A kind, a document of it, and what a home keeps of the newest."""

    kind: DocumentKind[Any]
    content: Any
    nothing: Any

    def __post_init__(self) -> None:
        self.document = self.kind.sign(self.content, KEY)

    def __str__(self) -> str:
        return f"{self.kind.noun} 5{self.kind.about}"


ARCHIVE = Archive("image.tar", "0" * 64, 1)
CASES = [
    Case(MANIFEST, manifest_of(described(b"x"), number=5, expires=NOW + 10), Seen()),
    Case(
        STATEMENT,
        SandboxImage(5, "cottage-trainer:0.2.0", (f"sha256:{'a' * 64}",), ARCHIVE, NOW - 10, NOW + 10, KEY.address),
        Newest(),
    ),
]
each = pytest.mark.parametrize("case", CASES, ids=str)


@each
def test_a_document_is_read_as_it_was_signed_however_it_was_written(case: Case) -> None:
    assert case.kind.read(case.document, KEY.address) == case.content
    loose = msgspec.json.format(case.document, indent=4)
    assert loose != case.document
    assert case.kind.read(loose, KEY.address) == case.content
    plain = encode_json(case.content)
    assert b" " not in plain
    assert list(json.loads(plain)) == sorted(json.loads(plain))


@each
def test_another_key_is_not_believed(case: Case) -> None:
    with pytest.raises(case.kind.error, match=r"cannot be believed.*not by"):
        case.kind.read(case.kind.sign(case.content, STRANGER), KEY.address)


def test_a_signature_of_one_kind_is_none_of_another() -> None:
    for case, other in zip(CASES, reversed(CASES), strict=True):
        field = case.kind.envelope.__struct_fields__[0]
        signature = KEY.sign(other.kind.context, encode_json(case.content)).hex()
        forged = encode_json({field: case.content, "signature": signature})
        with pytest.raises(case.kind.error, match="cannot be believed"):
            case.kind.read(forged, KEY.address)


@each
@given(data=st.data())
def test_a_document_that_was_cut_anywhere_is_refused(case: Case, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, len(case.document) - 1))
    with pytest.raises(case.kind.error):
        case.kind.read(case.document[:length], KEY.address)


@each
@given(data=st.data(), change=st.integers(1, 255))
def test_a_changed_byte_is_refused_or_changes_nothing(case: Case, data: st.DataObject, change: int) -> None:
    changed = bytearray(case.document)
    changed[data.draw(st.integers(0, len(case.document) - 1))] ^= change
    try:
        found = case.kind.read(bytes(changed), KEY.address)
    except case.kind.error:
        return
    assert found == case.content


@each
def test_a_document_that_is_too_long_is_refused(case: Case) -> None:
    with pytest.raises(case.kind.error, match="cannot be believed"):
        case.kind.read(case.document + b" " * case.kind.limit, KEY.address)


@each
def test_neither_an_expired_nor_an_older_nor_another_one_of_the_same_number_is_followed(case: Case) -> None:
    judge, own = case.kind.judge, digest_of(case.content)
    judge(case.content, 0, "", NOW)
    judge(case.content, 5, own, NOW)  # Seen again.
    with pytest.raises(case.kind.error, match=f"{case} has expired: "):
        judge(case.content, 0, "", case.content.expires)
    with pytest.raises(case.kind.error, match=f"{case} is older than 6, which was seen before"):
        judge(case.content, 6, own, NOW)
    several = f"there are two {case.kind.noun}s{case.kind.about} with the number 5: neither is believed"
    with pytest.raises(case.kind.error, match=several):
        judge(case.content, 5, "another", NOW)


@each
def test_what_was_seen_is_kept_whole_or_not_at_all(case: Case, tmp_path: Path) -> None:
    file = tmp_path / "seen.json"
    assert case.kind.seen(file, case.nothing) == case.nothing
    newest = msgspec.structs.replace(case.nothing, number=5, digest="d")
    case.kind.keep(file, encode_json(newest))
    assert case.kind.seen(file, case.nothing) == newest
    (tmp_path / "seen.new").mkdir()
    with pytest.raises(case.kind.error, match=r"seen\.new cannot be written"):
        case.kind.keep(file, encode_json(case.nothing))
    assert case.kind.seen(file, case.nothing) == newest
    file.write_text(json.dumps({"number": "many"}))
    with pytest.raises(case.kind.error, match=f"Delete it if you trust the {case.kind.server} server now"):
        case.kind.seen(file, case.nothing)
