"""The agent's own network tests: at the first start, once a day while it is idle, and when its owner asks."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from common.clock import Clock
from desktop.agent.base.config import Home
from desktop.agent.base.log import LOG, printable
from protocol.codec import MessageError, decode_json, encode_json
from protocol.identity import NodeKey
from protocol.network import NetworkReport
from transport.nettest.errors import NettestError
from transport.nettest.offer import ask_relays
from transport.nettest.result import NetTest
from transport.nettest.run import run
from transport.sctp.allowance import Allowance

FILE = "nettest.json"
EVERY_S = 86_400.0  # A home's line changes with its contract or its router.
LOOK_S = 30.0
RETRY_S = 1800.0  # Relays that were silent may be back.
FULL_TEST_BYTES = 10**9  # Four seconds of 1 Gbit/s, and something beside it: a monthly cap must have as much left.


class LineTests:
    """Runs one test at a time, and keeps the last."""

    def __init__(
        self,
        home: Home,
        key: NodeKey,
        coordinator: str,
        allowance: Allowance,
        clock: Clock,
        done: Callable[[NetworkReport], None],
    ) -> None:
        """Go on from the last test that ``home`` holds.

        Args:
            allowance: what the owner grants; rates are measured only where it sets no rate and the month has enough left.
            done: told of the last test at once, and of every further one.
        """
        self._file = home.path / FILE
        self._key = key
        self._coordinator = coordinator
        self._allowance = allowance
        self._clock = clock
        self._done = done
        self._alone = asyncio.Lock()
        self.last = _load(self._file)

    def report(self) -> NetworkReport | None:
        """The last test for the coordinator: no direction is said to be faster than the owner's limit for it."""
        if self.last is None:
            return None
        report = self.last.report()
        up, down = _capped(report.up, self._allowance.upload), _capped(report.down, self._allowance.download)
        return msgspec.structs.replace(report, up=up, down=down)

    async def run(self, *, speed: bool = True) -> NetTest:
        """Test now, or after the test that runs already.

        Raises:
            NettestError: the coordinator does not tell its relays, or has none.
        """
        async with self._alone:
            targets = await ask_relays(self._coordinator, self._key, self._clock)
            why_not = self.why_no_rates() if speed else ""
            test = await run(targets, speed=speed and not why_not, clock=self._clock)
            if why_not:
                test = msgspec.structs.replace(test, note=why_not)
            self._allowance.charge_upload(test.moved, self._clock.now())
            self.last = _with_last_rates(test, self.last)
            self._keep(self.last)
            told = self.report()
            assert told is not None
            self._done(told)
            return self.last

    async def watch(self, is_idle: Callable[[], bool]) -> None:
        """Test now and then, for ever, while nothing else uses the line."""
        told = self.report()
        if told is not None:
            self._done(told)
        not_before = 0.0
        while True:
            await self._clock.sleep(LOOK_S if self.last else 1.0)
            now = self._clock.time()
            fresh = self.last is not None and 0 <= now - self.last.at < EVERY_S
            if fresh or not is_idle() or now < not_before:
                continue
            not_before = now + RETRY_S
            try:
                test = await self.run()
            except NettestError as error:
                LOG.info("the line was not tested: %s", printable(str(error)))
            else:
                LOG.info("the line was tested: %s, up %s, down %s bytes/s", test.nat, test.up, test.down)

    def why_no_rates(self) -> str:
        """Why the line must not be filled; empty where it may."""
        allowance = self._allowance
        if allowance.upload is not None or allowance.download is not None:
            return "the rates are not measured while limits are set"
        if allowance.remaining is not None and allowance.remaining < FULL_TEST_BYTES:
            return "the rates are not measured: too little is left of this month's cap"
        return ""

    def _keep(self, test: NetTest) -> None:
        draft = self._file.with_name(f"{FILE}.new")
        try:
            draft.write_bytes(encode_json(test))
            draft.replace(self._file)
        except OSError as error:
            LOG.warning("the test cannot be kept in %s: %s", self._file, error)


def _with_last_rates(test: NetTest, before: NetTest | None) -> NetTest:
    """Rates that were not measured this time stay those of last time."""
    if before is None or test.up is not None or test.down is not None:
        return test
    return msgspec.structs.replace(test, up=before.up, down=before.down, speed_relay=before.speed_relay)


def _capped(rate: float | None, limit: float | None) -> float | None:
    return rate if rate is None or limit is None else min(rate, limit)


def _load(file: Path) -> NetTest | None:
    try:
        test: NetTest = decode_json(file.read_bytes(), NetTest)
    except FileNotFoundError:
        return None
    except (OSError, MessageError) as error:
        LOG.warning("%s cannot be used, the line is tested anew: %s", file, error)
        return None
    return test
