"""What stands behind the interface and the pages."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from coordinator.services.arrays.element_books import ElementsPort
from coordinator.services.arrays.published_images import PublishedImages
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.dataset_checks import DatasetChecks
from coordinator.services.artifacts.uploads import UploadService
from coordinator.services.jobs import ports
from coordinator.services.operation.ports import LendersPort, OperatorPort
from coordinator.services.serving.private import PrivatePort


@dataclass(frozen=True)
class Services:
    """Everything that routes and pages ask or tell.

    Attributes:
        jobs: everything about jobs.
        network: everything about nodes.
        market: price, demand, regions, earnings, health.
        books: what the ledger's pages show.
        outputs: checkpoints, logs, models to try.
        notices: what accounts are told of their jobs.
        uploads: where submitters' files arrive.
        checks: what says what datasets hold.
        artifacts: where files lie.
        withdrawals: how lenders' earnings leave.
        doors: what nodes may read and store of them.
        operation: what an operator sees and orders.
        lenders: who may lend, and invitations.
        private: how clients come to private sessions.
        images: container images that submitters have pushed.
        elements: what became of the elements of array jobs.
        public_url: where others find the coordinator, if its operator has said so.
        downloads: folder of the installers that are offered; None: none are.
        moment: within which all of these read at one moment of the database.
    """

    jobs: ports.JobsPort
    network: ports.NetworkPort
    market: ports.MarketPort
    books: ports.LedgerPort
    outputs: ports.OutputsPort
    notices: ports.NoticesPort
    uploads: UploadService
    checks: DatasetChecks
    artifacts: ArtifactStore
    withdrawals: ports.WithdrawalPort
    doors: ports.ArtifactAccessPort
    operation: OperatorPort
    lenders: LendersPort
    private: PrivatePort
    images: PublishedImages
    elements: ElementsPort
    downloads: Path | None = None
    public_url: str | None = None
    moment: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
