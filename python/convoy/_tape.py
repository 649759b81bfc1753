# SPDX-License-Identifier: Apache-2.0
"""A call's operators, noted one after another as they run, to be run again without what chose them:
a tape. It is for calls of which somebody else says that they do the same for tensors of the same
shapes: PyTorch's compiler (_compiled.py)."""

import contextlib
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ._deferred import Deferred, dispatched, plain
from ._steps import thread

# Functions that tell the host something of a tensor, but nothing of its numbers: comparisons with
# what is no tensor among them.
_OF_SHAPES = {"__eq__", "__get__", "__len__", "__ne__", "dim", "element_size", "get_device",
              "is_complex", "is_contiguous", "is_floating_point", "is_same_size", "ndimension",
              "nelement", "numel", "size", "storage_offset", "stride"}
# What torch.tensor() ends with.
_LIFTING = torch.ops.aten.lift_fresh, torch.ops.aten.lift_fresh_copy


class NotTaped(Exception):
    """Why a call has no tape."""


class _Line:
    """One operator: result(s) = function(arguments), with names for tensors."""

    def __init__(self, function, arguments, names, results, is_needed):
        self.function, self.arguments, self.names = function, arguments, names
        self.results, self.is_needed = results, is_needed


def _is_scalar(value):
    return value is None or type(value) in (bool, int) or (
        type(value) is float and math.isfinite(value))


