# SPDX-License-Identifier: Apache-2.0
"""What an accelerated model has asked for and not yet needed: norms that wait for their
activation, convolutions for their residual, paddings, concatenations and upsamplings for the
convolution that reads them.

A node has the shape and type of its tensor; `force()` computes it, once. Nodes are never changed
after that: fusing makes a new one, and leaves the old one as it was for whoever else holds it.
"""

import itertools
import math
import threading
import weakref

import torch
import torch.nn.functional as F

from . import _layout

ACTIVATIONS = {
    "relu": lambda x, a, b: F.relu(x),
    "leaky_relu": lambda x, a, b: F.leaky_relu(x, a),
    "gelu": lambda x, a, b: F.gelu(x),
    "gelu_tanh": lambda x, a, b: F.gelu(x, approximate="tanh"),
    "silu": lambda x, a, b: F.silu(x),
    "sigmoid": lambda x, a, b: torch.sigmoid(x),
    "tanh": lambda x, a, b: torch.tanh(x),
    "hardswish": lambda x, a, b: F.hardswish(x),
    "clamp": lambda x, a, b: F.hardtanh(x, a, b),
}


def activate(x, activation):
    """activation: (name, parameter a, parameter b), or None."""
    return x if activation is None else ACTIVATIONS[activation[0]](x, *activation[1:])


def carry(made, sources):
    """Let `made`, frames of tensors of the same rows, hold the halos that all of them hold."""
    marks = [source._convoy_halo for source in sources if hasattr(source, "_convoy_halo")]
    if len(marks) == len(sources) and len({mark[0] for mark in marks}) == 1:
        made._convoy_halo = tuple(map(min, zip(*marks)))
    return made


_local = threading.local()
_orders = itertools.count()
_ref = weakref.ref
_level = torch._C._functorch.maybe_current_level


class _Nodes(list):
    """Weak references to nodes; looked through once they are `limit`."""

    limit = 1024


def remember(node):
    """So that `settle` finds it, as long as it lives. order: what it waits for has a lower one."""
    node.order = next(_orders)
    try:
        nodes = _local.nodes
    except AttributeError:
        nodes = _local.nodes = _Nodes()
    nodes.append(_ref(node))
    if len(nodes) > nodes.limit:
        nodes[:] = [ref for ref in nodes if ref() is not None]
        nodes.limit = 1024 + 2 * len(nodes)


def settle():
    """Before memory is written to that others look at: compute what waits, and let what was lent
    have memory of its own."""
    for ref in list(getattr(_local, "nodes", ())):
        node = ref()
        if node is None:
            continue
        if node.tensor is None:
            tensor = node.force()
            if node.shared and type(node) is Frames:
                node.tensor = tensor.clone()
        elif type(node) is Lent and not node.owned:
            node.own()


def slots_of(kind):
    """The names of what objects of a class hold outside of their dictionaries."""
    found: list[str] = []
    for base in kind.__mro__[:-1]:
        slots = vars(base).get("__slots__", ())
        found += (slots,) if isinstance(slots, str) else slots
    return [name for name in found if name not in ("__dict__", "__weakref__")]


_slots: dict[type, list[str]] = {}  # Of each kind of node.


def fields_of(node):
    """What a node holds, lists and tuples opened."""
    kind = type(node)
    if kind not in _slots:
        _slots[kind] = slots_of(kind)
    for name in _slots[kind]:
        value = getattr(node, name, None)
        if isinstance(value, (list, tuple)):
            yield from value
        else:
            yield value


def settle_readers(parameter):
    """Before a parameter is written to: compute what waits and reads it."""
    for ref in list(getattr(_local, "nodes", ())):
        node = ref()
        if node is not None and node.tensor is None and any(
                held is parameter or (type(held) is Value and held.tensor is parameter)
                for held in fields_of(node)):
            node.force()


def settle_readers_of(written):
    """Before tensors are written to: compute what waits and reads their memory."""
    waiting = [node for node in (ref() for ref in getattr(_local, "nodes", ()))
               if node is not None and node.tensor is None]
    if not waiting:
        return
    addresses = {_address(tensor) for tensor in written} - {0}
    for node in waiting:
        if node.tensor is None and any(_address(held) in addresses for held in fields_of(node)):
            node.force()


