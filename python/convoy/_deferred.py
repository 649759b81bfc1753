# SPDX-License-Identifier: Apache-2.0
"""The stand-in for a tensor that runs through an accelerated model, and what PyTorch's functions
do to it.

A `Deferred` passes for a torch.Tensor (`isinstance` says so) and answers PyTorch's functions
through `__torch_function__`. Those that Convoy can fuse become nodes (_nodes.py); any other one is
run by PyTorch on the tensors themselves, and its results are stand-ins again. So a model is taken
over by what its forward() does, whatever its modules are called.
"""

import math
import operator

import torch

from . import _layout
from ._nodes import (
    Cast,
    Cat,
    Conv,
    Lent,
    MeanSquare,
    Node,
    Norm,
    Pad,
    Repeat,
    Sigmoid,
    Upsample,
    Value,
    Viewed,
    settle,
)

_HALVES = (torch.bfloat16, torch.float16)
_FLOATS = (torch.bfloat16, torch.float16, torch.float32)
# NOTE: chunks of Wan 2.1's last level at 480x832 have 307 MB. Copies of their last frames are some
# 2 % of a decode's bytes; without them its peak of memory was above PyTorch's (4.90 GB, 4.24).
_LARGE = 256 << 20
_MODES = {"constant": "zero", "replicate": "replicate", "reflect": "reflect"}


class Deferred:
    """A tensor of an accelerated model: a node, its session, and for an input of the model the
    call that made it."""

    __slots__ = ("__weakref__", "_entry", "_node", "_session", "_viewed")

    def __init__(self, node, session, entry=None):
        self._node, self._session, self._entry = node, session, entry
        self._viewed = False  # Whether others may look at the same memory.

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return _call(func, args, kwargs or {})

    __class__ = property(lambda self: torch.Tensor)

    def __reduce_ex__(self, protocol):
        return self._force().__reduce_ex__(protocol)

    def __deepcopy__(self, memo):
        return Deferred(Value(self._force().clone()), self._session)

    def _force(self):
        return self._node.force()

    # What is known without computing.
    shape = property(lambda self: self._node.shape)
    dtype = property(lambda self: self._node.dtype)
    device = property(lambda self: self._node.device)
    ndim = property(lambda self: len(self._node.shape))
    is_cuda = property(lambda self: self._node.device.type == "cuda")
    requires_grad = property(lambda self: False)
    grad_fn = property(lambda self: None)
    is_leaf = property(lambda self: True)
    layout = property(lambda self: torch.strided)
    is_nested = is_sparse = is_quantized = is_meta = property(lambda self: False)

    def dim(self):
        return len(self._node.shape)

    def size(self, dim=None):
        return self._node.shape if dim is None else self._node.shape[dim]

    def numel(self):
        return self._node.shape.numel()

    nelement = numel
    ndimension = dim

    def is_floating_point(self):
        return self._node.dtype.is_floating_point

    def is_complex(self):
        return self._node.dtype.is_complex

    def get_device(self):
        return self._node.device.index if self.is_cuda else -1

    def element_size(self):
        return self._node.dtype.itemsize

    def __len__(self):
        return self._node.shape[0]

    def __iter__(self):
        return iter(_call(torch.Tensor.unbind, (self,), {}))

    def __hash__(self):
        return id(self)

    def __repr__(self, **_):
        return repr(self._force())

    def __format__(self, spec):
        return format(self._force(), spec)

    def __bool__(self):
        return bool(self._force())

    def __int__(self):
        return int(self._force())

    def __float__(self):
        return float(self._force())

    def __index__(self):
        return self._force().__index__()

    def __contains__(self, item):
        return item in self._force()

    def __array__(self, *args):
        return self._force().__array__(*args)

    def __dlpack__(self, **keywords):
        return self._force().__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self._force().__dlpack_device__()

    def __getitem__(self, index):
        return _getitem(self, index)

    def __setitem__(self, index, value):
        tensor = _own(self)
        tensor[_plain(index)] = _plain(value)

    def __getattr__(self, name):
        found = getattr(torch.Tensor, name)
        if callable(found):
            return lambda *args, **kwargs: _call(found, (self, *args), kwargs)
        if name.startswith("__"):
            raise AttributeError(name)
        return _wrapped(getattr(self._force(), name), self._session)


