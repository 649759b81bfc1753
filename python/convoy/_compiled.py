# SPDX-License-Identifier: Apache-2.0
"""Convoy behind torch.compile: `torch.compile(model, backend=convoy.dynamo_backend)`.

PyTorch's compiler (Dynamo) says what a call does, as a graph of functions of tensors, and under
which conditions it does the same again. The graph's functions run on stand-ins, as the forward() of
an accelerated model does; the second call of a shape is noted as a tape (_tape.py), and from then
on the tape is run, until a weight changes.
"""

import gc
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor

from . import _calls, _constructors, _entries, _functions, _graphs
from ._bounded import Bounded
from ._changes import states
from ._deferred import Deferred
from ._native import InvalidArgument
from ._results import left
from ._session import Session, check_options
from ._tape import NotTaped, Recorder

_functions.register_all()
_log = logging.getLogger("convoy")
_MODES = {None: False, "default": False, "reduce-overhead": True}
_OPTIONS = {"upsample_folding": "exact", "quality": "fast", "probe": True}
_CONVOLUTIONS = {f"conv{kind}{axes}d" for kind in ("", "_transpose") for axes in (1, 2, 3)}
_noting = threading.Lock()  # A recorder leaves marks at tensors that others may use.
_MOST = 1024  # Tapes of one graph: by shape, and by whose weights they use.


def dynamo_backend(module: torch.fx.GraphModule, inputs: Sequence[Any], *, mode: str | None = None,
                   options: dict[str, Any] | None = None) -> Callable[..., Any]:
    """A backend of torch.compile: `torch.compile(vae.decoder, backend=convoy.dynamo_backend)`, or
    backend="convoy" where Convoy was installed by pip.

    The same is fused as by `convoy.accelerate`, with the same numbers; but a call takes the host
    some 10 µs for each kernel, since the model's own Python does not run, nor Convoy's. The first
    call of a shape traces the model, measures its convolutions and norms beside PyTorch's, and
    packs filters; the second is noted down. Changes of weights are seen as by `convoy.accelerate`.

    mode: "reduce-overhead" makes CUDA graphs as well (from the third call of a shape on), which
    copy inputs in and results out. options: upsample_folding, quality, probe, as of
    `convoy.accelerate`. Graphs without a convolution, those that write to their inputs, and calls
    that want gradients or run under autocast are PyTorch's own. Raises InvalidArgument for another
    mode or option.
    """
    if mode not in _MODES:
        raise InvalidArgument(f"mode = {mode!r}; legal with Convoy's backend: "
                              f"{', '.join(repr(name) for name in _MODES)}; nearest: None")
    chosen = dict(_OPTIONS)
    for name, value in (options or {}).items():
        if name not in _OPTIONS:
            raise InvalidArgument(f"option {name!r}; legal with Convoy's backend: "
                                  f"{', '.join(_OPTIONS)}")
        chosen[name] = value
    check_options(chosen["upsample_folding"], chosen["quality"])
    return compiled(module, inputs, chosen, _MODES[mode])


def compiled(module: torch.fx.GraphModule, inputs: Sequence[Any], chosen: dict[str, Any],
             is_graph: bool = False, lays: bool = True) -> Callable[..., Any]:
    """What `dynamo_backend` gives for a graph. lays: whether results lie in memory as the compiler
    expects, which counts where it goes on with them; else as they come."""
    reason, bases = _reason_to_leave(module), []
    if not reason:
        reason, bases = _tried(module)
    laid: list[Any] = [
        _Laid(example) if lays or bases.count(base) > 1 else _as_it_lies
        for example, base in zip(_results_of(module), bases)]
    shared = [i for i, base in enumerate(bases) if bases.count(base) > 1]
    if any(laid[i].strides is None for i in shared):
        reason = "results of it share memory, and their sizes change"
    elif any(laid[i].kind != laid[bases[i]].kind for i in shared):
        reason = "results of different types share memory"
    if reason:
        _log.info("convoy: a graph of %d functions is left to PyTorch: %s",
                  len(module.graph.nodes), reason)
        return module.forward
    return _Compiled(module, inputs, laid, bases, chosen, is_graph)


