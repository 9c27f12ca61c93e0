"""Notifications of what has happened, each kind switched on or off by its owner; what was there before the window is not told."""

from collections.abc import Callable

from PySide6.QtCore import QObject, QSettings

from desktop.answers import ActivityEvent, ActivityEvents
from desktop.gui.client import Calls
from desktop.gui.errors import AnswerError
from desktop.gui.looks.first_payment import FirstPayment
from desktop.gui.model import Snapshot, read
from desktop.gui.pages.activity import ActivityPage

NOTICES: dict[str, bool] = {"needs you": True, "job failed": True, "paid": True, "job ended": False, "paused": False}
"""Each kind, and whether it is on from the beginning."""
AT_ONCE = 3  # More than that at a time are not told one by one.


def notice_key(name: str) -> str:
    """Where its switch is remembered."""
    return f"notify/{name}"


def notice_of(event: ActivityEvent) -> str:
    """Of which kind an event is, "" for those that are never told."""
    match event.kind:
        case "stopped" | "unanswered":
            return "needs you"
        case "job failed" | "paid" | "job ended":
            return event.kind
        case "lending":
            return "paused"
        case _:
            return ""


class DesktopNotices(QObject):
    """Follows the activity and tells what its owner wants to hear."""

    def __init__(
        self,
        calls: Calls,
        settings: QSettings,
        words: ActivityPage,
        first_payment: FirstPayment,
        tell: Callable[[str, bool], None],
        parent: QObject | None = None,
    ) -> None:
        """``words``: whose sentences to use; ``tell``: shows a text, as a warning or not."""
        super().__init__(parent)
        self._calls, self._settings, self._words, self._tell = calls, settings, words, tell
        self._first_payment = first_payment
        self._known: int | None = None

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Ask what is new where something is."""
        if snapshot.status is None:
            return
        last = snapshot.status.last_event
        if self._known is None or last < self._known:
            self._known = last
        elif last > self._known:
            since, self._known = self._known, last
            self._calls.get("activity", lambda body: self._take(body, since))

    def _take(self, body: bytes, since: int) -> None:
        try:
            events = read(body, ActivityEvents).events
        except AnswerError:
            return  # The activity page says so where somebody looks.
        self._words.show_events(ActivityEvents(events))
        new = [event for event in events if event.number > since and self._wanted(event)]
        for event in reversed(new[:AT_ONCE]):
            self._tell(self._said(event), event.severity != "info")

    def _said(self, event: ActivityEvent) -> str:
        text = self._words.words(event)
        is_payment = event.kind == "paid" and not event.detail.get("target")  # Else it is what its owner sends on.
        return self._first_payment.words(text) if is_payment and self._first_payment.tell_once() else text

    def _wanted(self, event: ActivityEvent) -> bool:
        name = notice_of(event)
        return bool(name) and bool(self._settings.value(notice_key(name), NOTICES[name], bool))
