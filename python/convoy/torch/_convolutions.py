# SPDX-License-Identifier: Apache-2.0
"""conv2d and conv3d: the operators of convolutions as functions."""

from collections.abc import Sequence
from typing import Any

import torch

from .. import _calls, _plan
from .._calls import NAMES, type_name
from .._native import InvalidArgument
from .._plan import Options, integer, numbers, sides
from . import _by_pytorch, _conv_operators
from ._conv_operators import problem_of
from ._known import ConvNode, convolutions, described, may_be_known
from ._memory import channels_last, has_memory
from ._registration import is_transformed
from ._shuffled_operator import shuffled_conv

Integers = int | Sequence[int]  # One, or one for each axis.


def interleaved(padding, axes, *filter):
    begin, end = sides(padding, axes, *filter)
    return [side for pair in zip(begin, end) for side in pair]


def axes_of(x, weight, stride, padding, dilation, axes):
    """stride, padding (before and after each axis in turn) and dilation, as lists of integers."""
    if x.dim() != axes + 2 or weight.dim() != axes + 2:
        raise InvalidArgument(
            f"x has {x.dim()} axes and weight {weight.dim()}; legal: {axes + 2} each (conv{axes}d)"
        )
    stride, dilation = numbers(stride, axes, "stride"), numbers(dilation, axes, "dilation")
    padding = interleaved(padding, axes, tuple(weight.shape[2:]), stride, dilation)
    return list(stride), padding, list(dilation)


def _autocast(x, weight, residual, cache, packed, upsample=1):
    """As F.conv2d: where autocast is on, in its type."""
    kind = x.device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return x, weight, residual, cache, packed
    dtype = torch.get_autocast_dtype(kind)
    if weight.dtype in NAMES and weight.dtype != dtype:
        if torch.compiler.is_compiling() or _calls.is_transformed() or (
                type(weight) is not torch.nn.Parameter
                or (torch.is_grad_enabled() and weight.requires_grad)):
            weight, packed = weight.to(dtype), packed and upsample > 1
        else:
            weight = _calls.cast_weight(weight, dtype)
    x, residual, cache = (t.to(dtype) if t is not None and t.dtype in NAMES else t
                          for t in (x, residual, cache))
    return x, weight, residual, cache, packed


def _convolve(axes, x, weight, bias, stride, padding, dilation, groups, activation, residual, beta,
              cache, upsample, folding, packed, mode):
    """By a call that is known, else by the operator, whose checks it passes first."""
    key = None
    if may_be_known(x, weight, bias, residual, cache):
        key = (axes, x.shape, x.dtype, x.device, weight.shape, weight.dtype, weight.device,
               described(bias), described(residual), described(cache), stride, padding, dilation,
               groups, activation, beta, upsample, folding, packed, mode,
               _calls.allows_tf32(x))
        try:
            call = convolutions.get(key)
        except TypeError:  # A list among them.
            call, key = None, None
        if call is not None:
            return call(ConvNode(weight, bias), x, cache, residual)
    strides, padded, dilations = axes_of(x, weight, stride, padding, dilation, axes)
    groups, upsample, beta = integer(groups, "groups"), integer(upsample, "upsample"), float(beta)
    if is_transformed():
        return _by_pytorch.convolution(x, weight, bias, residual, cache, strides, padded, dilations,
                                       groups, activation, beta, upsample, mode)
    arguments = (x, weight, bias, residual, strides, padded, dilations, groups, activation, beta)
    if axes == 2:
        y = _conv_operators.conv2d(*arguments, upsample, packed, folding, mode)
    else:
        y = _conv_operators.conv3d(*arguments, cache, packed, mode)
    if key is not None and has_memory(x) and (cache is None or cache.numel() > 0):
        node = ConvNode(weight, bias)
        node.describe(strides, padded, dilations, groups, activation, mode, upsample)
        call = _calls.ConvCall(node, x, cache, residual, channels_last, packed, beta,
                               upsample_folding=folding)
        if call.packed:  # NOTE: the next call may be under capture, where nothing is allocated.
            _calls.packed_filter(call.plan, weight, x.device)
        convolutions[key] = call
    return y


