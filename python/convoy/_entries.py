# SPDX-License-Identifier: Apache-2.0
"""Where a call comes into an accelerated model, and where it leaves it: the hooks that give the
model stand-ins and its caller tensors, and the calls that are left to PyTorch."""

import sys
import types

import torch

from . import _calls, _constructors, _trial
from ._deferred import Deferred
from ._memory import lies_as
from ._nodes import Value
from ._results import unwrapped

_Parameter = torch.nn.Parameter


def tensors(values):
    """Tensors among arguments. NOTE: lists and dictionaries are a model's own: caches that its
    parts write to, and that may hold stand-ins of a call before."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif type(value) is tuple:
            found += tensors(value)
    return found


def refusal(module, given):
    """Why this call is PyTorch's; "" where it is not."""
    kinds = {t.device.type for t in given}
    if kinds - {"cpu", "cuda"}:
        return f"device {', '.join(sorted(kinds))}; legal: cpu, cuda"
    if torch._C._get_tracing_state() is not None or torch._C._len_torch_dispatch_stack():
        return ("torch.jit.trace or a TorchDispatchMode (make_fx, FlopCounterMode, ...) goes on, "
                "which is to see PyTorch's operators")
    if torch.is_grad_enabled() and (
        any(t.requires_grad for t in given) or any(p.requires_grad for p in module.parameters())
    ):
        return "gradients are wanted; torch.no_grad() or torch.inference_mode() ends that"
    if module.training and any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm)
                               for m in module.modules()):
        return "a batch norm is in training mode"
    if _calls.is_transformed():
        return "a transform of torch.func, or forward-mode differentiation, goes on"
    if torch._C._is_any_autocast_enabled() and any(map(torch.is_autocast_enabled, kinds)):
        return "autocast is on; cast the model instead"
    return ""


def wrapped(value, session, module=None):
    """A tensor that comes in as a stand-in, in tuples too."""
    if not isinstance(value, torch.Tensor):
        if type(value) is tuple:
            return tuple(wrapped(item, session, module) for item in value)
        return value
    if not value.dtype.is_floating_point or type(value) not in (torch.Tensor, _Parameter):
        return value
    if value.dim() not in (4, 5):
        made = Deferred(Value(value, given=True), session, module)
    elif session.shards and session.shards.active:
        made = Deferred(Value(session.shards.enter(value)), session, module)
    else:
        ours = session.convert(value)
        made = Deferred(Value(ours, given=ours is value), session, module)
    if made._node.shape == value.shape:  # Not a shard.
        made._apart = lies_as(value)
    return made


def before(session, module, args, kwargs):
    """The inputs as stand-ins, where the call comes from outside."""
    if (args and type(args[0]) is Deferred) or torch.compiler.is_compiling():
        return None  # Most calls of parts: from inside.
    _trial.forget_interrupted(session.trials, module)
    way = _trial.settled()
    if way == "plain":
        session.tidy(module, (*args, *kwargs.values()))
        return None
    given = tensors(args)
    if kwargs:
        given += tensors(kwargs.values())
    takes = False
    for tensor in given:
        if type(tensor) is Deferred:
            return None
        takes = takes or (tensor.dtype.is_floating_point and tensor.dim() > 2)
    if not takes:
        return None
    reason = refusal(module, given)
    if reason:
        session.left_calls[reason] += 1
        if module.training:  # Norms of the model's own, that count nothing, may have other numbers.
            session.foldings.clear()
        session.tidy(module, (*args, *kwargs.values()))
        return None

    shards = session.shards
    is_first = False
    if not shards and way is None and session.measures(given[0].device):
        found = session.trials.begin(module, given, args, kwargs, sys._getframe(1), session.compile)
        if found:
            session.left_calls[found] += 1
            session.tidy(module, (*args, *kwargs.values()))
            return None
        is_first = found is None
    if shards:
        reason = shards.begin(module, given)
        if reason:
            session.left_calls[f"not cut by height: {reason}"] += 1

    standins = (tuple([wrapped(value, session, module) for value in args]),
                {key: wrapped(value, session, module) for key, value in kwargs.items()})
    session.is_untidy = True
    _constructors.enter(sys._getframe(1))
    if is_first:
        session.trials.first(standins)
    return standins


def _resumed(generator, session, depth):
    """A generator of the same items, as tensors: the model's code runs each time it is asked for
    one, which is as within the call."""
    step, value = generator.send, None
    while True:
        _constructors.enter(sys._getframe())
        session.is_untidy = True
        try:
            item = step(value)
        except StopIteration as end:
            return unwrapped(end.value, outermost=True, depth=depth)
        finally:
            _constructors.leave()
        known: dict[int, tuple] = {}
        item = unwrapped(item, outermost=True, depth=depth, known=known)
        session.end(item)
        for tensor, standin in known.values():
            if type(standin) is Deferred:  # The model sees what the caller writes to it.
                standin._node, standin._viewed = Value(tensor, given=True), True
        del known
        try:
            step, value = generator.send, (yield item)
        except GeneratorExit:
            generator.close()
            raise
        except BaseException as error:  # What the caller threw in is the model's to handle.
            step, value = generator.throw, error


def after(session, module, args, kwargs, output):
    """Tensors again, where `before` of the same module made the stand-ins."""
    if ((args and type(args[0]) is Deferred and args[0]._entry is not module)
            or torch.compiler.is_compiling()):
        return None  # As in before. NOTE: the stand-ins of one call are all of one entry.
    given = tensors(args) + tensors(kwargs.values())
    if any(type(value) is Deferred and value._entry is module for value in given):
        _constructors.leave()
        whole = session.model is not None and session.model() is module
        depth = 6 if whole else 0
        if type(output) is types.GeneratorType:
            output = _resumed(output, session, depth)
        else:
            output = unwrapped(output, outermost=True, depth=depth)
            session.end(output)
    return session.trials.end(args, kwargs, output, session)
