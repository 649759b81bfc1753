# SPDX-License-Identifier: Apache-2.0
"""Norms on stand-ins, whole or written out, and the arithmetic and activations that norms and
convolutions take in."""

import functools

import torch

from . import _chains
from ._conv_node import Conv
from ._deferred import (
    FLOATS,
    HALVES,
    Deferred,
    another,
    has_numbers,
    is_exposed,
    is_tensor,
    node_of,
    snapshot,
    waiting_norm,
    wrong_type,
)
from ._nodes import (
    Cast,
    MeanSquare,
    Norm,
    ShuffledRepeat,
    Sigmoid,
    Value,
    Viewed,
    waits_for,
)


def _narrow(node):
    """(the node before a cast to fp32, whether there was one)."""
    if type(node) is Cast and node.dtype is torch.float32 and node.source.dtype in HALVES:
        return node.source, True
    return node, False


def _parameter(value, channels):
    """Whether `value` can be a norm's weight or bias: a vector of plain numbers."""
    return value is None or (type(value) is not Deferred and has_numbers(value)
                             and value.numel() == channels)


def _group_norm(input, num_groups, weight=None, bias=None, eps=1e-5, cudnn_enabled=True):
    if type(input) is not Deferred or len(input._node.shape) < 3:
        return NotImplemented
    source, wide = _narrow(input._node)
    shape, session = source.shape, input._session
    channels = shape[1]
    if source.dtype not in FLOATS:
        session.leave(weight, shape, "group_norm", wrong_type(source))
        return NotImplemented
    if (channels % num_groups or 0 in shape or not _parameter(weight, channels)
            or not _parameter(bias, channels) or shape.numel() == num_groups):
        return NotImplemented  # PyTorch says what is wrong: one value is no group.
    made = Norm(session, source, "group", eps, num_groups, snapshot(weight), snapshot(bias), 1.0,
                None, wide)
    return Deferred(made, session)


def _instance_norm(input, running_mean=None, running_var=None, weight=None, bias=None,
                   use_input_stats=True, momentum=0.1, eps=1e-5, cudnn_enabled=True):
    if type(input) is not Deferred:
        return NotImplemented
    if not use_input_stats:
        return _batch_norm(input, running_mean, running_var, weight, bias, eps=eps)
    if running_mean is not None or input._node.shape[2:].numel() < 2:
        return NotImplemented  # It keeps statistics, or PyTorch says what is wrong.
    return _group_norm(input, input._node.shape[1], weight, bias, eps)


def _batch_norm(input, running_mean, running_var, weight=None, bias=None, training=False,
                momentum=0.1, eps=1e-5, cudnn_enabled=True):
    if type(input) is not Deferred or running_mean is None or running_var is None:
        return NotImplemented
    conv, session = input._node, input._session
    if training:
        session.foldings.forget(running_mean)
        return NotImplemented
    if session.quality != "fast":
        session.leave(weight, conv.shape, "batch_norm", 'quality="exact" rounds in front of it')
        return NotImplemented
    if (type(conv) is not Conv or conv.residual is not None or conv.activation is not None
            or conv.shuffle is not None or not conv.may_fuse()):
        session.leave(weight, conv.shape, "batch_norm",
                      "no convolution right in front of it whose output is its alone")
        return NotImplemented
    bias_of_conv = getattr(conv.bias, "_convoy_of", conv.bias)
    sources = (conv.weight, bias_of_conv, running_mean, running_var, weight, bias)
    folded = session.foldings.current(sources, eps)
    if folded is None:
        if any(s is not None and (type(s) is Deferred or s.device != conv.device
                                  or not has_numbers(s)) for s in sources):
            return NotImplemented
        folded = session.foldings.fold(sources, eps)
        if folded is None:
            return NotImplemented
    session.fused["convolution and batch norm"] += 1
    return Deferred(conv.with_weight(*folded), session)


def _channels_of(x, axis):
    """(node with `axis` as its channels, wrap): wrap(norm of it) has x's axes; None where x's
    memory is of no such kind."""
    session = x._session
    source, wide = _narrow(x._node)
    rank = len(source.shape)
    if rank < 3 or source.dtype not in FLOATS or source.shape.numel() == 0:
        return None
    axis %= rank
    if axis == 1:
        return source, wide, lambda norm: Deferred(norm, session)
    if axis != rank - 1:
        return None
    moved = Value(source.force().movedim(-1, 1))
    order = (0, *range(2, rank), 1)

    def wrap(norm):
        shape = torch.Size(norm.shape[i] for i in order)
        return Deferred(Viewed(norm, (lambda t: t.movedim(1, -1),), shape, order), session)

    return moved, wide, wrap


