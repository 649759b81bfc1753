# SPDX-License-Identifier: Apache-2.0
"""A GroupNorm that waits, its activation, and the convolution that reads it, as one call: the
norm's statistics are a pass of their own, the rest of it is the convolution's prologue, and no
normalised tensor is written. Taken where it is measured to be quicker than one after the other."""

import torch

from . import _calls
from ._deferred import HALVES

# Device types where it is taken without being measured; for tests.
UNMEASURED: set[str] = set()
_ACTIVATIONS = ("relu", "silu", "gelu", "gelu_tanh")
_QUICKER = 0.98  # Of the time of one after the other: what the one call may take.


def fits(norm, conv, session):
    """Whether the norm that waits in front of `conv` may be its prologue, whatever the shapes."""
    return (norm.rule == "group" and not norm.wide and norm.dtype in HALVES
            and session.quality == "fast" and not session.shards
            and type(norm.weight) is torch.nn.Parameter and not session.is_shared(norm.weight)
            and (norm.activation is None or norm.activation[0] in _ACTIVATIONS)
            and conv.upsample == 1)


def key_of(norm):
    """What a call depends on of a norm, but for its tensors."""
    return (norm.groups, norm.epsilon, norm.activation, norm.weight.dtype,
            None if norm.bias is None else norm.bias.dtype)


class PairCall:
    """One norm and one convolution of one shape, for any parameters and tensors."""

    def __init__(self, norm, node, x, cache, residual, convert):
        """As _calls.ConvCall."""
        self._norm = _calls.NormCall(norm, x, norm.weight, norm.bias, convert,
                                     result="coefficients")
        activation = "none" if norm.activation is None else norm.activation[0]
        self._conv = _calls.ConvCall(node, x, cache, residual, convert, scale=node.scale,
                                     prologue_norm="scale_shift", prologue_activation=activation)
        self._convert = convert
        self.name = f"{self._norm.name} + {self._conv.name}"

    def __call__(self, norm, node, x, cache, residual):
        x = self._convert(x)
        return self._conv(node, x, cache, residual, self._norm(x, norm.weight, norm.bias))


def is_quicker(spent):
    """spent: microseconds of "one" and "apart"."""
    return spent.get("one", float("inf")) <= _QUICKER * spent.get("apart", float("inf"))
