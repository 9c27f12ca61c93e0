"""Lines of a log for programs."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest
from aiohttp import web

from common.log_lines import JsonLines, about, log_to


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


NO_HTTP = (
    b"GET /\xc3\xbc HTTP/1.1",
    b"GET http://[::1 HTTP/1.1",
    b"GET /?q=\x00 HTTP/1.1",
    b"\x16\x03\x01",
    b"GET / HTTP/9",
)


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
async def test_a_stranger_who_speaks_no_http_writes_no_tracebacks(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault of a page is told all the same."""
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    out = io.StringIO()
    log_to(handler := logging.StreamHandler(out), "%(levelname)s %(message)s", level)

    async def fail(_request: web.Request) -> web.Response:
        raise ValueError("a fault of ours")

    app = web.Application()
    app.router.add_get("/", fail)
    runner = web.AppRunner(app, access_log=None)
    logging.getLogger("aiohttp.server").addHandler(handler)
    try:
        await runner.setup()
        await (site := web.TCPSite(runner, "127.0.0.1", 0)).start()
        for request in (*NO_HTTP, b"GET / HTTP/1.1"):
            reader, writer = await asyncio.open_connection(*runner.addresses[0])
            writer.write(request + b"\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert (await reader.read()).split()[1] == (b"500" if request == b"GET / HTTP/1.1" else b"400")
            writer.close()
        await site.stop()
    finally:
        logging.getLogger("aiohttp.server").removeHandler(handler)
        await runner.cleanup()
    told = [line for line in out.getvalue().splitlines() if not line.startswith(" ")]
    assert len(told) == 1 if level == logging.INFO else len(told) >= len(NO_HTTP)
    assert "a fault of ours" in out.getvalue()
