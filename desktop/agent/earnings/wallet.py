"""The node's own look at the ledger: its stake and what its payout wallet holds."""

import asyncio
import contextlib
from dataclasses import dataclass, field

from desktop.agent.base.log import LOG
from ledger.addresses import audit_bytes
from ledger.client import Ledger, LedgerConfig
from ledger.errors import InsufficientFundsError, LedgerAnswerError, LedgerError
from ledger.money import ZERO, amount, show
from protocol.identity import NodeKey
from protocol.node import LedgerInfo


@dataclass(frozen=True)
class Purse:
    """The wallet of a computer, out of which its cards' stakes come, one after the other (``held``)."""

    key: NodeKey
    held: asyncio.Lock = field(default_factory=asyncio.Lock)


async def ensure_stake(info: LedgerInfo, key: NodeKey, wanted: int, purse: "Purse | None" = None) -> None:
    """Deposit what is missing of ``wanted`` millionths as this node's stake.

    The tokens come from the node's own wallet, or from ``purse``.

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
            async with (purse or Purse(key)).held:
                if purse is not None and key.address != purse.key.address:
                    await _hand_over(ledger, purse.key, key, missing)
                elif await ledger.balance(key.address) < missing:
                    await ledger.faucet(key.address, amount(missing))
                signature = await ledger.open_stake(key.seed, amount(missing), info.coordinator)
            LOG.info("staked %s (%s)", show(missing), signature)
    except InsufficientFundsError as error:
        LOG.error("the stake of %s cannot be paid: %s. Send tokens to %s", show(wanted), error, key.address)
    except LedgerError as error:
        LOG.error("the stake of %s cannot be paid now: %s", show(wanted), error)


async def _hand_over(ledger: Ledger, computer: NodeKey, card: NodeKey, missing: int) -> None:
    """Send what a card lacks of its stake from its computer's wallet; on the embedded ledger a faucet fills that first."""
    lacks = missing - await ledger.balance(card.address)
    if lacks <= 0:
        return
    if await ledger.balance(computer.address) < lacks:
        await ledger.faucet(computer.address, amount(lacks))
    with contextlib.suppress(LedgerAnswerError):  # Elsewhere its owner sends it SOL for the fee, or is told to.
        if not await ledger.lamports(card.address):
            await ledger.faucet(card.address, ZERO)
    await ledger.confirm(await ledger.prepare_transfer(computer.seed, card.address, amount(lacks)))


async def accuse(info: LedgerInfo, key: NodeKey, node: str, audit: str, most: int) -> int:
    """Put the least bond that the ledger's terms ask against an audit of ``node``; what it came to, 0 where none was put up.

    What fails is logged: the dispute goes on without a bond.

    Args:
        most: millionths that may stand in open disputes of this node at a time.
    """
    try:
        async with await Ledger.connect(_config(info)) as ledger:
            least = (await ledger.terms()).bond
            waiting = await ledger.waiting_disputes(info.coordinator)
            standing = sum(one.bond for one in waiting if one.challenger == key.address)
            if standing + least > most:
                LOG.warning(
                    "no bond against node %s: %s stand already, the least is %s, the limit %s",
                    node,
                    show(amount(standing)),
                    show(amount(least)),
                    show(amount(most)),
                )
                return 0
            opening = await ledger.prepare_dispute(key.seed, node, audit_bytes(audit), amount(least))
            LOG.info("bonded %s against node %s (%s)", show(amount(least)), node, await ledger.confirm(opening))
            return least
    except LedgerError as error:
        LOG.warning("no bond could be put up against node %s: %s", node, error)
        return 0


async def balance(info: LedgerInfo, wallet: str) -> int | None:
    """What ``wallet`` holds in millionths; ``None`` while the ledger does not answer."""
    try:
        async with await Ledger.connect(_config(info)) as ledger:
            return await ledger.balance(wallet)
    except LedgerError as error:
        LOG.warning("the ledger does not answer: %s", error)
        return None


def _config(info: LedgerInfo) -> LedgerConfig:
    return LedgerConfig(info.url, info.program or None, info.mint or None)
