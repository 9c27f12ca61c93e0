"""Tokens leave the node's own wallet, which holds no SOL: the coordinator pays, and the owner sees before what it costs.

The coordinator is not believed. What it offers is built here once more from what the owner was shown (``ledger.sponsored``), and
only that is signed. What was signed is followed on the ledger to its end before another one is signed.
"""

import asyncio
from typing import Any, NoReturn, TypeVar

import aiohttp
import msgspec

from common.errors import SecretPastedError, UrlError, WalletAddressError
from common.http_sessions import ProxyError, open_session, why
from common.untrusted_text import untrusted
from common.urls import at, parse_url
from desktop.agent.app.status import DenialReason, WithdrawOrder
from desktop.agent.base.log import LOG
from desktop.agent.errors import WithdrawalError
from desktop.answers import WalletWithdrawal, WithdrawalDenial
from ledger.client import Ledger, LedgerConfig
from ledger.errors import (
    AlteredTransactionError,
    AmountError,
    InsufficientFundsError,
    LedgerError,
    TransactionExpiredError,
    TransactionFailedError,
)
from ledger.money import Amount, amount, parse, show
from ledger.sponsored import SponsoredTransfer
from protocol.codec import MessageError, decode_json, encode_json
from protocol.identity import NodeKey
from protocol.node import LedgerInfo
from protocol.rest.withdrawals import (
    SentWithdrawal,
    SignedWithdrawal,
    WithdrawalAnswer,
    WithdrawalOffer,
    WithdrawalRefusal,
    WithdrawalRequest,
    WithdrawalTerms,
)
from protocol.wallets import any_address

PATH = "/api/v1/withdrawals"
ANSWER_BYTES = 64 << 10
# The coordinator asks its ledger some questions meanwhile; twice, and the ledger has a minute to confirm.
ANSWER_S = 12.0
UNDECIDED_S = 90  # Until what was signed is executed or void.

_T = TypeVar("_T")


