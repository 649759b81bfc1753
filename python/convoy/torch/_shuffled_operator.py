# SPDX-License-Identifier: Apache-2.0
"""The operator shuffled_conv: a convolution whose filters become pixels (pixel_shuffle)."""

import math

import torch

from .. import _calls
from .._native import InvalidArgument
from . import _by_pytorch, _gradients
from ._conv_operators import output_shape, problem_of, require_beside
from ._known import ConvNode
from ._memory import channels_last, empty
from ._registration import is_transformed, register


def _how(factors, order, dropped):
    """As a node's `shuffle`."""
    return (1,) * (3 - len(factors)) + tuple(factors), order, dropped


def _shuffled_conv_in_python(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    activation: str,
    beta: float,
    cache: torch.Tensor | None,
    packed: bool,
    padding_mode: str,
    factors: list[int],
    order: str,
    dropped: int,
    repeated: bool,
) -> torch.Tensor:
    require_beside(x, weight, bias, residual, cache)
    problem_of(x, weight, stride, padding, dilation, groups, mode=padding_mode)  # For its checks.
    node = ConvNode(weight, bias)
    node.describe(stride, padding, dilation, groups, activation, padding_mode,
                  shuffle=_how(factors, order, dropped), repeats=repeated)
    call = _calls.ConvCall(node, x, cache, residual, channels_last, packed, beta)
    memory = call.plan.residual_shape
    legal = (memory[0], memory[-1], *memory[1:-1])
    if residual is not None and tuple(residual.shape) != legal:
        raise InvalidArgument(f"residual is {tuple(residual.shape)}; legal: {legal}")
    return call(node, x, cache, residual)


def _shuffled_conv_fake(x, weight, bias, residual, stride, padding, dilation, groups, activation,
                        beta, cache, packed, padding_mode, factors, order, dropped, repeated):
    n, *extents, filters = output_shape(x, weight, stride, padding, dilation, cache=cache)
    extents = [extent * factor for extent, factor in zip(extents, factors)]
    return empty(x, (n, extents[0] - dropped, *extents[1:], filters // math.prod(factors)))


_operator = register("shuffled_conv", _shuffled_conv_in_python, _shuffled_conv_fake,
                     _gradients.shuffled, _gradients.keep_shuffled, always_python=True)


def shuffled_conv(x, weight, bias, residual, stride, padding, dilation, groups, activation, beta,
                  cache, packed, mode, factors, order, dropped, repeated):
    if is_transformed():
        return _by_pytorch.shuffled_convolution(
            x, weight, bias, residual, cache, stride, padding, dilation, groups, activation, beta,
            mode, _how(factors, order, dropped), repeated)
    return _operator(x, weight, bias, residual, stride, padding, dilation, groups, activation, beta,
                     cache, packed, mode, factors, order, dropped, repeated)
