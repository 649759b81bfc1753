# SPDX-License-Identifier: Apache-2.0
"""`accelerate(model)`: the convolutions and norms of a PyTorch model on Convoy, in channels-last
memory from end to end, fused with what surrounds them."""

import collections
import contextlib
import dataclasses
import functools
import logging
import sys
import types
import weakref
from typing import Any

import torch

from . import (
    _calls,
    _constructors,
    _functions,
    _helpers,
    _layout,
    _measure,
    _prologues,
    _transposed,
    _trial,
)
from ._bounded import Bounded
from ._changes import state, unwatch, watch
from ._deferred import Deferred, storages, tidy, tidy_buffers, unwrapped
from ._folding import Foldings
from ._native import UPSAMPLE_FOLDINGS, ConvoyError, InvalidArgument, choose
from ._nodes import Value, part_from
from ._trial import MARK

_functions.register_all()
_log = logging.getLogger("convoy")
QUALITIES = {"fast": 0, "exact": 1}
_Parameter, _float32 = torch.nn.Parameter, torch.float32
_MOST = 65536  # Calls that are kept of each kind, by weight and shape.
_FACTORS = 8  # That a convolution takes in, or all norms together.


@dataclasses.dataclass
class Part:
    """One convolution or norm of one shape. kernel: what runs it, "pytorch" where it was left.
    microseconds: of each way that was measured."""

    name: str
    shape: tuple[int, ...]
    operation: str
    kernel: str
    reason: str = ""
    microseconds: dict[str, float] = dataclasses.field(default_factory=dict)
    calls: int = 0


@dataclasses.dataclass
class Report:
    """What `accelerate` took over of a model, from the calls so far. fused: how often each kind of
    fusion was made; conversions: tensors that had to be copied into channels-last memory, and
    their bytes; left_calls: whole calls of the model that were left to PyTorch, by reason;
    exchange: what carries rows between the ranks of a group, and why not peer memory."""

    taken: list[Part]
    left: list[Part]
    fused: dict[str, int]
    conversions: int
    converted_bytes: int
    left_calls: dict[str, int]
    exchange: str = ""

    def __str__(self):
        lines = [
            f"taken over: {len(self.taken)} convolutions and norms (by module and shape), "
            f"{sum(p.calls for p in self.taken)} calls",
            "fused: " + (", ".join(f"{n} × {kind}" for kind, n in sorted(self.fused.items()))
                         or "nothing yet"),
            f"conversions to channels-last: {self.conversions} "
            f"({self.converted_bytes / 1e6:.1f} MB)",
        ]
        if not self.taken and not self.left and not self.left_calls:
            lines.append("nothing has run yet: the report is of the calls so far")
        if self.exchange:
            lines.append(f"rows between the ranks: {self.exchange}")
        for part in self.left:
            lines.append(f"left to PyTorch: {part.name} {part.operation} {list(part.shape)}: "
                         f"{part.reason}")
        for reason, count in self.left_calls.items():
            lines.append(f"left to PyTorch: {count} whole calls: {reason}")
        return "\n".join(lines)


def _identity(weight):
    """What tells a model's weights apart; views and sums of them are new at each call."""
    return id(weight) if isinstance(weight, torch.nn.Parameter) else None


