# SPDX-License-Identifier: Apache-2.0
"""The stand-in for a tensor that runs through an accelerated model.

A `Deferred` is a torch.Tensor and answers PyTorch's functions through `__torch_function__`.
Registered ones (_functions.py) may become nodes (_nodes.py); all others are run by PyTorch on the
tensors themselves, and their results are stand-ins again. So a model is taken over by what its
forward() does, whatever its modules are called. Who sees what is written to one is in _memory.py.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from ._layout import inner_copy, is_inner
from ._memory import (
    Apart,
    alone,
    follow,
    is_dense,
    is_given,
    lent,
    lie_alike,
    looks_at,
    own,
    own_form,
    stepped,
    strides_like,
    value_on,
    write_through,
)
from ._nodes import Frames, Lent, Norm, Value, Viewed, remember, settle
from ._steps import run

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
            copied = _unaliased(tensor, values)
            if type(value) is not Deferred or copied is values:
                raise
            tensor[index] = copied  # By strides that are not the model's they overlap.
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
SINGLE = frozenset((int, float, bool, str, type(None), slice, torch.Tensor, torch.nn.Parameter,
                     torch.dtype, torch.device, torch.Size))


def plain(value):
    """The same with tensors for stand-ins, in lists, tuples and dictionaries too."""
    kind = type(value)
    if kind is Deferred:
        return value._node.force()
    if kind in SINGLE:
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
            return _as_own_lies(value, sources)
        made = Deferred(Value(value), session)
        for source in sources:
            tensor = source._node.tensor
            if tensor is not None and torch._C._is_alias_of(value, tensor):
                node = alone(source)
                made._node = value_on(value, given=is_given(node), base=node)
                made._viewed, made._base = True, source
                source._viewed = True
        return made
    if isinstance(value, tuple) and type(value) is not torch.Size:
        return tuple_like(value, [wrapped(v, session, sources) for v in value])
    if type(value) is list:
        return [wrapped(v, session, sources) for v in value]
    return value


def _as_own_lies(value, sources):
    """A result that is no stand-in, which answers view() and stride() itself: in the memory order
    that the model's own would have. sources: the stand-ins that it was made of. NOTE: not where it
    carries gradients: each step of a training would be a copy."""
    if (not sources or type(value) is not torch.Tensor or value.layout is not torch.strided
            or value.requires_grad or value.dim() < 3
            or (value.is_contiguous() and all(source._apart is None for source in sources))):
        return value
    tensors = [source._force() for source in sources]
    if any(torch._C._is_alias_of(value, tensor) for tensor in tensors):
        return value
    source, tensor = next(
        (pair for pair in zip(sources, tensors) if pair[1].shape == value.shape),
        (sources[0], tensors[0]))
    form = own_form(source)
    if tensor.shape == value.shape and lie_alike(
            value.shape, value.stride(), strides_like(tensor.shape, tensor.stride())):
        strides = strides_like(form.shape, form.stride())
        return value if value.stride() == strides else torch.empty_strided(
            value.shape, strides, dtype=value.dtype, device=value.device).copy_(value)
    return value.contiguous() if is_inner(value) and form.is_contiguous() else value


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
                made[id(value)] = as_own(value)
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


def as_own(x):
    """Its tensor with the strides of the model's own."""
    tensor, form = x._force(), own_form(x)
    if tensor.stride() == form.stride():
        return tensor
    if form.is_contiguous() or 0 in form.stride():
        return tensor.contiguous()
    if is_dense(form.shape, form.stride()):  # NOTE: operators that a recorded call can repeat.
        order = sorted(range(form.dim()), key=lambda i: (-form.stride(i), i))
        laid = tensor.permute(order).contiguous().permute(
            [order.index(i) for i in range(form.dim())])
        if laid.stride() != form.stride():  # Along an axis of one.
            laid = laid.as_strided(form.shape, form.stride())
        return laid
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
    if (handler is not None and args and (type(args[0]) is Deferred or name in ANY_FIRST)
            # PyTorch's own operators are to run, on tensors, where gradients are wanted, or a
            # transform of torch.func goes on, within a call that began without; or autocast was
            # switched on.
            and not (_autocasts() or _level() is not None
                     or (_records() and (_has_gradients(args)
                                         or (kwargs and _has_gradients(kwargs.values())))))):
        result = handler(*args, **kwargs)
        if result is not NotImplemented:
            lay = LAYS.get(name)
            if lay is not None and type(result) is Deferred and result._apart is None:
                lay(result, name, args, kwargs)
            return result
    return by_pytorch(func, name, args, kwargs)