def _address(held):
    """Of the storage of a tensor, or of a node that has one; 0 of others."""
    tensor = held.tensor if isinstance(held, Node) else held
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return 0
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:  # One that wraps others has none.
        return 0


_LOOKED_AT = 24


def waits_for(node, other):
    """Whether `other` is among the nearest of what `node` waits for."""
    waiting = [node]
    for _ in range(_LOOKED_AT):
        if not waiting:
            break
        node = waiting.pop(0)
        if node is other:
            return True
        if node.tensor is None and node.order > other.order:
            waiting += [part for part in fields_of(node) if isinstance(part, Node)]
    return False


def _reads(node, addresses):
    """Whether what waits reads memory of the caller's: what he gave, or storage at an address."""
    waiting = [node]
    while waiting:
        tensor = waiting[-1].tensor
        node = waiting.pop()
        if tensor is not None:
            if (type(node) is Value and node.given) or (
                    tensor.untyped_storage().data_ptr() in addresses):
                return True
            continue
        waiting += [part for part in fields_of(node) if isinstance(part, Node)]
    return False


def part_from(addresses):
    """At the end of a call: what lives on, in what the model holds, and reads memory that the
    caller may write to, his own or storage at these addresses, is computed, or copied, now."""
    nodes = getattr(_local, "nodes", None)
    if not nodes:
        return
    alive = [node for node in (ref() for ref in nodes) if node is not None]
    nodes[:] = map(_ref, alive)
    for node in alive:
        if node.tensor is None:
            if _reads(node, addresses):
                tensor = node.force()
                if tensor.untyped_storage().data_ptr() in addresses:
                    node.tensor = tensor.clone()
        elif (type(node) is Lent and not node.owned
                and node.tensor.untyped_storage().data_ptr() in addresses):
            if node.origin is not None and not node.origin.owned:
                node.origin.own()
            node.own()
        elif node.shared and node.tensor.untyped_storage().data_ptr() in addresses:
            node.tensor = node.tensor.clone()


class Node:
    """shape, dtype, device: of the tensor. tensor: it, where it is there. shared: whether several
    stand-ins have it that are not to see what is written to the others."""

    __slots__ = ("__weakref__", "device", "dtype", "order", "shape", "shared", "tensor")

    def __init__(self, shape, dtype, device):
        self.shape, self.dtype, self.device, self.tensor = shape, dtype, device, None
        self.shared = False
        remember(self)

    def force(self):
        tensor = self.tensor
        if tensor is None:
            if _level() is None:
                tensor = self.tensor = self.compute()
            else:  # It was asked for before the transform, which is of what follows.
                with torch._C._DisableFuncTorch():
                    tensor = self.tensor = self.compute()
            self.forget()
        return tensor

    def compute(self):
        raise NotImplementedError

    def forget(self):
        """Let go of the inputs."""

    def write(self, target):
        """The values into a part of a larger tensor."""
        _layout.copy(target, self.force())


class Value(Node):
    """A tensor that is there. part: (node, axis, first) where it is a slice made by split. given:
    the caller's own memory, which it may write to later."""

    __slots__ = ("given", "part")

    def __init__(self, tensor, part=None, given=False):
        self.tensor = tensor
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device
        self.part, self.given, self.shared = part, given, False


class Lent(Value):
    """A clone that shares memory until somebody writes to it. origin: the clone that this one is a
    view of; owned: whether it has memory of its own."""

    __slots__ = ("_offset", "origin", "owned")

    def __init__(self, tensor, origin=None):
        super().__init__(tensor)
        self.origin, self.owned = origin and (origin.origin or origin), False
        if origin is not None:
            self._offset = tensor.storage_offset() - self.origin.tensor.storage_offset()
        remember(self)

    def own(self):
        """Have memory of its own: a view that of its origin, which has had it before."""
        old = self.force()
        if self.origin is None:
            self.tensor = old.clone()
        else:
            begin = self.origin.tensor.storage_offset() + self._offset
            self.tensor = self.origin.tensor.as_strided(old.shape, old.stride(), begin)
        self.owned = True


def twin(node):
    """Another node of the same inputs, for one that waits."""
    made = object.__new__(type(node))
    for name in slots_of(type(node)):
        setattr(made, name, getattr(node, name))
    made.shared = False
    remember(made)
    return made


