"""A network in memory whose nodes answer with the models of its jobs, beside what ``fake.Cluster`` does."""

import hashlib
import math
from collections.abc import Sequence

import msgspec

from coordinator.client.deployments import SERVING_SENTENCES
from coordinator.domain.account import LOCAL_ACCOUNT
from coordinator.domain.job import JobAction
from coordinator.errors import ConflictError, InvalidError
from protocol.job.job import JobSpec
from protocol.rest import api
from tests.coordinator.web.fake import NODES, Cluster, _Job, _new_view, address

PER_MILLION, PER_MILLION_PROMPT, PER_HOUR = 1_200_000, 240_000, 150_000
PERIOD_S = 300.0
PERIOD_PAY = 30_000
QUIET = api.ServingView(0, 0, 0, 0, 0, 0, 0, 0, 0, PER_MILLION, PER_MILLION_PROMPT, PER_HOUR)


class ServingCluster(Cluster):
    """Each ``step`` of a deployment: planned, the first node answers, then a period of five minutes each.

    ``least``: that a job has in escrow. ``early``: nodes that are ready before the others of their replica.
    """

    least = early = 0

    async def quote(self, spec: JobSpec, account_id: str = LOCAL_ACCOUNT) -> api.Quote:
        if spec.serve is None:
            return await super().quote(spec, account_id)
        nodes, hours = spec.serve.replicas, spec.deadline_hours
        ready = math.ceil(PER_HOUR * nodes * hours)
        least = max(ready, self.least)
        problems = []
        if spec.budget < least:
            problems.append(
                f"the budget {spec.budget / 1e6:.2f} is below {least / 1e6:.2f}, what {nodes} nodes ready for {hours:g} hours "
                "cost: raise it, or ask for fewer"
            )
        return api.Quote(
            operations=0.0,
            parameters=1_234_567,
            tokens=0,
            stages=spec.serve.stages or 1,
            replicas=nodes,
            nodes_available=5,
            rounds=0,
            hours=hours,
            price=max(spec.budget, least),
            price_low=ready,
            price_high=max(spec.budget, least),
            memory_mb_per_stage=(812,) * (spec.serve.stages or 1),
            limit="",
            problems=tuple(problems),
            weights=spec.serve.weights,
            rate=250_000_000,
            reasons=(
                "a million tokens of answers cost 1.20, of prompts 0.24: what the network asks for as many operations",
                "an hour of a ready node costs 0.15: a second of it counts as one token of an answer",
            ),
        )

    async def create(self, new: api.NewJob, account_id: str = LOCAL_ACCOUNT, job: str | None = None) -> api.JobView:
        if new.spec.serve is None:
            return await super().create(new, account_id, job)
        quote = await self.quote(new.spec)
        if quote.problems:
            raise InvalidError(quote.problems[0], "budget")
        source, given = new.spec.model.from_job, new.spec.model.from_round
        if source is not None and given is None and self._find(source).view.model is None:
            raise ConflictError("that job has no finished model", field="model.from_job")
        await self.check_funds(new)
        name = job or f"{next(self._ids):032x}"
        view = _new_view(name, new.spec, new.submitter or address("test wallet"), quote, self.now)
        sentence = SERVING_SENTENCES["created"]
        quiet = msgspec.structs.replace(QUIET, stages=quote.stages)
        made = _Job(
            msgspec.structs.replace(view, serving=quiet, tokens_total=0, cap=new.spec.budget, sentence=sentence)
        )
        made.account_id = account_id
        self._jobs[name] = made
        self._say(made, "created", f"deployment {new.spec.name} was asked for")
        return made.view

    async def ask(self, job: str, action: JobAction) -> api.JobView:
        found = self._find(job)
        at_work = found.view.state in ("planned", "running", "paused")
        if found.view.spec.serve is not None and action is JobAction.STOP and at_work:
            self._change(found, state="verifying", reason="the submitter stopped it", serving=self._idle(found))
            return found.view
        return await super().ask(job, action)

    async def nodes(self, job: str) -> Sequence[api.JobNode]:
        view = self._find(job).view
        if view.spec.serve is None or view.serving is None or view.state in ("created", "funded"):
            return await super().nodes(job)
        parts = []
        stages = view.serving.stages
        for place, (name, device, *_) in enumerate(NODES[: view.spec.serve.replicas * stages]):
            state = (
                "done" if view.ended else "ready" if place < view.serving.ready * stages + self.early else "starting"
            )
            done, paid = view.rounds_done, view.paid // view.spec.serve.replicas
            parts.append(
                api.JobNode(
                    address(name),
                    name,
                    device,
                    place % stages,
                    place // stages,
                    state,
                    done,
                    0,
                    done * 1_500,
                    done * 10**12,
                    done,
                    0,
                    paid,
                    paid,
                    0,  # type: ignore[arg-type]
                )
            )
        return parts

    def step(self, job: str) -> api.JobView:
        found = self._find(job)
        if found.view.spec.serve is None:
            return super().step(job)
        self.now += PERIOD_S if found.view.state == "running" else 9.0
        wanted, quiet = found.view.spec.serve.replicas, found.view.serving or QUIET
        match found.view.state:
            case "funded":
                self._change(found, state="planned", serving=msgspec.structs.replace(quiet, loading=wanted))
                self._say(found, "planned", f"{wanted} nodes load the model")
            case "planned":
                serving = msgspec.structs.replace(quiet, ready=1, loading=wanted - 1)
                self._change(found, state="running", serving=serving, sentence=f"It answers on 1 of {wanted} nodes.")
                self._say(found, "ready", "attic-4090 answers")
            case "running":
                self._period(found, wanted)
            case "verifying":
                left = found.view.escrow - found.view.paid
                self._receipt(found, "refund", left, "what was not answered")
                self._change(found, state="settled", refunded=left, ended=self.now, serving=self._idle(found))
                self._say(found, "settled", "everything verified is paid, the rest refunded")
            case _:
                raise ConflictError(f"nothing more happens to a job that is {found.view.state}")
        return found.view

    def _period(self, found: _Job, wanted: int) -> None:
        serving, done = found.view.serving or QUIET, found.view.rounds_done
        told = msgspec.structs.replace(
            serving,
            ready=wanted,
            loading=0,
            answering=3,
            waiting=1,
            answers=serving.answers + 40,
            tokens=serving.tokens + 6_000,
            prompt_tokens=serving.prompt_tokens + 9_000,
            checked=serving.checked + 6,
        )
        for place in range(wanted):
            root = hashlib.sha256(f"{done} {place}".encode()).hexdigest()
            state = "verified" if done else "pending"
            found.commits.append(
                api.CommitView(
                    done,
                    0,
                    0,
                    place,
                    address(NODES[place][0]),
                    root,
                    20,
                    3_000,
                    10**12,
                    False,
                    state,
                    PERIOD_PAY // wanted,  # type: ignore[arg-type]
                )
            )
        self._receipt(found, "settle", PERIOD_PAY, f"period {done + 1} to {wanted} nodes")
        paid = found.view.paid + PERIOD_PAY
        sentence = f"It answers on {wanted} of {wanted} nodes."
        self._change(found, serving=told, rounds_done=done + 1, paid=paid, cost=paid, sentence=sentence)
        self._say(found, "paid", f"period {done + 1} was paid to {wanted} nodes")

    def _idle(self, found: _Job) -> api.ServingView:
        return msgspec.structs.replace(found.view.serving or QUIET, ready=0, loading=0, answering=0, waiting=0)