# Functions that go through memory in its order: random numbers, and those that look at the memory.
_IN_ORDER = {
    "alpha_dropout", "as_strided", "bernoulli", "dropout", "dropout1d", "dropout2d", "dropout3d",
    "feature_alpha_dropout", "multinomial", "normal", "poisson", "rand_like", "randint_like",
    "randn_like", "rrelu", "view", "view_as_complex",
    # NOTE: of five axes with channels innermost PyTorch has no kernel on the CPU.
    "pixel_shuffle", "pixel_unshuffle",
}
_RANDOM = _IN_ORDER | {
    "alpha_dropout_", "bernoulli_", "cauchy_", "dropout_", "exponential_", "geometric_",
    "log_normal_", "normal_", "random_", "uniform_",
}


# Operators of tensors and numbers that give a tensor of its own memory, whatever they get.
_NEW = {f"__{side}{name}__" for side in ("", "r") for name in ("add", "sub", "mul", "truediv",
                                                               "pow")}
_NEW |= {"add", "sub", "mul", "div", "__neg__"}


def _new(func, name, args):
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
    result = run(func, given, {})
    if _level() is not None or forward_ad._current_level >= 0:
        return result
    if (type(result) is not torch.Tensor or not result.dtype.is_floating_point
            or result.requires_grad):
        return _as_own_lies(result, (source,))
    made = Deferred(Value(result), source._session)
    LAYS[name](made, name, args, {})
    return made


def by_pytorch(func, name, args, kwargs):
    if name in _NEW and not kwargs:
        made = _new(func, name, args)
        if made is not None:
            return made
    if name == "__get__":
        made = wrapped(_seen(func, args, plain, {}), args[0]._session, (args[0],))
        if type(made) is Deferred:
            made._apart = Apart(args[0]._apart, args[0].shape, func)
        return made
    if name == "__set__":
        return _set_attribute(func, *args)
    session = session_of(args) or session_of(kwargs.values())
    shards = session and session.shards
    if shards and shards.active:
        shards.require_local(name, args)
    in_place = (name[-1:] == "_" and name[-2:-1] != "_") or kwargs.get("inplace")
    out = kwargs.get("out")
    written: list[Deferred] = []
    if in_place or out is not None:
        target = args[0] if in_place and args else out
        if type(target) is Deferred:
            return _into(target, func, args, kwargs)
        if type(target) in (list, tuple):
            written = [value for value in target if type(value) is Deferred]
            for value in written:
                own(value)
        settle()  # It may be memory that others wait to read.
    named, given = plain(kwargs) if kwargs else {}, plain
    if name in _IN_ORDER:
        named = {key: in_order(value) for key, value in kwargs.items()}
        given = _all_in_order
    result = _seen(func, args, given, named)
    for value in written:
        write_through(value)
    if _level() is not None or forward_ad._current_level >= 0:
        return result
    sources = [value for value in args if type(value) is Deferred]
    is_itself = len(sources) == 1 and result is sources[0]._node.tensor  # cpu() of what is there.
    made = wrapped(result, session, sources or list(standins(kwargs.values())))
    if is_itself and type(made) is Deferred:
        made._apart = sources[0]._apart
    elif type(made) is Deferred and made._viewed and len(sources) == 1 and args[0] is sources[0]:
        rest = args[1:]  # NOTE: `sources` not, whose memory would be kept.
        made._apart = Apart(sources[0]._apart, sources[0].shape,
                            lambda t: func(t, *rest, **kwargs))
    elif type(made) in (tuple, list) and len(sources) == 1 and args[0] is sources[0]:
        rest = args[1:]
        for i, part in enumerate(made):
            if type(part) is Deferred and part._viewed:
                part._apart = Apart(sources[0]._apart, sources[0].shape,
                                    lambda t, i=i: func(t, *rest, **kwargs)[i])
    elif name in LAYS and type(made) is Deferred and sources:
        LAYS[name](made, name, args, kwargs)
    return made


def in_order(value):
    """A stand-in's tensor in the order of memory of the model's own."""
    return as_own(value) if type(value) is Deferred else plain(value)


def _all_in_order(args):
    return tuple(map(in_order, args))


def _seen(func, args, given, named):
    """func(*given(args), **named). What it gives may look at a clone that shares memory still, and
    must see what is written to the clone."""
    result = run(func, given(args), named)
    for value in args:
        if type(value) is Deferred and (value._node.shared or type(value._node) is Lent):
            before = value._node.tensor
            node = alone(value) if looks_at(result, before) else value._node
            if type(node) is Lent:
                stepped(node, lambda _: result)
            if node.tensor is not before:
                return _seen(func, args, given, named)
    return result


