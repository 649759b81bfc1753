# SPDX-License-Identifier: Apache-2.0
"""Problems, plans and packed filters, on bare addresses: what the array front ends share."""

import collections.abc
import ctypes
import dataclasses
import difflib
import functools
import inspect
import math
import operator
import weakref
from typing import Any

from . import _native as native
from ._native import choose, library

Triple = tuple[int, int, int]
EPILOGUE_KEYWORDS = (
    "bias", "residual", "scale", "beta", "activation", "parameter_a", "parameter_b",
    "residual_order", "rounding", "output_dtype", "out", "kernel",
)


@dataclasses.dataclass(frozen=True)
class Conv2d:
    """A 2-D convolution: activation [N, H, W, C], filter [K, R, S, C / groups], output
    [N, P, Q, K].

    Channels count all groups. filter: rows and columns of taps. pad: top, bottom, left, right.
    stride, dilation: of height, width. pad_mode: zero, replicate or reflect. upsample: 1, or 2 for
    nearest-neighbour upsampling before the filter.
    """

    batch: int
    in_height: int
    in_width: int
    in_channels: int
    out_channels: int
    filter: tuple[int, int] = (1, 1)
    pad: tuple[int, int, int, int] = (0, 0, 0, 0)  # top, bottom, left, right
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    pad_mode: str = "zero"
    upsample: int = 1

    def _struct(self):
        shape = native.initialised(native.Conv2dShape, "conv2d_shape")
        for name in ("batch", "in_height", "in_width", "in_channels", "out_channels", "groups",
                     "upsample"):
            setattr(shape, name, integer(getattr(self, name), name))
        shape.filter_h, shape.filter_w = numbers(self.filter, 2, "filter")
        shape.pad_top, shape.pad_bottom, shape.pad_left, shape.pad_right = numbers(
            self.pad, 4, "pad"
        )
        shape.stride_h, shape.stride_w = numbers(self.stride, 2, "stride")
        shape.dilation_h, shape.dilation_w = numbers(self.dilation, 2, "dilation")
        shape.pad_mode = choose(native.PAD_MODES, self.pad_mode, "pad_mode")
        return shape

    _suffix = "conv2d"
    dense_layout = "KRSC"


@dataclasses.dataclass(frozen=True)
class Conv3d:
    """A 3-D convolution: activation [N, D, H, W, C], filter [K, T, R, S, C / groups], output
    [N, Z, P, Q, K].

    Tuples are in the order depth, height, width. Channels count all groups. pad_begin: front, top,
    left; pad_end: back, bottom, right. pad_mode: zero, replicate or reflect, for each axis.
    cached_frames: frames of the causal cache, in front of the new ones.
    """

    batch: int
    in_depth: int
    in_height: int
    in_width: int
    in_channels: int
    out_channels: int
    filter: Triple = (1, 1, 1)
    pad_begin: Triple = (0, 0, 0)
    pad_end: Triple = (0, 0, 0)
    stride: Triple = (1, 1, 1)
    dilation: Triple = (1, 1, 1)
    groups: int = 1
    pad_mode: tuple[str, str, str] = ("zero", "zero", "zero")
    cached_frames: int = 0

    def _struct(self):
        shape = native.initialised(native.Conv3dShape, "conv3d_shape")
        for name in ("batch", "in_depth", "in_height", "in_width", "in_channels", "out_channels",
                     "groups", "cached_frames"):
            setattr(shape, name, integer(getattr(self, name), name))
        for name in ("filter", "pad_begin", "pad_end", "stride", "dilation"):
            getattr(shape, name)[:] = numbers(getattr(self, name), 3, name)
        modes = elements(self.pad_mode, 3, "pad_mode", "three modes")
        shape.pad_mode[:] = [choose(native.PAD_MODES, mode, "pad_mode") for mode in modes]
        return shape

    _suffix = "conv3d"
    dense_layout = "KTRSC"


