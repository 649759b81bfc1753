# SPDX-License-Identifier: Apache-2.0
"""The functions of PyTorch that do something of their own on stand-ins: a table in each of the
modules named here."""

from . import _attention, _axes, _convolutions, _norms, _strides, _transposed
from ._deferred import LAYS, register


def register_all():
    LAYS.update(_strides.RULES)
    for module in (_convolutions, _transposed, _norms, _axes, _attention):
        register(module.FUNCTIONS, getattr(module, "ANY_FIRST", ()))
