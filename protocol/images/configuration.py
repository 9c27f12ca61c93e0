"""How an image is started: what of its configuration counts here, what is left out when it is pushed, and what is refused.

An image's configuration can ask for much that a home machine must not do in silence: a volume is a folder on the owner's disk
without a limit, a user may be root, a variable may have every program load a library or the NVIDIA runtime hand out all GPUs.
So an archive of Cottage's holds only the fields below, and a reader refuses any other. ``reduced`` makes that of what a builder
wrote, and says what was left out. Source: OCI Image Format Specification 1.1, "Image Configuration".
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from protocol.codec import MessageError, convert, decode_json
from protocol.images.errors import ImageFormatError
from protocol.images.statement import Architecture

MAX_CONFIGURATION: Final = 256 << 10  # Most have 10 KB.
MAX_LAYERS: Final = 127  # As engines have it.
LOADER: Final = ("LD_PRELOAD", "LD_AUDIT")
GPU_VARIABLES: Final = "NVIDIA_"  # By these the NVIDIA runtime gives GPUs to containers that nobody gave any.

Word = Annotated[str, Meta(max_length=32_768, pattern=r"^[^\x00]*$")]
Words = Annotated[tuple[Word, ...], Meta(max_length=1024)]
Variable = Annotated[str, Meta(max_length=32_768, pattern=r"^[^\x00=]+=[^\x00]*$")]
DiffId = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}$")]


class RunConfiguration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="pascal", omit_defaults=True):
    """What a container of the image runs where its task does not say: program, arguments, variables, folder."""

    entrypoint: Words = ()
    cmd: Words = ()
    env: Annotated[tuple[Variable, ...], Meta(max_length=1024)] = ()
    working_dir: Annotated[str, Meta(max_length=4096, pattern=r"^(/[^\x00]*)?$")] = ""


class RootFs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The layers, by SHA-256 of their tars, the lowest first."""

    diff_ids: Annotated[tuple[DiffId, ...], Meta(min_length=1, max_length=MAX_LAYERS)]
    type: Literal["layers"]


class ImageConfiguration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that an archive of Cottage's may say of how an image is run."""

    architecture: Architecture
    config: RunConfiguration
    os: Literal["linux"]
    rootfs: RootFs


def opened(document: bytes) -> ImageConfiguration:
    """The configuration that an archive has.

    Raises:
        ImageFormatError: it says more than it may, or sets a variable of the loader or of the GPU's runtime.
    """
    try:
        found: ImageConfiguration = decode_json(document, ImageConfiguration, MAX_CONFIGURATION)
    except MessageError as error:
        raise ImageFormatError(f"its configuration cannot be used: {error}") from error
    return _checked(found)


def reduced(document: bytes) -> tuple[ImageConfiguration, list[str]]:
    """What a builder wrote, as an archive of Cottage's has it; and in words what was left out, for who pushes it.

    Raises:
        ImageFormatError: it is no configuration of a Linux image for amd64 or arm64, or sets a variable of the loader.
    """
    if len(document) > MAX_CONFIGURATION:
        raise ImageFormatError(
            f"its configuration has {len(document):,} bytes: at most {MAX_CONFIGURATION:,} are taken"
        )
    try:
        told = msgspec.json.decode(document)
        run = told.get("config") or {}
        found: ImageConfiguration = convert(
            {
                "architecture": told.get("architecture"),
                "os": told.get("os"),
                "rootfs": {"type": "layers", "diff_ids": told["rootfs"]["diff_ids"]},
                "config": {
                    "Entrypoint": run.get("Entrypoint") or (),
                    "Cmd": run.get("Cmd") or (),
                    "Env": [one for one in run.get("Env") or () if not str(one).startswith(GPU_VARIABLES)],
                    "WorkingDir": run.get("WorkingDir") or "",
                },
            },
            ImageConfiguration,
        )
    except (msgspec.DecodeError, MessageError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ImageFormatError(
            f"its configuration cannot be used ({error}): images for Linux on amd64 or arm64 run here"
        ) from error
    return _checked(found), _left_out(run)


def _left_out(run: Mapping[str, Any]) -> list[str]:
    """What no task will have of an image's configuration."""
    said = []
    if user := run.get("User"):
        said.append(f"the user {str(user)[:40]!r}: tasks run as a user without rights")
    if volumes := run.get("Volumes"):
        said.append(f"the volumes {_names(volumes)}: only /tmp and the folder for outputs can be written to")
    if ports := run.get("ExposedPorts"):
        said.append(f"the ports {_names(ports)}: tasks have no network")
    if any(str(one).startswith(GPU_VARIABLES) for one in run.get("Env") or ()):
        said.append(f"variables {GPU_VARIABLES}...: a task gets a GPU by asking for it")
    if run.get("Healthcheck"):
        said.append("the health check: a task ends, or its time does")
    if run.get("OnBuild"):
        said.append("what is to happen when others build upon it")
    return said


def _names(of: Any) -> str:
    return ", ".join(sorted(str(one)[:40] for one in of)[:8])


def _checked(found: ImageConfiguration) -> ImageConfiguration:
    for variable in found.config.env:
        name = variable.partition("=")[0]
        if name in LOADER or name.startswith(GPU_VARIABLES):
            raise ImageFormatError(
                f"its configuration sets {name}, which no image may set here: take it out of the recipe"
            )
    return found
