# SPDX-License-Identifier: Apache-2.0
"""Plans as cheap calls on PyTorch tensors: everything that depends on the shapes alone is settled
when a call is made, and a run fills in addresses."""

import copy
import ctypes
import os
import threading
import weakref

import torch
from torch.autograd import forward_ad

from . import _layout, _operators
from . import _native as native
from ._bounded import Bounded
from ._changes import register, rest, version_of, watch
from ._native import InvalidArgument, library
from ._plan import (
    Conv2d,
    Conv3d,
    GroupNorm,
    NormOptions,
    Options,
    PackedFilter,
    RmsNorm,
    cached_norm,
    cached_plan,
)
from ._steps import step

NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
_PACK_LAYOUTS = {3: ("KCRS", "KRSC"), 4: ("KCRS", "KRSC"), 5: ("KCTRS", "KTRSC")}


def type_name(tensor, name):
    try:
        return NAMES[tensor.dtype]
    except KeyError:
        raise InvalidArgument(
            f"{name} is {tensor.dtype}; legal: torch.bfloat16, torch.float16, torch.float32"
        ) from None


if hasattr(torch._C, "_cuda_getCurrentRawStream"):
    _raw_stream = torch._C._cuda_getCurrentRawStream
else:

    def _raw_stream(index):
        return torch.cuda.current_stream(index).cuda_stream


def stream_of(device):
    return _raw_stream(device.index) if device.type == "cuda" else None


_float32 = torch.float32
tf32_is_allowed = torch._C._get_cudnn_allow_tf32  # torch.backends.cudnn.allow_tf32


def allows_tf32(tensor):
    """As F.conv2d: PyTorch's own setting says whether fp32 may be multiplied as TF32."""
    return tensor.dtype is _float32 and tf32_is_allowed()


def is_transformed():
    """Whether a transform of torch.func (vmap, jvp, grad) or forward-mode differentiation goes
    on: what runs then must be PyTorch's own operators."""
    return (forward_ad._current_level >= 0
            or torch._C._functorch.maybe_current_level() is not None)


def device_options(device):
    if device.type == "cuda":
        return {"device": "cuda", "device_index": device.index}
    return {"device": "cpu"}


def vector(tensor):
    """A dense, aligned vector of as many elements."""
    if tensor.dim() != 1 or not tensor.is_contiguous():
        tensor = tensor.reshape(-1).contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


# Packed filters: ((format, device), id of the weight) to (weak reference, version, address,
# filter).
_packed: dict[tuple, tuple] = register({})


_packing = threading.Lock()
_used = threading.local()  # .filter: the last one whose address this thread gave to C++.


def _renew_lock():
    global _packing
    _packing = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)  # Another thread may have had it.


def packed_filter(plan, weight, device):
    """The weight in the plan's format, repacked where it has changed since, once for all plans of
    that format. plan: whose pack_filter packs. NOTE: who keeps no more than its address holds it by
    `address_of`."""
    key = (plan.filter_format, device), id(weight)
    known = _packed.get(key)
    version, address = version_of(weight), weight.data_ptr()
    if known is not None and known[2] == address and known[1] == version and known[0]() is weight:
        return known[3]
    watch()
    with _packing:  # Once: threads that come together use one filter.
        known = _packed.get(key)
        if known is not None and known[0]() is weight and known[1:3] == (version, address):
            return known[3]
        dense, (layout, inner_layout) = weight.detach(), _PACK_LAYOUTS[weight.dim()]
        if not weight.is_contiguous():
            dense, layout = _layout.inner_copy(dense), inner_layout
        elif address % 16 != 0:
            dense = dense.clone()
        packed = plan.pack_filter(dense.data_ptr(), layout, stream_of(device))
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # Other streams may use it next.
        _packed[key] = (weakref.ref(weight, lambda _: _packed.pop(key, None)), version, address,
                        packed)
        watch()  # Again: the last model may have been restored meanwhile.
        return packed


def packed_of(weights):
    """What is packed of these."""
    wanted = set(map(id, weights))
    return [known[3] for (_, weight), known in list(_packed.items()) if weight in wanted]


def address_of(packed):
    """Of a packed filter, which lives until this thread asks for the next."""
    _used.filter = packed
    return packed._handle