class Cast(Node):
    """`source` in a wider type."""

    __slots__ = ("source",)

    def __init__(self, source, dtype):
        super().__init__(source.shape, dtype, source.device)
        self.source = source

    def compute(self):
        return self.source.force().to(self.dtype)


class Sigmoid(Node):
    """Of `source`; times `source` it is SiLU."""

    __slots__ = ("source",)

    def __init__(self, source):
        super().__init__(source.shape, source.dtype, source.device)
        self.source = source

    def compute(self):
        return torch.sigmoid(self.source.force())


class MeanSquare(Node):
    """A step on the way to an RMSNorm written out: square, mean, added (epsilon), root, inverse.
    narrow: the node before it was cast to the type of this one."""

    __slots__ = ("axis", "before", "epsilon", "narrow", "source", "stage", "step")

    def __init__(self, before, step, stage, shape, source, narrow, axis=None, epsilon=0.0):
        super().__init__(shape, before.dtype, before.device)
        self.before, self.step, self.stage, self.source = before, step, stage, source
        self.narrow, self.axis, self.epsilon = narrow, axis, epsilon

    def compute(self):
        return self.step(self.before.force())

    def next(self, stage, step, shape=None, axis=None, epsilon=None):
        return MeanSquare(self, step, stage, self.shape if shape is None else shape, self.source,
                          self.narrow, self.axis if axis is None else axis,
                          self.epsilon if epsilon is None else epsilon)


class Pad(Node):
    """`source` padded along the axes after the channels."""

    __slots__ = ("begin", "end", "modes", "session", "source")

    def __init__(self, source, begin, end, modes, session=None):
        extents = (b + n + e for b, n, e in zip(begin, source.shape[2:], end))
        super().__init__(torch.Size((*source.shape[:2], *extents)), source.dtype, source.device)
        self.source, self.begin, self.end, self.modes = source, begin, end, modes
        self.session = session

    def compute(self):
        shards = self.session and self.session.shards
        if shards and shards.active and (self.begin[-2] or self.end[-2]):
            shards.require_whole_rows(self.source.shape, -2, "padding")
        return _layout.pad(self.source.force(), self.begin, self.end, self.modes)


class Cat(Node):
    """Frames (axis 2) of several nodes, one after another."""

    __slots__ = ("parts",)

    def __init__(self, parts):
        first = parts[0]
        shape = list(first.shape)
        shape[2] = sum(part.shape[2] for part in parts)
        super().__init__(torch.Size(shape), first.dtype, first.device)
        self.parts = parts

    def compute(self):
        first = self.parts[0]
        waits = type(first) is Upsample and first.tensor is None
        like = (first.source if waits else first).force()
        made = _layout.join(like, first.shape, [part.shape[2] for part in self.parts],
                            [part.write for part in self.parts], 2)
        if all(part.tensor is not None for part in self.parts):
            carry(made, [part.tensor for part in self.parts])
        return made

    def frames(self, begin, end):
        """Parts that hold frames [begin, end)."""
        found, at = [], 0
        for part in self.parts:
            count = part.shape[2]
            first, last = max(begin - at, 0), min(end - at, count)
            if first < last:
                if last - first == count:
                    found.append(part)
                else:
                    tensor = part.force()
                    found.append(Value(carry(tensor[:, :, first:last], [tensor])))
            at += count
        return found


class Frames(Node):
    """`count` frames (axis 2) of `base` from `first` on, while `base` waits."""

    __slots__ = ("base", "first")

    def __init__(self, base, first, count):
        shape = torch.Size((*base.shape[:2], count, *base.shape[3:]))
        super().__init__(shape, base.dtype, base.device)
        self.base, self.first = base, first

    def compute(self):
        tensor = self.base.force()
        return carry(tensor[:, :, self.first:self.first + self.shape[2]], [tensor])


def frames_of(node):
    """(base, first): which frames of which other node these are; (None, 0) of none."""
    if type(node) is Frames and node.tensor is None:
        return node.base, node.first
    if type(node) is Value and node.part is not None and node.part[1] == 2:
        return node.part[0], node.part[2]
    return None, 0


def take_frames(base, first, count):
    """`count` frames of `base` from `first` on; `base` itself where those are all."""
    if count == base.shape[2]:
        return base
    if base.tensor is None:
        return Frames(base, first, count)
    part = carry(base.tensor[:, :, first:first + count], [base.tensor])
    return Value(part, (base, 2, first), type(base) is Value and base.given)


