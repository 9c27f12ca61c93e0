"""Text of others is made safe at one door: by type, by renderer, and for every character that there is."""

import ast
import importlib
import io
import json
import logging
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Meta
from rich.live import Live
from rich.panel import Panel
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text

import protocol
from common import terminal
from common.console import Terminal
from common.log_lines import Lines
from common.untrusted_text import MAX_TEXT, REPLACEMENT, Told, Untrusted, View, untrusted, untrusted_lines
from protocol import codec
from protocol.node import Goodbye
from protocol.task import TaskFailed, WorkerLog, WorkerLogLine
from tests.support.hostile import ALL, OWN, TEXTS, acts, hostile
from tests.test_banned_calls import parsed

ROOT = Path(__file__).parents[2]
SHOWN_BY_OTHERS = (
    "coordinator.store.records",
    "coordinator.domain.job",
    "coordinator.domain.lease",
    "coordinator.domain.audits.trust",
    "coordinator.domain.audits.dispute",
    "desktop.agent.app.status",
    "desktop.agent.earnings.earnings",
    "desktop.agent.base.activity",
    "desktop.agent.app.selftest",
    "desktop.agent.hardware.benchmark",
    "desktop.gui.model",
    "desktop.answers",
    "transport.nettest.result",
)


# --- the function ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEXTS)
def test_nothing_hostile_is_left_of_any_text_of_the_corpus(name: str) -> None:
    shown = untrusted(TEXTS[name])
    assert acts(shown) == []
    assert "\n" not in shown
    assert "\t" not in shown
    assert len(shown) <= MAX_TEXT
    assert acts(untrusted_lines(TEXTS[name])) == []


@given(st.text(st.characters(codec=None), max_size=300))
def test_whatever_the_text_what_is_shown_is_one_clean_line(text: str) -> None:
    shown = untrusted(text, 200)
    assert acts(shown) == []
    assert not set(shown) & set("\n\t\r")
    assert len(shown) <= 200
    assert untrusted(shown, 200) == shown, "cleaning twice changes nothing"
    assert untrusted_lines(untrusted_lines(text)) == untrusted_lines(text)


@pytest.mark.parametrize(
    "text", ["node-3 (attic)", "Jürgen's PC", "你好", "مرحبا", "Việt", "µs → 3 × 10⁹", "🏠", "👨‍👩‍👧", "❤️‍🔥", "👩🏽‍🔬"]
)
def test_what_people_write_stays_as_it_is(text: str) -> None:
    assert untrusted(text) == text


def test_what_is_taken_out_is_seen() -> None:
    assert untrusted("\x1b]0;owned\x07a\nb") == f"{REPLACEMENT}]0;owned{REPLACEMENT}a b"
    assert untrusted("x" * 50, 10) == "x" * 9 + "…"
    assert untrusted("Z" + "\u0301" * 50) == "Z" + "\u0301" * 4


# --- the types --------------------------------------------------------------------------------------------------------------


class Sample(Told, frozen=True):
    one: Annotated[Untrusted, Meta(max_length=10)]
    maybe: Untrusted | None = None
    many: tuple[Untrusted, ...] = ()
    few: Annotated[tuple[Annotated[Untrusted, Meta(max_length=30)], ...], Meta(max_length=4)] = ()
    named: dict[str, Untrusted] = msgspec.field(default_factory=dict)
    bytes_of: str = ""


class Seen(View, frozen=True):
    any_text: str
    mixed: dict[str, str | int] = msgspec.field(default_factory=dict)
    rules: dict[str, str | bool | list[str]] = msgspec.field(default_factory=dict)


