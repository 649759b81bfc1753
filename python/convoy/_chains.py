# SPDX-License-Identifier: Apache-2.0
"""Pointwise functions between convolutions: sums, products and activations of large tensors wait
for each other, and are done in one pass over memory, where PyTorch makes one for each.

A chain rounds after every function, as PyTorch does. On the CPU, and where a chain is one function
of whole tensors, PyTorch's own operators run.
"""

import math
import operator

import torch
from torch.autograd import forward_ad

from . import _nodes
from ._calls import NAMES, stream_of
from ._conv_node import Conv
from ._deferred import FLOATS, Deferred
from ._layout import is_inner
from ._nodes import Cat, Node, Norm, Sigmoid, Upsample, Value
from ._plan import cached_elementwise
from ._steps import step

_OPERANDS, _STEPS = 4, 12
_NUMBER, _KEPT = -1, -2
# Bytes from which on a tensor's functions wait: below, the host's time counts. "cpu": for tests.
LEAST_BYTES = {"cuda": 8 << 20, "cpu": math.inf}
DEVICES = {"cuda"}  # That have a kernel for chains.
_SMALL = 1 << 16  # Elements of a tensor of the model's own that are copied, so that it may change.
_FUNCTIONS = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul}
_SWAPPED = {"add": "add", "multiply": "multiply", "subtract": "subtract_from"}


class Chain(Node):
    """`a` kind `b`, or an activation of `a`. a, b: nodes, or one of them a number; of `a` or `b`
    one at least has the chain's shape. leaves: the nodes at its ends; steps: how many functions;
    nested: whether it keeps a value while another is found; taken: another chain finds it on its
    way, and the next one that wants it is to have it found once for all."""

    __slots__ = ("a", "activation", "b", "kind", "leaves", "nested", "session", "steps", "taken")

    def __init__(self, session, kind, a, b, shape, dtype, device, activation=None):
        super().__init__(shape, dtype, device)
        self.session, self.kind, self.a, self.b = session, kind, a, b
        self.activation, self.taken = activation, False
        for part in (a, b):
            if type(part) is Chain and part.tensor is None:
                if part.taken:
                    part.force()
                part.taken = True
        while not self._fits():
            # The longer of the two is found alone.
            max(a, b, key=lambda part: _steps(part, shape)).force()

    def _fits(self):
        a, b = self.a, self.b
        leaves = _leaves(a, self.shape) | _leaves(b, self.shape)
        steps_a, steps_b = _steps(a, self.shape), _steps(b, self.shape)
        both = steps_a > 0 and steps_b > 0
        self.steps = steps_a + steps_b + 1 + both
        self.leaves = leaves
        self.nested = both or _nested(a) or _nested(b)
        return (len(leaves) <= _OPERANDS and self.steps <= _STEPS
                and sum(type(leaf) is Norm for leaf in leaves) <= 1
                and not (both and _nested(a) and _nested(b)))

    def compute(self):
        made = None
        if self.device.type in DEVICES and (
                self.steps > 1 or any(leaf.shape != self.shape for leaf in self.leaves)):
            made = _Program(self).run()
        return self.by_pytorch() if made is None else made

    def by_pytorch(self):
        def value(part):
            if type(part) is Chain and part.tensor is None:
                return part.by_pytorch()
            return part.force() if isinstance(part, Node) else part

        if self.kind == "activation":
            return _nodes.activate(value(self.a), self.activation)
        return _FUNCTIONS[self.kind](value(self.a), value(self.b))

    def forget(self):
        self.a = self.b = self.leaves = None


def _is_affine(node):
    """A GroupNorm that waits: a scale and a shift of each channel, once its statistics are known.
    """
    return (type(node) is Norm and node.tensor is None and node.rule == "group" and not node.wide
            and node.device.type in DEVICES)


def _inner(part, shape):
    """Whether a part of a chain of this shape is found on the way."""
    return (isinstance(part, Node) and part.tensor is None and part.shape == shape
            and (type(part) in (Chain, Sigmoid) or _is_affine(part)))


def _leaves(part, shape):
    if not isinstance(part, Node):
        return frozenset()
    if _inner(part, shape):
        if type(part) is Chain:
            return part.leaves
        if type(part) is Sigmoid:
            return _leaves(part.source, shape)
    return frozenset((part,))


def _steps(part, shape):
    if not _inner(part, shape):
        return 0
    if type(part) is Chain:
        return part.steps
    if type(part) is Sigmoid:
        return 1 + _steps(part.source, shape)
    return 1 + (part.activation is not None)


def _nested(part):
    if type(part) is Sigmoid:
        return part.tensor is None and _nested(part.source)
    return type(part) is Chain and part.tensor is None and part.nested


# ---- One pass ------------------------------------------------------------------------------------


