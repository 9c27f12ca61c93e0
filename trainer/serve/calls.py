"""Calls of functions within an answer: JSON between ``<tool_call>`` tags, as Hermes, Qwen and SmolLM write them."""

import json
import re

from protocol.serving import FunctionCall

MARK, END = "<tool_call>", "</tool_call>"
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)


class CallsApart:
    """What is said before the first call goes on as text; calls wait for the end of the answer."""

    def __init__(self) -> None:
        self._waiting = ""

    def add(self, text: str) -> str:
        """What can be shown."""
        self._waiting += text
        at = self._waiting.find(MARK)
        if at < 0:
            kept = next((size for size in range(len(MARK) - 1, 0, -1) if self._waiting.endswith(MARK[:size])), 0)
            at = len(self._waiting) - kept
        shown, self._waiting = self._waiting[:at], self._waiting[at:]
        return shown

    def end(self) -> tuple[str, tuple[FunctionCall, ...]]:
        """What is left to show, and the calls; where one of them is none, all of it is text."""
        calls = [_call(one) for one in _CALL.findall(self._waiting)]
        found = tuple(one for one in calls if one is not None)
        return ("", found) if found and len(found) == len(calls) else (self._waiting, ())


def _call(text: str) -> FunctionCall | None:
    try:
        found = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    arguments = found.get("arguments", {})
    return FunctionCall(found["name"], json.dumps(arguments)) if isinstance(arguments, dict) else None
