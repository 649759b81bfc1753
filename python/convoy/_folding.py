# SPDX-License-Identifier: Apache-2.0
"""Batch norms by given statistics, folded into the convolution in front of them.

With s = γ / √(variance + ε), the norm of conv(x, w) + b is conv(x, s·w) + s·(b - mean) + β.
"""

import weakref

import torch

from ._changes import looks, state


def counter_of(model, mean):
    """What a batch norm of the model counts its training in; None of another mean. NOTE: PyTorch
    does not count what training writes to mean and variance."""
    for part in () if model is None else model.modules():
        if part._buffers.get("running_mean") is mean:
            return part._buffers.get("num_batches_tracked")
    return None


class _Folded:
    """The folded weight and bias of one convolution and one norm. sources: those of `fold`, and
    what the norm counts its training in."""

    def __init__(self, sources, epsilon, gone):
        """gone: called where one of the sources is."""
        self._sources = [None if s is None else weakref.ref(s, gone) for s in sources]
        self._epsilon = epsilon
        self._states: list = [(0, 0, None)] * len(sources)  # Of no tensor.
        self._legal = False
        weight = sources[0]
        self.weight = torch.nn.Parameter(torch.empty_like(weight), requires_grad=False)
        # NOTE: fp32, which a convolution's epilogue takes: rounded once, with the sum.
        self.bias = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device)

    def is_of(self, sources):
        return all((known is None) == (source is None) and (known is None or known() is source)
                   for known, source in zip(self._sources, sources))

    def counter(self):
        return self._sources[-1] and self._sources[-1]()

    def is_current(self, sources):
        """Of these, and they have not changed since. NOTE: asked at each call, so one loop."""
        for known, seen, source in zip(self._sources, self._states, sources):
            if known is None or source is None:
                if known is not source:
                    return False
            elif ((source.data_ptr(), None if source.is_inference() else source._version,
                   looks.get(id(source))) != seen or known() is not source):
                return False
        return True

    @torch.no_grad()
    def update(self, sources):
        """Fold anew, in place: what is packed from the weight follows its version."""
        weight, mean, variance = (sources[i].detach().float() for i in (0, 2, 3))
        bias, gamma, beta = (None if sources[i] is None else sources[i].detach().float()
                             for i in (1, 4, 5))
        scale = torch.rsqrt(variance + self._epsilon)
        if gamma is not None:
            scale = scale * gamma
        shift = -mean if bias is None else bias - mean
        shift = shift * scale
        if beta is not None:
            shift = shift + beta
        with torch.inference_mode(False):  # Numbers of another version: counted.
            self.weight.copy_(weight * scale.reshape(-1, *(1,) * (weight.dim() - 1)))
            self.bias.copy_(shift)
        self._states = [s if s is None else state(s) for s in sources]
        self._legal = bool(self.weight.isfinite().all())

    def is_legal(self):
        """Whether the folded weight fits its type: fp16 ends at 65504."""
        return self._legal


class Foldings:
    """The folded weights of one accelerated model, kept as long as their sources are the same.
    counter_of(mean): what the batch norm of this running mean counts its training in, or None."""

    def __init__(self, counter_of):
        self._counter_of = counter_of
        self._known: dict[tuple, _Folded] = {}
        self._origins: dict[int, weakref.ref] = {}

    def current(self, sources, epsilon):
        """What `fold` gave for these, where they have not changed since; else None."""
        found = self._known.get((id(sources[0]), id(sources[2]), epsilon))
        if found is None or not found.is_legal() or not found.is_current(
                (*sources, found.counter())):
            return None
        return found.weight, found.bias

    def fold(self, sources, epsilon):
        """(weight, bias) that have the norm in them; None where that is not possible. sources: the
        convolution's weight and bias, mean, variance, weight and bias of the norm; None for a
        missing one."""
        weight = sources[0]
        if not isinstance(weight, torch.nn.Parameter):
            return None  # Another one at each call.
        key = (id(weight), id(sources[2]), epsilon)
        sources = (*sources, self._counter_of(sources[2]))
        found = self._known.get(key)
        if found is not None and not found.is_of(sources):
            found = None
        if found is None or not found.is_current(sources):
            if weight.is_cuda and torch.cuda.is_current_stream_capturing():
                return None
            if found is None:
                with torch.inference_mode(False):
                    found = self._known[key] = _Folded(sources, epsilon,
                                                       lambda _: self._drop(key))
                self._origins[id(found.weight)] = weakref.ref(weight)
            found.update(sources)
        return (found.weight, found.bias) if found.is_legal() else None

    def made(self):
        """Every folded weight and bias."""
        return [tensor for folded in self._known.values()
                for tensor in (folded.weight, folded.bias)]

    def counters(self):
        """What their norms count training in."""
        found = (folded.counter() for folded in self._known.values())
        return [counter for counter in found if counter is not None]

    def origin(self, weight):
        """The weight that a folded one was made of; others are their own."""
        found = self._origins.get(id(weight))
        original = None if found is None else found()
        return weight if original is None else original

    def _drop(self, key):
        found = self._known.pop(key, None)
        if found is not None:
            self._origins.pop(id(found.weight), None)

    def forget(self, mean):
        """The statistics are written to, which PyTorch does not count."""
        for key in [key for key in self._known if key[1] == id(mean)]:
            self._drop(key)

    def clear(self):
        self._known.clear()
        self._origins.clear()
