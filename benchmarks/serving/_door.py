"""A coordinator's process whose models are fake ones: its services, database, accounts and HTTP are real."""

import asyncio
import json
import math
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import msgspec
from aiohttp import web

from benchmarks.common import ROOT
from common import gc_tuning
from common.clock import SystemClock
from coordinator.app import add_interface
from coordinator.assembly import assemble
from coordinator.config import Config
from coordinator.domain.account import Principal, Role, Scope
from coordinator.domain.job import Job, JobState
from coordinator.domain.rounds.run import Base, Run, RunPoint
from coordinator.services.accounts.budgets import MAX_COMPLETIONS_EACH
from coordinator.services.artifacts import inference
from coordinator.services.artifacts.dataset_checks import DatasetChecks
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.models import ModelWorkshop, TrainerTools
from coordinator.services.artifacts.uploads import UploadService
from coordinator.services.serving.engines import Engines
from coordinator.store.ports import Store
from coordinator.store.records import RunRecord
from coordinator.store.sql import SqlStore
from coordinator.web.auth import Auth
from coordinator.web.connections import Connections, listen
from protocol.ids import Digest
from protocol.job.job import TokenizerSpec
from protocol.serving import MAX_LINE
from protocol.task import Layers
from tests.coordinator.fakes import COORDINATOR, WALLET, FakeChain, FakeModels, digest, spec
from tests.coordinator.many_jobs import QUOTE
from tests.support.small_job import MODEL

FAKE = Path(__file__).with_name("_fake_model.py")
CHAT = {"chat_template": "{% for one in messages %}{{ one.content }}{% endfor %}"}
CONFIG = MODEL | {"max_position_embeddings": 8192, "vocab_size": 512}


async def serve(streams: int, gap_s: float) -> None:
    """Say in a line of JSON where it is and what can be asked by whom; serve until standard input ends.

    Args:
        streams: that are to be open at a time; each account has as many as accounts have anywhere.
        gap_s: between two tokens of an answer.
    """
    # Of all accounts together: what is measured lies beyond it.
    inference.MAX_COMPLETIONS = streams + MAX_COMPLETIONS_EACH  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        config = Config(Path(folder), "http://ledger.test")
        store = await SqlStore.open(f"sqlite+aiosqlite:///{folder}/coordinator.db")
        engines = Engines(lambda _held: fake_model(gap_s))
        app, auth = _application(config, store, engines)
        callers = [await _caller(store, auth, number) for number in range(math.ceil(streams / MAX_COMPLETIONS_EACH))]
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        assert runner.server is not None
        Connections(behind_proxy=False).guard(runner.server)
        await listen(runner, "127.0.0.1", 0)
        gc_tuning.settle()
        print(json.dumps({"port": runner.addresses[0][1], "callers": callers}), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await runner.cleanup()
        await engines.close()
        await store.close()


@asynccontextmanager
async def fake_model(gap_s: float) -> AsyncIterator[asyncio.subprocess.Process]:
    """A model's process, as ``Engines`` begins one."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(FAKE), str(gap_s), stdin=pipe, stdout=pipe, stderr=pipe, limit=MAX_LINE, cwd=ROOT
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _application(config: Config, store: SqlStore, engines: Engines) -> tuple[web.Application, Auth]:
    clock = SystemClock()
    artifacts = DiskArtifacts(config.data / "artifacts")
    models = cast(ModelWorkshop, FakeModels())
    parts = assemble(config, clock, store, FakeChain(), models, artifacts, COORDINATOR, WALLET, generator=engines)
    tools = TrainerTools(artifacts, config.data / "scratch", 60.0, 4096)
    checks = DatasetChecks(config.data / "checks", artifacts, tools)
    auth = Auth(store, clock, config)
    app = web.Application()
    add_interface(
        app, replace(parts, checks=checks), UploadService(config.data / "uploads", artifacts), checks, artifacts, auth
    )
    return app, auth


async def _caller(store: Store, auth: Auth, number: int) -> tuple[str, str]:
    """An account's API key, and a job of its that has a model; the account has paid for work, so that it is no stranger."""
    account = await auth.accounts.create(f"caller {number}", Role.SUBMITTER)
    _, key = await auth.accounts.create_key(Principal(account.id, frozenset(Scope)), "bench", frozenset(Scope))
    job, model, point = f"{number:032x}", Digest(digest("model")), RunPoint(Base(done=4), (digest(0),))
    asked = msgspec.structs.replace(spec(), tokenizer=TokenizerSpec("file", file=digest("tokenizer"), settings=CHAT))
    made = Job(job, f"job {number}", JobState.SETTLED, asked, WALLET, True, 1.0, 2.0, QUOTE, CONFIG, {}, rounds_done=4)  # type: ignore[arg-type]
    async with store.transaction() as tx:
        await tx.insert(msgspec.structs.replace(made, account_id=account.id, model=model, ended=2.0, paid=1000))
        await tx.insert(RunRecord(job, Run((Layers(0, 4),), 2, 20, 2, (), points=(point,))))
    return key, job