def _into(target, func, args, kwargs):
    """A function that writes to a stand-in. Returns it."""
    tensor = own(target)  # Before the others: they may be views of it.
    written = tensor
    if getattr(func, "__name__", "") in _RANDOM:
        written = as_own(target)
    rest = [written if value is target else plain(value) for value in args]
    lay = tensor.shape, tensor.stride()
    named = {key: written if value is target else plain(value) for key, value in kwargs.items()}
    try:
        func(*rest, **named)
    except RuntimeError:
        copied = [value if value is written else _unaliased(written, value) for value in rest]
        if all(map(operator.is_, copied, rest)):
            raise
        func(*copied, **named)  # By strides that are not the model's they overlap.
    if written is not tensor:
        tensor.copy_(written)
    node = target._node
    if lay != (tensor.shape, tensor.stride()):  # unsqueeze_, transpose_ ...
        behind = args[1:]
        target._apart = Apart(target._apart, lay[0], lambda t: func(t, *behind, **kwargs))
    if tensor.shape != node.shape or tensor.dtype != node.dtype:
        target._node = Value(tensor)
    write_through(target)
    return target


def _unaliased(tensor, value):
    """A copy of what shares the tensor's memory; else `value`."""
    if isinstance(value, torch.Tensor) and torch._C._is_alias_of(tensor, value):
        return value.clone()
    return value


def _set_attribute(func, target, value):
    """target.name = value, of one of PyTorch's own attributes."""
    if func.__self__.__name__ == "data":
        target._node, target._viewed = Value(plain(value)), True
    else:
        func(own(target), plain(value))


def dispatched(func, args, kwargs):
    """An operator that C++ code called on stand-ins, past `__torch_function__`."""
    if not func._schema.is_mutable:
        result, sources = func(*plain(args), **plain(kwargs)), list(standins(args))
        if isinstance(result, (tuple, list)):
            return type(result)(_as_own_lies(part, sources) for part in result)
        return _as_own_lies(result, sources)
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


def value_of(tensor, session, part=None, given=False, base=None):
    """A stand-in of this tensor. base: the node whose memory it may look at."""
    return Deferred(value_on(tensor, part, given, base), session)


def another(x):
    """Its values as another tensor's, which may be written to; no copy until one is."""
    node = x._node
    if x._viewed and type(node) is not Frames:
        return Deferred(lent(node), x._session)
    if type(node) is Value and not node.shared:
        remember(node)
    node.shared = True
    return Deferred(node, x._session)


def view(x, step, order=None):
    """`step` of x's tensor. A norm that waits goes on waiting."""
    node = alone(x)
    if node.tensor is None and type(node) in (Norm, Viewed):
        base, steps, shape = (node, (), node.shape) if type(node) is Norm else (
            node.base, node.steps, node.shape)
        if base.tensor is None:
            if type(node) is Viewed:
                if node.axes is None or order is None:
                    order = None
                else:
                    order = tuple(node.axes[i] for i in order)
            if order is not None and order == tuple(range(len(order))):
                made = Deferred(base, x._session)
            else:
                shape = step(torch.empty(shape, device="meta")).shape
                made = Deferred(Viewed(base, (*steps, step), shape, order), x._session)
            made._viewed = x._viewed = True
            if x._apart is not None:
                made._apart = Apart(x._apart, x.shape, step)
            return made
    tensor = node.force()
    seen = stepped(node, step)
    shards = x._session.shards
    if shards and shards.active and seen.stride()[-2:] == tensor.stride()[-2:]:
        shards.follow(seen, tensor)
    made = value_of(seen, x._session, given=is_given(node), base=node)
    made._base, made._viewed = x, True
    x._viewed = True
    follow(x, made, step)
    if x._apart is not None:
        made._apart = Apart(x._apart, x.shape, step)
    return made


# ---- Functions -----------------------------------------------------------------------------------

HANDLERS: dict[str, Callable[..., Any]] = {}
# How a result would lie in memory, lay(made, name, args, kwargs) (_strides.py).
LAYS: dict[str, Callable[..., None]] = {}
# Whose first argument may be a tensor, or a list of them.
ANY_FIRST: set[str] = set()


def _method(name, handler):
    """A method of the stand-in itself, past __getattr__."""
    function, lay = getattr(torch.Tensor, name), LAYS.get(name)

    def method(self, *args, **kwargs):
        if not (_autocasts() or _level() is not None or (_records() and requires_grad(self))):
            result = handler(self, *args, **kwargs)
            if result is not NotImplemented:
                if lay is not None and type(result) is Deferred and result._apart is None:
                    lay(result, name, (self, *args), kwargs)
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
