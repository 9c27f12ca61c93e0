"""The page of earnings before there are any: what will be here, what goes on now, and what one can do."""

from PySide6.QtCore import Qt

from desktop.gui.looks.picture import LentPicture
from desktop.gui.model import AgentPhase, Snapshot
from desktop.gui.sentences import Mood, Sentences
from desktop.gui.widgets import Card, Text, button


class NoEarningsCard(Card):
    """``start`` is there while lending is off."""

    def __init__(self) -> None:
        super().__init__()
        self._words = Sentences(self)
        self.picture = LentPicture(self.tr("Picture of a graphics card"), self.tr("Picture of a processor"))
        title, text, self.now = Text(size=5, bold=True), Text(), Text(dim=True)
        title.say(self.tr("Nothing earned yet"))
        text.say(
            self.tr(
                "Jobs come by themselves while lending is on. Their work is checked, and then paid. Each job will be a row "
                "here: what it brought, whether it is paid, and why not where it is not."
            )
        )
        self.start = button(self.tr("&Start lending"), lambda: None, "main")
        left = Qt.AlignmentFlag.AlignLeft
        self.body.addWidget(self.picture, 0, left)
        for part in (title, text, self.now):
            self.body.addWidget(part)
        self.body.addWidget(self.start, 0, left)

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """What goes on now."""
        sentence = self._words.describe(snapshot)
        self.now.say(self.tr("Now: {0} {1}").format(sentence.headline, sentence.reason).strip())
        self.start.setVisible(not snapshot.is_on)
        self.start.setEnabled(snapshot.phase is not AgentPhase.STOPPING)
        if snapshot.status is not None:
            self.picture.show_device(snapshot.status.profile.kind == "cuda", sentence.mood is Mood.LENDING)
