# SPDX-License-Identifier: Apache-2.0
"""Whole calls, accelerated against PyTorch's own. Where the host takes longer to make a call than
the GPU to run it, as with classifiers of small pictures, stand-ins can cost more than the kernels
save: such a call, and every short one, is made both ways at its first time, by the clock, and then
as is quicker. A call that changes what the model holds is made once; it is tried on a twin of the
model, which has the same weights and holds the rest by itself. Where PyTorch's compiler may be used
(accelerate(..., compile=True)), what the host binds is made that way too, a third one, and goes on
so where that is quickest and gives the same bits."""

import collections
import contextlib
import enum
import logging
import math
import threading
import time
import types

import torch
from torch.utils import _pytree

from ._bounded import Bounded
from ._deferred import plain

_log = logging.getLogger("convoy")
MARK = "_convoy_session"  # Where an accelerated model keeps its session.
_BOUND = 0.7  # Of a call's time: the host's share from which on the call is tried both ways.
_COMPILED = 0.2  # From which on PyTorch's compiler is tried, where it may be: it hides some anyway.
_SHORT = 100.0  # Milliseconds; up to here it is tried whatever binds it.
_QUICKER = 0.97  # Of PyTorch's time: what an accelerated call may take.
_ROUNDS = 3
_LISTS = 8  # Calls with other numbers in lists that are tried; a list of times has new ones always.
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)

# .way: of the calls that this thread makes now, where it is settled. .call: what settled it;
# None: a `with` did.
_thread = threading.local()


@contextlib.contextmanager
def _settled(way):
    before = getattr(_thread, "way", None), getattr(_thread, "call", None)
    _thread.way, _thread.call = way, None
    try:
        yield
    finally:
        _thread.way, _thread.call = before


def has_ended(frame):
    """NOTE: PyTorch calls no hook where a call ends by KeyboardInterrupt."""
    try:
        frame.clear()
    except RuntimeError:  # It is executing.
        return False
    return True


def forget_interrupted(trials, module):
    """At the start of a call: the way of one that was interrupted is not this one's. Parts of what
    was interrupted are not looked at, whose calls are many."""
    call = getattr(_thread, "call", None)
    if call is None or (call.trials is trials and call.module is not module):
        return
    if has_ended(call.frame):
        _thread.way = _thread.call = None


def settled():
    """The way of this thread's calls, where one is settled: "plain", "accelerated"."""
    return getattr(_thread, "way", None)


def accelerated():
    """Within it calls are accelerated whatever they cost the host: for CUDA graphs."""
    return _settled("accelerated")


def _leaves(values):
    for value in values:
        if type(value) is tuple:
            yield from _leaves(value)
        else:
            yield value


def _is_plain(value):
    return isinstance(value, (torch.Tensor, *_PLAIN))


def lists_of(args, kwargs):
    """The lists that a call gets: caches, perhaps, that it writes to."""
    return [value for value in (*args, *kwargs.values()) if type(value) is list]


def is_plain(args, kwargs, lists):
    """Whether a call gets tensors and numbers alone, and these lists of them."""
    held = set(map(id, lists))
    return all(id(value) in held or _is_plain(value)
               for value in _leaves((*args, *kwargs.values()))) and all(
                   all(map(_is_plain, items)) for items in lists)


def _fresh(args, kwargs):
    """The same arguments with lists of their own."""
    own = lambda value: list(value) if type(value) is list else value
    return tuple(map(own, args)), {key: own(value) for key, value in kwargs.items()}