class OwnWithdrawals:
    """Sends, one at a time. Lives as long as the agent's interface, whether it lends or not."""

    def __init__(self) -> None:
        self._one_by_one = asyncio.Lock()
        self._until = 0  # Block height until which what was signed last may still be executed; 0: it is decided.

    async def withdraw(
        self, coordinator: str, known: LedgerInfo | None, key: NodeKey, order: WithdrawOrder
    ) -> WalletWithdrawal:
        """Say what it costs, or send it; whatever stands in the way is part of the answer.

        Args:
            coordinator: its address; empty where none is set.
            known: the ledger that it named when it was connected last; None: it is asked.
        """
        order, wrong = _with_address(order)
        async with self._one_by_one:
            try:
                return await self._withdraw(_Coordinator(coordinator), known, key, order, wrong)
            except WithdrawalError as error:
                LOG.info("no withdrawal: %s", error)
                return WalletWithdrawal(order.target, error.known.amount, error.known.held, denied=error.denial)

    async def _withdraw(
        self,
        coordinator: "_Coordinator",
        known: LedgerInfo | None,
        key: NodeKey,
        order: WithdrawOrder,
        wrong: WalletAddressError | None,
    ) -> WalletWithdrawal:
        info = known or await coordinator.ledger()
        try:
            async with await Ledger.connect(LedgerConfig(info.url, info.program or None, info.mint or None)) as ledger:
                asked = await _asked(ledger, key, order, wrong)
                if order.own_sol:
                    return await _with_own_sol(ledger, key, order, asked)
                return await self._sponsored(coordinator, ledger, info, key, order, asked)
        except LedgerError as error:
            _deny("ledger away", f"nothing was withdrawn, the ledger cannot be used: {error}")

    async def _sponsored(
        self,
        coordinator: "_Coordinator",
        ledger: Ledger,
        info: LedgerInfo,
        key: NodeKey,
        order: WithdrawOrder,
        asked: WalletWithdrawal,
    ) -> WalletWithdrawal:
        request = WithdrawalRequest(key.address, order.target, asked.amount)
        offer = await coordinator.offer(request, asked)
        if offer.arrives + offer.fee != asked.amount:
            _deny("altered", _ALTERED.format("its amounts do not add up"), asked)
        transfer = SponsoredTransfer(
            info.coordinator, key.address, order.target, Amount(offer.arrives), Amount(offer.fee), offer.opens
        )
        found = msgspec.structs.replace(asked, fee=offer.fee, arrives=offer.arrives, opens=offer.opens)
        try:
            ledger.check_sponsored(transfer, offer.transaction)
            if not order.send:
                return found
            if order.fee != offer.fee:
                text = f"the fee is {show(offer.fee)} now, {show(order.fee)} was shown: look at it, and send it again"
                _deny("changed", text, asked, offer.fee)
            return await self._send(coordinator, ledger, key, SignedWithdrawal(request, *_of(offer)), transfer, found)
        except AlteredTransactionError as error:
            _deny("altered", _ALTERED.format(error), asked)

    async def _send(
        self,
        coordinator: "_Coordinator",
        ledger: Ledger,
        key: NodeKey,
        draft: SignedWithdrawal,
        transfer: SponsoredTransfer,
        found: WalletWithdrawal,
    ) -> WalletWithdrawal:
        if self._until and not await ledger.is_over(self._until):
            text = f"the last one may still be executed: {_LOOK}"
            _deny("under way", text, found, seconds=UNDECIDED_S)
        signed, last = await ledger.sign_sponsored(key.seed, transfer, draft.transaction)
        self._until = last
        sent = await coordinator.take(msgspec.structs.replace(draft, transaction=signed), found)
        try:
            prepared = ledger.sponsored(transfer, sent.transaction, last)
        except AlteredTransactionError as error:
            _deny("undecided", f"the coordinator's receipt is false ({error}): {_LOOK}", found, seconds=UNDECIDED_S)
        try:
            signature = await ledger.confirm(prepared, send=False)
        except TransactionFailedError as error:
            self._until = 0
            _deny("failed", f"the ledger refused it, and nothing was sent: {error.reason}", found)
        except TransactionExpiredError:
            self._until = 0
            _deny("expired", "it did not reach the ledger in time, and nothing was sent: try again", found)
        except LedgerError as error:
            text = f"the ledger has not said what became of it ({error}): {_LOOK}"
            _deny("undecided", text, found, seconds=UNDECIDED_S)
        self._until = 0
        LOG.info("sent %s to %s, fee %s (%s)", show(found.arrives), found.target, show(found.fee), signature)
        return msgspec.structs.replace(found, held=found.held - found.amount, signature=signature)


_LOOK = "look at the wallet in two minutes before you send anything again"
_ALTERED = (
    "the coordinator offers another transaction than what was asked for: {0}. Nothing was signed; tell its operator"
)


def _with_address(order: WithdrawOrder) -> tuple[WithdrawOrder, WalletAddressError | None]:
    """The order with its target alone; where that is none, with nothing of what was given, which may be a secret, and why."""
    try:
        return msgspec.structs.replace(order, target=any_address(order.target)), None
    except WalletAddressError as error:
        return msgspec.structs.replace(order, target=""), error


async def _asked(
    ledger: Ledger, key: NodeKey, order: WithdrawOrder, wrong: WalletAddressError | None
) -> WalletWithdrawal:
    """What is to be sent, from what the wallet holds. ``wrong``: why the target is no address."""
    try:
        wanted = parse(order.amount) if order.amount else None
    except AmountError as error:
        _deny("no amount", str(error))
    held = await ledger.balance(key.address)
    asked = WalletWithdrawal(order.target, held if wanted is None else wanted, held)
    if held <= 0:
        _deny("nothing", f"there is nothing to withdraw: the wallet {key.address} holds nothing", asked)
    if wrong is not None:
        _deny("secret" if isinstance(wrong, SecretPastedError) else "no address", str(wrong), asked)
    if order.target == key.address:
        _deny("own wallet", f"{order.target} is this computer's own wallet: give another address", asked)
    receiver = await ledger.receiver(order.target)
    if receiver == "no wallet":
        _deny(
            "no wallet", f"{order.target} is no wallet, tokens might be lost there: give a wallet's own address", asked
        )
    if asked.amount <= 0:
        _deny("no amount", "0 is no amount to send: give more, or leave it out for all", asked)
    if asked.amount > held:
        _deny(
            "holds less", f"the wallet holds {show(held)}, less than {show(asked.amount)}: withdraw that", asked, held
        )
    return asked


