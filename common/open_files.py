"""How many files and connections a process may have open at a time."""

import contextlib
import sys

if sys.platform != "win32":
    import resource

    def raise_limit(wanted: int) -> int | None:
        """Raise it to ``wanted`` as far as the system lets us; returns how many it grants, None where it sets no limit."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        if soft != resource.RLIM_INFINITY and soft < most:
            with contextlib.suppress(ValueError, OSError):  # macOS has a further limit that it does not tell.
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
                soft = most
        return None if soft == resource.RLIM_INFINITY else soft

else:

    def raise_limit(wanted: int) -> int | None:  # noqa: ARG001 - the same call everywhere
        """There is none."""
        return None
