"""What a request may say beside its path and body."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Query:
    """A parameter of the query string or, with ``header``, of the headers."""

    name: str
    text: str
    kind: str = "integer"
    required: bool = False
    header: bool = False
    bounds: Mapping[str, Any] = field(default_factory=dict)
    """What else a JSON Schema says of it: minimum, maximum, maxLength, pattern, enum."""