def _copied(value):
    """Tensors of its own: a model may write to its inputs. What its lists hold stays."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    return tuple(map(_copied, value)) if type(value) is tuple else value


def _apart(args, kwargs):
    """The same arguments for one call. NOTE: a result may be an input that was written to."""
    return _fresh(_copied(args), {key: _copied(value) for key, value in kwargs.items()})


def _print_of(value, depth=3):
    """Of something that a module holds: changes where the module has written to it."""
    if isinstance(value, torch.Tensor):
        return id(value), None if value.is_inference() else value._version
    if isinstance(value, _PLAIN):
        return value
    if depth and isinstance(value, (list, tuple, set, collections.deque)):
        return id(value), tuple(_print_of(item, depth - 1) for item in value)
    if depth and isinstance(value, dict):
        return id(value), tuple((id(key), _print_of(item, depth - 1))
                                for key, item in value.items())
    return id(value)


def state_of(module):
    """What the module and its parts hold. A call that changes it must not be made twice."""
    return [_print_of(part.__dict__) for part in module.modules()]


def has_hooks(module):
    """Whether somebody else's hooks wait at the module or its parts: what they write to is not the
    model's, so that a call with them is not to be made twice."""
    for part in module.modules():
        for hooks in (part._forward_hooks, part._forward_pre_hooks):
            for hook in hooks.values():
                function = getattr(hook, "func", hook)
                owner = getattr(function, "__module__", None) or type(function).__module__
                if owner.partition(".")[0] not in ("torch", "convoy"):
                    return True
    return False


_MOST_BYTES = 1 << 28  # That a twin copies.


class _NoTwin(Exception):
    """A module holds something that may be more than it seems, or too much."""


class _Twins(dict):
    """By the id of the module. bytes: of the tensors that were copied."""

    bytes = 0


_SHARED = (*_PLAIN, torch.nn.Parameter, torch.Size, torch.memory_format, enum.Enum, type,
           types.BuiltinFunctionType, types.ModuleType)


def _own(value, twins):
    """A value that a module holds, with twins for its parts and containers of its own. Raises
    _NoTwin for what may write to the module, or hold what it writes to."""
    if isinstance(value, torch.nn.Module):
        return _twin(value, twins)
    if isinstance(value, _SHARED) or type(value).__name__ == "FrozenDict":
        return value
    if isinstance(value, types.FunctionType) and value.__closure__ is None:
        return value
    if isinstance(value, torch.Tensor):
        twins.bytes += value.nbytes
        if twins.bytes > _MOST_BYTES:
            raise _NoTwin(f"{twins.bytes} bytes")
        return value.clone()
    if type(value) in (list, tuple, set, frozenset, collections.deque):
        return type(value)(_own(item, twins) for item in value)
    if type(value) in (dict, collections.OrderedDict):
        return type(value)((key, _own(item, twins)) for key, item in value.items())
    raise _NoTwin(type(value).__name__)


def _twin(module, twins):
    if isinstance(module, torch.jit.ScriptModule):
        raise _NoTwin
    made = twins.get(id(module))
    if made is None:
        made = twins[id(module)] = object.__new__(type(module))
        if "forward" in module.__dict__:
            raise _NoTwin("forward")
        for name, value in module.__dict__.items():
            if name == "_compiled_call_impl":
                continue
            is_shared = name == MARK or name.endswith(
                ("_hooks", "_hooks_with_kwargs", "_hooks_always_called"))
            made.__dict__[name] = value if is_shared else _own(value, twins)
    return made


def twin_of(module):
    """A module of the same weights, which may be written to; None where there can be none."""
    try:
        return _twin(module, _Twins())
    except _NoTwin as what:
        _log.debug("convoy: no twin of %s, which holds a %s", type(module).__name__, what)
        return None


def _wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _milliseconds(run, device):
    """(its result, time until the call is back, time until it is done)."""
    _wait(device)
    begin = time.perf_counter()
    result = run()
    host = time.perf_counter()
    _wait(device)
    return result, (host - begin) * 1e3, (time.perf_counter() - begin) * 1e3


def _bound(module, accelerated, plain):
    return (f"the host binds {type(module).__name__}: {accelerated:.2f} ms accelerated, "
            f"{plain:.2f} ms PyTorch's; accelerate(..., compile=True), torch.compile with "
            "convoy.dynamo_backend, or convoy.graphed takes the host's time away")


