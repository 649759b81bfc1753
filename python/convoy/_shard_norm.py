# SPDX-License-Identifier: Apache-2.0
"""GroupNorm over several ranks: each one's statistics, merged in the order of the ranks."""

import ctypes
import dataclasses
import functools

import torch

from . import _calls, _layout
from . import _native as native
from ._native import ConvoyError, library
from ._nodes import activate
from ._plan import GroupNorm, NormOptions, cached_norm

_ROWS = -2


@dataclasses.dataclass(frozen=True)
class _Part:
    """What a rank holds of a tensor in memory [N, frames, rows, columns, C]."""

    frames: int
    rows: int
    columns: int
    first: int  # Own rows.
    own: int


def group_norm(shards, node, x):
    """The norm of this rank's pixels by the statistics of all ranks."""
    if x.dim() in (4, 5):
        level = shards.require_level(x.shape[_ROWS], "group_norm")
        rows, columns = x.shape[_ROWS:]
        frames = x.shape[2] if x.dim() == 5 else 1
    else:
        frames, rows, columns, level = shards.tokens(x.shape[2:].numel(), "group_norm")
    part = _Part(frames, rows, columns, level.before, level.own(shards.rank))
    x = _inner(x)
    try:
        plan, final = (None, None) if node.wide else _plans(node, x, part)
    except ConvoyError:
        plan = None
    find = _statistics if plan is None else functools.partial(_planned_statistics, plan)
    mine = find(node, x, part)
    shares = _shares(shards, [level.own(rank) for rank in range(shards.count)], frames, x.device)
    known = _merged(shards.all_gather(mine), shares, x.shape[0])
    return _applied(node, x, known) if plan is None else _planned(final, node, x, known)


def _inner(x):
    if _layout.is_inner(x) and x.data_ptr() % 16 == 0:
        return x
    return _layout.inner_copy(x) if x.dim() in (4, 5) else (
        x.movedim(1, -1).contiguous().movedim(-1, 1))


def _plans(node, x, part):
    """(the statistics of own pixels, the norm by given statistics); (None, None) where own pixels
    are not aligned."""
    batch, channels = x.shape[:2]
    row = part.columns * channels * x.element_size()
    if row % 16:
        return None, None
    given = node.weight if node.weight is not None else node.bias
    options = dict(dtype=_calls.type_name(x, "x"), **_calls.device_options(x.device))
    own = cached_norm(
        GroupNorm(batch * part.frames, part.own * part.columns, channels, node.groups,
                  node.epsilon), NormOptions(scale=False, bias=False, **options))
    final = cached_norm(
        GroupNorm(batch, part.frames * part.rows * part.columns, channels, node.groups,
                  node.epsilon),
        NormOptions(scale=node.weight is not None, bias=node.bias is not None,
                    parameter_dtype="fp32" if given is None else _calls.type_name(given, "weight"),
                    activation="none" if node.activation is None else node.activation[0],
                    **options))
    return own, final


def _workspace(plan, x):
    if not x.is_cuda or not plan.workspace_bytes:
        return None
    return torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=x.device)


def _planned_statistics(plan, node, x, part):
    """[N * frames, groups, 2]: means and variances of own pixels."""
    channels = x.shape[1]
    row = part.columns * channels
    out = torch.empty((x.shape[0] * part.frames, node.groups, 2), device=x.device)
    workspace = _workspace(plan, x)
    status = library.convoy_norm_statistics(
        plan._handle, x.data_ptr() + part.first * row * x.element_size(), part.rows * row,
        out.data_ptr(), None if workspace is None else workspace.data_ptr(),
        _calls.stream_of(x.device))
    if status != 0:
        native.check(status)
    return out


def _planned(plan, node, x, known):
    out = torch.empty_like(x)
    arguments = native.NormArguments.from_buffer_copy(plan._arguments_template)
    if node.activation is not None and node.activation[1] is not None:
        arguments.parameter_a, arguments.parameter_b = node.activation[1:]
    arguments.output, arguments.input = out.data_ptr(), x.data_ptr()
    parameters = [None if p is None else _calls.vector(p) for p in (node.weight, node.bias)]
    arguments.scale, arguments.bias = (None if p is None else p.data_ptr() for p in parameters)
    arguments.statistics = known.data_ptr()
    workspace = _workspace(plan, x)
    arguments.workspace = None if workspace is None else workspace.data_ptr()
    status = library.convoy_norm_run(plan._handle, ctypes.byref(arguments),
                                     _calls.stream_of(x.device))
    if status != 0:
        native.check(status)
    return out


def _shares(shards, rows, frames, device):
    """What a frame of each rank is of all pixels; kept, since a graph's capture takes no numbers
    from the host."""
    key = (*rows, frames, device)
    if key not in shards.shares:
        values = [r / (sum(rows) * frames) for r in rows]
        shards.shares[key] = torch.tensor(values, device=device).reshape(-1, 1, 1, 1)
    return shards.shares[key]


def _merged(parts, share, batch):
    """[N, groups, 2] of all ranks, from [ranks, N * frames, groups, 2]."""
    parts = parts.unflatten(1, (batch, -1))
    means, variances = parts.unbind(-1)
    mean = (means * share).sum((0, 2))
    away = (means - mean[None, :, None]).square()
    return torch.stack((mean, ((variances + away) * share).sum((0, 2))), -1)


def _statistics(node, x, part):
    """As _planned_statistics, by PyTorch's operators."""
    pixels = x.reshape(*x.shape[:2], part.frames, part.rows, part.columns)
    own = pixels.narrow(3, part.first, part.own).float().unflatten(1, (node.groups, -1))
    variance, mean = torch.var_mean(own, (2, 4, 5), correction=0)
    return torch.stack((mean, variance), -1).transpose(1, 2).flatten(0, 1).contiguous()


def _applied(node, x, known):
    """The norm by PyTorch's operators."""
    channels = x.shape[1]
    per_channel = (-1, channels, *(1,) * (x.dim() - 2))
    mean, variance = (
        k.repeat_interleave(channels // node.groups, 1).reshape(per_channel)
        for k in known.unbind(-1))
    factor = torch.rsqrt(variance + node.epsilon)
    if node.weight is not None:
        factor = factor * node.weight.float().reshape(per_channel)
    y = (x.float() - mean) * factor
    if node.bias is not None:
        y = y + node.bias.float().reshape(per_channel)
    return activate(y, node.activation).to(torch.float32 if node.wide else x.dtype)
