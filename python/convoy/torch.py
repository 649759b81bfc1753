# SPDX-License-Identifier: Apache-2.0
"""Convoy's convolutions and norms as PyTorch operators and modules::

    import convoy.torch
    y = convoy.torch.conv2d(x, weight, bias, padding=1, activation="silu", residual=skip)
    y = convoy.torch.group_norm(x, 32, weight, bias, activation="silu")
    decoder = convoy.torch.convert(decoder)      # every module it can take over

The operators take tensors as PyTorch's own do, logically [N, C, (D,) H, W], and work in
channels-last memory format: inputs in that format are used as they are, others are copied into it,
and the output is channels-last. They run on the current stream of the tensor's device and have fake
kernels for torch.compile. Gradients are PyTorch's, of the same computation done anew by its own
operators (not with next_cache). In a CUDA graph: run once before the capture, since plans are made
and filters packed at the first call.

Under autocast the convolutions take its type, as PyTorch's do. Transforms of torch.func and
forward-mode differentiation get the same computation by PyTorch's operators, and so do gradients of
gradients.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from . import _calls, _operators, _plan
from ._native import InvalidArgument
from ._nodes import ACTIVATIONS, shuffle
from ._plan import Conv2d as _Conv2d
from ._plan import Conv3d as _Conv3d
from ._plan import GroupNorm as _GroupNorm
from ._plan import NormOptions, Options, cached_norm, cached_plan, integer, numbers, sides
from ._plan import RmsNorm as _RmsNorm

Integers = int | Sequence[int]  # One, or one for each axis.

_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
# Padding modes by PyTorch's names and Convoy's.
_PADDING_MODES = {"zeros": "zero", "zero": "zero", "replicate": "replicate", "reflect": "reflect"}


def _dtype_name(tensor, name):
    try:
        return _NAMES[tensor.dtype]
    except KeyError:
        raise InvalidArgument(
            f"{name} is {tensor.dtype}; legal: torch.bfloat16, torch.float16, torch.float32"
        ) from None


def _memory_format(axes):
    return torch.channels_last if axes == 4 else torch.channels_last_3d


def _channels_last(tensor):
    """The tensor in channels-last memory, 16-byte aligned; itself where it is so already."""
    memory_format = _memory_format(tensor.dim())
    tensor = tensor.contiguous(memory_format=memory_format)
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone(memory_format=memory_format)


def _vector(tensor):
    """A dense, aligned vector."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def _address(tensor):
    return None if tensor is None else tensor.data_ptr()


def _workspace(plan, x):
    if plan.workspace_bytes == 0 or x.device.type != "cuda":
        return None
    return torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=x.device)


def _stream(x):
    return torch.cuda.current_stream(x.device).cuda_stream if x.device.type == "cuda" else None


# ---- Operators -----------------------------------------------------------------------------------


def _no_gradients(ctx, *gradients):
    raise NotImplementedError(
        "convoy.torch.conv3d has no gradients with next_cache=True; legal: without it, or "
        "torch.no_grad()")


def _refuse_tangents(name, arguments):
    """NOTE: PyTorch's custom operators would leave the tangents out without a word."""
    for tensor in arguments:
        if isinstance(tensor, torch.Tensor) and forward_ad.unpack_dual(tensor).tangent is not None:
            raise NotImplementedError(
                f"torch.ops.convoy.{name} has no forward-mode derivatives; legal: backward(), or "
                "convoy.torch.conv2d, conv3d (without next_cache), group_norm and rms_norm")


def _is_transformed():
    """Whether it is to be PyTorch's operators that run."""
    return not torch.compiler.is_compiling() and _calls.is_transformed()


def _operator(name, in_python, fake, backward=_no_gradients, keep=None, always_python=False):
    """torch.ops.convoy.<name>: in C++ where that was built, else (or `always_python`)
    `in_python`."""
    if _operators.library is None or always_python:
        torch.library.custom_op(f"convoy::{name}", in_python, mutates_args=())
    torch.library.register_fake(f"convoy::{name}", fake)
    torch.library.register_autograd(f"convoy::{name}", backward, setup_context=keep)
    operator = getattr(torch.ops.convoy, name).default

    def call(*arguments):
        if torch.compiler.is_compiling():
            return operator(*arguments)
        if forward_ad._current_level >= 0:
            _refuse_tangents(name, arguments)
        try:
            return operator(*arguments)
        except RuntimeError as error:
            raise _operators.typed(error) from None

    return call


# ---- Convolutions --------------------------------------------------------------------------------


