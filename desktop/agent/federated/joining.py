"""An owner looks at a federated job, has the own data checked here, and joins or leaves: in the agent, over its connection."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from common.errors import InvitationError
from common.invitations import Invitation, read
from common.untrusted_text import View
from desktop.agent.base.config import Settings
from desktop.agent.errors import NotConnectedError, SandboxError, SettingsError
from desktop.agent.federated import federation_words
from desktop.agent.federated.memberships import NO_FILE, JoinedFederation, Memberships
from desktop.agent.sandbox.base import Sandbox
from protocol.codec import MessageError, decode_json, encode_json
from protocol.federated.federations import FederationTold, FederationWish, OwnDataReport, terms_digest
from protocol.ids import Digest, JobId
from protocol.job.job import DatasetFormat, DatasetSpec, JobSpec
from protocol.job.privacy_sum import keeps_to_budget

ANSWER_S = 20.0
NO_DOCUMENT = "bad-document"  # What a program refuses that was made before a field of a document.
MAX_SAID = 600  # Characters of what a check says that ends otherwise.
CHECK_S = 3_000.0  # Of as much data as fits a sandbox; the command waits a little longer.
OLDER_IMAGE = (
    "this federation asks for more than the sandbox image of this computer knows of: take the newest with `cottage node image`, "
    "then join"
)
UNKNOWN = ("unrecognized arguments", "invalid choice")  # What an image says that does not know what it is asked for.
OVERSPENT = (
    "the document promises epsilon {epsilon:g} at delta {delta:g}, and its {rounds} rounds would tell more: do not join, and "
    "tell whoever invited you"
)


class LookOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Look at a federation, by its invitation."""

    invitation: Annotated[str, Meta(min_length=1, max_length=20_000)]


class JoinOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Join it with this data, to the terms that were looked at; ``tell_rows``: how many rows there are may be told."""

    job: JobId
    terms: Digest
    data: Annotated[str, Meta(min_length=1, max_length=4096)]
    text_field: Annotated[str, Meta(min_length=1, max_length=100)] = "text"
    format: DatasetFormat = "auto"
    tell_rows: bool = False


class LeaveFederationOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Leave it; what was begun of it ends."""

    job: JobId


class FederationView(View, frozen=True):
    """A federation as its owner is shown it.

    Attributes:
        told: by its coordinator. ``asks``: the same in sentences. ``joined``: what is kept of it here.
        report: of the owner's data, where it was checked just now; ``found``: the same in sentences.
    """

    told: FederationTold
    terms: Digest
    asks: tuple[str, ...]
    joined: JoinedFederation | None = None
    report: OwnDataReport | None = None
    found: tuple[str, ...] = ()


class FederationsView(View, frozen=True):
    """Those that were joined."""

    joined: tuple[JoinedFederation, ...]


