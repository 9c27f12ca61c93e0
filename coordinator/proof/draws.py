"""The draw of a round, done again: the one place that knows how audits are drawn."""

from collections.abc import Iterator, Sequence

from coordinator.domain.audits import sampling as draws
from coordinator.domain.audits.sampling import Drawable, Drawn
from coordinator.proof.case import OnLedger, ProofFinding, Verdict
from protocol.evidence import DrawLeaf, RoundEvidence


def check(chain: OnLedger, found: RoundEvidence, early: bool) -> Iterator[ProofFinding]:
    """Draw again from the commitments and the ledger's own block, and compare with what was audited.

    Args:
        early: the job ended before its time, and with it what was still to be drawn.
    """
    subject = f"round {found.round + 1}" + (f" (epoch {found.epoch})" if found.epoch > 1 else "")
    if found.draw is None:
        verdict: Verdict = "fail" if found.concluded and not early else "note"
        detail = "the job ended before it was drawn" if found.concluded else "it waits for a block of the ledger"
        yield ProofFinding("draw", subject, verdict, detail, "nothing")
        return
    draw = found.draw
    block = chain.blocks.get(draw.after)
    used = f"block {draw.block} of slot {draw.slot}, as {chain.url} has it"
    if block != (draw.slot, draw.block):
        other = "none" if block is None else f"block {block[1]} of slot {block[0]}"
        yield ProofFinding(
            "beacon", subject, "fail", f"the ledger's first block after slot {draw.after} is {other}", used
        )
        return
    yield ProofFinding("beacon", subject, "pass", f"the first block after slot {draw.after}", used)
    yield from _again(found, draw, subject)


def _again(found: RoundEvidence, draw: DrawLeaf, subject: str) -> Iterator[ProofFinding]:
    able = [
        Drawable(one.stage, one.replica, one.root, one.leaves, one.rate, one.outer)
        for one in found.commitments
        if one.rate is not None
    ]
    seed = draws.seed_of(found.job, found.epoch, found.round, able, draw.block)
    again = set(draws.draw(seed, able, found.terms.least, found.terms.twice))
    drawn = {Drawn(step.stage, step.replica, step.step, step.twice) for step in draw.steps}
    audited = {(one.stage, one.replica, one.step) for one in found.audits}
    used = f"{len(able)} commitments, their rates and the block"
    if seed.hex() != draw.seed:
        yield ProofFinding(
            "draw", subject, "fail", f"the seed is {seed.hex()[:16]}…, published is {draw.seed[:16]}…", used
        )
    elif again != drawn:
        yield ProofFinding(
            "draw", subject, "fail", f"drawn {_words(drawn, able)}; should be {_words(again, able)}", used
        )
    elif not {(one.stage, one.replica, one.step) for one in drawn} <= audited:  # More are where somebody has asked.
        yield ProofFinding("draw", subject, "fail", f"drawn {_words(drawn, able)}, and not all were audited", "audits")
    else:
        yield ProofFinding("draw", subject, "pass", f"{_words(drawn, able)}, the same when drawn again", used)


def _words(steps: set[Drawn], able: Sequence[Drawable]) -> str:
    after = {(one.replica, one.stage, one.leaves) for one in able}
    named = sorted((one.replica, one.stage, one.step) for one in steps)
    places = [
        f"{'the outer step' if (replica, stage, step) in after else f'step {step}'} of stage {stage}, replica {replica}"
        for replica, stage, step in named
    ]
    return ", ".join(places) or "nothing"