@dataclasses.dataclass(frozen=True)
class Options:
    """How a problem is to be run.

    dtype, output_dtype: bf16, fp16 or fp32; no output_dtype: that of dtype. bias_dtype: None for no
    bias. residual: whether there is one. residual_order: after_activation or before_activation.
    rounding: once or each_step. device: auto, cpu or cuda; device_index -1: the current one.
    packed_filter: the filter comes as a PackedFilter. allow_tf32: fp32 tensors may be rounded to
    TF32 (10 bits of mantissa) before they are multiplied; sums stay fp32. kernel: the name of a
    candidate, or "".
    prologue_norm: none, scale_shift or rms: what the activation is normalised by before it is
    convolved, in fp32 tensors that a run brings; prologue_activation: none, relu, gelu, gelu_tanh
    or silu behind it.
    upsample_folding: exact, or fast: half the work of an upsampling on a GPU, its filters summed to
    the 16 bits of their type.
    shuffle: factors of frames, rows and columns: filters become pixels of the output (depth to
    space). shuffle_order: channels_outer, filters (c, dt, dh, dw) as torch's pixel_shuffle has
    them; or channels_inner, (dt, dh, dw, c). dropped_frames: first frames of the shuffled output
    that are left out. shuffle_residual: output (the residual has the output's shape), interleaved
    or tiled (it has the extents before the shuffle and residual_channels channels; filter k adds
    channel k // (K // residual_channels) or k % residual_channels).
    statistics_groups: above 0, a divisor of the output's channels: a run also writes mean and
    (biased) variance of each group of channels of every image of the output, [N, groups, 2], fp32,
    which NormPlan.run takes.
    """

    dtype: str = "bf16"
    output_dtype: str | None = None
    bias_dtype: str | None = None
    activation: str = "none"
    residual: bool = False
    residual_order: str = "after_activation"
    rounding: str = "once"
    device: str = "auto"
    device_index: int = -1
    packed_filter: bool = False
    allow_tf32: bool = False
    kernel: str = ""
    upsample_folding: str = "exact"
    prologue_norm: str = "none"
    prologue_activation: str = "none"
    shuffle: Triple = (1, 1, 1)
    shuffle_order: str = "channels_outer"
    dropped_frames: int = 0
    shuffle_residual: str = "output"
    residual_channels: int = 0
    statistics_groups: int = 0

    def _shuffle(self):
        shuffle = native.initialised(native.Shuffle, "shuffle")
        shuffle.factors[:] = numbers(self.shuffle, 3, "shuffle")
        shuffle.order = choose(native.SHUFFLE_ORDERS, self.shuffle_order, "shuffle_order")
        shuffle.dropped_frames = integer(self.dropped_frames, "dropped_frames")
        shuffle.residual = choose(
            native.SHUFFLE_RESIDUALS, self.shuffle_residual, "shuffle_residual"
        )
        shuffle.residual_channels = integer(self.residual_channels, "residual_channels")
        return shuffle

    def _prologue(self):
        prologue = native.initialised(native.Prologue, "prologue")
        prologue.norm = choose(native.PROLOGUE_NORMS, self.prologue_norm, "prologue_norm")
        prologue.activation = choose(
            native.ACTIVATIONS, self.prologue_activation, "prologue_activation"
        )
        return prologue

    def _epilogue(self):
        epilogue = native.initialised(native.Epilogue, "epilogue")
        epilogue.activation = choose(native.ACTIVATIONS, self.activation, "activation")
        epilogue.residual_order = choose(
            native.RESIDUAL_ORDERS, self.residual_order, "residual_order"
        )
        epilogue.rounding = choose(native.ROUNDINGS, self.rounding, "rounding")
        if self.bias_dtype is not None:
            epilogue.bias_dtype = choose(native.DTYPES, self.bias_dtype, "bias_dtype")
        return epilogue

    def _struct(self):
        options = native.initialised(native.PlanOptions, "plan_options")
        options.dtype = choose(native.DTYPES, self.dtype, "dtype")
        if self.output_dtype is not None:
            options.output_dtype = choose(native.DTYPES, self.output_dtype, "output_dtype")
        options.device = choose(native.DEVICES, self.device, "device")
        options.device_index = device_number(self.device_index)
        options.packed_filter = flag(self.packed_filter, "packed_filter")
        options.upsample_folding = choose(
            native.UPSAMPLE_FOLDINGS, self.upsample_folding, "upsample_folding"
        )
        options.allow_tf32 = flag(self.allow_tf32, "allow_tf32")
        options.kernel = kernel_name(self.kernel)
        # Only being null or not matters here.
        epilogue = self._epilogue()
        present = 16
        epilogue.bias = present if self.bias_dtype is not None else None
        epilogue.residual = present if flag(self.residual, "residual") else None
        options.epilogue = ctypes.pointer(epilogue)
        options.prologue = ctypes.pointer(self._prologue())
        options.shuffle = ctypes.pointer(self._shuffle())
        options.statistics_groups = integer(self.statistics_groups, "statistics_groups")
        return options


