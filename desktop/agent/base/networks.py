"""Networks that can be lent to: the one that this build names, and those that were joined before.

``network.txt`` beside this module holds an invitation in builds that were given one (``installer.desktop.build --network``). The
source tree's is empty: its owner says whom to lend to.
"""

from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

import msgspec

from common.errors import InvitationError
from common.invitations import Invitation, read

FILE = "network.txt"
MAX_KEPT = 12  # More than anybody belongs to; the oldest go.


def built_in() -> Invitation | None:
    """The network of this build."""
    text = resources.files(__package__).joinpath(FILE).read_text(encoding="utf-8")
    return read(text) if text.strip() else None


def joined(file: Path) -> tuple[Invitation, ...]:
    """Those that ``file`` remembers, the newest first; a damaged file remembers nothing."""
    try:
        links: list[str] = msgspec.json.decode(file.read_bytes(), type=list[str])
        return tuple(read(link) for link in links[:MAX_KEPT])
    except (OSError, ValueError, InvitationError):
        return ()


def remember(file: Path, invitation: Invitation) -> None:
    """Keep ``invitation`` as the newest; raises OSError where it cannot be written."""
    before = joined(file)
    if before[:1] == (invitation,):
        return
    others = [one for one in before if one.url != invitation.url]
    draft = file.with_name(f"{file.name}.new")
    draft.write_bytes(msgspec.json.encode([one.link for one in (invitation, *others)][:MAX_KEPT]))
    draft.replace(file)


def known(file: Path) -> tuple[Invitation, ...]:
    """All that can be offered: what was joined, then the build's own."""
    found, own = joined(file), built_in()
    return found if own is None or any(one.url == own.url for one in found) else (*found, own)


def meant(text: str, offered: Sequence[Invitation]) -> Invitation:
    """What somebody means who gives ``text``: of an address that is ``offered``, the key that was given with it.

    Raises:
        InvitationError: it is neither an address nor an invitation.
    """
    said = read(text)
    if said.key:
        return said
    known = next((one for one in offered if one.url == said.url), said)
    return replace(known, code=said.code or known.code)
