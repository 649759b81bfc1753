# SPDX-License-Identifier: Apache-2.0
"""The stand-in for a tensor that runs through an accelerated model.

A `Deferred` passes for a torch.Tensor (`isinstance` says so) and answers PyTorch's functions
through `__torch_function__`. Registered ones (_functions.py) may become nodes (_nodes.py); all
others are run by PyTorch on the tensors themselves, and their results are stand-ins again. So a
model is taken over by what its forward() does, whatever its modules are called.
"""

from collections.abc import Callable
from typing import Any

import torch

from ._nodes import Norm, Value, Viewed, settle

HALVES = (torch.bfloat16, torch.float16)
FLOATS = (torch.bfloat16, torch.float16, torch.float32)


class Deferred:
    """A tensor of an accelerated model: a node, its session, and for an input of the model the
    call that made it."""

    __slots__ = ("__weakref__", "_entry", "_node", "_session", "_viewed")

    def __init__(self, node, session, entry=None):
        self._node, self._session, self._entry = node, session, entry
        self._viewed = False  # Whether others may look at the same memory.

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return call(func, args, kwargs or {})

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

    def __contains__(self, item):
        return item in self._force()

    def __array__(self, *args):
        return self._force().__array__(*args)

    def __dlpack__(self, **keywords):
        return self._force().__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self._force().__dlpack_device__()

    def __getitem__(self, index):
        return HANDLERS["__getitem__"](self, index)

    def __setitem__(self, index, value):
        tensor = own(self)
        tensor[plain(index)] = plain(value)

    def __getattr__(self, name):
        found = getattr(torch.Tensor, name)
        if callable(found):
            return lambda *args, **kwargs: call(found, (self, *args), kwargs)
        if name.startswith("__"):
            raise AttributeError(name)
        return wrapped(getattr(self._force(), name), self._session)


def _arithmetic(name, function):
    def method(self, other):
        if not isinstance(other, (torch.Tensor, int, float, complex)):
            return NotImplemented
        return call(function, (self, other), {})

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
    setattr(Deferred, name, lambda self: call(function, (self,), {}))


for _name in ("neg", "abs", "invert"):
    _unary(f"__{_name}__", getattr(torch.Tensor, f"__{_name}__"))


# ---- Between stand-ins and tensors ---------------------------------------------------------------


def node_of(value):
    """The node of a stand-in or a tensor."""
    return value._node if type(value) is Deferred else Value(value)


def is_tensor(value):
    return isinstance(value, torch.Tensor)


def plain(value):
    """The same with tensors for stand-ins, in lists, tuples and dictionaries too."""
    kind = type(value)
    if kind is Deferred:
        return value._node.force()
    if kind in (list, tuple):
        return kind(plain(v) for v in value)
    if kind is dict:
        return {k: plain(v) for k, v in value.items()}
    return value


def wrapped(value, session):
    """The same with stand-ins for floating-point tensors."""
    if type(value) is torch.Tensor:
        return Deferred(Value(value), session) if value.dtype.is_floating_point else value
    if isinstance(value, tuple) and type(value) is not torch.Size:
        made = [wrapped(v, session) for v in value]
        return tuple(made) if type(value) is tuple else type(value)(made)
    if type(value) is list:
        return [wrapped(v, session) for v in value]
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


def call(func, args, kwargs):
    name = func.__name__
    handler = HANDLERS.get(name)
    if handler is not None and args and (type(args[0]) is Deferred or name in ANY_FIRST):
        result = handler(*args, **kwargs)
        if result is not NotImplemented:
            return result
    return by_pytorch(func, name, args, kwargs)


def by_pytorch(func, name, args, kwargs):
    session = session_of(args) or session_of(kwargs.values())
    shards = session and session.shards
    if shards and shards.active:
        shards.require_local(name, args)
    in_place = (name[-1] == "_" and name[-2] != "_") or kwargs.get("inplace")
    if in_place and args and type(args[0]) is Deferred:
        func(own(args[0]), *plain(args[1:]), **plain(kwargs))
        return args[0]
    result = func(*plain(args), **plain(kwargs))
    return wrapped(result, session)


def own(deferred):
    """Its tensor, to be written to: what waits or was taken from it before keeps the old values,
    but for views, which see the new ones as PyTorch's do."""
    tensor = deferred._node.force()
    if deferred._session and deferred._session.shards:
        deferred._session.shards.written()
    if deferred._viewed:
        settle()
        tensor = deferred._node.force()
    else:
        tensor = tensor.clone()
        deferred._node, deferred._viewed = Value(tensor), True
    return tensor


def value_of(tensor, session, part=None, given=False):
    return Deferred(Value(tensor, part, given), session)


def is_given(node):
    """Whether its memory may be the caller's."""
    return type(node) is Value and node.given


def view(x, step, order=None):
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
    tensor = node.force()
    stepped = step(tensor)
    shards = x._session.shards
    if shards and shards.active and stepped.stride()[-2:] == tensor.stride()[-2:]:
        shards.follow(stepped, tensor)
    made = value_of(stepped, x._session, given=is_given(node))
    made._viewed = x._viewed = True
    return made


# ---- Functions -----------------------------------------------------------------------------------

HANDLERS: dict[str, Callable[..., Any]] = {}
# Whose first argument may be a tensor, or a list of them.
ANY_FIRST: set[str] = set()


def _method(name, handler):
    """A method of the stand-in itself, past __getattr__."""
    function = getattr(torch.Tensor, name)

    def method(self, *args, **kwargs):
        result = handler(self, *args, **kwargs)
        if result is NotImplemented:
            return by_pytorch(function, name, (self, *args), kwargs)
        return result

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


def waiting_norm(node):
    """(norm, rewrap) where `node` is a norm that waits for what follows, seen in any axes; else
    (None, None)."""
    if node.tensor is not None:
        return None, None
    if type(node) is Norm:
        return node, lambda made: made
    if type(node) is Viewed and type(node.base) is Norm and node.base.tensor is None:
        return node.base, node.over
    return None, None


def unwrapped(value, outermost=False):
    """The same with tensors, contiguous as a caller expects them, in tuples, lists and data
    classes too. Plain dictionaries inside are caches, and stay."""
    if type(value) is Deferred:
        tensor, shards = value._force(), value._session and value._session.shards
        return (shards.leave(tensor) if shards else tensor).contiguous()
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