# Weights in the type of an autocast: (id of the weight, type) to (weak reference, version, address,
# weight).
_cast: dict[tuple, tuple] = register({})


def cast_weight(weight, dtype):
    """The weight in another type, as a parameter that is kept until the weight changes."""
    key = id(weight), dtype
    known = _cast.get(key)
    version, address = version_of(weight), weight.data_ptr()
    if known is not None and known[0]() is weight and known[1:3] == (version, address):
        return known[3]
    watch()
    made = torch.nn.Parameter(weight.detach().to(dtype), requires_grad=False)
    _cast[key] = weakref.ref(weight, lambda _: _cast.pop(key, None)), version, address, made
    watch()
    return made


_formats: dict[int, str] = Bounded(65536)  # Of the operators' plans, by number.


class _Numbered:
    """A plan of the operators in C++, as packed_filter wants it."""

    def __init__(self, address, number):
        self._address = address
        self.filter_format = _formats.get(number)
        if self.filter_format is None:
            info = native.PlanInfo(ctypes.sizeof(native.PlanInfo))
            native.check(library.convoy_plan_info(address, ctypes.byref(info)))
            self.filter_format = _formats[number] = info.filter_format.decode()

    def pack_filter(self, address, layout, stream):
        handle = ctypes.c_void_p()
        native.check(library.convoy_pack_filter(
            self._address, address, native.FILTER_LAYOUTS[layout], stream, ctypes.byref(handle)))
        return PackedFilter(handle.value)


if _operators.library is not None:
    _asked = _operators.ask_from_cpp(
        lambda address, number, weight: address_of(packed_filter(
            _Numbered(address, number), weight, weight.device)),
        allows_tf32)


_generation = 0


def generation():
    """Changes where packed filters were forgotten that a CUDA graph may read."""
    return _generation


def forget(weights):
    """Pack these anew when they are next used."""
    global _generation
    _generation += 1
    gone = {id(weight) for weight in weights}
    for key in [key for key in list(_packed) if key[1] in gone]:
        _packed.pop(key, None)
    for key in [key for key in list(_cast) if key[0] in gone]:
        _cast.pop(key, None)


def clear():
    global _generation
    _generation += 1
    _packed.clear()
    _cast.clear()
    _operators.clear()
    rest()


def shuffle_options(node, residual):
    """What Options says of a node whose filters become pixels."""
    if node.shuffle is None:
        return {}
    factors, order, dropped = node.shuffle
    options = {"shuffle": factors, "shuffle_order": order, "dropped_frames": dropped}
    if residual is not None and node.repeats:
        options["shuffle_residual"] = "interleaved"
        options["residual_channels"] = residual.shape[1]
    return options


