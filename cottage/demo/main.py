"""``cottage demo``: the command line, Ctrl-C, and the exit status."""

import asyncio
import contextlib
from collections.abc import Sequence

from rich.text import Text

from common.console import Terminal
from common.shutdown_signals import on_end
from common.terminal import say, say_json
from cottage.demo.options import DemoOptions, parse
from cottage.demo.processes import RoleError
from cottage.demo.report import checks, document, show
from cottage.demo.run import DemoError, DemoRun
from cottage.demo.screen import DemoScreen, LineScreen, LiveScreen

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
PIPE_WIDTH = 150  # Columns of a log or a pipe, which have no width of their own: the tables fit.


def main(argv: Sequence[str]) -> int:
    """Run the demo; 0 if the job settled and every check held."""
    options = parse(argv)
    console = Terminal(stderr=options.json)
    if not console.is_terminal:
        console = Terminal(stderr=options.json, width=PIPE_WIDTH)
    screen: DemoScreen = LiveScreen(console) if console.is_terminal and not options.json else LineScreen()
    try:
        return asyncio.run(_run(options, screen, console))
    except (RoleError, DemoError) as error:
        say(f"The demo could not go on: {error}", error=True)
        say(f"Logs of all roles: {options.folder / 'logs'}", error=True)
        return EXIT_FAILED
    except (KeyboardInterrupt, asyncio.CancelledError):
        say("Stopped; everything that was started has been ended.", error=True)
        return EXIT_INTERRUPTED
    finally:
        screen.close()


async def _run(options: DemoOptions, screen: DemoScreen, console: Terminal) -> int:
    task = asyncio.current_task()
    assert task is not None
    on_end(task.cancel, hangup=True)
    async with DemoRun(options, screen) as run:
        outcome = await run.to_the_end()
        screen.close()
        if options.json:
            say_json(document(outcome), indent=2)
        else:
            show(outcome, console)
        if options.keep:
            console.print(Text.assemble("\nEverything is still running: ", (outcome.web, "bold"), "  (Ctrl-C ends it)"))
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        return 0 if all(checks(outcome).values()) else EXIT_FAILED
