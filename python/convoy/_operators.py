# SPDX-License-Identifier: Apache-2.0
"""The operators in C++ (libconvoy_torch.so), where they were built: a call costs a third of the
host's time. Without them the package works all the same, by ctypes."""

import ctypes
import logging
import os
import pathlib
import weakref
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_void_p

import torch

from . import _native as native

_log = logging.getLogger("convoy")
_NEEDED = (2, 10)


def _path():
    """CONVOY_TORCH_LIBRARY ("off": none), else the library beside libconvoy's, where that is."""
    named = os.environ.get("CONVOY_TORCH_LIBRARY")
    if named:
        return None if named == "off" else named
    beside = pathlib.Path(native.library._name)
    if not beside.is_absolute() and beside.name == native.library._name:  # The loader's to find.
        return "libconvoy_torch.so"
    beside = beside.resolve().parent / "libconvoy_torch.so"
    return str(beside) if beside.exists() else None


def _load():
    """(library, "") or (None, why not)."""
    path = _path()
    if path is None:
        return None, "libconvoy_torch.so is not there, or CONVOY_TORCH_LIBRARY=off"
    have = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if have < _NEEDED:
        return None, f"PyTorch {torch.__version__}; legal: 2.10 and later"
    try:
        library = ctypes.CDLL(path)  # It registers its operators as it is loaded.
    except OSError as error:
        if os.sep in path:
            _log.warning("convoy: %s is not used: %s", path, error)
        return None, f"{path}: {error}"
    library.convoy_torch_version.restype = c_int32
    built, loaded = library.convoy_torch_version(), native.library.convoy_version_number()
    if built != loaded:  # NOTE: too late for operators in Python, which would have the same names.
        raise ImportError(
            f"convoy: {path} was built with version {built} of libconvoy, and {loaded} is loaded; "
            "legal: the same; CONVOY_TORCH_LIBRARY=off leaves it out")
    text = POINTER(c_char_p)
    for name, arguments, result in (
        ("conv", [c_void_p, POINTER(native.Epilogue), POINTER(native.Prologue), c_int64,
                  POINTER(c_int64), text], c_int32),
        ("norm", [c_void_p, POINTER(native.NormArguments), c_int64, c_int64, c_int32, c_int32,
                  c_int64, POINTER(c_int64), text], c_int32),
        ("forget_conv", [c_int64], None), ("forget_norm", [c_int64], None),
        ("plan", [c_int64], c_void_p), ("forget_plans", [], None),
    ):
        function = getattr(library, f"convoy_torch_{name}")
        function.argtypes, function.restype = arguments, result
    return library, ""


library, why_not = _load()


def typed(error):
    """The library's error that a RuntimeError of an operator stands for, or itself."""
    text = str(error)
    if text.startswith("convoy(") and text[8:11] == "): ":
        return native.error_of(int(text[7]), text[11:])
    return error


class _Number:
    """What C++ knows a call by, as long as this lives."""

    def __init__(self, create, forget, *arguments):
        number, text = c_int64(), c_char_p()
        if create(*arguments, byref(number), byref(text)) != 0:
            raise typed(RuntimeError((text.value or b"").decode()))
        self.value = number.value
        weakref.finalize(self, forget, self.value).atexit = False


def conv(plan, epilogue, prologue, filter_elements):
    """A call of `plan`, which must outlive it. prologue: None where it has none."""
    return _Number(library.convoy_torch_conv, library.convoy_torch_forget_conv, plan._handle,
                   byref(epilogue), None if prologue is None else byref(prologue),
                   filter_elements)


def norm(plan, arguments, elements, channels, dtype, parameter_dtype, images=0):
    """images: where the plan's result is coefficients."""
    return _Number(library.convoy_torch_norm, library.convoy_torch_forget_norm, plan._handle,
                   byref(arguments), elements, channels, dtype, parameter_dtype, images)


def clear():
    if library is not None:
        library.convoy_torch_forget_plans()


def ask_from_cpp(packed_filter, allows_tf32):
    """Let C++ ask what only Python knows. packed_filter(plan's address, number, weight): the
    address of a packed filter."""
    operators = torch.library.Library("convoy", "FRAGMENT")
    operators.define("_packed_filter(Tensor weight, int number) -> int")
    operators.define("_allows_tf32(Tensor x, int unused) -> int")

    def pack(weight, number):
        return packed_filter(library.convoy_torch_plan(number), number, weight)

    for key in ("CPU", "CUDA"):
        operators.impl("_packed_filter", pack, key)
        operators.impl("_allows_tf32", lambda x, unused: int(allows_tf32(x)), key)
    return operators


if library is not None:
    # NOTE: past OpOverload.__call__, which only hands over: a third of such a call.
    run_conv, run_norm = (getattr(operator, "_op", operator) for operator in (
        torch.ops.convoy._run_conv.default, torch.ops.convoy._run_norm.default))
