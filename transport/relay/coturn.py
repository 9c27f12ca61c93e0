"""Debian's relay with the same options: its settings, and a watch over its process that reads its log for the meter.

What coturn 4.6 cannot: obey a rate per user that changes while it runs (``max-bps`` holds per allocation from its start), serve
Prometheus as Debian builds it, and refuse the addresses of its own machine within an allowed network.
"""

import asyncio
import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from common.clock import Clock, within
from transport.relay.errors import CoturnError
from transport.relay.options import RelayOptions
from transport.relay.peer_policy import FORBIDDEN, Network
from transport.relay.usage import Users

PROGRAM = "turnserver"
START_S = 20.0  # It opens thousands of relay ports first.
STOP_S = 10.0
MAX_LINE = 4096  # The longest line of its log is a few hundred characters.
LAST_LINES = 20  # Of its log, shown when it ends by itself.
_NEW = re.compile(r"\d+: : session \d+: new, realm=<[^>]*>, username=<\d+:(?P<user>[\w-]{1,128})>, lifetime=\d+\n?")
_GONE = re.compile(r"\d+: : session \d+: delete: realm=<[^>]*>, username=<\d+:(?P<user>[\w-]{1,128})>\n?")
_USAGE = re.compile(
    r"\d+: : session \d+: peer usage: realm=<[^>]*>, username=<\d+:(?P<user>[\w-]{1,128})>, "
    r"rp=\d+, rb=(?P<received>\d{1,18}), sp=\d+, sb=(?P<sent>\d{1,18})\n?"
)


def settings(options: RelayOptions, folder: Path, certificate: tuple[Path, Path] | None = None) -> str:
    """The text of turnserver.conf.

    Args:
        folder: takes its pid file and its empty user database.
        certificate: PEM files of certificate and key, for TLS.
    """
    return "\n".join(_lines(options, folder, certificate)) + "\n"


def _lines(options: RelayOptions, folder: Path, certificate: tuple[Path, Path] | None) -> Iterator[str]:
    quota = options.quota
    for ip in options.listen:
        yield f"listening-ip={ip}"
        yield f"relay-ip={ip}"
        if ip in options.external:
            yield f"external-ip={options.external[ip]}/{ip}"
    yield f"listening-port={options.port}"
    if options.nat_port is not None and len(options.listen) > 1:
        yield f"alt-listening-port={options.nat_port}"
    else:
        yield "no-rfc5780"
    if certificate is not None and options.tls_port is not None:
        yield f"tls-listening-port={options.tls_port}"
        yield f"cert={certificate[0]}"
        yield f"pkey={certificate[1]}"
        yield "no-tlsv1"
        yield "no-tlsv1_1"
    else:
        yield "no-tls"
    if options.max_port:
        yield f"min-port={options.min_port}"
        yield f"max-port={options.max_port}"
    yield f"realm={options.realm}"
    yield "use-auth-secret"
    yield f"static-auth-secret={options.secret}"
    yield "stale-nonce=3600"
    yield f"user-quota={quota.allocations_per_user}"
    yield f"total-quota={quota.allocations}"
    if quota.user_rate:
        yield f"max-bps={round(quota.user_rate)}"
    if quota.total_rate:
        yield f"bps-capacity={round(quota.total_rate)}"
    yield from ("no-dtls", "no-cli", "no-tcp-relay", "no-multicast-peers", "no-software-attribute")
    yield "no-stun-backward-compatibility"
    yield from ("log-file=stdout", "simple-log", "verbose")
    yield f"pidfile={folder / 'turnserver.pid'}"
    yield f"userdb={folder / 'turnserver.db'}"
    yield from _peers(options)


def _peers(options: RelayOptions) -> Iterator[str]:
    """Its rules for peers: what is allowed goes before what is denied."""
    if any(network.network_address.is_loopback for network in options.allowed):
        yield "allow-loopback-peers"
    for network in options.allowed:
        yield f"allowed-peer-ip={_span(network)}"
    for network in FORBIDDEN:
        yield f"denied-peer-ip={_span(network)}"


