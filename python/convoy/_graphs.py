# SPDX-License-Identifier: Apache-2.0
"""`graphed(function)`: calls as CUDA graphs, which take the host next to no time."""

import collections
import contextlib
import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from . import _calls, _trial
from ._changes import states
from ._native import InvalidArgument

_PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)


class _Left(Exception):
    """Why a call is not captured."""


class _Weights:
    """What a captured call depends on beside its arguments: the model's parts and weights, where
    they are, and of which version, since packed filters are made of them."""

    def __init__(self, model):
        self._generation = _calls.generation()
        self._parts, self._weights = [], []
        for module in () if model is None else model.modules():
            for entries in (module._modules, module._parameters):
                self._parts += [(entries, name, part) for name, part in entries.items()]
            held = [*module._parameters.values()]
            if isinstance(module, torch.nn.modules.batchnorm._NormBase):
                held += module._buffers.values()
            self._weights += [p for p in held if p is not None]
        self._states = states(self._weights)

    def unchanged(self):
        # NOTE: a tenth of the time that model.parameters() takes, before every replay.
        return (self._generation == _calls.generation()
                and all(entries.get(name) is part for entries, name, part in self._parts)
                and states(self._weights) == self._states)


class _Capture:
    """One call in a graph, with memory of its own for inputs and outputs. That memory serves one
    replay at a time, whichever streams they are on."""

    def __init__(self, function, model, written, given, names, pool):
        """written: buffers that a call writes to."""
        self.inputs = [value.clone() if isinstance(value, torch.Tensor) else value
                       for value in given]
        count = len(given) - len(names)
        args, kwargs = self.inputs[:count], dict(zip(names, self.inputs[count:]))
        stream = torch.cuda.Stream()
        before = [(buffer, buffer.clone()) for buffer in written]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), _trial.accelerated():
            function(*args, **kwargs)  # Packs filters that have changed.
            with torch.inference_mode():  # NOTE: one call writes once: the replay.
                for buffer, kept in before:
                    buffer.copy_(kept)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        # NOTE: NCCL's watchdog, a thread of its own, asks for its events meanwhile.
        joined = torch.distributed.is_available() and torch.distributed.is_initialized()
        with _trial.accelerated(), torch.cuda.graph(
                self.graph, pool=pool,
                capture_error_mode="thread_local" if joined else "global"):
            output = function(*args, **kwargs)
        self.weights = _Weights(model)
        self.done = torch.cuda.Event()  # Of the last replay.
        self.outputs, self.structure = pytree.tree_flatten(output)
        for leaf in self.outputs:
            if not isinstance(leaf, (torch.Tensor, *_PLAIN)):
                raise _Left(f"the result holds a {type(leaf).__name__}; legal: tensors and numbers "
                            "in tuples, lists and dictionaries")

    def replay(self, given):
        stream = torch.cuda.current_stream()
        stream.wait_event(self.done)
        for mine, value in zip(self.inputs, given):
            if isinstance(mine, torch.Tensor):
                mine.copy_(value)
        self.graph.replay()
        copies = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf
                  for leaf in self.outputs]
        self.done.record(stream)
        return pytree.tree_unflatten(copies, self.structure)

    def release(self):
        """Before its memory is others': a replay on another stream may still run."""
        self.done.synchronize()


def _end_capture(device, pool):
    """After a capture that failed. NOTE: PyTorch (2.10 to 2.15) does not tell its allocator and its
    random numbers that it has ended; the next capture that succeeds tells the latter."""
    with contextlib.suppress(RuntimeError):  # It did.
        torch._C._cuda_endAllocateToPool(device.index, pool)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            pass