def _problem(x, weight, stride, padding, dilation, groups, upsample=1, cached=0, mode="zeros"):
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
    if mode not in _PADDING_MODES:
        raise InvalidArgument(
            f"padding_mode = {mode!r} is not legal; legal: {', '.join(_PADDING_MODES)}"
        )
    mode = _PADDING_MODES[mode]
    begin, end = tuple(padding[0::2]), tuple(padding[1::2])
    stride, dilation, taps = tuple(stride), tuple(dilation), tuple(weight.shape[2:])
    if x.dim() == 4:
        n, c, h, w = x.shape
        return _Conv2d(
            n, h, w, c, weight.shape[0], filter=taps, pad=(begin[0], end[0], begin[1], end[1]),
            stride=stride, dilation=dilation, groups=groups, upsample=upsample, pad_mode=mode,
        )
    n, c, d, h, w = x.shape
    return _Conv3d(
        n, d, h, w, c, weight.shape[0], filter=taps, pad_begin=begin, pad_end=end, stride=stride,
        dilation=dilation, groups=groups, cached_frames=cached, pad_mode=(mode,) * 3,
    )


# Plans by what a call looks like: much cheaper to ask than to describe the problem anew.
_plans: dict[tuple, _plan.Plan] = {}


def _plan_of(x, weight, bias, residual, stride, padding, dilation, groups, activation, upsample,
             packed, cache, folding, mode):
    # As F.conv2d: PyTorch's own setting says whether fp32 may be multiplied as TF32.
    tf32 = x.dtype is torch.float32 and torch.backends.cudnn.allow_tf32
    key = (
        x.shape, x.dtype, x.device, weight.shape, None if bias is None else bias.dtype,
        residual is None, tuple(stride), tuple(padding), tuple(dilation), groups, activation,
        upsample, packed, None if cache is None else cache.shape, folding, mode, tf32,
    )
    plan = _plans.get(key)
    if plan is not None:
        return plan
    problem = _problem(
        x, weight, stride, padding, dilation, groups, upsample,
        0 if cache is None else cache.shape[2], mode,
    )
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != weight.shape[0]):
        raise InvalidArgument(
            f"bias is {tuple(bias.shape)} on {bias.device}; "
            f"legal: ({weight.shape[0]},) on {x.device}"
        )
    on_gpu = x.device.type == "cuda"
    options = Options(
        dtype=_dtype_name(x, "x"),
        bias_dtype=None if bias is None else _dtype_name(bias, "bias"),
        activation=activation,
        residual=residual is not None,
        device="cuda" if on_gpu else "cpu",
        device_index=x.device.index if on_gpu else -1,
        packed_filter=packed,
        upsample_folding=folding,
        allow_tf32=tf32,
    )
    plan = cached_plan(problem, options)
    if len(_plans) >= 4096:
        _plans.clear()
    _plans[key] = plan
    return plan


def _run(x, weight, bias, residual, stride, padding, dilation, groups, activation, beta, upsample=1,
         packed=False, cache=None, next_cache=False, folding="exact",
         mode="zeros"):
    for name, tensor in (("weight", weight), ("residual", residual), ("cache", cache)):
        if tensor is not None and (tensor.dtype != x.dtype or tensor.device != x.device):
            raise InvalidArgument(
                f"{name} is {tensor.dtype} on {tensor.device}, but x is {x.dtype} on {x.device}"
            )
    if bias is not None and bias.device != x.device:
        raise InvalidArgument(
            f"bias is {tuple(bias.shape)} on {bias.device}; "
            f"legal: ({weight.shape[0]},) on {x.device}"
        )
    if cache is not None and (cache.dim() != 5 or cache.shape[:2] + cache.shape[3:]
                              != x.shape[:2] + x.shape[3:]):
        raise InvalidArgument(
            f"cache is {tuple(cache.shape)}, but x is {tuple(x.shape)}; legal: the shape of x but "
            "for the frames (axis 2)"
        )
    packed = packed or upsample != 1  # Folded filters exist in packed form only.
    plan = _plan_of(x, weight, bias, residual, stride, padding, dilation, groups, activation,
                    upsample, packed, cache, folding, mode)
    stream = _stream(x)
    x = _channels_last(x)
    out = _empty(x, plan.output_shape)
    if residual is not None:
        if residual.shape != out.shape:
            raise InvalidArgument(
                f"residual is {tuple(residual.shape)}, but the output is {tuple(out.shape)}"
            )
        residual = _channels_last(residual)
    if bias is not None:
        bias = _vector(bias)
    if cache is not None:
        cache = _channels_last(cache)
    following = _empty(x, plan.next_cache_shape) if next_cache else None
    if packed:
        weights = _calls.packed_filter(plan, weight, x.device)
    else:
        weight = _channels_last(weight)
        weights = weight.data_ptr()
    workspace = _workspace(plan, x)
    plan.run(
        _address(out), _address(x), weights, bias=_address(bias), residual=_address(residual),
        cache=_address(cache) if cache is not None and cache.numel() > 0 else None,
        next_cache=_address(following), workspace=_address(workspace), beta=beta, stream=stream,
    )
    return (out, following) if next_cache else out


def _empty(x, shape):
    """A channels-last tensor like x; `shape` is the memory's, channels at the end."""
    logical = (shape[0], shape[-1], *shape[1:-1])
    return torch.empty(
        logical, dtype=x.dtype, device=x.device, memory_format=_memory_format(len(shape))
    )