def _name_of(node):
    if node.op == "call_function":
        return getattr(node.target, "__name__", "").partition(".")[0]
    return ""


def _trains(node):
    return node.kwargs.get("training", node.args[5] if len(node.args) > 5 else False) is not False


def _reason_to_leave(module):
    """Why a graph is PyTorch's; "" where it is not."""
    if not any(_name_of(node) in _CONVOLUTIONS for node in module.graph.nodes) and not any(
            isinstance(part, torch.nn.modules.conv._ConvNd) for part in module.modules()):
        return "it has no convolution"
    if any(_name_of(node) == "batch_norm" and _trains(node) for node in module.graph.nodes):
        return "a batch norm is in training mode"
    return ""


def _inputs_of(module):
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _results_of(module):
    """The compiler's examples of a graph's results."""
    (results,) = (node.args[0] for node in module.graph.nodes if node.op == "output")
    return [getattr(result, "meta", {}).get("example_value") for result in results]


def _is_number(node):
    """Whether an input is a number of the model's that the compiler hands over as a tensor."""
    return any(user.op == "call_method" and user.target == "item" for user in node.users)


def _tried(module):
    """Runs a graph on tensors without memory. Returns why it is PyTorch's, "" where it is not, and
    for each result the one that it shares memory with, its own index in front of others."""
    inputs = _inputs_of(module)
    examples = [node.meta.get("example_value") for node in inputs]
    modes = [e.fake_mode for e in examples if isinstance(e, FakeTensor)]
    if not modes:
        return "its inputs have no examples", []
    try:
        with (modes[0], enable_python_dispatcher(), torch.inference_mode(False),
              torch.no_grad()):
            # NOTE: the compiler's own examples stay as they are: it asks how often they were
            # written to. Those of numbers know which.
            given = [torch.empty_strided(e.shape, e.stride(), dtype=e.dtype, device=e.device)
                     if isinstance(e, torch.Tensor) and not is_number else e
                     for e, is_number in zip(examples, map(_is_number, inputs))]
            results = module.forward(*given)
    except Exception as error:  # A function has no fake kernel, or looks at numbers.
        text = str(error).partition("\n")[0]
        return f"it cannot be run without numbers: {type(error).__name__}: {text}", []
    made = [value for value, example in zip(given, examples)
            if isinstance(value, torch.Tensor) and value is not example]
    if any(value._version for value in made):
        return "it writes to its inputs", []
    bases = []
    for i, result in enumerate(results):
        if not isinstance(result, torch.Tensor):
            bases.append(i)
            continue
        if any(torch._C._is_alias_of(result, value) for value in made):
            return "a result of it is memory of its inputs", []
        bases.append(next(k for k, other in enumerate(results) if isinstance(other, torch.Tensor)
                          and torch._C._is_alias_of(result, other)))
    return "", bases


def _as_it_lies(tensor):
    return tensor


class _Laid:
    """How the compiler expects a result to lie in memory: what follows may depend on it."""

    def __init__(self, example):
        self.strides: Any = None  # None: unknown, since sizes change.
        self.offset, self._format = 0, torch.contiguous_format
        self.kind: Any = None  # Its type, and what of its numbers is not as it lies in memory.
        if not isinstance(example, torch.Tensor):
            return
        self.kind = example.dtype, example.is_conj(), example.is_neg()
        if all(isinstance(step, int) for step in (*example.stride(), example.storage_offset())):
            self.strides, self.offset = example.stride(), example.storage_offset()
        for axes, memory_format in ((4, torch.channels_last), (5, torch.channels_last_3d)):
            if example.dim() == axes and not example.is_contiguous() and (
                    example.is_contiguous(memory_format=memory_format)):
                self._format = memory_format

    def __call__(self, tensor):
        if self.strides is not None and all(
                mine == step for n, mine, step in zip(tensor.shape, tensor.stride(), self.strides)
                if n > 1):
            return tensor
        if self.strides is None or 0 in self.strides:
            return tensor.contiguous(memory_format=self._format)
        made = torch.empty_strided(tensor.shape, self.strides, dtype=tensor.dtype,
                                   device=tensor.device)
        return made.copy_(tensor)

    def end(self, tensor):
        """Of its memory, from the first element on."""
        steps = ((n - 1) * step for n, step in zip(tensor.shape, self.strides))
        return self.offset + 1 + sum(steps) if tensor.numel() else self.offset