def _enlarged(node):
    """(a node of fewer pixels, ratio, offset of each axis after the channels) where `node` is a
    convolution of one tap of enlarged pixels, and its pixels as well be enlarged afterwards;
    else None."""
    if not (type(node) is Conv and node.tensor is None and node.residual is None
            and node.cache is None and node.shuffle is None and node.upsample == 1
            and all(e == 1 for e in node.weight.shape[2:]) and not any(node.begin + node.end)
            and all(s == 1 for s in node.stride)):
        return None
    found = _source(node.source)
    if found is None:
        return None
    source, ratio, offset = found
    how = node.how.of_source(source.shape)
    made = node.with_geometry(how)
    made.source, made.shape = source, how.shape
    return made, ratio, offset


def _source(node):
    """The same of the pixels that are enlarged."""
    if node.tensor is not None:
        return None
    if type(node) is Upsample:
        return node.source, tuple(node.factors), (0,) * len(node.factors)
    if type(node) is Cat and len(node.parts) == 2:  # One frame, and later ones of their own.
        first, rest = node.parts
        if (type(first) is Upsample and first.tensor is None and type(rest) is Upsample
                and rest.tensor is None and first.shape[2] == 1 and rest.factors[0] > 0
                and first.factors[1:] == rest.factors[1:]):
            base, at = _nodes.frames_of(first.source)
            other, behind = _nodes.frames_of(rest.source)
            if base is not None and base is other and (at, behind) == (0, 1) and (
                    base.shape[2] == 1 + rest.source.shape[2]):
                ratio = tuple(rest.factors)
                return base, ratio, (ratio[0] - 1, *(0,) * (len(ratio) - 1))
    return None


class _Program:
    """A chain as convoy.ElementwisePlan has it."""

    def __init__(self, chain):
        self.chain, self.leaves, self.steps, self.norm = chain, [], [], None
        self._emit(chain)

    def _operand(self, leaf):
        for i, known in enumerate(self.leaves):
            if known is leaf:
                return i
        self.leaves.append(leaf)
        return len(self.leaves) - 1

    def _step(self, op, operand=_NUMBER, number=0.0, activation=("none", 0.0, 0.0)):
        name, a, b = activation
        self.steps.append((op, operand, number, name, a or 0.0, b or 0.0))

    def _with(self, op, part):
        if isinstance(part, Node):
            self._step(op, self._operand(part))
        else:
            self._step(op, _NUMBER, float(part))

    def _emit(self, part):
        shape = self.chain.shape
        if not _inner(part, shape):
            self._begin(part)
        elif type(part) is Sigmoid:
            self._emit(part.source)
            self._step("activation", activation=("sigmoid", 0.0, 0.0))
        elif type(part) is Norm:
            self.norm = part
            self._begin(part)
            self._step("affine")
            if part.activation is not None:
                self._step("activation", activation=part.activation)
        elif part.kind == "activation":
            self._emit(part.a)
            self._step("activation", activation=part.activation)
        elif not _inner(part.b, shape) and isinstance(part.a, Node):
            self._emit(part.a)
            self._with(part.kind, part.b)
        elif not _inner(part.a, shape):
            self._emit(part.b)
            self._with(_SWAPPED[part.kind], part.a)
        else:
            first, second, op = part.a, part.b, _SWAPPED[part.kind]
            if _nested(second):
                first, second, op = second, first, part.kind
            self._emit(first)
            self._emit(second)  # Which keeps the first.
            self._step(op, _KEPT)

    def _begin(self, leaf):
        operand = self._operand(leaf)
        if operand > 0 or self.steps:
            self._step("load", operand)

    def run(self):
        """The tensor; None where the kernel is not for it."""
        chain = self.chain
        tensors: list = []
        ratios: list = []
        for leaf in self.leaves:
            enlarged = _enlarged(leaf) if leaf.shape == chain.shape else None
            if self.norm is not None and leaf is self.norm:
                leaf = leaf.source
            if enlarged is None:
                tensors.append(leaf.force())
                ratios.append(None)
            else:
                tensors.append(enlarged[0].force())
                ratios.append(enlarged[1:])
        like = next((tensor for tensor, ratio in zip(tensors, ratios)
                     if ratio is None and tensor.shape == chain.shape
                     and 0 not in tensor.stride()), None)
        if like is None:
            return None
        order = _order_of(like)  # As PyTorch has it, also where `like` has gaps.
        axes = _axes_of(chain.shape, order)
        if axes is None or (self.norm is not None and (axes[0] != 0 or axes[-1] != 1)):
            return None
        operands = []
        for tensor, ratio in zip(tensors, ratios):
            operand = _operand_of(tensor, ratio, chain.shape, axes)
            if operand is None:
                return None
            operands.append(operand)
        extents = tuple(1 if axis is None else chain.shape[axis] for axis in axes)
        plan = cached_elementwise(extents, tuple(operands), tuple(self.steps), NAMES[chain.dtype],
                                  -1 if like.device.index is None else like.device.index)
        coefficients = None
        if self.norm is not None:
            coefficients = chain.session.coefficients(self.norm, like)
        out = _run(plan, _strides_of(chain.shape, order), like, tensors, coefficients)
        chain.session.fused["pointwise function"] += len(self.steps)
        return out


