"""How a client comes to a private session; the talk itself goes past the coordinator."""

from collections.abc import Sequence

from coordinator.client.line import HttpLine, place
from protocol.rest.private import NewPrivateSession, PrivateSession, SealedAnswer, SealedOffer


class PrivateCalls:
    """Calls of the client about sessions of a deployment."""

    _line: HttpLine

    async def private_session(
        self, deployment: str, client: str, avoid: Sequence[str] = (), node: str | None = None
    ) -> PrivateSession:
        """Be named a node that an offer can be made to.

        Args:
            client: a key that was made for this session.
            avoid: nodes that it shall not be with. ``node``: the only one that it may be with.
        """
        wanted = NewPrivateSession(client, tuple(avoid), node)
        return await self._line.change("POST", f"{place('job', deployment)}/private", PrivateSession, wanted)

    async def private_offer(self, deployment: str, session: str, envelope: bytes) -> bytes:
        """The node's sealed answer to a sealed offer."""
        path = f"{place('job', deployment)}/private/{session}"
        return (await self._line.change("POST", path, SealedAnswer, SealedOffer(envelope))).envelope
