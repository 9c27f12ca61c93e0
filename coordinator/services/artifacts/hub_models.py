"""Public models of the Hugging Face Hub, fetched by the coordinator: its line is quicker than a submitter's.

An upload of weights is pulled in place of pushed: each request goes on with it for a few seconds. So nothing runs when nobody
waits, a restart costs nothing, and an account's limits count as for any upload. No token of this machine is used: what is gated
or private goes through the submitter's own hands, who has agreed to its terms.

The Hub is the operator's choice (``HF_ENDPOINT``). A submitter names a repository and a file, and no address.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import aiohttp

from common.http_sessions import open_session, why
from coordinator.client.datasets import DatasetError
from coordinator.client.folders import TOKENIZER, model_files, tokenizer_files
from coordinator.client.hub import HubAwayError, HubError, HubModel, address_of, fetch, find, weights_of
from coordinator.errors import ConflictError, InvalidError, UnavailableError
from coordinator.services.artifacts.uploads import UploadService
from protocol.rest.api import NewUpload, Upload
from protocol.rest.hub import HubModelView, Pull

PULL_S: Final = 10.0  # One request goes on for so long; proxies cut what is silent for 30.
MAX_AT_ONCE: Final = 4  # Models looked up, and files pulled: a home line or a small server is full with these.
CHUNK_BYTES: Final = 1 << 20
_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=20.0)


class HubModels:
    """Looks models up, and pulls their weights into uploads."""

    def __init__(self, uploads: UploadService, clock: Callable[[], float] = time.monotonic) -> None:
        self._uploads = uploads
        self._clock = clock
        self._looking, self._pulling = asyncio.Semaphore(MAX_AT_ONCE), asyncio.Semaphore(MAX_AT_ONCE)

    async def find(self, name: str, account_id: str) -> HubModelView:
        """Look a public model up, and take its small files.

        Raises:
            InvalidError: there is none, or not for everybody; or a file of it cannot be used.
            UnavailableError: the Hub does not answer.
        """
        async with self._looking:
            with tempfile.TemporaryDirectory() as cache:
                try:
                    model, folder = await asyncio.to_thread(_fetched, name, Path(cache))
                    weights = weights_of(model, folder)
                    described: dict[str, Any] = {"hub": model.pinned}
                    described |= {"license": model.license} if model.license else {}
                    model_files(folder, described)
                except HubAwayError as error:
                    raise UnavailableError(f"from the coordinator {error}") from error
                except (HubError, DatasetError) as error:
                    raise InvalidError(str(error), "name") from error
                tokenizer = await self._tokenizer(folder, account_id)
        named = (model.repository, model.commit, str(model.license), str(model.terms))
        return HubModelView(*named, tuple(weights), described, tokenizer)

    async def pull(self, upload: str, source: Pull) -> Upload:
        """Go on with an upload for a few seconds.

        Raises:
            InvalidError: it is no file of weights, or what came is not what the upload was begun for.
            ConflictError: the Hub does not have it, or not for everybody. UnavailableError: it does not answer.
        """
        state = await self._uploads.get(upload)
        if state.artifact is not None:
            return state
        try:
            url = address_of(source.hub, source.path)
        except HubError as error:
            raise InvalidError(str(error), "path") from error
        headers = {"Range": f"bytes={state.offset}-", "Accept-Encoding": "identity"}
        async with self._pulling, open_session(timeout=_TIMEOUT) as session:
            try:
                async with session.get(url, headers=headers) as response:
                    if response.status != (206 if state.offset else response.status) or response.status >= 500:
                        raise UnavailableError(f"the Hub answers with status {response.status}: try again in a moment")
                    if response.status not in (200, 206):
                        said = f"the Hub answers with status {response.status} for {source.path} of {source.hub}"
                        raise ConflictError(f"{said}: fetch it yourself and upload it", "hub")
                    done = await self._uploads.append(upload, state.offset, self._some(response))
            except (aiohttp.ClientError, TimeoutError) as error:
                raise UnavailableError(f"the Hub does not answer the coordinator: {why(error)}") from error
        if done.offset == state.offset and done.artifact is None:
            raise UnavailableError("the Hub sends nothing: try again in a moment")
        return done

    async def _some(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        until = self._clock() + PULL_S
        async for chunk in response.content.iter_chunked(CHUNK_BYTES):
            yield chunk
            if self._clock() > until:
                return

    async def _tokenizer(self, folder: Path, account_id: str) -> dict[str, Any]:
        """What a document says of its tokenizer, which is uploaded; empty where it has none that is read here."""
        path = folder / TOKENIZER
        if not path.is_file():
            return {}
        content = path.read_bytes()

        async def chunks() -> AsyncIterator[bytes]:
            yield content

        described: dict[str, Any] = {"kind": "file"}
        try:
            tokenizer_files(folder, described)
        except DatasetError as error:
            raise InvalidError(str(error), "name") from error
        new = NewUpload(len(content), purpose="tokenizer")
        described["file"] = (await self._uploads.take(new, chunks(), account_id)).artifact
        return described


def _fetched(name: str, cache: Path) -> tuple[HubModel, Path]:
    model = find(name, token=False)
    if model.gated:
        raise HubError(f"{model.repository} is gated: `cottage submit --model {name}` fetches it with your own token")
    return model, fetch(model, weights=False, token=False, cache=cache)
