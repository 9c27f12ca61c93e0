"""Seven short pages of settings. A change is in force at once and can be undone; what cannot be done is said and taken back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from PySide6.QtCore import QLocale, QSettings, Qt, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QScrollArea, QStackedWidget, QVBoxLayout, QWidget

from common.own_folders import settings_folder
from desktop.answers import PublishersView
from desktop.gui.client import Calls
from desktop.gui.errors import AnswerError
from desktop.gui.fields import ChoiceRow, HoursRow, NumberRow, SettingRow, TextRow, ToggleRow, Value
from desktop.gui.model import LimitsView, RulesView, SettingsView, plain, read
from desktop.gui.notices import NOTICES, notice_key
from desktop.gui.pages.identity import IdentityCard
from desktop.gui.pages.invitation import NetworkRow
from desktop.gui.pages.publishers import ImagesCard, PublishersCard
from desktop.gui.widgets import Card, ChoiceButtons, Text, button
from ledger.money import UNIT, show

THEME, LANGUAGE = "window/theme", "window/language"
APPLY_PATIENCE_MS = 15_000
RATE, MONTH = 10**6, 10**9


@dataclass(frozen=True)
class Change:
    """What was changed, and what it was: for the Undo button."""

    source: str
    key: str
    value: Value
    before: Value


class SettingsPages(QWidget):
    """All seven."""

    look_changed = Signal()
    """Theme or language of the window."""

    def __init__(self, calls: Calls, window: QSettings) -> None:
        super().__init__()
        self._calls, self._window = calls, window
        self._rows: dict[tuple[str, str], SettingRow] = {}
        self._last: Change | None = None
        self.stack = QStackedWidget()
        pages = (
            (self.tr("When"), self._when),
            (self.tr("How much"), self._how_much),
            (self.tr("Money"), self._money),
            (self.tr("Programs"), self._programs),
            (self.tr("Notifications"), self._notifications),
            (self.tr("Appearance"), self._appearance),
            (self.tr("Privacy & about"), self._privacy),
        )
        names = [(name.replace("&", "&&"), str(number)) for number, (name, _) in enumerate(pages)]
        self.pages = ChoiceButtons(self.tr("Settings"), names)
        self.pages.picked.connect(lambda value: self.stack.setCurrentIndex(int(value)))
        for _, build in pages:
            self.stack.addWidget(_scrolled(build()))
        self.said, self.undo = Text(dim=True), button(self.tr("&Undo"), self._undo)
        self.undo.setEnabled(False)
        column, last = QVBoxLayout(self), QHBoxLayout()
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(8)
        last.addWidget(self.said, 1)
        last.addWidget(self.undo)
        column.addWidget(self.pages, 0, Qt.AlignmentFlag.AlignLeft)
        column.addWidget(self.stack, 1)
        column.addLayout(last)
        self.said.say(self.tr("Changes are in force at once."))

    def row(self, source: str, key: str) -> SettingRow:
        """The row of ``key`` in the agent's document ``source``: settings, rules, limits, or window."""
        return self._rows[source, key]

    # --- the pages ------------------------------------------------------------------------------------------------------

    def _when(self) -> QWidget:
        days = [QLocale().dayName(day, QLocale.FormatType.ShortFormat) for day in range(1, 8)]
        words = (self.tr("lends"), self.tr("does not lend"))
        return self._page(
            "rules",
            (
                NumberRow(
                    "idle_minutes",
                    self.tr("Lend once nobody has touched the computer for"),
                    self.tr("“At once”: lend while somebody works here, too."),
                    (0, 1440),
                    self.tr(" min"),
                    self.tr("at once"),
                ),
                ToggleRow(
                    "for_games",
                    self.tr("Step aside for games"),
                    self.tr("For programs that cover the whole screen, and those below; within two seconds."),
                ),
                TextRow(
                    "programs",
                    self.tr("Programs to step aside for"),
                    self.tr("Names as the process list has them, separated by commas."),
                    "blender, obs",
                    _joined,
                    _split,
                    wide=True,
                ),
                ToggleRow("on_battery", self.tr("Lend on battery"), ""),
                ToggleRow("on_metered", self.tr("Lend over networks that cost by the byte"), ""),
                HoursRow(
                    "hours",
                    self.tr("Hours of the week"),
                    self.tr("Drag over the hours, or use arrow keys and space bar. Filled hours are lent."),
                    days,
                    words,
                ),
            ),
        )

    def _how_much(self) -> QWidget:
        self.gpu = ChoiceRow(
            "gpu", self.tr("What is lent"), self.tr("What runs is handed over when you change it."), wide=True
        )
        gpu = self._page(
            "rules",
            (
                NumberRow(
                    "own_vram",
                    self.tr("GPU memory kept for you"),
                    self.tr("Jobs step aside when your programs want more."),
                    (0, 1000),
                    " GB",
                ),
                NumberRow(
                    "max_celsius",
                    self.tr("Hottest that the GPU may get"),
                    self.tr("It pauses there, and goes on once it has cooled down."),
                    (40, 110),
                    " °C",
                ),
                NumberRow("band_celsius", self.tr("It goes on when cooler by"), "", (1, 30), " °C"),
                NumberRow("free_disk", self.tr("Disk that stays free"), "", (0, 10_000), " GB"),
            ),
        )
        self.threads = NumberRow("threads", self.tr("Processors"), "", (0, 1024), zero=self.tr("all"))
        self.memory = NumberRow(
            "memory_mb",
            self.tr("Main memory for jobs"),
            self.tr("With processors and GPU: what runs is handed over first."),
            (0, 10**8),
            " MB",
            self.tr("half"),
            step=512,
        )
        self.cap = Text(dim=True)
        computer = self._page(
            "settings",
            (
                self.gpu,
                self.threads,
                self.memory,
                NumberRow("disk_gb", self.tr("Disk for jobs' files"), "", (1, 10_000), " GB"),
                NumberRow(
                    "watts",
                    self.tr("Power cap of the GPU"),
                    self.tr("While jobs run. Where the driver does not let us set it, jobs pause for moments instead."),
                    (0, 2000),
                    " W",
                    self.tr("its own"),
                    step=10,
                ),
            ),
        )
        computer.body.addWidget(self.cap)
        return _stacked(computer, gpu, self._line())

    def _line(self) -> Card:
        line = self._page(
            "limits",
            (
                NumberRow("up", self.tr("Upload"), "", (0, 100_000), " MB/s", self.tr("no limit")),
                NumberRow("down", self.tr("Download"), "", (0, 100_000), " MB/s", self.tr("no limit")),
                NumberRow(
                    "month",
                    self.tr("A calendar month, both ways"),
                    "",
                    (0, 100_000),
                    " GB",
                    self.tr("no limit"),
                    step=10,
                ),
                ToggleRow("polite", self.tr("Yield to the household's own traffic"), ""),
            ),
        )
        self.used = Text(dim=True)
        line.body.addWidget(self.used)
        return line

    def _money(self) -> QWidget:
        page = self._page(
            "settings",
            (
                TextRow(
                    "payout",
                    self.tr("Paid into"),
                    self.tr(
                        "Empty: the wallet on this computer. Not the address of an exchange: some lose such payments."
                    ),
                    self.tr("the wallet on this computer"),
                    wide=True,
                ),
                TextRow(
                    "floor",
                    self.tr("Work for no less than"),
                    self.tr(
                        "Tokens for as much work as a fast graphics card does in about half a minute. Empty: for any price."
                    ),
                    self.tr("any price"),
                    _amount,
                    _tokens,
                    exact=self.tr("For a million billion (10^15) operations."),
                ),
                TextRow(
                    "currency",
                    self.tr("Your currency"),
                    self.tr(
                        "Three letters, as EUR. Amounts are shown in it, too, where somebody says what a token is worth."
                    ),
                    self.tr("none: tokens"),
                ),
                TextRow(
                    "worth",
                    self.tr("A token is worth"),
                    self.tr("In your currency. Empty: what the network says."),
                    self.tr("as the network says"),
                    _amount,
                    _tokens,
                ),
                TextRow(
                    "electricity",
                    self.tr("A kWh costs you"),
                    self.tr("In your currency, or in tokens without one. Forecasts take it off."),
                    self.tr("not given"),
                    _amount,
                    _tokens,
                ),
                TextRow(
                    "bond",
                    self.tr("Put up against false work"),
                    self.tr("Tokens at a time, to have neighbours' work looked at. A false accusation loses them."),
                    self.tr("nothing"),
                    _amount,
                    _tokens,
                ),
            ),
        )
        never = Text(dim=True)
        never.say(self.tr("Cottage never asks for the secret words of another wallet. Whoever does wants to rob you."))
        page.body.addWidget(never)
        self.identity = IdentityCard(self._calls)
        return _stacked(page, self.identity)

    def _programs(self) -> QWidget:
        self.publishers, self.images = PublishersCard(self._calls), ImagesCard()
        self.publishers.said.connect(lambda text: self.said.say(text))
        self.publishers.changed.connect(self._show_publishers)
        self.images.wanted.connect(self.publishers.ask)
        return _stacked(self.publishers, self.images)

    def _show_publishers(self, view: PublishersView) -> None:
        self.publishers.show_view(view)
        self.images.show_view(view)

    def _notifications(self) -> QWidget:
        rows = [ToggleRow(notice_key(name), text, "") for name, text in zip(NOTICES, self._notice_texts(), strict=True)]
        return self._page("window", rows)

    def _appearance(self) -> QWidget:
        return self._page(
            "window",
            (
                ChoiceRow(
                    THEME,
                    self.tr("Colours"),
                    "",
                    ((self.tr("as the desktop"), "system"), (self.tr("light"), "light"), (self.tr("dark"), "dark")),
                ),
                ChoiceRow(
                    LANGUAGE,
                    self.tr("Language"),
                    self.tr("From the next start of this window."),
                    ((self.tr("as the desktop"), "system"), ("English", "en"), ("Deutsch", "de")),
                ),
            ),
        )

    def _notice_texts(self) -> Sequence[str]:
        return (
            self.tr("When lending stops by itself or needs you"),
            self.tr("When a job failed here"),
            self.tr("When a payment arrived"),
            self.tr("When a job ended"),
            self.tr("When lending pauses or goes on"),
        )

    def _privacy(self) -> QWidget:
        self.network = network = NetworkRow(
            "coordinator",
            self.tr("Works for"),
            self.tr("An address or an invitation. What runs is handed over when you change it."),
        )
        network.faulty.connect(lambda text: self.said.say(text))
        name = self._page(
            "settings",
            (
                TextRow(
                    "name",
                    self.tr("Name of this computer"),
                    self.tr("Everybody sees it on the network page."),
                    self.tr("the host name"),
                ),
                network,
                ToggleRow(
                    "at_login",
                    self.tr("Start with the computer"),
                    self.tr("With the desktop, and while lending is on also without it: as a service of this system."),
                ),
                ToggleRow(
                    "updates",
                    self.tr("Fetch new versions"),
                    self.tr(
                        "In the background, signed; you say when to restart. Debian packages are updated by the system."
                    ),
                ),
            ),
        )
        card = Card(self.tr("What leaves this computer"))
        for text in (
            self.tr(
                "To the coordinator: name, device, speed, memory, speed of your internet, the wallet that is paid, and the work."
            ),
            self.tr("To peers of a job: the work, and the internet address of this computer."),
            self.tr("Nothing else. There is no telemetry, and nothing to switch off."),
            self.tr(
                "Jobs run in containers: they see neither your files nor your network, only the GPU and a folder of their own."
            ),
        ):
            line = Text(dim=True)
            line.say(text)
            card.body.addWidget(line)
        self.about = Text(dim=True)
        folder = Text(dim=True)
        folder.say(self.tr("Settings of this window: {0}").format(settings_folder()))
        card.body.addWidget(self.about)
        card.body.addWidget(folder)
        return _stacked(name, card)

    def _page(self, source: str, rows: Sequence[SettingRow]) -> Card:
        card = Card()
        for row in rows:
            self._rows[source, row.key] = row
            row.changed.connect(partial(self._asked, source))
            card.body.addWidget(row)
        return card

    # --- what the agent says --------------------------------------------------------------------------------------------

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        self.refresh()

    def refresh(self) -> None:
        """Ask the agent for all of it."""
        self._calls.get("settings", self._understand(SettingsView, self._show_settings), self.said.say)
        self._calls.get("lending", self._understand(RulesView, self._show_rules))
        self._calls.get("limits", self._understand(LimitsView, self._show_limits))
        self._calls.get("publishers", self._understand(PublishersView, self._show_publishers))
        self._show_window()

    def _understand(self, kind: type, show_it: Callable[..., None]) -> Callable[[bytes], None]:
        def take(body: bytes) -> None:
            try:
                show_it(read(body, kind))
            except AnswerError as error:
                self.said.say(str(error))

        return take

    def _show_settings(self, view: SettingsView) -> None:
        self.threads.limit(view.processors)
        self.memory.limit(view.memory_mb_here)
        self.gpu.offer(self._lendable(view))
        self.network.field.offer(view.networks)
        held = {
            "driver": self.tr("Power cap: the driver keeps the GPU to it."),
            "pauses": self.tr(
                "Power cap: the driver does not let us set it. Jobs pause for moments; on average it is kept."
            ),
            "not": self.tr("The power cap is not in force: {0}"),
        }
        self.cap.setVisible(bool(view.cap))
        self.cap.say(held.get(view.cap, "").format(plain(view.cap_why, 120)))
        self.about.say(self.tr("Cottage {0}, Apache License 2.0.").format(plain(view.version, 40) or "–"))
        self._show("settings", view.settings | {"gpu": _lent(view)})

    def _lendable(self, view: SettingsView) -> list[tuple[str, Value]]:
        """Each card by its identity, which stays when another is put in beside it, and the processor; what is kept is there."""
        kept = _lent(view)
        found: list[tuple[str, Value]] = [
            (f"{plain(gpu.name, 60)} ({gpu.index})", gpu.index if kept == gpu.index else gpu.uuid or gpu.index)
            for gpu in view.gpus
        ]
        if len(found) > 1:
            found.append((self.tr("all {0} cards").format(len(found)), ",".join(gpu.uuid for gpu in view.gpus)))
        if isinstance(kept, str) and "," in kept and kept not in [value for _, value in found]:
            names = {gpu.uuid: plain(gpu.name, 40) for gpu in view.gpus}
            found.append((", ".join(names.get(card, plain(card, 13)) for card in kept.split(",")), kept))
        elif isinstance(kept, str) and kept not in [value for _, value in found]:
            found.append((self.tr("a GPU that is not here ({0})").format(plain(kept, 13)), kept))
        only = self.tr("the processor") if found else self.tr("the processor (there is no NVIDIA GPU)")
        return [*found, (only, -1 if found else kept)]

    def _show_rules(self, view: RulesView) -> None:
        self._show("rules", view.rules)
        if not view.bound:
            self.said.say(self.tr("The agent was started with --always: it lends whatever these rules say."))

    def _show_limits(self, view: LimitsView) -> None:
        scale = {"up": RATE, "down": RATE, "month": MONTH}
        shown: dict[str, Value] = dict(view.limits)
        for name, unit in scale.items():
            shown[name] = (view.limits.get(name) or 0) // unit
        self._show("limits", shown)
        used = QLocale().toString(view.used / MONTH, "f", 2)
        self.used.say(self.tr("Used in {0}: {1} GB").format(plain(view.month, 20), used))

    def _show_window(self) -> None:
        for (source, key), row in self._rows.items():
            if source == "window":
                defaults: Value = "system" if key in (THEME, LANGUAGE) else NOTICES[key.removeprefix("notify/")]
                kind = str if isinstance(defaults, str) else bool
                kept: Value = self._window.value(key, defaults, kind)  # type: ignore[assignment]  # Of the type asked for.
                row.show_value(kept)

    def _show(self, source: str, values: Mapping[str, Value]) -> None:
        for (where, key), row in self._rows.items():
            if where == source and key in values:
                row.show_value(values[key])

    # --- what the owner wants -------------------------------------------------------------------------------------------

    def _asked(self, source: str, key: str, value: Value) -> None:
        self._apply(Change(source, key, value, self._rows[source, key].shown), undoable=True)

    def _undo(self) -> None:
        if (last := self._last) is not None:
            self._apply(Change(last.source, last.key, last.before, last.value), undoable=False)

    def _apply(self, change: Change, undoable: bool) -> None:
        self._last = change if undoable else None
        self.undo.setEnabled(False)
        if change.source == "window":
            self._window.setValue(change.key, change.value)
            self._show_window()
            self._done(change)
            self.look_changed.emit()
            return
        target, order, kind, show_it = self._order(change)

        def taken(body: bytes) -> None:
            self._done(change)
            self._understand(kind, show_it)(body)

        def refused(text: str) -> None:
            self._last = None
            row = self._rows[change.source, change.key]
            row.show_value(change.before if undoable else row.shown)
            self.said.say(text)

        self._calls.post(target, order, taken, refused, APPLY_PATIENCE_MS)

    def _order(self, change: Change) -> tuple[str, dict[str, object], type, Callable[..., None]]:
        key, value = change.key, change.value
        match change.source:
            case "rules":
                return "lending", {"rules": {key: value}}, RulesView, self._show_rules
            case "limits":
                return "limits", {key: _limit(key, value)}, LimitsView, self._show_limits
            case _:
                sent = _decimal(value) if key in ("floor", "electricity", "worth", "bond") else value
                return "settings", {key: sent}, SettingsView, self._show_settings

    def _done(self, change: Change) -> None:
        self.undo.setEnabled(self._last is change)
        self.said.say(self.tr("Saved. It is in force.") if self._last is change else self.tr("Undone."))


