# SPDX-License-Identifier: Apache-2.0
"""Convoy's convolutions as PyTorch operators.

    import convoy.torch
    y = convoy.torch.conv2d(x, weight, bias, padding=1, activation="silu", residual=skip)
    decoder = convoy.torch.convert(decoder)      # every Conv2d and Conv3d it can take over

The operators `convoy::conv2d` and `convoy::conv3d` take tensors as PyTorch's own do, logically
[N, C, (D,) H, W], and work in channels-last memory format: inputs in that format are used as they
are, others are copied into it, and the output is channels-last. They run on the current stream of
the tensor's device, have fake kernels for torch.compile, and no gradient.
"""

import torch

from . import _plan
from ._native import InvalidArgument
from ._plan import Conv2d, Conv3d, Options, cached_plan, numbers, sides

_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


def _dtype_name(tensor, name):
    try:
        return _NAMES[tensor.dtype]
    except KeyError:
        raise InvalidArgument(
            f"{name} is {tensor.dtype}; legal: torch.bfloat16, torch.float16, torch.float32"
        ) from None


def _channels_last(tensor):
    """The tensor in channels-last memory, 16-byte aligned; itself where it is so already."""
    memory_format = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    tensor = tensor.contiguous(memory_format=memory_format)
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone(memory_format=memory_format)


def _problem(x, weight, stride, padding, dilation, groups):
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
    begin, end = tuple(padding[0::2]), tuple(padding[1::2])
    stride, dilation, taps = tuple(stride), tuple(dilation), tuple(weight.shape[2:])
    if x.dim() == 4:
        n, c, h, w = x.shape
        return Conv2d(
            n, h, w, c, weight.shape[0], filter=taps, pad=(begin[0], end[0], begin[1], end[1]),
            stride=stride, dilation=dilation, groups=groups,
        )
    n, c, d, h, w = x.shape
    return Conv3d(
        n, d, h, w, c, weight.shape[0], filter=taps, pad_begin=begin, pad_end=end, stride=stride,
        dilation=dilation, groups=groups,
    )


def _run(x, weight, bias, residual, stride, padding, dilation, groups, activation, beta):
    dtype = _dtype_name(x, "x")
    for name, tensor in (("weight", weight), ("residual", residual)):
        if tensor is not None and (tensor.dtype != x.dtype or tensor.device != x.device):
            raise InvalidArgument(
                f"{name} is {tensor.dtype} on {tensor.device}, but x is {x.dtype} on {x.device}"
            )
    problem = _problem(x, weight, stride, padding, dilation, groups)
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != weight.shape[0]
                             or bias.device != x.device):
        raise InvalidArgument(
            f"bias is {tuple(bias.shape)} on {bias.device}; legal: ({weight.shape[0]},) on {x.device}"
        )
    on_gpu = x.device.type == "cuda"
    options = Options(
        dtype=dtype,
        bias_dtype=None if bias is None else _dtype_name(bias, "bias"),
        activation=activation,
        residual=residual is not None,
        device="cuda" if on_gpu else "cpu",
        device_index=x.device.index if on_gpu else -1,
    )
    plan = cached_plan(problem, options)

    x, weight = _channels_last(x), _channels_last(weight)
    out = _empty_output(x, plan.output_shape)
    if residual is not None:
        if residual.shape != out.shape:
            raise InvalidArgument(
                f"residual is {tuple(residual.shape)}, but the output is {tuple(out.shape)}"
            )
        residual = _channels_last(residual)
    if bias is not None:
        bias = bias.contiguous()
        bias = bias if bias.data_ptr() % 16 == 0 else bias.clone()
    workspace = None
    if on_gpu and plan.workspace_bytes > 0:
        workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=x.device)
    address = lambda tensor: None if tensor is None else tensor.data_ptr()
    plan.run(
        address(out), address(x), address(weight), bias=address(bias), residual=address(residual),
        workspace=address(workspace), beta=beta,
        stream=torch.cuda.current_stream(x.device).cuda_stream if on_gpu else None,
    )
    return out


