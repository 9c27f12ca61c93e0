"""What work is worth: operations, the price, the pot of a round and exact shares. Integers wherever money is.

The network's price of 10^15 operations is where enough of its machines are willing to work, raised while jobs queue up, and it
moves by at most an eighth within STEP_S, as the base fee of Ethereum does (EIP-1559): nobody is surprised by it.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction

import msgspec

PASS_OPERATIONS = 2  # For each parameter and token; a backward pass takes as many as two forward.
PETAFLOP = 10**15
HOUR = 3600

MAX_FLOOR = 10**12  # Millionths for 10^15 operations: a million tokens; beyond it a node is as good as not there.
WILLING_PART = Fraction(1, 2)  # Of the network's speed must be for sale at the price: below it few could quote alone.
CLEAR_HOURS = 24  # What is queued must be done within a day at the price, where the network is quick enough at all.
CALM_HOURS = 1  # A queue of an hour is none.
RISE_PER_HOUR = Fraction(1, 10)  # For each further hour of work in the queue.
MAX_DEMAND = 4  # Times the price at rest; beyond it a job waits rather than pays.
MAX_STEP = Fraction(1, 8)
STEP_S = 600.0
LEAVES_HOURS = 24  # A home leaves about once a day.

LAMPORTS = 10**9  # Of one SOL.
SIGNATURE_LAMPORTS = 5_000  # What a transaction with one signature costs.
ROUND_SIGNATURES = 3  # The coordinator's of a round: two memos, and a part of its payouts.
JOB_SIGNATURES = 8  # And of a job: memos of its beginning and end, the last payouts, the refund.
# Of a payout that its fee may take; smaller ones wait for more, at the latest for the job's end.
FEE_PART = Fraction(1, 20)


class Offer(msgspec.Struct, frozen=True):
    """What one machine offers: operations a second, and the least it works for, in millionths for 10^15 operations."""

    speed: int
    floor: int


def operations(parameters: int, tokens: int, forward_passes: int = 1) -> int:
    """Floating-point operations of training ``parameters`` on ``tokens``, each of which passes forward so often."""
    return PASS_OPERATIONS * (forward_passes + 2) * parameters * tokens


def least(job_price: int, replicas: int) -> int:
    """What a job that trains all its rounds pays at least, where every share is verified: one replica's part of each round.

    A round pays for the tokens of the replicas that contributed, which are between one and ``replicas``; all of them in every
    round make ``job_price``, and nothing makes more.
    """
    return job_price // replicas


def clearing(offers: Sequence[Offer], needed: int) -> int:
    """The lowest price at which machines of ``needed`` operations a second in all are willing.

    Where all of them together are not as quick, the price at which the last one is willing; without offers 0.
    """
    speed = price_at = 0
    for offer in sorted(offers, key=lambda offer: offer.floor):
        if speed >= needed:
            break
        speed, price_at = speed + offer.speed, offer.floor
    return price_at


def demand(queued: int, speed: int) -> Fraction:
    """By how much a queue of operations raises the price on a network of this speed: between 1 and MAX_DEMAND."""
    if queued <= 0:
        return Fraction(1)
    if speed <= 0:
        return Fraction(MAX_DEMAND)
    hours = Fraction(queued, speed * HOUR)
    return min(Fraction(MAX_DEMAND), 1 + max(Fraction(0), hours - CALM_HOURS) * RISE_PER_HOUR)


def stepped(previous: int, target: int, steps: int) -> int:
    """As near to ``target`` as ``steps`` steps from ``previous`` lead, each by MAX_STEP of where it starts, at least by 1."""
    for _ in range(steps):
        if previous == target:
            break
        reach = max(1, int(previous * MAX_STEP))
        previous = min(target, previous + reach) if target > previous else max(target, previous - reach)
    return previous


def rate(offers: Sequence[Offer], queued: int, least_rate: int) -> int:
    """What 10^15 operations cost on a network at this moment, were it not for the steps; never below ``least_rate``."""
    speed = sum(offer.speed for offer in offers)
    needed = max(int(speed * WILLING_PART), queued // (CLEAR_HOURS * HOUR))
    at_rest = max(least_rate, clearing(offers, needed))
    return -int(-at_rest * demand(queued, speed) // 1)


def worth_paying(amount: int, fee_lamports: int, price_of_sol: int) -> bool:
    """Whether a payout is worth what the ledger takes for it: at most FEE_PART of the amount.

    ``price_of_sol`` is in millionths of the token; with 0 the ledger is free, as the embedded one.
    """
    return amount > 0 and Fraction(fee_lamports * price_of_sol, LAMPORTS) <= amount * FEE_PART


def worth_promising(amount: int, fee_lamports: int, price_of_sol: int) -> bool:
    """Whether earnings that wait for a payout are worth a promise: from half of what is worth a payout on, so at most one comes
    before each payout of the same money."""
    return worth_paying(2 * amount, fee_lamports, price_of_sol)


def worth_claiming(amount: int, fee_lamports: int, price_of_sol: int) -> bool:
    """Whether a payout that its payee asks for is more than its fee."""
    return amount * LAMPORTS > fee_lamports * price_of_sol


def ledger_cost(rounds: int, price_of_sol: int) -> int:
    """What a job of so many rounds costs its coordinator on the ledger, in millionths of the token, rounded up."""
    return in_tokens(SIGNATURE_LAMPORTS * (ROUND_SIGNATURES * rounds + JOB_SIGNATURES), price_of_sol)


def in_tokens(lamports: int, price_of_sol: int) -> int:
    """What lamports are worth, in millionths of the token, rounded up: whoever lays them out loses nothing."""
    return -(-lamports * price_of_sol // LAMPORTS)


def price(total_operations: int, per_petaflop: int, minimum: int) -> int:
    """Price in millionths, rounded up; never below ``minimum``."""
    return max(minimum, -(-total_operations * per_petaflop // PETAFLOP))


def pot(job_price: int, tokens_before: int, tokens_after: int, tokens_total: int) -> int:
    """What the tokens between two points of the job are worth: pots of a job in parts sum up to the price, exactly."""
    return _worth(job_price, tokens_after, tokens_total) - _worth(job_price, tokens_before, tokens_total)


def shares(amount: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Split ``amount`` by weight with the largest remainder first; ties go by key. The parts sum to ``amount``.

    No weights at all, or only zeros: an empty split, and nothing is owed.
    """
    total = sum(weights.values())
    if total <= 0:
        return {}
    exact = {key: Fraction(amount * weight, total) for key, weight in weights.items()}
    parts = {key: int(value) for key, value in exact.items()}
    rest = amount - sum(parts.values())
    for key in sorted(exact, key=lambda key: (parts[key] - exact[key], key))[:rest]:
        parts[key] += 1
    return parts


def round_weights(stage_parameters: Sequence[int], members: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Weight of each member (key -> stage, steps): the operations that a token costs there, for each step."""
    return {key: operations(stage_parameters[stage], steps) for key, (stage, steps) in members.items()}


def _worth(job_price: int, tokens: int, tokens_total: int) -> int:
    return job_price * min(tokens, tokens_total) // tokens_total
