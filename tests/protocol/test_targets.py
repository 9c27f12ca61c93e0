"""The targets of ``benchmarks/hostile/fuzz.py`` see what they should: their seeds are taken, and what is cut off is refused."""

import tempfile
from pathlib import Path

import pytest

from tests.protocol import targets


@pytest.mark.parametrize("name", targets.TARGETS)
def test_a_target_takes_sound_bytes_and_refuses_what_is_cut_off(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    targets._folder.cache_clear()
    target = targets.TARGETS[name]
    taken = [seed for seed in target.seeds() if target.parse(seed)]
    assert taken
    assert not target.parse(b"")
    refused = [seed for seed in taken if not target.parse(seed[: len(seed) // 2])]
    assert refused
    targets._folder.cache_clear()