def _described(value):
    """What of an argument its graph's calls depend on, but for a tensor's numbers."""
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype, value.device, value.is_inference(),
                value.data_ptr() % 16)
    return type(value), value


def _is_weight(value):
    """A parameter or buffer of a module, by the compiler's own mark."""
    return isinstance(value, torch.nn.Parameter) or (
        isinstance(value, torch.Tensor) and hasattr(value, "_dynamo_static_input_type"))


class _Tape:
    """A call of one shape, with certain weights, as it was noted or as a CUDA graph. kept: what the
    tape knows by its address."""

    def __init__(self, run, weights, counters, kept, is_graph, gone):
        self._run, self._counters, self._kept = run, counters, kept
        self._generation, self._states = _calls.generation(), states(weights + counters)
        self._refs = refs = [weakref.ref(weight, gone) for weight in weights]
        self._graph = None
        if is_graph:
            self._graph = _graphs.graphed(
                lambda *rest: run(*(ref() for ref in refs), *rest), keep=1)

    def is_current(self, weights):
        return (self._generation == _calls.generation()
                and self._states == states(weights + self._counters))

    def __call__(self, weights, rest):
        if self._graph is None:
            return self._run(*weights, *rest)
        return self._graph(*rest)


class _Compiled:
    """What `dynamo_backend` gives PyTorch's compiler for a graph: a function of its inputs."""

    def __init__(self, module, inputs, laid, bases, options, is_graph):
        self._module, self._laid, self._is_graph = module, laid, is_graph
        nodes = _inputs_of(module)
        self._numbers = [i for i, node in enumerate(nodes) if _is_number(node)]
        self._weights = [i for i, value in enumerate(inputs)
                         if i not in self._numbers and _is_weight(value)]
        self._rest = [i for i in range(len(nodes)) if i not in (*self._numbers, *self._weights)]
        # Results that share memory, where several do.
        self._shared = [group for i in range(len(bases)) if len(
            group := [k for k, base in enumerate(bases) if base == i]) > 1]
        self._session = Session(module, **options, counter_of=_Counters())
        # By call: its tape; that it was made once; why it has no tape.
        self._tapes: dict[tuple, _Tape | bool | str] = Bounded(_MOST)
        self._generation = _calls.generation()

    def __call__(self, *arguments):
        if (torch.is_grad_enabled() or torch._C._is_any_autocast_enabled()
                or torch._C._len_torch_dispatch_stack() or _calls.is_transformed()):
            given = [value for value in arguments if isinstance(value, torch.Tensor)]
            reason = _entries.refusal(self._module, given)
            if reason:
                _log.debug("convoy: a call is left to PyTorch: %s", reason)
                return self._module.forward(*arguments)
        weights = [arguments[i] for i in self._weights]
        rest = [arguments[i] for i in self._rest]
        if any(type(value) is Deferred for value in arguments):  # In an accelerated model's call.
            return self._module.forward(*arguments)
        key = (tuple(map(id, weights)), tuple(map(_described, rest)),
               tuple([arguments[i].item() for i in self._numbers]),
               torch.is_inference_mode_enabled(), _calls.tf32_is_allowed())
        found = self._tapes.get(key)
        if type(found) is _Tape:
            if found.is_current(weights):
                return found(weights, rest)
            found = None
        if found is True and _noting.acquire(blocking=False):
            try:
                return self._noted(key, weights, rest, arguments)
            finally:
                _noting.release()
        results = self._by_standins(arguments)
        if found is None:
            self._tapes[key] = True
        return results

    def _noted(self, key, weights, rest, arguments):
        before = self._session.progress()
        recorder = Recorder((*weights, *rest), self._known(),
                            [arguments[i] for i in self._numbers])
        with recorder:
            results = self._by_standins(arguments)
        try:
            run = recorder.ended(results)
        except NotTaped as reason:
            _log.info("convoy: a graph's calls are chosen anew each time: %s", reason)
            self._tapes[key] = str(reason)
            return results
        if before == self._session.progress():  # Else the next call may do otherwise.
            tapes, kept = self._tapes, _calls.packed_of(weights + self._session.made_of_weights())
            self._tapes[key] = _Tape(run, weights, self._session.foldings.counters(), kept,
                                     self._is_graph, lambda _: tapes.pop(key, None))
            _log.debug("convoy: a graph of %d functions: %s", len(self._module.graph.nodes),
                       self._session.report())
        return results

    def _known(self):
        """Tensors that are there before a call, beside its arguments."""
        held = [value for value in vars(self._module).values() if isinstance(value, torch.Tensor)]
        return [*held, *self._module.parameters(), *self._module.buffers(),
                *self._session.made_of_weights()]

    def _by_standins(self, arguments):
        session = self._session
        if self._generation != _calls.generation():  # convoy.refresh()
            self._generation = _calls.generation()
            session.forget_derived()
        standins = list(arguments)  # Of weights and numbers, none.
        for i in self._rest:
            standins[i] = _entries.wrapped(arguments[i], session)
        _constructors.enter(sys._getframe())
        try:
            known: dict[int, tuple] = {}
            results = [left(value, known, lay) if type(value) is Deferred
                       else lay(value) if isinstance(value, torch.Tensor) else value
                       for value, lay in zip(self._module.forward(*standins), self._laid)]
            for group in self._shared:
                self._put_together(results, group)
        finally:
            _constructors.leave()
        session.end(results)
        return results

    def _put_together(self, results, group):
        """Let them share memory as the compiler expects: what follows may write to one of them."""
        given = [results[i] for i in group]
        if all(result is given[0] for result in given):
            return
        ends = [self._laid[i].end(result) for i, result in zip(group, given)]
        memory = torch.empty(max(ends), dtype=given[0].dtype, device=given[0].device)
        for i, result in zip(group, given):
            laid = self._laid[i]
            target = results[i] = memory.as_strided(result.shape, laid.strides, laid.offset)
            for axis, step in enumerate(laid.strides):
                if step == 0 and result.shape[axis] > 1:  # Expanded: one entry of memory.
                    target, result = target.narrow(axis, 0, 1), result.narrow(axis, 0, 1)
            target.copy_(result)


class _Counters:
    """What a batch norm counts its training in, by its running mean: PyTorch does not count what
    training writes to that. NOTE: the compiler does not tell whose mean it is, so that all
    dictionaries are looked through, at the first call of a graph with batch norms."""

    def __init__(self):
        self._known: dict[int, tuple] = {}

    def __call__(self, mean):
        found = self._known.get(id(mean))
        if found is None or found[0]() is not mean:
            self._look()
            found = self._known.setdefault(id(mean), (weakref.ref(mean), None))
        return found[1]

    def _look(self):
        for held in gc.get_objects():
            if type(held) is dict and "running_mean" in held:
                mean = held["running_mean"]
                if isinstance(mean, torch.Tensor):
                    counter = held.get("num_batches_tracked")
                    self._known[id(mean)] = weakref.ref(mean), counter
