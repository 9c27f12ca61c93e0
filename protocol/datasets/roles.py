"""Who speaks in a conversation: the names that are known, and what ShareGPT's kin call the same."""

from collections.abc import Mapping
from typing import Final

KNOWN_ROLES: Final = frozenset({"system", "user", "assistant", "tool", "developer", "ipython", "environment"})
ROLES: Final[Mapping[str, str]] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "function_response": "tool",
}
"""What ShareGPT's kin call who speaks, and some who write ``messages``: a template of roles it does not know writes them as they
are, and nothing is learnt."""
