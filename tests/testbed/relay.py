"""A relay of the test-bed, coturn or our own, over UDP, TCP and TLS, with credentials that expire."""

import datetime
import ipaddress
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from transport.ice.ice import IceServer, turn_credentials

PORT = 3478
TLS_PORT = 443  # The one that a company's firewall lets out.
SECRET = "shared with the coordinator only"
START_LIMIT_S = 20.0
PROGRAM = "turnserver"
CERTIFICATE, KEY = "relay.pem", "relay.key"
ROOT = Path(__file__).parents[2]


class RelayProgram(StrEnum):
    """What relays."""

    COTURN = "coturn"
    COTTAGE = "cottage relay"


@dataclass(frozen=True)
class Relay:
    """Where a relay listens, and what it takes to use it.

    Attributes:
        addresses: its public addresses, IPv4 before IPv6.
        authority: the certificate that programs must trust (``SSL_CERT_FILE``) to reach it over TLS.
    """

    name: str
    addresses: tuple[str, ...]
    authority: Path
    secret: str = SECRET
    port: int = PORT
    tls_port: int = TLS_PORT

    def __str__(self) -> str:
        """Its first address."""
        return self.addresses[0]

    @property
    def address(self) -> str:
        """Its first address."""
        return self.addresses[0]

    def servers(self, *transports: str) -> list[IceServer]:
        """ICE servers for nodes: STUN, and the relay over each of ``udp``, ``tcp`` and ``tls``, with fresh credentials."""
        username, password = turn_credentials(self.secret, "node", time.time())
        urls = {
            "udp": f"turn:{self.address}:{self.port}?transport=udp",
            "tcp": f"turn:{self.address}:{self.port}?transport=tcp",
            "tls": f"turns:{self.address}:{self.tls_port}?transport=tcp",
        }
        relays = [IceServer(urls[transport], username, password) for transport in transports]
        return [IceServer(f"stun:{self.address}:{self.port}"), *relays]


def coturn_settings(relay: Relay, folder: Path) -> str:
    """The text of its settings; ``folder`` takes its files."""
    settings = [(name, address) for address in relay.addresses for name in ("listening-ip", "relay-ip")] + [
        ("listening-port", str(relay.port)),
        ("tls-listening-port", str(relay.tls_port)),
        ("min-port", "50000"),
        ("max-port", "50999"),
        ("realm", "cottage.test"),
        ("static-auth-secret", relay.secret),
        ("cert", str(folder / CERTIFICATE)),
        ("pkey", str(folder / KEY)),
        ("log-file", str(folder / "turn.log")),
        ("pidfile", str(folder / "turn.pid")),
        ("userdb", str(folder / "turn.db")),
    ]
    flags = ["use-auth-secret", "fingerprint", "no-dtls", "no-cli", "simple-log", "no-rfc5780"]
    return "\n".join([f"{name}={value}" for name, value in settings] + flags) + "\n"


def make_certificate(addresses: Sequence[str], certificate: Path, key: Path) -> None:
    """Write a self-signed certificate for these addresses, or names, and its key."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "relay of the test-bed")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName(list(map(_general_name, addresses)))
    builder = x509.CertificateBuilder(name, name, private.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(
        now + datetime.timedelta(days=1)
    )
    builder = builder.add_extension(names, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    signed = builder.sign(private, hashes.SHA256())
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    key.write_bytes(private.private_bytes(encoding, form, plain))


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def start(relay: Relay, folder: Path, enter: Sequence[str], program: RelayProgram) -> subprocess.Popen[bytes]:
    """Start a relay behind the command prefix ``enter``.

    Raises:
        RuntimeError: it does not listen within ``START_LIMIT_S``.
    """
    make_certificate(relay.addresses, folder / CERTIFICATE, folder / KEY)
    command = _coturn(relay, folder) if program is RelayProgram.COTURN else _cottage(relay, folder)
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen([*enter, *command], stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=ROOT)
    deadline = time.monotonic() + START_LIMIT_S
    while not _listens(relay, enter):
        if time.monotonic() > deadline or process.poll() is not None:
            process.kill()
            raise RuntimeError(f"the relay did not start: {(folder / 'out').read_text()[-800:]}")
        time.sleep(0.01)
    return process


def _coturn(relay: Relay, folder: Path) -> list[str]:
    config = folder / "turn.conf"
    config.write_text(coturn_settings(relay, folder))
    return [PROGRAM, "-c", str(config)]


def _cottage(relay: Relay, folder: Path) -> list[str]:
    secret = folder / "secret"
    secret.write_text(relay.secret)
    secret.chmod(0o600)
    options = {
        "--port": relay.port,
        "--tls-port": relay.tls_port,
        "--cert": folder / CERTIFICATE,
        "--key": folder / KEY,
        "--secret-file": secret,
        "--key-file": folder / "identity",
    }
    listen = [word for address in relay.addresses for word in ("--listen", address)]
    given = [str(word) for option in options.items() for word in option]
    return [sys.executable, "-m", "cottage", "relay", *listen, *given]


def _listens(relay: Relay, enter: Sequence[str]) -> bool:
    """Whether all of its ports are open; TLS comes last."""
    command = [*enter, "ss", "-Hlntu"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in text.splitlines()]
    open_ports = {(fields[0], int(fields[4].rsplit(":", 1)[1])) for fields in lines}
    return open_ports >= {("udp", relay.port), ("tcp", relay.port), ("tcp", relay.tls_port)}
