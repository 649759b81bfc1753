# SPDX-License-Identifier: Apache-2.0
"""PyTorch's functions that make a tensor of any data: they look into their arguments without
asking `__torch_function__`. While an accelerated model runs they take stand-ins too."""

import functools
import threading

import torch

from ._deferred import Deferred, plain, session_of, wrapped
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


_OWN = {name: getattr(torch, name)
        for name in ("as_tensor", "asarray", "tensor", "scalar_tensor", "full")}
_OURS = {name: _taking_standins(function) for name, function in _OWN.items()}


def enter(frame):
    """A call of an accelerated model begins, in any thread. frame: PyTorch's, which makes it."""
    with _lock:
        _running[:] = [call for call in _running if not has_ended(call[1])]  # Interrupted ones.
        _running.append((threading.get_ident(), frame))
        vars(torch).update(_OURS)


def leave():
    """It has ended. NOTE: outside of calls PyTorch's own are in place: torch.jit.script knows them
    by identity."""
    with _lock:
        own = [call for call in _running if call[0] == threading.get_ident()]
        if own:
            _running.remove(own[-1])
        if not _running:
            vars(torch).update(_OWN)
