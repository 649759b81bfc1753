# SPDX-License-Identifier: Apache-2.0
"""The stand-in for a tensor that runs through an accelerated model.

A `Deferred` is a torch.Tensor and answers PyTorch's functions through `__torch_function__`.
Registered ones (_functions.py) may become nodes (_nodes.py); all others are run by PyTorch on the
tensors themselves, and their results are stand-ins again. So a model is taken over by what its
forward() does, whatever its modules are called.
"""

import collections
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from ._layout import inner_copy, is_inner
from ._nodes import Cat, Frames, Lent, Norm, Pad, Value, Viewed, remember, settle
from ._trial import MARK

HALVES = (torch.bfloat16, torch.float16)
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
# NOTE: bound once, since each function of a model asks them.
_Parameter = torch.nn.Parameter
_wrapper, _guard = torch.Tensor._make_wrapper_subclass, torch._C._set_throw_on_mutable_data_ptr
_autocasts, _records = torch._C._is_any_autocast_enabled, torch.is_grad_enabled
_level = torch._C._functorch.maybe_current_level


class Deferred(torch.Tensor):
    """A tensor of an accelerated model: a node, its session, and for an input of the model the
    call that made it. To PyTorch's C++ code it is a tensor without memory, so that what does not
    ask `__torch_function__` comes to `__torch_dispatch__`."""

    __slots__ = ("_apart", "_base", "_entry", "_node", "_session", "_viewed")

    def __new__(cls, node, session, entry=None):
        made = _wrapper(cls, node.shape, dtype=node.dtype, device=node.device)
        _guard(made)  # Native code that asks for its memory gets an error, and no null pointer.
        made._node, made._session, made._entry = node, session, entry
        made._viewed = False  # Whether others may look at the same memory.
        # Of a view, (its source's, the source's shape, step): how the model's own tensor lies; and
        # the source, whose memory it has.
        made._apart = made._base = None
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return call(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return dispatched(func, args, kwargs or {})

    __init__ = object.__init__  # Which does nothing, at once.

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
    requires_grad = property(lambda self: requires_grad(self),
                             lambda self, value: self.requires_grad_(value))
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
        if not self._node.shape:
            raise TypeError("len() of a 0-d tensor")
        return self._node.shape[0]

    def __iter__(self):
        return iter(call(torch.Tensor.unbind, (self,), {}))

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

    def as_subclass(self, kind):
        return self._force().as_subclass(kind)

    def __contains__(self, item):
        return plain(item) in self._force()

    def __array__(self, *args, **keywords):
        return self._force().__array__(*args, **keywords)

    def __dlpack__(self, **keywords):
        return self._force().__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self._force().__dlpack_device__()

    def __getitem__(self, index):
        if _autocasts() or _level() is not None or (_records() and requires_grad(self)):
            return by_pytorch(torch.Tensor.__getitem__, "__getitem__", (self, index), {})
        return HANDLERS["__getitem__"](self, index)

    def __setitem__(self, index, value):
        tensor, index, values = own(self), plain(index), plain(value)
        try:
            tensor[index] = values
        except RuntimeError:
            if type(value) is not Deferred or not torch._C._is_alias_of(tensor, values):
                raise
            tensor[index] = values.clone()  # By strides that are not the model's they overlap.
        write_through(self)


def _arithmetic(name, function):
    def method(self, *other):
        return call(function, (self, *other), {})

    method.__name__ = name
    setattr(Deferred, name, method)


# NOTE: PyTorch's own of these names would come here by a longer way, and `x **= 2` as `x ** 2`.
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "eq", "ne", "lt",
              "le", "gt", "ge", "and", "or", "xor", "radd", "rsub", "rmul", "rtruediv",
              "rfloordiv", "rmod", "rpow", "rmatmul", "neg", "abs", "invert"):
    _arithmetic(f"__{_name}__", getattr(torch.Tensor, f"__{_name}__"))
for _name, _method_name in {"iadd": "add_", "isub": "sub_", "imul": "mul_", "itruediv": "div_",
                            "ifloordiv": "floor_divide_", "imod": "remainder_",
                            "ipow": "pow_"}.items():
    _arithmetic(f"__{_name}__", getattr(torch.Tensor, _method_name))


# ---- Between stand-ins and tensors ---------------------------------------------------------------


def wrong_type(node):
    return f"type {node.dtype}; legal: {', '.join(map(str, FLOATS))}"