class Recorder(TorchDispatchMode):
    """Within it the operators of this thread are noted. inputs: the tensors that the call is given.
    known: others that were there before the call, and are the same in the next ones. numbers: those
    whose number is the same too, so that it may be asked for."""

    supports_higher_order_operators = True  # Else torch.cond and the like would not run here.

    def __init__(self, inputs: Iterable[Any], known: Iterable[torch.Tensor],
                 numbers: Iterable[torch.Tensor] = ()):
        super().__init__()
        self._token = object()
        self._lines: list[_Line] = []
        self._inputs: list[str] = []
        self._numbers = {id(tensor): tensor for tensor in numbers}
        self._known = {id(tensor): tensor for tensor in known} | self._numbers
        self._values: dict[str, Any] = {}  # What the source calls by a name.
        self._count = 0
        self._given: list[torch.Tensor] = []
        self.why = ""  # It has no tape.
        # Within a function that is noted whole: whether it does more than give its result.
        self._within: bool | None = None
        for value in inputs:
            name = self._new("i")
            self._inputs.append(name)
            if isinstance(value, torch.Tensor):
                self._mark(value, name)
                self._given.append(value)

    def __enter__(self):
        thread.recorder = self
        return super().__enter__()

    def __exit__(self, *failure):
        thread.recorder = None
        return super().__exit__(*failure)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.HigherOrderOperator):
            self.why = self.why or f"{func.name()} calls functions that are not noted"
            return func(*plain(args), **plain(kwargs))
        if Deferred in types:  # Their tensors' operators are what is noted.
            with self:
                return dispatched(func, args, kwargs)
        result = func(*args, **kwargs)
        if self.why:
            return result
        self._check(func, args, kwargs, result)
        is_needed = func._schema.is_mutable or torch.Tag.nondeterministic_seeded in func.tags
        if self._within is not None:
            self._within |= is_needed
        elif self.why or not (is_needed or _has_tensors(result)):
            pass
        elif func._overloadpacket in _LIFTING:
            self._mark(result, self._new("k", result.clone()))
        else:
            self._add(getattr(func, "_op", func), args, kwargs, result, is_needed)
        return result

    def run(self, function, args, kwargs):
        """One of PyTorch's functions (_steps.py)."""
        if self._within is not None or self.why:
            return function(*args, **kwargs)
        self._within = False
        try:
            result = function(*args, **kwargs)
        finally:
            is_needed, self._within = self._within, None
        name = getattr(function, "__name__", str(function))
        if _has_tensors(result):
            self._add(function, args, kwargs, result, is_needed)
        elif name not in _OF_SHAPES:
            self.why = self.why or f"{name} tells the host something of a tensor"
        return result

    def noted(self, function, args):
        """A `step` (_steps.py)."""
        thread.recorder = None
        try:
            with _disable_current_modes():
                result = function(*args)
        finally:
            thread.recorder = self
        if not self.why:
            self._add(function, args, {}, result, is_needed=False)
        return result

    def _new(self, letter, value=None):
        self._count += 1
        name = f"{letter}{self._count}"
        if value is not None:
            self._values[name] = value
        return name

    def _mark(self, tensor, name):
        # NOTE: at the tensor, not by its id, which the next tensor may have.
        tensor._convoy_name = self._token, name

    def _check(self, func, args, kwargs, result):
        """Whether what follows may depend on numbers."""
        if torch.Tag.dynamic_output_shape in func.tags and not _is_by_numbers(func, args):
            self.why = f"{func.name()} gives a shape that depends on numbers"
        elif not (func._schema.is_mutable or _has_tensors(result)
                  or not _has_tensors((*args, *kwargs.values()))  # Of types alone.
                  or (func is torch.ops.aten._local_scalar_dense.default
                      and id(args[0]) in self._numbers)):
            self.why = f"{func.name()} tells the host something of a tensor"

    def _add(self, function, args, kwargs, result, is_needed):
        names: set[str] = set()
        try:
            given = [self._source(value, names) for value in args]
            # NOTE: a name may be one of Python's own, as random_'s `from`.
            named = [f"{key!r}: {self._source(value, names)}" for key, value in kwargs.items()]
            given += [f"**{{{', '.join(named)}}}"] if named else []
        except NotTaped as reason:
            self.why = str(reason)
            return
        self._lines.append(_Line(self._new("f", function), ", ".join(given), names,
                                 self._targets(result), is_needed))

    def _targets(self, result):
        """The names of a result, as the left side of an assignment has them."""
        if isinstance(result, torch.Tensor):
            name = self._new("t")
            self._mark(result, name)
            return name
        if isinstance(result, (tuple, list)):
            return [self._targets(item) for item in result]
        return "_"

    def _source(self, value, names):
        if isinstance(value, torch.Tensor):
            token, name = getattr(value, "_convoy_name", (None, ""))
            if token is not self._token:
                if id(value) not in self._known:
                    raise NotTaped("a tensor is used that no operator of the call has made")
                name = self._new("k", value)
                self._mark(value, name)
                self._given.append(value)
            names.add(name)
            return name
        if type(value) in (tuple, list):
            items = ", ".join(self._source(item, names) for item in value)
            if type(value) is list:
                return f"[{items}]"
            return f"({items},)" if value else "()"
        if _is_scalar(value):
            return repr(value)
        if _has_tensors(value):
            raise NotTaped(f"a {type(value).__name__} of tensors is an argument")
        return self._new("v", value)

    def ended(self, outputs) -> Callable[..., list]:
        """The tape of a call with these outputs: a function of the inputs. Raises NotTaped."""
        try:
            if self.why:
                raise NotTaped(self.why)
            names: set[str] = set()
            results = self._source(list(outputs), names)
        finally:
            for tensor in (*self._given, *outputs):
                if isinstance(tensor, torch.Tensor):
                    with contextlib.suppress(AttributeError):
                        del tensor._convoy_name
        lines = [f"    return {results}"]
        seen = names  # By what follows.
        for line in reversed(self._lines):
            made = _flat(line.results)
            if not line.is_needed and seen.isdisjoint(made):
                continue
            over = sorted(name for name in line.names - seen if name[0] in "it")
            over += [name for name in made if name not in seen]
            if over:
                lines.append(f"    {' = '.join(over)} = None")
            left = _left_side(line.results)
            lines.append(f"    {left}{line.function}({line.arguments})")
            seen |= line.names
        source = "\n".join([f"def tape({', '.join(self._inputs)}):", *reversed(lines)])
        values = {name: value for name, value in self._values.items()
                  if name[0] != "k" or name in seen}
        exec(compile(source, "<convoy tape>", "exec"), values)
        return values["tape"]


def _is_by_numbers(func, args):
    """x[indices], whose shape is that of the indices, unless they are masks."""
    return func is torch.ops.aten.index.Tensor and all(
        index is None or index.dtype not in (torch.bool, torch.uint8) for index in args[1])


def _has_tensors(value):
    if isinstance(value, slice):
        value = value.start, value.stop, value.step
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list, set, frozenset)):
        return any(map(_has_tensors, value))
    return isinstance(value, torch.Tensor)


def _flat(results):
    if isinstance(results, str):
        return [] if results == "_" else [results]
    return [name for item in results for name in _flat(item)]


def _left_side(results):
    if isinstance(results, str):
        return "" if results == "_" else f"{results} = "
    return _pattern(results) + " = " if _flat(results) else ""


def _pattern(results):
    if isinstance(results, str):
        return results
    return "[" + ", ".join(map(_pattern, results)) + "]"
