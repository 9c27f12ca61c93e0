"""Make the sandbox image: ``python -m installer.image.build [--from-host] NAME[:TAG]``.

Without ``--from-host`` from the Dockerfile, as on a provider's machine (fetches its base and packages). With it, from this
machine's own Python and installed packages, where no registry can be reached. Built again only when its inputs have changed:
the image is also tagged with their digest.
"""

import argparse
import hashlib
import io
import os
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import docker
import requests
from docker.errors import BuildError, DockerException, ImageNotFound

from installer.image import host

ROOT = Path(__file__).resolve().parents[2]
RECIPE = Path(__file__).resolve().parent
BASE = "cottage-python"
CODE = ("common", "protocol", "transport", "trainer")
ENGINE_TIMEOUT_S = 900  # Fetching PyTorch over a home line takes minutes.
_ON_BASE = """FROM {base}
COPY common /opt/cottage/common
COPY protocol /opt/cottage/protocol
COPY transport /opt/cottage/transport
COPY trainer /opt/cottage/trainer
ENV PATH=/usr/local/bin LD_LIBRARY_PATH=/usr/local/lib PYTHONHOME=/usr/local PYTHONPATH=/opt/cottage:/opt/site
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
RUN ["python3", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "/opt/cottage"]
USER 10001:10001
CMD ["python3", "-m", "trainer", "--help"]
"""

Say = Callable[[str], None]


class ImageError(Exception):
    """The image cannot be made; the text says why."""


def build(name: str, *, from_host: bool, torch_index: str = "", say: Say = lambda _: None) -> str:
    """Make sure that the engine has the image ``name`` of the present code; returns its tag with the digest.

    Raises:
        ImageError: no engine answers, or a step of the build failed.
    """
    repository, _, tag = name.partition(":")
    try:
        client = docker.from_env(timeout=ENGINE_TIMEOUT_S)
        try:
            return _build(client, repository, tag or "latest", from_host, torch_index, say)
        finally:
            client.close()
    except BuildError as error:
        log = "".join(str(line.get("stream", "")) for line in error.build_log)
        raise ImageError(f"{error.msg}\n{log[-4000:]}") from error
    except (DockerException, requests.RequestException, host.HostError) as error:
        raise ImageError(str(error)) from error


def _build(client: Any, repository: str, tag: str, from_host: bool, torch_index: str, say: Say) -> str:
    requirements = (RECIPE / "requirements.txt").read_text().split()
    if from_host:
        packages = host.distributions(requirements)
        base = f"{BASE}:{host.digest(packages)[:16]}"
        recipe = _ON_BASE.format(base=base)
    else:
        recipe = (RECIPE / "Dockerfile").read_text()
    context = _context(recipe)
    exact = f"{repository}:{hashlib.sha256(context + torch_index.encode()).hexdigest()[:16]}"
    if not _has(client, exact):
        if from_host and not _has(client, base):
            say(f"importing {base} from this machine's Python and {len(packages)} packages")
            import_root(client, base, lambda output: host.write_tree(output, packages))
        say(f"building {exact}")
        client.images.build(
            fileobj=io.BytesIO(context),
            custom_context=True,
            tag=exact,
            rm=True,
            forcerm=True,
            network_mode="none" if from_host else None,
            buildargs={"TORCH_INDEX": torch_index} if torch_index else {},
        )
    client.images.get(exact).tag(repository, tag)
    return exact


def _has(client: Any, image: str) -> bool:
    try:
        client.images.get(image)
    except ImageNotFound:
        return False
    return True


def import_root(client: Any, image: str, write: Callable[[BinaryIO], None]) -> None:
    """Stream the root file system that ``write`` writes into the engine, as ``image``.

    Raises:
        ImageError: it cannot be written, or the engine does not take it.
    """
    repository, _, tag = image.partition(":")
    with _pipe(write) as stream:
        answer = client.api.import_image(stream, repository=repository, tag=tag, stream_src=True)
    if '"error"' in answer:
        raise ImageError(f"the engine could not import {image}: {answer[-500:]}")


@contextmanager
def _pipe(write: Callable[[BinaryIO], None]) -> Iterator[BinaryIO]:
    """What ``write`` writes, to be read here while it does; its error is raised at the end."""
    reading, writing = os.pipe()
    failures: list[Exception] = []

    def run() -> None:
        with os.fdopen(writing, "wb", buffering=1 << 20) as output:
            try:
                write(output)
            except (OSError, host.HostError) as error:
                failures.append(error)

    thread = threading.Thread(target=run, name="image-tree")
    thread.start()
    try:
        with os.fdopen(reading, "rb", buffering=1 << 20) as stream:
            yield stream
    finally:
        thread.join()
        if failures:
            raise ImageError(f"this machine's Python cannot be packed: {failures[0]}") from failures[0]


def _context(recipe: str) -> bytes:
    """The build context: the recipe and the code, always the same bytes for the same content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        _add(tar, "Dockerfile", recipe.encode())
        _add(tar, "constraints.txt", (ROOT / "constraints.txt").read_bytes())
        _add(tar, "installer/image/requirements.txt", (RECIPE / "requirements.txt").read_bytes())
        for folder in CODE:
            for path in sorted((ROOT / folder).rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    _add(tar, str(path.relative_to(ROOT)), path.read_bytes())
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    tar.addfile(info, io.BytesIO(data))


def main(argv: Sequence[str] | None = None) -> int:
    """Build and print the exact tag; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m installer.image.build", description=__doc__)
    parser.add_argument("name", nargs="?", default="cottage-trainer", help="NAME[:TAG] (cottage-trainer:latest)")
    parser.add_argument("--from-host", action="store_true", help="from this machine's own Python and packages")
    parser.add_argument(
        "--torch-index", default="", help="a further package index for PyTorch, such as one of CPU builds"
    )
    options = parser.parse_args(argv)
    began = time.monotonic()
    try:
        exact = build(
            options.name,
            from_host=options.from_host,
            torch_index=options.torch_index,
            say=lambda text: _say(sys.stderr, text),
        )
    except ImageError as error:
        _say(sys.stderr, f"the image {options.name} cannot be made: {error}")
        return 1
    _say(sys.stdout, f"{exact} ({time.monotonic() - began:.1f} s)")
    return 0


def _say(stream: TextIO, text: str) -> None:
    stream.write(f"{text}\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
