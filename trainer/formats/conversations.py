"""Rows that are conversations: messages with roles, as chat models' own programs write them, or a prompt and its completion.

Five forms are known, whatever else a row has: ``messages`` (``role`` and ``content``), ``conversations`` (``from`` and
``value``, as ShareGPT has them), ``prompt`` and ``completion`` as texts, both as lists of messages, and a question with its
answer as Alpaca and others name them. A row with ``chosen`` and ``rejected`` has two answers to its ``prompt``, or to what
both of them begin with.
"""

import json
from collections.abc import Container, Mapping
from typing import Any, Final, TypeVar

from protocol.datasets.field_names import TALKS, near_name, shown_name
from protocol.datasets.file_formats import is_message
from protocol.datasets.roles import KNOWN_ROLES, ROLES
from trainer.errors import DataError
from trainer.formats.rows import half_character, shown
from trainer.formats.talk import ChatMessages, Pair, Preference, Said, Talk

PROMPT, COMPLETION = "prompt", "completion"
CHOSEN, REJECTED = "chosen", "rejected"
BESIDE: Final[tuple[str, ...]] = ("tools", "functions", "system", "chat_template_kwargs")
"""What goes with a conversation: functions that it may call, its system message, and words for the template."""
LABEL = "label"
"""Whether an answer is a good one, in rows for KTO."""
ASKED: Final[tuple[tuple[str, str], ...]] = (
    ("instruction", "output"),
    ("instruction", "response"),
    ("question", "answer"),
    ("prompt", "response"),
    ("query", "response"),
    ("input", "output"),
)
"""What a question and its answer are called, where they are a conversation of two messages."""
_MORE: Final = "input"
"""What Alpaca's rows have beside an instruction, and behind it."""
_QUESTIONS: Final[tuple[str, ...]] = ("question", "instruction", "query", "input")
"""What the prompt of two answers is called, where it is one message."""
_TEXTS: Final = frozenset({"text", "value", "message", "body"})
_CALL = "function_call"
_Talk = TypeVar("_Talk", ChatMessages, Pair)


def names_talk(names: list[str], field: str) -> list[str]:
    """The columns that a table's conversations take, by their names alone; none where it has a column of texts."""
    if field in names and field not in TALKS:
        return []
    if field not in names and {CHOSEN, REJECTED} <= set(names):
        return [CHOSEN, REJECTED, *(name for name in (PROMPT, *_QUESTIONS, *BESIDE) if name in names)]
    found = next(([name] for name in (field, *TALKS) if name in names), [])
    if not found and {PROMPT, COMPLETION} <= set(names):
        found = [PROMPT, COMPLETION, *([LABEL] if LABEL in names else [])]
    if not found and (asked := asked_names(names)):
        found = [*asked, *([_MORE] if asked[0] == "instruction" and _MORE in names else [])]
    return [*found, *(name for name in BESIDE if name in names)] if found else []


def talk_of(row: Mapping[str, Any], field: str, where: str) -> Said | DataError | None:
    """The conversation in a row without text; None where it has none.

    Args:
        field: the text's, which may have messages instead.
        where: the row's name, for messages.
    """
    found = field if _messages_in(row.get(field)) is not None else None
    if found is None and CHOSEN in row and REJECTED in row:
        return _preference(row, where)
    found = found or next((name for name in TALKS if _messages_in(row.get(name)) is not None), None)
    if found is None and PROMPT in row and COMPLETION in row:
        return _pair(row, where)
    if found is None:
        found = next((name for name, value in row.items() if name not in BESIDE and _is_talk(value)), None)
    if found is None and (asked := asked_names(row)):
        return _answered(row, *asked, where)
    return None if found is None else _conversation(row, _messages_in(row[found]) or [], [], where, found)


def asked_names(names: Container[str]) -> tuple[str, str] | None:
    """The names of a question and its answer, where there are such."""
    return next(((asked, said) for asked, said in ASKED if asked in names and said in names), None)