class Session:
    """What the accelerated parts of one model share."""

    def __init__(self, model=None, upsample_folding="exact", probe=True, quality="fast",
                 shards=None):
        self.shards = shards  # Where a group of ranks shares the work.
        self.model = None if model is None else weakref.ref(model)
        self.upsample_folding, self.probe, self.quality = upsample_folding, probe, quality
        self.rounding = "each_step" if quality == "exact" else "once"
        self.fused: collections.Counter[str] = collections.Counter()
        self.left_calls: collections.Counter[str] = collections.Counter()
        self.conversions = self.converted_bytes = 0
        self._parts: dict[tuple, Part] = {}
        self._convs: dict[tuple, tuple] = Bounded(_MOST)
        self._norms: dict[tuple, tuple] = Bounded(_MOST)
        self._pairs: dict[tuple, tuple] = Bounded(_MOST)
        self._transposed: dict[tuple, tuple] = Bounded(_MOST)
        self._coefficients: dict[tuple, _calls.NormCall] = Bounded(_MOST)
        self.shared: dict[int, weakref.ref] = {}
        self._names: dict[int, str] | None = None
        self._derived: dict[tuple, Any] = {}
        self._factors: dict[int | None, set] = Bounded(_MOST)
        self.foldings = Foldings(lambda: self.model and self.model())
        self.filters = _transposed.Filters()
        self.trials = _trial.Trials()
        self.is_untidy = False  # Whether the model may hold stand-ins, from calls before.
        self._buffers: list[dict] | None = None
        watch(self)

    def __deepcopy__(self, memo):
        model = None if self.model is None else memo.get(id(self.model()))
        return Session(model, self.upsample_folding, self.probe, self.quality, self.shards)

    def __reduce__(self):
        return Session, (None, self.upsample_folding, self.probe, self.quality)

    def tidy(self, module):
        """Before a call of `module`, or of its twin, that is PyTorch's own."""
        if self.is_untidy:
            self.is_untidy = False
            tidy(module)
            model = None if self.model is None else self.model()
            if model is not None and model is not module:
                tidy(model)

    def end(self, output):
        """At the end of an accelerated call, with its results."""
        part_from(storages(output, set()))
        if self._buffers is None:
            model = None if self.model is None else self.model()
            self._buffers = [] if model is None else [
                part._buffers for part in model.modules() if part._buffers]
        tidy_buffers(self._buffers)

    def is_shared(self, weight):
        """Whether the plain output of this weight's convolution was wanted beside a fused one."""
        weight = getattr(weight, "_convoy_of", weight)
        found = self.shared.get(id(weight))
        return found is not None and found() is weight

    def share(self, weight):
        weight = getattr(weight, "_convoy_of", weight)
        self.shared[id(weight)] = weakref.ref(weight)

    def may_scale(self, weight, factor):
        """Whether a convolution of this weight, or a norm (None), takes this factor in. NOTE:
        numbers that change from call to call would be another call each, to be made, kept and
        measured."""
        known = self._factors.setdefault(_identity(weight), set())
        if len(known) < _FACTORS:
            known.add(factor)
        return factor in known

    def _name(self, weight):
        if self._names is None:
            model = None if self.model is None else self.model()
            named = () if model is None else model.named_parameters()
            self._names = {id(p): name.removesuffix(".weight") for name, p in named}
        return self._names.get(id(self.foldings.origin(weight)), "(a function)")

    def convert(self, tensor):
        """The tensor with channels innermost and 16-byte aligned; a copy is counted."""
        if _layout.is_inner(tensor) and tensor.data_ptr() % 16 == 0:
            return tensor
        self.conversions += 1
        self.converted_bytes += tensor.nbytes
        _log.debug("convoy: %s %s is copied into channels-last memory", tuple(tensor.shape),
                   tensor.dtype)
        return _layout.inner_copy(tensor)

    def leave(self, weight, shape, operation, reason):
        """Count a call that is PyTorch's whatever the shape."""
        key = (_identity(weight), shape, operation)
        if key not in self._parts:
            self._parts[key] = Part(self._name(weight), tuple(shape), operation, "pytorch", reason)
        self._parts[key].calls += 1

    def measures(self, device):
        """Whether what runs there is compared with PyTorch's own now."""
        return (self.probe and device.type in _measure.DEVICES
                and not _measure.is_capturing(device))

    @contextlib.contextmanager
    def unreported(self):
        """What is tried within leaves no parts to report."""
        parts, norms, convs = self._parts.copy(), self._norms.copy(), self._convs.copy()
        try:
            yield
        finally:
            self._parts, self._norms, self._convs = parts, norms, convs

    # ---- Convolutions ----

    def _conv_key(self, node, x, cache, residual):
        weight, bias = node.weight, node.bias
        # NOTE: weight.shape, x.dtype and x.device are the geometry's. x.shape is another's where
        # several ranks share the work.
        return (
            id(weight) if type(weight) is _Parameter else _identity(weight), node.how, x.shape,
            None if bias is None else bias.dtype, residual is None,
            None if cache is None else cache.shape, node.activation, node.residual_first,
            node.shuffle, node.repeats, node.scale, x.dtype is _float32 and _calls.allows_tf32(x),
        )

    def conv(self, node, x, cache, residual):
        key = self._conv_key(node, x, cache, residual)
        found = self._convs.get(key)
        if found is None:
            found = self._choose_conv(key, node, x, cache, residual)
        call, part = found
        part.calls += 1
        return call(node, x, cache, residual)

    def normalised_conv(self, node, norm, cache, residual):
        """`node`, in front of which `norm` waits, as one call; None where they are rather made one
        after the other."""
        if not _prologues.fits(norm, node, self):
            return None
        if norm.taken:  # Two convolutions want it.
            self.share(norm.weight)
            return None
        x = norm.source.force()
        key = _prologues.key_of(norm), *self._conv_key(node, x, cache, residual)
        found = self._pairs.get(key)
        if found is None:
            found = self._choose_pair(key, node, norm, x, cache, residual)
        call, part = found
        if call is None:
            return None
        part.calls += 1
        self.fused["norm and convolution"] += 1
        norm.taken = True
        return call(norm, node, x, cache, residual)

    def _choose_pair(self, key, node, norm, x, cache, residual):
        call, spent, is_settled = _prologues.choose(self, key, norm, node, x, cache, residual)
        if not is_settled:
            return None, None
        part = None
        if call is not None:
            operation = " + ".join(["group_norm", *self._kinds(node, x, cache, residual)])
            part = self._parts[key] = Part(self._name(node.weight), tuple(x.shape), operation,
                                           call.name, "", spent)
        found = self._pairs[key] = call, part
        return found

    def _choose_conv(self, key, node, x, cache, residual):
        call, kernel, reason, spent = self._shape_choice(key, node, x, cache, residual)
        part = Part(self._name(node.weight), tuple(x.shape),
                    " + ".join(self._kinds(node, x, cache, residual)), kernel, reason, spent)
        self._parts[key] = part
        found = self._convs[key] = call, part
        return found

    def _kinds(self, node, x, cache, residual):
        """What a convolution does, for a report."""
        kinds = [f"conv{x.dim() - 2}d"]
        kinds += ["upsampling"] * (node.upsample > 1) + ["padding"] * any(node.begin + node.end)
        kinds += ["depth to space"] * (node.shuffle is not None)
        kinds += ["cache"] * (cache is not None) + ["scale"] * (node.scale != 1.0)
        kinds += ["residual"] * (residual is not None)
        if node.activation is not None:
            kinds.append(node.activation[0])
        return kinds

    def _shape_choice(self, key, node, x, cache, residual):
        """(call, kernel, reason, times) for this shape, whatever the weight."""
        weight = node.weight
        shape_key = (isinstance(weight, torch.nn.Parameter), self.upsample_folding,
                     self.probe, self.rounding, *key[1:])
        known = _measure.choices.get(shape_key)
        if known is not None:
            call, *rest = known
            # Conversions are counted for the session that makes them.
            if isinstance(call, (_calls.ConvCall, _Unfused)):
                call = call.counting(self.convert)
            return call, *rest
        ways: dict[str, Any] = {}
        reason = ""
        try:
            ways["fused"] = _calls.ConvCall(node, x, cache, residual, self.convert,
                                            scale=node.scale,
                                            upsample_folding=self.upsample_folding,
                                            rounding=self.rounding)
        except ConvoyError as error:
            reason = str(error)
        if node.upsample > 1 or any(mode != "zero" for mode in node.modes):
            try:
                ways["unfused"] = _Unfused(node, x, cache, residual, self.convert, self.rounding)
            except ConvoyError as error:
                reason = reason or str(error)
        spent: dict[str, float] = {}
        choice: Any = _eager_conv
        if not ways:
            pass  # PyTorch it is; the reason says why.
        elif not self.measures(x.device):
            choice = next(iter(ways.values()))
            if _measure.is_capturing(x.device) and self.probe:
                return choice, choice.name, "", {}  # Not measured: not kept for others.
        else:
            ways["pytorch"] = _eager_conv
            spent = _measure.microseconds({
                name: functools.partial(way, node, x, cache, residual)
                for name, way in ways.items()
            }, x.device)
            quickest = min(spent, key=lambda name: spent[name])
            choice = ways[quickest]
            if quickest == "pytorch":
                others = ", ".join(f"{n} {spent[n]:.0f} µs" if n in spent else f"{n} fails"
                                   for n in ways if n != "pytorch")
                reason = f"PyTorch is quicker here: {spent['pytorch']:.0f} µs; Convoy: {others}"
        kernel = "pytorch" if choice is _eager_conv else choice.name
        found = choice, kernel, reason if choice is _eager_conv else "", spent
        _measure.choices[shape_key] = found
        return found

    # ---- Transposed convolutions ----

    def transposed(self, operation, how, x, weight, bias):
        key = (operation, _identity(weight), weight.shape, x.shape, x.dtype, x.device, bias is None,
               how.stride, how.padding, how.output_padding, _calls.allows_tf32(x))
        found = self._transposed.get(key)
        if found is None:
            found = self._choose_transposed(key, how, x, weight, bias)
        call, part = found
        part.calls += 1
        return how.eager(x, weight, bias) if call is None else call(x, weight, bias)

    def _choose_transposed(self, key, how, x, weight, bias):
        spent: dict[str, float] = {}
        call, reason = _transposed.call_of(how, self, x, weight, bias)
        if call is not None and self.measures(x.device):
            reason, spent = _measure.beside_pytorch(
                functools.partial(call, x, weight, bias),
                functools.partial(how.eager, x, weight, bias), x.device)
            call = None if reason else call
        part = Part(self._name(weight), tuple(x.shape), key[0], call.name if call else "pytorch",
                    reason, spent)
        self._parts[key] = part
        found = self._transposed[key] = call, part
        return found

    # ---- Norms ----

    def norm(self, node, x):
        weight, bias = node.weight, node.bias
        identity = id(weight) if type(weight) is _Parameter else _identity(weight)
        if node.rule != "group":  # Whose scale is 1.
            scale = node.plain_scale()
            if scale != 1.0:
                weight = self._scaled_weight(node, x, scale)
        key = (
            identity, x.shape, x.dtype, x.device,
            None if weight is None else weight.dtype,
            None if bias is None else bias.dtype, node.rule, node.groups, node.epsilon,
            node.activation,
        )
        found = self._norms.get(key)
        if found is None:
            found = self._choose_norm(key, node, x, weight, bias)
        call, part = found
        part.calls += 1
        return node.eager(x) if call is None else call(x, weight, bias)

    def coefficients(self, norm, x):
        """[2, N, C]: what a GroupNorm multiplies x by, and what it adds."""
        weight, bias = norm.weight, norm.bias
        if weight is not None and bias is not None and weight.dtype != bias.dtype:
            weight, bias = weight.float(), bias.float()
        key = (norm.groups, norm.epsilon, x.shape, x.dtype, x.device,
               None if weight is None else weight.dtype, None if bias is None else bias.dtype)
        call = self._coefficients.get(key)
        if call is None:
            call = self._coefficients[key] = _calls.NormCall(norm, x, weight, bias, self.convert,
                                                             result="coefficients")
        return call(x, weight, bias)

    def _scaled_weight(self, node, x, scale):
        """weight·scale, kept as long as the weight is the same."""
        weight = node.weight
        if weight is None:
            key: tuple = (x.shape[1], scale, x.dtype, x.device)
            if key not in self._derived:
                self._derived[key] = torch.full((x.shape[1],), scale, dtype=x.dtype,
                                                device=x.device)
            return self._derived[key]
        if not isinstance(weight, torch.nn.Parameter):
            return weight * scale
        return self._multiplied(weight, scale, weight.dtype)

    def _multiplied(self, parameter, scale, dtype):
        key = (id(parameter), scale, dtype)
        version = state(parameter)
        known = self._derived.get(key)
        if known is None or known[0]() is not parameter or known[1] != version:
            made = (parameter.detach().to(dtype) * scale).reshape(-1)
            gone = weakref.ref(parameter, lambda _: self._derived.pop(key, None))
            known = self._derived[key] = gone, version, made
        return known[2]

    def scaled_bias(self, bias, scale):
        """bias·scale in fp32, kept as long as a parameter is the same."""
        if bias is None:
            return None
        if isinstance(bias, torch.nn.Parameter):
            return self._multiplied(bias, scale, torch.float32)
        return bias.detach().float() * scale

    def forget_derived(self):
        self._derived.clear()
        self.foldings.clear()
        self.filters.clear()

    def _choose_norm(self, key, node, x, weight, bias):
        reason, spent, call = "", {}, None
        shape_key = ("norm", self.probe, x.shape[1], weight is None, bias is None, *key[1:])
        known = _measure.choices.get(shape_key)
        try:
            call = _calls.NormCall(node, x, weight, bias, self.convert)
        except ConvoyError as error:
            reason = str(error)
        if known is not None:
            if known[1] == "pytorch":
                call = None
            reason, spent = known[2:]
        elif call is not None and self.measures(x.device):
            reason, spent = _measure.beside_pytorch(
                functools.partial(call, x, weight, bias), functools.partial(node.eager, x),
                x.device)
            call = None if reason else call
            _measure.choices[shape_key] = None, call.name if call else "pytorch", reason, spent
        kind = "group_norm" if node.rule == "group" else "rms_norm"
        if node.activation is not None:
            kind += f" + {node.activation[0]}"
        name = "(a function)" if node.weight is None else self._name(node.weight)
        part = Part(name, tuple(x.shape), kind, call.name if call else "pytorch", reason, spent)
        self._parts[key] = part
        found = self._norms[key] = call, part
        return found

    def takes_over(self):
        """Whether any convolution or norm of the calls so far is Convoy's."""
        return any(part.kernel != "pytorch" for part in self._parts.values())

    def report(self):
        taken: list[Part] = []
        left: list[Part] = []
        for part in self._parts.values():
            (left if part.kernel == "pytorch" else taken).append(part)
        return Report(
            taken, left, dict(self.fused), self.conversions, self.converted_bytes,
            dict(self.left_calls), self.shards.peers.how() if self.shards else "",
        )