def _structs(problem, options, legal_options, legal_problems):
    """What the C interface takes, of a problem and options of legal types."""
    for name, value, legal in (("problem", problem, legal_problems),
                               ("options", options, (legal_options,))):
        if not isinstance(value, legal):
            raise native.InvalidArgument(
                f"{name} is a {type(value).__name__}; legal: "
                + " or ".join(it.__name__ for it in legal)
            )
    return problem._struct(), options._struct()


class _Owner:
    """Has something of the library's, never changes it, and destroys it when it goes. So a copy is
    the object itself."""

    def _own(self, handle, destroy):
        self._handle = handle
        # NOTE: at the interpreter's end threads and exit handlers may still run plans: the memory
        # goes with the process.
        weakref.finalize(self, destroy, handle).atexit = False

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        name = type(self).__name__
        raise TypeError(f"a {name} cannot be pickled; legal: its problem and options, to make it "
                        "anew")


class PackedFilter(_Owner):
    """A filter in the format of one plan's kernel, in its device's memory. `Plan.pack_filter` makes
    it."""

    def __init__(self, handle):
        self._own(handle, library.convoy_packed_filter_destroy)


class Plan(_Owner):
    """A convolution that is ready to run. Threads may share it.

    kernel, backend: what runs it. flops: of the operation. tf32: whether fp32 is multiplied as
    TF32. statistics: what takes them, epilogue or pass, "" without. filter_format: what
    `pack_filter` makes; plans of one device that say the same share it. workspace_bytes: what a run
    needs. output_shape, residual_shape, activation_shape, cache_shape, next_cache_shape: as the
    tensors lie in memory.
    Raises InvalidArgument for an illegal problem, Unsupported with every candidate's reason.
    """

    def __init__(self, problem, options=Options()):
        handle = ctypes.c_void_p()
        shape, c_options = _structs(problem, options, Options, (Conv2d, Conv3d))
        create = getattr(library, f"convoy_plan_{problem._suffix}")
        native.check(create(ctypes.byref(shape), ctypes.byref(c_options), ctypes.byref(handle)))
        self._own(handle.value, library.convoy_plan_destroy)
        self.problem = problem
        self.options = options

        info = native.PlanInfo(ctypes.sizeof(native.PlanInfo))
        native.check(library.convoy_plan_info(self._handle, ctypes.byref(info)))
        self.kernel = info.kernel.decode()
        self.backend = info.backend.decode()
        self.flops = info.flops
        self.statistics = info.statistics.decode()
        self.filter_format = info.filter_format.decode()
        self.tf32 = bool(info.tf32)
        workspace = ctypes.c_size_t()
        native.check(library.convoy_plan_workspace_bytes(self._handle, ctypes.byref(workspace)))
        self.workspace_bytes = workspace.value
        # A run copies these instead of filling structs anew.
        self._epilogue_template = options._epilogue()
        self._prologue_template = options._prologue()
        self._arguments_template = native.initialised(native.RunArguments, "run_arguments")
        self.output_shape = self._shape("output")
        self.residual_shape = self._shape("residual")
        self.activation_shape = self._shape("activation")
        self.cache_shape = self._shape("cache")
        self.next_cache_shape = self._shape("next_cache")

    def _shape(self, name):
        shape = native.TensorShape()
        query = getattr(library, f"convoy_plan_{name}_shape")
        native.check(query(self._handle, ctypes.byref(shape)))
        return tuple(shape.extents[: 4 if shape.layout == 0 else 5])

    @property
    def output_dtype(self):
        return self.options.output_dtype or self.options.dtype

    def pack_filter(self, address, layout, stream=None):
        """Repack the dense filter at `address`, in the plan's memory, once for many runs. layout:
        KRSC, KCRS, RSCF; KTRSC, KCTRS, TRSCF. stream: a CUDA stream's address."""
        handle = ctypes.c_void_p()
        number = choose(native.FILTER_LAYOUTS, layout, "filter_layout")
        native.check(
            library.convoy_pack_filter(self._handle, address, number, stream, ctypes.byref(handle))
        )
        return PackedFilter(handle.value)

    def run(
        self,
        output,
        activation,
        filter,
        bias=None,
        residual=None,
        cache=None,
        next_cache=None,
        workspace=None,
        scale=1.0,
        beta=1.0,
        parameter_a=None,
        parameter_b=None,
        stream=None,
        prologue_scale=None,
        prologue_shift=None,
        inverse_rms=None,
        statistics=None,
    ):
        """Enqueue on `stream`. Tensors are addresses; `filter` may be a PackedFilter. Of the last
        four, which are fp32, three are the prologue's: scale [N, C] and shift [N, C]; or scale [C]
        and inverse_rms, a value for each pixel. statistics: receives [N, groups, 2]."""
        epilogue = native.Epilogue.from_buffer_copy(self._epilogue_template)
        epilogue.bias, epilogue.residual = bias, residual
        epilogue.scale, epilogue.beta = scale, beta
        if parameter_a is not None:
            epilogue.parameter_a = parameter_a
        if parameter_b is not None:
            epilogue.parameter_b = parameter_b
        arguments = native.RunArguments.from_buffer_copy(self._arguments_template)
        arguments.output, arguments.activation = output, activation
        if isinstance(filter, PackedFilter):
            arguments.packed_filter = filter._handle
        else:
            arguments.filter = filter
        arguments.cache, arguments.next_cache = cache, next_cache
        arguments.workspace = workspace
        arguments.statistics = statistics
        arguments.epilogue = ctypes.pointer(epilogue)
        if (prologue_scale, prologue_shift, inverse_rms) != (None,) * 3 or (
            self._prologue_template.norm != 0
        ):
            prologue = native.Prologue.from_buffer_copy(self._prologue_template)
            prologue.scale, prologue.shift = prologue_scale, prologue_shift
            prologue.inverse_rms = inverse_rms
            arguments.prologue = ctypes.pointer(prologue)
        native.check(library.convoy_run(self._handle, ctypes.byref(arguments), stream))