def _same(a, b):
    """Whether two results of a call hold the same bits, and nothing that cannot be told."""
    (ours, layout), (others, other_layout) = map(_pytree.tree_flatten, (a, b))
    return layout == other_layout and all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)
        else type(x) is type(y) and isinstance(x, _PLAIN) and x == y for x, y in zip(ours, others))


class _Open:
    """A call that is under way and whose end matters. before: what the module held when a first
    call began; None: a call that is PyTorch's. seen: the arguments that its forward() gets.
    frame: PyTorch's, which makes the call. written: `writes` when a first call began."""

    def __init__(self, trials, key, module, args, kwargs, before, frame):
        self.trials, self.frame = trials, frame
        self.key, self.module, self.args, self.kwargs = key, module, args, kwargs
        self.before, self.seen, self.has_lists = before, (args, kwargs), False
        self.written = None if before is None else self.writes()

    def keep_lists(self):
        """As they are before the call, which may write to them."""
        self.args, self.kwargs = _fresh(self.args, self.kwargs)
        for items in lists_of(self.args, self.kwargs):
            items[:] = plain(items)
        self.has_lists, self.written = True, self.writes()

    def writes(self):
        """How often each input, and what lists hold, was written to. NOTE: stand-ins write to a
        copy of theirs, but a function that is not known may give a view of the caller's memory."""
        items = [item for held in lists_of(self.args, self.kwargs) for item in held]
        return [value._version for value in (*_leaves((*self.args, *self.kwargs.values())), *items)
                if isinstance(value, torch.Tensor) and not value.is_inference()]


def _described(value):
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype, value.device
    return type(value), value


def key_of(module, given, lists=()):
    """What calls are told apart by. given: their tensors."""
    return (id(module), *map(_described, given),
            *(tuple(map(_described, items)) for items in lists))


