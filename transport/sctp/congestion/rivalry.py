"""Whose queue is it? What a flow notices of others on its line, and what it remembers of its own share."""

from transport.sctp.congestion.competing import CompetingWindow

# A queue of this many targets is suspect; flows that share a line see up to 1.26 while they even out.
SUSPECT_TARGETS = 1.5
SUSPECT_EPOCHS = 4  # It has answered to a smaller window by then if it is ours.
SUSPECT_EPOCHS_LONG = 2  # Where the queue is longer than the path, waiting is worse than a drain too many.
MEMORY_S = 30.0  # What a flow had is its fair claim for so long: three periods of CUBIC on a home line.
FAIR_SHARE = 0.5  # Of the rate that was ours alone, once somebody has come.
HOLD_LEAST_S, HOLD_ROUNDS = 0.5, 10  # A newcomer of our own kind has done with its start-up by then.
RETURN_S = 15.0  # Who was there a moment ago gets no such grace.
TEST_EVERY_S = 4.0
DIP_TEST_S = 1.0
DIP_SHARE = 0.04  # The queue that one of eight equal flows drains: 0.25 / 8, and its own part of the queue.
LONGEST_FADES = 0.97  # An epoch.
SQUEEZED_SHARE = 0.6  # Of what the path held of this flow when a drain last emptied the queue,
SQUEEZED_DRAINS = 3  # at so many drains that did not,
SQUEEZED_AGAIN = 2  # or, soon after competing, so many.
NEWCOMER_SHRINKS = 0.97  # Of the drain before, where none ever emptied it: among its own kind a newcomer grows.
SHORT_S, SHORT_PACKETS = 0.015, 24  # A packet takes a twentieth of such a round trip. Over longer ones few even out.
ALONE_SHARE = 0.8  # Of the greatest rate of late: who has less now is not alone, for MEMORY_S.
RATE_EPOCHS = 8  # Smoothing: single epochs vary by a fifth.
GREATEST_FADES = 0.9995  # An epoch: a tenth in six seconds and more.
EMPTIED_TESTS = 3  # CUBIC's own decrease can empty a queue together with our drain, but seldom as often in a row.


class Alone:
    """Whether this flow has a short line to itself, as far as it can tell: what it is given of the line has not become less.

    On a line that holds few packets each of them is much of the round trip, and the queue in which several flows even out is
    longer than one flow needs that sends packet by packet. Who is wrong here is given less by those who hold the longer queue,
    and so learns it.
    """

    def __init__(self) -> None:
        self._rate = self._greatest = 0.0
        self._fell_at = -MEMORY_S

    def see(self, now: float, rate: float) -> None:
        """An epoch in which there was enough to send delivered so many bytes a second."""
        self._rate += (rate - self._rate) / RATE_EPOCHS if self._rate else rate
        self._greatest = max(self._greatest * GREATEST_FADES, self._rate)
        if self._rate < ALONE_SHARE * self._greatest:
            self._fell_at, self._greatest = now, self._rate

    def on_short_line(self, now: float, base: float, packets: float) -> bool:
        """Whether a path with a round trip of ``base`` seconds that holds so many packets of this flow is short, and its own."""
        return base <= SHORT_S and packets <= SHORT_PACKETS and now - self._fell_at > MEMORY_S


