"""What an owner's data holds, for that owner alone: the checks of datasets, on the data where it lies."""

from pathlib import Path
from typing import get_args

import msgspec

from common.untrusted_text import untrusted
from protocol.federated.federations import MAX_FINDINGS, OwnDataReport
from protocol.job.federated import LEAST_HELD
from protocol.job.job import DatasetSpec, TokenizerSpec
from protocol.rest.dataset import CheckRequest, DatasetReport, Finding, Severity
from trainer.check.report import check
from trainer.data.examples import check_examples, count_examples
from trainer.data.mixture import Mixture
from trainer.data.owned import datasets_in, scratch_folder
from trainer.data.prepare import check_kind, prepare
from trainer.errors import DataError
from trainer.formats.source import Dataset

BY_BYTES = "Here a byte counts as a token, and most tokenizers make fewer"
NAMED = 5  # Files in a message.
SEVERITIES = get_args(Severity)  # The worst first.


def look_at(path: Path, how: DatasetSpec, sequence: int, one_in: int = 0, examples: bool = False) -> OwnDataReport:
    """What an owner's data holds, for that owner alone: each file is checked as an uploaded dataset is.

    Args:
        one_in: of so many pieces of text, or examples, one is held back to tell a loss of; 0: none.
        examples: the privacy of single ones is counted.
    Raises:
        DataError: nothing can be read there, or no federation of this kind learns from such data.
    """
    reports: list[tuple[str, DatasetReport]] = []
    request = CheckRequest(how, TokenizerSpec(kind="bytes"), sequence)
    files = datasets_in(path, how)
    _check_kinds(files, examples)
    for one in files:
        with scratch_folder() as scratch:
            try:
                reports.append((one.name, check(one, request, None, Path(scratch), lambda _read: None)))
            except DataError as error:
                raise DataError(error.code, _of_file(one.name, error.detail, len(files))) from error
    findings = [
        msgspec.structs.replace(found, text=untrusted(_of_file(name, found.text, len(files))))
        for name, report in reports
        for found in report.findings
    ]
    # Of nothing is anything held out here, so that files are short counts for all of them together.
    problems = [_of_file(name, report.problem, len(files)) for name, report in reports if not report.usable]
    if not problems and (tokens := sum(report.tokens for _, report in reports)) <= sequence:
        problems = [f"{tokens:,} bytes of text are fewer than a sequence of {sequence} tokens takes: bring more text"]
    if not problems and examples:
        problems, few = _of_examples(files, sequence, one_in)
        findings += few
    elif not problems and one_in:
        problems = _too_little(files, sequence, one_in)
    return OwnDataReport(
        len(reports),
        sum(report.bytes for _, report in reports),
        sum(report.rows for _, report in reports),
        sum(report.usable for _, report in reports),
        sum(report.characters for _, report in reports),
        tuple(sorted(findings, key=lambda found: SEVERITIES.index(found.severity))[:MAX_FINDINGS]),
        untrusted(problems[0] if problems else ""),
        sum(report.tokens for _, report in reports),
    )


def _check_kinds(files: list[Dataset], examples: bool) -> None:
    """Refuse what has rows of a kind that the worker would refuse each time that it begins."""
    try:
        mixture = Mixture(files, 0.0)
    except DataError as error:
        if error.code == "mixed-datasets":
            raise
        return  # What is wrong with a file is said when it is checked.
    if examples:
        check_examples(mixture)
    check_kind(mixture.talk, False, ", ".join(one.name for one in files[:NAMED]))


def _of_examples(files: list[Dataset], sequence: int, one_in: int) -> tuple[list[str], list[Finding]]:
    """Why nothing can be learnt of single examples, and whether those that are held back are too few to tell a loss of."""
    try:
        kept, held = count_examples(files, one_in)
    except DataError as error:
        return [error.detail], []
    if kept.bytes <= sequence:
        few = f"{kept.bytes:,} bytes of text are learnt from, fewer than a sequence of {sequence} tokens takes"
        return [f"{few}: bring more text"], []
    if not one_in or (held.examples >= LEAST_HELD and held.bytes > sequence):
        return [], []
    text = (
        f"held back to tell a loss of, which takes {LEAST_HELD} of them, and more tokens than the {sequence:,} of a sequence: "
        "this computer tells none; bring more"
    )
    return [], [Finding("heldout", "warning", untrusted(text), held.examples)]


def _too_little(files: list[Dataset], sequence: int, one_in: int) -> list[str]:
    """Why a part of the data is too short for a window even if each byte is a token; empty: none is."""
    with scratch_folder() as scratch:
        try:
            prepare(files[0], TokenizerSpec("bytes"), None, 1 / one_in, sequence, Path(scratch), more=files[1:])
        except DataError as error:
            return [f"{error.detail}. {BY_BYTES}"] if error.code == "too-short" else []
        except OSError:
            return []  # There is no room to try it in.
    return []


def _of_file(name: str, text: str, files: int) -> str:
    return f"{name}: {text}" if files > 1 and not text.startswith(name) else text
