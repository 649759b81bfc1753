# SPDX-License-Identifier: Apache-2.0
"""The C interface (include/convoy/convoy.h) through ctypes: structs, functions, errors."""

import ctypes
import os
import pathlib
import sys
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_void_p,
)


class ConvoyError(RuntimeError):
    """A failure of the library; the text says what is legal."""


class InvalidArgument(ConvoyError, ValueError):
    """The request makes no sense on any backend."""


class Unsupported(ConvoyError, NotImplementedError):
    """The request is well-formed, but no kernel here can run it."""


class OutOfMemory(ConvoyError, MemoryError):
    """Host or device memory could not be reserved."""


class LaunchFailure(ConvoyError):
    """The CUDA runtime or oneDNN refused or failed a launch."""


_ERRORS = {1: InvalidArgument, 2: Unsupported, 3: OutOfMemory, 4: LaunchFailure}

DTYPES = {"bf16": 0, "fp16": 1, "fp32": 2}
DTYPE_NAMES = {value: name for name, value in DTYPES.items()}
FILTER_LAYOUTS = {"KRSC": 0, "KCRS": 1, "RSCF": 2, "KTRSC": 3, "KCTRS": 4, "TRSCF": 5}
PAD_MODES = {"zero": 0, "replicate": 1, "reflect": 2}
DEVICES = {"auto": 0, "cpu": 1, "cuda": 2}
ACTIVATIONS = {
    "none": 0,
    "relu": 1,
    "leaky_relu": 2,
    "gelu": 3,
    "gelu_tanh": 4,
    "silu": 5,
    "sigmoid": 6,
    "tanh": 7,
    "hardswish": 8,
    "clamp": 9,
}
RESIDUAL_ORDERS = {"after_activation": 0, "before_activation": 1}
ROUNDINGS = {"once": 0, "each_step": 1}
UPSAMPLE_FOLDINGS = {"exact": 0, "fast": 1}
RMS_EPSILONS = {"added": 0, "norm_floor": 1}
PROLOGUE_NORMS = {"none": 0, "scale_shift": 1, "rms": 2}
ELEMENTWISE_OPS = {"load": 0, "add": 1, "subtract": 2, "subtract_from": 3, "multiply": 4,
                   "activation": 5, "affine": 6}
NORM_RESULTS = {"tensor": 0, "coefficients": 1}
SHUFFLE_ORDERS = {"channels_outer": 0, "channels_inner": 1}
SHUFFLE_RESIDUALS = {"output": 0, "interleaved": 1, "tiled": 2}


def choose(table, value, name):
    """The number of a named choice; InvalidArgument lists the legal ones."""
    try:
        return table[value]
    except (KeyError, TypeError):
        raise InvalidArgument(
            f"{name} = {value!r} is not legal; legal: {', '.join(table)}"
        ) from None


class Conv2dShape(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("batch", c_int64),
        ("in_height", c_int64),
        ("in_width", c_int64),
        ("in_channels", c_int64),
        ("out_channels", c_int64),
        ("filter_h", c_int64),
        ("filter_w", c_int64),
        ("pad_top", c_int64),
        ("pad_bottom", c_int64),
        ("pad_left", c_int64),
        ("pad_right", c_int64),
        ("stride_h", c_int64),
        ("stride_w", c_int64),
        ("dilation_h", c_int64),
        ("dilation_w", c_int64),
        ("groups", c_int64),
        ("upsample", c_int64),
        ("pad_mode", c_int32),
        ("reserved", c_int32),
    ]


class Conv3dShape(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("batch", c_int64),
        ("in_depth", c_int64),
        ("in_height", c_int64),
        ("in_width", c_int64),
        ("in_channels", c_int64),
        ("out_channels", c_int64),
        ("filter", c_int64 * 3),
        ("pad_begin", c_int64 * 3),
        ("pad_end", c_int64 * 3),
        ("stride", c_int64 * 3),
        ("dilation", c_int64 * 3),
        ("groups", c_int64),
        ("cached_frames", c_int64),
        ("pad_mode", c_int32 * 3),
        ("reserved", c_int32),
    ]


class Epilogue(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("bias", c_void_p),
        ("residual", c_void_p),
        ("bias_dtype", c_int32),
        ("activation", c_int32),
        ("residual_order", c_int32),
        ("rounding", c_int32),
        ("scale", c_float),
        ("beta", c_float),
        ("parameter_a", c_float),
        ("parameter_b", c_float),
    ]


class Prologue(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("norm", c_int32),
        ("activation", c_int32),
        ("scale", c_void_p),
        ("shift", c_void_p),
        ("inverse_rms", c_void_p),
    ]


class Shuffle(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("factors", c_int64 * 3),
        ("dropped_frames", c_int64),
        ("residual_channels", c_int64),
        ("order", c_int32),
        ("residual", c_int32),
    ]


