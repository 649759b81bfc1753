# SPDX-License-Identifier: Apache-2.0
"""What the accelerated parts of one model share: the call that was chosen for each convolution and
norm by weight and shape, what is made of weights, and what a report counts."""

import collections
import contextlib
import functools
import logging
import weakref
from typing import Any

import torch

from . import _calls, _compiled_call, _folding, _layout, _measure, _prologues, _transposed, _trial
from ._bounded import Bounded
from ._changes import state, watch
from ._folding import Foldings
from ._native import UPSAMPLE_FOLDINGS, ConvoyError, InvalidArgument, choose
from ._nodes import part_from
from ._report import Part, Report
from ._results import is_closed, storages, tidy, tidy_buffers

_log = logging.getLogger("convoy")
_Parameter, _float32 = torch.nn.Parameter, torch.float32
_MOST = 65536  # Calls that are kept of each kind, by weight and shape.
_MOST_REASONS = 256  # Why calls were not made under PyTorch's compiler.
QUALITIES = {"fast": 0, "exact": 1}
_FACTORS = 8  # That a convolution takes in, or all norms together.


def _identity(weight):
    """What tells a model's weights apart; views and sums of them are new at each call."""
    return id(weight) if isinstance(weight, torch.nn.Parameter) else None


def check_options(upsample_folding, quality):
    """Raises InvalidArgument for what `Session` does not take."""
    choose(UPSAMPLE_FOLDINGS, upsample_folding, "upsample_folding")
    choose(QUALITIES, quality, "quality")
    if quality == "exact" and upsample_folding != "exact":
        raise InvalidArgument(f'upsample_folding = {upsample_folding!r} is not legal with '
                              'quality="exact"; legal: exact')


class Session:
    """What the accelerated parts of one model share."""

    def __init__(self, model=None, upsample_folding="exact", probe=True, quality="fast",
                 shards=None, counter_of=None, compile=False):
        """counter_of: as of Foldings; None: of the model's batch norms. compile: whether calls may
        be made under PyTorch's compiler."""
        self.shards = shards  # Where a group of ranks shares the work.
        self.model = None if model is None else weakref.ref(model)
        self.upsample_folding, self.probe, self.quality = upsample_folding, probe, quality
        self.rounding = "each_step" if quality == "exact" else "once"
        self.fused: collections.Counter[str] = collections.Counter()
        self.left_calls: collections.Counter[str] = collections.Counter()
        self.not_compiled: collections.Counter[str] = collections.Counter()
        self.conversions = self.converted_bytes = self.compiled_calls = 0
        self.compile = compile
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
        self.foldings = Foldings(counter_of or (
            lambda mean: _folding.counter_of(self.model and self.model(), mean)))
        self.filters = _transposed.Filters()
        self.trials = _trial.Trials()
        self.is_untidy = False  # Whether the model may hold stand-ins, from calls before.
        self._buffers: list[dict] | None = None
        watch(self)

    def __deepcopy__(self, memo):
        model = None if self.model is None else memo.get(id(self.model()))
        return Session(model, shards=self.shards, compile=self.compile, **self.options())

    def __reduce__(self):
        return Session, (None, self.upsample_folding, self.probe, self.quality, None, None,
                         self.compile)

    def options(self):
        """Those of Convoy's backend of PyTorch's compiler."""
        return {"upsample_folding": self.upsample_folding, "probe": self.probe,
                "quality": self.quality}

    def compiled_call(self, module):
        return _compiled_call.of(self, module)

    def tidy(self, module, given):
        """Before a call of `module`, or of its twin, that is PyTorch's own."""
        if self.is_untidy and not is_closed(module, given):
            self.is_untidy = False
            model = None if self.model is None else self.model()
            tidy(*(held for held in (model, module) if held is not None))

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

    def made_of_weights(self):
        """The tensors that are kept from call to call, made of the model's weights."""
        derived = [known[2] if isinstance(known, tuple) else known
                   for known in self._derived.values()]
        return [*derived, *self.foldings.made(), *self.filters.made()]

    def progress(self):
        """Changes where a call has found something that the next one will do otherwise."""
        return tuple([len(found) for found in (
            self.shared, self._convs, self._norms, self._pairs, self._transposed,
            self._coefficients)])

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

    def left_by_compiler(self, module, reason):
        """A call of `module` was not, or is no longer, made under PyTorch's compiler."""
        line = f"{type(module).__name__}: {reason.strip().partition(chr(10))[0]}"
        _log.info("convoy: not under PyTorch's compiler: %s", line)
        if line in self.not_compiled or len(self.not_compiled) < _MOST_REASONS:
            self.not_compiled[line] += 1

    def report(self):
        taken: list[Part] = []
        left: list[Part] = []
        for part in self._parts.values():
            (left if part.kernel == "pytorch" else taken).append(part)
        return Report(
            taken, left, dict(self.fused), self.conversions, self.converted_bytes,
            dict(self.left_calls), self.shards.peers.how() if self.shards else "",
            self.compiled_calls, dict(self.not_compiled),
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
