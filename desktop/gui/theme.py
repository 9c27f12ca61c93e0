"""Colours, light and dark, and the shapes of the states. Text on its ground has a contrast of at least 4.5 to 1."""

from dataclasses import dataclass

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QIcon, QPainter, QPalette, QPen, QPixmap

from desktop.gui.sentences import Mood

ICON_SIZES = (16, 22, 24, 32, 48, 64)  # What trays ask for.


@dataclass(frozen=True)
class Theme:
    """One set of colours. ``brand`` marks focus; green (``lending``) means earning and nothing else."""

    ground: str
    card: str
    line: str
    text: str
    dim: str
    brand: str
    on_brand: str
    lending: str
    waiting: str
    off: str
    trouble: str
    gauge: str
    bar: str
    edge: str

    def mood(self, mood: Mood) -> QColor:
        """The colour of a state."""
        match mood:
            case Mood.LENDING:
                return QColor(self.lending)
            case Mood.WAITING | Mood.PAUSED:
                return QColor(self.waiting)
            case Mood.OFF:
                return QColor(self.off)
            case Mood.TROUBLE:
                return QColor(self.trouble)


LIGHT = Theme(
    ground="#f6f3ef",
    card="#ffffff",
    line="#e4ddd5",
    text="#1d1a17",
    dim="#6a6159",
    brand="#a8431a",
    on_brand="#ffffff",
    lending="#0f7f57",
    waiting="#8a5a00",
    off="#7d746b",
    trouble="#b3261e",
    gauge="#a8431a",
    bar="#a9cdbd",
    edge="#8c8279",
)
DARK = Theme(
    ground="#141210",
    card="#1e1b18",
    line="#39332d",
    text="#f3eee9",
    dim="#a79d93",
    brand="#f08a54",
    on_brand="#1d1a17",
    lending="#2fd18b",
    waiting="#f2b84b",
    off="#8f857b",
    trouble="#ff7b72",
    gauge="#f08a54",
    bar="#285b45",
    edge="#776d64",
)


def theme_of(palette: QPalette) -> Theme:
    """The theme whose ground ``palette`` has."""
    return DARK if palette.color(QPalette.ColorRole.Window).lightness() < 128 else LIGHT


def palette_of(theme: Theme) -> QPalette:
    """``theme`` for all of Qt's own widgets."""
    role = QPalette.ColorRole
    palette = QPalette(QColor(theme.card), QColor(theme.ground))
    for colour, roles in {
        theme.ground: (role.Window,),
        theme.card: (role.Base, role.Button, role.ToolTipBase),
        theme.line: (role.Mid, role.AlternateBase),
        theme.text: (role.WindowText, role.Text, role.ButtonText, role.ToolTipText),
        theme.dim: (role.PlaceholderText,),
        theme.brand: (role.Highlight, role.Accent, role.Link),
        theme.on_brand: (role.HighlightedText,),
    }.items():
        for one in roles:
            palette.setColor(one, QColor(colour))
    for one in (role.WindowText, role.Text, role.ButtonText):
        palette.setColor(QPalette.ColorGroup.Disabled, one, QColor(theme.dim))
    return palette


