# SPDX-License-Identifier: Apache-2.0
"""A module's calls under PyTorch's compiler, with Convoy's backend: what `accelerate(model,
compile=True)` puts in the place that PyTorch has for that, where it is quicker (_trial.py)."""

import functools
import threading
import types
import weakref
from typing import Any

import torch
from torch.utils import _pytree

from . import _entries, _trial
from ._deferred import Deferred, plain
from ._layout import is_inner

_AGAIN = 3  # How often calls that were tried may be traced again, for other numbers, say.


def _call(module, args, kwargs):
    return module._call_impl(*args, **kwargs)


def of(session, module):
    """The one of `module`, an entry of the accelerated model whose session this is; it is put
    there."""
    known = module._compiled_call_impl
    if type(known) is not CompiledCall:
        known = module._compiled_call_impl = CompiledCall(session, module)
    return known


def remove(model):
    """From all parts of a model."""
    for part in model.modules():
        if type(part._compiled_call_impl) is CompiledCall:
            del part._compiled_call_impl


class CompiledCall:
    """What PyTorch calls for module(...)."""

    def __init__(self, session, module):
        self._session = session
        # NOTE: a cycle would keep its weights until gc runs.
        self._module: Any = weakref.ref(module)
        # NOTE: the compiler counts how often it has compiled a function by its code.
        code = _call.__code__.replace(co_firstlineno=_call.__code__.co_firstlineno)
        self._traced, self._again = _Traced(), 0
        self._compiled = torch.compile(
            types.FunctionType(code, globals()), fullgraph=True, dynamic=False,
            backend=functools.partial(_backend, self._traced), options=session.options())

    def __call__(self, *args, **kwargs):
        module = self._module()
        if (args and type(args[0]) is Deferred) or torch.compiler.is_compiling():
            return module._call_impl(*args, **kwargs)
        lists, given = _trial.lists_of(args, kwargs), _entries.tensors((*args, *kwargs.values()))
        key = (_trial.key_of(module, given, lists) if _trial.is_plain(args, kwargs, lists)
               else None)
        if self._takes(module, key, given):
            before = self._traced.count
            try:
                result = self.run(module, args, kwargs)
            except torch._dynamo.exc.TorchDynamoException as error:  # Before anything has run.
                self._give_up(module, key, str(error))
            else:
                self._session.compiled_calls += 1
                if self._traced.count > before:
                    self._again += 1
                    if self._again > _AGAIN:
                        self._give_up(module, key, "it is traced again and again")
                return result
        return module._call_impl(*args, **kwargs)

    def _give_up(self, module, key, reason):
        self._session.trials.give_up(key)
        self._session.left_by_compiler(module, reason)

    def _takes(self, module, key, given):
        session = self._session
        return (session.trials.is_compiled(key)
                and not any(type(value) is Deferred for value in given)
                and _trial.settled() is None and session.measures(given[0].device)
                and not _entries.refusal(module, given))

    def run(self, module, args, kwargs):
        self._session.tidy(module, (*args, *kwargs.values()))
        lists = _trial.lists_of(args, kwargs)
        for items in lists:  # May hold stand-ins of accelerated calls.
            items[:] = plain(items)
        self._traced.of_this_thread.lays = not lists
        result = self._compiled(module, args, kwargs)
        return _laid(result, lists) if lists else result


class _Traced:
    """How often the backend was asked. of_this_thread.lays: as of _compiled.compiled."""

    def __init__(self):
        self.count, self.of_this_thread = 0, threading.local()


def _laid(result, lists):
    """The result of a call in memory as PyTorch has it, the same tensors in its lists too."""
    made = {}

    def lay(tensor):
        if is_inner(tensor) and id(tensor) not in made:
            made[id(tensor)] = tensor, tensor.contiguous()
        return made.get(id(tensor), (tensor, tensor))[1]

    result = _pytree.tree_map_only(torch.Tensor, lay, result)
    for items in lists:
        for i, value in enumerate(items):
            if id(value) in made:
                items[i] = made[id(value)][1]
    return result


def _backend(traced, module, inputs, *, options):
    from ._compiled import compiled

    traced.count += 1
    # NOTE: nothing follows the graph, of which there is one. What a call leaves in its lists, such
    # as the frames of causal caches, is for the next call: it stays in channels-last memory.
    return compiled(module, inputs, options, lays=traced.of_this_thread.lays)
