"""What may be in a layer: files, folders and links, in a tar that unpacks to no more than it weighs. Pure but for reading."""

import tarfile
from typing import Final

from protocol.images.errors import ImageFormatError
from protocol.images.tar import PIECE, TarMember, TarSource, TarWalk

MAX_LAYER: Final = (8 << 30) - 1  # As a plain tar header can say.
MAX_MEMBERS: Final = 1_000_000  # Of all layers together; a system with PyTorch has some 40,000.
KINDS: Final = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE)
ATTRIBUTES: Final = ("user.", "security.capability")
"""Extended attributes that are let through; file capabilities have no effect where no new privileges can be had."""
MOUNTED: Final = ("in", "out", "tmp", "proc", "sys", "dev")
"""Where a container gets something of its own; a link there would lead an engine astray."""
_WORDS: Final = {
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.CONTTYPE: "a file of a kind of its own",
}


def look_through(layer: TarSource, members: int = 0) -> int:
    """Read a layer's tar to the end of its source.

    Args:
        members: how many there were in the layers before it.
    Returns:
        how many there are now.
    Raises:
        ImageFormatError: it holds what no layer may hold; the text names it.
    """
    walk = TarWalk(layer)
    while (member := walk.following()) is not None:
        members += 1
        if members > MAX_MEMBERS:
            raise ImageFormatError(f"its layers hold more than {MAX_MEMBERS:,} files")
        _check(member)
    while layer.read(PIECE):
        pass
    return members


def _check(member: TarMember) -> None:
    shown = repr(member.name[-80:])
    if member.kind not in KINDS:
        raise ImageFormatError(
            f"a layer holds {_WORDS.get(member.kind, 'something that is neither file, folder nor link')} ({shown}): "
            "leave it out of the image; tasks find the usual ones in /dev"
        )
    if member.sparse:
        raise ImageFormatError(f"a layer holds a file with holes ({shown}): pack it without --sparse")
    if member.name.strip("./") in MOUNTED and member.kind != tarfile.DIRTYPE:
        raise ImageFormatError(f"a layer holds {shown}, which must be a folder: tasks have a place of their own there")
    names = [member.name, *([member.link] if member.kind == tarfile.LNKTYPE else [])]
    if any(".." in name.split("/") or "\0" in name for name in names):
        raise ImageFormatError(f"a layer holds a name that leads out of it ({shown})")
    for attribute in member.attributes:
        if not attribute.startswith(ATTRIBUTES):
            raise ImageFormatError(
                f"a layer sets the attribute {attribute[:80]!r} of {shown}: leave it out of the image"
            )
