# SPDX-License-Identifier: Apache-2.0
"""Tensors again, where stand-ins were: in what a call gives its caller, and in what the model
holds."""

import collections
import types

import torch

from ._deferred import SINGLE, Deferred, as_own, tuple_like
from ._memory import is_dense, own, own_form
from ._nodes import Lent, slots_of
from ._trial import MARK, has_hooks

_SEQUENCES = frozenset((tuple, list))
_CONTAINERS = frozenset((dict, collections.OrderedDict, set))
# Of a module: its parts are asked by themselves, and its parameters are parameters.
_NO_STANDINS = frozenset((MARK, "_modules", "_parameters"))
# Ours, and PyTorch's compiler's call of a part, where `has_hooks` finds no others.
_HOOKS = frozenset(
    ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
     "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_compiled_call_impl"))
_OPAQUE = (torch.Tensor, torch.nn.Module, type, types.ModuleType, types.FunctionType,
           types.MethodType, str, bytes, int, float, type(None))


def left(value, known, lay=None):
    """The tensor of a stand-in that the caller gets, whose memory no other one of them has. known:
    the nodes of those that were left before. lay(tensor): as the caller expects it in memory; None:
    as the model's own would lie, if dense, and else contiguous."""
    inner, shards, node = value._force(), value._session and value._session.shards, value._node
    if lay is not None or shards:
        tensor = (lay or torch.Tensor.contiguous)(shards.leave(inner) if shards else inner)
    else:
        tensor = _laid(value, inner)
    if tensor is inner and ((type(node) is Lent and not node.owned)
                            or (node.shared and id(node) in known)):
        tensor = tensor.clone()
    known[id(node)] = node, node
    return tensor


def _laid(value, tensor):
    """`tensor`, a stand-in's, as the model's own would lie."""
    if value._apart is None or not is_dense(value.shape, own_form(value).stride()):
        return tensor.contiguous()
    return as_own(value)


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


def _holds_nothing(value):
    """Of what a module holds nearly everything: numbers, tensors, tuples of numbers, no hooks.
    NOTE: asked before each call that is PyTorch's own, of some thirty values a module."""
    kind = type(value)
    return kind in SINGLE or (kind in _SEQUENCES and SINGLE.issuperset(map(type, value))) or (
        kind in _CONTAINERS and not value)


def is_closed(module, given):
    """Whether a call of `module` with `given` meets no stand-in that earlier calls left, not even
    in a list of another module: numbers and tensors are all it gets and all its parts hold."""
    return all(map(_holds_nothing, given)) and not has_hooks(module) and all(
        _holds_nothing(value) or name in _NO_STANDINS or name in _HOOKS or (
            name == "_buffers" and SINGLE.issuperset(map(type, value.values())))
        for part in module.modules() for name, value in part.__dict__.items())


def tidy(*models):
    """Let models and their parts hold tensors again, where calls have left stand-ins in them: what
    they hold is read, and written to, by calls that are PyTorch's own too. A part of another model
    is looked at once."""
    known: dict = {}
    seen: set = set()
    for part in (part for model in models for _, part in model.named_modules(seen)):
        held = part.__dict__
        for name, value in list(held.items()):
            if not _holds_nothing(value) and name not in _NO_STANDINS:
                plain = _held(value, known, 5)
                if plain is not value:
                    held[name] = plain


def tidy_buffers(buffers):
    for held in buffers:
        for name, value in held.items():
            if type(value) is Deferred:
                held[name] = _laid(value, own(value))


def _held(value, known, depth):
    """`value`, or what is to be in its place; what it contains is changed where it is."""
    if _holds_nothing(value):
        return value
    kind = type(value)
    if id(value) in known:
        return known[id(value)][0]
    if kind is Deferred:
        known[id(value)] = _laid(value, own(value)), value
        return known[id(value)][0]
    if isinstance(value, _OPAQUE) or depth == 0:
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
    """The same with tensors, as a caller expects them in memory, in tuples, lists and data classes
    too. Plain dictionaries inside are caches, and stay, but where the whole model ends.
    depth: there, how far to look into dictionaries and objects. known: (result, value) of what was
    seen before: a stand-in is one tensor, wherever it is."""
    known = {} if known is None else known
    if type(value) is Deferred:
        if id(value) not in known:
            known[id(value)] = left(value, known), value
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
    for name in (*getattr(value, "__dict__", ()), *slots_of(type(value))):
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


def _put(value, name, item):
    try:
        setattr(value, name, item)
    except AttributeError:  # A frozen data class.
        object.__setattr__(value, name, item)
