"""``cottage ledger``: reading the ledger lives with the ledger, comparing it with a coordinator's word with the coordinator."""

import argparse
import importlib
import sys
from collections.abc import Sequence

BOOKS = ("entries", "audits", "totals")
_PARSERS = {
    "check": "coordinator.proof.cli",
    "claim": "coordinator.client.claim",
    "challenge": "coordinator.proof.challenge",
    "deploy": "ledger.deploy",
    "refund": "ledger.refund",
    "serve": "ledger.local.__main__",
}


def parser_of(word: str) -> tuple[argparse.ArgumentParser, bool]:
    """The parser that ``cottage ledger WORD`` is completed with, and whether it begins behind the word."""
    made: argparse.ArgumentParser = importlib.import_module(_PARSERS.get(word, "ledger.cli")).parser()
    return made, word in _PARSERS


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``cottage ledger WORD ...``."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["check"]:
        from coordinator.proof.cli import main as check

        return check(words[1:])
    if words[:1] == ["claim"]:
        from coordinator.client.claim import main as claim

        return claim(words[1:])
    if words[:1] and words[0] in BOOKS:
        from coordinator.client.cli import main as books

        return books(["ledger", *words])
    if words[:1] == ["challenge"]:
        from coordinator.proof.challenge import main as challenge

        return challenge(words[1:])
    from ledger.cli import main as read

    return read(words)