@dataclasses.dataclass(frozen=True)
class GroupNorm:
    """Group normalisation of [N, pixels, C]; `pixels` is the product of one image's extents."""

    batch: int
    pixels: int
    channels: int
    groups: int
    epsilon: float = 1e-5

    def _struct(self):
        shape = native.initialised(native.NormShape, "norm_shape")
        for name in ("batch", "pixels", "channels", "groups"):
            setattr(shape, name, integer(getattr(self, name), name))
        shape.epsilon = real(self.epsilon, "epsilon")
        return shape

    _suffix = "group_norm"


@dataclasses.dataclass(frozen=True)
class RmsNorm:
    """RMS normalisation over the channels of [pixels, C]; `pixels` counts all images. rule: added,
    x / sqrt(mean(x²) + epsilon); or norm_floor, x·sqrt(C) / max(norm(x), epsilon)."""

    pixels: int
    channels: int
    epsilon: float = 1e-6
    rule: str = "added"

    def _struct(self):
        shape = native.initialised(native.NormShape, "norm_shape")
        shape.pixels = integer(self.pixels, "pixels")
        shape.channels = integer(self.channels, "channels")
        shape.epsilon = real(self.epsilon, "epsilon")
        shape.rms_epsilon = choose(native.RMS_EPSILONS, self.rule, "rule")
        return shape

    _suffix = "rms_norm"