class ConvCall:
    """One convolution of one shape, for any weight and tensors."""

    def __init__(self, node, x, cache, residual, convert, packed=None, beta=1.0, scale=1.0,
                 **options):
        """As `node` says, for tensors shaped like these. convert(tensor) puts channels innermost.
        packed: whether the weight is packed and kept; None: where it is a Parameter. Raises
        InvalidArgument, Unsupported."""
        weight, bias, two = node.weight, node.bias, x.dim() < 5
        self.is_row = x.dim() == 3  # One dimension: a picture of one row.
        if packed is None:
            packed = isinstance(weight, torch.nn.Parameter)
        self.packed = packed or node.upsample > 1
        self.convert = convert
        self.activation = node.activation
        padded = [m for m, b, e in zip(node.modes, node.begin, node.end) if b or e]
        if two and len(set(padded)) > 1:
            raise InvalidArgument(
                f"padding modes = {node.modes} is not legal in 2-D; legal: one mode"
            )
        problem: Conv2d | Conv3d
        if two:
            n, c, *extents = x.shape
            in_plane = lambda values, missing: (missing,) * self.is_row + tuple(values)
            h, w = in_plane(extents, 1)
            (top, left), (bottom, right) = in_plane(node.begin, 0), in_plane(node.end, 0)
            problem = Conv2d(
                n, h, w, c, weight.shape[0], filter=in_plane(weight.shape[2:], 1),
                pad=(top, bottom, left, right), stride=in_plane(node.stride, 1),
                dilation=in_plane(node.dilation, 1), groups=node.groups, upsample=node.upsample,
                pad_mode=(padded or ["zero"])[0],
            )
        else:
            n, c, d, h, w = x.shape
            problem = Conv3d(
                n, d, h, w, c, weight.shape[0], filter=tuple(weight.shape[2:]),
                pad_begin=node.begin, pad_end=node.end, stride=node.stride,
                dilation=node.dilation, groups=node.groups, pad_mode=node.modes,
                cached_frames=0 if cache is None else cache.shape[2],
            )
        self.plan = cached_plan(problem, Options(
            dtype=type_name(x, "x"),
            bias_dtype=None if bias is None else type_name(bias, "bias"),
            activation="none" if node.activation is None else node.activation[0],
            residual=residual is not None,
            residual_order="before_activation" if node.residual_first else "after_activation",
            packed_filter=self.packed,
            allow_tf32=allows_tf32(x),
            **shuffle_options(node, residual),
            **device_options(x.device),
            **options,
        ))
        shape = self.plan.output_shape
        self.shape = torch.Size((shape[0], shape[-1], *shape[1:-1]))
        self.format = torch.channels_last if two else torch.channels_last_3d
        self.workspace = self.plan.workspace_bytes if x.is_cuda else 0
        self.handle = self.plan._handle
        epilogue = native.Epilogue.from_buffer_copy(self.plan._epilogue_template)
        epilogue.scale, epilogue.beta = scale, beta
        if node.activation is not None and node.activation[1] is not None:
            epilogue.parameter_a, epilogue.parameter_b = node.activation[1:]
        self.epilogue = bytes(epilogue)
        self.arguments = bytes(self.plan._arguments_template)
        prologue = self.plan._prologue_template
        self.prologue = bytes(prologue) if prologue.norm else None
        self.name = self.plan.kernel
        self.number = None
        if _operators.library is not None and node.shuffle is None:
            self.number = _operators.conv(self.plan, epilogue, prologue if prologue.norm else None,
                                          weight.numel())

    def counting(self, convert):
        """The same call with another way to put channels innermost."""
        made = copy.copy(self)
        made.convert = convert
        return made

    def __call__(self, node, x, cache, residual, coefficients=None):
        """Enqueue; the output, channels innermost. In `node` weight and bias count. coefficients:
        of a prologue of scale and shift, as a NormCall makes them."""
        if self.is_row and x.dim() == 3:
            residual = None if residual is None else self.convert(residual).unsqueeze(2)
            y = self(node, self.convert(x).unsqueeze(2), cache, residual, coefficients)
            return y.squeeze(2)
        weight, bias = node.weight, node.bias
        # NOTE: asked here before it is asked there: calls of Python's cost more than the answer.
        if not (x.is_contiguous(memory_format=self.format) and x.data_ptr() % 16 == 0):
            x = self.convert(x)
        if residual is not None:
            residual = self.convert(residual)
        if cache is not None:
            cache = self.convert(cache)
        given = packed_filter(self.plan, weight, x.device) if self.packed else self._dense(weight)
        if self.number is None:
            return self._run(given, x, None if bias is None else vector(bias), residual, cache,
                             coefficients)
        address, dense = (given._handle, None) if self.packed else (0, given)
        try:
            return _operators.run_conv(self.number.value, address, x, dense, bias, residual, cache,
                                       coefficients)
        except RuntimeError as error:
            raise _operators.typed(error) from None

    @step
    def _run(self, given, x, bias, residual, cache, coefficients):
        """given: the filter, packed or not."""
        out = torch.empty(self.shape, dtype=x.dtype, device=x.device, memory_format=self.format)
        epilogue = native.Epilogue.from_buffer_copy(self.epilogue)
        arguments = native.RunArguments.from_buffer_copy(self.arguments)
        arguments.output, arguments.activation = out.data_ptr(), x.data_ptr()
        if bias is not None:
            epilogue.bias = bias.data_ptr()
        if residual is not None:
            epilogue.residual = residual.data_ptr()
        if cache is not None:
            arguments.cache = cache.data_ptr()
        if self.packed:
            arguments.packed_filter = given._handle
        else:
            arguments.filter = given.data_ptr()
        if self.workspace:
            workspace = torch.empty(self.workspace, dtype=torch.uint8, device=x.device)
            arguments.workspace = workspace.data_ptr()
        arguments.epilogue = ctypes.pointer(epilogue)
        if self.prologue is not None:
            prologue = native.Prologue.from_buffer_copy(self.prologue)
            prologue.scale, prologue.shift = (part.data_ptr() for part in coefficients)
            arguments.prologue = ctypes.pointer(prologue)
        status = library.convoy_run(self.handle, ctypes.byref(arguments), stream_of(x.device))
        if status != 0:
            native.check(status)
        return out

    def number_and_filter(self, weight):
        """What C++ knows this call by, and the address of `weight` packed for it."""
        assert self.number is not None
        return self.number.value, address_of(packed_filter(self.plan, weight, weight.device))

    def _dense(self, weight):
        weight = self.convert(weight.detach())
        return weight.unsqueeze(2) if self.is_row else weight


