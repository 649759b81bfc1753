# SPDX-License-Identifier: Apache-2.0
"""How results of PyTorch's functions would lie in memory, where their operands are not contiguous.

A stand-in's numbers lie with channels innermost whatever the model asked for; `_apart` says how the
model's own tensor would, which programs ask by stride(), write to through views, and get back.
"""

import functools
import math

import torch

from ._deferred import Deferred
from ._layout import is_inner, suggests_inner
from ._memory import (
    Apart,
    has_inner,
    is_dense,
    laid_out,
    lie_alike,
    lies,
    lies_as,
    lies_inner,
    new_like,
    own_form,
    strides_along,
)

# What PyTorch computes number by number.
_POINTWISE = {
    "abs", "add", "addcmul", "bfloat16", "clamp", "clone", "cos", "div", "divide", "double",
    "dropout", "elu", "exp", "flip", "float", "gelu", "half", "hardsigmoid", "hardswish",
    "hardtanh", "leaky_relu", "lerp", "log", "mish", "mul", "multiply", "neg", "normalize",
    "pow", "prelu", "reciprocal", "relu", "relu6", "rms_norm", "rsqrt", "rsub", "sigmoid",
    "silu", "sin", "softplus", "sqrt", "square", "sub", "subtract", "tanh", "to", "true_divide",
    "type", "type_as", "where", "__abs__", "__add__", "__mul__", "__neg__", "__pow__",
    "__radd__", "__rmul__", "__rpow__", "__rsub__", "__rtruediv__", "__sub__", "__truediv__",
}
# Of these, those that copy in the order of their tensor, if that is dense; those that make a tensor
# of a number; and those whose other tensors are repeated.
_COPIES = {"bfloat16", "clone", "double", "dropout", "flip", "float", "half", "to", "type",
           "type_as"}
_WRAPS = {"add", "div", "divide", "mul", "multiply", "rsub", "sub", "subtract", "true_divide",
          "where", "__add__", "__mul__", "__radd__", "__rmul__", "__rpow__", "__rsub__",
          "__rtruediv__", "__sub__", "__truediv__"}
_BY_ROWS = {"normalize", "prelu", "rms_norm"}


