# SPDX-License-Identifier: Apache-2.0
"""Whether a weight's numbers may have changed since something was made of them: PyTorch's count of
writes, and, since it does not count those, each look at `weight.data` and each step of an
optimizer, which may be fused. And that what waits in an accelerated call reads a weight before it
is written to.

NOTE: methods of torch.nn.Parameter are replaced for this, while a model is accelerated or after
something was made of weights that is kept; steps are PyTorch's own hooks. Nothing narrower sees as
much. A count of writes tells of one when the old numbers are gone. A TorchFunctionMode around each
accelerated call would also see what is not seen now, writes within a call through a view of a
weight and through `out=`, but takes 1 to 11 % more of the host's time (a block 6 %, ResNet 8 %, an
autoencoder 11 %) and stays in place where a call ends by KeyboardInterrupt, so that the `with` of
another mode around it takes the wrong one off; between calls, where `.data` is written to, it sees
nothing. C++ takes a Parameter for a plain tensor whatever its `__torch_function__`; a subclass of
it is not what optimizers and compilers look for; storage that is copied on write would move
weights.
"""

import functools
import os
import threading
import weakref

import torch
from torch.optim import optimizer

from ._nodes import settle_readers, settle_readers_of

_own = torch.nn.Parameter.data  # PyTorch's own attribute.
# How often each parameter may have been written to uncounted, by its id. NOTE: that another
# one may get the id of one that is gone does no harm: what is kept holds a reference beside it.
looks: dict[int, int] = {}


def _count(parameter):
    looks[id(parameter)] = looks.get(id(parameter), 0) + 1


def _get(parameter):
    settle_readers(parameter)
    _count(parameter)
    return _own.__get__(parameter)


def _set(parameter, value):
    settle_readers(parameter)
    _count(parameter)  # NOTE: the memory may be where that of a value before it was.
    _own.__set__(parameter, value)


def _writing(name):
    """A method of parameters that writes to them."""
    own_method = getattr(torch.Tensor, name)

    @functools.wraps(own_method)
    def method(parameter, *args, **kwargs):
        settle_readers(parameter)
        return own_method(parameter, *args, **kwargs)

    return method


def _of_optimizer(made):
    for group in made.param_groups:
        yield from group["params"]


def _before_step(made, args, kwargs):
    settle_readers_of(_of_optimizer(made))


def _after_step(made, args, kwargs):
    for parameter in _of_optimizer(made):
        _count(parameter)


def _tensors(values):
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _writing_lists(name):
    """A function of torch that writes to lists of tensors, as optimizers call it."""
    own_function = getattr(torch, name)

    @functools.wraps(own_function)
    def function(*args, **kwargs):
        settle_readers_of(_tensors((*args, *kwargs.values())))
        return own_function(*args, **kwargs)

    return function


# What is in place of torch's own functions while accelerated calls go on.
OF_LISTS = {name: _writing_lists(name) for name in dir(torch)
            if name.startswith(("_foreach_", "_fused_")) and name.endswith("_")}

_IN_PLACE = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_WRITING = ["__setitem__", *(f"__i{name}__" for name in _IN_PLACE),
            *(name for name in dir(torch.Tensor)
              if name[-1:] == "_" and name[:1] != "_" and name != "requires_grad_")]
_METHODS = {name: _writing(name) for name in _WRITING}
_METHODS["data"] = property(_get, _set, None, _own.__doc__)

_lock = threading.Lock()


def _renew_lock():
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)  # Another thread may have had it.
_hooks: list = []  # Of all optimizers.
_users: set[weakref.ref] = set()  # Of accelerated models.
_kept: list[dict] = []  # What was made of weights, each with a reference to its weight in front.


def register(kept):
    """A dictionary of what is made of weights, whoever uses them."""
    _kept.append(kept)
    return kept


def watch(user=None):
    """From now on looks at `.data` of parameters are counted: most are made to write there. What is
    kept of a look and written to after a call is not seen. And their methods that write to them,
    and optimizers, let what waits for them be computed first. user: an accelerated model's session,
    as long as which lives this is to be; None where something is made of weights that is kept."""
    with _lock:
        if user is not None:
            _users.add(weakref.ref(user, _ended))
        if "data" not in vars(torch.nn.Parameter):
            for name, method in _METHODS.items():
                setattr(torch.nn.Parameter, name, method)
            _hooks[:] = (optimizer.register_optimizer_step_pre_hook(_before_step),
                         optimizer.register_optimizer_step_post_hook(_after_step))


def _ended(user):
    _users.discard(user)
    rest()


def unwatch(user):
    """It is no longer accelerated."""
    _ended(weakref.ref(user))


def rest():
    """Let PyTorch's own methods be back where no model is accelerated; what is kept of weights is
    to be made anew when it is next used. NOTE: the garbage collector calls this anywhere, even
    while `watch` goes on."""
    if _users or "data" not in vars(torch.nn.Parameter) or not _lock.acquire(blocking=False):
        return
    try:
        if _users:
            return
        for name, method in _METHODS.items():
            if vars(torch.nn.Parameter).get(name) is method:
                delattr(torch.nn.Parameter, name)
        while _hooks:
            _hooks.pop().remove()
        for kept in _kept:
            for ref, *_ in list(kept.values()):
                _count_of(ref)
    finally:
        _lock.release()


def _count_of(ref):
    weight = ref()
    if weight is not None:
        _count(weight)


def version_of(tensor):
    """Changes with each write that is seen; see `state` for who writes elsewhere."""
    return None if tensor.is_inference() else tensor._version, looks.get(id(tensor))


def state(tensor):
    """Changes with the tensor's numbers, as far as they are seen."""
    return tensor.data_ptr(), *version_of(tensor)


def states(tensors):
    """As `state`, of many at once: before each call that depends on all weights of a model."""
    try:
        versions = [tensor._version for tensor in tensors]
    except RuntimeError:  # One of them is an inference tensor, whose writes are not counted.
        versions = [None if tensor.is_inference() else tensor._version for tensor in tensors]
    return ([tensor.data_ptr() for tensor in tensors], versions,
            [looks.get(id(tensor)) for tensor in tensors])