async def _with_own_sol(
    ledger: Ledger, key: NodeKey, order: WithdrawOrder, asked: WalletWithdrawal
) -> WalletWithdrawal:
    """Without a coordinator: the wallet's own SOL pays."""
    cost = await ledger.transfer_cost(order.target)
    found = msgspec.structs.replace(asked, arrives=asked.amount, lamports=cost.total, opens=cost.rent > 0)
    try:
        if not order.send:
            return found
        prepared = await ledger.prepare_transfer(key.seed, order.target, amount(found.amount))
        signature = await ledger.confirm(prepared)
    except InsufficientFundsError as error:
        _deny("own sol", str(error), found, cost.total)
    return msgspec.structs.replace(found, held=found.held - found.amount, signature=signature)


class _Coordinator:
    """Its part of the interface."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def ledger(self) -> LedgerInfo:
        """Where the token is, and who pays."""
        terms = await self._ask("GET", PATH, WithdrawalTerms)
        if terms.ledger is None:
            _deny("not offered", "this coordinator has no ledger: nothing can be withdrawn there")
        return terms.ledger

    async def offer(self, request: WithdrawalRequest, asked: WalletWithdrawal) -> WithdrawalOffer:
        """What it costs now."""
        answer = await self._ask("POST", f"{PATH}/offers", WithdrawalAnswer, request)
        if answer.offer is None:
            _refused(answer.refused, asked)
        return answer.offer

    async def take(self, signed: SignedWithdrawal, found: WalletWithdrawal) -> SentWithdrawal:
        """Have it sent. Where no answer comes, it may have been."""
        try:
            sent = await self._ask("POST", PATH, SentWithdrawal, signed)
        except WithdrawalError as error:
            _deny("undecided", f"{error}. It may have been sent: {_LOOK}", found, seconds=UNDECIDED_S)
        if sent.refused is not None:
            _refused(sent.refused, found)
        return sent

    async def _ask(self, method: str, path: str, kind: type[_T], body: Any = None) -> _T:
        if not self._url:
            _deny("no coordinator", "no coordinator is set: say in the settings whom to lend to")
        data = None if body is None else encode_json(body)
        headers = {} if data is None else {"Content-Type": "application/json"}
        try:
            url, timeout = at(parse_url(self._url), path), aiohttp.ClientTimeout(total=ANSWER_S)
            async with (
                open_session(timeout=timeout) as http,
                http.request(method, url, data=data, headers=headers) as got,
            ):
                if got.status in (404, 405):
                    _deny("not offered", f"{self._url} pays for no withdrawals: it is of an older version")
                if got.status != 200:
                    _deny("no answer", f"{self._url} answers with status {got.status}: try again later")
                said = bytearray()
                async for chunk in got.content.iter_any():
                    said += chunk
                    if len(said) > ANSWER_BYTES:
                        break
            answer: _T = decode_json(bytes(said), kind, ANSWER_BYTES)
        except (aiohttp.ClientError, OSError, TimeoutError, ProxyError, UrlError) as error:
            _deny("no answer", f"{self._url} does not answer ({why(error)}): try again later")
        except MessageError as error:
            _deny("no answer", f"what {self._url} answers cannot be understood ({error}): is it another version?")
        return answer


def _of(offer: WithdrawalOffer) -> tuple[int, int, bool, bytes]:
    return offer.arrives, offer.fee, offer.opens, offer.transaction


def _refused(refused: WithdrawalRefusal | None, asked: WalletWithdrawal) -> NoReturn:
    """Pass on why the coordinator does not do it."""
    if refused is None:
        _deny("no answer", "the coordinator has answered neither yes nor no: try again later", asked)
    _deny(refused.reason, refused.text, asked, refused.amount, refused.seconds)


def _deny(
    reason: DenialReason, text: str, known: WalletWithdrawal | None = None, units: int = 0, seconds: int = 0
) -> NoReturn:
    denial = WithdrawalDenial(reason, untrusted(text), units, seconds)
    raise WithdrawalError(denial, known or WalletWithdrawal("", 0, 0))
