# SPDX-License-Identifier: Apache-2.0
"""A convolution that waits: for its residual, its activation, and what else becomes part of it."""

import math

import torch
import torch.nn.functional as F

from . import _layout
from ._bounded import Bounded
from ._nodes import Cat, Node, Norm, activate, fields_of, remember, shuffle

# NOTE: each that waits for the next takes some frames of Python's stack, which has 1000.
_DEEPEST = 64
# Bytes of an output up to which it does not wait: the GPU would have nothing to do. What makes
# more keeps it busy as it is, and while it waits the memory is free.
_SHORT = 1 << 27


def _depth_of(node):
    """How many convolutions wait for each other up to this node, which another one is to read:
    nothing more becomes part of the last of them. It is computed, so that the GPU works while the
    host goes on, unless that takes long or too many wait."""
    while isinstance(node, Node) and node.tensor is None:
        if type(node) is Conv:
            if (node.depth < _DEEPEST
                    and node.shape.numel() * node.dtype.itemsize > _SHORT):
                return node.depth
            node.force()
            return 0
        if type(node) is Norm:
            node = node.source
        elif type(node) is Cat:
            node = node.parts[-1]
        else:
            node = next((part for part in fields_of(node) if isinstance(part, Node)), None)
    return 0


class Geometry:
    """Where a convolution reads: padding of each axis after the channels (begin, end, modes),
    stride, dilation, groups; upsample: 2 doubles the source's height and width first; shape: of the
    output. There is one object for equal ones of the same source and weight (`geometry`)."""

    __slots__ = ("_key", "begin", "dilation", "end", "groups", "modes", "shape", "stride",
                 "upsample")

    def __init__(self, key, shape):
        *_, self.stride, self.begin, self.end, self.dilation = key[:8]
        self.groups, self.modes, self.upsample = key[8:11]
        self._key, self.shape = key, shape

    def having(self, begin, end, modes, upsample=1):
        """The same of other paddings."""
        source, dtype, device, filters, stride, _, _, dilation, groups, *_, cached = self._key
        return geometry(source, dtype, device, filters, stride, begin, end, dilation, groups, modes,
                        upsample, cached)

    def of_source(self, shape):
        """The same of a source of another shape."""
        return geometry(shape, *self._key[1:])


_geometries: dict[tuple, Geometry] = Bounded(16384)


