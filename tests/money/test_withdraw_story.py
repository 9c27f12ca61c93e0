"""From a lender's first payment to money in another wallet, without one lamport of its own, on the real program."""

from __future__ import annotations

from dataclasses import replace

from coordinator.services.payments.withdrawals import LedgerSponsor, WithdrawalService
from coordinator.store.ports import col
from coordinator.store.records import NodeRecord
from desktop.agent.app.status import WithdrawOrder
from desktop.agent.earnings.withdrawals import OwnWithdrawals
from ledger.local.chain import SLOT_S
from ledger.money import UNIT, show
from protocol.identity import NodeKey
from tests.coordinator.bench import CONFIG
from tests.coordinator.fakes import COORDINATOR
from tests.money.faulty import FINAL_SLOTS
from tests.money.storm import SEED, sea
from tests.money.test_delivery import PAYEES, SHARE, Office
from tests.support.withdrawals import serving_withdrawals

CHEAP = 1_000_000  # Of a SOL: one token. Two shares of 0.4 are paid at once, and an account for tokens costs 0.00204.
FEE, ACCOUNT = 10, 2_040  # 10,000 and 2,049,280 lamports, rounded up.
LENDER = PAYEES[0]


async def test_the_first_payment_arrives_in_another_wallet_and_the_lender_never_had_sol() -> None:
    target = NodeKey(b"t" * 32).address
    async with sea(3) as (world, _, ledger):
        office = Office(world, ledger, price=CHEAP)
        config = replace(CONFIG, sol_price=CHEAP, ledger_program=ledger.program)
        context = replace(office.parts.context, config=config)
        sponsor = LedgerSponsor(ledger, ledger._connection.url, SEED, COORDINATOR)
        desk, own = WithdrawalService(context, sponsor), OwnWithdrawals()
        async with serving_withdrawals(desk) as url:
            order = WithdrawOrder(target)
            early = await own.withdraw(url, None, LENDER, order)
            assert early.denied is not None
            assert early.denied.reason == "nothing"

            job = await office.paid_for()
            for step in ("verify", "verify", "promise", "turn", "turn", "turn"):
                await office.take(step, job)
            paid = 2 * SHARE
            assert await ledger.balance(LENDER.address) == paid
            assert await ledger.lamports(LENDER.address) == 0
            async with office.store.transaction() as tx:
                assert (await tx.find(NodeRecord, col(NodeRecord.payout).equals(LENDER.address)))[0].earned == paid

            before = await ledger.balance(COORDINATOR)
            cost = await own.withdraw(url, None, LENDER, order)
            assert (cost.denied, cost.held, cost.amount) == (None, paid, paid)
            assert (cost.fee, cost.arrives, cost.opens) == (ACCOUNT + FEE, paid - ACCOUNT - FEE, True)

            whole = f"{cost.amount // UNIT}.{cost.amount % UNIT:06d}"
            assert show(cost.amount) == "0.8"
            sent = await own.withdraw(url, None, LENDER, replace_order(order, whole, cost.fee))
            assert sent.denied is None
            assert sent.signature
            assert sent.held == 0
            office.pass_time(2 * FINAL_SLOTS * SLOT_S)
            assert await ledger.balance(target) == paid - ACCOUNT - FEE
            assert await ledger.balance(LENDER.address) == 0
            assert await ledger.lamports(LENDER.address) == 0
            assert await ledger.balance(COORDINATOR) - before == ACCOUNT + FEE


def replace_order(order: WithdrawOrder, amount: str, fee: int) -> WithdrawOrder:
    return WithdrawOrder(order.target, amount, send=True, fee=fee)