def node_of(value):
    """The node of a stand-in or a tensor."""
    return value._node if type(value) is Deferred else Value(value)


def is_exposed(value):
    """A tensor that the model may write to without our seeing it: it must not wait to be read."""
    return type(value) is not Deferred and not isinstance(value, torch.nn.Parameter)


def snapshot(weight):
    """A weight or bias that is to wait until it is read: a copy where the model may write to it
    without our seeing it. None stays None."""
    if weight is None or type(weight) is _Parameter:
        return weight
    if not is_exposed(weight):
        return plain(weight)
    with torch.no_grad():
        made = weight.clone() if weight.dim() < 3 else inner_copy(weight)
    made._convoy_of = weight
    return made


_no_dispatch = torch.Tensor.__torch_dispatch__  # Each look at it makes no new one.


def has_numbers(value):
    """No tensor (None), a stand-in, or a tensor whose numbers lie in memory: not one that wraps
    others, as PyTorch's quantised and distributed ones do."""
    kind = type(value)
    return (kind is _Parameter or kind is Deferred or value is None
            or getattr(kind, "__torch_dispatch__", None) is _no_dispatch)


def is_tensor(value):
    return isinstance(value, torch.Tensor) and has_numbers(value)


# Types of arguments that hold no stand-in.
_SINGLE = frozenset((int, float, bool, str, type(None), slice, torch.Tensor, torch.nn.Parameter,
                     torch.dtype, torch.device, torch.Size))


def plain(value):
    """The same with tensors for stand-ins, in lists, tuples and dictionaries too."""
    kind = type(value)
    if kind is Deferred:
        return value._node.force()
    if kind in _SINGLE:
        return value
    if kind is tuple:
        return tuple([plain(v) for v in value])
    if kind is list:
        return [plain(v) for v in value]
    if isinstance(value, tuple) and kind is not torch.Size:
        return tuple_like(value, map(plain, value))
    if kind is dict:
        return {k: plain(v) for k, v in value.items()}
    return value


def tuple_like(value, items):
    """A tuple of the kind of `value`, which may have named fields."""
    kind = type(value)
    return kind._make(items) if hasattr(kind, "_make") else kind(tuple(items))


def wrapped(value, session, sources=()):
    """The same with stand-ins for floating-point tensors, but for those that carry gradients.
    sources: the stand-ins that it was made of, whose memory it may look at."""
    if type(value) is torch.Tensor:
        if not value.dtype.is_floating_point or value.requires_grad:
            return value
        made = Deferred(Value(value), session)
        for source in sources:
            tensor = source._node.tensor
            if tensor is not None and torch._C._is_alias_of(value, tensor):
                node = alone(source)
                made._node = _value(value, given=is_given(node), base=node)
                made._viewed, made._base = True, source
                source._viewed = True
        return made
    if isinstance(value, tuple) and type(value) is not torch.Size:
        return tuple_like(value, [wrapped(v, session, sources) for v in value])
    if type(value) is list:
        return [wrapped(v, session, sources) for v in value]
    return value


def session_of(values):
    for value in values:
        if type(value) is Deferred:
            return value._session
        if type(value) in (list, tuple):
            found = session_of(value)
            if found is not None:
                return found
    return None


def _has_gradients(values):
    return any(
        requires_grad(value) if isinstance(value, torch.Tensor)
        else isinstance(value, (list, tuple)) and _has_gradients(value) for value in values)


def requires_grad(tensor):
    if type(tensor) is Deferred:
        tensor = tensor._node.tensor
    return tensor is not None and tensor.requires_grad


_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


def _is_foreign(func):
    """An operator of another library's, torch.ops.name.of_it, whatever it is called."""
    return isinstance(func, _OPERATORS) and not (
        func._qualified_op_name if isinstance(func, torch._ops.OpOverloadPacket) else func.name()
    ).startswith(("aten::", "prims::"))