@step
def _run(plan, strides, like, tensors, coefficients):
    """A tensor of these strides, and of the shape, type and device of `like`."""
    out = torch.empty_strided(like.shape, strides, dtype=like.dtype, device=like.device)
    plan.run(out.data_ptr(), [tensor.data_ptr() for tensor in tensors],
             None if coefficients is None else coefficients.data_ptr(), stream_of(like.device))
    return out


def _order_of(tensor):
    """Its axes, from the one whose entries lie farthest apart to the innermost one."""
    shape, strides = tensor.shape, tensor.stride()
    if is_inner(tensor):
        return [0, *range(2, len(shape)), 1]
    return sorted(range(len(shape)), key=lambda i: (shape[i] > 1, -strides[i], i))


def _strides_of(shape, order):
    """Of dense memory whose axes lie in this order."""
    strides, dense = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = dense
        dense *= shape[axis]
    return tuple(strides)


def _axes_of(shape, order):
    """The axes as n, d, h, w, c of dense memory, None for those it lacks; None where there are
    more."""
    axes = list(order)
    while len(axes) > 5 and shape[axes[1]] == 1:
        del axes[1]
    if len(axes) > 5 or not axes:
        return None
    return [axes[0], *(None,) * (5 - len(axes)), *axes[1:]] if len(axes) > 1 else [
        None, None, None, None, axes[0]]


def _operand_of(tensor, ratio, shape, axes):
    """(strides, ratio, offset) of a plan's operand; None where the kernel does not take it."""
    if ratio is None:
        strides = tensor.expand(shape).stride()
        ratios, offsets = [1, 1, 1], [0, 0, 0]
    else:
        strides = tensor.stride()
        if axes[0] != 0 or axes[-1] != 1:
            return None
        ratios = [1 if axis is None else ratio[0][axis - 2] for axis in axes[1:4]]
        offsets = [0 if axis is None else ratio[1][axis - 2] for axis in axes[1:4]]
    ordered = [0 if axis is None or (ratio is None and shape[axis] == 1) else strides[axis]
               for axis in axes]
    if ordered[-1] not in (0, 1) or (ordered[-1] == 1 and tensor.data_ptr() % 16):
        return None
    return tuple(ordered), tuple(ratios), tuple(offsets)


# ---- What may wait -------------------------------------------------------------------------------


def _may_wait(node, session):
    size = node.shape.numel() * node.dtype.itemsize
    return (size >= LEAST_BYTES.get(node.device.type, math.inf) and node.dtype in FLOATS
            and not session.shards and session.quality == "fast" and forward_ad._current_level < 0)


def binary(kind, x, other):
    """x kind other, which wait; NotImplemented where PyTorch is to do it. One of them is a
    stand-in."""
    session = (x if type(x) is Deferred else other)._session
    nodes: list = []
    for value in (x, other):
        if type(value) is Deferred:
            nodes.append(value._node)
        elif isinstance(value, torch.nn.Parameter):
            nodes.append(Value(value))
        elif isinstance(value, torch.Tensor):
            if value.numel() > _SMALL:  # The model may write to it without our seeing it.
                return NotImplemented
            nodes.append(value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and (
                abs(value) < 2**24 or (isinstance(value, float) and abs(value) < 1e38)):
            nodes.append(float(value))
        else:
            return NotImplemented
    full = max((n for n in nodes if not isinstance(n, float)), key=lambda n: n.shape.numel())
    if not isinstance(full, Node) or not _may_wait(full, session):
        return NotImplemented
    for i, node in enumerate(nodes):
        if isinstance(node, float):
            continue
        if node.dtype is not full.dtype or node.device != full.device or (
                node.shape != full.shape and not _expands(node.shape, full.shape)):
            return NotImplemented
        if not isinstance(node, Node):
            nodes[i] = Value(node.detach().clone())
    a, b = nodes
    return Deferred(Chain(session, kind, a, b, full.shape, full.dtype, full.device), session)


def _expands(shape, full):
    return len(shape) <= len(full) and all(
        s in (1, f) for s, f in zip(reversed(shape), reversed(full)))


def activation(x, kind):
    """An activation of a stand-in, which waits; NotImplemented where PyTorch is to do it."""
    node, session = x._node, x._session
    if not _may_wait(node, session):
        return NotImplemented
    return Deferred(Chain(session, "activation", node, None, node.shape, node.dtype, node.device,
                          kind), session)


def takes(x, other):
    """Whether the sum of the two is rather one more function of a chain than the residual of a
    convolution: a convolution of enlarged pixels has few of its own."""
    for a, b in ((x, other), (other, x)):
        if (type(a) is Deferred and type(a._node) is Chain and a._node.tensor is None
                and type(b) is Deferred and a._node.device.type in DEVICES
                and _enlarged(b._node) is not None):
            return True
    return False
