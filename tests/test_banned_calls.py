"""Nothing in the product turns bytes of strangers into code: no pickle, no unsafe loaders, no shell, in any room."""

import ast
import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("cottage", "common", "coordinator", "desktop", "installer", "ledger", "protocol", "trainer", "transport")
"""All packages of the product."""
MODULES = frozenset(
    {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
)
CALLS = frozenset(
    {"eval", "exec", "compile", "os.system", "os.popen", "tempfile.mktemp", "yaml.unsafe_load", "yaml.full_load"}
)
LOADS = frozenset({"torch.load", "torch.jit.load", "numpy.load", "np.load"})
KEYWORDS = {"allow_pickle": True, "trust_remote_code": True, "shell": True, "weights_only": False}


def parsed(path: Path) -> ast.Module:
    """The tree of a module, with no collection meanwhile.

    Collecting may tell of a task's fault, and Python 3.11 parses a line of each traceback: inside of another parse that fails
    with "AST constructor recursion depth mismatch" (python/cpython#106905).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text(), str(path))
    finally:
        if collects:
            gc.enable()


def dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            return f"{dotted(value)}.{attribute}"
        case _:
            return ""


def faults(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """What is banned, with its line."""
    safe = {"yaml.SafeLoader", "yaml.CSafeLoader"}
    safe |= {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any("SafeLoader" in ast.unparse(base) for base in node.bases)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, one.name) for one in names if one.name.split(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in MODULES:
                yield node.lineno, module
            case ast.Call(func=function, keywords=keywords):
                name = dotted(function)
                given = {one.arg: one.value.value for one in keywords if isinstance(one.value, ast.Constant)}
                if name in CALLS:
                    yield node.lineno, name
                if name in LOADS and given.get("weights_only") is not True and given.get("allow_pickle") is not False:
                    yield node.lineno, f"{name} that may unpickle"
                if name == "yaml.load" and not any(
                    one.arg == "Loader" and dotted(one.value) in safe for one in keywords
                ):
                    yield node.lineno, "yaml.load without a safe loader"
                for word, wrong in KEYWORDS.items():
                    if given.get(word) is wrong:
                        yield node.lineno, f"{name}({word}={wrong})"


@pytest.mark.parametrize("room", ROOMS)
def test_no_room_unpickles_evaluates_or_asks_a_shell(room: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in sorted((ROOT / room).rglob("*.py"))
        for line, what in faults(parsed(path))
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "import cloudpickle.fast",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text)",
        "yaml.load(text, Loader=yaml.Loader)",
        "eval(text)",
        "subprocess.run(text, shell=True)",
        "AutoModel.from_pretrained(path, trust_remote_code=True)",
        "yaml.unsafe_load(text)",
    ],
)
def test_the_ban_sees_what_it_is_for(line: str) -> None:
    assert list(faults(ast.parse(line)))


@pytest.mark.parametrize("rule", ["S301", "S302", "S307", "S506", "S602", "S604", "S605"])
def test_the_linter_has_the_rule_too(rule: str, tmp_path: Path) -> None:
    samples = {
        "S301": "import pickle\npickle.loads(b'')\n",
        "S302": "import marshal\nmarshal.loads(b'')\n",
        "S307": "x = input()\neval(x)\n",
        "S506": "import yaml\nyaml.load('', Loader=yaml.Loader)\n",
        "S602": "import subprocess\nx = input()\nsubprocess.run(x, shell=True)\n",
        "S604": "def f(**k): ...\nx = input()\nf(x, shell=True)\n",
        "S605": "import os\nx = input()\nos.system(x)\n",
    }
    (tmp_path / "sample.py").write_text(samples[rule])
    words = [sys.executable, "-m", "ruff", "check", "--no-cache", "--config", str(ROOT / "pyproject.toml"), "sample.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert rule in done.stdout, done.stdout + done.stderr