@dataclasses.dataclass(frozen=True)
class NormOptions:
    """How a norm is to be run.

    dtype: of input and output. scale, bias: whether a run brings one, [C] of parameter_dtype.
    result: tensor; or coefficients, fp32, which a convolution's prologue reads: scales and shifts,
    [2, N, C], of a GroupNorm, a value for each pixel of an RmsNorm (without scale and bias).
    device: auto, cpu or cuda; device_index -1: the current one.
    """

    dtype: str = "bf16"
    scale: bool = True
    bias: bool = True
    parameter_dtype: str = "fp32"
    activation: str = "none"
    device: str = "auto"
    device_index: int = -1
    result: str = "tensor"

    def _struct(self):
        options = native.initialised(native.NormOptions, "norm_options")
        options.dtype = choose(native.DTYPES, self.dtype, "dtype")
        options.parameter_dtype = choose(native.DTYPES, self.parameter_dtype, "parameter_dtype")
        options.scale, options.bias = flag(self.scale, "scale"), flag(self.bias, "bias")
        options.activation = choose(native.ACTIVATIONS, self.activation, "activation")
        options.device = choose(native.DEVICES, self.device, "device")
        options.device_index = device_number(self.device_index)
        options.result = choose(native.NORM_RESULTS, self.result, "result")
        return options


class NormPlan(_Owner):
    """A norm that is ready to run. Threads may share it, each with a workspace of its own."""

    def __init__(self, problem, options=NormOptions()):
        handle = ctypes.c_void_p()
        shape, c_options = _structs(problem, options, NormOptions, (GroupNorm, RmsNorm))
        create = getattr(library, f"convoy_plan_{problem._suffix}")
        native.check(create(ctypes.byref(shape), ctypes.byref(c_options), ctypes.byref(handle)))
        self._own(handle.value, library.convoy_norm_plan_destroy)
        self.problem = problem
        self.options = options
        info = native.PlanInfo(ctypes.sizeof(native.PlanInfo))
        native.check(library.convoy_norm_info(self._handle, ctypes.byref(info)))
        self.kernel = info.kernel.decode()
        self.backend = info.backend.decode()
        workspace = ctypes.c_size_t()
        native.check(library.convoy_norm_workspace_bytes(self._handle, ctypes.byref(workspace)))
        self.workspace_bytes = workspace.value
        self._arguments_template = native.initialised(native.NormArguments, "norm_arguments")

    def run(
        self,
        output,
        input,
        scale=None,
        bias=None,
        workspace=None,
        parameter_a=None,
        parameter_b=None,
        stream=None,
    ):
        """Enqueue on `stream`. Tensors are addresses; the output may be the input."""
        arguments = native.NormArguments.from_buffer_copy(self._arguments_template)
        arguments.output, arguments.input = output, input
        arguments.scale, arguments.bias = scale, bias
        arguments.workspace = workspace
        if parameter_a is not None:
            arguments.parameter_a = parameter_a
        if parameter_b is not None:
            arguments.parameter_b = parameter_b
        native.check(library.convoy_norm_run(self._handle, ctypes.byref(arguments), stream))


class ElementwisePlan(_Owner):
    """A chain of pointwise steps that is ready to run on a CUDA device (elementwise.hpp says what
    each does).

    extents: N, D, H, W, C. operands: (strides, ratio, offset) of each tensor, as tuples of 5, 3
    and 3. steps: (op, operand, number, activation, parameter a, parameter b) each; operand -1: the
    number, -2: the kept value. dtype: of every tensor.
    """

    def __init__(self, extents, operands, steps, dtype, device_index=-1):
        problem = native.initialised(native.Elementwise, "elementwise")
        for name, given, most in (("operands", operands, len(problem.operands)),
                                  ("steps", steps, len(problem.steps))):
            if len(given) > most:
                raise native.InvalidArgument(f"{len(given)} {name}; legal: at most {most}")
        problem.extents[:] = numbers(extents, 5, "extents")
        problem.operand_count, problem.step_count = len(operands), len(steps)
        for operand, (strides, ratio, offset) in zip(problem.operands, operands):
            operand.strides[:] = numbers(strides, 5, "strides")
            operand.ratio[:] = numbers(ratio, 3, "ratio")
            operand.offset[:] = numbers(offset, 3, "offset")
        for step, (op, operand, number, activation, a, b) in zip(problem.steps, steps):
            step.op = choose(native.ELEMENTWISE_OPS, op, "op")
            step.operand, step.number = operand, number
            step.activation = choose(native.ACTIVATIONS, activation, "activation")
            step.parameter_a, step.parameter_b = a, b
        problem.dtype = choose(native.DTYPES, dtype, "dtype")
        problem.device = native.DEVICES["cuda"]
        problem.device_index = device_number(device_index)
        handle = ctypes.c_void_p()
        native.check(library.convoy_plan_elementwise(ctypes.byref(problem), ctypes.byref(handle)))
        self._own(handle.value, library.convoy_elementwise_plan_destroy)
        self._addresses = ctypes.c_void_p * len(operands)

    def run(self, output, operands, coefficients=None, stream=None):
        """Enqueue on `stream`. Tensors are addresses."""
        native.check(library.convoy_elementwise_run(
            self._handle, output, self._addresses(*operands), coefficients, stream))