def _arithmetic(name, function):
    def method(self, other):
        if not isinstance(other, (torch.Tensor, int, float, complex)):
            return NotImplemented
        return _call(function, (self, other), {})

    method.__name__ = name
    setattr(Deferred, name, method)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "eq", "ne", "lt",
              "le", "gt", "ge", "and", "or", "xor"):
    _arithmetic(f"__{_name}__", getattr(torch.Tensor, f"__{_name}__"))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "pow", "matmul", "rsub"):
    if hasattr(torch.Tensor, f"__r{_name}__"):
        _arithmetic(f"__r{_name}__", getattr(torch.Tensor, f"__r{_name}__"))
for _name in ("iadd", "isub", "imul", "itruediv"):
    _arithmetic(f"__{_name}__", getattr(torch.Tensor, {
        "iadd": "add_", "isub": "sub_", "imul": "mul_", "itruediv": "div_"}[_name]))


def _unary(name, function):
    setattr(Deferred, name, lambda self: _call(function, (self,), {}))


for _name in ("neg", "abs", "invert"):
    _unary(f"__{_name}__", getattr(torch.Tensor, f"__{_name}__"))


# ---- Between stand-ins and tensors ---------------------------------------------------------------


def _node(value):
    """The node of a stand-in or a tensor."""
    return value._node if type(value) is Deferred else Value(value)


def _is_tensor(value):
    return isinstance(value, torch.Tensor)


def _plain(value):
    """The same with tensors for stand-ins, in lists, tuples and dictionaries too."""
    kind = type(value)
    if kind is Deferred:
        return value._node.force()
    if kind in (list, tuple):
        return kind(_plain(v) for v in value)
    if kind is dict:
        return {k: _plain(v) for k, v in value.items()}
    return value


def _wrapped(value, session):
    """The same with stand-ins for floating-point tensors."""
    if type(value) is torch.Tensor:
        return Deferred(Value(value), session) if value.dtype.is_floating_point else value
    if isinstance(value, tuple) and type(value) is not torch.Size:
        made = [_wrapped(v, session) for v in value]
        return tuple(made) if type(value) is tuple else type(value)(made)
    if type(value) is list:
        return [_wrapped(v, session) for v in value]
    return value


def _session_of(values):
    for value in values:
        if type(value) is Deferred:
            return value._session
        if type(value) in (list, tuple):
            found = _session_of(value)
            if found is not None:
                return found
    return None


def _call(func, args, kwargs):
    name = func.__name__
    handler = _HANDLERS.get(name)
    if handler is not None and args and (type(args[0]) is Deferred or name in _ANY_FIRST):
        result = handler(*args, **kwargs)
        if result is not NotImplemented:
            return result
    return _by_pytorch(func, name, args, kwargs)


def _by_pytorch(func, name, args, kwargs):
    session = _session_of(args) or _session_of(kwargs.values())
    in_place = (name[-1] == "_" and name[-2] != "_") or kwargs.get("inplace")
    if in_place and args and type(args[0]) is Deferred:
        func(_own(args[0]), *_plain(args[1:]), **_plain(kwargs))
        return args[0]
    result = func(*_plain(args), **_plain(kwargs))
    return _wrapped(result, session)


def _own(deferred):
    """Its tensor, to be written to: what waits or was taken from it before keeps the old values,
    but for views, which see the new ones as PyTorch's do."""
    tensor = deferred._node.force()
    if deferred._viewed:
        settle()
        tensor = deferred._node.force()
    else:
        tensor = tensor.clone()
        deferred._node, deferred._viewed = Value(tensor), True
    return tensor


def _value(tensor, session, part=None, given=False):
    return Deferred(Value(tensor, part, given), session)


def _is_given(node):
    """Whether its memory may be the caller's."""
    return type(node) is Value and node.given


