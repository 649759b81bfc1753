# SPDX-License-Identifier: Apache-2.0
"""The operators group_norm and rms_norm: in Python, for where those in C++ were not built, and
their fake kernels."""

import torch

from .._calls import device_options, stream_of, type_name, vector
from .._native import InvalidArgument
from .._plan import GroupNorm, NormOptions, RmsNorm, cached_norm
from . import _gradients
from ._memory import address, channels_last, format_of, workspace_of
from ._registration import register


def _run_norm(problem, x, weight, bias, activation):
    channels = x.shape[1]
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and (tensor.dim() != 1 or tensor.shape[0] != channels
                                   or tensor.device != x.device):
            raise InvalidArgument(
                f"{name} is {tuple(tensor.shape)} on {tensor.device}; legal: ({channels},) on "
                f"{x.device}"
            )
    if weight is not None and bias is not None and weight.dtype != bias.dtype:
        raise InvalidArgument(
            f"bias is {bias.dtype}, but weight is {weight.dtype}; legal: the same type"
        )
    given = weight if weight is not None else bias
    plan = cached_norm(problem, NormOptions(
        dtype=type_name(x, "x"),
        scale=weight is not None,
        bias=bias is not None,
        parameter_dtype="fp32" if given is None else type_name(given, "weight or bias"),
        activation=activation,
        **device_options(x.device),
    ))
    x = channels_last(x)
    out = torch.empty_like(x)
    weight = None if weight is None else vector(weight)
    bias = None if bias is None else vector(bias)
    workspace = workspace_of(plan, x)
    plan.run(address(out), address(x), scale=address(weight), bias=address(bias),
             workspace=address(workspace), stream=stream_of(x.device))
    return out


def require_axes(x):
    if x.dim() not in (4, 5):
        raise InvalidArgument(f"x has {x.dim()} axes; legal: 4 [N, C, H, W] or 5 [N, C, D, H, W]")


def _empty_channels_last(x):
    return torch.empty_like(x, memory_format=format_of(x.dim()))


def _group_norm_in_python(x: torch.Tensor, groups: int, weight: torch.Tensor | None,
                          bias: torch.Tensor | None, eps: float, activation: str) -> torch.Tensor:
    require_axes(x)
    pixels = x[0, 0].numel() if x.shape[0] > 0 else 0
    problem = GroupNorm(x.shape[0], pixels, x.shape[1], groups, eps)
    return _run_norm(problem, x, weight, bias, activation)


def _group_norm_fake(x, groups, weight, bias, eps, activation):
    return _empty_channels_last(x)


def _rms_norm_in_python(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None,
                        eps: float, rule: str, activation: str) -> torch.Tensor:
    require_axes(x)
    problem = RmsNorm(x.numel() // x.shape[1], x.shape[1], eps, rule)
    return _run_norm(problem, x, weight, bias, activation)


def _rms_norm_fake(x, weight, bias, eps, rule, activation):
    return _empty_channels_last(x)


group_norm = register("group_norm", _group_norm_in_python, _group_norm_fake,
                      _gradients.group_norm, _gradients.keep_group_norm)
rms_norm = register("rms_norm", _rms_norm_in_python, _rms_norm_fake, _gradients.rms_norm,
                    _gradients.keep_rms_norm)
