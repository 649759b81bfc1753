# SPDX-License-Identifier: Apache-2.0
"""A convolution that finds the statistics of its output as it stores it, for the GroupNorm that
reads it: the norm need not read it for them. Taken where it is measured to be quicker."""

import logging

from . import _measure
from ._deferred import HALVES
from ._native import ConvoyError

_log = logging.getLogger("convoy")
# Device types where it is taken without being measured, by a pass of its own; for tests.
UNMEASURED: set[str] = set()
_QUICKER = 0.98  # Of the time of both without it: what they may take.


def groups_for(norm):
    """Of which a norm's source may as well bring the statistics; 0: of none."""
    fits = (norm.rule == "group" and not norm.wide and norm.dtype in HALVES and norm.tensor is None
            and len(norm.shape) > 3)
    return norm.groups if fits else 0


def choose(session, key, call, norm, arguments):
    """(`call`, of a convolution that `norm` reads, with statistics, or None where it is rather made
    without; whether that holds for the next call). key: what both depend on, but for the weights;
    arguments: of `call`."""
    device = norm.device
    may_measure = session.measures(device)
    shape_key = ("statistics", session.probe, norm.groups, norm.activation, *key)
    known = _measure.choices.get(shape_key)
    made, spent = None, {}
    if known is not None or may_measure or device.type in UNMEASURED:
        made = _made(call, norm, device)
    if known is not None:
        is_taken, spent = known
        made = made if is_taken else None
    elif made is not None and may_measure:
        spent = _microseconds(session, call, made, norm, arguments)
        made = made if spent.get("with", float("inf")) <= (
            _QUICKER * spent.get("without", float("inf"))) else None
    if may_measure:
        _measure.choices[shape_key] = made is not None, spent
    return made, may_measure or known is not None or made is not None


def _made(call, norm, device):
    """`call` with statistics, where its kernel finds them by itself; else None."""
    if not hasattr(call, "with_statistics"):  # PyTorch's own.
        return None
    try:
        made = call.with_statistics(norm.groups)
    except ConvoyError as error:
        _log.debug("convoy: no statistics: %s", error)
        return None
    return made if made.takes_statistics() or device.type in UNMEASURED else None


def _microseconds(session, call, made, norm, arguments):
    def with_statistics():
        reader = norm.having()
        y, reader.statistics = made(*arguments)
        return session.norm(reader, y)

    with session.unreported():
        return _measure.microseconds({
            "with": with_statistics,
            "without": lambda: session.norm(norm, call(*arguments)),
        }, norm.device)