class Upsample(Node):
    """Nearest neighbours of `source`, `factors` for each axis after the channels."""

    __slots__ = ("factors", "source")

    def __init__(self, source, factors):
        extents = (n * f for n, f in zip(source.shape[2:], factors))
        super().__init__(torch.Size((*source.shape[:2], *extents)), source.dtype, source.device)
        self.source, self.factors = source, factors

    def compute(self):
        return _layout.upsample(self.source.force(), self.factors)

    def write(self, target):
        if self.tensor is None:
            _layout.upsample(self.source.force(), self.factors, target)
        else:
            super().write(target)


class Repeat(Node):
    """Each entry of `source` along `axis` `count` times, one after another."""

    __slots__ = ("axis", "count", "source")

    def __init__(self, source, count, axis):
        shape = list(source.shape)
        shape[axis] *= count
        super().__init__(torch.Size(shape), source.dtype, source.device)
        self.source, self.count, self.axis = source, count, axis

    def expanded(self):
        """With the repetitions as an axis of their own behind `axis`; a view."""
        return repeated(self.source.force(), self.count, self.axis)

    def compute(self):
        made = _layout.reshape(self.expanded(), tuple(self.shape))
        # NOTE: one entry, however often it is repeated, is a view still.
        shares = made.untyped_storage().data_ptr() == (
            self.source.force().untyped_storage().data_ptr())
        return _layout.inner_copy(made) if shares else made


class Viewed(Node):
    """The node `base` in other axes. steps: functions of its tensor; axes: where each one comes
    from, where all steps are permutations."""

    __slots__ = ("axes", "base", "steps")

    def __init__(self, base, steps, shape, axes):
        super().__init__(shape, base.dtype, base.device)
        self.base, self.steps, self.axes = base, steps, axes

    def compute(self):
        tensor = self.base.force()
        for step in self.steps:
            tensor = step(tensor)
        return tensor

    def over(self, base):
        """The same axes of another base of the same shape."""
        return Viewed(base, self.steps, self.shape, self.axes)


class Norm(Node):
    """activation(norm(source)·weight + bias). rule: "group" with `groups`, "added" or "norm_floor"
    (as convoy.torch.rms_norm); scale: what the result of the rule's plain formula is multiplied
    by, where norm_floor's plain formula is F.normalize. wide: its logical type is fp32, though its
    source has 16 bits; it becomes cheap once it is cast back. taken: a convolution has computed it
    for itself."""

    __slots__ = ("activation", "bias", "epsilon", "groups", "rule", "scale", "session", "source",
                 "taken", "weight", "wide")

    def __init__(self, session, source, rule, epsilon, groups=0, weight=None, bias=None, scale=1.0,
                 activation=None, wide=False):
        self.shape, self.device = source.shape, source.device
        self.dtype = torch.float32 if wide else source.dtype
        self.tensor, self.shared = None, False
        remember(self)
        self.session, self.source, self.rule, self.epsilon = session, source, rule, epsilon
        self.groups, self.weight, self.bias, self.scale = groups, weight, bias, scale
        self.activation, self.wide, self.taken = activation, wide, False

    def having(self, **changes):
        """The same with other weight, bias, scale, activation or wide."""
        get = changes.get
        return Norm(self.session, self.source, self.rule, self.epsilon, self.groups,
                    get("weight", self.weight), get("bias", self.bias), get("scale", self.scale),
                    get("activation", self.activation), get("wide", self.wide))

    def with_activation(self, activation):
        return Norm(self.session, self.source, self.rule, self.epsilon, self.groups, self.weight,
                    self.bias, self.scale, activation, self.wide)

    def like(self, other):
        """The same norm of another tensor."""
        return (isinstance(other, Norm) and other.tensor is None and self.rule == other.rule
                and self.epsilon == other.epsilon and self.groups == other.groups
                and self.weight is other.weight and self.bias is other.bias
                and self.scale == other.scale and self.activation == other.activation
                and self.wide == other.wide)

    def compute(self):
        x, session = self.source.force(), self.session
        if self.taken:  # And it is wanted itself: not again.
            session.share(self.weight)
        if session.shards and session.shards.active:
            return session.shards.norm(self, x)
        if self.wide:
            return self.eager(x.float())
        return session.norm(self, x)

    def eager(self, x):
        """By PyTorch's own operators."""
        weight, bias = self.weight, self.bias
        if self.rule == "group":
            y = F.group_norm(x, self.groups, weight, bias, self.epsilon)
        else:
            wide = x.float()
            if self.rule == "added":
                y = wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + self.epsilon)
            else:
                y = F.normalize(wide, dim=1, eps=self.epsilon)
            if self.scale != 1.0:
                y = y * self.scale
            axes = (1, -1, *(1,) * (x.dim() - 2))
            if weight is not None:
                y = y * weight.reshape(axes)
            if bias is not None:
                y = y + bias.reshape(axes)
            y = y.to(x.dtype)
        return activate(y, self.activation)

    def plain_scale(self):
        """What Convoy's norm is to be multiplied by: its norm_floor has sqrt(C) already."""
        scale = self.scale
        if self.rule == "norm_floor":
            scale /= math.sqrt(self.source.shape[1])
        return 1.0 if abs(scale - 1.0) < 1e-6 else scale

    def forget(self):
        self.source = None


