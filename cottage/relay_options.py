"""The options of ``cottage relay``: read, checked, and made into what the relay takes."""

import argparse
import ipaddress
import os
import secrets
import socket
import ssl
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import UrlError
from common.options import decimal, port, whole
from common.own_folders import data_folder, make_folder
from common.system_words import reason
from common.urls import join, split
from transport.relay.announce import check_coordinator
from transport.relay.datagrams import family_of
from transport.relay.errors import OptionsError
from transport.relay.message import Address
from transport.relay.options import (
    MAX_SECRET_CHARS,
    MIN_SECRET_CHARS,
    NAT_PORT,
    STUN_PORT,
    TLS_PORT,
    Quota,
    RelayOptions,
    check_ip,
)
from transport.relay.peer_policy import Network

MAX_URLS = 8  # As many as an announcement names (RelayReport.urls).
BYTES_PER_MBIT = 125_000
# Nothing is sent there: the system only tells by which of its addresses it would go. Documentation addresses are routed nowhere.
_FAR_AWAY = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}


@dataclass(frozen=True)
class RelayCommand:
    """Everything that was asked for."""

    options: RelayOptions
    certificate: tuple[Path, Path] | None
    coordinator: str
    key_file: Path
    region: str
    host: str
    metrics: Address | None
    coturn: bool
    print_config: bool
    ready_file: Path | None

    def urls(self, plain: Sequence[Address] = (), tls: Sequence[Address] = ()) -> tuple[str, ...]:
        """Where nodes reach the relay, for the given addresses or those that were asked for."""
        public = [self.options.public(ip) for ip in self.options.listen]
        plain = plain or [(ip, self.options.port) for ip in public]
        if self.options.tls_port is not None:
            tls = tls or [(ip, self.options.tls_port) for ip in public]
        plain, tls = _far_reaching(plain), _far_reaching(tls)
        ways = [
            *(f"turn:{join(self.host or ip, port)}?transport=udp" for ip, port in plain),
            *(f"turn:{join(self.host or ip, port)}?transport=tcp" for ip, port in plain),
            *(f"turns:{join(self.host or ip, port)}?transport=tcp" for ip, port in tls),
        ]
        return tuple(dict.fromkeys(ways))[:MAX_URLS]


def _far_reaching(addresses: Sequence[Address]) -> Sequence[Address]:
    """The public ones; all, where there are none: a relay for one local network."""
    return [address for address in addresses if ipaddress.ip_address(address[0]).is_global] or addresses


def parse(argv: Sequence[str]) -> RelayCommand:
    """Read the command line.

    Raises:
        OptionsError: an option cannot be used; the text says which and why.
        SystemExit: argparse's own, after ``--help`` or an unknown option.
    """
    given = _parser().parse_args(argv)
    if given.coturn and not given.port:
        raise OptionsError("coturn needs a port of its own: leave out --port 0")
    if given.coturn and given.metrics:
        raise OptionsError("coturn as Debian builds it has no metrics: leave out --metrics or --coturn")
    if given.coturn and sys.platform == "win32":
        raise OptionsError("coturn does not run on Windows: leave out --coturn")
    certificate = (given.cert, given.key) if given.cert and given.key else None
    if bool(given.cert) != bool(given.key):
        raise OptionsError("a certificate goes with its key: give both --cert and --key")
    return RelayCommand(
        options=_options(given, certificate),
        certificate=certificate,
        coordinator=check_coordinator(given.coordinator, plain_allowed=given.plain_http) if given.coordinator else "",
        key_file=given.key_file,
        region=given.region,
        host=given.host,
        metrics=_host_port(given.metrics) if given.metrics else None,
        coturn=given.coturn,
        print_config=given.print_config,
        ready_file=given.ready_file,
    )


def _options(given: argparse.Namespace, certificate: tuple[Path, Path] | None) -> RelayOptions:
    listen = tuple(given.listen or _own_addresses())
    if not listen:
        raise OptionsError("this machine has no address that leads anywhere: name one with --listen")
    return RelayOptions(
        secret=_secret(given.secret_file),
        listen=listen,
        port=given.port,
        nat_port=None if given.no_nat_port else given.nat_port,
        tls_port=given.tls_port if certificate else None,
        tls=_tls(*certificate) if certificate else None,
        external=_external(listen, given.external_ip),
        min_port=given.min_port,
        max_port=given.max_port,
        realm=given.realm,
        allowed=tuple(_network(text) for text in given.allow_peers),
        quota=Quota(
            allocations=given.max_allocations,
            allocations_per_user=given.max_allocations_per_user,
            user_rate=given.user_rate * BYTES_PER_MBIT,
            total_rate=given.total_rate * BYTES_PER_MBIT,
            speed_streams=0 if given.no_speed_tests else Quota().speed_streams,
        ),
    )