class NormCall:
    """One norm of one shape, for any parameters and tensor."""

    def __init__(self, node, x, weight, bias, convert, result="tensor"):
        """As ConvCall. result: or "coefficients", of a GroupNorm without its activation: fp32
        [2, N, C], what the tensor is multiplied by and what is added."""
        given = weight if weight is not None else bias
        if weight is not None and bias is not None and weight.dtype != bias.dtype:
            raise InvalidArgument(
                f"bias is {bias.dtype}, but weight is {weight.dtype}; legal: the same type"
            )
        channels = x.shape[1]
        pixels = x.numel() // channels
        with_coefficients = result == "coefficients"
        problem: GroupNorm | RmsNorm
        if node.rule == "group":
            problem = GroupNorm(x.shape[0], pixels // x.shape[0], channels, node.groups,
                                node.epsilon)
        else:
            problem = RmsNorm(pixels, channels, node.epsilon, node.rule)
        self.plan = cached_norm(problem, NormOptions(
            dtype=type_name(x, "x"),
            scale=weight is not None,
            bias=bias is not None,
            parameter_dtype="fp32" if given is None else type_name(given, "weight or bias"),
            activation="none" if node.activation is None or with_coefficients
            else node.activation[0],
            result=result,
            **device_options(x.device),
        ))
        self.convert = convert
        self.coefficients = (2, x.shape[0], channels) if with_coefficients else None
        self.workspace = self.plan.workspace_bytes if x.is_cuda else 0
        self.handle = self.plan._handle
        arguments = native.NormArguments.from_buffer_copy(self.plan._arguments_template)
        if node.activation is not None and node.activation[1] is not None:
            arguments.parameter_a, arguments.parameter_b = node.activation[1:]
        self.arguments = bytes(arguments)
        self.name = self.plan.kernel
        self.number = None
        if _operators.library is not None:
            parameters = torch.float32 if given is None else given.dtype
            self.number = _operators.norm(self.plan, arguments, x.numel(), channels,
                                          native.DTYPES[NAMES[x.dtype]],
                                          native.DTYPES[NAMES[parameters]],
                                          x.shape[0] if with_coefficients else 0)

    def __call__(self, x, weight, bias):
        x = self.convert(x)
        if self.number is not None:
            try:
                return _operators.run_norm(self.number.value, x, weight, bias)
            except RuntimeError as error:
                raise _operators.typed(error) from None
        return self._run(x, None if weight is None else vector(weight),
                         None if bias is None else vector(bias))

    @step
    def _run(self, x, weight, bias):
        if self.coefficients is None:
            out = torch.empty_like(x)
        else:
            out = torch.empty(self.coefficients, dtype=torch.float32, device=x.device)
        arguments = native.NormArguments.from_buffer_copy(self.arguments)
        arguments.output, arguments.input = out.data_ptr(), x.data_ptr()
        if weight is not None:
            arguments.scale = weight.data_ptr()
        if bias is not None:
            arguments.bias = bias.data_ptr()
        if self.workspace:
            workspace = torch.empty(self.workspace, dtype=torch.uint8, device=x.device)
            arguments.workspace = workspace.data_ptr()
        status = library.convoy_norm_run(self.handle, ctypes.byref(arguments), stream_of(x.device))
        if status != 0:
            native.check(status)
        return out
