"""What an operator lets models be tried with: tasks of lm-evaluation-harness, by name, or all of a folder.

A task's file can run code, so a submitter names tasks and never brings one.
"""

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from coordinator.config import OfferedTasks
from coordinator.errors import UnavailableError
from protocol.codec import MessageError, convert
from protocol.evaluation import TaskName
from protocol.job.job import JobSpec

_NAMED = re.compile(r"^(?:task|group): *[\"']?([A-Za-z0-9][A-Za-z0-9_.:+-]{0,79})[\"']? *$", re.MULTILINE)
INSTALL = 'pip install "cottage[evaluate]"'


def offered(given: Sequence[str]) -> OfferedTasks:
    """The tasks that names and folders stand for; nothing is looked for where nothing is given.

    Raises:
        UnavailableError: the library is not installed, a name is no task, or a folder has none.
    """
    if not given:
        return OfferedTasks()
    library = find_spec("lm_eval")
    if library is None:
        raise UnavailableError(f"lm-evaluation-harness is not installed here, which runs the tasks: {INSTALL}")
    folders = tuple(Path(one) for one in given if "/" in one)
    names = [one for one in given if "/" not in one]
    for folder in folders:
        if not folder.is_dir():
            raise UnavailableError(f"{folder} is no folder: name one with tasks, or a task by its name")
    for name in names:
        try:
            convert(name, TaskName)
        except MessageError as error:
            raise UnavailableError(
                f"{name} is no name of a task; a folder is written with a slash, as ./tasks"
            ) from error
    known = _names_in(Path(str(library.origin)).parent / "tasks") if names else frozenset()
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        raise UnavailableError(f"lm-evaluation-harness knows no task {missing}: `lm_eval ls tasks` lists them")
    own: list[str] = []
    for folder in folders:
        if not (found := sorted(_names_in(folder))):
            raise UnavailableError(f"{folder} has no task: each is a YAML file with a line `task: NAME`")
        own += found
    return OfferedTasks(tuple(dict.fromkeys((*names, *own))), folders)


def problem(spec: JobSpec, tasks: Sequence[str]) -> str:
    """Why a document's tasks are not run here; empty where they are."""
    if spec.evaluation is None:
        return ""
    if not tasks:
        return (
            "this coordinator tries no model with tasks: leave evaluation out, and run lm_eval on the downloaded folder"
        )
    missing = next((name for name in spec.evaluation.tasks if name not in tasks), None)
    if missing is None:
        return ""
    some = ", ".join(tasks[:20]) + (", ..." if len(tasks) > 20 else "")
    return f"evaluation.tasks has {missing}, which is not offered here: choose among {some}"


def _names_in(folder: Path) -> frozenset[str]:
    """Tasks and groups that the files of a folder, and of those in it, are of; nothing of them is run."""
    found: set[str] = set()
    for file in folder.rglob("*.yaml"):
        found |= set(_NAMED.findall(file.read_text("utf-8", "replace")))
    return frozenset(found)