def _output_shape(x, weight, stride, padding, dilation, upsample=1, cache=None):
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
    return _empty(x, _output_shape(x, weight, stride, padding, dilation, upsample))


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
    return _empty(x, _output_shape(x, weight, stride, padding, dilation, cache=cache))


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
    out = _empty(x, _output_shape(x, weight, stride, padding, dilation, cache=cache))
    frames = (weight.shape[2] - 1) * dilation[0]
    return out, _empty(x, (x.shape[0], frames, *x.shape[3:], x.shape[1]))


# ---- Gradients of convolutions -------------------------------------------------------------------

# What PyTorch computes, with the defaults of Convoy's parameters.
_PARAMETERS = {"leaky_relu": (0.01, 0.0), "clamp": (0.0, 6.0)}


def _by_pytorch(x, weight, bias, residual, cache, stride, padding, dilation, groups, activation,
                beta, upsample, mode):
    """The same convolution by PyTorch's own operators."""
    if cache is not None:
        x = torch.cat((cache, x), 2)
    if upsample > 1:
        x = F.interpolate(x, scale_factor=float(upsample), mode="nearest")
    sides_ = [side for axis in reversed(range(len(stride)))
              for side in padding[2 * axis : 2 * axis + 2]]
    x = F.pad(x, sides_, "constant" if mode in ("zero", "zeros") else mode)
    function = F.conv2d if x.dim() == 4 else F.conv3d
    bias = None if bias is None else bias.to(x.dtype)
    y = function(x, weight, bias, stride, 0, dilation, groups)
    y = _activated(y, activation)
    return y if residual is None else y + beta * residual


def _activated(y, activation):
    if activation == "none":
        return y
    return ACTIVATIONS[activation](y, *_PARAMETERS.get(activation, (0.0, 0.0)))


def _gradients(function, tensors, wanted, gradient):
    """Of function(*tensors), computed anew, where `wanted`; None for the others. They have
    gradients themselves where those are recorded (create_graph=True)."""
    recorded = torch.is_grad_enabled()
    with torch.enable_grad(), torch.autocast(gradient.device.type, enabled=False):
        inputs = [t if t is None else t.view_as(t) if recorded else t.detach().requires_grad_(want)
                  for t, want in zip(tensors, wanted)]
        sought = [t for t, want in zip(inputs, wanted) if t is not None and want]
        found = torch.autograd.grad(function(*inputs), sought, gradient, create_graph=recorded)
    remaining = iter(found)
    return [next(remaining) if want else None for want in wanted]


def _keep_conv(ctx, inputs, output):
    x, weight, bias, residual, *rest = inputs
    if x.dim() == 4:
        stride, padding, dilation, groups, activation, beta, upsample, _, _, mode = rest
        cache = None
    else:
        stride, padding, dilation, groups, activation, beta, cache, _, mode = rest
        upsample = 1
    ctx.save_for_backward(x, weight, bias, residual, cache)
    ctx.options = stride, padding, dilation, groups, activation, beta, upsample, mode
    ctx.axes = x.dim() - 2


def _conv_backward(ctx, gradient):
    tensors = ctx.saved_tensors
    needs = list(ctx.needs_input_grad[:4])
    needs.append(ctx.axes == 3 and tensors[4] is not None and ctx.needs_input_grad[10])
    wanted = [need and t is not None for need, t in zip(needs, tensors)]
    *found, cache = _gradients(lambda *inputs: _by_pytorch(*inputs, *ctx.options), tensors, wanted,
                               gradient)
    # In the order of the operator's arguments.
    if ctx.axes == 2:
        return (*found, *(None,) * 10)
    return (*found, *(None,) * 6, cache, None, None)


# ---- Shuffled outputs ----------------------------------------------------------------------------


def _shuffled_node(weight, bias, stride, padding, dilation, groups, activation, mode, factors,
                   order, dropped, repeated):
    if mode not in _PADDING_MODES:
        raise InvalidArgument(
            f"padding_mode = {mode!r} is not legal; legal: {', '.join(_PADDING_MODES)}"
        )
    node: Any = _Quick(weight, bias)
    node.begin, node.end = tuple(padding[0::2]), tuple(padding[1::2])
    node.stride, node.dilation, node.groups = tuple(stride), tuple(dilation), groups
    node.modes, node.upsample = (_PADDING_MODES[mode],) * len(stride), 1
    node.residual_first = False
    node.activation = None if activation == "none" else (activation, None, None)
    node.shuffle = (1,) * (3 - len(factors)) + tuple(factors), order, dropped
    node.repeats = repeated
    return node


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
    node = _shuffled_node(weight, bias, stride, padding, dilation, groups, activation, padding_mode,
                          factors, order, dropped, repeated)
    for name, tensor in (("weight", weight), ("residual", residual), ("cache", cache)):
        if tensor is not None and (tensor.dtype != x.dtype or tensor.device != x.device):
            raise InvalidArgument(
                f"{name} is {tensor.dtype} on {tensor.device}, but x is {x.dtype} on {x.device}"
            )
    _problem(x, weight, stride, padding, dilation, groups)  # For its checks.
    if bias is not None and (tuple(bias.shape) != (weight.shape[0],) or bias.device != x.device):
        raise InvalidArgument(
            f"bias is {tuple(bias.shape)} on {bias.device}; "
            f"legal: ({weight.shape[0]},) on {x.device}"
        )
    call = _calls.ConvCall(node, x, cache, residual, _channels_last, packed, beta)
    memory = call.plan.residual_shape
    legal = (memory[0], memory[-1], *memory[1:-1])
    if residual is not None and tuple(residual.shape) != legal:
        raise InvalidArgument(f"residual is {tuple(residual.shape)}; legal: {legal}")
    return call(node, x, cache, residual)


