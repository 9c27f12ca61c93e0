"""What a node is told first once it has been let in, with the coordinator's own proof of who it is."""

from collections.abc import Callable

from common.urls import authority, parse_url
from coordinator.config import Config
from coordinator.services.payments.chain import ChainPort
from protocol import identity
from protocol.node import WELCOME_CONTEXT, Hello, LedgerInfo, OfferedIceServer, Welcome


class Welcomes:
    """Makes them."""

    def __init__(
        self,
        config: Config,
        chain: ChainPort,
        coordinator: str,
        ice_servers: Callable[[str], tuple[OfferedIceServer, ...]],
        key: identity.NodeKey | None,
    ) -> None:
        """``key``: the coordinator's own, by which it proves who it is to nodes that ask; None: it proves nothing."""
        self._config, self._chain, self._coordinator = config, chain, coordinator
        self._ice_servers, self._key = ice_servers, key

    def of(self, token: str, hello: Hello, host: str, operator: bool) -> Welcome:
        """For a node that has said ``hello``, and asked for the coordinator as ``host``."""
        config = self._config
        return Welcome(
            token=token,
            heartbeat_seconds=config.heartbeat_seconds,
            lease_seconds=config.lease_seconds,
            ice_servers=self._ice_servers(hello.node),
            ledger=LedgerInfo(self._chain.url, self._chain.program, self._chain.mint, self._coordinator),
            min_stake=0 if operator else config.min_stake,
            proof=self._prove(hello, host),
        )

    def _prove(self, hello: Hello, host: str) -> bytes:
        """Under its public name alone, where it has one: somebody who passes greetings on under another name is found out."""
        if self._key is None or not hello.nonce:
            return b""
        public = self._config.public_url
        known_as = authority(parse_url(public)) if public else host
        return self._key.sign(WELCOME_CONTEXT, hello.nonce, hello.node.encode(), known_as.encode())
