"""Lines of a log for programs."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest

from common.log_lines import JsonLines, about


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    """A logger of its own that writes JSON lines, and where."""
    out, logger = io.StringIO(), logging.Logger("a.part")
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonLines())
    logger.addHandler(handler)
    yield logger, out
    handler.close()


def lines(out: io.StringIO) -> list[dict[str, str]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_record_is_one_object_whatever_it_says(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, out = log
    logger.info("first\nsecond \x1b[31m %s", '"}')
    try:
        raise ValueError("what\nnow")
    except ValueError:
        logger.exception("failed")
    first, second = lines(out)
    assert (first["level"], first["logger"]) == ("INFO", "a.part")
    assert "\x1b" not in first["message"]
    assert "\n" not in first["message"]
    assert first["message"].endswith('"}')
    assert first["time"].endswith("Z")
    assert "error" not in first
    assert second["error"].startswith("Traceback")
    assert "ValueError: what" in second["error"]


async def test_each_task_says_what_it_is_about(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, out = log

    async def talk(node: str) -> None:
        with about(node=node):
            await asyncio.sleep(0)
            with about(job=f"job of {node}"):
                await asyncio.sleep(0)
                logger.info("both")
            logger.info("node alone")

    await asyncio.gather(talk("a"), talk("b"))
    logger.info("nothing")
    found = [(one["message"], one.get("node"), one.get("job")) for one in lines(out)]
    assert sorted(found[:-1]) == sorted(
        [*(("both", node, f"job of {node}") for node in "ab"), *(("node alone", node, None) for node in "ab")]
    )
    assert found[-1] == ("nothing", None, None)
