# SPDX-License-Identifier: Apache-2.0
"""The operators conv2d, conv3d and conv3d_next_cache: in Python, for where those in C++ were not
built, and their fake kernels."""

import torch

from .._bounded import Bounded
from .._calls import allows_tf32, device_options, packed_filter, stream_of, type_name, vector
from .._native import InvalidArgument
from .._plan import Conv2d, Conv3d, Options, Plan, cached_plan
from . import _gradients
from ._memory import address, channels_last, empty, workspace_of
from ._registration import register

# Padding modes by PyTorch's names and Convoy's.
PADDING_MODES = {"zeros": "zero", "zero": "zero", "replicate": "replicate", "reflect": "reflect"}


def problem_of(x, weight, stride, padding, dilation, groups, upsample=1, cached=0, mode="zeros"):
    """The problem of logical shapes; `padding` is (before, after) of each axis in turn."""
    if x.dim() != weight.dim() or x.dim() not in (4, 5):
        raise InvalidArgument(
            f"x has {x.dim()} axes and weight {weight.dim()}; legal: 4 each (conv2d) or 5 (conv3d)"
        )
    if weight.shape[1] * groups != x.shape[1]:
        raise InvalidArgument(
            f"weight has {weight.shape[1]} channels for {groups} groups, but x has {x.shape[1]}; "
            "legal: channels of x = groups * channels of the weight"
        )
    if mode not in PADDING_MODES:
        raise InvalidArgument(
            f"padding_mode = {mode!r} is not legal; legal: {', '.join(PADDING_MODES)}"
        )
    mode = PADDING_MODES[mode]
    begin, end = tuple(padding[0::2]), tuple(padding[1::2])
    stride, dilation, taps = tuple(stride), tuple(dilation), tuple(weight.shape[2:])
    if x.dim() == 4:
        n, c, h, w = x.shape
        return Conv2d(
            n, h, w, c, weight.shape[0], filter=taps, pad=(begin[0], end[0], begin[1], end[1]),
            stride=stride, dilation=dilation, groups=groups, upsample=upsample, pad_mode=mode,
        )
    n, c, d, h, w = x.shape
    return Conv3d(
        n, d, h, w, c, weight.shape[0], filter=taps, pad_begin=begin, pad_end=end, stride=stride,
        dilation=dilation, groups=groups, cached_frames=cached, pad_mode=(mode,) * 3,
    )


# By what a call looks like: much cheaper to ask than to describe the problem anew.
plans: dict[tuple, Plan] = Bounded(4096)


def _plan_of(x, weight, bias, residual, stride, padding, dilation, groups, activation, upsample,
             packed, cache, folding, mode):
    tf32 = allows_tf32(x)
    key = (
        x.shape, x.dtype, x.device, weight.shape, None if bias is None else bias.dtype,
        residual is None, tuple(stride), tuple(padding), tuple(dilation), groups, activation,
        upsample, packed, None if cache is None else cache.shape, folding, mode, tf32,
    )
    plan = plans.get(key)
    if plan is not None:
        return plan
    problem = problem_of(
        x, weight, stride, padding, dilation, groups, upsample,
        0 if cache is None else cache.shape[2], mode,
    )
    options = Options(
        dtype=type_name(x, "x"),
        bias_dtype=None if bias is None else type_name(bias, "bias"),
        activation=activation,
        residual=residual is not None,
        packed_filter=packed,
        upsample_folding=folding,
        allow_tf32=tf32,
        **device_options(x.device),
    )
    plan = plans[key] = cached_plan(problem, options)
    return plan


def require_beside(x, weight, bias, residual, cache):
    """The types and devices that go with x."""
    for name, tensor in (("weight", weight), ("residual", residual), ("cache", cache)):
        if tensor is not None and (tensor.dtype != x.dtype or tensor.device != x.device):
            raise InvalidArgument(
                f"{name} is {tensor.dtype} on {tensor.device}, but x is {x.dtype} on {x.device}"
            )
    if bias is not None and (bias.shape != weight.shape[:1] or bias.device != x.device):
        raise InvalidArgument(
            f"bias is {tuple(bias.shape)} on {bias.device}; "
            f"legal: {tuple(weight.shape[:1])} on {x.device}"
        )