def repeated(x, count, axis):
    """Each entry of `axis` `count` times, the repetitions as an axis of their own behind it; a
    view."""
    shape = list(x.shape)
    shape.insert(axis + 1, count)
    return x.unsqueeze(axis + 1).expand(shape)


def shuffle(x, how, repeats=1):
    """Filters, each `repeats` times, as pixels: one copy where repetitions are whole axes of the
    pixels. how: (factors, order, dropped frames)."""
    factors, order, dropped = how
    axes = x.dim() - 2
    factors = factors[3 - axes:]
    n, filters, *extents = x.shape
    channels = filters * repeats // math.prod(factors)
    outer = order == "channels_outer"
    # vmap has no memory formats.
    reshape = _layout.reshape if _level() is None else torch.Tensor.reshape
    x = repeated(x, repeats, 1) if repeats > 1 else x
    x = reshape(x, (n, *((channels, *factors) if outer else (*factors, channels)), *extents))
    first = 2 if outer else 1  # Of the factors.
    pixels = [axis for i in range(axes) for axis in (2 + axes + i, first + i)]
    x = x.permute(0, 1 if outer else 1 + axes, *pixels)
    x = reshape(x, (n, channels, *(e * f for e, f in zip(extents, factors))))
    if dropped:
        x = x[:, :, dropped:]
    return x if _level() is not None or _layout.is_inner(x) else _layout.inner_copy(x)


class ShuffledRepeat(Node):
    """Channels of `source`, each `repeats` times, as pixels."""

    __slots__ = ("how", "repeats", "source")

    def __init__(self, source, repeats, how):
        factors = how[0][3 - (len(source.shape) - 2):]
        n, channels, *extents = source.shape
        shape = (n, channels * repeats // math.prod(factors),
                 *(e * f for e, f in zip(extents, factors)))
        super().__init__(torch.Size(shape), source.dtype, source.device)
        self.source, self.repeats, self.how = source, repeats, how

    def compute(self):
        return shuffle(self.source.force(), self.how, self.repeats)


class Digits(Node):
    """A convolution that waits, `base`, with its axes split and in another order. axes: for each
    one the digits of base's axes that it counts, (axis, stride, size), the slowest first. steps:
    functions that give its tensor from base's."""

    __slots__ = ("axes", "base", "steps")

    def __init__(self, base, axes, steps):
        shape = torch.Size(math.prod(size for _, _, size in digits) for digits in axes)
        super().__init__(shape, base.dtype, base.device)
        self.base, self.axes, self.steps = base, tuple(axes), steps

    def compute(self):
        tensor = self.base.force()
        for step in self.steps:
            tensor = step(tensor)
        return tensor


class Select(Node):
    """Entry `index` of an axis of Digits."""

    __slots__ = ("axis", "base", "index")

    def __init__(self, base, axis, index):
        super().__init__(torch.Size((*base.shape[:axis], *base.shape[axis + 1:])), base.dtype,
                         base.device)
        self.base, self.axis, self.index = base, axis, index

    def compute(self):
        return self.base.force().select(self.axis, self.index)