def _eager_conv(node, x, cache, residual):
    return node.eager(x, cache, residual, node.bias)


class _Unfused:
    """The padding or upsampling as a copy, then the convolution."""

    def __init__(self, node, x, cache, residual, convert, rounding):
        plain = self._plain(node)
        self._call = _calls.ConvCall(plain, self._input(node, x, cache, meta=True), None, residual,
                                     convert, scale=node.scale, rounding=rounding)
        self.name = self._call.name

    @staticmethod
    def _plain(node):
        begin, end = node.begin, node.end
        if node.upsample == 1:
            zero = [mode == "zero" for mode in node.modes]
            begin = tuple(b if z else 0 for b, z in zip(begin, zero))
            end = tuple(e if z else 0 for e, z in zip(end, zero))
        made = node.with_geometry(node.how.having(begin, end, ("zero",) * len(begin)))
        made.cache = None
        return made

    @staticmethod
    def _input(node, x, cache, meta=False):
        if meta:
            like = _Shape(x)
            extents = list(x.shape[2:])
            if cache is not None:
                extents[0] += cache.shape[2]
            for i, mode in enumerate(node.modes):
                extents[i] *= node.upsample
                if mode != "zero":
                    extents[i] += node.begin[i] + node.end[i]
            like.shape = torch.Size((*x.shape[:2], *extents))
            return like
        if cache is not None:
            x = _layout.cat([cache, x], 2)
        if node.upsample > 1:
            return _layout.upsample(x, (node.upsample,) * len(node.begin))
        begin = [b if m != "zero" else 0 for b, m in zip(node.begin, node.modes)]
        end = [e if m != "zero" else 0 for e, m in zip(node.end, node.modes)]
        return _layout.pad(x, begin, end, node.modes)

    def __call__(self, node, x, cache, residual):
        return self._call(node, self._input(node, x, cache), None, residual)

    def counting(self, convert):
        made = _Unfused.__new__(_Unfused)
        made._call, made.name = self._call.counting(convert), self.name
        return made