def _parser() -> argparse.ArgumentParser:
    home = data_folder() / "relay"
    quota = Quota()
    parser = argparse.ArgumentParser(
        prog="cottage relay",
        description="Carry the packets of homes that cannot reach each other directly, and tell nodes their addresses "
        "(TURN and STUN). Everything that passes is encrypted by the nodes.",
    )
    reach = parser.add_argument_group("where it is reached").add_argument
    reach("--listen", action="append", metavar="IP", help="address of this machine (its main ones); may be repeated")
    reach("--external-ip", action="append", default=[], metavar="IP", help="public address, behind a cloud's NAT")
    reach("--host", default="", metavar="NAME", help="name that nodes use instead of addresses; TLS needs one")
    reach("--port", type=port, default=STUN_PORT, help="UDP and TCP, 0 for any (%(default)s)")
    reach("--nat-port", type=port, default=NAT_PORT, help="second UDP port, to tell NAT kinds (%(default)s)")
    reach("--no-nat-port", action="store_true", help="do without it")
    reach("--tls-port", type=port, default=TLS_PORT, help="TLS, with --cert and --key (%(default)s)")
    reach("--cert", type=Path, metavar="FILE", help="certificate chain (PEM); read again on SIGHUP")
    reach("--key", type=Path, metavar="FILE", help="its key (PEM)")
    reach("--min-port", type=port, default=49152, help="first port to relay from (%(default)s)")
    reach("--max-port", type=port, default=65535, help="last one; 0 for any (%(default)s)")
    who = parser.add_argument_group("who may use it").add_argument
    who("--secret-file", type=Path, default=home / "secret", help="shared with the coordinator; made if absent")
    who("--realm", default="cottage", help="name in the protocol (%(default)s)")
    who("--max-allocations", type=_count, default=quota.allocations, metavar="N", help="in all (%(default)s)")
    who(
        "--max-allocations-per-user", type=_count, default=quota.allocations_per_user, metavar="N", help="(%(default)s)"
    )
    who("--user-rate", type=_rate, default=0.0, metavar="MBIT", help="Mbit/s of one user (no limit)")
    who("--total-rate", type=_rate, default=0.0, metavar="MBIT", help="Mbit/s of all (no limit)")
    who("--no-speed-tests", action="store_true", help="do not measure the speed of nodes' lines")
    who("--allow-peers", action="append", default=[], metavar="NETWORK", help="relay into this private network, too")
    network = parser.add_argument_group("its network").add_argument
    network(
        "--coordinator", metavar="URL", help="announce the relay there; its operator allows it with --relay ADDRESS"
    )
    network("--plain-http", action="store_true", help="send the secret there unencrypted: test networks only")
    network("--key-file", type=Path, default=home / "key.json", help="who the relay is; made if absent")
    network("--region", default="", help="a few words for people, such as 'Frankfurt'")
    network("--metrics", metavar="HOST:PORT", help="serve /metrics (Prometheus) and /healthz")
    network("--ready-file", type=Path, help="write the relay's URLs here once it serves")
    other = parser.add_argument_group("Debian's coturn instead").add_argument
    other("--coturn", action="store_true", help="run coturn with these options instead of Cottage's own relay")
    other("--print-config", action="store_true", help="print its turnserver.conf and end")
    return parser


def _own_addresses() -> list[str]:
    """The addresses by which this machine reaches the world."""
    found = []
    for family, target in _FAR_AWAY.items():
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((target, 9))
            except OSError:
                continue  # No way there in this family.
            found.append(probe.getsockname()[0])
    return [ip for ip in found if not ipaddress.ip_address(ip).is_link_local]


def _external(listen: Sequence[str], public: Sequence[str]) -> dict[str, str]:
    """Public addresses in the order of the listening addresses of the same family."""
    left, mapped = list(listen), {}
    for text in public:
        ip = next((ip for ip in left if family_of(ip) == family_of(check_ip(text))), None)
        if ip is None:
            raise OptionsError(f"--external-ip {text}: there is no --listen address of its family left for it")
        left.remove(ip)
        mapped[ip] = text
    return mapped


def _secret(path: Path) -> str:
    """Read the shared secret; make one where there is none."""
    try:
        make_folder(path.parent)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read_secret(path)
    except OSError as error:
        raise OptionsError(f"cannot write the secret to {path}: {reason(error)}") from error
    secret = secrets.token_urlsafe(32)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret + "\n")
    return secret


def _read_secret(path: Path) -> str:
    try:
        with path.open() as file:
            mode = os.fstat(file.fileno()).st_mode
            secret = file.read(2 * MAX_SECRET_CHARS).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionsError(f"cannot read the secret in {path}: {reason(error)}") from error
    if sys.platform != "win32" and mode & 0o077:
        raise OptionsError(f"{path} is readable by others: run chmod 600 {path}")
    if not MIN_SECRET_CHARS <= len(secret) <= MAX_SECRET_CHARS or not secret.isascii() or not secret.isprintable():
        raise OptionsError(f"{path} must hold {MIN_SECRET_CHARS} to {MAX_SECRET_CHARS} plain characters in one line")
    return secret


def _tls(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one.
        own = isinstance(error, ssl.SSLError)
        why = "they are no certificate and key in PEM that belong together" if own else reason(error)
        raise OptionsError(f"cannot use the certificate {certificate} with the key {key}: {why}") from error
    return context


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise OptionsError(f"--allow-peers {text}: {error}; expected a network such as 192.168.1.0/24") from None


def _host_port(text: str) -> Address:
    try:
        return split(text)
    except UrlError as error:
        raise OptionsError(f"--metrics: {error}, such as 127.0.0.1:9641") from error


def _count(text: str) -> int:
    value = whole(text)
    if not 1 <= value <= 60_000:
        raise argparse.ArgumentTypeError(f"{text} is out of bounds: choose 1 to 60000, there are no more ports")
    return value


def _rate(text: str) -> float:
    value = decimal(text)
    if not 0 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text} is out of bounds: choose 0 (no limit) to 1000000 Mbit/s")
    return value
