"""The node's own look at the ledger: its stake and what its payout wallet holds."""

from desktop.agent.log import LOGGER
from ledger.client import Ledger, LedgerConfig
from ledger.errors import InsufficientFundsError, LedgerError
from ledger.money import amount, show
from transport.identity import NodeKey
from transport.wire.node import LedgerInfo


async def ensure_stake(info: LedgerInfo, key: NodeKey, wanted: int) -> None:
    """Deposit what is missing of ``wanted`` millionths as this node's stake.

    On the embedded ledger, where tokens are worth nothing, a faucet fills an empty wallet. What fails is logged: the coordinator
    says itself what it demands, and the owner can act on it.
    """
    if wanted <= 0:
        return
    try:
        async with await Ledger.connect(_config(info)) as ledger:
            state = await ledger.stake(key.address)
            missing = wanted - (state.balance if state else 0)
            if missing <= 0:
                return
            if await ledger.balance(key.address) < missing:
                await ledger.faucet(key.address, amount(missing))
            signature = await ledger.open_stake(key.seed, amount(missing), info.coordinator)
            LOGGER.info("staked %s (%s)", show(missing), signature)
    except InsufficientFundsError as error:
        LOGGER.error("the stake of %s cannot be paid: %s. Send tokens to %s", show(wanted), error, key.address)
    except LedgerError as error:
        LOGGER.error("the stake of %s cannot be paid now: %s", show(wanted), error)


async def balance(info: LedgerInfo, wallet: str) -> int | None:
    """What ``wallet`` holds in millionths; ``None`` while the ledger does not answer."""
    try:
        async with await Ledger.connect(_config(info)) as ledger:
            return await ledger.balance(wallet)
    except LedgerError as error:
        LOGGER.warning("the ledger does not answer: %s", error)
        return None


def _config(info: LedgerInfo) -> LedgerConfig:
    return LedgerConfig(info.url, info.program or None, info.mint or None)