def _by_foreign(func, args, kwargs):
    """Its kernels may go through memory on their own, and write to it: they get tensors that lie as
    the model's own would."""
    values = (*args, *kwargs.values())
    session = session_of(values)
    if session and session.shards and session.shards.active:
        session.shards.require_local(str(func), args)
    overloads = [func] if isinstance(func, torch._ops.OpOverload) else [
        getattr(func, name) for name in func.overloads()]
    written = []
    if any(overload._schema.is_mutable for overload in overloads):
        settle()
        written = list(standins(values))
        for value in written:
            own(value)
    made: dict[int, torch.Tensor] = {}

    def laid(value):
        if type(value) is Deferred:
            if id(value) not in made:
                made[id(value)] = _as_own(value)
            return made[id(value)]
        if isinstance(value, (list, tuple)) and type(value) is not torch.Size:
            return type(value)(map(laid, value))
        return {key: laid(item) for key, item in value.items()} if type(value) is dict else value

    result = func(*laid(args), **laid(kwargs))
    for value in written:
        tensor = value._node.tensor
        if made[id(value)] is not tensor:
            tensor.copy_(made[id(value)])
        write_through(value)
    return wrapped(result, session, [value for value in args if type(value) is Deferred])


def _as_own(x):
    """Its tensor with the strides of the model's own."""
    tensor, form = x._force(), own_form(x)
    if tensor.stride() == form.stride():
        return tensor
    if form.is_contiguous() or 0 in form.stride():
        return tensor.contiguous()
    return torch.empty_strided(form.shape, form.stride(), dtype=tensor.dtype,
                               device=tensor.device).copy_(tensor)


def standins(values):
    """Those among arguments, in lists, tuples and dictionaries too."""
    for value in values:
        if type(value) is Deferred:
            yield value
        elif isinstance(value, (list, tuple)):
            yield from standins(value)
        elif type(value) is dict:
            yield from standins(value.values())


def call(func, args, kwargs):
    if type(func) in _OPERATORS and _is_foreign(func):
        return _by_foreign(func, args, kwargs)
    name = getattr(func, "__name__", "")
    handler = HANDLERS.get(name)
    if handler is not None and args:
        first = args[0]
        is_ours = type(first) is Deferred
        if ((is_ours or name in ANY_FIRST)
                # PyTorch's own operators are to run, on tensors, where gradients are wanted, or a
                # transform of torch.func goes on, within a call that began without; or autocast
                # was switched on.
                and not (_autocasts() or _level() is not None
                         or (_records() and (_has_gradients(args)
                                             or (kwargs and _has_gradients(kwargs.values())))))):
            result = handler(*args, **kwargs)
            if result is not NotImplemented:
                if is_ours and first._apart is not None and name in _POINTWISE and (
                        type(result) is Deferred):
                    _lay_out(result, first)
                return result
    return by_pytorch(func, name, args, kwargs)


# Whose results lie in PyTorch as their first tensor does, but without its gaps.
_POINTWISE = {
    "abs", "add", "bfloat16", "clamp", "clone", "cos", "div", "divide", "elu", "exp", "float",
    "gelu", "half", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log", "mish", "mul",
    "multiply", "neg", "pow", "prelu", "reciprocal", "relu", "relu6", "rsqrt", "rsub", "sigmoid",
    "silu", "sin", "softplus", "sqrt", "square", "sub", "subtract", "tanh", "to", "true_divide",
    "type", "type_as", "where", "__abs__", "__add__", "__mul__", "__neg__", "__pow__", "__radd__",
    "__rmul__", "__rsub__", "__rtruediv__", "__sub__", "__truediv__",
}


def _lay_out(made, source):
    if source._apart is not None and made._apart is None and made._node.shape == source._node.shape:
        made._apart = source._apart, made._node.shape, torch.empty_like


# Functions that go through memory in its order: random numbers, and those that look at the memory.
_IN_ORDER = {
    "alpha_dropout", "as_strided", "bernoulli", "dropout", "dropout1d", "dropout2d", "dropout3d",
    "feature_alpha_dropout", "multinomial", "normal", "poisson", "rand_like", "randint_like",
    "randn_like", "rrelu", "view", "view_as_complex",
}
_RANDOM = _IN_ORDER | {
    "alpha_dropout_", "bernoulli_", "cauchy_", "dropout_", "exponential_", "geometric_",
    "log_normal_", "normal_", "random_", "uniform_",
}


def in_order(value):
    """A tensor with its last axis innermost, as the model's own is; others as they are."""
    return value.contiguous() if isinstance(value, torch.Tensor) else value


# Operators of tensors and numbers that give a tensor of its own memory, whatever they get.
_NEW = {f"__{side}{name}__" for side in ("", "r") for name in ("add", "sub", "mul", "truediv",
                                                               "pow")}