class _Shape:
    """What a plan asks of a tensor."""

    def __init__(self, x):
        self.dtype, self.device, self.is_cuda, self._axes = x.dtype, x.device, x.is_cuda, x.dim()
        self.shape = x.shape

    def dim(self):
        return self._axes


# ---- Hooks ---------------------------------------------------------------------------------------


def _tensors(values):
    """Tensors among arguments. NOTE: lists and dictionaries are a model's own: caches that its
    parts write to, and that may hold stand-ins of a call before."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif type(value) is tuple:
            found += _tensors(value)
    return found


def _refusal(module, given):
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


def _wrapped(value, session, module):
    """A tensor that comes in as a stand-in, in tuples too."""
    if not isinstance(value, torch.Tensor):
        if type(value) is tuple:
            return tuple(_wrapped(item, session, module) for item in value)
        return value
    if not value.dtype.is_floating_point or type(value) not in (torch.Tensor, _Parameter):
        return value
    if value.dim() not in (4, 5):
        return Deferred(Value(value, given=True), session, module)
    if session.shards and session.shards.active:
        return Deferred(Value(session.shards.enter(value)), session, module)
    ours = session.convert(value)
    return Deferred(Value(ours, given=ours is value), session, module)


def _before(session, module, args, kwargs):
    """The inputs as stand-ins, where the call comes from outside."""
    if (args and type(args[0]) is Deferred) or torch.compiler.is_compiling():
        return None  # Most calls of parts: from inside.
    _trial.forget_interrupted(session.trials, module)
    way = _trial.settled()
    if way == "plain":
        session.tidy(module)
        return None
    given = _tensors(args)
    if kwargs:
        given += _tensors(kwargs.values())
    takes = False
    for tensor in given:
        if type(tensor) is Deferred:
            return None
        takes = takes or (tensor.dtype.is_floating_point and tensor.dim() > 2)
    if not takes:
        return None
    reason = _refusal(module, given)
    if reason:
        session.left_calls[reason] += 1
        if module.training:  # Norms of the model's own, that count nothing, may have other numbers.
            session.foldings.clear()
        session.tidy(module)
        return None

    shards = session.shards
    is_first = False
    if not shards and way is None and session.measures(given[0].device):
        found = session.trials.begin(module, given, args, kwargs, sys._getframe(1))
        if found:
            session.left_calls[found] += 1
            session.tidy(module)
            return None
        is_first = found is None
    if shards:
        reason = shards.begin(module, given)
        if reason:
            session.left_calls[f"not cut by height: {reason}"] += 1

    standins = (tuple([_wrapped(value, session, module) for value in args]),
                {key: _wrapped(value, session, module) for key, value in kwargs.items()})
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


def _after(session, module, args, kwargs, output):
    """Tensors again, where `_before` of the same module made the stand-ins."""
    if ((args and type(args[0]) is Deferred and args[0]._entry is not module)
            or torch.compiler.is_compiling()):
        return None  # As in _before. NOTE: the stand-ins of one call are all of one entry.
    given = _tensors(args) + _tensors(kwargs.values())
    if any(type(value) is Deferred and value._entry is module for value in given):
        _constructors.leave()
        whole = session.model is not None and session.model() is module
        depth = 6 if whole else 0
        if type(output) is types.GeneratorType:
            output = _resumed(output, session, depth)
        else:
            output = unwrapped(output, outermost=True, depth=depth)
            session.end(output)
    return session.trials.end(args, kwargs, output, session.takes_over)


class _Handles(list):
    """Of the hooks of an accelerated model. Copies and pickles are without those of parts that are
    gone, replaced by others: PyTorch's RemovableHandle cannot be set up without its module's hooks.
    """

    def __reduce__(self):
        return _Handles, ([handle for handle in self if handle.hooks_dict_ref() is not None],)


def _has_convolutions(module):
    return any(isinstance(m, torch.nn.modules.conv._ConvNd) for m in module.modules())


def _entries(model):
    """The model and those of its parts that its own methods call: where tensors come in."""
    yield model
    for child in model.children():
        if not _has_convolutions(child):
            continue
        if isinstance(child, (torch.nn.ModuleList, torch.nn.ModuleDict)):
            yield from (part for part in child.children() if _has_convolutions(part))
        else:
            yield child


def accelerate(model: torch.nn.Module, *, upsample_folding: str = "exact",
               probe: bool = True, quality: str = "fast", group: Any = None,
               gather: bool = True) -> torch.nn.Module:
    """Let Convoy run the convolutions and norms of `model`, in place; returns the model.

    Calls run through the model's own forward(). Its tensors lie in channels-last memory from the
    first convolution on; norm + activation, convolution + bias + activation + residual, padding +
    convolution, nearest-2× upsampling + convolution and frames from a causal cache become one call
    each, whatever the modules are called. A batch norm in evaluation mode goes into the weight of
    the convolution before it: a second copy of that weight. Weights stay where they are:
    state_dict() is unchanged, and changes of a weight are seen.

    upsample_folding: "exact", or "fast" (convoy.torch.conv2d). probe: on a GPU, measure each shape
    once against PyTorch, at its first call, and leave to PyTorch what is quicker there; and a whole
    call that is short or that the host binds: it is made both ways at its first time. (One that
    changes what the model holds is made once, and tried on a twin that shares the weights.)
    (`convoy.graphed` takes the host's time away; under it calls are accelerated.)

    quality: "fast" rounds once where several steps became one call, and so errs less than the model
    did; "exact" rounds 16-bit numbers wherever the model's own steps do: after convolution, bias,
    activation and sum, with norms apart from their activations and batch norms from their
    convolutions. Both give the same bits in each call; but where the first call finds that an
    output is wanted beside what it was fused into, the ones after it no longer fuse it.

    group: a process group of torch.distributed over whose ranks the height of each picture is cut.
    All ranks make the same calls with the same inputs; each gets the whole output, or with
    gather=False its own rows. Pictures with too few rows are computed by every rank. Raises
    Unsupported, in the call, for a function that may mix rows and is no attention.

    Functions under torch.compile that the model calls run uncompiled.
    Calls that want gradients, run under autocast, are traced (torch.compile, torch.export,
    torch.jit.trace) or watched by a TorchDispatchMode are PyTorch's own; torch.jit.script takes no
    accelerated model (its hooks), but a restored one.
    `convoy.report(model)` tells what was taken over, and why the rest was not; `convoy.restore`
    undoes it. A model that writes to its input in place writes to a copy. Raises
    InvalidArgument where `model` is no module, has no convolution, or is or holds a compiled one.
    """
    choose(UPSAMPLE_FOLDINGS, upsample_folding, "upsample_folding")
    choose(QUALITIES, quality, "quality")
    if quality == "exact" and upsample_folding != "exact":
        raise InvalidArgument(f'upsample_folding = {upsample_folding!r} is not legal with '
                              'quality="exact"; legal: exact')
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgument(f"model is a {type(model).__name__}; legal: a torch.nn.Module")
    if isinstance(model, torch.jit.ScriptModule):
        raise InvalidArgument(
            f"{type(model).__name__} is compiled by TorchScript, which does not let what it calls "
            "be replaced; legal: a model that is not; nearest: the module that was compiled")
    if not _has_convolutions(model):
        raise InvalidArgument(
            f"{type(model).__name__} has no convolution (torch.nn.Conv1d, Conv2d, Conv3d, ...); "
            "legal: a model with at least one"
        )
    for name, part in model.named_modules():
        if hasattr(part, "_orig_mod") or part._compiled_call_impl is not None:
            raise InvalidArgument(
                f"{name or 'model'} is compiled by torch.compile, which does not let what it calls "
                "be replaced; legal: a model that is not; nearest: the module that was compiled")
    restore(model)
    shards = None
    if group is not None:
        from ._shard import Shards

        shards = Shards(model, group, gather)
        shards = shards if shards.count > 1 else None
    session = Session(model, upsample_folding, probe, quality, shards)
    _helpers.replace(model)
    handles = _Handles()
    for module in dict.fromkeys(_entries(model)):
        handles.append(module.register_forward_pre_hook(
            functools.partial(_before, session), with_kwargs=True))
        handles.append(module.register_forward_hook(
            functools.partial(_after, session), with_kwargs=True, always_call=True))
    model.__dict__[MARK] = session, handles
    return model


def restore(model: torch.nn.Module) -> torch.nn.Module:
    """Undo `accelerate`; returns the model. What was made of its weights goes, and with the last
    accelerated model what was replaced in PyTorch. A model that was not accelerated stays as it is.
    """
    session, handles = model.__dict__.pop(MARK, (None, ()))
    for handle in handles:
        handle.remove()
    _helpers.put_back(model)
    tidy(model)
    if session is not None:
        session.forget_derived()
        unwatch(session)
        _calls.forget(model.parameters())
    return model


def refresh(model: torch.nn.Module) -> torch.nn.Module:
    """Let the model's weights be read anew, after writes that are not seen: those through a
    `weight.data` that was asked for before a call, or through another framework's view of the
    memory, those to a buffer's .data, those of torch.distributed's broadcast, reductions and scatter
    into a weight, and those to weights that were made under torch.inference_mode(). All others are
    seen without it. Returns the model."""
    _calls.forget(model.parameters())
    if MARK in model.__dict__:
        model.__dict__[MARK][0].forget_derived()
    return model


def report(model: torch.nn.Module) -> Report:
    """What `accelerate` took over of `model` in the calls so far. Raises InvalidArgument where it
    was not accelerated."""
    if MARK not in model.__dict__:
        raise InvalidArgument("the model is not accelerated; legal: convoy.accelerate(model) first")
    return model.__dict__[MARK][0].report()