_kept_plan = functools.lru_cache(maxsize=1024)(Plan)
_kept_norm = functools.lru_cache(maxsize=1024)(NormPlan)


cached_elementwise = functools.lru_cache(maxsize=4096)(ElementwisePlan)


def cached_plan(problem, options):
    """One plan for each problem and options, kept."""
    try:
        return _kept_plan(problem, options)
    except TypeError:  # An option without a hash: the plan names it.
        return Plan(problem, options)


def cached_norm(problem, options):
    """One plan for each norm and options, kept."""
    try:
        return _kept_norm(problem, options)
    except TypeError:
        return NormPlan(problem, options)


def supports(problem: Conv2d | Conv3d, options: Options = Options()) -> tuple[bool, str]:
    """(True, "") where `Plan(problem, options)` would succeed, else (False, why not)."""
    shape, c_options = _structs(problem, options, Options, (Conv2d, Conv3d))
    query = getattr(library, f"convoy_supports_{problem._suffix}")
    if query(ctypes.byref(shape), ctypes.byref(c_options)) == 0:
        return True, ""
    return False, library.convoy_last_error().decode()


def candidates(problem: Conv2d | Conv3d, options: Options = Options()) -> list[dict[str, Any]]:
    """Every kernel in the order of preference: dicts of kernel, backend, reason, estimated_us,
    chosen, statistics."""
    shape, c_options = _structs(problem, options, Options, (Conv2d, Conv3d))
    handle = ctypes.c_void_p()
    query = getattr(library, f"convoy_candidates_{problem._suffix}")
    native.check(query(ctypes.byref(shape), ctypes.byref(c_options), ctypes.byref(handle)))
    try:
        result = []
        for index in range(library.convoy_candidates_count(handle)):
            line = native.Candidate(ctypes.sizeof(native.Candidate))
            native.check(library.convoy_candidates_get(handle, index, ctypes.byref(line)))
            result.append(
                {
                    "kernel": line.kernel.decode(),
                    "backend": line.backend.decode(),
                    "reason": line.reason.decode(),
                    "estimated_us": line.estimated_us,
                    "chosen": bool(line.chosen),
                    "statistics": line.statistics.decode(),
                }
            )
        return result
    finally:
        library.convoy_candidates_destroy(handle)


def unknown_keyword(word, function):
    """What to raise for a keyword that a function does not have: the nearest that it has."""
    known = [*inspect.signature(function).parameters, *EPILOGUE_KEYWORDS]
    known = [name for name in known if name != "epilogue"]
    near = difflib.get_close_matches(word, known, 1)
    hint = f"; nearest: {near[0]}" if near else f"; legal: {', '.join(known)}"
    return TypeError(f"{function.__name__}() has no keyword '{word}'{hint}")


def device_number(value):
    """A CUDA device, or -1 for the current one."""
    number = integer(value, "device_index")
    if not -1 <= number < 2**31:
        raise native.InvalidArgument(
            f"device_index = {number} is not legal; legal: -1 (the current device) or a device "
            "number; nearest: -1"
        )
    return number


def _index(value):
    """As operator.index, which takes numpy's truth values before numpy 2."""
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        raise TypeError("a truth value is no integer")
    return operator.index(value)