def _run(x, weight, bias, residual, stride, padding, dilation, groups, activation, beta, upsample=1,
         packed=False, cache=None, next_cache=False, folding="exact", mode="zeros"):
    require_beside(x, weight, bias, residual, cache)
    if cache is not None and (cache.dim() != 5 or cache.shape[:2] + cache.shape[3:]
                              != x.shape[:2] + x.shape[3:]):
        raise InvalidArgument(
            f"cache is {tuple(cache.shape)}, but x is {tuple(x.shape)}; legal: the shape of x but "
            "for the frames (axis 2)"
        )
    packed = packed or upsample != 1  # Folded filters exist in packed form only.
    plan = _plan_of(x, weight, bias, residual, stride, padding, dilation, groups, activation,
                    upsample, packed, cache, folding, mode)
    x = channels_last(x)
    out = empty(x, plan.output_shape)
    if residual is not None:
        if residual.shape != out.shape:
            raise InvalidArgument(
                f"residual is {tuple(residual.shape)}, but the output is {tuple(out.shape)}"
            )
        residual = channels_last(residual)
    if bias is not None:
        bias = vector(bias)
    if cache is not None:
        cache = channels_last(cache)
    following = empty(x, plan.next_cache_shape) if next_cache else None
    if packed:
        weights = packed_filter(plan, weight, x.device)
    else:
        weight = channels_last(weight)
        weights = weight.data_ptr()
    workspace = workspace_of(plan, x)
    plan.run(
        address(out), address(x), weights, bias=address(bias), residual=address(residual),
        cache=address(cache) if cache is not None and cache.numel() > 0 else None,
        next_cache=address(following), workspace=address(workspace), beta=beta,
        stream=stream_of(x.device),
    )
    return (out, following) if next_cache else out


def output_shape(x, weight, stride, padding, dilation, upsample=1, cache=None):
    """What a plan would say, with symbolic extents too."""
    shape = [x.shape[0]]
    for axis in range(x.dim() - 2):
        extent = x.shape[axis + 2] * upsample
        if axis == 0 and cache is not None:
            extent = extent + cache.shape[2]
        padded = extent + padding[2 * axis] + padding[2 * axis + 1]
        span = dilation[axis] * (weight.shape[axis + 2] - 1) + 1
        shape.append((padded - span) // stride[axis] + 1)
    return (*shape, weight.shape[0])


def _conv2d_in_python(
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
    upsample: int = 1,
    packed: bool = False,
    upsample_folding: str = "exact",
    padding_mode: str = "zeros",
) -> torch.Tensor:
    return _run(x, weight, bias, residual, stride, padding, dilation, groups, activation, beta,
                upsample, packed, folding=upsample_folding, mode=padding_mode)


def _conv2d_fake(x, weight, bias, residual, stride, padding, dilation, groups, activation, beta,
                 upsample=1, packed=False, upsample_folding="exact", padding_mode="zeros"):
    return empty(x, output_shape(x, weight, stride, padding, dilation, upsample))


def _conv3d_in_python(
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
    cache: torch.Tensor | None = None,
    packed: bool = False,
    padding_mode: str = "zeros",
) -> torch.Tensor:
    return _run(x, weight, bias, residual, stride, padding, dilation, groups, activation, beta,
                packed=packed, cache=cache, mode=padding_mode)


def _conv3d_fake(x, weight, bias, residual, stride, padding, dilation, groups, activation, beta,
                 cache=None, packed=False, padding_mode="zeros"):
    return empty(x, output_shape(x, weight, stride, padding, dilation, cache=cache))


def _conv3d_next_cache_in_python(
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
    cache: torch.Tensor | None = None,
    packed: bool = False,
    padding_mode: str = "zeros",
) -> tuple[torch.Tensor, torch.Tensor]:
    return _run(x, weight, bias, residual, stride, padding, dilation, groups, activation, beta,
                packed=packed, cache=cache, next_cache=True, mode=padding_mode)


def _conv3d_next_cache_fake(x, weight, bias, residual, stride, padding, dilation, groups,
                            activation, beta, cache=None, packed=False, padding_mode="zeros"):
    out = empty(x, output_shape(x, weight, stride, padding, dilation, cache=cache))
    frames = (weight.shape[2] - 1) * dilation[0]
    return out, empty(x, (x.shape[0], frames, *x.shape[3:], x.shape[1]))


conv2d = register("conv2d", _conv2d_in_python, _conv2d_fake, _gradients.conv,
                  _gradients.keep_conv)
conv3d = register("conv3d", _conv3d_in_python, _conv3d_fake, _gradients.conv,
                  _gradients.keep_conv)
conv3d_next_cache = register("conv3d_next_cache", _conv3d_next_cache_in_python,
                             _conv3d_next_cache_fake)
