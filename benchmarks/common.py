"""What every benchmark shares: where its figures go, and what machine they are from."""

import json
import os
import platform
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "bench"


def publish(name: str, claim: str, figures: dict[str, Any]) -> None:
    """Write ``build/bench/NAME.json`` and print it."""
    document = {
        "benchmark": name,
        "claim": claim,
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
        **figures,
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n")
    print(json.dumps(document, indent=2))
