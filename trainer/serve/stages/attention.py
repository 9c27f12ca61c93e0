"""Attention of a pass whose tokens belong to several requests, each to its own keys and values.

The families' own layers call it: ``transformers`` lets attention be another function. Rows that are alike are computed at once.
Tensors are named by shape: b rows, t tokens of a row, h heads of queries, k heads of keys, r queries a key, s places, d width.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from trainer.serve.stages.pages import PAGE, PassPlaces, RowGroup


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    *,
    pass_places: PassPlaces,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Keep a pass's keys and values ``[1, k, t, d]``, and attend with its queries ``[1, h, t, d]``: ``[1, t, h, d]``.

    Args:
        scaling: of scores; None: one over the root of d.
        sliding_window: how many places a token attends to; None: all.
        softcap: scores are bent to stay below it (Gemma 2).
    """
    cache, layer = pass_places.cache, int(getattr(module, "layer_idx", 0))
    keys, values = cache.keys[layer], cache.values[layer]
    keys.index_copy_(0, pass_places.written, key[0].transpose(0, 1))
    values.index_copy_(0, pass_places.written, value[0].transpose(0, 1))
    query_thd = query[0].transpose(0, 1)
    out = torch.empty_like(query_thd)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    for group in pass_places.groups:
        out[group.tokens] = _attended(query_thd, keys, values, group, scale, sliding_window, softcap)
    return out[None], None


def _attended(
    query_thd: Tensor,
    keys: Tensor,
    values: Tensor,
    group: RowGroup,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """What a group's tokens attend to, ``[b, t, h, d]``."""
    heads, width = keys.shape[1:]
    rows, tokens = group.tokens.shape
    repeats = query_thd.shape[1] // heads
    query_btkrd = query_thd[group.tokens].view(rows, tokens, heads, repeats, width)
    query_bksd = query_btkrd.permute(0, 2, 3, 1, 4).reshape(rows, heads, repeats * tokens, width)
    key_bksd, value_bksd = (
        one.view(-1, PAGE, heads, width)[group.pages].flatten(1, 2).transpose(1, 2) for one in (keys, values)
    )
    mask = group.mask(window, repeats)
    if softcap is None:
        out = scaled_dot_product_attention(query_bksd, key_bksd, value_bksd, attn_mask=mask, scale=scale)
    else:
        scores = torch.tanh(query_bksd @ key_bksd.transpose(2, 3) * (scale / softcap)) * softcap
        out = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ value_bksd
    return out.view(rows, heads, repeats, tokens, width).permute(0, 3, 1, 2, 4).reshape(rows, tokens, -1, width)
