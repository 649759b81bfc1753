# SPDX-License-Identifier: Apache-2.0
"""A GroupNorm that waits, its activation, and the convolution that reads it, as one call: the
norm's statistics are a pass of their own, the rest of it is the convolution's prologue, and no
normalised tensor is written. Taken where it is measured to be quicker than one after the other."""

import functools
import logging

import torch

from . import _calls, _measure
from ._deferred import HALVES
from ._native import ConvoyError

_log = logging.getLogger("convoy")
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


def choose(session, key, norm, node, x, cache, residual):
    """(the one call, or None where they are rather made one after the other; the microseconds of
    both, where they were measured; whether that holds for the next call). key: the norm's, and what
    the call depends on of the convolution, its weight first."""
    may_measure = session.measures(x.device)
    shape_key = ("pair", isinstance(node.weight, torch.nn.Parameter), session.probe, key[0],
                 *key[2:])
    known = _measure.choices.get(shape_key)
    call, spent = None, {}
    if known is not None or may_measure or x.device.type in UNMEASURED:
        try:
            call = PairCall(norm, node, x, cache, residual, session.convert)
        except ConvoyError as error:
            _log.debug("convoy: no prologue: %s", error)
    if known is not None:
        is_one, spent = known
        call = call if is_one else None
    elif call is not None and may_measure:
        spent = _microseconds(session, call, norm, node, x, cache, residual)
        is_one = spent.get("one", float("inf")) <= _QUICKER * spent.get("apart", float("inf"))
        call = call if is_one else None
    if may_measure:
        _measure.choices[shape_key] = call is not None, spent
    return call, spent, may_measure or known is not None or call is not None


def _microseconds(session, call, norm, node, x, cache, residual):
    with session.unreported():
        return _measure.microseconds({
            "one": functools.partial(call, norm, node, x, cache, residual),
            "apart": lambda: session.conv(node, session.norm(norm, x), cache, residual),
        }, x.device)
