"""Whether a step left next to nothing to compute: its result could be had without doing the work that is paid.

Who sends its neighbour noughts, or the same sequence in every place of a batch, spares it the work, and the neighbour's
commitment is right all the same: it is what its stage gives. So whoever looks at a step also looks at what it was computed from
and what came of it: noughts, no numbers, or one and the same for different tokens. Nearly the same says nothing: early in
training honest hidden states of different tokens lie 0.2 to 6 % apart, whole sequences 2 to 25 % (four layers on two stages).
"""

import secrets
from collections.abc import Mapping

import torch
from torch import Tensor

from protocol.boundary import Kind, PayloadKey
from trainer.data.data import Windows, micro_batches
from trainer.data.marks import ids_of, useful
from trainer.errors import CodecError
from trainer.stage.stage import Stage

KINDS: Mapping[Kind, str] = {"activation": "hidden states", "gradient": "gradients"}
ALIKE = 1e-4  # Of their length, that two sequences lie apart at the most to be the same but for rounding.
SPARED = 0.05  # The part of a step's sequences that may be like others of it: what is not worked is not paid.
NOUGHTS = 0.25  # And of its vectors that may be noughts.
SKETCH = 16  # Directions in which vectors are compared: enough to tell like from unlike.
_LARGEST = 64  # Sequences that are compared: of more, these are as good.


def vain(stage: Stage, windows: Windows, *crossed: Mapping[PayloadKey, bytes]) -> str:
    """What of a step was such that it left next to nothing to compute, in words; empty: nothing was.

    Args:
        windows: its batch, ``[b, sequence + 1]``.
        crossed: payloads that it received, and that it sent.
    """
    tokens = torch.from_numpy(ids_of(windows[:, :-1].astype("int64")))
    # Behind a conversation's last answer gradients are noughts, as they should be.
    matter = torch.from_numpy(useful(windows))
    parts = [tokens[part] for part in micro_batches(stage.training)]
    for payloads in crossed:
        for kind in KINDS:
            passes = stage.training.forward_passes if kind == "activation" else 1
            crossing, matters = (_passed(each, passes, stage) for each in (tokens, matter))
            found = [payloads[kind, micro] for micro in range(len(parts)) if (kind, micro) in payloads]
            if len(found) < len(parts):
                continue
            try:
                vectors = torch.cat([_decoded(stage, kind, *one) for one in zip(found, parts, strict=True)])
            except CodecError:
                continue  # Of which another verdict tells.
            words = _spared(vectors, crossing, matters)
            if words:
                return f"{KINDS[kind]} that crossed were {words}"
    return ""


def _passed(rows: Tensor, passes: int, stage: Stage) -> Tensor:
    """Rows of a batch as often as they cross, and in that order: each micro-batch's once again behind it."""
    return torch.cat([rows[part].repeat(passes, 1) for part in micro_batches(stage.training)])


def _decoded(stage: Stage, kind: Kind, payload: bytes, ids: Tensor) -> Tensor:
    """``[b, t, width]`` float32, of as many passes as cross."""
    if kind == "activation":
        return stage.crossing.activations(payload, ids, "forward").float().cpu()
    return stage.crossing.gradients(payload, ids).float().cpu()


def _spared(vectors: Tensor, tokens: Tensor, matter: Tensor) -> str:
    """How vectors ``[b, t, width]`` of ``tokens`` ``[b, t]``, of which some ``matter``, spare whoever has them the work."""
    if not bool(torch.isfinite(vectors).all()):
        return "no numbers"
    lengths = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    if float((lengths[matter] == 0).float().sum()) > NOUGHTS * max(1, int(matter.sum())):
        return "noughts"
    # By a chance of its own, so that nobody can make vectors unlike in just these ways.
    chance = torch.Generator().manual_seed(secrets.randbits(63))
    ways = torch.randn(vectors.shape[-1], SKETCH, generator=chance) / SKETCH**0.5
    sketch = (
        vectors / lengths.clamp_min(torch.finfo(torch.float32).tiny)
    ) @ ways  # Their directions: scales cost nothing.
    some = matter.any(dim=1)
    return "the same in different sequences" if _part_like_others(sketch[some], tokens[some], chance) > SPARED else ""


def _part_like_others(sketch: Tensor, tokens: Tensor, chance: torch.Generator) -> float:
    """Of rows ``[n, t, k]`` of ``tokens`` ``[n, t]``, those that are like another row of other tokens."""
    if len(sketch) < 2:
        return 0.0
    some = torch.randperm(len(sketch), generator=chance)[:_LARGEST]
    rows, ids = sketch[some].flatten(1), tokens[some]
    apart = torch.cdist(rows, rows) / torch.linalg.vector_norm(rows, dim=1).mean().clamp_min(1e-30)
    same = (ids[:, None] == ids[None]).all(dim=-1)
    return float(((apart < ALIKE) & ~same).any(dim=1).float().mean())
