# SPDX-License-Identifier: Apache-2.0
"""What looks into its arguments without asking `__torch_function__`: PyTorch's functions that make
a tensor of any data, autograd.Function and TorchScript. While an accelerated model runs they take
stand-ins too, functions under torch.compile run as they were written, and those that write to lists
of tensors let what waits for these be computed first."""

import functools
import re
import sys
import threading
import weakref
from typing import Any

import torch

from ._changes import OF_LISTS
from ._deferred import Deferred, in_order, plain, session_of, standins, wrapped
from ._memory import own, write_through
from ._nodes import Value, settle
from ._trial import has_ended

_lock = threading.Lock()
_running: list[tuple] = []  # Thread and frame of the calls under way.


def _taking_standins(function):
    same = function in (torch.as_tensor, torch.asarray)  # Of a tensor: the tensor.

    @functools.wraps(function)
    def call(*args, **kwargs):
        session = session_of(args) or session_of(kwargs.values())
        if session is None:
            return function(*args, **kwargs)
        if same and len(args) == 1 and type(args[0]) is Deferred and not kwargs:
            return args[0]
        return wrapped(function(*plain(args), **plain(kwargs)), session)

    return call


# PyTorch 2.15 has apply() in the class above, earlier versions in this one.
_own_apply = vars(torch.autograd.Function).get("apply")


def _apply_of(cls):
    if _own_apply is None:
        return super(torch.autograd.Function, cls).apply
    return _own_apply.__get__(None, cls)


def _apply(cls, *args, **kwargs):
    """torch.autograd.Function.apply, whose forward() may hand memory to code of its own: it gets
    tensors in the order that the model's own have."""
    session = session_of(args) or session_of(kwargs.values())
    if session is None:
        return _apply_of(cls)(*args, **kwargs)
    given = [in_order(value) for value in args]
    result = _apply_of(cls)(*given, **plain(kwargs))
    for value, tensor in zip(args, given):
        if type(value) is Deferred and result is tensor:  # It was written to, and marked so.
            value._node = Value(tensor)
            return value
    return wrapped(result, session, [value for value in args if type(value) is Deferred])


def _put_apply():
    torch.autograd.Function.apply = classmethod(_apply)


def _put_back_apply():
    if _own_apply is None:
        del torch.autograd.Function.apply
    else:
        torch.autograd.Function.apply = _own_apply


# Whether functions in TorchScript write to what they are given.
_writes: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def _scripted(own_call):
    """A call of TorchScript: its compiler gives pointers to kernels of its own, on a GPU."""

    @functools.wraps(own_call)
    def call(self, *args, **kwargs):
        session = session_of(args) or session_of(kwargs.values())
        if session is None:
            return own_call(self, *args, **kwargs)
        if self not in _writes:
            _writes[self] = re.search(r"aten::(\w*[a-z0-9]_|set_data)[(]",
                                      str(self.inlined_graph)) is not None
        seen = [*standins((*args, *kwargs.values()))]
        if _writes[self]:
            settle()
            for value in seen:
                own(value)
        result = wrapped(own_call(self, *plain(args), **plain(kwargs)), session, seen)
        if _writes[self]:
            for value in seen:
                write_through(value)
        return result

    return call


_SCRIPTED = {kind: kind.__call__ for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod)}


def _put_scripted():
    for kind, function in _SCRIPTED.items():
        kind.__call__ = _scripted(function)


def _put_back_scripted():
    for kind, function in _SCRIPTED.items():
        kind.__call__ = function


class _Stance:
    """torch.compile's stance (torch.compiler.set_stance) but for threads in which an accelerated
    call goes on: there compiled functions run uncompiled, since their compiler would look through
    the stand-ins, into Convoy."""

    def __init__(self, own):
        self.own = own

    def __getattr__(self, name):
        return getattr(self.own, name)

    @property
    def stance(self):
        here = threading.get_ident()
        return "force_eager" if any(call[0] == here for call in _running) else self.own.stance


def _put_stance():
    compiler: Any = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is not None and type(compiler._stance) is not _Stance:
        compiler._stance = _Stance(compiler._stance)


def _put_back_stance():
    compiler: Any = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is not None and type(compiler._stance) is _Stance:
        compiler._stance = compiler._stance.own


_compile = torch.compile


@functools.wraps(_compile)
def _compiled(*args, **kwargs):
    import torch._dynamo.eval_frame  # noqa: F401 which may not have been there when the call began

    _put_stance()
    return _compile(*args, **kwargs)


_OWN = {name: getattr(torch, name)
        for name in ("as_tensor", "asarray", "tensor", "scalar_tensor", "full")}
_OURS = {name: _taking_standins(function) for name, function in _OWN.items()}
_OWN["compile"], _OURS["compile"] = _compile, _compiled
_OWN.update((name, getattr(torch, name)) for name in OF_LISTS)
_OURS.update(OF_LISTS)

# What is replaced while calls go on: how it is put there and back. NOTE: the stance is put there at
# the beginning of each call, since somebody may have set another one within the call before.
_REPLACED = (
    (functools.partial(vars(torch).update, _OURS), functools.partial(vars(torch).update, _OWN)),
    (_put_apply, _put_back_apply),
    (_put_scripted, _put_back_scripted),
    (_put_stance, _put_back_stance),
)


def enter(frame):
    """A call of an accelerated model begins, in any thread. frame: PyTorch's, which makes it."""
    with _lock:
        for put, _ in _REPLACED:
            if not _running or put is _put_stance:
                put()
        _running[:] = [call for call in _running if not has_ended(call[1])]  # Interrupted ones.
        _running.append((threading.get_ident(), frame))


def leave():
    """It has ended. NOTE: outside of calls PyTorch's own are in place: torch.jit.script knows them
    by identity."""
    with _lock:
        own = [call for call in _running if call[0] == threading.get_ident()]
        if own:
            _running.remove(own[-1])
            if not _running:
                for _, put_back in _REPLACED:
                    put_back()