_NEW |= {"add", "sub", "mul", "div", "__neg__"}


def _new(func, args):
    """The short way of `by_pytorch` for these; None where it is not for them."""
    source, given = None, []
    for value in args:
        if type(value) is Deferred:
            if source is None:
                source = value
            value = value._node.force()
        given.append(value)
    if source is None or source._session.shards:
        return None
    result = func(*given)
    if (type(result) is not torch.Tensor or not result.dtype.is_floating_point
            or result.requires_grad or _level() is not None or forward_ad._current_level >= 0):
        return result
    made = Deferred(Value(result), source._session)
    if source._apart is not None:
        _lay_out(made, source)
    return made


def by_pytorch(func, name, args, kwargs):
    if name in _NEW and not kwargs:
        made = _new(func, args)
        if made is not None:
            return made
    if name == "__get__":
        made = wrapped(_seen(func, args, plain, {}), args[0]._session, (args[0],))
        if type(made) is Deferred:
            made._apart = args[0]._apart, args[0].shape, func
        return made
    if name == "__set__":
        return _set_attribute(func, *args)
    session = session_of(args) or session_of(kwargs.values())
    shards = session and session.shards
    if shards and shards.active:
        shards.require_local(name, args)
    in_place = (name[-1:] == "_" and name[-2:-1] != "_") or kwargs.get("inplace")
    out = kwargs.get("out")
    if in_place or out is not None:
        target = args[0] if in_place and args else out
        if type(target) is Deferred:
            return _into(target, func, args, kwargs)
        if type(target) in (list, tuple):
            for value in target:
                if type(value) is Deferred:
                    own(value)
        settle()  # It may be memory that others wait to read.
    named, given = plain(kwargs) if kwargs else {}, plain
    if name in _IN_ORDER:
        named = {key: in_order(value) for key, value in named.items()}
        given = _plain_in_order
    result = _seen(func, args, given, named)
    if _level() is not None or forward_ad._current_level >= 0:
        return result
    sources = [value for value in args if type(value) is Deferred]
    made = wrapped(result, session, sources)
    if type(made) is Deferred and made._viewed and len(sources) == 1 and args[0] is sources[0]:
        rest = args[1:]  # NOTE: `sources` not, whose memory would be kept.
        made._apart = sources[0]._apart, sources[0].shape, lambda t: func(t, *rest, **kwargs)
    elif type(made) in (tuple, list) and len(sources) == 1 and args[0] is sources[0]:
        rest = args[1:]
        for i, part in enumerate(made):
            if type(part) is Deferred and part._viewed:
                part._apart = (sources[0]._apart, sources[0].shape,
                               lambda t, i=i: func(t, *rest, **kwargs)[i])
    elif name in _POINTWISE and type(made) is Deferred and sources:
        _lay_out(made, sources[0])
    return made


def _plain_in_order(args):
    return tuple(in_order(value) for value in plain(args))


def _seen(func, args, given, named):
    """func(*given(args), **named). What it gives may look at a clone that shares memory still, and
    must see what is written to the clone."""
    result = func(*given(args), **named)
    for value in args:
        if type(value) is Deferred and type(value._node) is Lent:
            node, before = value._node, value._node.tensor
            stepped(node, lambda _: result)
            if node.tensor is not before:
                return _seen(func, args, given, named)
    return result


def _looks_at(result, tensor):
    if isinstance(result, (tuple, list)):
        return any(_looks_at(part, tensor) for part in result)
    return isinstance(result, torch.Tensor) and torch._C._is_alias_of(result, tensor)


def _into(target, func, args, kwargs):
    """A function that writes to a stand-in. Returns it."""
    tensor = own(target)  # Before the others: they may be views of it.
    written = tensor
    if getattr(func, "__name__", "") in _RANDOM and not tensor.is_contiguous():
        written = tensor.contiguous()
    rest = [written if value is target else plain(value) for value in args]
    func(*rest, **{key: written if value is target else plain(value)
                   for key, value in kwargs.items()})
    if written is not tensor:
        tensor.copy_(written)
    node = target._node
    if tensor.shape != node.shape or tensor.dtype != node.dtype:
        target._node = Value(tensor)
    write_through(target)
    return target


