"""An engine of containers within a network namespace, and images of a network's servers made of this machine's own programs.

Nothing is fetched, and the namespace has no way out: what the containers publish is on its own loopback device.
"""

import contextlib
import ctypes
import os
import re
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from installer.image import engine, host
from installer.image.build import import_root
from tests.testbed import namespaces

ROOT = Path(__file__).parents[2]
PROGRAMS = {"docker-compose": "docker-compose", "caddy": "caddy", "prometheus": "prometheus", "initdb": "postgresql"}
"""What is called -> Debian's package of it."""
CODE = ("common", "coordinator", "cottage", "desktop", "docs", "ledger", "protocol", "trainer", "transport")
EXTRAS = ("coordinator", "postgres", "agent", "trainer", "relay")
BASE = "cottage-host:test"
KEPT = re.compile(r"(ENV|USER|WORKDIR|VOLUME|EXPOSE|STOPSIGNAL|HEALTHCHECK|ENTRYPOINT|CMD) ")
ADDRESS = "198.51.100.7"
"""At which containers and the namespace's own programs reach each other, as if it were public."""
USERS = "root:x:0:0::/:/none\npostgres:x:999:999::/tmp:/none\nserver:x:65432:65432::/tmp:/none\nnobody:x:65534:65534::/:/none\n"
POSTGRES = Path("/usr/lib/postgresql/15")
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of setns(2).

_PYTHON = f"""FROM {BASE}
ENV LD_LIBRARY_PATH=/usr/local/lib PYTHONHOME=/usr/local
COPY passwd /etc/passwd
COPY paths.pth {sysconfig.get_path("purelib", vars={"base": "/usr/local"})}/
COPY code /opt/cottage
COPY --chown=65432:65432 empty /var/lib/cottage
COPY --chown=65432:65432 empty /var/lib/cottage-relay
"""
_DATABASE = f"""FROM {BASE}
ENV LD_LIBRARY_PATH=/usr/local/lib PATH={POSTGRES}/bin:/bin PGDATA=/var/lib/postgresql/data
COPY passwd /etc/passwd
COPY start /usr/local/bin/start
COPY --chown=999:999 empty /var/lib/postgresql/data
VOLUME /var/lib/postgresql/data
ENTRYPOINT ["/bin/sh", "/usr/local/bin/start"]
"""
_START = """set -e
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  set -- --auth-local=trust --auth-host=scram-sha-256 --locale=C --encoding=UTF8
  initdb --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" "$@"
  echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
  pg_ctl -w -o "-c listen_addresses=''" start
  createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
  pg_ctl -w stop
fi
exec postgres -c "listen_addresses=*"
"""
_PROXY = f"""FROM {BASE}
COPY empty /data
COPY empty /config
ENV XDG_DATA_HOME=/data XDG_CONFIG_HOME=/config
CMD ["/usr/bin/caddy", "run", "--config", "/etc/caddy/Caddyfile", "--adapter", "caddyfile"]
"""
_PROMETHEUS = f"""FROM {BASE}
COPY passwd /etc/passwd
COPY --chown=65534:65534 empty /prometheus
USER 65534
VOLUME /prometheus
WORKDIR /prometheus
ENTRYPOINT ["/usr/bin/prometheus"]
"""


def missing() -> str:
    """Why servers cannot be brought up in containers here; empty where they can."""
    if reason := namespaces.missing():
        return reason
    absent = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    if not shutil.which(engine.ENGINE):
        absent.append("docker.io")
    return f"missing: apt-get install {' '.join(absent)}" if absent else ""


@contextlib.contextmanager
def within(namespace: Path) -> Iterator[None]:
    """This thread, and whatever it starts, has the network of ``namespace``."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as home, namespace.open() as there:
        _enter(libc, there.fileno())
        try:
            yield
        finally:
            _enter(libc, home.fileno())


def _enter(libc: ctypes.CDLL, namespace: int) -> None:
    if libc.setns(namespace, _NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "setns")


@contextlib.contextmanager
def engine_of_its_own() -> Iterator[str]:
    """The address of an engine in a namespace of its own, in which this thread is meanwhile."""
    made = namespaces.Namespaces()
    folder = Path(tempfile.mkdtemp(prefix="cottage-", dir="/tmp"))  # Sockets want a short path.
    try:
        made.add("servers")
        made.ip("servers", f"addr add {ADDRESS}/32 dev lo")
        with within(Path("/run/netns") / made.full("servers")):
            yield engine.start(folder)
    finally:
        engine.stop(folder)
        made.remove()
        shutil.rmtree(folder, ignore_errors=True)


def make_images(client: Any, folder: Path) -> None:
    """``cottage-coordinator``, ``cottage-relay``, and what stands for the public images, all with the tag ``test``.

    Python, packages and programs are this machine's. What a Dockerfile says of how its image is run is taken from there.
    """
    packages = host.distributions([f"cottage[{','.join(EXTRAS)}]"])
    del packages["cottage"]  # Its folders are copied.
    import_root(client, BASE, lambda output: host.write_tree(output, packages, _programs()))
    code = folder / "python" / "code"
    for name in CODE:
        shutil.copytree(ROOT / name, code / name, symlinks=True)
    (code / "bin").mkdir()
    (code / "bin" / "python").symlink_to("/usr/local/bin/python3")
    command = code / "bin" / "cottage"
    command.write_text("#!/opt/cottage/bin/python\nimport sys\nfrom cottage.cli import main\nsys.exit(main())\n")
    command.chmod(0o755)
    # Tools are started without PYTHONPATH.
    (folder / "python" / "paths.pth").write_text("/opt/cottage\n/opt/site\n")
    for name in ("coordinator", "relay"):
        _build(client, folder / "python", name, _PYTHON + _run_as(ROOT / "installer" / name / "Dockerfile"))
    (folder / "other").mkdir()
    (folder / "other" / "start").write_text(_START)
    for name, recipe in {"database": _DATABASE, "proxy": _PROXY, "prometheus": _PROMETHEUS}.items():
        _build(client, folder / "other", name, recipe)


def _build(client: Any, context: Path, name: str, recipe: str) -> None:
    (context / "empty").mkdir(exist_ok=True)
    (context / "passwd").write_text(USERS)
    (context / "Dockerfile").write_text(recipe)
    client.images.build(path=str(context), tag=f"cottage-{name}:test", rm=True, forcerm=True, network_mode="none")


def _run_as(dockerfile: Path) -> str:
    """How a Dockerfile's last stage is run."""
    last = dockerfile.read_text().rpartition("\nFROM ")[2]
    lines = [line for line in last.splitlines() if KEPT.match(line)]
    return "\n".join(lines).replace("USER relay", "USER 65432:65432") + "\n"


def _programs() -> Mapping[str, str]:
    """Path in the images -> a file of this machine."""
    found = {"bin/sh": os.path.realpath("/bin/sh")}
    found |= {f"usr/bin/{name}": str(shutil.which(name)) for name in ("caddy", "prometheus")}
    found |= {f"usr/bin/{name}": str(POSTGRES / "bin" / name) for name in ("pg_dump", "pg_restore")}
    share = Path("/usr/share/postgresql/15")
    for folder in (POSTGRES / "bin", POSTGRES / "lib", share, Path("/usr/share/zoneinfo")):
        files = (path for path in folder.rglob("*") if path.is_file() and "bitcode" not in path.parts)
        found |= {str(path).lstrip("/"): str(path) for path in files}
    return found
