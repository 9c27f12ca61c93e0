"""An owner at a screen: sees windows and colours, clicks, and types. What is clicked and typed is counted."""

import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image, ImageChops, ImageFilter
from PySide6.QtGui import QColor
from Xlib import X
from Xlib.display import Display
from Xlib.error import XError

from tests.support.wait import until_true

SHOTS = Path(__file__).parents[2] / "build" / "shots"
SAME = 3  # Of 256 levels.
Box = tuple[int, int, int, int]


def seen(display: str) -> Image.Image:
    """What is on the screen."""
    root = Display(display).screen().root
    size = root.get_geometry()
    raw = root.get_image(0, 0, size.width, size.height, X.ZPixmap, 0xFFFFFFFF)
    return Image.frombytes("RGB", (size.width, size.height), raw.data, "raw", "BGRX")


def picture(display: str, name: str) -> None:
    """Keep what is on the screen for people to look at."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    seen(display).save(SHOTS / f"{name}.png")


def solid(display: str, colour: str, box: Box) -> Box | None:
    """Where in ``box`` of the screen something of this colour is that is no line; None where nothing is."""
    wanted = QColor(colour)
    part = seen(display).crop(box)
    near = ImageChops.difference(part, Image.new("RGB", part.size, (wanted.red(), wanted.green(), wanted.blue())))
    found = near.convert("L").point(lambda value: 255 if value < SAME else 0).filter(ImageFilter.MinFilter(9)).getbbox()
    return found and (box[0] + found[0], box[1] + found[1], box[0] + found[2], box[1] + found[3])


@dataclass
class Hand:
    """``clicks`` are of the pointer, the last one ``at``; ``typed`` is what went into the keyboard, one text after the other."""

    display: str
    shots: str
    clicks: int = 0
    typed: list[str] = field(default_factory=list)
    at: float = 0.0
    _looked: int = 0

    def window(self, title: str) -> tuple[int, Box] | None:
        """The number and place of the window whose title begins so, without its frame."""
        display = Display(self.display)
        root = display.screen().root
        listed = root.get_full_property(display.intern_atom("_NET_CLIENT_LIST"), X.AnyPropertyType)
        for number in () if listed is None else listed.value:
            try:
                one = display.create_resource_object("window", number)
                name = one.get_full_property(display.intern_atom("_NET_WM_NAME"), X.AnyPropertyType)
                if name is None or not name.value.decode(errors="replace").startswith(title):
                    continue
                size, place = one.get_geometry(), root.translate_coords(one, 0, 0)
            except XError:
                continue  # It has just been closed.
            return number, (place.x, place.y, place.x + size.width, place.y + size.height)
        return None

    def click(self, title: str, colour: str, patience: float) -> None:
        """Click what has this colour in the window of this title, once it has stood still for a moment."""
        places: list[Box | None] = []

        def stands() -> bool:
            found = self.window(title)
            places.append(found and solid(self.display, colour, found[1]))
            return len(places) > 2 and places[-1] is not None and places[-1] == places[-3]

        until_true(stands, patience)
        self.look()
        left, top, right, bottom = places[-1] or (0, 0, 0, 0)
        self.at = time.monotonic()
        self._do("mousemove", str((left + right) // 2), str((top + bottom) // 2), "click", "1")
        self.clicks += 1

    def type(self, title: str, text: str, patience: float) -> None:
        """Type into the window of this title, and Return."""
        until_true(lambda: self.window(title), patience)
        self.look()
        found = self.window(title)
        assert found is not None
        self._do("windowfocus", "--sync", str(found[0]), "type", "--delay", "40", text)
        self.typed.append(text)
        self.key("Return")

    def key(self, *names: str) -> None:
        """Press keys in the window that has the focus."""
        self._do("key", *names)

    def look(self) -> None:
        """Keep what is on the screen for people to look at."""
        self._looked += 1
        picture(self.display, f"{self.shots}_{self._looked}")

    def _do(self, *words: str) -> None:
        subprocess.run(("xdotool", *words), env=os.environ | {"DISPLAY": self.display}, check=True)
