# SPDX-License-Identifier: Apache-2.0
"""Whole calls, accelerated against PyTorch's own. Where the host takes longer to make a call than
the GPU to run it, as with classifiers of small pictures, stand-ins can cost more than the kernels
save: such a call, and every short one, is made both ways at its first time, by the clock, and then
as is quicker. A call that changes what the model holds is made once: of those that the host binds
some of the user's own are made the one way, some the other."""

import collections
import contextlib
import statistics
import threading
import time

import torch

_BOUND = 0.7  # Of a call's time: the host's share from which on the call is tried both ways.
_SHORT = 100.0  # Milliseconds; up to here it is tried whatever binds it.
_QUICKER = 0.97  # Of PyTorch's time: what an accelerated call may take.
_QUICKER_IN_TURN = 0.9  # Of an accelerated call's: a turn's work may differ from the next one's.
_ROUNDS = 3
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


def _copied(value):
    """Tensors of its own: a model may write to its inputs."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    return tuple(map(_copied, value)) if type(value) is tuple else value


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


class _Turns:
    """Calls that are made once, timed. The first is accelerated, and not timed."""

    def __init__(self, device):
        self.device = device
        self._spent: dict[str, list] = {"accelerated": [], "plain": []}

    def way(self):
        return "accelerated" if len(self._spent["accelerated"]) < _ROUNDS else "plain"

    def begin(self):
        _wait(self.device)
        return time.perf_counter()

    def end(self, way, begin):
        host = time.perf_counter() - begin
        _wait(self.device)
        self._spent[way].append((host * 1e3, (time.perf_counter() - begin) * 1e3))

    def reason(self, module):
        """Why such calls are PyTorch's, "" where they are not; None while it is not known."""
        ours = self._spent["accelerated"]
        if len(ours) < _ROUNDS:
            return None
        host, accelerated = (statistics.median(column) for column in zip(*ours))
        if host < _BOUND * accelerated:
            return ""
        theirs = [whole for _, whole in self._spent["plain"][1:]]  # The first looked for kernels.
        if len(theirs) < _ROUNDS:
            return None
        plain = statistics.median(theirs)
        return "" if plain >= _QUICKER_IN_TURN * accelerated else _bound(module, accelerated, plain)


def _bound(module, accelerated, plain):
    return (f"the host binds {type(module).__name__}: {accelerated:.2f} ms accelerated, {plain:.2f} "
            "ms PyTorch's; convoy.graphed takes the host's time away")


class _Open:
    """A call that is under way and whose end matters. before: what the module held when a first
    call began; None: not a first call. turns, begin: of one of the calls that are timed in turn.
    seen: the arguments that its forward() gets. frame: PyTorch's, which makes the call."""

    def __init__(self, trials, key, module, args, kwargs, frame, before=None, turns=None):
        self.trials, self.frame = trials, frame
        self.key, self.module, self.args, self.kwargs = key, module, args, kwargs
        self.before, self.seen = before, (args, kwargs)
        self.turns, self.is_plain, self.begin = turns, False, 0.0


class Trials:
    """The calls of one accelerated model."""

    def __init__(self):
        # Why such calls are PyTorch's; "": they are not; turns: they are being compared.
        self._reasons: dict[tuple, str | _Turns] = {}
        self._thread = threading.local()

    def begin(self, module, given, args, kwargs, frame):
        """At the start of a call from outside. Returns why it is PyTorch's, "" where it is
        accelerated. None: it is accelerated, and its end matters: `first` is to be told its
        stand-ins."""
        calls = self._open()
        while calls and has_ended(calls[-1].frame):
            calls.pop()
        key = (id(module), *((t.shape, t.dtype, t.device) for t in given))
        reason = self._reasons.get(key)
        if reason == "":
            return reason
        turns = reason if isinstance(reason, _Turns) else None
        if reason is not None:
            call = _Open(self, key, module, args, kwargs, frame, turns=turns)
            calls.append(call)
            call.is_plain = turns is None or turns.way() == "plain"
            call.begin = turns.begin() if turns else 0.0
            if not call.is_plain:
                return None
            _thread.way, _thread.call = "plain", call
            return reason if turns is None else "PyTorch's turn of calls that are being compared"
        if len(self._reasons) > 4096:
            self._reasons.clear()
        if not all(isinstance(value, (torch.Tensor, *_PLAIN))
                   for value in _leaves((*args, *kwargs.values()))):
            self._reasons[key] = ""  # A cache, perhaps, that a call writes to.
            return ""
        calls.append(_Open(self, key, module, args, kwargs, frame, state_of(module)))
        return None

    def first(self, standins):
        self._open()[-1].seen = standins

    def _open(self):
        if not hasattr(self._thread, "calls"):
            self._thread.calls = []
        return self._thread.calls

    def end(self, args, kwargs, output, takes_over):
        """At the end of a call with these arguments. takes_over(): whether anything of the model
        is Convoy's. Returns the output to use."""
        calls = self._open()
        if not calls or calls[-1].seen[0] is not args or calls[-1].seen[1] is not kwargs:
            return output
        call = calls.pop()
        if call.is_plain:
            _thread.way = _thread.call = None
        if output is None:  # It failed.
            return output
        if call.turns is not None:
            call.turns.end("plain" if call.is_plain else "accelerated", call.begin)
            reason = call.turns.reason(call.module)
            if reason is not None:
                self._reasons[call.key] = reason
        if call.before is None:
            return output
        if not takes_over():
            self._reasons[call.key] = "Convoy runs nothing of it"
            return output
        self._reasons[call.key] = ""
        device = next(v.device for v in _leaves((*call.args, *call.kwargs.values()))
                      if isinstance(v, torch.Tensor))
        if state_of(call.module) != call.before:
            self._reasons[call.key] = _Turns(device)
            return output
        return self._judged(call, device, output)

    def _judged(self, call, device, output):
        """Makes the call again both ways, if it is short or the host binds it, and it changes
        nothing."""
        args, kwargs = _copied(call.args), {k: _copied(v) for k, v in call.kwargs.items()}

        def timed(way):
            with _settled(way):
                return _milliseconds(lambda: call.module(*args, **kwargs), device)

        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            _, host, whole = timed("accelerated")
            is_bound = host >= _BOUND * whole
            if not is_bound and whole > _SHORT or state_of(call.module) != call.before:
                return output
            try:
                plain = timed("plain")[0]
                spent = {way: min(timed(way)[2] for _ in range(_ROUNDS))
                         for way in ("plain", "accelerated")}
            except torch.OutOfMemoryError:  # PyTorch's own call needs more.
                return output
        if spent["accelerated"] <= _QUICKER * spent["plain"]:
            return output
        if is_bound:
            self._reasons[call.key] = _bound(call.module, spent["accelerated"], spent["plain"])
        else:
            self._reasons[call.key] = (
                f"{type(call.module).__name__} takes {spent['accelerated']:.2f} ms accelerated, "
                f"{spent['plain']:.2f} ms PyTorch's")
        return plain
