"""Tables, colours and bars on a terminal, and nothing that the text of others could do to it: see ``common.terminal``."""

import re
import sys
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType  # noqa: TID251 - the door itself
from rich.segment import Segment
from rich.text import Text

from common.terminal import NobodyAnswersError, writable
from common.untrusted_text import untrusted_lines

_SHOWN = re.compile(r"[\n -~]*")


class Terminal(Console):
    """rich's console, whose markup is off unless it is asked for: square brackets of others are brackets."""

    def __init__(self, *, stderr: bool = False, width: int | None = None, file: TextIO | None = None) -> None:
        super().__init__(stderr=stderr, width=width, file=file, markup=False, emoji=False, highlight=False)

    def agrees(self, question: str, way: str = "--yes agrees") -> bool:
        """Whether somebody says yes. ``way``: how one agrees without being asked.

        Raises:
            NobodyAnswersError: standard input is closed or at its end.
        """
        if sys.stdin is None:
            raise NobodyAnswersError(way)
        try:
            return self.input(Text(f"{question} [y/N] ")).strip().lower() in ("y", "yes")
        except EOFError as error:
            self.print()  # Behind the question, which stands on its line alone.
            raise NobodyAnswersError(way) from error

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Everything that is printed comes through here, piece by piece."""
        for segment in super().render(renderable, options):
            text, style = segment.text, segment.style
            if segment.control:
                yield segment
                continue
            if style is not None and style.link:
                style = style.update_link(None)  # None is ours: some parts of rich take markup whatever we say.
            if _SHOWN.fullmatch(text) is None:
                text = untrusted_lines(text, len(text))
            yield Segment(writable(text, self.encoding), style)