def _shuffled_conv_fake(x, weight, bias, residual, stride, padding, dilation, groups, activation,
                        beta, cache, packed, padding_mode, factors, order, dropped, repeated):
    n, *extents, filters = _output_shape(x, weight, stride, padding, dilation, cache=cache)
    extents = [extent * factor for extent, factor in zip(extents, factors)]
    return _empty(x, (n, extents[0] - dropped, *extents[1:], filters // math.prod(factors)))


def _shuffled_by_pytorch(x, weight, bias, residual, cache, stride, padding, dilation, groups,
                         activation, beta, mode, how, repeated):
    y = _by_pytorch(x, weight, bias, None, cache, stride, padding, dilation, groups, activation,
                    beta, 1, mode)
    y = shuffle(y, how)
    if residual is None:
        return y
    if repeated:
        residual = shuffle(residual.repeat_interleave(weight.shape[0] // residual.shape[1], 1), how)
    return y + beta * residual


def _keep_shuffled(ctx, inputs, output):
    (x, weight, bias, residual, stride, padding, dilation, groups, activation, beta, cache, _, mode,
     factors, order, dropped, repeated) = inputs
    ctx.save_for_backward(x, weight, bias, residual, cache)
    how = (1,) * (3 - len(factors)) + tuple(factors), order, dropped
    ctx.options = stride, padding, dilation, groups, activation, beta, mode, how, repeated


def _shuffled_backward(ctx, gradient):
    tensors = ctx.saved_tensors
    needs = [*ctx.needs_input_grad[:4], ctx.needs_input_grad[10]]
    wanted = [need and t is not None for need, t in zip(needs, tensors)]
    *found, cache = _gradients(lambda *inputs: _shuffled_by_pytorch(*inputs, *ctx.options), tensors,
                               wanted, gradient)
    return (*found, *(None,) * 6, cache, *(None,) * 6)


_shuffled_operator = _operator("shuffled_conv", _shuffled_conv_in_python, _shuffled_conv_fake,
                               _shuffled_backward, _keep_shuffled, always_python=True)


def _shuffled_conv(x, weight, bias, residual, stride, padding, dilation, groups, activation, beta,
                   cache, packed, mode, factors, order, dropped, repeated):
    if _is_transformed():
        how = (1,) * (3 - len(factors)) + tuple(factors), order, dropped
        return _shuffled_by_pytorch(x, weight, bias, residual, cache, stride, padding, dilation,
                                    groups, activation, beta, mode, how, repeated)
    return _shuffled_operator(x, weight, bias, residual, stride, padding, dilation, groups,
                              activation, beta, cache, packed, mode, factors, order, dropped,
                              repeated)


_conv2d = _operator("conv2d", _conv2d_in_python, _conv2d_fake, _conv_backward, _keep_conv)
_conv3d = _operator("conv3d", _conv3d_in_python, _conv3d_fake, _conv_backward, _keep_conv)
_conv3d_next_cache = _operator("conv3d_next_cache", _conv3d_next_cache_in_python,
                               _conv3d_next_cache_fake)


def _interleaved(padding, axes, *filter):
    begin, end = sides(padding, axes, *filter)
    return [side for pair in zip(begin, end) for side in pair]


def _axes(x, weight, stride, padding, dilation, axes):
    """stride, padding (before and after each axis in turn) and dilation, as lists of integers."""
    if x.dim() != axes + 2 or weight.dim() != axes + 2:
        raise InvalidArgument(
            f"x has {x.dim()} axes and weight {weight.dim()}; legal: {axes + 2} each (conv{axes}d)"
        )
    stride, dilation = numbers(stride, axes, "stride"), numbers(dilation, axes, "dilation")
    padding = _interleaved(padding, axes, tuple(weight.shape[2:]), stride, dilation)
    return list(stride), padding, list(dilation)


class _Quick:
    """A convolution call that was checked once: what ConvCall asks of a node."""

    __slots__ = ("activation", "begin", "bias", "dilation", "end", "groups", "modes", "repeats",
                 "residual_first", "shuffle", "stride", "upsample", "weight")

    def __init__(self, weight, bias):
        self.weight, self.bias, self.shuffle = weight, bias, None


# Calls by all that they depend on: much cheaper to ask than to go through the operator.
_quick: dict[tuple, _calls.ConvCall] = {}


def _runs_at_once(*tensors):
    """Plain tensors, with nobody between who records, traces or differentiates."""
    if torch.compiler.is_compiling():  # First: the compiler knows no more than this.
        return False
    if torch._C._len_torch_dispatch_stack() or _calls.is_transformed():
        return False
    modes = torch._C._len_torch_function_stack()
    if modes and any(type(torch._C._get_function_stack_at(i)) is not DeviceContext
                     for i in range(modes)):  # A default device says only where tensors are made.
        return False
    grad = torch.is_grad_enabled()
    return all(tensor is None or (type(tensor) in (torch.Tensor, torch.nn.Parameter)
                                  and not (grad and tensor.requires_grad)) for tensor in tensors)


def _has_memory(x):
    return x.device.type in ("cpu", "cuda")


def _autocast(x, weight, residual, cache, packed, upsample=1):
    """As F.conv2d: where autocast is on, in its type."""
    kind = x.device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return x, weight, residual, cache, packed
    dtype = torch.get_autocast_dtype(kind)
    if weight.dtype in _NAMES and weight.dtype != dtype:
        if torch.compiler.is_compiling() or _calls.is_transformed() or (
                type(weight) is not torch.nn.Parameter
                or (torch.is_grad_enabled() and weight.requires_grad)):
            weight, packed = weight.to(dtype), packed and upsample > 1
        else:
            weight = _calls.cast_weight(weight, dtype)
    x, residual, cache = (t.to(dtype) if t is not None and t.dtype in _NAMES else t
                          for t in (x, residual, cache))
    return x, weight, residual, cache, packed


def _described(tensor):
    return None if tensor is None else (tensor.shape, tensor.dtype, tensor.device)


def _convolve(axes, operator, x, weight, bias, stride, padding, dilation, groups, activation,
              residual, beta, cache, upsample, folding, packed, mode):
    """By a call that is known, else by the operator, whose checks it passes first."""
    at_once = _runs_at_once(x, weight, bias, residual, cache)
    key = None
    if at_once:
        key = (axes, x.shape, x.dtype, x.device, weight.shape, weight.dtype, weight.device,
               _described(bias), _described(residual), _described(cache), stride, padding, dilation,
               groups, activation, beta, upsample, folding, packed, mode,
               _calls.allows_tf32(x))
        try:
            call = _quick.get(key)
        except TypeError:  # A list among them.
            call, key = None, None
        if call is not None:
            return call(_Quick(weight, bias), x, cache, residual)
    strides, sides_, dilations = _axes(x, weight, stride, padding, dilation, axes)
    groups, upsample, beta = integer(groups, "groups"), integer(upsample, "upsample"), float(beta)
    if _is_transformed():
        return _by_pytorch(x, weight, bias, residual, cache, strides, sides_, dilations, groups,
                           activation, beta, upsample, mode)
    arguments = (x, weight, bias, residual, strides, sides_, dilations, groups, activation, beta)
    if axes == 2:
        y = operator(*arguments, upsample, packed, folding, mode)
    else:
        y = operator(*arguments, cache, packed, mode)
    if key is not None and _has_memory(x) and (cache is None or cache.numel() > 0):
        quick: Any = _Quick(weight, bias)
        quick.begin, quick.end = tuple(sides_[0::2]), tuple(sides_[1::2])
        quick.stride, quick.dilation, quick.groups = tuple(strides), tuple(dilations), groups
        quick.modes, quick.upsample = (_PADDING_MODES[mode],) * axes, upsample
        quick.residual_first = False
        quick.activation = None if activation == "none" else (activation, None, None)
        if len(_quick) >= 4096:
            _quick.clear()
        call = _calls.ConvCall(quick, x, cache, residual, _channels_last, packed, beta,
                               upsample_folding=folding)
        if call.packed:  # NOTE: the next call may be under capture, where nothing is allocated.
            _calls.packed_filter(call.plan, weight, x.device)
        _quick[key] = call
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
        strides, sides_, dilations = _axes(x, weight, stride, padding, dilation, 2)
        return _shuffled_conv(
            x, weight, bias, residual, strides, sides_, dilations, integer(groups, "groups"),
            activation, float(beta), None, packed, padding_mode, list(factors), shuffle_order, 0,
            repeat_residual)
    return _convolve(2, _conv2d, x, weight, bias, stride, padding, dilation, groups, activation,
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
        strides, sides_, dilations = _axes(x, weight, stride, padding, dilation, 3)
        return _shuffled_conv(
            x, weight, bias, residual, strides, sides_, dilations, integer(groups, "groups"),
            activation, float(beta), cache, packed, padding_mode, list(factors), shuffle_order,
            integer(dropped_frames, "dropped_frames"), repeat_residual)
    if not next_cache:
        return _convolve(3, _conv3d, x, weight, bias, stride, padding, dilation, groups, activation,
                         residual, beta, cache, 1, "exact", packed, padding_mode)
    stride, padding, dilation = _axes(x, weight, stride, padding, dilation, 3)
    return _conv3d_next_cache(
        x, weight, bias, residual, stride, padding, dilation, integer(groups, "groups"), activation,
        float(beta), cache, packed, padding_mode,
    )


def supports(x: torch.Tensor, weight: torch.Tensor, stride: Integers = 1,
             padding: Integers | str = 0, dilation: Integers = 1, groups: int = 1,
             padding_mode: str = "zeros") -> tuple[bool, str]:
    """(True, "") where the operator can run these tensors, else (False, why not)."""
    stride, padding, dilation = _axes(x, weight, stride, padding, dilation, x.dim() - 2)
    problem = _problem(x, weight, stride, padding, dilation, integer(groups, "groups"),
                       mode=padding_mode)
    device = "cuda" if x.device.type == "cuda" else "cpu"
    return _plan.supports(problem, Options(dtype=_dtype_name(x, "x"), device=device))


def clear_cache() -> None:
    """Forget the plans and packed weights that the operators keep. On the GPU, what was enqueued
    before must be done."""
    _plans.clear()
    _quick.clear()
    _quick_norms.clear()
    _calls.clear()
    _plan.clear_cache()


# ---- Norms ---------------------------------------------------------------------------------------


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
    on_gpu = x.device.type == "cuda"
    plan = cached_norm(problem, NormOptions(
        dtype=_dtype_name(x, "x"),
        scale=weight is not None,
        bias=bias is not None,
        parameter_dtype="fp32" if given is None else _dtype_name(given, "weight or bias"),
        activation=activation,
        device="cuda" if on_gpu else "cpu",
        device_index=x.device.index if on_gpu else -1,
    ))
    x = _channels_last(x)
    out = torch.empty_like(x)
    weight = None if weight is None else _vector(weight)
    bias = None if bias is None else _vector(bias)
    workspace = _workspace(plan, x)
    plan.run(_address(out), _address(x), scale=_address(weight), bias=_address(bias),
             workspace=_address(workspace), stream=_stream(x))
    return out


def _require_axes(x):
    if x.dim() not in (4, 5):
        raise InvalidArgument(f"x has {x.dim()} axes; legal: 4 [N, C, H, W] or 5 [N, C, D, H, W]")


def _empty_channels_last(x):
    return torch.empty_like(x, memory_format=_memory_format(x.dim()))


def _group_norm_in_python(x: torch.Tensor, groups: int, weight: torch.Tensor | None,
                          bias: torch.Tensor | None, eps: float, activation: str) -> torch.Tensor:
    _require_axes(x)
    pixels = x[0, 0].numel() if x.shape[0] > 0 else 0
    problem = _GroupNorm(x.shape[0], pixels, x.shape[1], groups, eps)
    return _run_norm(problem, x, weight, bias, activation)


def _group_norm_fake(x, groups, weight, bias, eps, activation):
    return _empty_channels_last(x)


def _rms_norm_in_python(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None,
                        eps: float, rule: str, activation: str) -> torch.Tensor:
    _require_axes(x)
    problem = _RmsNorm(x.numel() // x.shape[1], x.shape[1], eps, rule)
    return _run_norm(problem, x, weight, bias, activation)


def _rms_norm_fake(x, weight, bias, eps, rule, activation):
    return _empty_channels_last(x)


def _keep_group_norm(ctx, inputs, output):
    x, ctx.groups, weight, bias, ctx.epsilon, ctx.activation = inputs
    ctx.save_for_backward(x, weight, bias)


def _group_norm_by_pytorch(x, weight, bias, groups, epsilon, activation):
    weight, bias = (None if t is None else t.to(x.dtype) for t in (weight, bias))
    return _activated(F.group_norm(x, groups, weight, bias, epsilon), activation)


def _group_norm_backward(ctx, gradient):
    def norm(x, weight, bias):
        return _group_norm_by_pytorch(x, weight, bias, ctx.groups, ctx.epsilon, ctx.activation)

    tensors = ctx.saved_tensors  # NOTE: once: torch.utils.checkpoint lets nobody ask again.
    needs = (ctx.needs_input_grad[i] and t is not None for i, t in zip((0, 2, 3), tensors))
    x, weight, bias = _gradients(norm, tensors, list(needs), gradient)
    return x, None, weight, bias, None, None


def _keep_rms_norm(ctx, inputs, output):
    x, weight, bias, ctx.epsilon, ctx.rule, ctx.activation = inputs
    ctx.save_for_backward(x, weight, bias)


def _rms_norm_by_pytorch(x, weight, bias, epsilon, rule, activation):
    wide = x.float()
    if rule == "added":
        y = wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + epsilon)
    else:
        y = F.normalize(wide, dim=1, eps=epsilon) * math.sqrt(x.shape[1])
    axes = (1, -1, *(1,) * (x.dim() - 2))
    y = y if weight is None else y * weight.reshape(axes)
    y = y if bias is None else y + bias.reshape(axes)
    return _activated(y, activation).to(x.dtype)


def _rms_norm_backward(ctx, gradient):
    def norm(x, weight, bias):
        return _rms_norm_by_pytorch(x, weight, bias, ctx.epsilon, ctx.rule, ctx.activation)

    tensors = ctx.saved_tensors
    needs = (ctx.needs_input_grad[i] and t is not None for i, t in enumerate(tensors))
    x, weight, bias = _gradients(norm, tensors, list(needs), gradient)
    return x, weight, bias, None, None, None


_group_norm = _operator("group_norm", _group_norm_in_python, _group_norm_fake,
                        _group_norm_backward, _keep_group_norm)
_rms_norm = _operator("rms_norm", _rms_norm_in_python, _rms_norm_fake, _rms_norm_backward,
                      _keep_rms_norm)


class _QuickNorm:
    """What NormCall asks of a node."""

    def __init__(self, rule, groups, epsilon, activation):
        self.rule, self.groups, self.epsilon = rule, groups, epsilon
        self.activation = None if activation == "none" else (activation, None, None)


def _normalise(operator, x, weight, bias, epsilon, activation, rule, groups=None):
    """By a call that is known, else by the operator, whose checks it passes first."""
    key = None
    if _runs_at_once(x, weight, bias):
        key = (rule, groups, x.shape, x.dtype, x.device, _described(weight), _described(bias),
               epsilon, activation)
        call = _quick_norms.get(key)
        if call is not None:
            return call(x, weight, bias)
    if _is_transformed():
        _require_axes(x)
        if groups is not None:
            return _group_norm_by_pytorch(x, weight, bias, groups, epsilon, activation)
        return _rms_norm_by_pytorch(x, weight, bias, epsilon, rule, activation)
    if groups is not None:
        y = operator(x, groups, weight, bias, epsilon, activation)
    else:
        y = operator(x, weight, bias, epsilon, rule, activation)
    if key is not None and x.numel() > 0 and _has_memory(x):
        if len(_quick_norms) >= 4096:
            _quick_norms.clear()
        node = _QuickNorm(rule, groups, epsilon, activation)
        _quick_norms[key] = _calls.NormCall(node, x, weight, bias, _channels_last)
    return y


_quick_norms: dict[tuple, _calls.NormCall] = {}


def group_norm(x: torch.Tensor, groups: int, weight: torch.Tensor | None = None,
               bias: torch.Tensor | None = None, eps: float = 1e-5, *,
               activation: str = "none") -> torch.Tensor:
    """activation(group_norm(x)) of x [N, C, (D,) H, W] in channels-last memory, in one pass for the
    statistics and one for the rest; fp32 statistics."""
    groups = integer(groups, "groups")
    return _normalise(_group_norm, x, weight, bias, float(eps), activation, "group", groups)


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None = None,
             bias: torch.Tensor | None = None, eps: float = 1e-6, *, rule: str = "added",
             activation: str = "none") -> torch.Tensor:
    """activation(x / rms(x)·weight + bias) over the channels of each pixel of x [N, C, (D,) H, W].
    rule: "added", rms = sqrt(mean(x²) + eps); "norm_floor", F.normalize(x, dim=1,
    eps=eps)·sqrt(C)."""
    return _normalise(_rms_norm, x, weight, bias, float(eps), activation, rule)


# ---- Modules -------------------------------------------------------------------------------------


class Conv2d(torch.nn.Conv2d):
    """nn.Conv2d with a packed filter, a fused activation and residual, and folded upsampling.
    padding: as conv2d's."""

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1,
                 groups=1, bias=True, *, activation="none", upsample=1,
                 upsample_folding="exact", padding_mode="zeros", device=None, dtype=None):
        super().__init__(in_channels, out_channels, kernel_size, stride=stride, dilation=dilation,
                         groups=groups, bias=bias, device=device, dtype=dtype)
        self.padding, self.padding_mode, self.activation = padding, padding_mode, activation
        self.upsample, self.upsample_folding = upsample, upsample_folding

    def forward(self, x, residual=None):
        return conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation,
                      self.groups, activation=self.activation, residual=residual,
                      upsample=self.upsample, upsample_folding=self.upsample_folding,
                      packed=True, padding_mode=self.padding_mode)


class Conv3d(torch.nn.Conv3d):
    """nn.Conv3d with a packed filter, a fused activation and residual, and a causal cache.
    padding: one integer, (depth, height, width), or two for each axis; with causal=True that of the
    depth is (T - 1)·dilation frames in front, less those of the cache."""

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1,
                 groups=1, bias=True, *, causal=False, activation="none", padding_mode="zeros",
                 device=None, dtype=None):
        super().__init__(in_channels, out_channels, kernel_size, stride=stride, dilation=dilation,
                         groups=groups, bias=bias, device=device, dtype=dtype)
        self.padding, self.padding_mode = padding, padding_mode
        self.causal, self.activation = causal, activation

    def forward(self, x, residual=None, cache=None, next_cache=False):
        padding = _interleaved(self.padding, 3, self.kernel_size, self.stride, self.dilation)
        if self.causal:
            frames = (self.kernel_size[0] - 1) * self.dilation[0]
            padding[:2] = max(frames - (0 if cache is None else cache.shape[2]), 0), 0
        return conv3d(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups,
                      activation=self.activation, residual=residual, cache=cache,
                      next_cache=next_cache, packed=True, padding_mode=self.padding_mode)


class GroupNorm(torch.nn.GroupNorm):
    """nn.GroupNorm with a fused activation."""

    def __init__(self, num_groups, num_channels, eps=1e-5, affine=True, *, activation="none",
                 device=None, dtype=None):
        super().__init__(num_groups, num_channels, eps, affine, device=device, dtype=dtype)
        self.activation = activation

    def forward(self, x):
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps,
                          activation=self.activation)


