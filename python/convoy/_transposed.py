# SPDX-License-Identifier: Apache-2.0
"""Transposed convolutions as convolutions whose filters become pixels (Shi 2016, sub-pixel
convolution): with stride s, T = t + padding = s·m + j and tap = s·u + j,

    y[t] = Σ_u x[m - u] · w[s·u + j]

so that each j < s is a convolution of ceil(taps / s) taps, and m and j interleaved are the output,
but for what the padding cuts off.
"""

import functools
import math
import weakref

import torch
import torch.nn.functional as F

from . import _calls
from ._changes import state
from ._convolutions import per_axis
from ._deferred import FLOATS, Deferred, has_numbers, plain, value_of, wrong_type
from ._native import ConvoyError

_FUNCTIONS = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


class _Convolution:
    """What a ConvCall asks of a node. NOTE: no node, which would wait to be computed."""

    groups, upsample, activation, residual_first, repeats = 1, 1, None, False, False

    def __init__(self, weight, bias, begin=(), end=(), shuffle=None):
        axes = len(begin)
        self.weight, self.bias, self.begin, self.end = weight, bias, begin, end
        self.stride = self.dilation = (1,) * axes
        self.modes, self.shuffle = ("zero",) * axes, shuffle


class Transposed:
    """One transposed convolution of one shape. begin, end: the padding of the convolution that
    does it; crop: what of its pixels is cut off in front."""

    def __init__(self, shape, filter_shape, stride, padding, output_padding):
        self.stride, self.padding, self.output_padding = stride, padding, output_padding
        self.axes = len(stride)
        self.taps = tuple(-(-t // s) for t, s in zip(filter_shape[2:], stride))
        first = tuple(p // s for p, s in zip(padding, stride))
        self.extents = tuple((n - 1) * s - 2 * p + t + o for n, s, p, t, o in zip(
            shape[2:], stride, padding, filter_shape[2:], output_padding))
        self.begin = tuple(t - 1 - m for t, m in zip(self.taps, first))
        self.end = tuple((p + e - 1) // s + 1 - n for p, e, s, n in zip(
            padding, self.extents, stride, shape[2:]))
        self.crop = tuple(p - s * m for p, s, m in zip(padding, stride, first))

    def is_legal(self):
        return min(self.extents) > 0 and min(*self.begin, *self.end) >= 0

    def filter(self, weight):
        """(C, K, taps) as the filter of the convolution, (j, K) × C × taps of one j."""
        for axis, (s, u) in enumerate(zip(self.stride, self.taps)):
            missing = s * u - weight.shape[2 + axis]
            if missing:
                weight = F.pad(weight, (0, 0) * (self.axes - 1 - axis) + (0, missing))
        split = weight.reshape(*weight.shape[:2],
                               *(n for u, s in zip(self.taps, self.stride) for n in (u, s)))
        taps, phases = [2 + 2 * i for i in range(self.axes)], [3 + 2 * i for i in range(self.axes)]
        split = split.flip(taps).permute(*phases, 1, 0, *taps)
        return split.reshape(-1, weight.shape[0], *self.taps).contiguous()

    def bias(self, bias):
        return None if bias is None else bias.detach().repeat(math.prod(self.stride))

    def convolution(self, weight, bias):
        shuffle = None
        if self.axes > 1:
            shuffle = (1,) * (3 - self.axes) + self.stride, "channels_inner", 0
        return _Convolution(weight, bias, self.begin, self.end, shuffle)

    def pixels(self, y):
        """The output, of what the convolution gave."""
        if self.axes == 1:  # Its filters are pixels where they lie.
            n, filters, length = y.shape
            step = self.stride[0]
            y = y.transpose(1, 2).reshape(n, length * step, filters // step).transpose(1, 2)
        for axis, (begin, extent) in enumerate(zip(self.crop, self.extents)):
            y = y.narrow(2 + axis, begin, extent)
        return y

    def eager(self, x, weight, bias):
        return _FUNCTIONS[self.axes](x, weight, bias, self.stride, self.padding,
                                     self.output_padding)


_transposed = functools.lru_cache(4096)(Transposed)  # Each call of a model asks for one.


class Filters:
    """Filters made of the weights of transposed convolutions, kept until a weight changes."""

    def __init__(self):
        self._known: dict[tuple, tuple] = {}

    def of(self, how, weight, bias):
        """(filter, bias), as parameters where the weight is one."""
        if not isinstance(weight, torch.nn.Parameter):
            return how.filter(weight.detach()), how.bias(bias)
        key = id(weight), how.stride
        states = [state(t) for t in (weight, bias) if t is not None]
        known = self._known.get(key)
        # NOTE: who they are counts too: another bias may lie where the one before it did.
        if known is None or known[0] != states or any(
                (None if ref is None else ref()) is not given
                for ref, given in zip(known[1], (weight, bias))):
            with torch.inference_mode(False), torch.no_grad():
                made = torch.nn.Parameter(how.filter(weight.detach()), requires_grad=False)
                refs = [weakref.ref(weight, lambda _: self._known.pop(key, None)),
                        None if bias is None else weakref.ref(bias)]
                known = states, refs, made, how.bias(bias)
            self._known[key] = known
        return known[2:]

    def made(self):
        """Every filter and bias."""
        return [tensor for known in self._known.values() for tensor in known[2:]
                if tensor is not None]

    def clear(self):
        self._known.clear()


class Call:
    """One transposed convolution of one shape by Convoy, for any weight and tensor."""

    def __init__(self, how, session, x, weight, bias):
        """Raises ConvoyError."""
        self._how, self._session = how, session
        made = how.convolution(*session.filters.of(how, weight, bias))
        self._call = _calls.ConvCall(made, x, None, None, session.convert)
        self.name = self._call.name

    def __call__(self, x, weight, bias):
        made = _Convolution(*self._session.filters.of(self._how, weight, bias))
        return self._how.pixels(self._call(made, x, None, None))


def _conv_transpose(axes):
    operation = f"conv_transpose{axes}d"

    def handler(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1,
                dilation=1, **other):
        if (other or type(input) is not Deferred or not has_numbers(weight)
                or not has_numbers(bias)):
            return NotImplemented
        session, x = input._session, input._node
        if type(weight) is Deferred or type(bias) is Deferred:  # Made in the call.
            weight, bias = plain(weight), plain(bias)
        reason = ""
        if len(x.shape) != axes + 2:
            reason = f"it has {len(x.shape)} axes; legal: {axes + 2}, with a batch"
        elif x.dtype not in FLOATS:
            reason = wrong_type(x)
        elif groups != 1 or per_axis(dilation, axes) != (1,) * axes:
            reason = (f"groups = {groups}, dilation = {dilation}; legal of a transposed "
                      "convolution: 1 and 1")
        elif session.shards and session.shards.active:
            reason = "its rows are shared by several GPUs"
        if reason:
            session.leave(weight, x.shape, operation, reason)
            return NotImplemented
        if (weight.dtype != x.dtype or weight.device != x.device
                or weight.dim() != axes + 2 or weight.shape[0] != x.shape[1]):
            return NotImplemented
        how = _transposed(x.shape, weight.shape, per_axis(stride, axes), per_axis(padding, axes),
                          per_axis(output_padding, axes))
        if not how.is_legal():
            return NotImplemented  # PyTorch says what is wrong, or does it.
        return value_of(session.transposed(operation, how, x.force(), weight, bias), session)

    return handler


def call_of(how, session, x, weight, bias):
    """(call, "") or (None, why there is none)."""
    try:
        return Call(how, session, x, weight, bias), ""
    except ConvoyError as error:
        return None, str(error)


FUNCTIONS = {f"conv_transpose{axes}d": _conv_transpose(axes) for axes in (1, 2, 3)}
