"""The errors of the agent, and the exit codes of its program.

::

    AgentError                      1
    ├── SettingsError               2   a setting, a file of the home folder or the key is unusable
    │   └── NoNetworkError              there is nobody to lend to, or what was given is no address and no invitation
    ├── SandboxError                3   a restriction is not in force, or jobs cannot run here for another reason
    │   ├── NoEngineError               no Docker engine answers
    │   ├── NoImageError                the engine lacks the image that jobs run in
    │   ├── UnsignedImageError          nobody whom this build trusts has signed the image
    │   └── UnacceptedImageError        the owner accepts no images of who has signed it, or it cannot run here
    ├── RefusedError                4   the coordinator does not want this node until its owner changes something
    ├── GaveUpError                 6   one job after the other has failed here, or somebody reached into one
    ├── HomeBusyError               5   another agent runs with this home folder
    ├── NoAgentError                    no agent runs with this home folder, or it does not answer
    ├── UpdateError                 a new version cannot be had, believed or put in place
    ├── WithdrawalError                 nothing can be sent from the node's wallet now
    ├── NotConnectedError               nothing can be sent to the coordinator now
    ├── ArtifactError                   an artifact cannot be fetched, stored or trusted
    │   ├── UnwantedError               the coordinator does not wait for it any more
    │   └── StateError                  no peer could give the whole of a stage's state
    └── WorkerError                     the worker of one task ended or misbehaved; the agent goes on
        ├── WorkerProtocolError
        ├── WorkerDiedError             its process ended without a word
        └── TamperedError               somebody reached into the worker's sandbox
"""

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from desktop.answers import WalletWithdrawal, WithdrawalDenial


class AgentError(Exception):
    """Any failure of the agent. ``cause`` and ``detail`` say the same for programs that have words of their own."""

    exit_code: ClassVar[int] = 1
    cause: str = ""

    def __init__(self, text: str = "", **detail: str) -> None:
        super().__init__(text)
        self.detail = detail


class SettingsError(AgentError):
    """A setting, a file of the home folder or the key is unusable."""

    exit_code = 2


class NoNetworkError(SettingsError):
    """There is nobody to lend to, or what was given is no address and no invitation."""

    cause = "no network"


class SandboxError(AgentError):
    """Jobs cannot be run safely: no engine, no image, or a restriction is not in force."""

    exit_code = 3


class NoEngineError(SandboxError):
    """No Docker engine answers. ``detail`` has ``why``: absent, stopped, denied (to this user), or elsewhere (DOCKER_HOST)."""

    cause = "no engine"


class NoImageError(SandboxError):
    """The engine lacks the image that jobs run in."""

    cause = "no image"


class UnsignedImageError(SandboxError):
    """Nobody whom this build trusts has signed the image, or what is said of it cannot be believed."""


class UnacceptedImageError(SandboxError):
    """An image of an array job that its owner lets nobody run here, or that cannot run here."""


class CoordinatorRefusedError(AgentError):
    """The coordinator refuses this node; trying again changes nothing."""

    exit_code = 4


class GaveUpError(AgentError):
    """No more is taken until the owner says so. ``cause``: failures, tampered or unanswered."""

    exit_code = 6

    def __init__(self, text: str, cause: str, **detail: str) -> None:
        super().__init__(text, **detail)
        self.cause = cause


class HomeBusyError(AgentError):
    """Another agent runs with this home folder."""

    exit_code = 5


class NoAgentError(AgentError):
    """No agent answers in this home folder."""


class UpdateError(AgentError):
    """A new version cannot be fetched, believed or put in place; this one goes on."""


class WithdrawalError(AgentError):
    """Nothing can be sent from the node's wallet. ``denial``: why, for programs; ``known``: what was found out by then."""

    def __init__(self, denial: "WithdrawalDenial", known: "WalletWithdrawal") -> None:
        super().__init__(denial.text)
        self.denial, self.known = denial, known


class NotConnectedError(AgentError):
    """There is no connection to the coordinator at the moment."""


class ArtifactError(AgentError):
    """An artifact cannot be fetched, stored or trusted."""


class UnwantedError(ArtifactError):
    """The coordinator does not wait for an artifact any more: what asked for it is over."""


class PeerStateError(ArtifactError):
    """The peers that should keep a stage's state could not give all of it."""


class WorkerError(AgentError):
    """The worker of one task has ended or cannot go on."""


class WorkerProtocolError(WorkerError):
    """The worker said something that no worker may say."""


class WorkerDiedError(WorkerError):
    """The worker's process ended, and nobody had told it to."""


class TamperedError(WorkerError):
    """Somebody on this computer reached into the worker's sandbox; the job has been ended."""
