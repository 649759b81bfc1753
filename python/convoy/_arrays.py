# SPDX-License-Identifier: Apache-2.0
"""The convolutions and norms on numpy arrays, on the CPU."""

from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np

from . import _native as native
from ._native import InvalidArgument, OutOfMemory
from ._plan import (
    Conv2d,
    Conv3d,
    GroupNorm,
    NormOptions,
    Options,
    RmsNorm,
    cached_norm,
    cached_plan,
    elements,
    integer,
    numbers,
    real,
    sides,
    unknown_keyword,
)

Array = Any  # A numpy array, or what speaks DLPack.
Integers = SupportsIndex | Sequence[SupportsIndex]  # One, or one for each axis.
Padding = Integers | str  # Also one for each side, "same" or "valid".

_NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
# Where each axis of a filter stands in a layout, as K, spatial..., C.
_AXES = {
    "KRSC": (0, 1, 2, 3),
    "KCRS": (0, 2, 3, 1),
    "RSCF": (3, 0, 1, 2),
    "KTRSC": (0, 1, 2, 3, 4),
    "KCTRS": (0, 2, 3, 4, 1),
    "TRSCF": (4, 0, 1, 2, 3),
}


def _dtype_name(array, name):
    try:
        return _NAMES[array.dtype.name]
    except KeyError:
        raise InvalidArgument(
            f"{name} is {array.dtype}; legal: float32, float16, bfloat16 (of ml_dtypes)"
        ) from None


def _numpy_dtype(name):
    if name == "bf16":
        try:
            import ml_dtypes
        except ImportError:
            raise InvalidArgument(
                "bf16 arrays in numpy need the package ml_dtypes; legal without: fp32, fp16"
            ) from None
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype({"fp32": np.float32, "fp16": np.float16}[name])


def _array(value, rank, name):
    """A host array of this rank, from numpy or anything that speaks DLPack."""
    if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        try:
            value = np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError) as error:
            raise InvalidArgument(
                f"{name} cannot be had by DLPack: {error}; legal: an array in host memory"
            ) from None
    _require_unmasked(value, name)
    if not isinstance(value, np.ndarray):
        raise InvalidArgument(f"{name} is a {type(value).__name__}; legal: a numpy array")
    if value.ndim != rank:
        raise InvalidArgument(f"{name} has {value.ndim} axes {value.shape}; legal: {rank}")
    if not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    return value


def _require_unmasked(array, name):
    if isinstance(array, np.ma.MaskedArray):
        raise InvalidArgument(
            f"{name} is a masked array, whose mask nothing would read; legal: {name}.filled(value)"
        )


def _dense(array):
    """The same values, contiguous and 16-byte aligned."""
    array = np.ascontiguousarray(array)
    if array.ctypes.data % 16 == 0:
        return array
    aligned = _empty(array.shape, array.dtype)
    aligned[...] = array
    return aligned