class RMSNorm(torch.nn.Module):
    """RMS norm over the channels (axis 1), with a fused activation."""

    def __init__(self, channels, eps=1e-6, *, rule="added", bias=False, activation="none",
                 device=None, dtype=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(channels, device=device, dtype=dtype))
        self.bias = None
        if bias:
            self.bias = torch.nn.Parameter(torch.zeros(channels, device=device, dtype=dtype))
        self.eps, self.rule, self.activation = eps, rule, activation

    def forward(self, x):
        return rms_norm(x, self.weight, self.bias, self.eps, rule=self.rule,
                        activation=self.activation)


# Whether Convoy has what a call of a converted module needs. After `.double()`, on other devices,
# or for pictures without a batch it is PyTorch's own.
def _takes(module, x):
    return (x.dtype in _NAMES and _has_memory(x)
            and (module.weight is None or module.weight.dtype in _NAMES))


def _takes_norm(module, x):
    return x.dim() in (4, 5) and _takes(module, x)


def _forward(module, x):
    if x.dim() != module.weight.dim() or not _takes(module, x):
        return type(module).forward(module, x)
    function = conv2d if module.weight.dim() == 4 else conv3d
    return function(
        x, module.weight, module.bias, module.stride, module.padding, module.dilation,
        module.groups, packed=True, padding_mode=module.padding_mode,
    )