def style_of(theme: Theme) -> str:
    """What a palette cannot say: rounded buttons and fields, and the row of pages."""
    return f"""
    QPushButton {{ background: {theme.card}; color: {theme.text}; border: 1px solid {theme.edge}; border-radius: 8px;
        padding: 6px 14px; }}
    QPushButton:hover {{ border-color: {theme.brand}; }}
    QPushButton:pressed {{ background: {theme.line}; }}
    QPushButton:focus {{ border: 2px solid {theme.brand}; padding: 5px 13px; }}
    QPushButton:disabled {{ color: {theme.dim}; border-color: {theme.line}; }}
    QPushButton[role="main"] {{ background: {theme.brand}; color: {theme.on_brand}; border-color: {theme.brand}; }}
    QPushButton[role="main"]:focus {{ border: 2px solid {theme.text}; }}
    QPushButton[role="main"]:disabled {{ background: {theme.line}; color: {theme.dim}; border-color: {theme.line}; }}
    QPushButton[role="page"] {{ background: transparent; border: 2px solid transparent; color: {theme.dim}; padding: 6px 10px; }}
    QPushButton[role="page"]:checked {{ color: {theme.text}; background: {theme.line}; }}
    QPushButton[role="page"]:focus {{ border: 2px solid {theme.brand}; }}
    QPushButton[role="link"] {{ background: transparent; border: 2px solid transparent; color: {theme.brand}; padding: 2px 4px; }}
    QPushButton[role="link"]:focus {{ border: 2px solid {theme.brand}; }}
    QLineEdit, QPlainTextEdit {{ background: {theme.ground}; border: 1px solid {theme.edge}; border-radius: 8px;
        padding: 6px 8px; }}
    QLineEdit:focus, QPlainTextEdit:focus {{ border: 2px solid {theme.brand}; padding: 5px 7px; }}
    QComboBox, QSpinBox {{ background: {theme.ground}; color: {theme.text}; border: 1px solid {theme.edge}; border-radius: 8px;
        padding: 6px 8px; }}
    QComboBox:focus, QSpinBox:focus {{ border: 2px solid {theme.brand}; padding: 5px 7px; }}
    QComboBox::drop-down, QSpinBox::up-button, QSpinBox::down-button {{ background: transparent; border: none; width: 26px; }}
    QComboBox::down-arrow, QSpinBox::up-arrow, QSpinBox::down-arrow {{ image: none; width: 0; height: 0; }}
    QComboBox QAbstractItemView {{ background: {theme.card}; border: 1px solid {theme.edge}; outline: none;
        selection-background-color: {theme.line}; selection-color: {theme.text}; }}
    QComboBox QLineEdit, QComboBox QLineEdit:focus, QSpinBox QLineEdit, QSpinBox QLineEdit:focus {{ background: transparent;
        border: none; padding: 0; }}
    QRadioButton::indicator {{ width: 12px; height: 12px; border-radius: 8px; border: 2px solid {theme.edge}; }}
    QRadioButton::indicator:checked {{ border-color: {theme.brand}; background: qradialgradient(cx: 0.5, cy: 0.5, radius: 0.5,
        fx: 0.5, fy: 0.5, stop: 0 {theme.brand}, stop: 0.55 {theme.brand}, stop: 0.65 {theme.card}, stop: 1 {theme.card}); }}
    QRadioButton:focus {{ color: {theme.brand}; }}
    QToolTip {{ background: {theme.card}; color: {theme.text}; border: 1px solid {theme.edge}; }}
    QTableWidget {{ background: {theme.card}; border: none; selection-background-color: {theme.line};
        selection-color: {theme.text}; }}
    QTableWidget::item {{ padding: 2px 8px; }}
    QHeaderView::section {{ background: {theme.card}; color: {theme.dim}; border: none; padding: 4px 11px; }}
    """


def draw_chevron(painter: QPainter, tip: QPointF, colour: QColor, up: bool = False) -> None:
    """The arrow of a field: a style sheet that rounds the field takes the style's own away."""
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(QPen(colour, 1.6, Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap, Qt.PenJoinStyle.RoundJoin))
    rise = 4.0 if up else -4.0
    painter.drawPolyline([tip + QPointF(-4, rise), tip, tip + QPointF(4, rise)])


def draw_mood(painter: QPainter, box: QRectF, mood: Mood, theme: Theme) -> None:
    """The state as a shape: a disc with a tick, or a ring with a dot, two bars, a dash, or an exclamation mark."""
    unit = box.width() / 64
    colour = theme.mood(mood)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(QPen(colour, 8 * unit))
    painter.setBrush(colour if mood is Mood.LENDING else Qt.BrushStyle.NoBrush)
    painter.drawEllipse(box.adjusted(7 * unit, 7 * unit, -7 * unit, -7 * unit))
    ink = QColor(theme.card) if mood is Mood.LENDING else colour
    painter.setPen(QPen(ink, 7 * unit, Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap, Qt.PenJoinStyle.RoundJoin))

    def at(x: float, y: float) -> QPointF:
        return box.topLeft() + QPointF(x * unit, y * unit)

    match mood:
        case Mood.LENDING:
            painter.drawPolyline([at(20, 33), at(29, 42), at(45, 23)])
        case Mood.WAITING:
            painter.setBrush(ink)
            painter.drawEllipse(at(32, 32), 5 * unit, 5 * unit)
        case Mood.PAUSED:
            painter.drawLine(at(25, 23), at(25, 41))
            painter.drawLine(at(39, 23), at(39, 41))
        case Mood.OFF:
            painter.drawLine(at(23, 32), at(41, 32))
        case Mood.TROUBLE:
            painter.drawLine(at(32, 19), at(32, 34))
            painter.drawPoint(at(32, 45))


def mood_icon(mood: Mood, theme: Theme) -> QIcon:
    """The state for the tray, drawn at each size that trays ask for."""
    icon = QIcon()
    for size in ICON_SIZES:
        pixels = QPixmap(size, size)
        pixels.fill(Qt.GlobalColor.transparent)
        painter = QPainter(pixels)
        draw_mood(painter, QRectF(0, 0, size, size), mood, theme)
        painter.end()
        icon.addPixmap(pixels)
    return icon