def integer(value, name):
    """`value` as an int: any integer type of 64 bits, nothing that would be rounded."""
    try:
        number = _index(value)
    except TypeError:
        raise native.InvalidArgument(
            f"{name} = {value!r} is not legal; legal: an integer"
        ) from None
    if not -(2**63) <= number < 2**63:
        raise native.InvalidArgument(f"{name} = {number} is not legal; legal: 64 bits")
    return number


def flag(value, name):
    """`value` as 0 or 1."""
    try:
        number = _index(value)
    except TypeError:  # NumPy's bool is no integer.
        number = int(value) if type(value).__name__ in ("bool_", "bool") else -1
    if number not in (0, 1):
        raise native.InvalidArgument(f"{name} = {value!r} is not legal; legal: True, False")
    return number


def real(value, name):
    """`value` as a float that is fp32's infinity only where it was one."""
    try:
        number = math.nan if isinstance(value, (str, bytes)) else float(value)
        good = not isinstance(value, (str, bytes))
    except (TypeError, ValueError, OverflowError):
        good = False
    if not good:
        raise native.InvalidArgument(f"{name} = {value!r} is not legal; legal: a number")
    if math.isfinite(number) and math.isinf(ctypes.c_float(number).value):
        raise native.InvalidArgument(
            f"{name} = {number} is not legal; legal: a number of fp32, at most 3.4028235e38"
        )
    return number


def kernel_name(value):
    """The bytes of a kernel's name, "" for none."""
    if not isinstance(value, str) or "\0" in value:
        raise native.InvalidArgument(
            f"kernel = {value!r} is not legal; legal: a name of candidates(), or \"\" for any"
        )
    return value.encode(errors="replace")


def elements(value, count, name, legal):
    """The `count` elements of a sequence; text, bytes and what has no order or no end are none."""
    unordered = (str, bytes, bytearray, collections.abc.Mapping, collections.abc.Set)
    if isinstance(value, unordered) or not hasattr(value, "__len__"):
        raise native.InvalidArgument(f"{name} = {value!r} is not legal; legal: {legal}")
    values = tuple(value)
    if count is not None and len(values) != count:
        raise native.InvalidArgument(f"{name} = {values} is not legal; legal: {legal}")
    return values


def _is_integer(value):
    if isinstance(value, (tuple, list, str)):
        return False  # NOTE: without asking, which PyTorch 2.11's compiler does not survive.
    try:
        _index(value)
    except TypeError:
        return False
    return True


def numbers(value, count, name):
    """`value` as a tuple of `count` integers; one integer stands for all."""
    if _is_integer(value):
        return (integer(value, name),) * count
    legal = f"one integer or {count} of them"
    return tuple(integer(v, name) for v in elements(value, count, name, legal))


def sides(padding, axes, taps=None, stride=None, dilation=None):
    """Padding before and after each axis: one number, one for each axis, or two for each axis in
    the order before, after, before, after, ... Where the filter is known also "valid", none, and
    "same", as much as gives an output of the input's size: dilation·(taps - 1) in all, the odd one
    after; stride 1 only."""
    if isinstance(padding, str) and taps is not None:
        if padding == "valid":
            return (0,) * axes, (0,) * axes
        if padding == "same":
            if any(s != 1 for s in stride):
                raise native.InvalidArgument(
                    f"padding = 'same' with stride = {tuple(stride)} is not legal; legal: stride 1"
                )
            whole = [d * (t - 1) for d, t in zip(dilation, taps)]
            return tuple(w // 2 for w in whole), tuple(w - w // 2 for w in whole)
    legal = f"one integer, {axes} or {2 * axes} of them" + ("" if taps is None else ", 'valid' or "
                                                             "'same'")
    if _is_integer(padding):
        padding = (padding,) * axes
    padding = tuple(integer(v, "padding") for v in elements(padding, None, "padding", legal))
    if len(padding) == axes:
        return padding, padding
    if len(padding) == 2 * axes:
        return padding[0::2], padding[1::2]
    raise native.InvalidArgument(f"padding = {padding} is not legal; legal: {legal}")


def clear_cache() -> None:
    """Forget the plans that the array front ends keep, and with the last of them their memory."""
    _kept_plan.cache_clear()
    _kept_norm.cache_clear()