class PlanOptions(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("dtype", c_int32),
        ("output_dtype", c_int32),
        ("device", c_int32),
        ("device_index", c_int32),
        ("packed_filter", c_int32),
        ("upsample_folding", c_int32),
        ("epilogue", POINTER(Epilogue)),
        ("kernel", c_char_p),
        ("allow_tf32", c_int32),
        ("reserved", c_int32),
        ("prologue", POINTER(Prologue)),
        ("shuffle", POINTER(Shuffle)),
        ("statistics_groups", c_int64),
    ]


class TensorShape(Structure):
    _fields_ = [("dtype", c_int32), ("layout", c_int32), ("extents", c_int64 * 5)]


class RunArguments(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("output", c_void_p),
        ("activation", c_void_p),
        ("filter", c_void_p),
        ("packed_filter", c_void_p),
        ("cache", c_void_p),
        ("next_cache", c_void_p),
        ("workspace", c_void_p),
        ("epilogue", POINTER(Epilogue)),
        ("output_shape", POINTER(TensorShape)),
        ("activation_shape", POINTER(TensorShape)),
        ("residual_shape", POINTER(TensorShape)),
        ("cache_shape", POINTER(TensorShape)),
        ("next_cache_shape", POINTER(TensorShape)),
        ("prologue", POINTER(Prologue)),
        ("statistics", c_void_p),
    ]


class NormShape(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("batch", c_int64),
        ("pixels", c_int64),
        ("channels", c_int64),
        ("groups", c_int64),
        ("epsilon", c_float),
        ("rms_epsilon", c_int32),
    ]


class NormOptions(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("dtype", c_int32),
        ("parameter_dtype", c_int32),
        ("scale", c_int32),
        ("bias", c_int32),
        ("activation", c_int32),
        ("device", c_int32),
        ("device_index", c_int32),
        ("result", c_int32),
    ]


class NormArguments(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("output", c_void_p),
        ("input", c_void_p),
        ("scale", c_void_p),
        ("bias", c_void_p),
        ("workspace", c_void_p),
        ("parameter_a", c_float),
        ("parameter_b", c_float),
        ("statistics", c_void_p),
    ]


class ElementwiseStep(Structure):
    _fields_ = [
        ("op", c_int32),
        ("operand", c_int32),
        ("number", c_float),
        ("activation", c_int32),
        ("parameter_a", c_float),
        ("parameter_b", c_float),
    ]


class ElementwiseOperand(Structure):
    _fields_ = [("strides", c_int64 * 5), ("ratio", c_int64 * 3), ("offset", c_int64 * 3)]


class Elementwise(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("extents", c_int64 * 5),
        ("operand_count", c_int32),
        ("step_count", c_int32),
        ("operands", ElementwiseOperand * 4),
        ("steps", ElementwiseStep * 12),
        ("dtype", c_int32),
        ("device", c_int32),
        ("device_index", c_int32),
        ("reserved", c_int32),
    ]


class PeerMove(Structure):
    _fields_ = [
        ("peer", c_int32),
        ("reserved", c_int32),
        ("data", c_void_p),
        ("bytes", c_size_t),
        ("count", c_size_t),
        ("pitch", c_size_t),
    ]


PEER_HANDLE_BYTES = 256
PEER_GATHER_BYTES = 65536
PEERS_PUT = 0
PEERS_TAKE = 1
PEERS_BOTH = 2


class PlanInfo(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kernel", c_char_p),
        ("backend", c_char_p),
        ("problem", c_char_p),
        ("flops", c_double),
        ("min_bytes", c_double),
        ("statistics", c_char_p),
        ("tf32", c_int32),
        ("reserved", c_int32),
        ("filter_format", c_char_p),
    ]


class Candidate(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kernel", c_char_p),
        ("backend", c_char_p),
        ("reason", c_char_p),
        ("estimated_us", c_double),
        ("chosen", c_int32),
        ("reserved", c_int32),
        ("statistics", c_char_p),
    ]


def _library_path():
    """CONVOY_LIBRARY, else the library in this package, else the system's."""
    named = os.environ.get("CONVOY_LIBRARY")
    if named:
        return named
    packed = pathlib.Path(__file__).parent / "_lib" / "lib" / "libconvoy.so.0"
    return str(packed) if packed.exists() else "libconvoy.so.0"


def _load():
    path = _library_path()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"convoy: the library could not be loaded: {error}; "
            "CONVOY_LIBRARY=<path of libconvoy.so> names another"
        ) from None
    try:
        return _declare(library)
    except AttributeError as error:
        raise ImportError(
            f"convoy: {path} is no libconvoy of this version: {error}; "
            "CONVOY_LIBRARY=<path of libconvoy.so> names another"
        ) from None