def _is_talk(value: Any) -> bool:
    """Whether a list is of messages: each has a text, and who says it."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, dict) and is_message(first)


def _messages_in(value: Any) -> list[Any] | None:
    """The messages of a field: a list of them, be it as JSON within a table, or an empty one."""
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        value = _loaded(value)
    begins = isinstance(value, list) and (
        not value or (isinstance(value[0], dict) and value[0].keys() & {"role", "from"})
    )
    return value if begins else None


def _loaded(text: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None


def _unpacked(value: Any) -> Any:
    """What goes with a conversation, be it JSON within a text; a text that is none is left as it is."""
    if not isinstance(value, str):
        return value
    return (_loaded(value) or value) if value.strip() else None


def _preference(row: Mapping[str, Any], where: str) -> Preference | DataError:
    """Two answers. A prompt in another form than they are stands within them, too, and is what they begin with."""
    said = [row[name] for name in (CHOSEN, REJECTED)]
    lists = [_messages_in(one) for one in said]
    named = next((name for name in _QUESTIONS if isinstance(row.get(name), str) and row[name].strip()), PROMPT)
    named = PROMPT if row.get(PROMPT) else named
    given, asked = row.get(named), _messages_in(row.get(PROMPT))
    if named != PROMPT and lists == [None, None]:
        asked = [{"role": "user", "content": given}]
    if lists[0] is not None and lists[1] is not None:
        said, within = lists, asked is None
        given = [{"role": "user", "content": given}] if within and given and isinstance(given, str) else asked or []
        if within and lists[0][:1] == lists[1][:1]:
            given, *said = _apart(lists[0], lists[1])
    elif lists == [None, None] and all(isinstance(one, str) for one in said):
        if asked is not None:
            given = asked
        elif not isinstance(given, str):
            given, *said = _apart(*said)
            if not given:
                lacks = "has two answers without a prompt, and nothing that both begin with"
                return DataError("bad-row", f"{where} {lacks}: name the column with the question prompt")
    else:
        ways = "write both as texts, or both as lists of messages"
        return DataError("bad-row", f"{where} has a chosen and a rejected answer that do not go together: {ways}")
    if said[0] == said[1] or [] in said:
        wrong = "an answer without messages" if [] in said else "the same answer as chosen and as rejected"
        return DataError("bad-row", f"{where} has {wrong}: leave such rows out")
    made = [_pair({**row, PROMPT: given, COMPLETION: one, LABEL: None}, where) for one in said]
    chosen, rejected = made
    if isinstance(chosen, DataError):
        return chosen
    unread = _unread(row, CHOSEN, REJECTED, named, *BESIDE)
    return rejected if isinstance(rejected, DataError) else Preference(chosen, rejected, unread)


def _apart(chosen: Any, rejected: Any) -> tuple[Any, Any, Any]:
    """What two answers begin with alike, and the rest of each; a blank before the rest belongs to it."""
    most = min(len(chosen), len(rejected))
    count = next((at for at in range(most) if chosen[at] != rejected[at]), most)
    if count and isinstance(chosen, str) and chosen[count - 1] == " ":
        count -= 1
    return chosen[:count], chosen[count:], rejected[count:]


def _pair(row: Mapping[str, Any], where: str) -> Talk | DataError:
    prompt, completion = row[PROMPT], row[COMPLETION]
    if str(row.get(LABEL)).lower() == "false":
        bad = "has an answer that is marked as a bad one (label), and would be learnt"
        return DataError("bad-row", f"{where} {bad}: leave such rows out, or write chosen and rejected answers")
    lists = _messages_in(prompt), _messages_in(completion)
    if lists[0] is not None and lists[1] is None and isinstance(completion, str):
        lists = lists[0], [{"role": "assistant", "content": completion}]
    if lists[0] is not None and lists[1] is not None:
        return _conversation(row, lists[0], lists[1], where, PROMPT, COMPLETION)
    if not isinstance(prompt, str | None) or not isinstance(completion, str | None):
        ways = "write both as texts, or both as lists of messages"
        return DataError("bad-row", f"{where} has a prompt and a completion that do not go together: {ways}")
    if str(row.get("system") or "").strip():  # No text of a prompt has a system message.
        return _answered(row, PROMPT, COMPLETION, where)
    return _checked(Pair(prompt or "", completion or "", _unread(row, PROMPT, COMPLETION, *BESIDE)), where)


def _answered(row: Mapping[str, Any], asked: str, said: str, where: str) -> ChatMessages | DataError:
    """A question and its answer as two messages."""
    question, answer = ("" if row[name] is None else row[name] for name in (asked, said))
    if not isinstance(question, str) or not isinstance(answer, str):
        return DataError("bad-row", f"{where} has something else than text as {asked} or {said}: write both as texts")
    more = row.get(_MORE) if asked == "instruction" else None
    if isinstance(more, str) and more.strip():
        question = f"{question}\n\n{more}"
    messages = [{"role": "user", "content": question}], [{"role": "assistant", "content": answer}]
    return _conversation(row, *messages, where, asked, said, *([_MORE] if asked == "instruction" else []))


def _unread(row: Mapping[str, Any], *read: str) -> tuple[str, ...]:
    """Fields of a row that hold something, and are not among those that are read."""
    return tuple(name for name, value in row.items() if name not in read and value not in (None, "", [], {}))


def _conversation(
    row: Mapping[str, Any], given: list[Any], said: list[Any], where: str, *read: str
) -> ChatMessages | DataError:
    """``read``: fields that the messages are from."""
    messages = []
    for number, one in enumerate([*given, *said], 1):
        message = _message(one)
        if isinstance(message, str):
            return DataError("bad-row", f"{where}, message {number}, {message}")
        messages.append(message)
    system = row.get("system")
    before = isinstance(system, str) and bool(system.strip()) and bool(messages) and messages[0]["role"] != "system"
    if before:
        messages.insert(0, {"role": "system", "content": system})
    tools, functions, words = (_unpacked(row.get(name)) for name in ("tools", "functions", BESIDE[3]))
    if not tools and isinstance(functions, list):
        tools = [{"type": "function", "function": one} for one in functions]
    if not isinstance(tools, list | None) or not isinstance(words, dict | None):
        wrong = (
            "tools that are no list"
            if not isinstance(tools, list | None)
            else "chat_template_kwargs that are no object"
        )
        return DataError("bad-row", f"{where} has {wrong}: write them as JSON, or leave them out")
    given_count = len(given) + before if said else 0
    return _checked(ChatMessages(messages, given_count, tools or None, words, _unread(row, *read, *BESIDE)), where)


def _message(value: Any) -> dict[str, Any] | str:
    """A message with its role and content, or what is wrong with it."""
    if not isinstance(value, dict):
        return "is no object with role and content"
    if "role" not in value and "from" in value:
        return _of_sharegpt(value)
    role, content = value.get("role"), value.get("content")
    if not isinstance(role, str) or not role:
        return "does not say who speaks (role)"
    if isinstance(content, list):
        other = next(
            (part for part in content if not isinstance(part, dict) or part.get("type", "text") != "text"), None
        )
        if other is not None:
            return "has a part that is no text: leave it out, since models here read text alone"
    elif not isinstance(content, str | None):
        return "has something else than text as its content"
    said = {name: one for name, one in value.items() if one is not None}  # Templates write a null as None.
    said["role"] = ROLES.get(role.strip().lower(), role)
    if said["role"] not in KNOWN_ROLES and (meant := near_name(role, KNOWN_ROLES)):
        return f"is of {shown(role)}, who is nobody known here: did you mean {meant}?"
    if (call := said.pop(_CALL, None)) is not None and "tool_calls" not in said:
        said["tool_calls"] = [{"type": "function", "function": call}]
    if content is not None or "tool_calls" in said:
        return said
    if meant := near_name("content", said) or next(iter(sorted(_TEXTS & said.keys())), ""):
        return f"has no content, but {shown_name(meant)}: rename it"
    return {**said, "content": ""}


def _of_sharegpt(value: dict[str, Any]) -> dict[str, Any] | str:
    who, text = value["from"], value.get("value")
    if not isinstance(text, str | None):
        return "has something else than text as its value"
    if who == _CALL:
        call = _loaded(text or "")
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return "is a function_call without a name and arguments in JSON"
        return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
    role = ROLES.get(who.lower()) if isinstance(who, str) else None
    return (
        f"is of {shown(str(who))}, who is nobody known here" if role is None else {"role": role, "content": text or ""}
    )


def without_nulls(value: Any) -> Any:
    """Without members that are null, however deep: Parquet gives each message the members of all others."""
    if isinstance(value, dict):
        return {name: without_nulls(one) for name, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


def _checked(talk: _Talk, where: str) -> _Talk | DataError:
    """A conversation, unless half of a character is in it."""
    whole = talk.text()
    try:
        whole.encode()
    except UnicodeEncodeError:
        return half_character(where, whole)
    return talk
