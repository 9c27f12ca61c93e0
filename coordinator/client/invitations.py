"""The link with which owners of data join a federation."""

from common.invitations import Invitation
from coordinator.client.client import Client
from protocol.ids import JobId


async def invitation_of(client: Client, server: str, job: JobId) -> str:
    """The link for the owners of a federation: it names the coordinator's key, and holds no secret."""
    return Invitation(server.rstrip("/"), (await client.network()).coordinator, job=job).link