def conv2d(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None,
           stride: Integers = 1, padding: Integers | str = 0, dilation: Integers = 1,
           groups: int = 1, *, activation: str = "none", residual: torch.Tensor | None = None,
           beta: float = 1.0, upsample: int = 1, upsample_folding: str = "exact",
           packed: bool = False, padding_mode: str = "zeros", pixel_shuffle: Integers = 1,
           shuffle_order: str = "channels_outer",
           repeat_residual: bool = False) -> torch.Tensor:
    """activation(conv(x, weight) + bias) + beta·residual, in one kernel. padding: one integer,
    (height, width), (top, bottom, left, right), "same" or "valid"; padding_mode: zeros, replicate
    or reflect. upsample=2 upsamples x to the nearest neighbour first, without writing it;
    upsample_folding="fast" takes half the time for it on a GPU and rounds the sums of taps to the
    weight's type. packed=True repacks the weight for the kernel at the first call and keeps that
    for as long as the weight lives and is not changed.

    pixel_shuffle: filters become this many rows and columns of each pixel, as F.pixel_shuffle
    behind it, without a tensor in between; shuffle_order="channels_inner": filters are
    (row, column, channel) instead of (channel, row, column). The residual is added to the pixels;
    with repeat_residual it has the extents before them, and each of its channels goes with
    filters / channels filters that follow each other (DC-AE's shortcut)."""
    x, weight, residual, _, packed = _autocast(x, weight, residual, None, packed, upsample)
    factors = numbers(pixel_shuffle, 2, "pixel_shuffle")
    if factors != (1, 1):
        if upsample != 1:
            raise InvalidArgument(f"upsample = {upsample} with pixel_shuffle = {pixel_shuffle} is "
                                  "not legal; legal: one of them")
        strides, padded, dilations = axes_of(x, weight, stride, padding, dilation, 2)
        return shuffled_conv(
            x, weight, bias, residual, strides, padded, dilations, integer(groups, "groups"),
            activation, float(beta), None, packed, padding_mode, list(factors), shuffle_order, 0,
            repeat_residual)
    return _convolve(2, x, weight, bias, stride, padding, dilation, groups, activation,
                     residual, beta, None, upsample, upsample_folding, packed, padding_mode)


def conv3d(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None,
           stride: Integers = 1, padding: Integers | str = 0, dilation: Integers = 1,
           groups: int = 1, *, activation: str = "none", residual: torch.Tensor | None = None,
           beta: float = 1.0, cache: torch.Tensor | None = None, next_cache: bool = False,
           packed: bool = False, padding_mode: str = "zeros", pixel_shuffle: Integers = 1,
           shuffle_order: str = "channels_outer", dropped_frames: int = 0,
           repeat_residual: bool = False) -> Any:
    """As conv2d, in three dimensions. padding: one integer, (depth, height, width), (front, back,
    top, bottom, left, right), "same" or "valid". cache: frames [N, C, F, H, W] that come before x,
    read where they are; with next_cache=True the result is (output, the last (T - 1)·dilation
    frames of both).

    pixel_shuffle: filters become this many (frames, rows, columns) of each pixel; dropped_frames:
    so many of the first ones are left out. Not with next_cache."""
    x, weight, residual, cache, packed = _autocast(x, weight, residual, cache, packed)
    factors = numbers(pixel_shuffle, 3, "pixel_shuffle")
    if factors != (1, 1, 1):
        if next_cache:
            raise InvalidArgument("next_cache with pixel_shuffle is not legal; legal: one of them")
        strides, padded, dilations = axes_of(x, weight, stride, padding, dilation, 3)
        return shuffled_conv(
            x, weight, bias, residual, strides, padded, dilations, integer(groups, "groups"),
            activation, float(beta), cache, packed, padding_mode, list(factors), shuffle_order,
            integer(dropped_frames, "dropped_frames"), repeat_residual)
    if not next_cache:
        return _convolve(3, x, weight, bias, stride, padding, dilation, groups, activation,
                         residual, beta, cache, 1, "exact", packed, padding_mode)
    stride, padding, dilation = axes_of(x, weight, stride, padding, dilation, 3)
    return _conv_operators.conv3d_next_cache(
        x, weight, bias, residual, stride, padding, dilation, integer(groups, "groups"), activation,
        float(beta), cache, packed, padding_mode,
    )


def supports(x: torch.Tensor, weight: torch.Tensor, stride: Integers = 1,
             padding: Integers | str = 0, dilation: Integers = 1, groups: int = 1,
             padding_mode: str = "zeros") -> tuple[bool, str]:
    """(True, "") where the operator can run these tensors, else (False, why not)."""
    stride, padding, dilation = axes_of(x, weight, stride, padding, dilation, x.dim() - 2)
    problem = problem_of(x, weight, stride, padding, dilation, integer(groups, "groups"),
                         mode=padding_mode)
    device = "cuda" if x.device.type == "cuda" else "cpu"
    return _plan.supports(problem, Options(dtype=type_name(x, "x"), device=device))
