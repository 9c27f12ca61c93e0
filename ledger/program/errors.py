"""What can go wrong while the program is built."""

from ledger.errors import LedgerError


class ProgramLinkError(LedgerError):
    """An object cannot become a program: says which object, which place, and what to change."""


class BuildError(LedgerError):
    """The compiler is missing or refused a source."""