@pytest.mark.parametrize("name", TEXTS)
def test_a_message_is_clean_however_it_is_made(name: str) -> None:
    text = TEXTS[name]
    raw = {"one": text[:10], "maybe": text, "many": [text], "named": {"k": text}}
    made = [
        Sample(Untrusted(text), Untrusted(text), (Untrusted(text),), {"k": Untrusted(text)}),
        msgspec.convert(raw, Sample),
        codec.decode(msgspec.msgpack.encode(raw), Sample),
        codec.decode_json(json.dumps(raw), Sample),
        msgspec.structs.replace(Sample(Untrusted("")), one=text, maybe=text, many=(text,), named={"k": text}),
    ]
    for sample in made:
        for shown in (sample.one, sample.maybe, *sample.many, *sample.named.values()):
            assert shown is not None
            assert acts(shown) == []
            assert "\n" not in shown
        assert len(sample.one) <= 10
    assert Sample(Untrusted(""), few=(Untrusted("x" * 25), Untrusted("y" * 31))).few == ("x" * 25, "y" * 29 + "…")
    assert Sample(Untrusted(""), bytes_of=text).bytes_of == text, "what is not shown is not touched"
    rules: dict[str, object] = {"on": True, "games": [text], "name": text}
    seen = msgspec.convert({"any_text": text, "mixed": {"a": text, "b": 3}, "rules": rules}, Seen)
    assert acts(f"{seen.any_text}{seen.mixed['a']}{seen.rules['name']}{''.join(seen.rules['games'])}") == []
    assert (seen.mixed["b"], seen.rules["on"], len(seen.rules["games"])) == (3, True, 1)


def test_a_reason_that_is_too_long_is_cut_and_not_refused_by_the_receiver() -> None:
    sent = Goodbye(untrusted("x" * 1000))
    assert codec.decode(codec.encode(sent), Goodbye) == sent
    assert len(sent.reason) == 200


@pytest.mark.parametrize("name", TEXTS)
def test_a_goodbye_a_failure_and_a_log_line_of_an_older_agent_are_taken_and_cleaned(name: str) -> None:
    text = TEXTS[name].replace("\0", "")
    goodbye = codec.decode(msgspec.msgpack.encode({"type": "goodbye", "reason": text[:200]}), Goodbye)
    failed = codec.decode(msgspec.msgpack.encode({"type": "failed", "reason": text[:4000]}), TaskFailed)
    line = {"time": 1.0, "level": "info", "text": text[:1000]}
    log = codec.decode(msgspec.msgpack.encode({"type": "log", "lines": [line]}), WorkerLog)
    assert isinstance(log.lines[0], WorkerLogLine)
    for shown in (goodbye.reason, failed.reason, log.lines[0].text):
        assert acts(shown) == []
        assert "\n" not in shown


def structs() -> Iterator[type[msgspec.Struct]]:
    names = [found.name for found in pkgutil.walk_packages(protocol.__path__, "protocol.")]
    for name in (*names, *SHOWN_BY_OTHERS):
        for kind in vars(importlib.import_module(name)).values():
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == name:
                yield kind


def mentions(hint: Any, wanted: Any) -> bool:
    return hint is wanted or any(mentions(part, wanted) for part in get_args(hint) if get_origin(hint) is not Literal)


@pytest.mark.parametrize("kind", sorted(set(structs()), key=lambda kind: (kind.__module__, kind.__name__)))
def test_whoever_has_text_of_others_cleans_it(kind: type[msgspec.Struct]) -> None:
    hints = get_type_hints(kind, include_extras=True)
    if any(mentions(hints[field], Untrusted) for field in kind.__struct_fields__):
        assert issubclass(kind, Told), f"{kind.__module__}.{kind.__name__} has text of others and is no Told"


@pytest.mark.parametrize("kind", sorted({k for k in structs() if issubclass(k, View)}, key=lambda kind: kind.__name__))
def test_an_answer_full_of_hostile_text_is_clean_once_it_is_read(kind: type[msgspec.Struct]) -> None:
    for text in (ALL[:3000], *TEXTS.values()):
        read = msgspec.convert(hostile(kind, text), kind)
        plain = msgspec.to_builtins(read)
        plain.pop("spec", None)  # A submitter's own document: field names in it have to be what they are.
        for shown in strings(plain):
            assert acts(shown) == []
            assert "\n" not in shown


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, held in value.items():
            yield from (*strings(key), *strings(held))
    elif isinstance(value, list | tuple):
        for held in value:
            yield from strings(held)