def _span(network: Network) -> str:
    first, last = network[0], network[-1]
    if str(first) == "::":
        first += 1  # coturn takes a range from :: for one over all of IPv4; :: itself it refuses anyway.
    return str(first) if first == last else f"{first}-{last}"


class CoturnMeter:
    """What the log of a coturn tells; implements ``announce.RelayMeter``.

    coturn writes the bytes of an allocation every 2,048 packets and at its end.
    """

    def __init__(self, clock: Clock, allocations_max: int) -> None:
        """Count from now."""
        self.started = clock.time()
        self.users = Users(0.0)
        self.allocations = 0
        self.allocations_max = allocations_max
        self.bytes_relayed = 0
        self.packets_dropped = 0  # It does not tell.

    def read(self, line: str) -> None:
        """Take one line of the log."""
        if match := _USAGE.fullmatch(line):
            relayed = int(match["received"]) + int(match["sent"])
            self.users.get(match["user"]).bytes_relayed += relayed
            self.bytes_relayed += relayed
        elif match := _NEW.fullmatch(line):
            self.allocations += 1
            self.users.get(match["user"]).allocations += 1
        elif match := _GONE.fullmatch(line):
            self.allocations -= 1
            self.users.get(match["user"]).allocations -= 1


class Coturn:
    """A running coturn.

    Attributes:
        meter: what it carries.
    """

    def __init__(self, process: asyncio.subprocess.Process, meter: CoturnMeter) -> None:
        self.meter = meter
        self._process = process
        self._last: list[str] = []

    async def wait(self) -> None:
        """Read its log until it ends.

        Raises:
            CoturnError: always, since it should not.
        """
        while line := await self._line():
            self.meter.read(line)
        code = await self._process.wait()
        raise CoturnError(f"turnserver ended with status {code}:\n{''.join(self._last)}")

    async def until_ready(self) -> None:
        """Read its log until it serves.

        Raises:
            CoturnError: it ended, or is not ready within ``START_S``.
        """
        try:
            async with asyncio.timeout(START_S):
                while line := await self._line():
                    if "Total General servers" in line:
                        return
        except TimeoutError:
            raise CoturnError(f"turnserver did not begin within {START_S:.0f} s:\n{''.join(self._last)}") from None
        raise CoturnError(f"turnserver ended:\n{''.join(self._last)}")

    async def stop(self) -> None:
        """End it; by force after ``STOP_S``."""
        if self._process.returncode is None:
            self._process.terminate()
            try:
                await within(STOP_S, self._process.wait())
            except TimeoutError:
                self._process.kill()
                await self._process.wait()

    async def _line(self) -> str:
        assert self._process.stdout is not None
        try:
            raw = await self._process.stdout.readline()
        except ValueError:  # A line longer than MAX_LINE: asyncio has thrown it away.
            return "\n"
        line = raw.decode(errors="replace")
        self._last = [*self._last, line][-LAST_LINES:]
        return line


@contextlib.asynccontextmanager
async def running(
    options: RelayOptions, clock: Clock, certificate: tuple[Path, Path] | None = None, prefix: Sequence[str] = ()
) -> AsyncIterator[Coturn]:
    """Run coturn with these options; it ends with the body.

    Args:
        prefix: a command that runs it, such as one that enters a network namespace.
    Raises:
        CoturnError: it is not installed, or does not begin.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        raise CoturnError(
            "coturn is not installed: apt install coturn, or leave out --coturn to use Cottage's own relay"
        )
    with tempfile.TemporaryDirectory(prefix="cottage-relay-") as name:
        config = Path(name) / "turnserver.conf"
        with os.fdopen(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(settings(options, Path(name), certificate))
        process = await asyncio.create_subprocess_exec(
            *prefix,
            program,
            "-c",
            str(config),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=MAX_LINE,
        )
        coturn = Coturn(process, CoturnMeter(clock, options.quota.allocations))
        try:
            await coturn.until_ready()
            yield coturn
        finally:
            await coturn.stop()