def _normalize(input, p=2.0, dim=1, eps=1e-12, out=None):
    if type(input) is not Deferred or p != 2.0 or out is not None or not isinstance(dim, int):
        return NotImplemented
    found = _channels_of(input, dim)
    if found is None:
        return NotImplemented
    source, wide, wrap = found
    return wrap(Norm(input._session, source, "norm_floor", eps, wide=wide))


@functools.cache
def _epsilon_of(dtype):
    """What F.rms_norm takes where it is given none. NOTE: that of fp32 for 16-bit numbers too, or
    that of the type itself, as PyTorch's version has it."""
    x = torch.full((1,), 1e-3, dtype=dtype, device="cpu")
    far = float(torch.nn.functional.rms_norm(x, (1,))) > 0.5
    return torch.finfo(torch.float32 if far else dtype).eps


def _rms_norm(input, normalized_shape, weight=None, eps=None):
    if type(input) is not Deferred or len(normalized_shape) != 1:
        return NotImplemented
    found = _channels_of(input, -1)
    if found is None or not _parameter(weight, normalized_shape[0]):
        return NotImplemented
    source, wide, wrap = found
    if eps is None:
        eps = _epsilon_of(input.dtype)
    return wrap(Norm(input._session, source, "added", eps, weight=snapshot(weight), wide=wide))


def _square(x):
    source, narrow = _narrow(x._node)
    if x._node.dtype not in FLOATS:
        return NotImplemented
    made = MeanSquare(x._node, torch.square, "square", x._node.shape, source, narrow)
    return Deferred(made, x._session)


def _pow(input, exponent, **other):
    if other or type(input) is not Deferred or not _is_number(exponent) or exponent != 2:
        return NotImplemented
    return _square(input)


def _mean(input, dim=None, keepdim=False, *, dtype=None, axis=None, **other):
    dim = dim if axis is None else axis
    if isinstance(dim, (list, tuple)) and len(dim) == 1:
        dim = dim[0]
    node = input._node
    if (other or dtype or type(node) is not MeanSquare or node.stage != "square" or not keepdim
            or not isinstance(dim, int)):
        return NotImplemented
    dim %= len(node.shape)
    shape = torch.Size(1 if i == dim else n for i, n in enumerate(node.shape))
    made = node.next("mean", lambda t: t.mean(dim, keepdim=True), shape, axis=dim)
    return Deferred(made, input._session)


def _root(input, **other):
    node = input._node
    if other or type(node) is not MeanSquare or node.stage not in ("mean", "added"):
        return NotImplemented
    return Deferred(node.next("root", torch.sqrt), input._session)


def _inverse_root(input, **other):
    node = input._node
    if other or type(node) is not MeanSquare or node.stage not in ("mean", "added"):
        return NotImplemented
    return Deferred(node.next("inverse", torch.rsqrt), input._session)


def _root_mean_square(x, rms, stage):
    """x / rms(x), or x * (1 / rms(x)), as one norm; None where they are something else."""
    if type(x) is not Deferred or type(rms) is not Deferred:
        return None
    step = rms._node
    if type(step) is not MeanSquare or step.stage != stage or step.tensor is not None:
        return None
    source, narrow = _narrow(x._node)
    if source is not step.source:
        return None
    found = _channels_of(Deferred(source, x._session), step.axis)
    if found is None:
        return None
    source, _, wrap = found
    wide = source.dtype in HALVES and (narrow or step.narrow)
    return wrap(Norm(x._session, source, "added", step.epsilon, wide=wide))


def _aligned(node, parameter):
    """Whether a tensor has one number for each channel of a norm, in the norm's axes."""
    rank = len(node.shape)
    if type(node) is Viewed:
        if node.axes is None:
            return False
        channel = node.axes.index(1)
    else:
        channel = 1
    channels = node.shape[channel]
    if parameter.numel() != channels or parameter.dim() > rank:
        return False
    shape = (1,) * (rank - parameter.dim()) + tuple(parameter.shape)
    return shape[channel] == channels


