# SPDX-License-Identifier: Apache-2.0
"""Convolutions on stand-ins, and what can stand in front of one: padding, concatenated frames,
nearest-neighbour upsampling."""

import operator

import torch

from . import _layout
from ._axes import ordered
from ._bounded import Bounded
from ._conv_node import Conv, Geometry, geometry
from ._deferred import (
    FLOATS,
    Deferred,
    another,
    has_numbers,
    is_exposed,
    is_tensor,
    node_of,
    plain,
    session_of,
    snapshot,
    value_of,
    wrong_type,
)
from ._memory import lent
from ._nodes import (
    Cast,
    Cat,
    Node,
    Norm,
    Pad,
    Repeat,
    Select,
    Upsample,
    Value,
    frames_of,
    take_frames,
    twin,
)

_MODES = {"constant": "zero", "replicate": "replicate", "reflect": "reflect"}


def per_axis(value, count):
    if type(value) is tuple and len(value) == count:
        return value
    if not isinstance(value, (tuple, list)):
        return (operator.index(value),) * count  # It may be a number of NumPy's.
    value = tuple(value)
    return value * count if len(value) == 1 else value


# The geometry of a plain convolution, in front of which nothing waits to be read with it, by the
# arguments of the call as they come.
_plain: dict[tuple, Geometry] = Bounded(16384)
_READ_IN_PLACE = (Pad, Cat, Upsample)


