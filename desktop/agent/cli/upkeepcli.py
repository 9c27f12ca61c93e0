"""``cottage node update|image|uninstall``: the program itself, and what jobs run in: newer, or gone."""

import argparse
import asyncio
import sys
from pathlib import Path

from common.terminal import given_line, say, say_json
from desktop.agent.app import status
from desktop.agent.app.restart import why_not
from desktop.agent.base.config import Home
from desktop.agent.base.log import printable
from desktop.agent.errors import SettingsError, UpdateError
from desktop.agent.updates.keeper import UpdateOrder
from desktop.agent.updates.release import installation, this_release, version
from desktop.answers import UpdateView


def add_words(words: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the words to ``cottage node``."""
    update = words.add_parser("update", help="look for a new version; packages of apt are updated by apt")
    what = update.add_mutually_exclusive_group()
    what.add_argument(
        "--restart", action="store_true", help="hand over what runs and restart into the version that is ready"
    )
    what.add_argument("--back", action="store_true", help="from the next start on, use the version before this one")
    what.add_argument("--answers", action="store_true", help=argparse.SUPPRESS)  # Of the installer for Windows.
    update.set_defaults(run=_update)
    gone = words.add_parser(
        "uninstall", help="end the agent and remove what it left: unit, containers, images, files; the key stays"
    )
    gone.add_argument("--keep-images", action="store_true", help="leave the sandbox images in the engine")
    gone.add_argument("--keep-data", action="store_true", help="leave settings, cache and history, too")
    gone.add_argument(
        "--purge-keys", action="store_true", help="ALSO DELETE THE KEY: what its wallet holds is lost without a backup"
    )
    gone.add_argument("--yes", action="store_true", help="do not ask")
    # Of the Debian package's remover, as root.
    gone.add_argument("--everybody", action="store_true", help=argparse.SUPPRESS)
    gone.set_defaults(run=_uninstall)
    image = words.add_parser("image", help="have the engine take the signed image that jobs run in")
    image.add_argument(
        "--from", dest="folder", type=Path, help="a folder with image.json and its archive, instead of the web"
    )
    image.set_defaults(run=_image)
    for parser in (update, gone, image):
        parser.add_argument("--home", type=Path, help="the agent's folder")
        parser.add_argument("--json", action="store_true", help="one JSON document")


def _update(options: argparse.Namespace) -> int:
    if options.answers:
        home = Home.at(options.home)
        trouble = why_not(sys.executable, version(), home, ("run", "--stay", "--home", str(home.path)))
        if trouble:
            say(trouble, error=True)
        return int(bool(trouble))
    if options.back:
        _, folder = installation()
        if folder is None:
            raise UpdateError(
                "this installation keeps no earlier version; apt keeps them for packages that it installs"
            )
        say(f"from the next start on: version {folder.back()}")
        return 0
    view = asyncio.run(status.ask_update(Home.at(options.home).socket, UpdateOrder(options.restart)))
    if options.json:
        say_json(view)
    else:
        say(words_of(view, restarting=options.restart))
    return 0


def _image(options: argparse.Namespace) -> int:
    from desktop.agent.updates.sandbox_images import (
        Images,  # Loads Docker's client, which the other words can do without.
    )

    home = Home.at(options.home)
    taken = asyncio.run(Images(home, this_release()).take(options.folder))
    say(f'{{"image":"{taken}"}}\n' if options.json else f"the engine has the signed image {taken}")
    return 0


def _uninstall(options: argparse.Namespace) -> int:
    from desktop.agent.app.uninstall import stop_everybodys, uninstall

    if options.everybody:
        ended = stop_everybodys(Path(sys.executable))
        if ended:
            say(f"{ended} agents have handed over what ran, and ended")
        return 0
    home = Home.at(options.home)
    if options.purge_keys and options.keep_data:
        raise SettingsError("--purge-keys deletes data and --keep-data keeps it: give one of them")
    if options.purge_keys and not options.yes and not _is_sure(home):
        raise SettingsError("nothing was removed: the key is deleted only after the word yes, or with --yes")
    removed = uninstall(home, images=not options.keep_images, data=not options.keep_data, keys=options.purge_keys)
    if options.json:
        say_json(removed)
        return 0
    if removed.stopped:
        say("the agent has handed over what ran, and ended")
    say(f"removed: {removed.containers} containers, {removed.images} images")
    if removed.kept:
        say(f"{printable(removed.kept)}")
    if removed.key_kept:
        say(f"the key of {removed.address} stays in {home.path}")
    return 0


def _is_sure(home: Home) -> bool:
    file = home.path / "node.key"
    if not file.exists():
        return True
    say(
        f"This deletes the key of {home.key().address}. What its wallet holds, and what it has earned and not been paid, is\n"
        "lost for ever unless you have a backup (cottage node backup, cottage node words). Type yes to delete it:",
        error=True,
    )
    return given_line().strip() == "yes"


def words_of(view: UpdateView, *, restarting: bool = False) -> str:
    """A view in one sentence."""
    text = printable(view.text)
    if restarting:
        return f"restarting into version {view.version}; `cottage node status` shows when it runs"
    if view.stage == "none" and not text:
        return f"version {view.running} is the newest"
    return f"version {view.version or view.running}: {text or view.stage}"
