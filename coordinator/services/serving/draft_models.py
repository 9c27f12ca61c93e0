"""The small model that drafts what a deployment's model may say: that it knows the same tokens, and the files of nodes."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec

from coordinator.errors import ConflictError, CottageError, InvalidError, NotFoundError
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.base_models import BaseModels
from coordinator.services.artifacts.model_files import ModelFiles, read_tokens
from coordinator.services.artifacts.models import ModelWorkshop
from protocol.ids import Digest
from protocol.job.job import JobSpec, ModelSpec, TokenizerSpec
from protocol.models.model import ENDS_WITH, STARTS_TIED, ModelConfigError, resolve_finished
from protocol.serving import DRAFT_ARCHIVE, MODEL_ARCHIVE

FIELD = "serve.draft"
MAX_REMEMBERED = 1_000  # Pairs of tokenizers.
T = TypeVar("T")


class DraftOrigins:
    """Finds the draft model that a document names."""

    def __init__(
        self, artifacts: ArtifactStore, origins: BaseModels, models: ModelWorkshop, model_files: ModelFiles
    ) -> None:
        self._artifacts = artifacts
        self._base_models = origins
        self._models = models
        self._model_files = model_files
        self._alike: dict[
            frozenset[Digest], bool
        ] = {}  # Whether two tokenizers have the same tokens: a form asks often.

    async def described(self, spec: JobSpec) -> JobSpec:
        """The document with the draft model's config, by which its size is known.

        Raises:
            NotFoundError, ConflictError, InvalidError: there is no such model, or of no family that is known.
        """
        if spec.serve is None or (draft := spec.serve.draft) is None:
            return spec
        config: dict[str, Any] = draft.config or {}
        if draft.from_job is not None:
            config = dict((await _of_field(self._base_models.of(draft))).config)
        else:
            try:
                config = resolve_finished(config)
            except ModelConfigError as error:
                raise InvalidError(str(error), FIELD) from error
        draft = msgspec.structs.replace(draft, config=config)
        return msgspec.structs.replace(spec, serve=msgspec.structs.replace(spec.serve, draft=draft))

    async def misfit(self, spec: JobSpec) -> str:
        """Why a model cannot draft for this one, as far as both tokenizers are here; empty: it can, or nobody knows yet."""
        if spec.serve is None or (draft := spec.serve.draft) is None:
            return ""
        try:
            given = spec.model.from_job is None
            tokenizer = spec.tokenizer if given else await self._base_models.tokenizer(spec.model)
            file = spec.serve.draft_tokenizer or None
            if draft.from_job is not None:
                file = (await self._base_models.tokenizer(draft)).file
            await self._check_tokens(file, tokenizer.file)
        except NotFoundError:
            return ""
        except CottageError as error:
            return error.detail
        return ""

    async def files(self, spec: JobSpec, tokenizer: TokenizerSpec) -> dict[str, Digest]:
        """The draft model's archive, by the name that nodes have it under.

        Args:
            spec: the deployment's document.
            tokenizer: of its model.
        Raises:
            ConflictError: it has another tokenizer. NotFoundError, InvalidError: as ``described``, or its files are not its own.
        """
        if spec.serve is None or (draft := spec.serve.draft) is None:
            return {}
        if draft.from_job is not None:
            found, own = await _of_field(self._base_models.served(draft))
            await self._check_tokens(own.file, tokenizer.file)
        else:
            await _of_field(self._check_tokens(spec.serve.draft_tokenizer or None, tokenizer.file))
            found = await _of_field(self._given(spec, draft, tokenizer))
        return {DRAFT_ARCHIVE: found.files[MODEL_ARCHIVE]}

    async def _given(self, spec: JobSpec, draft: ModelSpec, tokenizer: TokenizerSpec) -> Any:
        """Files of a model that no job made; its tokenizer is the deployment's."""
        for digest in draft.weight_files:
            if not await self._artifacts.has(digest):
                raise NotFoundError(f"there is no file of weights {digest}: upload it first", FIELD)
        config = dict(draft.config or {})
        # As its folder says it: a config that was resolved once does not say of itself that the files have no head.
        stated = config | {"tie_word_embeddings": config.get(STARTS_TIED, False)}
        own = msgspec.structs.replace(spec, model=msgspec.structs.replace(draft, config=stated), tokenizer=tokenizer)
        try:
            model = await self._model_files.of(own, None, {})
        except ModelConfigError as error:
            raise InvalidError(str(error), FIELD) from error
        return await self._models.published(own, {**model.config, ENDS_WITH: model.end})

    async def _check_tokens(self, own: Digest | None, tokenizer: Digest | None) -> None:
        """Refuse a draft model whose tokens have other numbers than the model's; ``own``: its tokenizer, where that is known."""
        files = frozenset(file for file in (own, tokenizer) if file is not None)
        if len(files) < 2:
            return
        if files not in self._alike:
            async with self._artifacts.files(*files) as paths:
                one, other = await asyncio.to_thread(lambda: [read_tokens(path, FIELD).ids for path in paths])
            if len(self._alike) >= MAX_REMEMBERED:
                self._alike.clear()
            self._alike[files] = one == other
        if not self._alike[files]:
            raise ConflictError(
                "the draft model has another tokenizer than the model: a draft is of the same tokens, so name a model that "
                "was trained with this one's tokenizer",
                FIELD,
            )


async def _of_field(finding: Coroutine[Any, Any, T]) -> T:
    """What is found; what is wrong is said of the draft model's place in the document."""
    try:
        return await finding
    except CottageError as error:
        error.field = FIELD
        raise