class _Link:
    """Numbers that lie apart where the model's own tensors would share memory: there `copy` is a
    view of `source`. Both may be gone while views of them, or what they are views of, are not."""

    def __init__(self, source, copy):
        tensor = source._node.tensor
        self._memory = tensor.untyped_storage().data_ptr()
        self._geometry = tensor.shape, tensor.stride(), tensor.storage_offset()
        self._sources, self._copy = [], weakref.ref(copy)
        while source is not None:
            self._sources.append(weakref.ref(source))
            source = source._base

    def ends(self):
        """(stand-in, its part that the other end has) of both ends, those that are there."""
        copy = self._copy()
        if copy is None or copy._node.tensor is None:
            return ()
        for i, ref in enumerate(self._sources):
            source = ref()
            tensor = None if source is None else source._node.tensor
            if tensor is not None and i == 0:
                return (source, _whole), (copy, _whole)
            if tensor is not None and tensor.untyped_storage().data_ptr() == self._memory:
                return (source, lambda t: t.as_strided(*self._geometry)), (copy, _whole)
        return ()


def _whole(tensor):
    return tensor


_links = threading.local()  # .all: those of this thread.


def link(source, copy):
    """What is written to one of them is seen in the other: `write_through`."""
    _links.all = [found for found in getattr(_links, "all", ()) if found.ends()]
    _links.all.append(_Link(source, copy))
    source._viewed = True  # No write may go by another node.


def write_through(written):
    """Let those have the new values whose tensors would share memory with this one's without us."""
    waiting, left = [written._node.tensor], list(getattr(_links, "all", ()))
    while waiting and left:
        tensor = waiting.pop()
        for found in left.copy():
            ends = found.ends()
            for (this, of_this), (other, of_other) in (ends, ends[::-1]) if ends else ():
                if torch._C._is_alias_of(this._node.tensor, tensor):
                    target = of_other(own(other))
                    target.copy_(of_this(this._node.tensor).reshape(target.shape))
                    waiting.append(target)
                    left.remove(found)
                    break


def _set_attribute(func, target, value):
    """target.name = value, of one of PyTorch's own attributes."""
    if func.__self__.__name__ == "data":
        target._node, target._viewed = Value(plain(value)), True
    else:
        func(own(target), plain(value))


def dispatched(func, args, kwargs):
    """An operator that C++ code called on stand-ins, past `__torch_function__`."""
    if not func._schema.is_mutable:
        return func(*plain(args), **plain(kwargs))
    settle()
    written = {}
    for argument, value in zip(func._schema.arguments, args):
        info = argument.alias_info
        if type(value) is Deferred and info is not None and info.is_write:
            written[id(own(value))] = value
    result = func(*plain(args), **plain(kwargs))
    for value in written.values():
        write_through(value)
    return written.get(id(result), result)


def own(deferred):
    """Its tensor, to be written to: what waits or was taken from it before keeps the old values,
    but for views, which see the new ones as PyTorch's do."""
    tensor = deferred._node.force()
    if deferred._session and deferred._session.shards:
        deferred._session.shards.written()
    if deferred._viewed:
        settle()
        tensor = deferred._node.force()
    if not deferred._viewed or deferred._node.shared:
        tensor = tensor.clone()
        deferred._node, deferred._viewed = Value(tensor), True
    return tensor


def value_of(tensor, session, part=None, given=False, base=None):
    """A stand-in of this tensor. base: the node whose memory it may look at."""
    return Deferred(_value(tensor, part, given, base), session)


def _value(tensor, part=None, given=False, base=None):
    if type(base) is Lent and not base.owned and torch._C._is_alias_of(tensor, base.tensor):
        return Lent(tensor, base)
    return Value(tensor, part, given)


_IN_FRAMES = (Pad, Cat, Frames)  # What waits to be read frame by frame, and goes on waiting.


def alone(x):
    """Its node, before others may look at the same memory: one that no other stand-in has, with
    memory that those who look can be told of."""
    node = x._node
    if node.shared and (node.tensor is not None or type(node) not in _IN_FRAMES):
        tensor = node.force()
        node = x._node = Value(tensor.clone()) if is_given(node) else Lent(tensor)
    return node


def stepped(node, step):
    """step(its tensor), which may be a view: of a clone that shares memory still it must see what
    is written to that."""
    tensor = node.force()
    made = step(tensor)
    if (type(node) is Lent and not node.owned and node.origin is None and _looks_at(made, tensor)
            and not (tensor.is_contiguous() or is_inner(tensor))):
        node.own()  # Now, since its copy has other strides.
        made = step(node.force())
    return made