class Graphed:
    """What `graphed` returns. left: calls that were not captured, by reason."""

    def __init__(self, function, model, keep):
        functools.update_wrapper(self, function)
        self._function, self._model, self._keep = function, model, keep
        # By call: what was captured, why it was not, None after the first.
        self._captures: collections.OrderedDict[Any, Any] = collections.OrderedDict()
        self._pool: Any = None
        self._lock = threading.RLock()
        self._written: dict[int, torch.Tensor] = {}  # Buffers of the model that calls write to.
        self.left: collections.Counter[str] = collections.Counter()

    def __call__(self, *args, **kwargs):
        given, names = (*args, *kwargs.values()), tuple(kwargs)
        try:
            with self._lock:
                key = self._key(given, names)
                if key not in self._captures:  # It makes plans, and may be the only one.
                    with _trial.accelerated(), self._watching_buffers():
                        result = self._function(*args, **kwargs)
                    self._remember(key, None)
                    return result
                self._captures.move_to_end(key)
                capture = self._captures[key]
                if isinstance(capture, _Left):
                    raise capture
                if capture is None or not capture.weights.unchanged():
                    self._remember(key, None)  # Its memory is free for the next.
                    capture = self._captured(given, names, key)
                    self._captures[key] = capture
                with torch.cuda.device(self._device(given)):
                    return capture.replay(given)
        except _Left as reason:
            self.left[str(reason)] += 1
            return self._function(*args, **kwargs)

    @contextlib.contextmanager
    def _watching_buffers(self):
        """Finds those that a call writes to."""
        parts = () if self._model is None else self._model.modules()
        held = [(part, buffer) for part in parts for buffer in part._buffers.values()
                if type(buffer) is torch.Tensor and buffer.layout is torch.strided]
        buffers = [buffer for _, buffer in held]
        before = states(buffers)
        yield
        for (part, buffer), *found in zip(held, *before, *states(buffers)):
            # NOTE: PyTorch does not count what batch norms write.
            is_norm = isinstance(part, torch.nn.modules.batchnorm._NormBase) and part.training
            if is_norm or found[:3] != found[3:] or buffer.is_inference():
                self._written[id(buffer)] = buffer

    def _remember(self, key, value):
        self._release(self._captures.get(key))
        self._captures[key] = value
        while len(self._captures) > self._keep:
            self._release(self._captures.popitem(last=False)[1])

    @staticmethod
    def _release(known):
        if isinstance(known, _Capture):
            known.release()

    def _captured(self, given, names, key):
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        with torch.cuda.device(self._device(given)):
            try:
                return _Capture(self._function, self._model, self._written.values(), given, names,
                                self._pool)
            except RuntimeError as error:  # It waits for the GPU, or copies from the host's memory.
                text = str(error).partition("\n")[0]
                self._captures[key] = _Left(f"it cannot be captured: {text}")
                _end_capture(self._device(given), self._pool)
                self._pool = None
                raise self._captures[key] from error

    @staticmethod
    def _device(given):
        return next(value.device for value in given if isinstance(value, torch.Tensor))

    def _key(self, given, names):
        """What makes two calls the same but for their numbers; raises _Left."""
        described: list[tuple] = []
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        for value in given:
            if isinstance(value, torch.Tensor):
                described.append((value.shape, value.stride(), value.dtype, value.device))
            elif isinstance(value, _PLAIN):
                described.append((type(value), value))
            else:
                raise _Left(f"a {type(value).__name__} is an argument; legal: tensors, numbers "
                            "and text")
        if len({tensor.device for tensor in tensors}) != 1 or not tensors[0].is_cuda:
            raise _Left("no tensor, or not all on one CUDA device")
        if torch.cuda.is_current_stream_capturing():
            raise _Left("within another capture")
        if _calls.is_transformed():
            raise _Left("a transform of torch.func, or forward-mode differentiation, goes on")
        if torch.is_grad_enabled() and (
                any(tensor.requires_grad for tensor in tensors)
                or (self._model is not None
                    and any(p.requires_grad for p in self._model.parameters()))):
            raise _Left("gradients are wanted; torch.no_grad() or torch.inference_mode() ends that")
        return (names, tuple(described), torch.is_inference_mode_enabled(),
                torch.is_autocast_enabled("cuda"))

    def clear(self) -> None:
        """Forget the graphs and free their memory."""
        with self._lock:
            for known in self._captures.values():
                self._release(known)
            self._captures.clear()
            self._written.clear()
            self._pool = None


def graphed(function: Callable[..., Any], model: torch.nn.Module | None = None, *,
            keep: int = 4) -> Graphed:
    """`function` with its calls as CUDA graphs: `decode = convoy.graphed(vae.decode)`.

    The first call of a shape runs as it is; the second is captured, and from then on calls are
    replayed: their inputs are copied into the graph's, their results out of it. model: whose
    weights it uses; by default the module that `function` is, or is a method of. Where one has
    changed, a call is captured anew (after writes that are not seen: `convoy.refresh(model)`).
    keep: graphs at most; each holds the memory of a call.

    The function must do the same for the same shapes, and nothing but compute: what else it does
    (counting, printing, putting tensors aside for the next call) is done when it is captured, not
    when it is replayed. Buffers of the model may be written to in place. Calls that cannot be
    captured, on the CPU among them, run as they are; `.left` counts them by reason. Raises
    InvalidArgument where `function` cannot be called.
    """
    if not callable(function):
        raise InvalidArgument(f"function is a {type(function).__name__}; legal: a callable")
    if model is None:
        owner = function if isinstance(function, torch.nn.Module) else getattr(
            function, "__self__", None)
        model = owner if isinstance(owner, torch.nn.Module) else None
    return Graphed(function, model, keep)
