"""Figures as people read them; the same on the pages and on the command line."""

from ledger.money import show
from protocol.evaluation import EvaluationView
from protocol.rest.api import Agreement, JobStateName, Quote
from protocol.task import PreferenceScore

SIGN = "¤"  # The ledger's token, whichever it is: Unicode's sign for a currency that is not specified.
_UNIT = 1_000_000
_MOST_DIGITS = 12  # Before the point: with the millionths they fit a number of the ledger.
_STEPS = ("", "k", "M", "G", "T", "P", "E")
_COUNTS = ("", "", " million", " billion", " trillion")

JOB_SENTENCES: dict[JobStateName, str] = {
    "created": "Waiting for its escrow: nothing runs and nothing is spent until it is funded.",
    "funded": "The budget is in escrow. Nodes are being chosen.",
    "planned": "Nodes are chosen and are getting ready.",
    "running": "Training.",
    "paused": "Paused: nothing runs and nothing is spent until it is resumed.",
    "verifying": "Training is done. The last audits and the model archive are under way.",
    "settled": "Done: verified work is paid, the rest is refunded.",
    "failed": "Failed: verified work is paid, the rest is refunded.",
    "cancelled": "Cancelled: verified work is paid, the rest is refunded.",
}


def amount(micro: int, places: int = 2) -> str:
    """Millionths of the token as a decimal, exactly: at least ``places`` decimals, no other superfluous zeros.

    >>> amount(12_500_000), amount(1), amount(-1_234_567_890_000)
    ('12.50', '0.000001', '-1,234,567.89')
    """
    whole, _, fraction = show(abs(micro)).partition(".")
    return f"{'-' if micro < 0 else ''}{int(whole):,}.{fraction.ljust(places, '0')}"


def money(micro: int) -> str:
    """An amount with the sign of the token, as sentences have it: ``¤ 12.50``."""
    return f"{SIGN} {amount(micro)}"


def parse_amount(text: str) -> int:
    """A decimal number of tokens as millionths, exactly.

    Raises:
        ValueError: not a plain decimal number, finer than a millionth, or larger than any budget may be.
    """
    whole, _, fraction = text.strip().replace(",", "").partition(".")
    digits = whole + fraction
    if not digits.isascii() or not digits.isdigit() or not whole:
        raise ValueError(f"{text[:40]!r} is not an amount: write a number such as 12.50")
    if len(fraction) > 6:
        raise ValueError(f"{text[:40]!r} is finer than a millionth: write six decimals at most")
    if len(whole.lstrip("0")) > _MOST_DIGITS:
        raise ValueError(f"{text[:40]!r} is too large: write {10**_MOST_DIGITS - 1:,} at most")
    return int(whole) * _UNIT + int(fraction.ljust(6, "0"))


def count(number: float) -> str:
    """A number of things, short: ``1,234``, ``2.05 million``."""
    if abs(number) < 999_999.5:
        return f"{number:,.0f}"
    step = 0
    while abs(number) >= 999.5 and step < len(_COUNTS) - 1:
        number, step = number / 1000, step + 1
    return f"{number:.3g}{_COUNTS[step]}"


def size(number: float) -> str:
    """A number of bytes, short, in thousands: ``1.9 MB``."""
    return f"{_scaled(number)}B"


def speed(flops: float) -> str:
    """Floating-point operations a second, short: ``61 TFLOP/s``."""
    return f"{_scaled(flops)}FLOP/s"


def work(operations: float) -> str:
    """Floating-point operations, short: ``4.9 PFLOP``."""
    return f"{_scaled(operations)}FLOP"


def takes(quote: Quote) -> str:
    """How long a job takes, or why nobody knows."""
    if quote.problems and not (quote.hours and quote.nodes_available):
        return f"not known: {'no plan fits the network' if quote.nodes_available else 'nobody is there to take it now'}"
    return duration(quote.hours * 3600 or None)


def duration(seconds: float | None) -> str:
    """A time span, never negative; ``None`` is not known yet."""
    if seconds is None:
        return "not known yet"
    left = max(0, round(seconds))
    if left < 90:
        return f"{left} s"
    minutes = round(left / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(round(left / 3600), 24)
    return f"{days} days {hours} h" if hours else f"{days} days"


def shape(stages: int, replicas: int) -> str:
    """How a job lies on its nodes: ``2 stages × 1 replica``."""
    return f"{stages} {'stage' if stages == 1 else 'stages'} × {replicas} {'replica' if replicas == 1 else 'replicas'}"


def seat_place(stage: int, replica: int, serves: bool) -> str:
    """``stage 1 of replica 2``. Places of a job that serves are counted from 1, those of one that trains from 0."""
    return f"stage {stage + serves} of replica {replica + serves}"


def agreement(whose: Agreement | None) -> str:
    """Whose word a held-out loss is; empty where nobody has told."""
    if whose is None:
        return ""
    if whose.of == 1:
        return "one computer's word"
    if not whose.same:
        return f"{whose.of} computers contradict each other"
    near = f", close on {whose.near} of another kind" if whose.near else ""
    return f"the same on {whose.same} of {whose.of} computers{near}"


def told_apart(score: PreferenceScore | None) -> str:
    """How held-out pairs of answers are told apart; empty where none are compared.

    >>> told_apart(PreferenceScore(0.875, 1.25))
    '87.5 % of pairs told apart, margin 1.250'
    """
    return "" if score is None else f"{100 * score.accuracy:.1f} % of pairs told apart, margin {score.margin:.3f}"


def measured(value: float | None, error: float | None) -> str:
    """A metric with its standard error.

    >>> measured(0.5, 0.05), measured(3.25, None), measured(None, None)
    ('0.5000 ± 0.0500', '3.2500', '–')
    """
    if value is None:
        return "–"
    return f"{value:.4f}" if error is None else f"{value:.4f} ± {error:.4f}"


def evaluation_sentence(found: EvaluationView) -> str:
    """How far trying a model with tasks is, or what was the matter."""
    match found.state:
        case "waiting":
            return "The model is tried with its tasks once the job is settled, one job after the other."
        case "running":
            return f"The model is being evaluated: {found.note or 'it is put together'}."
        case "failed":
            return f"The model could not be evaluated: {found.note}"
        case "done":
            return f"The model was evaluated{f': {found.note}' if found.note else '.'}"


def ratio(sent: int, naive: int) -> str:
    """How much less was sent than the naive amount: ``23x less``."""
    if sent <= 0 or naive <= 0:
        return "nothing sent yet"
    return f"{naive / sent:.3g}× less" if naive >= sent else f"{sent / naive:.3g}× more"


def short(address: str) -> str:
    """The two ends of an address or a signature."""
    return address if len(address) <= 12 else f"{address[:4]}…{address[-4:]}"


def _scaled(number: float) -> str:
    step = 0
    while abs(number) >= 999.5 and step < len(_STEPS) - 1:
        number, step = number / 1000, step + 1
    return f"{number:.3g} {_STEPS[step]}" if step else f"{number:.0f} "
