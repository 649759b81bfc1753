# SPDX-License-Identifier: Apache-2.0
"""Attention of more channels a head than PyTorch's fused kernels take."""

import math

import torch

from ._deferred import HALVES, plain, session_of, value_of
from ._native import Unsupported


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
               enable_gqa=False):
    """PyTorch's fused kernels end at 256 channels a head. Beyond, some rows of the scores at a
    time, which stay in the L2 cache."""
    session = session_of((query, key, value))
    if session and session.shards and session.shards.active:
        return _over_ranks(session, query, key, value, attn_mask, dropout_p, is_causal, scale,
                           enable_gqa)
    if attn_mask is not None or dropout_p or is_causal or enable_gqa:
        return NotImplemented
    width = query.shape[-1]
    if (query.device.type != "cuda" or width <= 256 or query.dim() != 4
            or query.shape[0] * query.shape[1] > 16 or query.dtype not in HALVES
            or query.shape[2] < 2048 or value.shape[-1] != width):
        return NotImplemented
    q, k, v = plain((query, key, value))
    return value_of(attend_by_rows(q, k, v, scale), session_of((query, key, value)))


def _over_ranks(session, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
    """This rank's queries on the keys and values of all ranks."""
    if is_causal:
        raise Unsupported("causal attention over pixels cannot be cut by height; legal: "
                          "convoy.accelerate without group")
    shards = session.shards
    q, k, v, mask = plain((query, key, value, attn_mask))
    if mask is not None:
        mask = shards.whole_mask(mask, k.shape[-2])
    both = shards.whole_tokens(torch.stack((k, v)), -2)
    width = q.shape[-1]
    if (q.is_cuda and mask is None and not dropout_p and not enable_gqa and width > 256
            and q.dim() == 4 and both.shape[-2] >= 2048 and q.dtype in HALVES):
        # NOTE: by the keys: for the few queries of one of four ranks PyTorch's kernel takes 427 µs,
        # where this takes 200 µs for twice as many.
        return value_of(attend_by_rows(q, both[0], both[1], scale), session)
    out = torch.nn.functional.scaled_dot_product_attention(
        q, both[0], both[1], mask, dropout_p, scale=scale, enable_gqa=enable_gqa)
    return value_of(out, session)


def attend_by_rows(q, k, v, scale=None, rows=1024):
    """softmax(q·kᵀ·scale)·v of [N, heads, tokens, C], `rows` queries at a time."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for n in range(q.shape[0]):
        for head in range(q.shape[1]):
            keys, values, scaled = k[n, head].t(), v[n, head], q[n, head] * scale
            for begin in range(0, q.shape[2], rows):
                part = slice(begin, begin + rows)
                scores = torch.softmax(torch.mm(scaled[part], keys), -1)
                torch.mm(scores, values, out=out[n, head, part])
    return out


FUNCTIONS = {"scaled_dot_product_attention": _attention}
ANY_FIRST = {"scaled_dot_product_attention"}