def _scaled(x, factor):
    """A waiting norm times a number or a weight; None where it does not take it."""
    node, session = x._node, x._session
    norm, rewrap = waiting_norm(node)
    if norm is None or norm.activation is not None or norm.bias is not None:
        return None
    if isinstance(factor, (int, float)):
        if (norm.rule == "group" or norm.weight is not None
                or not session.may_scale(None, factor)):
            return None
        return Deferred(rewrap(norm.having(scale=norm.scale * factor)), x._session)
    if not has_numbers(factor):
        return None
    if type(factor) is Deferred:
        if factor.numel() != norm.shape[1]:
            return None
        factor = factor._force()
    if (norm.weight is not None or not _aligned(node, factor) or factor.device != norm.device
            or torch.promote_types(node.dtype, factor.dtype) != node.dtype):
        return None
    return Deferred(rewrap(norm.having(weight=snapshot(factor))), x._session)


def _scaled_conv(x, factor):
    """A waiting convolution times a number that fp32 holds; None where it does not take it."""
    conv, session = x._node, x._session
    if not (conv.may_scale() and abs(factor) < 1e30
            and session.may_scale(conv.weight, factor)):
        return None
    session.fused["scale"] += 1
    scale = float(factor)
    return Deferred(conv.with_scale(scale, session.scaled_bias(conv.bias, scale)), session)


def _shifted(x, bias):
    """A waiting norm plus a bias; None where it does not take it."""
    node = x._node
    norm, rewrap = waiting_norm(node)
    if norm is None or norm.activation is not None or norm.bias is not None:
        return None
    if type(bias) is Deferred:
        if bias.numel() != norm.shape[1]:
            return None
        bias = bias._force()
    if (not _aligned(node, bias) or bias.device != norm.device
            or (norm.weight is not None and norm.weight.dtype != bias.dtype)
            or torch.promote_types(node.dtype, bias.dtype) != node.dtype):
        return None
    return Deferred(rewrap(norm.having(bias=snapshot(bias))), x._session)


# ---- Arithmetic and activations ------------------------------------------------------------------


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _mul(input, other, **keywords):
    if keywords:
        return NotImplemented
    if type(input) is not Deferred:
        input, other = other, input
    if _is_number(other):
        if other == 1:
            return another(input)
        made = (_scaled_conv if type(input._node) is Conv else _scaled)(input, other)
        return _chains.binary("multiply", input, other) if made is None else made
    if type(other) is not Deferred and not is_tensor(other):
        return NotImplemented
    if type(other) is Deferred:
        if input._node is other._node:
            return _square(input)
        for a, b in ((input, other), (other, input)):
            if type(b._node) is Sigmoid and b._node.source is a._node:
                return _activate(a, ("silu", 0.0, 0.0))
            made = _root_mean_square(a, b, "inverse")
            if made is not None:
                return made
        made = _scaled(input, other)
        if made is None:
            made = _scaled(other, input)
    else:
        made = _scaled(input, other)
    return _chains.binary("multiply", input, other) if made is None else made


def _div(input, other, *, rounding_mode=None, **keywords):
    if keywords or rounding_mode or type(input) is not Deferred:
        return NotImplemented
    if _is_number(other):
        if other == 1:
            return another(input)
        made = None if other == 0 else _scaled(input, 1 / other)
    else:
        made = _root_mean_square(input, other, "root")
    return NotImplemented if made is None else made


def _sum(input, other):
    """A convolution that waits and its residual as one node; None where neither is one."""
    for a, b in ((input, other), (other, input)):
        if type(a) is not Deferred or type(a._node) is not Conv:
            continue
        conv = a._node
        if (conv.residual is not None or not conv.may_fuse() or b.shape != conv.shape
                or b.dtype is not conv.dtype or b.device != conv.device):
            continue
        added = node_of(b)
        if waits_for(added, conv):  # Whose plain output is wanted anyway.
            continue
        a._session.fused["residual"] += 1
        if type(added) is ShuffledRepeat and added.tensor is None and added.how == conv.shuffle:
            return conv.with_repeated_residual(added.source)
        made = conv.with_residual(added)
        if is_exposed(b):
            made.force()
        return made
    return None


def _add(input, other, *, alpha=1, **keywords):
    if keywords or alpha != 1:
        return NotImplemented
    if type(input) is not Deferred:
        input, other = other, input
    node, session = input._node, input._session
    if type(other) is not Deferred and _is_number(other):
        if type(node) is MeanSquare and node.stage == "mean":
            made = node.next("added", lambda t: t + other, epsilon=float(other))
            return Deferred(made, session)
        return another(input) if other == 0 else _chains.binary("add", input, other)
    if not is_tensor(other):
        return NotImplemented
    if not _chains.takes(input, other):
        made = _sum(input, other)
        if made is not None:
            return Deferred(made, session)
        made = _shifted(input, other)
        if made is None and type(other) is Deferred:
            made = _shifted(other, input)
        if made is not None:
            return made
    return _chains.binary("add", input, other)


