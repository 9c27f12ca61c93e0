"""One word for one thing: no two public classes of one name, and a vocabulary that has each word once."""

import ast
import re
import tokenize
from collections import Counter, defaultdict

from tests.test_banned_calls import ROOMS, ROOT, parsed

STAND_INS = ROOT / "installer" / "desktop" / "stubs"
"""Of another library, under its names."""
VOCABULARY = ROOT / "docs" / "reference" / "vocabulary.md"


def public_classes() -> dict[str, list[str]]:
    """Where each name of a public class of the product is defined."""
    found = defaultdict(list)
    for file in sorted(file for room in ROOMS for file in (ROOT / room).rglob("*.py")):
        if STAND_INS in file.parents:
            continue
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    return found


def test_no_two_public_classes_have_one_name() -> None:
    classes = public_classes()
    assert len(classes) > 500
    repeated = {name: places for name, places in classes.items() if len(places) > 1}
    assert not repeated, f"name each for its subject, as in JobPace and ReplicaPace: {repeated}"


def test_the_vocabulary_has_each_word_once() -> None:
    rows = [line for line in VOCABULARY.read_text().splitlines() if line.startswith("| **")]
    words = [word.strip() for row in rows for bold in re.findall(r"\*\*([^*]+)\*\*", row) for word in bold.split(",")]
    assert len(words) > 60
    twice = sorted(word for word, count in Counter(words).items() if count > 1)
    assert not twice, f"say what each is of, as in auditor (of the operator): {twice}"


def test_every_module_calls_its_logger_the_same() -> None:
    named = re.compile(r"^(\w+)(?:: logging\.Logger)? = logging\.getLogger\(", re.MULTILINE)
    files = (file for room in ROOMS for file in (ROOT / room).rglob("*.py"))
    found = Counter(name for file in files for name in named.findall(file.read_text()))
    assert set(found) == {"LOG"}, found


def test_constants_in_seconds_end_in_one_suffix() -> None:
    others = re.compile(r"\b[A-Z][A-Z0-9_]*_(?:SECONDS|SECS?)\b")
    files = (file for room in ROOMS for file in (ROOT / room).rglob("*.py"))
    found = {name for file in files for name in others.findall(file.read_text())}
    assert not found, f"write _S: {found}"


def root_of(word: str) -> str:
    """A word without its ending: that of opening, openings and opened."""
    return re.sub(r"(?<=\w{3})(?:ations?|ings?|ers?|ies|es|ed|s|y|e)$", "", word)


def test_no_two_modules_of_a_room_differ_by_an_ending_only() -> None:
    for room in ROOMS:
        for folder in sorted({file.parent for file in (ROOT / room).rglob("*.py")}):
            roots = defaultdict(list)
            for file in sorted(folder.glob("*.py")):
                roots["_".join(map(root_of, file.stem.split("_")))].append(file.name)
            twins = {root: names for root, names in roots.items() if len(names) > 1}
            assert not twins, f"{folder.relative_to(ROOT)}: {twins}"


PRIVATE = {"beacons", "courtesy", "doubts", "halts", "handout", "leavings", "outlook", "shelf", "visits"}
"""Words of ours for what the field has a word for: draw blocks, transfer pacing, peer audits, pauses, relay assignment, ..."""


def test_what_the_field_has_a_word_for_is_called_so() -> None:
    found = defaultdict(set)
    for file in (file for room in ROOMS for file in (ROOT / room).rglob("*.py")):
        with tokenize.open(file) as source:
            names = {token.string for token in tokenize.generate_tokens(source.readline) if token.type == tokenize.NAME}
        for name in names:
            words = set(re.findall(r"[a-z]+|[A-Z][a-z]*", name))
            if private := {word.lower() for word in words} & PRIVATE:
                found[", ".join(private)].add(f"{file.relative_to(ROOT)}: {name}")
    assert not found, f"see the vocabulary: {dict(found)}"


def test_a_comment_stands_above_what_it_explains() -> None:
    """One behind a long statement has the formatter break it over three lines, and then stands behind a bracket."""
    after = re.compile(r"^\s*[)\]}]  # (?!type:|fmt:|noqa)")
    files = (file for room in (*ROOMS, "tests", "benchmarks") for file in (ROOT / room).rglob("*.py"))
    found = [f"{file}: {line}" for file in files for line in file.read_text().splitlines() if after.match(line)]
    assert not found, found