def laid_out(apart):
    """A tensor without memory that lies as the model's own would without us."""
    parent, shape, step = apart
    return step(torch.empty(shape, device="meta") if parent is None else laid_out(parent))


def own_form(x):
    """A tensor without memory that lies as the model's own would without us."""
    return torch.empty(x.shape, device="meta") if x._apart is None else laid_out(x._apart)


def another(x):
    """Its values as another tensor's, which may be written to; no copy until one is."""
    node = x._node
    if x._viewed and type(node) is not Frames:
        tensor = node.force()
        return Deferred(Value(tensor.clone()) if is_given(node) else Lent(tensor), x._session)
    if type(node) is Value and not node.shared:
        remember(node)
    node.shared = True
    return Deferred(node, x._session)


def is_given(node):
    """Whether its memory may be the caller's."""
    return type(node) is Value and node.given


def view(x, step, order=None):
    """`step` of x's tensor. A norm that waits goes on waiting."""
    node = alone(x)
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
                made = Deferred(base, x._session)
            else:
                shape = step(torch.empty(shape, device="meta")).shape
                made = Deferred(Viewed(base, (*steps, step), shape, order), x._session)
            made._viewed = x._viewed = True
            return made
    tensor = node.force()
    seen = stepped(node, step)
    shards = x._session.shards
    if shards and shards.active and seen.stride()[-2:] == tensor.stride()[-2:]:
        shards.follow(seen, tensor)
    made = value_of(seen, x._session, given=is_given(node), base=node)
    made._base, made._viewed = x, True
    x._viewed = True
    if x._apart is not None:
        made._apart = x._apart, x.shape, step
    return made


# ---- Functions -----------------------------------------------------------------------------------

HANDLERS: dict[str, Callable[..., Any]] = {}
# Whose first argument may be a tensor, or a list of them.
ANY_FIRST: set[str] = set()


def _method(name, handler):
    """A method of the stand-in itself, past __getattr__."""
    function, pointwise = getattr(torch.Tensor, name), name in _POINTWISE

    def method(self, *args, **kwargs):
        if not (_autocasts() or _level() is not None or (_records() and requires_grad(self))):
            result = handler(self, *args, **kwargs)
            if result is not NotImplemented:
                if pointwise and self._apart is not None and type(result) is Deferred:
                    _lay_out(result, self)
                return result
        return by_pytorch(function, name, (self, *args), kwargs)

    method.__name__ = name
    setattr(Deferred, name, method)


def register(table, any_first=()):
    """Let table[name] answer PyTorch's functions and methods of that name. A handler gets their
    arguments, and returns NotImplemented for what it leaves to PyTorch. any_first: those whose
    first argument need not be a stand-in."""
    HANDLERS.update(table)
    ANY_FIRST.update(any_first)
    for name, handler in table.items():
        if hasattr(torch.Tensor, name) and not name.startswith("_"):
            _method(name, handler)


def _itself(made):
    return made


def waiting_norm(node):
    """(norm, rewrap) where `node` is a norm that waits for what follows, seen in any axes; else
    (None, None)."""
    if node.tensor is not None:
        return None, None
    if type(node) is Norm:
        return node, _itself
    if type(node) is Viewed and type(node.base) is Norm and node.base.tensor is None:
        return node.base, node.over
    return None, None


_OPAQUE = (torch.Tensor, torch.nn.Module, type, types.ModuleType, types.FunctionType,
           types.MethodType, str, bytes, int, float, type(None))


def _left(value, known):
    """The tensor of a stand-in that the caller gets, whose memory no other one of them has."""
    inner, shards = value._force(), value._session and value._session.shards
    node, tensor = value._node, (shards.leave(inner) if shards else inner).contiguous()
    if tensor is inner and ((type(node) is Lent and not node.owned)
                            or (node.shared and id(node) in known)):
        tensor = tensor.clone()
    known[id(node)] = node, node
    return tensor


def storages(value, found, depth=6):
    """The addresses of the tensors of a result."""
    if type(value) is torch.Tensor:
        if value.layout is torch.strided:
            found.add(value.untyped_storage().data_ptr())
            found.discard(0)  # Of tensors without memory: empty, or on the meta device.
    elif depth == 0:
        pass
    elif isinstance(value, (list, tuple)):
        for item in value:
            storages(item, found, depth - 1)
    elif isinstance(value, dict):
        storages(list(value.values()), found, depth - 1)
    elif hasattr(value, "__dataclass_fields__"):
        storages([getattr(value, name, None) for name in value.__dataclass_fields__], found,
                 depth - 1)
    return found


