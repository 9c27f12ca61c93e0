"""Which NVIDIA container toolkits may give a GPU to a stranger's container. Pure but for ``installed``.

An older one lets a container's content run as root on the host while the container is made: CVE-2024-0132 (before 1.16.2),
CVE-2025-23359 (before 1.17.4), CVE-2025-23266 (before 1.17.8). Source: NVIDIA's security bulletins of those numbers.
"""

import re
import subprocess

MINIMUM = (1, 17, 8)
PROGRAM = "nvidia-ctk"
ASK_S = 10.0
_VERSION = re.compile(r"\bversion:?\s+v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})(\S*)")


def fault(said: str | None) -> str:
    """Why a GPU must not be lent with this toolkit; "" where it may.

    Args:
        said: what ``nvidia-ctk --version`` prints; None where there is no such program.
    """
    least = ".".join(map(str, MINIMUM))
    advice = f"install nvidia-container-toolkit {least} or newer, and restart the engine"
    if said is None:
        return f"the version of the NVIDIA container toolkit is not known, for there is no {PROGRAM} here: {advice}"
    match = _VERSION.search(said)
    if match is None:
        return f"{PROGRAM} does not say its version ({said.strip()[:80]!r}): {advice}"
    version = tuple(int(number) for number in match.groups()[:3])
    # Of the very version that mends it, perhaps without the mend.
    early = bool(re.match(r"[-~]?(rc|alpha|beta)", match[4]))
    if version < MINIMUM or (version == MINIMUM and early):
        shown = ".".join(match.groups()[:3]) + match[4]
        return (
            f"the NVIDIA container toolkit {shown} lets a container take over this computer (CVE-2025-23266): {advice}"
        )
    return ""


def installed() -> str | None:
    """What the toolkit of this computer says of its version; None where there is none."""
    try:
        done = subprocess.run((PROGRAM, "--version"), capture_output=True, text=True, timeout=ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout
