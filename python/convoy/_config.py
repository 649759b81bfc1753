# SPDX-License-Identifier: Apache-2.0
"""What this installation is made of, for bug reports."""

import importlib.metadata
import os
import platform
from typing import Any

from . import _native, _plan


def _backend(device):
    """ "yes", or why this device runs nothing here."""
    problem = _plan.Conv2d(1, 8, 8, 64, 64, filter=(3, 3), pad=(1, 1, 1, 1))
    runs, reason = _plan.supports(problem, _plan.Options(device=device))
    if not runs:
        return f"no: {reason.splitlines()[0]}"
    chosen = next(c for c in _plan.candidates(problem, _plan.Options(device=device))
                  if c["chosen"])
    return f"yes: {chosen['backend']}"


def _pytorch():
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return {"version": "not installed"}
    from . import _operators

    if _operators.library is None:
        return {"version": version, "operators": f"in Python: {_operators.why_not}"}
    return {"version": version, "operators": f"in C++: {_operators.library._name}"}


def show_config(mode: str = "stdout") -> dict[str, Any] | None:
    """Print the library's version and place, which devices it runs on, the operators for PyTorch
    and the settings of the environment; mode="dict" returns them. Raises InvalidArgument for
    another mode."""
    if mode not in ("stdout", "dict"):
        raise _native.InvalidArgument(f"mode = {mode!r} is not legal; legal: stdout, dict")
    found: dict[str, Any] = {
        "convoy": {"version": _native.version(), "library": _native.library._name},
        "python": {"version": platform.python_version(), "machine": platform.machine()},
        "devices": {device: _backend(device) for device in ("cpu", "cuda")},
        "pytorch": _pytorch(),
        "environment": {key: value for key, value in sorted(os.environ.items())
                        if key.startswith("CONVOY_")},
    }
    if mode == "dict":
        return found
    for title, entries in found.items():
        print(f"{title}:")
        for key, value in entries.items():
            print(f"  {key}: {value}")
    return None