def _empty_output(x, shape):
    """A channels-last tensor for the output; `shape` is the memory's, channels at the end."""
    logical = (shape[0], shape[-1], *shape[1:-1])
    memory_format = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    return torch.empty(logical, dtype=x.dtype, device=x.device, memory_format=memory_format)


def _output_shape(x, weight, stride, padding, dilation):
    """What a plan would say, with symbolic extents too."""
    shape = [x.shape[0]]
    for axis in range(x.dim() - 2):
        padded = x.shape[axis + 2] + padding[2 * axis] + padding[2 * axis + 1]
        span = dilation[axis] * (weight.shape[axis + 2] - 1) + 1
        shape.append((padded - span) // stride[axis] + 1)
    return (*shape, weight.shape[0])


def _define(name):
    """Register one operator with its fake kernel."""

    @torch.library.custom_op(f"convoy::{name}", mutates_args=())
    def operator(
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
    ) -> torch.Tensor:
        return _run(
            x, weight, bias, residual, stride, padding, dilation, groups, activation, beta
        )

    @operator.register_fake
    def _(x, weight, bias, residual, stride, padding, dilation, groups, activation, beta):
        return _empty_output(x, _output_shape(x, weight, stride, padding, dilation))

    return operator


_conv2d = _define("conv2d")
_conv3d = _define("conv3d")


def _call(operator, axes, x, weight, bias, stride, padding, dilation, groups, activation, residual,
          beta):
    begin, end = sides(padding, axes)
    interleaved = [side for pair in zip(begin, end) for side in pair]
    return operator(
        x, weight, bias, residual, list(numbers(stride, axes, "stride")), interleaved,
        list(numbers(dilation, axes, "dilation")), groups, activation, float(beta),
    )


def conv2d(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, *, activation="none",
           residual=None, beta=1.0):
    """activation(conv(x, weight) + bias) + beta·residual, in one kernel. padding: one integer,
    (height, width), or (top, bottom, left, right)."""
    return _call(_conv2d, 2, x, weight, bias, stride, padding, dilation, groups, activation,
                 residual, beta)


def conv3d(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, *, activation="none",
           residual=None, beta=1.0):
    """As conv2d, in three dimensions. padding: one integer, (depth, height, width), or (front, back,
    top, bottom, left, right)."""
    return _call(_conv3d, 3, x, weight, bias, stride, padding, dilation, groups, activation,
                 residual, beta)


def supports(x, weight, stride=1, padding=0, dilation=1, groups=1):
    """(True, "") where the operator can run these tensors, else (False, why not)."""
    axes = x.dim() - 2
    begin, end = sides(padding, axes)
    problem = _problem(
        x, weight, numbers(stride, axes, "stride"),
        [side for pair in zip(begin, end) for side in pair], numbers(dilation, axes, "dilation"),
        groups,
    )
    device = "cuda" if x.device.type == "cuda" else "cpu"
    return _plan.supports(problem, Options(dtype=_dtype_name(x, "x"), device=device))


def _forward(module, x):
    function = conv2d if module.weight.dim() == 4 else conv3d
    return function(
        x, module.weight, module.bias, module.stride, module.padding, module.dilation, module.groups
    )


def convert(module):
    """Let Convoy run every nn.Conv2d and nn.Conv3d inside `module` (itself included) that has
    numeric zero padding and a type it knows; the weights go to channels-last memory once. Returns
    the module. For inference: the operators have no gradient."""
    for part in module.modules():
        if not isinstance(part, (torch.nn.Conv2d, torch.nn.Conv3d)):
            continue
        if part.padding_mode != "zeros" or isinstance(part.padding, str):
            continue
        if part.weight.dtype not in _NAMES:
            continue
        part.weight.data = _channels_last(part.weight.data)
        part.forward = _forward.__get__(part)
    return module