class Rivalry:
    """Suspicion of other senders, the hold before it is acted upon, and the claim when competing begins.

    Attributes:
        epochs: for how many epochs the queue has been suspect.
        before: the window when it became so, in bytes.
        left_at: when this flow last stopped competing.
        tested_at: when a drain last ended.
        seen_empty: a drain emptied the queue: the path's own round trip is known.
    """

    def __init__(self) -> None:
        self.epochs = 0
        self.before = 0.0
        self.left_at = -MEMORY_S
        self.tested_at = 0.0
        self._left_window = 0.0
        self._claim = 0.0
        self._claim_rate = 0.0
        self._suspected_at = -MEMORY_S
        self._held_until: float | None = None
        self._longest = 0.0
        self._emptied = 0
        self.seen_empty = False
        self._unsqueezed = 0.0
        self._squeezes = 0

    def suspect(self, now: float, window: float, rate: float) -> None:
        """An epoch had too long a queue, at this window (bytes) and rate (bytes a second)."""
        if not self.epochs:
            self.before = window
            if now - self._suspected_at > MEMORY_S:
                self._claim, self._claim_rate = window, rate
        self.epochs += 1
        self._suspected_at = now

    def convinced(self, delay: float, base: float) -> bool:
        """Whether it has been too long for long enough."""
        return self.epochs >= (SUSPECT_EPOCHS if delay < base else SUSPECT_EPOCHS_LONG)

    def lone(self, now: float) -> bool:
        """Whether nobody has been met for a while."""
        return self.seen_empty and now - self.left_at > MEMORY_S

    def clear(self) -> None:
        """The queue answers."""
        self.epochs = 0
        self._held_until = None

    # A drain did not empty the queue, but it may be the start-up of a flow of our own kind.

    def hold(self, now: float, rtt: float) -> bool:
        """Ask for time before competing; whether it is granted, which it is once."""
        if self._held_until is not None or now - self.left_at <= RETURN_S:
            return False
        self._held_until = now + max(HOLD_LEAST_S, HOLD_ROUNDS * rtt)
        self._longest = 0.0
        return True

    def holding(self, now: float) -> bool:
        """Whether that time is running."""
        return self._held_until is not None and now < self._held_until

    def unsure(self, now: float, held: float) -> bool:
        """Whether to look soon again, while the path holds so many bytes of this flow.

        That is so before a drain has emptied the queue, after one that did not, and where this flow stopped competing only to
        become much smaller.
        """
        smaller = now - self.left_at < RETURN_S and held < SQUEEZED_SHARE * self._unsqueezed
        return not self.seen_empty or self._squeezes > 0 or smaller

    def emptied(self, now: float, held: float) -> None:
        """A drain emptied the queue; the path held so many bytes of this flow before it."""
        self.seen_empty = True
        self._squeezes = 0
        self._unsqueezed = max(held, self._unsqueezed) if now - self.left_at < RETURN_S else held

    def squeezed(self, now: float, held: float) -> bool:
        """Whether others push this flow aside, though they never make the queue long: a window that grows slowly does so.

        Args:
            now: a drain ended that did not empty the queue.
            held: bytes of this flow that the path held before it.
        """
        least = (SQUEEZED_SHARE if self.seen_empty else NEWCOMER_SHRINKS) * self._unsqueezed
        self._unsqueezed = max(held, self._unsqueezed) if self.seen_empty else held
        if held >= least:
            self._squeezes = 0
            return False
        self._squeezes += 1
        return self._squeezes >= (SQUEEZED_AGAIN if now - self.left_at < RETURN_S else SQUEEZED_DRAINS)

    # Others drain: to drain with them empties the queue for all.

    def dip(self, now: float, standing: float, above: float = 0.0) -> bool:
        """Whether the queue has just become shorter, after it was longer than `above`; all are round trips in seconds."""
        dipped = self._longest > above and standing < self._longest * (1 - DIP_SHARE)
        self._longest = max(standing, self._longest * LONGEST_FADES)
        return dipped and self.rested(now)

    def rested(self, now: float) -> bool:
        """Whether the last drain was long enough ago for one out of turn."""
        return now - self.tested_at > DIP_TEST_S

    # Competing

    def test_due(self, now: float) -> bool:
        """Whether a competing flow should look again whose queue it is."""
        return now - self.tested_at > TEST_EVERY_S

    def compete(self, now: float, window: float, standing: float, packet_bytes: int) -> CompetingWindow:
        """The window to begin with: what this flow had before, or half of what the line gave it alone."""
        claim = max(window, self._claim, FAIR_SHARE * self._claim_rate * standing)
        if now - self.left_at < RETURN_S:
            claim = max(claim, self._left_window)
        self._longest = standing
        self._held_until = None
        self._emptied = self._squeezes = 0
        return CompetingWindow(now, claim, packet_bytes, searching=not self.seen_empty)

    def refused(self) -> None:
        """A drain found the queue still there."""
        self._emptied = 0

    def may_leave(self, now: float, window: float) -> bool:
        """A drain emptied the queue; whether that has been seen often enough to stop competing."""
        self._emptied += 1
        if self._emptied < EMPTIED_TESTS:
            return False
        self.left_at, self._left_window = now, window
        return True