# --- the renderers ----------------------------------------------------------------------------------------------------------


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("tty", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize("name", TEXTS)
def test_nothing_gets_past_the_console(name: str, tty: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    text, file = TEXTS[name][:500], Screen() if tty else io.StringIO()
    console = Terminal(file=file, width=70)
    table = Table("a", text, title=text, caption=text)
    table.add_row(text, Text(text, style="red"), end_section=True)
    console.print(text)
    console.print(table, Panel(text, title=text), Text.assemble((text, "bold"), text))
    with Live(Panel(text), console=console, auto_refresh=False) as live:
        live.update(Text(text), refresh=True)
    with Progress(TextColumn("{task.description}", markup=False), console=console, auto_refresh=False) as bar:
        bar.add_task(text)
    assert acts(file.getvalue(), own=True) == []
    if name == "rich-markup":
        assert "[red]x" in OWN.sub("", file.getvalue()), "markup of others is text"
        assert "]8;" not in file.getvalue()


@pytest.mark.parametrize("name", TEXTS)
def test_plain_lines_errors_and_documents_are_clean(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = TEXTS[name]
    terminal.say(text)
    terminal.complain("cottage", text)
    terminal.say_json({"text": text, text[:50]: [text]})
    terminal.say_json({"text": text}, indent=2)
    printed = capsys.readouterr()
    assert acts(printed.out + printed.err) == []
    assert printed.err.count("\n") == 1, "an error is one line"


@given(st.text(max_size=50))
@example("\x7f")
def test_json_that_is_printed_means_what_it_meant(text: str) -> None:
    document = msgspec.json.encode({"text": text}).decode()
    assert json.loads(terminal.escaped(document)) == {"text": text}
    assert acts(terminal.escaped(document)) == []


@pytest.mark.parametrize("name", TEXTS)
def test_a_log_record_is_one_line_and_its_traceback_is_indented(name: str) -> None:
    file = io.StringIO()
    handler = logging.StreamHandler(file)
    handler.setFormatter(Lines("%(asctime)s %(levelname)s: %(message)s"))
    log = logging.Logger("test")
    log.addHandler(handler)
    log.warning("a node said %s", TEXTS[name])
    assert file.getvalue().count("\n") == 1
    try:
        raise ValueError(TEXTS[name])
    except ValueError:
        log.exception("failed at %s", TEXTS[name][:10])
    lines = file.getvalue().splitlines()
    assert [line for line in lines[2:] if not line.startswith("    ")] == []
    assert acts(file.getvalue()) == []


# --- no way around ----------------------------------------------------------------------------------------------------------

# The latter is a program of its own in a container.
DOORS = {
    "common/terminal.py",
    "desktop/agent/sandbox/egress.py",
}
TOOLS = ("trainer/__main__.py", "installer/")  # Print JSON for programs of ours, in ASCII; build things.


def test_nothing_but_the_doors_writes_to_a_terminal() -> None:
    found = []
    for room in ("cottage", "common", "coordinator", "desktop", "ledger", "protocol", "transport", "trainer"):
        for file in (ROOT / room).rglob("*.py"):
            name = file.relative_to(ROOT).as_posix()
            if name in DOORS or name.startswith(TOOLS):
                continue
            for node in ast.walk(parsed(file)):
                called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
                if called in ("print", "sys.stdout.write", "sys.stderr.write", "sys.stdout.writelines"):
                    found.append(f"{name}:{node.lineno} {called}")
                if called.endswith("basicConfig") and name != "common/log_lines.py":
                    found.append(f"{name}:{node.lineno} {called}")
    assert found == [], "use common.terminal, common.console or common.log_lines"


def test_the_programs_that_print_json_print_ascii() -> None:
    assert json.dumps({"x": ALL}).isascii()
    assert sys.modules["common.untrusted_text"] is not None
