"""Muon: momentum whose matrices are made orthogonal before they are applied.

Every direction of a hidden matrix then moves by the same amount. Embeddings, head, norms and routers stay with AdamW. Plain
float32 products only, so that a step can be run again bit for bit by the same environment class.

Source: Jordan et al., kellerjordan.github.io/posts/muon; scale and weight decay as in Moonlight, arXiv 2502.16982.
"""

import math
from typing import cast

import torch
from torch import Tensor

MOMENTUM = 0.95
STEPS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # A quintic whose slope at zero is steep: small directions grow quickly.
MATCHED_RMS = 0.2  # The size of AdamW's updates, so that its learning rates and weight decay serve here too.
_TINY = 1e-7


def orthogonal(matrices: Tensor) -> Tensor:
    """Singular values brought near 1 (about 0.7 to 1.2), singular vectors kept, by Newton-Schulz.

    Args:
        matrices: ``[..., r, c]`` float32; leading axes are matrices of their own.
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True) + _TINY)
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return cast(Tensor, x.mT if tall else x)


def direction(gradient: Tensor, momentum: Tensor) -> Tensor:
    """Nesterov momentum (``momentum`` is updated in place), made orthogonal, with root mean square ``MATCHED_RMS``."""
    momentum.lerp_(gradient, 1 - MOMENTUM)
    update = orthogonal(gradient.lerp(momentum, MOMENTUM))
    return update.mul_(MATCHED_RMS * math.sqrt(max(update.shape[-2:])))
