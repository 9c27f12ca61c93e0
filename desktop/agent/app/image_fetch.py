"""The signed image, fetched because its owner pressed a button: one at a time, and how far it is for whoever asks."""

import asyncio
from collections.abc import Callable

import msgspec

from common.untrusted_text import untrusted
from desktop.agent.base.log import LOG
from desktop.agent.errors import AgentError
from desktop.agent.updates.sandbox_images import Images
from desktop.answers import ImageView


class ImageOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fetch it."""


class ImageFetch:
    """``images``: of this home, looked up only once it is asked for."""

    def __init__(self, images: Callable[[], Images], can_fetch: bool, note: Callable[[str], None]) -> None:
        """``can_fetch``: this build names somebody whose image it takes; ``note``: remembers what became of it."""
        self._images, self._note = images, note
        self._view = ImageView("missing" if can_fetch else "own")
        self._fetching: asyncio.Task[None] | None = None

    def view(self) -> ImageView:
        """How far it is."""
        return self._view

    def begin(self, _: ImageOrder) -> ImageView:
        """Begin, unless it is on its way, or nobody's image is taken."""
        if self._view.stage != "own" and (self._fetching is None or self._fetching.done()):
            self._view = ImageView("fetching")
            self._fetching = asyncio.create_task(self._fetch(), name="image")
        return self._view

    async def _fetch(self) -> None:
        try:
            await self._images().take(progress=self._tell)
        except AgentError as error:
            LOG.error("%s", error)
            self._view = ImageView("failed", text=untrusted(str(error)))
            return
        except Exception:  # noqa: BLE001 - the boundary of one order, which is told.
            LOG.exception("the image was not fetched")
            self._view = ImageView("failed", text=untrusted("the agent's log says why"))
            return
        self._view = ImageView("here")
        self._note("the image that jobs run in was fetched")

    def _tell(self, stage: str, done: int, size: int) -> None:
        """From any thread: a view replaces the one before."""
        self._view = ImageView("loading" if stage == "loading" else "fetching", done, size)

    async def aclose(self) -> None:
        """Stop; what was fetched is kept for the next time."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait((self._fetching,))