def tidy(model):
    """Let a model and its parts hold tensors again, where calls have left stand-ins in them: what
    they hold is read, and written to, by calls that are PyTorch's own too."""
    known: dict = {}
    for part in model.modules():
        held = part.__dict__
        for name, value in list(held.items()):
            if name != MARK:
                plain = _held(value, known, 5)
                if plain is not value:
                    held[name] = plain


def tidy_buffers(buffers):
    for held in buffers:
        for name, value in held.items():
            if type(value) is Deferred:
                held[name] = own(value).contiguous()


def _held(value, known, depth):
    """`value`, or what is to be in its place; what it contains is changed where it is."""
    kind = type(value)
    if id(value) in known:
        return known[id(value)][0]
    if kind is Deferred:
        known[id(value)] = own(value).contiguous(), value
        return known[id(value)][0]
    if kind in _SINGLE or isinstance(value, _OPAQUE) or depth == 0:
        return value
    known[id(value)] = value, value
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, (list, collections.deque)):
        items = list(enumerate(value))
    elif isinstance(value, tuple):
        made = [_held(item, known, depth - 1) for item in value]
        if any(a is not b for a, b in zip(made, value)):
            known[id(value)] = tuple_like(value, made), value
        return known[id(value)][0]
    else:
        for name, item in list(getattr(value, "__dict__", {}).items()):
            plain = _held(item, known, depth - 1)
            if plain is not item:
                _put(value, name, plain)
        return value
    for key, item in items:
        plain = _held(item, known, depth - 1)
        if plain is not item:
            value[key] = plain
    return value


def unwrapped(value, outermost=False, depth=0, known=None):
    """The same with tensors, contiguous as a caller expects them, in tuples, lists and data
    classes too. Plain dictionaries inside are caches, and stay, but where the whole model ends.
    depth: there, how far to look into dictionaries and objects. known: (result, value) of what was
    seen before: a stand-in is one tensor, wherever it is."""
    known = {} if known is None else known
    if type(value) is Deferred:
        if id(value) not in known:
            known[id(value)] = _left(value, known), value
        return known[id(value)][0]
    if type(value) in (list, tuple):
        return type(value)(unwrapped(v, depth=depth, known=known) for v in value)
    if isinstance(value, tuple) and type(value) is not torch.Size:
        return tuple_like(value, [unwrapped(v, depth=depth, known=known) for v in value])
    if isinstance(value, (set, frozenset)):
        if any(type(item) is Deferred for item in value):
            return type(value)(unwrapped(item, known=known) for item in value)
        return value
    if isinstance(value, _OPAQUE) or id(value) in known:
        return value
    known[id(value)] = value, value
    if isinstance(value, (list, collections.deque)):
        for i, item in enumerate(value):
            value[i] = unwrapped(item, depth=depth, known=known)
        return value
    if isinstance(value, dict):
        if outermost or depth > 0 or type(value) is not dict:
            for key, item in list(value.items()):
                plain = unwrapped(item, depth=depth - 1, known=known)
                if plain is not item:
                    value[key] = plain
        return value
    # A data class, a distribution, a cache.
    for name in (*getattr(value, "__dict__", ()), *_slots(type(value))):
        item = getattr(value, name, None)
        if type(item) is Deferred:
            _put(value, name, unwrapped(item, known=known))
        elif depth > 0 and isinstance(item, (list, tuple, set, frozenset)):
            plain = unwrapped(item, depth=depth - 1, known=known)
            if plain is not item and any(a is not b for a, b in zip(plain, item)):
                _put(value, name, plain)
        elif depth > 0:
            unwrapped(item, depth=depth - 1, known=known)
    return value


def _slots(kind):
    """The names of what objects of a class hold outside of their dictionaries."""
    found: list[str] = []
    for base in kind.__mro__[:-1]:
        slots = vars(base).get("__slots__", ())
        found += (slots,) if isinstance(slots, str) else slots
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def _put(value, name, item):
    try:
        setattr(value, name, item)
    except AttributeError:  # A frozen data class.
        object.__setattr__(value, name, item)