def geometry(source, dtype, device, filters, stride, begin, end, dilation, groups, modes,
             upsample=1, cached=0):
    """source, filters: shapes; dtype, device: of both; cached: frames in front of the source."""
    key = (source, dtype, device, filters, stride, begin, end, dilation, groups, modes, upsample,
           cached)
    found = _geometries.get(key)
    if found is not None:
        return found
    extents = list(source[2:])
    extents[0] += cached
    shape = [source[0], filters[0]]
    for n, b, e, s, d, t in zip(extents, begin, end, stride, dilation, filters[2:]):
        shape.append((n * upsample + b + e - d * (t - 1) - 1) // s + 1)
    return _geometries.setdefault(key, Geometry(key, torch.Size(shape)))


class Conv(Node):
    """activation(scale·conv(source) + bias) + residual, or activation(scale·conv + bias + residual)
    with residual_first. how: its Geometry; cache: frames in front of the source. shuffle: (factors,
    order, dropped frames) where filters become pixels, as convoy.Options has them; repeats: the
    residual has the extents before that, and each of its channels as many filters."""

    __slots__ = ("activation", "bias", "cache", "depth", "how", "repeats", "residual",
                 "residual_first", "scale", "session", "shuffle", "source", "taken", "weight")

    def __init__(self, session, source, weight, bias, how, cache=None):
        self.shape, self.dtype, self.device = how.shape, source.dtype, source.device
        self.tensor, self.shared = None, False
        remember(self)
        self.session, self.source, self.weight, self.bias = session, source, weight, bias
        self.how, self.cache, self.residual, self.residual_first = how, cache, None, False
        self.activation, self.shuffle, self.repeats, self.taken = None, None, False, False
        self.scale, self.depth = 1.0, 1 + _depth_of(source)
        if session.shards:
            self.shape = session.shards.rows_after(self.shape, self)
            session.shards.note(self.shape)

    begin = property(lambda self: self.how.begin)
    end = property(lambda self: self.how.end)
    modes = property(lambda self: self.how.modes)
    stride = property(lambda self: self.how.stride)
    dilation = property(lambda self: self.how.dilation)
    groups = property(lambda self: self.how.groups)
    upsample = property(lambda self: self.how.upsample)

    def _copy(self):
        made = _new_conv(Conv)
        made.shape, made.dtype, made.device = self.shape, self.dtype, self.device
        made.tensor, made.shared = self.tensor, False
        remember(made)
        made.session, made.source, made.weight = self.session, self.source, self.weight
        made.bias, made.how, made.cache, made.residual = (
            self.bias, self.how, self.cache, self.residual)
        made.residual_first, made.activation = self.residual_first, self.activation
        made.shuffle, made.repeats, made.taken = self.shuffle, self.repeats, self.taken
        made.scale, made.depth = self.scale, self.depth
        self.taken = True
        return made

    def with_geometry(self, how):
        """Of a part or a copy of its source; does not count as taken."""
        taken = self.taken
        made = self._copy()
        made.how, self.taken = how, taken
        return made

    def may_fuse(self):
        """Not computed yet, and not one whose plain output is wanted too."""
        shared = self.session.shared
        return self.tensor is None and not (shared and self.session.is_shared(self.weight))

    def with_residual(self, residual):
        made = self._copy()
        made.residual, made.residual_first = residual, False
        return made

    def with_repeated_residual(self, residual):
        made = self.with_residual(residual)
        made.repeats = True
        return made

    def may_shuffle(self):
        """Waits with nothing behind it, so that its filters may become pixels."""
        return (self.may_fuse() and self.shuffle is None and self.residual is None
                and not self.session.shards)

    def shuffled(self, factors, order):
        """With filters as pixels. factors: of each axis after the channels."""
        made = self._copy()
        n, filters, *extents = self.shape
        made.shape = torch.Size((n, filters // math.prod(factors),
                                 *(e * f for e, f in zip(extents, factors))))
        made.shuffle = (1,) * (3 - len(factors)) + tuple(factors), order, 0
        return made

    def without_frames(self, count):
        """Without the first `count` frames of a shuffle."""
        made = self._copy()
        factors, order, _ = self.shuffle or ((1, 1, 1), "channels_outer", 0)
        made.shape = torch.Size((*self.shape[:2], self.shape[2] - count, *self.shape[3:]))
        made.shuffle = factors, order, count
        return made

    def with_activation(self, activation):
        made = self._copy()
        made.activation, made.residual_first = activation, self.residual is not None
        return made

    def with_weight(self, weight, bias):
        made = self._copy()
        made.weight, made.bias = weight, bias
        return made

    def may_scale(self):
        """Waits with nothing behind it that rounds, or that other filters would share."""
        return (self.scale == 1.0 and self.residual is None and self.activation is None
                and self.shuffle is None and self.session.quality == "fast"
                and not self.session.shards and self.may_fuse())

    def with_scale(self, scale, bias):
        """bias: multiplied by it already."""
        made = self._copy()
        made.scale, made.bias = scale, bias
        return made

    def compute(self):
        if self.taken:  # It was fused into another, and is wanted itself: not again.
            self.session.share(self.weight)
        session, residual, cache = self.session, self.residual, self.cache
        if residual is not None:
            residual = residual.force()
        if cache is not None:
            cache = cache.force()
        source = self.source
        if type(source) is Norm and source.tensor is None:
            made = session.normalised_conv(self, source, cache, residual)
            if made is not None:
                return made
        shards = session.shards
        run = shards.convolution if shards and shards.active else session.conv
        return run(self, self.source.force(), cache, residual)

    def forget(self):
        self.source = self.cache = self.residual = None

    def finish(self, y, residual):
        """The epilogue by PyTorch's own operators."""
        if residual is None:
            return activate(y, self.activation)
        if self.residual_first:
            return activate(y + residual, self.activation)
        return activate(y, self.activation) + residual

    def eager(self, x, cache, residual, bias):
        """By PyTorch's own operators."""
        if cache is not None:
            x = torch.cat((cache, x), 2)
        if self.upsample > 1:
            x = F.interpolate(x, scale_factor=float(self.upsample), mode="nearest")
        padding = self.begin
        if self.begin != self.end or any(mode != "zero" for mode in self.modes):
            x = _layout.pad(x, self.begin, self.end, self.modes)
            padding = (0,) * len(self.begin)
        function = (F.conv1d, F.conv2d, F.conv3d)[x.dim() - 3]
        if bias is not None and bias.dtype != x.dtype:  # A folded or scaled one.
            bias = bias.to(x.dtype)
        if self.scale == 1.0:
            y = function(x, self.weight, bias, self.stride, padding, self.dilation, self.groups)
        else:
            y = function(x, self.weight, None, self.stride, padding, self.dilation, self.groups)
            y = y * self.scale
            if bias is not None:
                y = y + bias.reshape(-1, *(1,) * (y.dim() - 2))
        if self.shuffle is not None:
            if self.repeats:
                residual = shuffle(residual, self.shuffle, y.shape[1] // residual.shape[1])
            y = shuffle(y, self.shuffle)
        return self.finish(y, residual)


_new_conv = Conv.__new__