def _empty(shape, dtype):
    """An array whose memory starts at a multiple of 64 bytes."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    try:
        memory = np.empty(count + 64, np.uint8)
    except (MemoryError, ValueError):
        raise OutOfMemory(f"out of memory: an array of {count} bytes could not be reserved"
                          ) from None
    start = -memory.ctypes.data % 64
    return memory[start : start + count].view(dtype).reshape(shape)


def _require_output(array, shape, dtype):
    """`array` can take the result where it lies."""
    if not isinstance(array, np.ndarray):
        raise InvalidArgument(f"out is a {type(array).__name__}; legal: a numpy array")
    _require_unmasked(array, "out")
    _require(array, shape, dtype, "out")
    if not array.flags.writeable:
        raise InvalidArgument("out is read-only; legal: an array that may be written")
    if not array.flags.c_contiguous or array.ctypes.data % 16 != 0:
        raise InvalidArgument("out is not contiguous and 16-byte aligned")


def _require(array, shape, dtype, name):
    if array.shape != tuple(shape) or array.dtype != dtype:
        raise InvalidArgument(
            f"{name} is {array.dtype} {array.shape}, but the convolution has {dtype} {tuple(shape)}"
        )


def _parameter(value, name):
    return None if value is None else real(value, name)


def _filter_extents(filter, layout, rank):
    native.choose(native.FILTER_LAYOUTS, layout, "filter_layout")
    axes = _AXES[layout]
    if len(axes) != rank:
        raise InvalidArgument(
            f"filter_layout = {layout} does not fit a {rank - 2}-D convolution; legal: "
            + ", ".join(name for name, order in _AXES.items() if len(order) == rank)
        )
    return tuple(filter.shape[axis] for axis in axes)


def _run(
    function,
    problem,
    x,
    filter,
    filter_layout,
    out=None,
    cache=None,
    next_cache=False,
    bias=None,
    residual=None,
    scale=1.0,
    beta=1.0,
    activation="none",
    parameter_a=None,
    parameter_b=None,
    residual_order="after_activation",
    rounding="once",
    output_dtype=None,
    kernel="",
    **unknown,
):
    """What conv2d and conv3d share, from the problem on."""
    if unknown:
        raise unknown_keyword(next(iter(unknown)), function)
    if function is conv2d and (cache is not None or next_cache):
        raise unknown_keyword("cache" if cache is not None else "next_cache", function)
    scale, beta = real(scale, "scale"), real(beta, "beta")
    dtype = _dtype_name(x, "x")
    if filter.dtype != x.dtype:
        raise InvalidArgument(f"filter is {filter.dtype}, but x is {x.dtype}; legal: the same type")
    if bias is not None:
        bias = _dense(_array(bias, 1, "bias"))
        if bias.shape[0] != problem.out_channels:
            raise InvalidArgument(
                f"bias has {bias.shape[0]} elements, but there are {problem.out_channels} filters"
            )
    options = Options(
        dtype=dtype,
        output_dtype=output_dtype,
        bias_dtype=None if bias is None else _dtype_name(bias, "bias"),
        activation=activation,
        residual=residual is not None,
        residual_order=residual_order,
        rounding=rounding,
        device="cpu",
        packed_filter=filter_layout != problem.dense_layout,
        kernel=kernel,
    )
    plan = cached_plan(problem, options)
    out_type = _numpy_dtype(plan.output_dtype)

    x, filter = _dense(x), _dense(filter)
    if out is None:
        out = _empty(plan.output_shape, out_type)
    _require_output(out, plan.output_shape, out_type)
    if residual is not None:
        residual = _array(residual, x.ndim, "residual")
        _require(residual, plan.output_shape, out_type, "residual")
        residual = _dense(residual)
    if cache is not None:
        _require(cache, plan.cache_shape, x.dtype, "cache")
        cache = _dense(cache)
    following = _empty(plan.next_cache_shape, x.dtype) if next_cache else None

    address = lambda array: None if array is None or array.size == 0 else array.ctypes.data
    weights = filter.ctypes.data
    if options.packed_filter:
        weights = plan.pack_filter(weights, filter_layout)
    plan.run(
        out.ctypes.data,
        x.ctypes.data,
        weights,
        bias=address(bias),
        residual=address(residual),
        cache=address(cache),
        next_cache=address(following),
        scale=scale,
        beta=beta,
        parameter_a=_parameter(parameter_a, "parameter_a"),
        parameter_b=_parameter(parameter_b, "parameter_b"),
    )
    return (out, following) if next_cache else out


def conv2d(
    x: Array,
    filter: Array,
    *,
    stride: Integers = 1,
    padding: Padding = 0,
    dilation: Integers = 1,
    groups: SupportsIndex = 1,
    padding_mode: str = "zero",
    upsample: SupportsIndex = 1,
    filter_layout: str = "KRSC",
    **epilogue: Any,
) -> np.ndarray:
    """Convolve `x` [N, H, W, C] with `filter`; returns [N, P, Q, K].

    padding: one integer; (height, width); (top, bottom, left, right); "same" (stride 1) or "valid".
    filter_layout: KRSC, KCRS or RSCF. upsample=2 upsamples x to the nearest neighbour first.
    Keywords of the epilogue: bias [K], residual (like the output), scale, beta, activation,
    parameter_a, parameter_b, residual_order, rounding, output_dtype; and out, kernel.
    D = activation(scale·conv + bias) + beta·residual. Raises InvalidArgument, Unsupported.
    """
    x, filter = _array(x, 4, "x"), _array(filter, 4, "filter")
    k, r, s, c = _filter_extents(filter, filter_layout, 4)
    strides, dilations = numbers(stride, 2, "stride"), numbers(dilation, 2, "dilation")
    count = integer(groups, "groups")
    begin, end = sides(padding, 2, (r, s), strides, dilations)
    batch, height, width, channels = x.shape
    problem = Conv2d(
        batch,
        height,
        width,
        channels,
        out_channels=k,
        filter=(r, s),
        pad=(begin[0], end[0], begin[1], end[1]),
        stride=strides,
        dilation=dilations,
        groups=count,
        pad_mode=padding_mode,
        upsample=integer(upsample, "upsample"),
    )
    _check_channels(c, x.shape[-1], count)
    return _run(conv2d, problem, x, filter, filter_layout, **epilogue)


def conv3d(
    x: Array,
    filter: Array,
    *,
    stride: Integers = 1,
    padding: Padding = 0,
    dilation: Integers = 1,
    groups: SupportsIndex = 1,
    padding_mode: str | Sequence[str] = "zero",
    cache: Array | None = None,
    filter_layout: str = "KTRSC",
    **epilogue: Any,
) -> Any:
    """Convolve `x` [N, D, H, W, C] with `filter`; returns [N, Z, P, Q, K].

    padding: one integer; (depth, height, width); (front, back, top, bottom, left, right); "same"
    (stride 1) or "valid".
    padding_mode: one for all axes or three. filter_layout: KTRSC, KCTRS or TRSCF. cache: frames
    [N, F, H, W, C] that come before x; with next_cache=True the result is (output, next cache).
    Keywords of the epilogue as in conv2d.
    """
    x, filter = _array(x, 5, "x"), _array(filter, 5, "filter")
    k, t, r, s, c = _filter_extents(filter, filter_layout, 5)
    strides, dilations = numbers(stride, 3, "stride"), numbers(dilation, 3, "dilation")
    count = integer(groups, "groups")
    begin, end = sides(padding, 3, (t, r, s), strides, dilations)
    modes: Any = (padding_mode,) * 3
    if not isinstance(padding_mode, str):
        modes = elements(padding_mode, 3, "padding_mode", "one mode or three")
    if cache is not None:
        cache = _array(cache, 5, "cache")
    batch, depth, height, width, channels = x.shape
    problem = Conv3d(
        batch,
        depth,
        height,
        width,
        channels,
        out_channels=k,
        filter=(t, r, s),
        pad_begin=begin,
        pad_end=end,
        stride=strides,
        dilation=dilations,
        groups=count,
        pad_mode=modes,
        cached_frames=0 if cache is None else cache.shape[1],
    )
    _check_channels(c, x.shape[-1], count)
    return _run(conv3d, problem, x, filter, filter_layout, cache=cache, **epilogue)


def _check_channels(filter_channels, in_channels, groups):
    if filter_channels * groups != in_channels:
        raise InvalidArgument(
            f"filter has {filter_channels} channels for {groups} groups, but x has {in_channels}; "
            "legal: channels of x = groups * channels of the filter"
        )


def _norm(problem, x, scale, bias, activation, parameter_a, parameter_b, out):
    """What both norms share, from the problem on."""
    parameters = []
    for name, parameter in (("scale", scale), ("bias", bias)):
        if parameter is not None:
            parameter = _dense(_array(parameter, 1, name))
            if parameter.shape[0] != x.shape[-1]:
                raise InvalidArgument(
                    f"{name} has {parameter.shape[0]} elements, but x has {x.shape[-1]} channels"
                )
        parameters.append(parameter)
    scale, bias = parameters
    if scale is not None and bias is not None and scale.dtype != bias.dtype:
        raise InvalidArgument(
            f"bias is {bias.dtype}, but scale is {scale.dtype}; legal: the same type"
        )
    given = scale if scale is not None else bias
    options = NormOptions(
        dtype=_dtype_name(x, "x"),
        scale=scale is not None,
        bias=bias is not None,
        parameter_dtype="fp32" if given is None else _dtype_name(given, "scale or bias"),
        activation=activation,
        device="cpu",
    )
    plan = cached_norm(problem, options)
    x = _dense(x)
    if out is None:
        out = _empty(x.shape, x.dtype)
    _require_output(out, x.shape, x.dtype)
    address = lambda array: None if array is None else array.ctypes.data
    plan.run(
        address(out),
        address(x),
        scale=address(scale),
        bias=address(bias),
        parameter_a=_parameter(parameter_a, "parameter_a"),
        parameter_b=_parameter(parameter_b, "parameter_b"),
    )
    return out


def _channels_last_array(x):
    if isinstance(x, np.ndarray) and x.ndim < 2:
        raise InvalidArgument(f"x has {x.ndim} axes {x.shape}; legal: [N, ..., C], at least 2")
    return _array(x, getattr(x, "ndim", 0), "x")


def group_norm(
    x: Array,
    groups: SupportsIndex,
    *,
    scale: Array | None = None,
    bias: Array | None = None,
    epsilon: float = 1e-5,
    activation: str = "none",
    parameter_a: float | None = None,
    parameter_b: float | None = None,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """activation((x - mean) / sqrt(variance + epsilon)·scale + bias) of `x` [N, ..., C], with the
    mean and variance of each image's C / groups channels. scale and bias are [C]; out may be x."""
    x = _channels_last_array(x)
    pixels = int(np.prod(x.shape[1:-1], dtype=np.int64))
    problem = GroupNorm(x.shape[0], pixels, x.shape[-1], integer(groups, "groups"),
                        real(epsilon, "epsilon"))
    return _norm(problem, x, scale, bias, activation, parameter_a, parameter_b, out)


def rms_norm(
    x: Array,
    *,
    scale: Array | None = None,
    bias: Array | None = None,
    epsilon: float = 1e-6,
    rule: str = "added",
    activation: str = "none",
    parameter_a: float | None = None,
    parameter_b: float | None = None,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """activation(x / rms·scale + bias) of `x` [..., C], over the channels of each pixel. rule:
    "added", rms = sqrt(mean(x²) + epsilon); "norm_floor", x·sqrt(C) / max(norm(x), epsilon)."""
    x = _channels_last_array(x)
    pixels = int(np.prod(x.shape[:-1], dtype=np.int64))
    problem = RmsNorm(pixels, x.shape[-1], real(epsilon, "epsilon"), rule)
    return _norm(problem, x, scale, bias, activation, parameter_a, parameter_b, out)
