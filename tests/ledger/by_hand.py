"""What no program of ours sends: single instructions of whoever may give them, and payments of a coordinator in a row."""

from collections.abc import Mapping

from solders.instruction import Instruction

from ledger.addresses import keypair
from ledger.client import Ledger, PreparedTransaction
from ledger.money import Amount


async def prepare(ledger: Ledger, seed: bytes, *instructions: Instruction) -> PreparedTransaction:
    """A transaction of these instructions, signed and not sent."""
    return await ledger._prepare(keypair(seed), list(instructions))


async def send(ledger: Ledger, seed: bytes, *instructions: Instruction) -> None:
    """The same, sent and confirmed."""
    await ledger.confirm(await prepare(ledger, seed, *instructions))


async def pay(
    ledger: Ledger, coordinator: bytes, submitter: str, job: bytes, payouts: Mapping[str, Amount]
) -> list[PreparedTransaction]:
    """Everything that it takes until payees have received so much in all; the last one pays."""
    sent, payments = list[PreparedTransaction](), ledger.payouts(coordinator)
    while not sent or sent[-1].step:
        following = await payments.prepare(submitter, job, payouts)
        if following is None:
            break
        await ledger.confirm(following)
        sent.append(following)
    return sent


async def promise(
    ledger: Ledger, coordinator: bytes, submitter: str, job: bytes, cumulative: Mapping[str, Amount]
) -> None:
    """Everything that it takes until payees can claim so much in all."""
    payments, step = ledger.payouts(coordinator), "begun"
    while step:
        following = await payments.prepare_promise(submitter, job, cumulative)
        assert following is not None, "it is promised already"
        await ledger.confirm(following)
        step = following.step