def _sub(input, other, *, alpha=1, **keywords):
    if keywords or alpha != 1:
        return NotImplemented
    return _chains.binary("subtract", input, other)


def _rsub(input, other, *, alpha=1, **keywords):
    if keywords or alpha != 1:
        return NotImplemented
    return _chains.binary("subtract", other, input)


def _add_in_place(input, other, *, alpha=1, **keywords):
    if (keywords or alpha != 1 or type(input) is not Deferred or type(input._node) is not Conv
            or input._viewed):  # Its memory is seen by others.
        return NotImplemented
    node = _sum(input, other) if is_tensor(other) else None
    if node is None:
        made = _add(input, other)
        if made is NotImplemented or made._node.shape != input._node.shape:
            return NotImplemented
        node = made._node
    input._node = node
    return input


def _activate(x, activation, inplace=False):
    if inplace and x._viewed:  # Its memory is seen by others.
        return NotImplemented
    node, session = x._node, x._session
    if type(node) is Conv:
        if node.activation is not None or not node.may_fuse():
            return NotImplemented if inplace else _chains.activation(x, activation)
        kind, made = "convolution and activation", node.with_activation(activation)
    else:
        norm, rewrap = waiting_norm(node)
        if norm is None or norm.activation is not None or session.quality != "fast":
            return NotImplemented if inplace else _chains.activation(x, activation)
        made = norm.with_activation(activation)
        kind, made = "norm and activation", made if norm is node else rewrap(made)
    session.fused[kind] += 1
    if not inplace:
        return Deferred(made, session)
    x._node = made
    return x


def _activation(name):
    activation = name, 0.0, 0.0

    def handler(input, inplace=False, **other):
        if other or type(input) is not Deferred:
            return NotImplemented
        return _activate(input, activation, inplace)

    return handler


def _sigmoid(input, **other):
    if other or type(input) is not Deferred:
        return NotImplemented
    return Deferred(Sigmoid(input._node), input._session)


def _gelu(input, approximate="none", **other):
    if other or type(input) is not Deferred:
        return NotImplemented
    return _activate(input, ("gelu" if approximate == "none" else "gelu_tanh", 0.0, 0.0))


def _leaky_relu(input, negative_slope=0.01, inplace=False, **other):
    if other or type(input) is not Deferred:
        return NotImplemented
    return _activate(input, ("leaky_relu", float(negative_slope), 0.0), inplace)


def _relu6(input, inplace=False, **other):
    if other or type(input) is not Deferred:
        return NotImplemented
    return _activate(input, ("clamp", 0.0, 6.0), inplace)


def _hardtanh(input, min_val=-1.0, max_val=1.0, inplace=False):
    if type(input) is not Deferred or not (_is_number(min_val) and _is_number(max_val)):
        return NotImplemented
    return _activate(input, ("clamp", float(min_val), float(max_val)), inplace)


def _dropout(input, p=0.5, training=True, inplace=False):
    return NotImplemented if training and p else input


FUNCTIONS = {
    "batch_norm": _batch_norm, "instance_norm": _instance_norm, "group_norm": _group_norm,
    "normalize": _normalize, "rms_norm": _rms_norm,
    "pow": _pow, "__pow__": _pow, "square": lambda input: _square(input), "mean": _mean,
    "sqrt": _root, "rsqrt": _inverse_root,
    "mul": _mul, "__mul__": _mul, "__rmul__": _mul, "multiply": _mul,
    "div": _div, "__truediv__": _div, "divide": _div, "true_divide": _div,
    "add": _add, "__add__": _add, "__radd__": _add, "add_": _add_in_place,
    "sub": _sub, "__sub__": _sub, "subtract": _sub, "__rsub__": _rsub,
    "silu": _activation("silu"), "relu": _activation("relu"), "tanh": _activation("tanh"),
    "hardswish": _activation("hardswish"), "sigmoid": _sigmoid, "gelu": _gelu,
    "leaky_relu": _leaky_relu, "relu6": _relu6, "hardtanh": _hardtanh,
    "relu_": lambda input: _activate(input, ("relu", 0.0, 0.0), True),
    "dropout": _dropout, "dropout2d": _dropout, "dropout3d": _dropout,
}
ANY_FIRST = {"mul", "__mul__", "__rmul__", "multiply", "add", "__add__", "__radd__", "sub",
             "__sub__", "subtract", "__rsub__"}
