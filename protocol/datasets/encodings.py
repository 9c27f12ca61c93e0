"""How a file's characters are written, by how it begins: read where its bytes leave no doubt, told where they name another way.

Pure, as ``file_formats``, which asks it.
"""

import re
from collections.abc import Collection, Mapping
from typing import Final

BINARY_SHARE = 0.01  # Text has tabs, line ends and the odd form feed; binary data has a tenth of controls and more.
LOOKED_AT = 8192  # Bytes; a page says what it is written in.
FEW_LETTERS = 8  # Letters that are spelt out by chance are fewer.
_MARKS: Final[Mapping[bytes, str]] = {
    b"\xef\xbb\xbf": "utf-8",
    b"\xff\xfe\x00\x00": "utf-32",
    b"\x00\x00\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
    b"\x841\x953": "gb18030",
}
_CONTROLS = re.compile("[\x00-\x07\x0e-\x1a\x1c-\x1f]")  # All but tab, line ends, form feed, backspace and escape.
_SCRIPTS: Final[Mapping[str, str]] = {
    "Latin": "\x80\u024f",
    "Greek": "\u0370\u03ff",
    "Cyrillic": "\u0400\u052f",
    "Hebrew": "\u0590\u05ff",
    "Arabic": "\u0600\u06ff",
    "Devanagari": "\u0900\u097f",
    "Thai": "\u0e00\u0e7f",
    "Chinese and Japanese": "\u3000\u9fff",
    "Korean": "\uac00\ud7a3",
}
"""First and last character of each."""
_SHIFTS: Final[Mapping[str, re.Pattern[bytes]]] = {
    "ISO-2022-JP": re.compile(rb"\x1b\$(?:[@B]|\([@BDOQ])"),
    "ISO-2022-KR": re.compile(rb"\x1b\$\)C"),
    "ISO-2022-CN": re.compile(rb"\x1b\$\)[AGE]"),
}
"""Escape sequences that change the set of characters; those of terminals begin otherwise. Source: RFC 1468, 1557, 1922."""
_SPELT_OUT: Final[Mapping[str, str]] = {"utf-7": "UTF-7", "hz": "HZ-GB-2312"}


def has_controls(text: str) -> bool:
    """Whether so much of a text is control characters that it is none."""
    found = len(_CONTROLS.findall(text))
    return found > 4 and found > len(text) * BINARY_SHARE


def first_control(text: str) -> str:
    """The first control character of a text that has one, which text seldom has; empty where it has none."""
    found = _CONTROLS.search(text)
    return found[0] if found else ""


def encoding_of(head: bytes, guess: bool = True) -> tuple[str, int]:
    """The encoding that a file's mark or its zeros tell, and how long the mark is; ``?``: neither, and it is not UTF-8.

    Text in UTF-16 or UTF-32 without a mark has zeros, of its blanks and line ends at least, and then reads as one script's
    letters. ``guess``: look for it.
    """
    for mark, encoding in _MARKS.items():
        if head.startswith(mark):
            order = ("-le" if mark[:1] == b"\xff" else "-be") if encoding in ("utf-16", "utf-32") else ""
            return encoding + order, len(mark)
    if guess and b"\0" in head:
        for encoding in ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be"):
            if _is_written(head[:LOOKED_AT].decode(encoding, "replace")):
                return encoding, 0
    try:
        head.decode()
    except UnicodeDecodeError as error:
        if len(head) - error.start > 3:
            return "?", 0
    return "utf-8", 0


def foreign(head: bytes, encoding: str) -> str:
    """Why characters that certainly are in another encoding cannot be read, and the way out; empty where they may be.

    Args:
        encoding: what ``encoding_of`` says.
    """
    if encoding == "utf-8" and b"\x1b$" in head and head.isascii():
        name = next((name for name, shift in _SHIFTS.items() if shift.search(head)), "")
        return f"its characters are in {name}, which is not read here: {_converted(name)}" if name else ""
    if encoding == "?" and _is_ebcdic(head[:LOOKED_AT]):
        way = _converted("IBM037")
        return f"its characters are in EBCDIC, which is not read here: {way}, or from the page of its country"
    return ""


def spelt_out(head: bytes) -> str:
    """What to know of a text that seems to spell out letters with others; empty where it does not.

    It may be meant as it stands, so nothing more is done about it.
    """
    lines, _, _ = head[:LOOKED_AT].rpartition(b"\n")
    if not head.isascii():
        return _decoded_twice(lines or head)
    if not (b"+" in head or b"~{" in head):
        return ""
    for codec, name in _SPELT_OUT.items():
        try:
            letters = [character for character in (lines or head).decode(codec) if character > "\x7f"]
        except UnicodeDecodeError:
            continue  # A plus or a tilde stands for itself.
        if len(letters) >= FEW_LETTERS and _of_one_script(letters) > 0.9 * len(letters):
            way = _converted(name) if codec != "hz" else "convert it to UTF-8 first (Python's codec hz)"
            return f"looks like {name}, and its spelling of letters is trained on: if it is, {way}"
    return ""


def _decoded_twice(head: bytes) -> str:
    """The same of UTF-8 that was once read as Windows-1252: of all letters beyond ASCII, each begins a character there."""
    try:
        text = head.decode()
        once = text.encode("cp1252").decode()
    except UnicodeError:
        return ""
    letters = [character for character in once if character > "\x7f"]
    if len(letters) < FEW_LETTERS:
        return ""
    wrong = letters[0].encode().decode("cp1252", "replace")
    return f"has {wrong!r} for {letters[0]!r}: it was read as Windows-1252 once, and is trained on as it stands; write it anew"


def _converted(name: str) -> str:
    return f"convert it first (iconv -f {name} -t UTF-8)"


def _is_ebcdic(head: bytes) -> bool:
    """Whether bytes are letters and blanks where mainframes have them, and none where others have theirs."""
    text = head.decode("cp037")
    written = sum(" " <= character <= "~" or character in "\n\x85" for character in text)
    foreign_blanks = head.count(b" ") + head.count(b"\n")
    return written > 0.75 * len(text) and text.count(" ") > 0.03 * len(text) > 10 * foreign_blanks


def _is_written(text: str) -> bool:
    """Whether nearly all is of one script, with ASCII's signs between: ids, or the bytes in another order, are not.

    Ids of a tokenizer of bytes read as letters of ASCII, nearly without blanks.
    """
    if has_controls(text):
        return False
    signs = sum("\t" <= character <= "~" for character in text)
    blanks = sum(map(text.count, " \n")) > 0.01 * len(text) or max(text, default="") >= "\u3000"
    return blanks and signs > 0.005 * len(text) and signs + _of_one_script(text) > 0.9 * len(text)


def _of_one_script(text: Collection[str]) -> int:
    """Letters beyond ASCII of the script that most are of."""
    return max(sum(pair[0] <= character <= pair[1] for character in text) for pair in _SCRIPTS.values())