class Trials:
    """The calls of one accelerated model."""

    def __init__(self):
        # Why such calls are PyTorch's; "": they are not.
        self._reasons: dict[tuple, str] = Bounded(4096)
        self._compiled: dict[tuple, bool] = Bounded(4096)  # The calls under PyTorch's compiler.
        self._lists: dict[tuple, int] = Bounded(4096)  # By all but its lists: how many were tried.
        self._thread = threading.local()

    def begin(self, module, given, args, kwargs, frame, compile):
        """At the start of a call from outside. Returns why it is PyTorch's, "" where it is
        accelerated. None: it is accelerated, and a first one: `first` is to be told its
        stand-ins. compile: whether PyTorch's compiler may be tried."""
        calls = self._open()
        while calls and has_ended(calls[-1].frame):
            calls.pop()
        lists = lists_of(args, kwargs) if compile else []
        is_known = is_plain(args, kwargs, lists)
        key = key_of(module, given, lists if is_known else ())
        reason = self._reasons.get(key)
        if reason == "":
            return reason
        if reason:
            calls.append(_Open(self, key, module, args, kwargs, None, frame))
            _thread.way, _thread.call = "plain", calls[-1]
            return reason
        if not is_known or has_hooks(module) or any(
                isinstance(value, torch.Tensor) and value.is_inference()
                for items in lists for value in items):  # Which do not tell what is written.
            self._reasons[key] = ""
            return ""
        if lists:
            apart = key_of(module, given)
            self._lists[apart] = self._lists.get(apart, 0) + 1
            if self._lists[apart] > _LISTS:
                self._reasons[key] = ""
                return ""
        calls.append(_Open(self, key, module, args, kwargs, state_of(module), frame))
        if lists:
            calls[-1].keep_lists()
        return None

    def first(self, standins):
        self._open()[-1].seen = standins

    def _open(self):
        if not hasattr(self._thread, "calls"):
            self._thread.calls = []
        return self._thread.calls

    def is_compiled(self, key):
        """Whether such calls are made under PyTorch's compiler."""
        return key in self._compiled

    def give_up(self, key):
        """They are no longer."""
        self._compiled.pop(key, None)

    def end(self, args, kwargs, output, session):
        """At the end of a call with these arguments. Returns the output to use."""
        calls = self._open()
        if not calls or calls[-1].seen[0] is not args or calls[-1].seen[1] is not kwargs:
            return output
        call = calls.pop()
        if call.before is None:
            _thread.way = _thread.call = None
            return output
        if output is None:  # It failed.
            return output
        if not session.takes_over():
            self._reasons[call.key] = "Convoy runs nothing of it"
            return output
        self._reasons[call.key] = ""
        if call.written != call.writes():
            return output  # It writes to its inputs, or to what its lists hold: once.
        if state_of(call.module) == call.before:
            return self._judged(call, call.module, output, session)
        if call.has_lists:
            return output
        try:
            twin = twin_of(call.module)
            if twin is not None:
                self._judged(call, twin, output, session)
        except Exception as error:  # What the module holds is more than was seen.
            _log.debug("convoy: a twin of %s could not be called: %s",
                       type(call.module).__name__, error)
        return output  # The model holds what an accelerated call left.

    def _judged(self, call, module, output, session):
        """Makes the call of `module` again in each way, if it is short or the host binds it.
        Returns the output to use."""
        device = next(v.device for v in _leaves((*call.args, *call.kwargs.values()))
                      if isinstance(v, torch.Tensor))
        state = state_of(module) if module is call.module else None
        args, kwargs = call.args, call.kwargs

        def made(way):
            given, named = _apart(args, kwargs)
            with _settled(way):
                result, *spent = _milliseconds(lambda: module(*given, **named), device)
            return plain((result, lists_of(given, named))), *spent

        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            # NOTE: the first call of a shape may fuse what the ones after it do not.
            expected, host, whole = made("accelerated")
            is_bound = host >= _BOUND * whole
            is_tried = (is_bound or whole <= _SHORT) and not call.has_lists
            compiles = session.compile and state is not None and host >= _COMPILED * whole
            if not is_tried and not compiles:
                return output
            if state is not None and state_of(module) != state:
                return output
            ways = ("plain", "accelerated") if is_tried else ("accelerated",)
            try:
                by_pytorch = made("plain")[0][0] if is_tried else output
                spent = {way: min(made(way)[2] for _ in range(_ROUNDS)) for way in ways}
            except torch.OutOfMemoryError:  # PyTorch's own call needs more.
                return output
            if compiles:
                took, why = self._compiled_milliseconds(
                    session.compiled_call(module), module, args, kwargs, expected, device)
                if took <= _QUICKER * min(spent.values()):
                    self._compiled[call.key] = True
                    return output
                session.left_by_compiler(
                    module, why or f"{took:.2f} ms, {min(spent.values()):.2f} without it")
        if spent["accelerated"] <= _QUICKER * spent.get("plain", math.inf):
            return output
        if is_bound:
            self._reasons[call.key] = _bound(call.module, spent["accelerated"], spent["plain"])
        else:
            self._reasons[call.key] = (
                f"{type(call.module).__name__} takes {spent['accelerated']:.2f} ms accelerated, "
                f"{spent['plain']:.2f} ms PyTorch's")
        return by_pytorch

    @staticmethod
    def _compiled_milliseconds(call, module, args, kwargs, expected, device):
        """Of a call that gives `expected`: its result, and what its lists hold then; infinite where
        it gives anything else, and why."""
        def once():
            given, named = _apart(args, kwargs)
            result, _, whole = _milliseconds(lambda: call.run(module, given, named), device)
            return whole, (result, lists_of(given, named))

        best = math.inf
        try:
            for _ in range(2):  # The first traces it, the second notes it.
                once()
            for _ in range(_ROUNDS):
                # NOTE: results are let go of; memory of their own would be new to each round.
                whole, result = once()
                if not _same(result, expected):
                    return math.inf, "it gives other numbers"
                del result
                best = min(best, whole)
        except Exception as error:  # PyTorch's compiler fails in many ways.
            return math.inf, f"{type(error).__name__}: {error}"
        return best, ""
