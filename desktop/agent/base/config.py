"""The agent's home folder and settings."""

import contextlib
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from yarl import URL

from common.errors import InvitationError, TransportError, UrlError, WalletAddressError
from common.invitations import Invitation
from common.own_folders import NoHomeError, data_folder, make_folder
from common.system_words import reason
from common.token_worth import TokenWorth
from common.urls import parse_url
from desktop.agent.base import networks
from desktop.agent.base.file_lock import HeldError, held, holder
from desktop.agent.base.gpu import Chosen, GpuId, total_memory_mb
from desktop.agent.errors import HomeBusyError, NoNetworkError, SettingsError
from protocol.codec import MessageError, decode_json, encode_json
from protocol.identity import NodeKey
from protocol.ids import InvitationCode
from protocol.node import SandboxKind
from protocol.wallets import wallet_address

MAX_CARDS = 15  # Beside the first one: what a computer with 16 holds.
MIN_MEMORY_MB = 512  # PyTorch alone takes 300.
MAX_LIMIT = 10**15  # Bytes: a petabyte a month or a second is as good as no limit.
MIN_RATE = 10_000  # Bytes a second: below it links cannot even hold themselves up.
DEFAULT_IMAGE = "cottage-trainer:latest"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the owner wants the agent to run; kept in ``settings.json`` between starts.

    Amounts are millionths of the token; ``up`` and ``down`` bytes a second and ``month`` bytes, 0 for no limit.
    ``always``: lend whatever this computer does; otherwise by the rules of ``desktop.agent.lending``.
    ``gpu``: which one is lent, -1 for the processor. ``cards``: further ones that are lent beside it, each as a node of this
    computer's; ``resting``: those of all of these that are switched off for now. ``disk_gb``: for jobs' files. ``watts``: a GPU's
    power cap, 0 for its own. ``electricity``: what a kWh costs, in ``currency`` (ISO 4217), or in tokens where that is empty.
    ``worth``: of a token in that currency, 0 for what the coordinator says.
    ``updates``: new versions are fetched without being asked for.
    ``at_login``: start with the computer (``desktop.agent.app.autostart``).
    ``coordinator_key``: what the coordinator has to prove, by an invitation; empty: whoever answers is it.
    ``invitation``: the code that lets this machine in, where the network asks for one.
    ``bond``: the most that this node puts up on the ledger at a time against work of its neighbours that it has found false; 0:
    it doubts nobody.
    """

    coordinator: Annotated[str, Meta(max_length=2000)] = ""
    coordinator_key: Annotated[str, Meta(max_length=44)] = ""
    invitation: InvitationCode = ""
    name: Annotated[str, Meta(max_length=100, pattern=r"^[^\x00-\x1f]*$")] = ""
    payout: Annotated[str, Meta(max_length=44)] = ""
    sandbox: SandboxKind = "docker"
    threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    memory_mb: Annotated[int, Meta(ge=0, le=10**8)] = 0
    image: Annotated[str, Meta(min_length=1, max_length=300)] = DEFAULT_IMAGE
    stake: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    bond: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    floor: Annotated[int, Meta(ge=0, le=10**12)] = 0
    loopback: bool = False
    up: Annotated[int, Meta(ge=0, le=MAX_LIMIT)] = 0
    down: Annotated[int, Meta(ge=0, le=MAX_LIMIT)] = 0
    month: Annotated[int, Meta(ge=0, le=MAX_LIMIT)] = 0
    polite: bool = False
    always: bool = False
    gpu: Chosen = 0
    cards: Annotated[tuple[GpuId, ...], Meta(max_length=MAX_CARDS)] = ()
    resting: Annotated[tuple[GpuId, ...], Meta(max_length=MAX_CARDS + 1)] = ()
    disk_gb: Annotated[int, Meta(ge=1, le=10_000)] = 20
    watts: Annotated[int, Meta(ge=0, le=2000)] = 0
    electricity: Annotated[int, Meta(ge=0, le=10**9)] = 0
    currency: Annotated[str, Meta(pattern=r"^([A-Z]{3})?$")] = ""
    worth: Annotated[int, Meta(ge=0, le=10**12)] = 0
    updates: bool = True
    at_login: bool = True

    @property
    def network(self) -> Invitation:
        """Whom to lend to."""
        return Invitation(self.coordinator, self.coordinator_key, self.invitation)

    @property
    def lent(self) -> tuple[int | str, ...]:
        """All that is lent, switched off for now or not, the first one first."""
        return (self.gpu, *self.cards)

    @property
    def working(self) -> tuple[int | str, ...]:
        """What of it is not switched off."""
        return tuple(card for card in self.lent if card not in self.resting)

    def of_card(self, card: int | str) -> "Settings":
        """What a card has of completed settings, where several are lent: its part of processors, memory and disk."""
        parts = len(self.lent)
        if parts == 1:
            return self
        number = self.lent.index(card)
        return msgspec.structs.replace(
            self,
            gpu=card,
            cards=(),
            resting=(),
            name=f"{self.name[:90]} ({number + 1})" if number else self.name,
            threads=max(1, self.threads // parts),
            memory_mb=self.memory_mb // parts,
            disk_gb=max(1, self.disk_gb // parts),
        )

    def worth_of(self, said: TokenWorth | None) -> TokenWorth | None:
        """What a token is worth to this owner; ``said`` by the coordinator. None: nobody knows it in the owner's currency."""
        if self.currency and self.worth:
            return TokenWorth(self.currency, self.worth)
        return said if said is not None and self.currency in ("", said.currency) else None

    def joining(self, network: Invitation) -> "Settings":
        """The same with another network."""
        return msgspec.structs.replace(
            self, coordinator=network.url, coordinator_key=network.key, invitation=network.code
        )

    def meant(self, text: str, offered: Sequence[Invitation] = ()) -> Invitation:
        """The network that an address or an invitation means: of one that is known, with the key that was given then.

        Args:
            offered: other known ones; that of now is.
        Raises:
            NoNetworkError: it is neither.
        """
        try:
            return networks.meant(text, (self.network, *offered)) if text else Invitation("")
        except InvitationError as error:
            raise NoNetworkError(str(error)) from error

    def completed(self, address: str) -> "Settings":
        """With every open choice made: this machine's name, the node's own wallet, half of the memory, all processors.

        Raises:
            SettingsError: a value cannot be used; the text names it.
        """
        url = _parse_url(self.coordinator)
        payout = payee(self.payout) or address
        memory = self.memory_mb or max(MIN_MEMORY_MB, total_memory_mb() // 2)
        if memory < (least := MIN_MEMORY_MB * len(self.lent)):
            each = f" for {len(self.lent)} cards" if self.cards else " for any job"
            raise SettingsError(f"{memory} MB of memory are too little{each}: at least {least}")
        return msgspec.structs.replace(
            self,
            coordinator=str(url),
            name=self.name or platform.node()[:100] or "node",
            payout=payout,
            threads=self.threads or os.cpu_count() or 1,
            memory_mb=memory,
        )


def payee(text: str) -> str:
    """The wallet that is to be paid, as it is kept; empty: the node's own.

    Raises:
        SettingsError: it is none; what was given is not repeated, for it may be a secret.
    """
    try:
        return wallet_address(text) if text.strip() else ""
    except WalletAddressError as error:
        raise SettingsError(f"what is to be paid is not a wallet address: {error}") from error


def _parse_url(text: str) -> URL:
    if not text:
        raise NoNetworkError("no network is set: give the address of its coordinator, or an invitation")
    try:
        return parse_url(text)
    except UrlError as error:
        raise NoNetworkError(f"{error}, such as https://cottage.example") from error


@dataclass(frozen=True)
class Home:
    """The folder of one agent: its key, settings, cache and sockets. Nobody else may read it.

    ``trial``: seen by a new version on probation, which answers apart (``desktop.agent.app.restart``).
    ``key_file``: where the key is, if not in the folder. ``computer``: of a further card the computer's home, whose rules,
    settings and promises are its own, too; ``card``: which one it is.
    """

    path: Path
    trial: bool = False
    key_file: Path | None = None
    computer: "Home | None" = None
    card: str = ""

    @classmethod
    def at(cls, path: Path | None) -> "Home":
        """The folder ``path``, or the user's default; created where it is missing.

        Raises:
            SettingsError: it cannot be created.
        """
        try:
            chosen = path or cls.usual()
        except NoHomeError as error:
            raise SettingsError(f"{error}, or name the agent's folder with --home") from error
        try:
            make_folder(chosen)
            return cls(chosen.resolve())
        except OSError as error:
            raise SettingsError(f"--home {chosen} cannot be used: {reason(error)}") from error

    def of_card(self, card: str) -> "Home":
        """The home of a further card, within this one.

        Raises:
            SettingsError: its folder cannot be made.
        """
        path = self.cards / card
        try:
            make_folder(path)
        except OSError as error:
            raise SettingsError(f"{path} cannot be used: {reason(error)}") from error
        return Home(path, self.trial, computer=self, card=card)

    @property
    def cards(self) -> Path:
        """A folder for each further card that is lent."""
        return self.path / "cards"

    @property
    def _owners(self) -> Path:
        return self.path if self.computer is None else self.computer.path

    @staticmethod
    def usual() -> Path:
        """Where the folder is when nobody says where."""
        return data_folder() / "node"

    @property
    def is_usual(self) -> bool:
        """It is that one, which the user's service and removers mean."""
        try:
            return self.usual().resolve() == self.path
        except NoHomeError:
            return False

    @property
    def socket(self) -> Path:
        """Where the running agent answers questions about itself."""
        return self.path / ("trial.sock" if self.trial else "agent.sock")

    @property
    def lock(self) -> Path:
        """What the one agent of this home holds."""
        return self.path / "agent.lock"

    @property
    def jobs(self) -> Path:
        """A folder for each lease that is held."""
        return self.path / "jobs"

    @property
    def federations(self) -> Path:
        """Which federated jobs its owner has joined, and with which data."""
        return self.path / "federations.json"

    @property
    def coordinator_records(self) -> Path:
        """What the coordinator has its nodes keep."""
        return self.path / "coordinator-records"

    @property
    def cache(self) -> Path:
        """Artifacts."""
        return self.path / "cache"

    @property
    def states(self) -> Path:
        """What this node keeps for the peers of its stages."""
        return self.path / "states"

    @property
    def records(self) -> Path:
        """What rounds can be opened from after a crash."""
        return self.path / "records"

    @property
    def log(self) -> Path:
        """What the agent has said."""
        return self.path / "node.log"

    @property
    def lending(self) -> Path:
        """The owner's rules."""
        return self._owners / "lending.json"

    @property
    def usage(self) -> Path:
        """What this month has used of the monthly cap."""
        return self._owners / "usage.json"

    @property
    def promises(self) -> Path:
        """What can be claimed from the ledger."""
        return self._owners / "promises"

    @property
    def switch(self) -> Path:
        """Whether its owner wants it to lend: ``on`` or ``off``."""
        return self.path / "switch"

    @property
    def updates(self) -> Path:
        """What is being fetched of a new version."""
        return self.path / "updates"

    @property
    def setup(self) -> Path:
        """An installer of the next version, fetched whole; Windows starts a program by its name's end."""
        return self.path / "Cottage-Setup.exe"

    @property
    def seen_updates(self) -> Path:
        """Which manifests were seen."""
        return self.path / "updates.json"

    @property
    def image_statement(self) -> Path:
        """What the release key says of the sandbox image."""
        return self._owners / "image.json"

    @property
    def seen_image(self) -> Path:
        """Which statement about it is the newest that was seen."""
        return self._owners / "image-seen.json"

    @property
    def publishers(self) -> Path:
        """Whose images of array jobs may run here."""
        return self._owners / "publishers.json"

    @property
    def element_images(self) -> Path:
        """Which images array jobs have asked for."""
        return self.path / "element-images.json"

    @property
    def networks(self) -> Path:
        """Which networks were joined."""
        return self._owners / "networks.json"

    @property
    def activity(self) -> Path:
        """What has happened here."""
        return self._owners / "activity.db"

    @property
    def earnings(self) -> Path:
        """What jobs have brought."""
        return self.path / "earnings.db"

    def key(self) -> NodeKey:
        """The node's key, made at the first start; a further card's follows from its computer's.

        Raises:
            SettingsError: its file cannot be used.
        """
        if self.computer is not None:
            return self.computer.key().card(self.card)
        try:
            return NodeKey.load_or_generate(self.key_file or self.path / "node.key")
        except TransportError as error:
            raise SettingsError(str(error)) from error

    def settings(self) -> Settings:
        """What was remembered, with the build's own network where none was; raises SettingsError where the file is damaged."""
        file = self._owners / "settings.json"
        try:
            settings: Settings = decode_json(file.read_bytes(), Settings)
        except FileNotFoundError:
            settings = Settings()
        except (OSError, MessageError) as error:
            raise SettingsError(f"{file} cannot be used: {reason(error)}. Correct it or delete it") from error
        return settings if settings.coordinator else settings.joining(networks.built_in() or Invitation(""))

    def remember(self, settings: Settings) -> None:
        """Keep ``settings`` for the next start; raises SettingsError where they cannot be written."""
        draft = self._owners / "settings.json.new"
        try:
            draft.write_bytes(encode_json(settings))
            draft.replace(self._owners / "settings.json")
            if settings.coordinator:
                networks.remember(self.networks, settings.network)
        except OSError as error:
            raise SettingsError(f"{draft} cannot be written: {reason(error)}") from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process alone.

        Raises:
            HomeBusyError: another agent holds it.
        """
        try:
            with held(self.lock):
                yield
        except HeldError:
            who = holder(self.lock) or "unknown"
            raise HomeBusyError(
                f"an agent (process {who}) already runs with {self.path}: stop it, or give this one another --home"
            ) from None