# Whose results have channels innermost in PyTorch where their tensor has, and else are contiguous;
# the second on the CPU alone (tried with PyTorch 2.11 and 2.15).
_CONVOLUTIONS = {"conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d"}
_FORMATTED = {
    "adaptive_avg_pool2d", "adaptive_max_pool2d", "avg_pool2d", "batch_norm", "interpolate",
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
    if name in _COPIES:  # As the first that is not broadcast.
        for value in args:
            if isinstance(value, torch.Tensor) and value.shape == shape:
                if type(value) is not Deferred:
                    made._apart = lies_as(new_like(value))
                elif value._apart is not None:
                    made._apart = (value._apart if value._apart.is_whole
                                   else Apart(value._apart, shape, new_like))
                return
        return
    operands: list[tuple] = []
    is_known = True
    for value in args:
        if type(value) is Deferred:
            apart, own = value._apart, value._node.shape
            if not operands and own == shape and (
                    1 not in shape[1:] if apart is None else apart.is_whole and 1 not in shape):
                made._apart = apart  # NOTE: no others are asked where the first one's is clear.
                return
            is_known = is_known and (apart is None or apart.strides is not None)
            operands.append((own, apart))
        elif isinstance(value, torch.Tensor):
            if value.layout is not torch.strided:
                return
            operands.append((value.shape, value.stride()))
    if name in _BY_ROWS:
        operands[1:] = [_NUMBER]
    elif name in _WRAPS and len(operands) < len(args):
        operands.append(_NUMBER)
    if is_known:
        _lay_iterated(made, tuple(map(_strides_of, operands)))
    else:
        made._apart = Apart(None, shape, lambda contiguous: _as_iterated(contiguous, operands))


_NUMBER = torch.Size(()), None  # Which PyTorch makes a tensor of.


def _strides_of(operand):
    """(shape, strides) of that, or of the (shape, Apart) of a stand-in."""
    shape, apart = operand
    if type(apart) is tuple:
        return operand
    if apart is None:
        return shape, _contiguous(shape)
    if apart.strides is None:
        laid_out(apart)
    return shape, apart.strides


def _lay_iterated(made, operands):
    shape = made._node.shape
    strides = iterated(shape, operands)
    if strides is not None:
        made._apart = lies(shape, strides)


def _as_iterated(contiguous, operands):
    strides = iterated(contiguous.shape, tuple(map(_strides_of, operands)))
    return contiguous if strides is None else torch.empty_strided(
        contiguous.shape, strides, device="meta")


@functools.lru_cache(4096)
def _contiguous(shape):
    return strides_along(shape, range(len(shape) - 1, -1, -1))


@functools.lru_cache(4096)
def iterated(shape, operands):
    """The strides of what PyTorch computes number by number of operands, each (shape, strides);
    None where it is contiguous (ATen, TensorIteratorBase::fast_set_up, reorder_dimensions)."""
    contiguous, rank = _contiguous(shape), len(shape)
    if all(own == shape for own, _ in operands):
        def all_lie(form):
            return all(lie_alike(shape, strides, form) for _, strides in operands)

        if all_lie(contiguous):
            return None
        if rank == 4 and all_lie(lies_inner(shape).strides):
            return lies_inner(shape).strides
        first = operands[0][1]
        if all(strides == first for _, strides in operands) and is_dense(shape, first):
            return first
    over = []  # Strides along the axes of the result; of repeated ones 0.
    for own, strides in operands:
        own, strides = (1,) * (rank - len(own)) + tuple(own), (0,) * (rank - len(own)) + strides
        over.append([0 if n == 1 != extent else stride
                     for n, extent, stride in zip(own, shape, strides)])

    def is_inside(a, b):
        """1 where axis b is to lie further inside than a, -1 where not, 0 where none says."""
        for strides in over:
            if strides[a] == 0 or strides[b] == 0:
                continue
            if strides[a] != strides[b]:
                return 1 if strides[a] > strides[b] else -1
            if shape[a] > shape[b]:
                return 1
        return 0

    order = list(range(rank - 1, -1, -1))  # From the innermost.
    for i in range(1, rank):
        at = i
        for j in range(i - 1, -1, -1):
            found = is_inside(order[j], order[at])
            if found > 0:
                order[j], order[at] = order[at], order[j]
                at = j
            elif found < 0:
                break
    if order == list(range(rank - 1, -1, -1)):
        return None
    return strides_along(shape, order)


def _lay_conv(made, name, args, kwargs):
    weight = args[1] if len(args) > 1 else kwargs["weight"]
    strides = weight.stride()
    source, shape = args[0] if args else kwargs["input"], made._node.shape
    if not ((strides[1] <= strides[-1] and suggests_inner(weight.shape, strides))
            or _has_inner(source)):
        return
    is_single = len(shape) < len(strides)  # An image without a batch.
    stride, dilation, groups = (
        args[place] if len(args) > place else kwargs.get(word, 1)
        for place, word in (
            (3, "stride"), (7 if "transpose" in name else 5, "dilation"), (6, "groups")))
    moves = any(v not in (1, [1] * 3, (1,) * 3) for v in (stride, dilation))
    if name[-2:] == "3d" and _is_slow(made, (1, *source.shape) if is_single else source.shape,
                                      weight, groups, moves):
        return
    made._apart = lies(shape, lies_inner(torch.Size((1, *shape))).strides[1:]) if is_single else (
        lies_inner(shape))


def _is_slow(made, shape, weight, groups, moves):
    """Whether PyTorch's own loop, which gives contiguous tensors, convolves volumes on the CPU and
    not oneDNN (ATen, ConvParams::use_mkldnn). moves: it has a stride or a dilation."""
    if made._node.device.type != "cpu" or made._node.dtype != torch.float32:
        return False
    rows, columns = weight.shape[-2:]
    if rows == columns == 1 and not moves and shape[0] < 16 and torch.get_num_threads() == 1:
        return True
    return (shape[0] == 1 and math.prod(shape[:4]) <= 20480 and groups == 1
            and not (columns > 3 and rows > 3))


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
        shape = made._node.shape
        made._apart = lies_inner(shape)
        if name == "stack" and shape[0] == 1:
            made._apart = lies(shape, (shape[1], *made._apart.strides[1:]))


def _lay_formatted(made, name, args, kwargs):
    if not args or type(args[0]) is not Deferred or args[0]._apart is None:
        return
    # NOTE: batch norms ask is_contiguous(), which looks at no axis of one: a single image's first.
    if not has_inner(args[0]) and not (
            name == "batch_norm" and args[0]._node.device.type == "cpu"
            and args[0].dim() in (4, 5) and is_inner(own_form(args[0]))):
        return
    mode = "constant"
    if name == "pad":
        mode = args[2] if len(args) > 2 else kwargs.get("mode", mode)
    on_cpu = name in _FORMATTED_ON_CPU or mode != "constant"
    if mode != "circular" and not (on_cpu and args[0]._node.device.type != "cpu"):
        made._apart = lies_inner(made._node.shape)


def _lay_glu(made, name, args, kwargs):
    if args and type(args[0]) is Deferred and args[0]._apart is not None:
        half = made._node.shape, own_form(args[0]).stride()
        _lay_iterated(made, (half, half))


def _has_inner(value):
    if type(value) is Deferred:
        return has_inner(value)
    return value.dim() in (4, 5) and suggests_inner(value.shape, value.stride())


# lay(made, name, args, kwargs). Functions that are not here are taken to give contiguous tensors.
RULES = {
    **dict.fromkeys(_POINTWISE, _lay_pointwise), **dict.fromkeys(_JOINING, _lay_joined),
    **dict.fromkeys(_FORMATTED | _FORMATTED_ON_CPU, _lay_formatted),
    **dict.fromkeys(_CONVOLUTIONS, _lay_conv), "glu": _lay_glu,
}