def _declare(library):
    """The library, its functions with their types."""
    pointer = c_void_p
    signatures = {
        "convoy_plan_conv2d": [POINTER(Conv2dShape), POINTER(PlanOptions), POINTER(pointer)],
        "convoy_plan_conv3d": [POINTER(Conv3dShape), POINTER(PlanOptions), POINTER(pointer)],
        "convoy_run": [pointer, POINTER(RunArguments), pointer],
        "convoy_plan_output_shape": [pointer, POINTER(TensorShape)],
        "convoy_plan_residual_shape": [pointer, POINTER(TensorShape)],
        "convoy_plan_activation_shape": [pointer, POINTER(TensorShape)],
        "convoy_plan_cache_shape": [pointer, POINTER(TensorShape)],
        "convoy_plan_next_cache_shape": [pointer, POINTER(TensorShape)],
        "convoy_plan_workspace_bytes": [pointer, POINTER(c_size_t)],
        "convoy_plan_info": [pointer, POINTER(PlanInfo)],
        "convoy_pack_filter": [pointer, pointer, c_int32, pointer, POINTER(pointer)],
        "convoy_supports_conv2d": [POINTER(Conv2dShape), POINTER(PlanOptions)],
        "convoy_supports_conv3d": [POINTER(Conv3dShape), POINTER(PlanOptions)],
        "convoy_candidates_conv2d": [POINTER(Conv2dShape), POINTER(PlanOptions), POINTER(pointer)],
        "convoy_candidates_conv3d": [POINTER(Conv3dShape), POINTER(PlanOptions), POINTER(pointer)],
        "convoy_candidates_get": [pointer, c_size_t, POINTER(Candidate)],
        "convoy_plan_group_norm": [POINTER(NormShape), POINTER(NormOptions), POINTER(pointer)],
        "convoy_plan_rms_norm": [POINTER(NormShape), POINTER(NormOptions), POINTER(pointer)],
        "convoy_norm_run": [pointer, POINTER(NormArguments), pointer],
        "convoy_norm_statistics": [pointer, pointer, c_int64, pointer, pointer, pointer],
        "convoy_norm_workspace_bytes": [pointer, POINTER(c_size_t)],
        "convoy_norm_info": [pointer, POINTER(PlanInfo)],
        "convoy_plan_elementwise": [POINTER(Elementwise), POINTER(pointer)],
        "convoy_peers_create": [c_int32, c_int32, c_size_t, c_int64, POINTER(pointer)],
        "convoy_peers_handle": [pointer, pointer],
        "convoy_peers_connect": [pointer, c_char_p],
        "convoy_peers_try_out": [pointer, c_int64],
        "convoy_peers_exchange": [pointer, POINTER(PeerMove), c_size_t, POINTER(PeerMove),
                                  c_size_t, c_int32, pointer],
        "convoy_peers_all_gather": [pointer, pointer, pointer, c_size_t, pointer],
        "convoy_peers_late": [pointer, POINTER(c_int32)],
        "convoy_elementwise_run": [pointer, pointer, POINTER(pointer), pointer, pointer],
    }
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = c_int
    for name in (
        "convoy_plan_destroy",
        "convoy_packed_filter_destroy",
        "convoy_candidates_destroy",
        "convoy_norm_plan_destroy",
        "convoy_elementwise_plan_destroy",
        "convoy_peers_destroy",
    ):
        function = getattr(library, name)
        function.argtypes = [pointer]
        function.restype = None
    library.convoy_candidates_count.argtypes = [pointer]
    library.convoy_candidates_count.restype = c_size_t
    library.convoy_last_error.restype = c_char_p
    library.convoy_version.restype = c_char_p
    library.convoy_version_number.restype = c_int
    for name in (
        "conv2d_shape",
        "conv3d_shape",
        "epilogue",
        "prologue",
        "shuffle",
        "plan_options",
        "run_arguments",
        "norm_shape",
        "norm_options",
        "norm_arguments",
        "elementwise",
    ):
        function = getattr(library, f"convoy_{name}_init")
        function.argtypes = [pointer, c_size_t]
        function.restype = None
    return library


library = _load()


def error_of(status, text):
    """The error that a status stands for."""
    return _ERRORS.get(status, ConvoyError)(text)


def check(status):
    """Raise what a status stands for."""
    if status != 0:
        raise error_of(status, library.convoy_last_error().decode())


def initialised(kind, name):
    """A struct with the library's own defaults."""
    value = kind()
    getattr(library, f"convoy_{name}_init")(ctypes.byref(value), ctypes.sizeof(kind))
    return value


def version() -> str:
    """Version and git hash of the loaded library."""
    return library.convoy_version().decode()


if sys.maxsize < 2**32:
    raise ImportError("convoy needs a 64-bit Python")