class Joining:
    """Asks the coordinator, and keeps what came of it."""

    def __init__(
        self, federations: Memberships, sandbox: Sandbox, send: Callable[[FederationWish], Awaitable[None]]
    ) -> None:
        """``send``: to the coordinator; raises NotConnectedError."""
        self._federations = federations
        self._sandbox = sandbox
        self._send = send
        self._asked: dict[str, asyncio.Future[FederationTold]] = {}
        self._turn = asyncio.Lock()
        self._checks: dict[JobId, asyncio.Task[tuple[JoinedFederation, OwnDataReport]]] = {}

    def told(self, said: FederationTold) -> None:
        """The coordinator answers."""
        if (waiting := self._asked.get(said.job)) is not None and not waiting.done():
            waiting.set_result(said)

    def view(self) -> FederationsView:
        """Those that were joined."""
        return FederationsView(tuple(self._federations.joined.values()))

    async def look(self, order: LookOrder, settings: Settings) -> FederationView:
        """What a federation asks for; raises SettingsError, NotConnectedError."""
        said = await self._ask(FederationWish(_job_of(order.invitation, settings), "look"))
        return self._view(said)

    async def join(self, order: JoinOrder, coordinator: str) -> FederationView:
        """Check the data here, and join, unless its owner leaves meanwhile; the report stays here.

        Raises:
            SettingsError: the data cannot be used, or the terms are others or promise too much, or it was taken back.
            NotConnectedError: the coordinator does not answer.
        """
        if order.job in self._checks:
            raise SettingsError("its data is being checked already: wait for that, or leave the federation first")
        check = self._checks[order.job] = asyncio.create_task(self._checked(order, coordinator), name="own data")
        try:
            await asyncio.wait([check])
        finally:
            check.cancel()
            del self._checks[order.job]
        if check.cancelled():
            raise SettingsError("it was taken back while the data was checked: nothing was joined")
        joined, report = check.result()
        self._federations.add(joined)  # Before the coordinator knows: a seat may come at once.
        rows = report.usable if order.tell_rows else None
        try:
            said = await self._ask(FederationWish(order.job, "join", order.terms, rows))
            if not said.joined:
                raise SettingsError(said.problem or "the coordinator has not let this node join")
        except SettingsError:
            self._federations.leave(order.job)
            raise
        return msgspec.structs.replace(
            self._view(said), report=report, found=tuple(federation_words.found(report, said))
        )

    async def _checked(self, order: JoinOrder, coordinator: str) -> tuple[JoinedFederation, OwnDataReport]:
        """What is joined, and what was found of the data."""
        said = await self._ask(FederationWish(order.job, "look"))
        spec = said.spec
        if spec is None or spec.federated is None or terms_digest(spec) != order.terms:
            raise SettingsError(said.problem or "the federation asks for something else by now: look at it once more")
        privacy = spec.federated.privacy
        most = None if privacy is None else privacy.most_rounds
        if privacy is not None and not (most is not None and keeps_to_budget(privacy, most, spec.training.inner_steps)):
            raise SettingsError(OVERSPENT.format(epsilon=privacy.epsilon, delta=privacy.delta, rounds=most))
        # In a thread: a disk that sleeps or is elsewhere takes seconds to answer.
        data, how = await asyncio.to_thread(_found, order.data), DatasetSpec(NO_FILE, order.format, order.text_field)
        report = await self._check(data, how, spec)
        joined = JoinedFederation(
            order.job,
            spec.name,
            coordinator,
            str(data),
            how,
            order.terms,
            most,
            None if privacy is None else privacy.epsilon,
            None if privacy is None else privacy.delta,
            unit="owner" if privacy is None else privacy.unit,
        )
        return joined, report

    async def leave(self, order: LeaveFederationOrder) -> FederationsView:
        """Leave, here at once, whatever the coordinator says; what is being joined is not. Raises SettingsError."""
        if (check := self._checks.get(order.job)) is not None:
            check.cancel()
            return self.view()
        if order.job not in self._federations.joined:
            raise SettingsError(
                f"this node has not joined a federation {order.job}: `cottage node federations` lists them"
            )
        self._federations.leave(order.job)
        await self._ask(FederationWish(order.job, "leave"))
        return self.view()

    async def _ask(self, wish: FederationWish) -> FederationTold:
        async with self._turn:
            waiting = self._asked[wish.job] = asyncio.get_running_loop().create_future()
            try:
                await self._send(wish)
                async with asyncio.timeout(ANSWER_S):
                    said: FederationTold = await waiting
            except TimeoutError:
                raise NotConnectedError("the coordinator has not answered: try again in a moment") from None
            finally:
                del self._asked[wish.job]
        if said.spec is None:
            raise SettingsError(said.problem or "the coordinator knows no such federation")
        return said

    async def _check(self, data: Path, how: DatasetSpec, spec: JobSpec) -> OwnDataReport:
        inside, sequence = self._sandbox.data_inside(data), str(spec.training.sequence)
        words = ["own", "--data", inside, "--how", encode_json(how).decode(), "--sequence", sequence]
        privacy = None if spec.federated is None else spec.federated.privacy
        if privacy is not None and (privacy.per_example or privacy.heldout is not None):
            # Images of before can neither tell a loss nor count examples, nor read this.
            words += ["--privacy", encode_json(privacy).decode()]
        try:
            printed = await self._sandbox.measure(words, CHECK_S, data)
            report: OwnDataReport = decode_json(printed, OwnDataReport)
        except SandboxError as error:
            code, detail = _refusal(str(error))
            if code == NO_DOCUMENT or (not code and any(words in detail for words in UNKNOWN)):
                raise SettingsError(OLDER_IMAGE) from error
            raise SettingsError(f"the data cannot be used: {detail}") from error
        except MessageError as error:
            raise SettingsError(f"what the check of the data says cannot be understood: {error}") from error
        if report.problem:
            raise SettingsError(f"the data cannot be learnt from: {report.problem}")
        return report

    def _view(self, said: FederationTold) -> FederationView:
        assert said.spec is not None
        kept = self._federations.joined.get(said.job)
        return FederationView(said, terms_digest(said.spec), tuple(federation_words.asked(said)), kept)


def _job_of(text: str, settings: Settings) -> str:
    """The job that an invitation means, which has to be of the network that this node lends to."""
    try:
        invitation = read(text)
    except InvitationError as error:
        raise SettingsError(f"that is no invitation to a federation: {error}") from error
    if not invitation.job:
        raise SettingsError(
            "the invitation is to a network and to no federation: ask whoever invited you for the federation's"
        )
    own = Invitation(settings.coordinator, settings.coordinator_key)
    other = invitation.url != own.url or (invitation.key and own.key and invitation.key != own.key)
    if other:
        raise SettingsError(
            f"the federation is of {invitation.url}, and this node lends to {settings.coordinator or 'nobody'}: join its network "
            "first (`cottage node settings --coordinator INVITATION`)"
        )
    return invitation.job


def _refusal(said: str) -> tuple[str, str]:
    """Code and words with which the check itself refuses: its last line is JSON; or no code, and the end of what it said."""
    try:
        refused = msgspec.json.decode(said[said.index('{"code"') :], type=dict[str, str])
        return refused["code"], refused["detail"]
    except (ValueError, KeyError):
        return "", said[-MAX_SAID:]


def _found(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_absolute():
        raise SettingsError(f"{text} is no whole path: name the folder from its root, such as /home/me/notes")
    try:
        path = path.resolve(strict=True)
    except OSError as error:
        raise SettingsError(f"{text} is not there: name a file or a folder of this computer") from error
    return path