def _conv(axes):
    def handler(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, **other):
        if (other or type(input) is not Deferred or not has_numbers(weight)
                or not has_numbers(bias)):
            return NotImplemented
        node, session = input._node, input._session
        if axes == 1 and session.shards and session.shards.active:
            return NotImplemented
        if ((type(weight) is Deferred or type(bias) is Deferred)  # Made in the call.
                and session.shards and session.shards.active):
            return NotImplemented
        weight, bias = snapshot(weight), snapshot(bias)
        key = None
        if type(node) not in _READ_IN_PLACE or node.tensor is not None:
            key = (axes, node.shape, node.dtype, node.device, weight.shape, weight.dtype,
                   weight.device, stride, padding, dilation, groups)
            try:
                how = _plain.get(key)
            except TypeError:  # A list among them.
                key = how = None
            if how is not None:
                return Deferred(Conv(session, node, weight, bias, how), session)
        if len(node.shape) != axes + 2:
            session.leave(weight, node.shape, f"conv{axes}d",
                          f"it has {len(node.shape)} axes; legal: {axes + 2}, with a batch")
            return NotImplemented
        if node.dtype not in FLOATS:
            session.leave(weight, node.shape, f"conv{axes}d", wrong_type(node))
            return NotImplemented
        if (weight.dtype != node.dtype or weight.device != node.device
                or weight.shape[1] * groups != node.shape[1]):
            return NotImplemented
        stride, dilation = per_axis(stride, axes), per_axis(dilation, axes)
        if isinstance(padding, str):
            if padding not in ("same", "valid") or (padding == "same" and set(stride) != {1}):
                return NotImplemented  # PyTorch says what is wrong.
            if padding == "valid":
                begin = end = (0,) * axes
            else:
                whole = [d * (t - 1) for d, t in zip(dilation, weight.shape[2:])]
                begin, end = tuple(w // 2 for w in whole), tuple(w - w // 2 for w in whole)
        else:
            begin = end = per_axis(padding, axes)
        modes = ("zero",) * axes
        # A padding, an upsampling or a cache in front of it are read where they are.
        if type(node) is Pad and node.tensor is None:
            fits = all(
                mode == "zero" or (b == 0 and e == 0) or (own_b == 0 and own_e == 0)
                for mode, b, e, own_b, own_e in zip(node.modes, node.begin, node.end, begin, end))
            if fits:
                modes = tuple(mode if b or e else "zero"
                              for mode, b, e in zip(node.modes, node.begin, node.end))
                begin = tuple(a + b for a, b in zip(begin, node.begin))
                end = tuple(a + b for a, b in zip(end, node.end))
                node = node.source
        cache, upsample = None, 1
        if axes == 3 and type(node) is Cat and node.tensor is None:
            frames = (weight.shape[2] - 1) * dilation[0]
            cached = sum(part.shape[2] for part in node.parts[:-1])
            if 0 < cached <= frames and stride[0] == 1 and modes[0] == "zero":
                cache = node.parts[0] if len(node.parts) == 2 else Cat(node.parts[:-1])
                node = node.parts[-1]
        if (axes == 2 and type(node) is Upsample and node.tensor is None
                and node.factors == (2, 2) and tuple(weight.shape[2:]) == (3, 3)
                and stride == dilation == (1, 1) and begin == end == (1, 1) and groups == 1
                and modes == ("zero", "zero")):
            node, upsample = node.source, 2
        if any(n * upsample + b + e < d * (t - 1) + 1 for n, b, e, d, t in zip(
                node.shape[2:], begin, end, dilation, weight.shape[2:])) and cache is None:
            return NotImplemented  # PyTorch says what is wrong.
        how = geometry(node.shape, node.dtype, node.device, weight.shape, stride, begin, end,
                       dilation, groups, modes, upsample, 0 if cache is None else cache.shape[2])
        if key is not None:
            _plain[key] = how
        return Deferred(Conv(session, node, weight, bias, how, cache), session)

    return handler


def _pad(input, pad, mode="constant", value=None, **other):
    if other or type(input) is not Deferred or mode not in _MODES or (value or 0) != 0:
        return NotImplemented
    node = input._node
    axes, pad = len(node.shape) - 2, [operator.index(p) for p in pad]
    if (axes not in (1, 2, 3) or not 0 < len(pad) <= 2 * axes or min(pad) < 0
            or node.dtype not in FLOATS):
        return NotImplemented
    if not any(pad):
        return another(input)
    pad += [0] * (2 * axes - len(pad))
    begin, end = tuple(pad[-2::-2]), tuple(pad[-1::-2])
    modes = (_MODES[mode],) * axes
    if mode == "reflect" and any(max(b, e) >= n for b, e, n in zip(begin, end, node.shape[2:])):
        return NotImplemented
    return Deferred(Pad(node, begin, end, modes, input._session), input._session)


def _norm_of_parts(nodes):
    """One norm for those of all slices of a tensor, where each image is normalised on its own."""
    if not all(type(n) is Norm and n.tensor is None and n.like(nodes[0]) for n in nodes):
        return None
    at = 0
    whole = nodes[0].source.part[0] if type(nodes[0].source) is Value and (
        nodes[0].source.part) else None
    for node in nodes:
        source = node.source
        if type(source) is not Value or source.part is None:
            return None
        base, axis, begin = source.part
        if axis != 0 or begin != at or base is not whole:
            return None
        at += source.shape[0]
    if whole is None or at != whole.shape[0]:
        return None
    norm = nodes[0]
    return Norm(norm.session, whole, norm.rule, norm.epsilon, norm.groups, norm.weight, norm.bias,
                norm.scale, norm.activation, norm.wide)


def _merged(nodes):
    """The same frames in fewer nodes: those that follow each other in one base are one."""
    made: list[Node] = []
    for node in nodes:
        base, first = frames_of(node)
        if made and base is not None:
            before, begin = frames_of(made[-1])
            if before is base and begin + made[-1].shape[2] == first:
                made[-1] = take_frames(base, begin, made[-1].shape[2] + node.shape[2])
                continue
        made.append(node)
    return made


def _replicated(nodes, session):
    """One padding for the first frame, all frames and the last frame of a node; None of others."""
    if len(nodes) != 3:
        return None
    front, whole, back = nodes
    for node, frame in ((front, 0), (back, whole.shape[2] - 1)):
        if (type(node) is not Repeat or node.tensor is not None or node.axis != 2
                or frames_of(node.source) != (whole, frame)):
            return None
    return Pad(whole, (front.count, 0, 0), (back.count, 0, 0), ("replicate",) * 3, session)


_SAME = ("stride", "dilation", "groups", "modes", "begin", "end", "upsample")


def _conv_of_frames(nodes, session):
    """One convolution of all frames for those of pieces that overlap as the filter needs it: a
    model's way around a limit of size; None of others."""
    first = nodes[0]
    if type(first) is not Conv or len(first.shape) != 5:
        return None
    base, at = frames_of(first.source)
    if (base is None or first.begin != first.end or first.begin[0] or first.stride[0] != 1
            or first.upsample != 1):
        return None
    overlap = (first.weight.shape[2] - 1) * first.dilation[0]
    end = at + overlap
    for node in nodes:
        if (type(node) is not Conv or node.tensor is not None or node.residual is not None
                or node.activation is not None or node.cache is not None or node.shuffle is not None
                or node.scale != 1.0
                or node.weight is not first.weight or node.bias is not first.bias
                or any(getattr(node, name) != getattr(first, name) for name in _SAME)
                or not node.may_fuse()):
            return None
        if frames_of(node.source) != (base, end - overlap):
            return None
        end += node.source.shape[2] - overlap
    whole = Deferred(take_frames(base, at, end - at), session)
    made = _conv(3)(whole, first.weight, first.bias, first.stride, first.begin, first.dilation,
                    first.groups)
    if made is not NotImplemented:
        session.fused["pieces of frames"] += 1
    return None if made is NotImplemented else made


def _all_plain(tensors):
    """Stand-ins that may be joined along their channels by PyTorch, whatever they wait for."""
    return all(type(t) is Deferred and not t._session.shards for t in tensors)


def _copy(tensors, node, session):
    """A copy of the one tensor of a `cat`, which is that of one of `tensors` or made of them."""
    for tensor in tensors:
        if type(tensor) is Deferred and tensor._node is node:
            return another(tensor)
    if node.tensor is not None:
        return Deferred(lent(node), session)
    return another(Deferred(twin(node) if type(node) in (Pad, Cat) else node, session))


def _cat(tensors, dim=0, *, axis=None, **other):
    dim = dim if axis is None else axis
    tensors = list(tensors)
    if dim == 1 and not other and len(tensors) > 1 and _all_plain(tensors):
        return Deferred(Value(torch.cat([t._node.force() for t in tensors], 1)),
                        tensors[0]._session)
    if other or not all(is_tensor(t) for t in tensors):
        return NotImplemented
    session = session_of(tensors)
    if dim in (2, -3) and tensors[0].dim() == 5:  # The frames of a cache that is the model's own.
        most = max(t.numel() for t in tensors)
        tensors = [Deferred(Value(t.clone()), session)
                   if is_exposed(t) and 2 * t.numel() <= most else t for t in tensors]
    nodes = [node_of(t) for t in tensors if t.dim() != 1 or t.shape[0] > 0]
    if not nodes:  # All are empty.
        return NotImplemented
    first = nodes[0]
    rank = len(first.shape)
    dim %= rank
    if any(t.dtype != first.dtype for t in tensors):  # Those without elements count too.
        return NotImplemented
    if any(len(n.shape) != rank or n.device != first.device
           or any(a != b for i, (a, b) in enumerate(zip(n.shape, first.shape)) if i != dim)
           for n in nodes):
        return NotImplemented
    if len(nodes) == 1:
        return _copy(tensors, first, session)
    if session.shards and session.shards.active:
        session.shards.require_whole_rows(first.shape, dim, "cat")
    if dim == 0:
        whole = _norm_of_parts(nodes)
        if whole is not None:
            return Deferred(whole, session)
    nodes = [n for n in nodes if n.shape[dim] > 0] or nodes[:1]
    if len(nodes) == 1:
        return _copy(tensors, nodes[0], session)
    if dim == 2 and rank == 5:
        flat: list[Node] = []
        for node in nodes:
            flat += node.parts if type(node) is Cat and node.tensor is None else [node]
        if not (session.shards and session.shards.active):
            whole = _conv_of_frames(flat, session)
            if whole is not None:
                return whole
            flat = _merged(flat)
            if len(flat) == 1:
                return _copy(tensors, flat[0], session)
            padded = _replicated(flat, session)
            if padded is not None:
                return Deferred(padded, session)
        made = Deferred(Cat(flat), session)
        if any(is_exposed(t) for t in tensors):
            made._force()
        return made
    return value_of(_layout.cat([n.force() for n in nodes], dim), session)


def _all_selected(nodes):
    """What these nodes are all entries of, and its axis; None of others."""
    first = nodes[0]
    if type(first) is not Select or len(nodes) != first.base.shape[first.axis]:
        return None, 0
    for i, node in enumerate(nodes):
        if (type(node) is not Select or node.tensor is not None or node.base is not first.base
                or node.axis != first.axis or node.index != i):
            return None, 0
    return first.base, first.axis


def _stack(tensors, dim=0, **other):
    if other:
        return NotImplemented
    session = session_of(tensors)
    if all(type(t) is Deferred for t in tensors):
        base, axis = _all_selected([t._node for t in tensors])
        if base is not None and base.tensor is None:
            order = [i for i in range(len(base.shape)) if i != axis]
            order.insert(dim % len(base.shape), axis)
            return ordered(Deferred(base, session), tuple(order))
    tensors = plain(list(tensors))
    if any(t.shape != tensors[0].shape or t.dtype != tensors[0].dtype for t in tensors):
        return NotImplemented
    return value_of(_layout.stack(tensors, dim), session)


def _interpolate(input, size=None, scale_factor=None, mode="nearest", align_corners=None,
                 recompute_scale_factor=None, antialias=False):
    if (type(input) is not Deferred or mode not in ("nearest", "nearest-exact") or align_corners
            or antialias or recompute_scale_factor):
        return NotImplemented
    node, axes = input._node, len(input._node.shape) - 2
    if axes not in (2, 3):
        return NotImplemented
    if size is not None:
        size = tuple(map(operator.index, per_axis(size, axes)))
        if any(s % n for s, n in zip(size, node.shape[2:])):
            return NotImplemented
        factors = tuple(s // n for s, n in zip(size, node.shape[2:]))
    else:
        scale = scale_factor
        scale = tuple(scale) if isinstance(scale, (tuple, list)) else (scale,) * axes
        if any(s != int(s) or s < 1 for s in scale):
            return NotImplemented
        factors = tuple(int(s) for s in scale)
    if all(f == 1 for f in factors):
        return another(input)
    if type(node) is Cast:  # Copying pixels and casting them may change places.
        return Deferred(Cast(Upsample(node.source, factors), node.dtype), input._session)
    return Deferred(Upsample(node, factors), input._session)


FUNCTIONS = {
    "conv1d": _conv(1), "conv2d": _conv(2), "conv3d": _conv(3), "pad": _pad,
    "cat": _cat, "concat": _cat, "concatenate": _cat, "stack": _stack,
    "interpolate": _interpolate,
}
ANY_FIRST = {"cat", "concat", "concatenate", "stack"}