def _limit(key: str, value: Value) -> Value:
    """As the agent wants limits: in people's words."""
    if key == "polite":
        return value
    return f"{value}{'G' if key == 'month' else 'M'}" if value else "off"


def _amount(value: Value) -> str:
    return show(value) if isinstance(value, int) and value else ""


def _tokens(text: str) -> Value:
    """Millionths where the text is an amount; otherwise as it is, for the agent to say what is wrong with it."""
    whole, _, rest = text.replace(",", ".").partition(".")
    if (whole + rest).isdecimal() and len(rest) <= 6 and len(whole) < 12:
        return int(int(whole or "0") * UNIT) + int(rest.ljust(6, "0") or "0")
    return text if text else 0


def _decimal(value: Value) -> str:
    return show(value) if isinstance(value, int) else str(value)


def _joined(value: Value) -> str:
    return ", ".join(value) if isinstance(value, list) else ""


def _split(text: str) -> Value:
    return [name.strip() for name in text.split(",") if name.strip()]


def _stacked(*parts: QWidget) -> QWidget:
    page = QWidget()
    column = QVBoxLayout(page)
    column.setContentsMargins(0, 0, 0, 0)
    column.setSpacing(12)
    for part in parts:
        column.addWidget(part)
    column.addStretch()
    return page


def _scrolled(page: QWidget) -> QScrollArea:
    area = QScrollArea()
    area.setWidgetResizable(True)
    area.setFrameShape(QFrame.Shape.NoFrame)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    outer = page if not isinstance(page, Card) else _stacked(page)
    outer.setMinimumSize(1, 1)
    area.setWidget(outer)
    return area


def _lent(view: SettingsView) -> str | int:
    """What is lent, as the choice of it has it: several cards in the order of their numbers."""
    first, further = view.settings.get("gpu", 0), view.settings.get("cards", [])
    if not isinstance(further, list) or not further:
        return first if isinstance(first, str | int) else 0
    order = [gpu.uuid for gpu in view.gpus]
    return ",".join(sorted((str(first), *further), key=lambda card: order.index(card) if card in order else len(order)))