def _view(x, step, order=None):
    """`step` of x's tensor. A norm that waits goes on waiting."""
    node = x._node
    if node.tensor is None and type(node) in (Norm, Viewed):
        base, steps, shape = (node, (), node.shape) if type(node) is Norm else (
            node.base, node.steps, node.shape)
        if base.tensor is None:
            if type(node) is Viewed:
                if node.order is None or order is None:
                    order = None
                else:
                    order = tuple(node.order[i] for i in order)
            if order is not None and order == tuple(range(len(order))):
                return Deferred(base, x._session)
            shape = step(torch.empty(shape, device="meta")).shape
            return Deferred(Viewed(base, (*steps, step), shape, order), x._session)
    made = _value(step(node.force()), x._session, given=_is_given(node))
    made._viewed = x._viewed = True
    return made



# ---- Convolutions --------------------------------------------------------------------------------


def _tuple(value, count):
    if isinstance(value, int):
        return (value,) * count
    value = tuple(value)
    return value * count if len(value) == 1 else value


def _conv(axes):
    def handler(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, **other):
        if other or type(input) is not Deferred or type(weight) is Deferred:
            return NotImplemented
        node, session = input._node, input._session
        if (len(node.shape) != axes + 2 or node.dtype not in _FLOATS or weight.dtype != node.dtype
                or weight.device != node.device or type(bias) is Deferred
                or weight.shape[1] * groups != node.shape[1]):
            return NotImplemented
        stride, dilation = _tuple(stride, axes), _tuple(dilation, axes)
        if isinstance(padding, str):
            if padding == "valid":
                begin = end = (0,) * axes
            else:
                whole = [d * (t - 1) for d, t in zip(dilation, weight.shape[2:])]
                begin, end = tuple(w // 2 for w in whole), tuple(w - w // 2 for w in whole)
        else:
            begin = end = _tuple(padding, axes)
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
        made = Conv(session, node, weight, bias, stride, begin, end, dilation, groups, modes,
                    cache, upsample)
        return Deferred(made, session)

    return handler


def _pad(input, pad, mode="constant", value=None, **other):
    if other or type(input) is not Deferred or mode not in _MODES or (value or 0) != 0:
        return NotImplemented
    node = input._node
    axes, pad = len(node.shape) - 2, [operator.index(p) for p in pad]
    if axes not in (2, 3) or len(pad) > 2 * axes or min(pad) < 0 or node.dtype not in _FLOATS:
        return NotImplemented
    if not any(pad):
        return input
    pad += [0] * (2 * axes - len(pad))
    begin, end = tuple(pad[-2::-2]), tuple(pad[-1::-2])
    modes = (_MODES[mode],) * axes
    if mode == "reflect" and any(max(b, e) >= n for b, e, n in zip(begin, end, node.shape[2:])):
        return NotImplemented
    return Deferred(Pad(node, begin, end, modes), input._session)


def _cat(tensors, dim=0, *, axis=None, **other):
    dim = dim if axis is None else axis
    tensors = list(tensors)
    if other or not all(_is_tensor(t) for t in tensors):
        return NotImplemented
    session = _session_of(tensors)
    nodes = [_node(t) for t in tensors if t.dim() != 1 or t.shape[0] > 0]
    first = nodes[0]
    rank = len(first.shape)
    dim %= rank
    if any(len(n.shape) != rank or n.dtype != first.dtype or n.device != first.device
           or any(a != b for i, (a, b) in enumerate(zip(n.shape, first.shape)) if i != dim)
           for n in nodes):
        return NotImplemented
    if len(nodes) == 1:
        return Deferred(first, session)
    if dim == 0:
        whole = _norm_of_parts(nodes)
        if whole is not None:
            return Deferred(whole, session)
    nodes = [n for n in nodes if n.shape[dim] > 0] or nodes[:1]
    if dim == 2 and rank == 5:
        flat: list[Node] = []
        for node in nodes:
            flat += node.parts if type(node) is Cat and node.tensor is None else [node]
        return Deferred(Cat(flat), session)
    return _value(_layout.cat([n.force() for n in nodes], dim), session)


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


def _stack(tensors, dim=0, **other):
    if other:
        return NotImplemented
    session = _session_of(tensors)
    plain = _plain(list(tensors))
    if any(t.shape != plain[0].shape or t.dtype != plain[0].dtype for t in plain):
        return NotImplemented
    return _value(_layout.stack(plain, dim), session)


def _interpolate(input, size=None, scale_factor=None, mode="nearest", align_corners=None,
                 recompute_scale_factor=None, antialias=False):
    if (type(input) is not Deferred or mode not in ("nearest", "nearest-exact") or align_corners
            or antialias or recompute_scale_factor):
        return NotImplemented
    node, axes = input._node, len(input._node.shape) - 2
    if axes not in (2, 3):
        return NotImplemented
    if size is not None:
        size = _tuple(size, axes)
        if any(s % n for s, n in zip(size, node.shape[2:])):
            return NotImplemented
        factors = tuple(s // n for s, n in zip(size, node.shape[2:]))
    else:
        scale = scale_factor
        scale = (scale,) * axes if isinstance(scale, (int, float)) else tuple(scale)
        if any(s != int(s) or s < 1 for s in scale):
            return NotImplemented
        factors = tuple(int(s) for s in scale)
    if all(f == 1 for f in factors):
        return input
    if type(node) is Cast:  # Copying pixels and casting them may change places.
        return Deferred(Cast(Upsample(node.source, factors), node.dtype), input._session)
    return Deferred(Upsample(node, factors), input._session)


# ---- Norms ---------------------------------------------------------------------------------------


def _narrow(node):
    """(the node before a cast to fp32, whether there was one)."""
    if type(node) is Cast and node.dtype is torch.float32 and node.source.dtype in _HALVES:
        return node.source, True
    return node, False


def _parameter(value, channels):
    """Whether `value` can be a norm's weight or bias: a vector of plain numbers."""
    return value is None or (type(value) is not Deferred and value.numel() == channels)


def _group_norm(input, num_groups, weight=None, bias=None, eps=1e-5, cudnn_enabled=True):
    if type(input) is not Deferred or len(input._node.shape) < 3:
        return NotImplemented
    source, wide = _narrow(input._node)
    channels = source.shape[1]
    if (source.dtype not in _FLOATS or channels % num_groups or source.shape.numel() == 0
            or not _parameter(weight, channels) or not _parameter(bias, channels)):
        return NotImplemented
    made = Norm(input._session, source, "group", eps, num_groups, weight, bias, wide=wide)
    return Deferred(made, input._session)


def _channels_of(x, axis):
    """(node with `axis` as its channels, wrap): wrap(norm of it) has x's axes; None where x's
    memory is of no such kind."""
    session = x._session
    source, wide = _narrow(x._node)
    rank = len(source.shape)
    axis %= rank
    if rank < 3 or source.dtype not in _FLOATS or source.shape.numel() == 0:
        return None
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


def _rms_norm(input, normalized_shape, weight=None, eps=None):
    if type(input) is not Deferred or len(normalized_shape) != 1:
        return NotImplemented
    found = _channels_of(input, -1)
    if found is None or not _parameter(weight, normalized_shape[0]):
        return NotImplemented
    source, wide, wrap = found
    if eps is None:
        eps = torch.finfo(input.dtype).eps
    return wrap(Norm(input._session, source, "added", eps, weight=weight, wide=wide))


def _square(x):
    source, narrow = _narrow(x._node)
    if x._node.dtype not in _FLOATS:
        return NotImplemented
    made = MeanSquare(x._node, torch.square, "square", x._node.shape, source, narrow)
    return Deferred(made, x._session)


def _pow(input, exponent, **other):
    if other or type(input) is not Deferred or type(exponent) is Deferred or exponent != 2:
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
    wide = source.dtype in _HALVES and (narrow or step.narrow)
    return wrap(Norm(x._session, source, "added", step.epsilon, wide=wide))


def _waiting_norm(node):
    """(norm, rewrap) where `node` is a norm that waits for what follows, seen in any axes; else
    (None, None)."""
    if node.tensor is not None:
        return None, None
    if type(node) is Norm:
        return node, lambda made: made
    if type(node) is Viewed and type(node.base) is Norm and node.base.tensor is None:
        return node.base, node.over
    return None, None


def _aligned(node, parameter):
    """Whether a tensor has one number for each channel of a norm, in the norm's axes."""
    rank = len(node.shape)
    if type(node) is Viewed:
        if node.order is None:
            return False
        channel = node.order.index(1)
    else:
        channel = 1
    channels = node.shape[channel]
    if parameter.numel() != channels or parameter.dim() > rank:
        return False
    shape = (1,) * (rank - parameter.dim()) + tuple(parameter.shape)
    return shape[channel] == channels


def _scaled(x, factor):
    """A waiting norm times a number or a weight; None where it does not take it."""
    node = x._node
    norm, rewrap = _waiting_norm(node)
    if norm is None or norm.activation is not None or norm.bias is not None:
        return None
    if isinstance(factor, (int, float)):
        if norm.rule == "group" or norm.weight is not None:
            return None
        return Deferred(rewrap(norm.having(scale=norm.scale * factor)), x._session)
    if type(factor) is Deferred:
        if factor.numel() != norm.shape[1]:
            return None
        factor = factor._force()
    if (norm.weight is not None or not _aligned(node, factor) or factor.device != norm.device
            or torch.promote_types(node.dtype, factor.dtype) != node.dtype):
        return None
    return Deferred(rewrap(norm.having(weight=factor)), x._session)


def _shifted(x, bias):
    """A waiting norm plus a bias; None where it does not take it."""
    node = x._node
    norm, rewrap = _waiting_norm(node)
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
    return Deferred(rewrap(norm.having(bias=bias)), x._session)


# ---- Arithmetic ----------------------------------------------------------------------------------


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _mul(input, other, **keywords):
    if keywords:
        return NotImplemented
    if type(input) is not Deferred:
        input, other = other, input
    if _is_number(other):
        if other == 1:
            return input
        made = _scaled(input, other)
        return NotImplemented if made is None else made
    if type(other) is not Deferred and not _is_tensor(other):
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
    return NotImplemented if made is None else made


def _div(input, other, *, rounding_mode=None, **keywords):
    if keywords or rounding_mode or type(input) is not Deferred:
        return NotImplemented
    if _is_number(other):
        if other == 1:
            return input
        made = None if other == 0 else _scaled(input, 1 / other)
    else:
        made = _root_mean_square(input, other, "root")
    return NotImplemented if made is None else made


def _add(input, other, *, alpha=1, **keywords):
    if keywords or alpha != 1:
        return NotImplemented
    if type(input) is not Deferred:
        input, other = other, input
    node, session = input._node, input._session
    if _is_number(other):
        if type(node) is MeanSquare and node.stage == "mean":
            made = node.next("added", lambda t: t + other, epsilon=float(other))
            return Deferred(made, session)
        return input if other == 0 else NotImplemented
    if not _is_tensor(other):
        return NotImplemented
    for a, b in ((input, other), (other, input)):
        if type(a) is not Deferred:
            continue
        conv = a._node
        if (type(conv) is Conv and conv.residual is None and conv.may_fuse()
                and b.shape == conv.shape and b.dtype == conv.dtype and b.device == conv.device):
            session.fused["residual"] += 1
            return Deferred(conv.with_residual(_node(b)), session)
    made = _shifted(input, other)
    if made is None and type(other) is Deferred:
        made = _shifted(other, input)
    return NotImplemented if made is None else made


def _activate(x, activation, inplace=False):
    node, session = x._node, x._session
    norm, rewrap = _waiting_norm(node)
    if norm is not None and norm.activation is None:
        made = rewrap(norm.having(activation=activation))
        session.fused["norm and activation"] += 1
    elif type(node) is Conv and node.activation is None and node.may_fuse():
        made = node.with_activation(activation)
        session.fused["convolution and activation"] += 1
    else:
        return NotImplemented
    if inplace:
        if x._viewed:
            return NotImplemented
        x._node = made
        return x
    return Deferred(made, session)


def _activation(name):
    def handler(input, inplace=False, **other):
        if other or type(input) is not Deferred:
            return NotImplemented
        return _activate(input, (name, 0.0, 0.0), inplace)

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


def _dropout(input, p=0.5, training=True, inplace=False):
    return NotImplemented if training and p else input


# ---- Types and axes ------------------------------------------------------------------------------


def _cast(x, dtype):
    node, session = x._node, x._session
    if node.dtype == dtype:
        return x
    if type(node) is Cast:
        if node.source.dtype == dtype:
            return Deferred(node.source, session)
        return _value(node.source.force().to(dtype), session)
    norm, rewrap = _waiting_norm(node)
    if norm is not None and norm.wide and norm.source.dtype == dtype:
        made = norm.having(wide=False)
        return Deferred(rewrap(made), session)
    if node.dtype in _HALVES and dtype is torch.float32:
        return Deferred(Cast(node, dtype), session)
    return _value(node.force().to(dtype), session)


def _to(input, *args, **kwargs):
    if type(input) is not Deferred or (set(kwargs) - {"device", "dtype", "non_blocking"}):
        return NotImplemented
    dtype, device = kwargs.get("dtype"), kwargs.get("device")
    for value in args:
        if isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, (str, torch.device, int)) and not isinstance(value, bool):
            device = value
        elif _is_tensor(value):
            dtype, device = value.dtype, value.device
        elif isinstance(value, bool) or value is None:
            continue
        else:
            return NotImplemented
    if len(args) > 3 or any(v is True for v in args[2:]):
        return NotImplemented
    if device is not None:
        device, here = torch.device(device), input._node.device
        if device.type != here.type or (device.index is not None and device.index != here.index):
            return NotImplemented
    return input if dtype is None else _cast(input, dtype)


def _getitem(x, index):
    node, session = x._node, x._session
    if type(node) is Cat and node.tensor is None:
        whole = slice(None)
        if (isinstance(index, tuple) and 3 <= len(index) <= 5 and isinstance(index[2], slice)
                and index[2].step in (None, 1)
                and all(i == 2 or (isinstance(v, slice) and v == whole)
                        for i, v in enumerate(index))):
            begin, end, _ = index[2].indices(node.shape[2])
            parts = node.frames(begin, end)
            if parts:
                return Deferred(parts[0] if len(parts) == 1 else Cat(parts), session)
    if index is Ellipsis:
        return x
    plain = _plain(index)
    items = plain if isinstance(plain, tuple) else (plain,)
    result = _value(node.force()[plain], session, given=_is_given(node))
    if all(v is None or v is Ellipsis or isinstance(v, (int, slice)) for v in items):
        result._viewed = x._viewed = True
    return result


def _shape_of(sizes):
    if len(sizes) == 1 and not isinstance(sizes[0], int):
        return tuple(sizes[0])
    return sizes


def _reshape(input, *sizes, shape=None, size=None):
    if sizes and isinstance(sizes[0], torch.dtype):
        return NotImplemented
    sizes = shape or size or _shape_of(sizes)
    sizes = tuple(operator.index(s) for s in sizes)
    node = input._node
    if tuple(node.shape) == sizes:
        return input
    if type(node) is Repeat and node.tensor is None:
        return _value(_split_up(node, sizes), input._session)
    return _view(input, lambda t: _layout.reshape(t, sizes))


def _split_up(node, sizes):
    """The tensor of a node with its axes split; of a Repeat without writing it, where the split
    ends where the repetitions do."""
    if type(node) is Repeat and node.tensor is None:
        try:
            return node.expanded().view(sizes)
        except RuntimeError:  # Not a view: written after all.
            pass
    return _layout.reshape(node.force(), sizes)


def _flatten(input, start_dim=0, end_dim=-1):
    rank = len(input._node.shape)
    start, end = start_dim % rank, end_dim % rank
    if start == end:
        return input
    shape = input._node.shape
    return _reshape(input, *shape[:start], math.prod(shape[start:end + 1]), *shape[end + 1:])


def _unflatten(input, dim, sizes):
    shape = input._node.shape
    dim %= len(shape)
    sizes = tuple(sizes)
    if -1 in sizes:
        rest = -math.prod(sizes)
        if rest <= 0 or shape[dim] % rest:
            return NotImplemented
        sizes = tuple(shape[dim] // rest if s == -1 else s for s in sizes)
    return _reshape(input, *shape[:dim], *sizes, *shape[dim + 1:])


def _permute(input, *dims, **other):
    dims = other.get("dims") or _shape_of(dims)
    order = tuple(d % len(input._node.shape) for d in dims)
    return _view(input, lambda t: t.permute(order), order)


def _transpose(input, dim0, dim1):
    order = list(range(len(input._node.shape)))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return _view(input, lambda t: t.transpose(dim0, dim1), tuple(order))


def _movedim(input, source, destination):
    if not isinstance(source, int):
        return NotImplemented
    rank = len(input._node.shape)
    order = [i for i in range(rank) if i != source % rank]
    order.insert(destination % rank, source % rank)
    return _view(input, lambda t: t.movedim(source, destination), tuple(order))


def _squeezing(name):
    def handler(input, *dim, **other):
        function = getattr(torch.Tensor, name)
        return _view(input, lambda t: function(t, *dim, **other))

    return handler


def _contiguous(input, memory_format=None):
    return input  # The order in memory is ours to choose.


def _clone(input, *, memory_format=None):
    node, session = input._node, input._session
    if node.tensor is None:
        return Deferred(node, session)  # Nobody has its memory yet.
    if _is_given(node) or _keeps_much(node.tensor):
        return _value(node.tensor.clone(), session)
    return Deferred(Lent(node.tensor), session)


def _keeps_much(tensor):
    """Whether it is half or less of a large piece of memory, which it would keep alive: the frames
    that a causal cache keeps of a chunk."""
    held = tensor.untyped_storage().nbytes()
    return held >= _LARGE and 2 * tensor.nbytes <= held


def _split(tensor, split_size_or_sections, dim=0):
    node, session = tensor._node, tensor._session
    axis = dim % len(node.shape)
    result, at = [], 0
    for part in node.force().split(split_size_or_sections, axis):
        made = _value(part, session, (node, axis, at), _is_given(node))
        made._viewed = True
        result.append(made)
        at += part.shape[axis]
    tensor._viewed = True
    return tuple(result)


def _repeat(input, *repeats, **other):
    repeats = other.get("repeats") or _shape_of(repeats)
    node = input._node
    if len(repeats) != len(node.shape):
        return NotImplemented
    if all(r == 1 for r in repeats):
        return _clone(input)
    tensor, split, shape = node.force(), [], []
    for axis, (count, extent) in enumerate(zip(repeats, node.shape)):
        tensor = tensor.unsqueeze(2 * axis)
        split += [count, extent]
        shape.append(count * extent)
    made = _layout.reshape(tensor.expand(split), tuple(shape))
    if 0 in made.stride():  # Still a view of the entries that are repeated.
        made = _layout.inner_copy(made)
    return _value(made, input._session)


def _repeat_interleave(input, repeats, dim=None, *, output_size=None):
    if not isinstance(repeats, int) or dim is None:
        return NotImplemented
    return Deferred(Repeat(input._node, repeats, dim % len(input._node.shape)), input._session)


def _pixel_shuffle(input, upscale_factor):
    r, shape = upscale_factor, input._node.shape
    if len(shape) != 4 or shape[1] % (r * r):
        return NotImplemented
    n, c, h, w = shape
    tensor = _split_up(input._node, (n, c // (r * r), r, r, h, w)).permute(0, 1, 4, 2, 5, 3)
    return _value(_layout.reshape(tensor, (n, c // (r * r), h * r, w * r)), input._session)


def _pixel_unshuffle(input, downscale_factor):
    r, shape = downscale_factor, input._node.shape
    if len(shape) != 4 or shape[2] % r or shape[3] % r:
        return NotImplemented
    n, c, h, w = shape
    tensor = input._node.force().reshape(n, c, h // r, r, w // r, r).permute(0, 1, 3, 5, 2, 4)
    return _value(_layout.reshape(tensor, (n, c * r * r, h // r, w // r)), input._session)


# ---- Attention -----------------------------------------------------------------------------------


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
               enable_gqa=False):
    """PyTorch's fused kernels end at 256 channels a head. Beyond, some rows of the scores at a
    time, which stay in the L2 cache."""
    if attn_mask is not None or dropout_p or is_causal or enable_gqa:
        return NotImplemented
    width = query.shape[-1]
    if (query.device.type != "cuda" or width <= 256 or query.dim() != 4
            or query.shape[0] * query.shape[1] > 16 or query.dtype not in _HALVES
            or query.shape[2] < 2048 or value.shape[-1] != width):
        return NotImplemented
    q, k, v = _plain((query, key, value))
    return _value(attend_by_rows(q, k, v, scale), _session_of((query, key, value)))


def attend_by_rows(q, k, v, scale=None, rows=1024):
    """softmax(q·kᵀ·scale)·v of [N, heads, tokens, C], `rows` queries at a time."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for n in range(q.shape[0]):
        for head in range(q.shape[1]):
            keys, values, scaled = k[n, head].t(), v[n, head], q[n, head] * scale
            for begin in range(0, q.shape[2], rows):
                part = slice(begin, begin + rows)
                scores = torch.softmax(torch.mm(scaled[part], keys), -1)
                torch.mm(scores, values, out=out[n, head, part])
    return out


# Whose first argument may be a tensor, or a list of them.
_ANY_FIRST = {"cat", "concat", "concatenate", "stack", "mul", "__mul__", "__rmul__", "multiply",
              "add", "__add__", "__radd__", "scaled_dot_product_attention"}

_HANDLERS = {
    "conv2d": _conv(2), "conv3d": _conv(3), "pad": _pad,
    "cat": _cat, "concat": _cat, "concatenate": _cat, "stack": _stack,
    "interpolate": _interpolate,
    "group_norm": _group_norm, "normalize": _normalize, "rms_norm": _rms_norm,
    "pow": _pow, "__pow__": _pow, "square": lambda input: _square(input), "mean": _mean,
    "sqrt": _root, "rsqrt": _inverse_root,
    "mul": _mul, "__mul__": _mul, "__rmul__": _mul, "multiply": _mul,
    "div": _div, "__truediv__": _div, "divide": _div, "true_divide": _div,
    "add": _add, "__add__": _add, "__radd__": _add,
    "silu": _activation("silu"), "relu": _activation("relu"), "tanh": _activation("tanh"),
    "hardswish": _activation("hardswish"), "sigmoid": _sigmoid, "gelu": _gelu,
    "leaky_relu": _leaky_relu, "relu6": _relu6, "relu_": lambda input: _activate(
        input, ("relu", 0.0, 0.0), True),
    "dropout": _dropout, "dropout2d": _dropout, "dropout3d": _dropout,
    "to": _to, "type_as": lambda input, other: _cast(input, other.dtype),
    "type": lambda input, dtype=None, **other: _cast(input, dtype) if isinstance(
        dtype, torch.dtype) else NotImplemented,
    "float": lambda input, **other: _cast(input, torch.float32),
    "bfloat16": lambda input, **other: _cast(input, torch.bfloat16),
    "half": lambda input, **other: _cast(input, torch.float16),
    "reshape": _reshape, "view": _reshape, "flatten": _flatten, "unflatten": _unflatten,
    "permute": _permute, "transpose": _transpose, "swapaxes": _transpose, "movedim": _movedim,
    "moveaxis": _movedim, "squeeze": _squeezing("squeeze"), "unsqueeze": _squeezing("unsqueeze"),
    "contiguous": _contiguous, "clone": _clone, "split": _split, "detach": lambda input: input,
    "repeat": _repeat, "repeat_interleave": _repeat_interleave,
    "pixel_shuffle": _pixel_shuffle, "pixel_unshuffle": _pixel_unshuffle,
    "scaled_dot_product_attention": _attention,
}


def _method(name, handler):
    """A method of the stand-in itself, past __getattr__."""
    function = getattr(torch.Tensor, name)

    def method(self, *args, **kwargs):
        result = handler(self, *args, **kwargs)
        if result is NotImplemented:
            return _by_pytorch(function, name, (self, *args), kwargs)
        return result

    method.__name__ = name
    setattr(Deferred, name, method)


for _name, _handler in _HANDLERS.items():
    if hasattr(torch.Tensor, _name) and not _name.startswith("_"):
        _method(_name, _handler)


def unwrapped(value, outermost=False):
    """The same with tensors, contiguous as a caller expects them, in tuples, lists and data
    classes too. Plain dictionaries inside are caches, and stay."""
    if type(value) is Deferred:
        return value._force().contiguous()
    if type(value) in (list, tuple):
        return type(value)(unwrapped(v) for v in value)
    if isinstance(value, dict):
        if outermost or type(value) is not dict:
            for key, item in list(value.items()):
                plain = unwrapped(item)
                if plain is not item:
                    value[key] = plain
        return value
    if hasattr(value, "__dict__") and not isinstance(value, (torch.Tensor, torch.nn.Module, type)):
        for key, item in list(vars(value).items()):  # A data class, a distribution.
            if type(item) is Deferred:
                setattr(value, key, unwrapped(item))
    return value
