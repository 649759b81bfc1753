# SPDX-License-Identifier: Apache-2.0
"""How results of PyTorch's functions would lie in memory, where their operands are not contiguous.

A stand-in's numbers lie with channels innermost whatever the model asked for; `_apart` says how the
model's own tensor would, which programs ask by stride(), write to through views, and get back.
"""

import math

import torch

from ._deferred import Deferred
from ._layout import suggests_inner
from ._memory import Apart, has_inner, lies, lies_as, lies_inner, new_like

# Whose results lie in PyTorch as their first tensor of as many numbers does, but without its gaps.
_POINTWISE = {
    "abs", "add", "addcmul", "bfloat16", "clamp", "clone", "cos", "div", "divide", "double",
    "dropout", "elu", "exp", "flip", "float", "gelu", "half", "hardsigmoid", "hardswish",
    "hardtanh", "leaky_relu", "lerp", "log", "mish", "mul", "multiply", "neg", "normalize",
    "pow", "prelu", "reciprocal", "relu", "relu6", "rms_norm", "rsqrt", "rsub", "sigmoid",
    "silu", "sin", "softplus", "sqrt", "square", "sub", "subtract", "tanh", "to", "true_divide",
    "type", "type_as", "where", "__abs__", "__add__", "__mul__", "__neg__", "__pow__",
    "__radd__", "__rmul__", "__rpow__", "__rsub__", "__rtruediv__", "__sub__", "__truediv__",
}


# Whose results have channels innermost in PyTorch where their tensor has, and else are contiguous;
# the second on the CPU alone (tried with PyTorch 2.11 and 2.15).
_CONVOLUTIONS = {"conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d"}
_FORMATTED = {
    "adaptive_avg_pool2d", "adaptive_max_pool2d", "avg_pool2d", "batch_norm", "glu", "interpolate",
    "local_response_norm", "max_pool2d", "max_pool3d", "pad", "upsample",
}
_FORMATTED_ON_CPU = {
    "channel_shuffle", "group_norm", "pixel_shuffle", "pixel_unshuffle", "roll",
}
_JOINING = {"cat", "concat", "concatenate", "stack"}


def _lay_pointwise(made, name, args, kwargs):
    if kwargs and kwargs.get("memory_format", torch.preserve_format) is not torch.preserve_format:
        if kwargs["memory_format"] is not torch.contiguous_format:
            made._apart = lies_inner(made._node.shape)
        return
    if name[:3] == "__r":  # a + b, where b is a stand-in and a is none, is b.__radd__(a).
        args = args[::-1]
    for value in args:
        if type(value) is Deferred and value._apart is not None:
            break
    else:
        if not args or type(args[0]) is Deferred:
            return
    shape = made._node.shape
    for value in args:  # As the first that is not broadcast.
        if type(value) is Deferred:
            if value._node.shape == shape:
                apart = value._apart
                if apart is not None:
                    made._apart = apart if apart.is_whole else Apart(apart, shape, new_like)
                return
        elif isinstance(value, torch.Tensor) and value.shape == shape:
            made._apart = lies_as(new_like(value))
            return


def _lay_conv(made, name, args, kwargs):
    weight = args[1] if len(args) > 1 else kwargs["weight"]
    strides = weight.stride()
    source, shape = args[0] if args else kwargs["input"], made._node.shape
    if not ((strides[1] <= strides[-1] and suggests_inner(weight.shape, strides))
            or _has_inner(source)):
        return
    is_single = len(shape) < len(strides)  # An image without a batch.
    if name == "conv3d" and _is_slow(made, (1, *source.shape) if is_single else source.shape,
                                     weight):
        return
    made._apart = lies(shape, lies_inner(torch.Size((1, *shape))).strides[1:]) if is_single else (
        lies_inner(shape))


def _is_slow(made, shape, weight):
    """Whether PyTorch's own loop, which gives contiguous tensors, computes a conv3d on the CPU and
    not oneDNN (ATen, ConvParams::use_mkldnn; but for pointwise ones on one thread)."""
    return (made._node.device.type == "cpu" and made._node.dtype == torch.float32 and shape[0] == 1
            and math.prod(shape[:4]) <= 20480 and weight.shape[1] == shape[1]
            and not (weight.shape[-1] > 3 and weight.shape[-2] > 3))


def _lay_joined(made, name, args, kwargs):
    parts = args[0] if args else kwargs.get("tensors", ())
    for part in parts:
        if type(part) is Deferred and part._apart is None:
            return
    axis = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    rank = len(made._node.shape)
    if name == "stack" and not 2 <= axis % rank < rank - 1:
        return  # NOTE: of the first two axes a guess.
    if all(map(_has_inner, parts)):
        made._apart = lies_inner(made._node.shape)


def _lay_formatted(made, name, args, kwargs):
    if not args or type(args[0]) is not Deferred or not has_inner(args[0]):
        return
    mode = "constant"
    if name == "pad":
        mode = args[2] if len(args) > 2 else kwargs.get("mode", mode)
    on_cpu = name in _FORMATTED_ON_CPU or mode != "constant"
    if mode != "circular" and not (on_cpu and args[0]._node.device.type != "cpu"):
        made._apart = lies_inner(made._node.shape)


def _has_inner(value):
    if type(value) is Deferred:
        return has_inner(value)
    return value.dim() in (4, 5) and suggests_inner(value.shape, value.stride())


# lay(made, name, args, kwargs). Functions that are not here are taken to give contiguous tensors.
RULES = {
    **dict.fromkeys(_POINTWISE, _lay_pointwise), **dict.fromkeys(_JOINING, _lay_joined),
    **dict.fromkeys(_FORMATTED | _FORMATTED_ON_CPU, _lay_formatted),
    **dict.fromkeys(_CONVOLUTIONS, _lay_conv),
}