def _forward_norm(module, x):
    if not _takes_norm(module, x):
        return type(module).forward(module, x)
    return group_norm(x, module.num_groups, module.weight, module.bias, module.eps)


class _FusedNorm(GroupNorm):
    """A GroupNorm of a converted model, with the SiLU behind it."""

    def forward(self, x):
        # NOTE: torch.fx comes here with what is no tensor.
        if isinstance(x, torch.Tensor) and not _takes_norm(self, x):
            return F.silu(torch.nn.GroupNorm.forward(self, x))
        return super().forward(x)


def _fused_norm(norm):
    """A GroupNorm with SiLU on the parameters of `norm`."""
    fused = _FusedNorm(norm.num_groups, norm.num_channels, norm.eps, False, activation="silu")
    fused.affine, fused.weight, fused.bias = norm.affine, norm.weight, norm.bias
    return fused.train(norm.training)


def _has_hooks(module):
    return any(value for name, value in vars(module).items() if name.endswith("_hooks"))


def convert(module: torch.nn.Module) -> torch.nn.Module:
    """Let Convoy run what it can inside `module` (itself included): every nn.Conv2d and nn.Conv3d
    with a type it knows (and no circular padding), and every nn.GroupNorm. In an nn.Sequential a
    GroupNorm and the SiLU right behind it become one, where neither has hooks: the norm's output
    is that of both then. Outputs are channels-last, so that `y.view(n, -1)` must be `y.reshape`.
    Returns the module, whose parameters keep their names. `convoy.accelerate` does more, keeps the
    modules as they are, and can be undone."""
    for part in list(module.modules()):
        if isinstance(part, torch.nn.Sequential) and (
                type(part).forward is torch.nn.Sequential.forward):
            for i in range(len(part) - 1):
                if (type(part[i]) is torch.nn.GroupNorm and type(part[i + 1]) is torch.nn.SiLU
                        and not _has_hooks(part[i]) and not _has_hooks(part[i + 1])):
                    part[i] = _fused_norm(part[i])
                    part[i + 1] = torch.nn.Identity()
    # NOTE: partial, since a bound method that its class does not have cannot be unpickled.
    for part in module.modules():
        if type(part) is torch.nn.GroupNorm:
            part.forward = functools.partial(_forward_norm, part)
        if type(part) not in (torch.nn.Conv2d, torch.nn.Conv3d):
            continue
        if part.padding_mode not in _PADDING_MODES:  # circular
            continue
        if part.weight.dtype not in _NAMES:
            continue
        part.forward = functools.partial(_forward, part)
    return module
