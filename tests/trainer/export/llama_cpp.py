"""The real llama.cpp, prebuilt, as the npm package node-llama-cpp brings it: ``npm install --prefix build/llama``."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3] / "build" / "llama"
PACKAGE = ROOT / "node_modules" / "node-llama-cpp"
SCRIPT = Path(__file__).with_name("greedy.mjs")
WAY = "npm install --prefix build/llama --ignore-scripts --omit=optional node-llama-cpp@3.21.1 @node-llama-cpp/linux-x64@3.21.1"

needs_llama_cpp = pytest.mark.skipif(
    shutil.which("node") is None or not PACKAGE.is_dir(), reason=f"no llama.cpp: {WAY}"
)


@dataclass(frozen=True)
class Answer:
    """Of one prompt: its tokens, and the likeliest ones after it."""

    tokens: list[int]
    next: list[int]


def answers(asked: Sequence[tuple[Path, Sequence[str]]], count: int) -> list[tuple[dict[str, Any], list[Answer]]]:
    """For each file and its prompts, what the file says of itself, and what comes after the prompts."""
    document = [{"file": str(file), "prompts": list(prompts), "count": count} for file, prompts in asked]
    script = ROOT / SCRIPT.name  # A module finds packages beside itself.
    shutil.copyfile(SCRIPT, script)
    done = subprocess.run(
        ["node", str(script)], input=json.dumps(document), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return [(one["metadata"], [Answer(**made) for made in one["made"]]) for one in found]
