# SPDX-License-Identifier: Apache-2.0
"""`accelerate(model)`: the convolutions and norms of a PyTorch model on Convoy, in channels-last
memory from end to end, fused with what surrounds them."""

import functools
from typing import Any

import torch

from . import _calls, _compiled_call, _entries, _functions, _helpers
from ._changes import unwatch
from ._native import InvalidArgument
from ._report import Report
from ._results import tidy
from ._session import Session, check_options
from ._trial import MARK

_functions.register_all()


class _Handles(list):
    """Of the hooks of an accelerated model. Copies and pickles are without those of parts that are
    gone, replaced by others: PyTorch's RemovableHandle cannot be set up without its module's hooks.
    """

    def __reduce__(self):
        return _Handles, ([handle for handle in self if handle.hooks_dict_ref() is not None],)


def _has_convolutions(module):
    return any(isinstance(m, torch.nn.modules.conv._ConvNd) for m in module.modules())


def _entries_of(model):
    """The model and those of its parts that its own methods call: where tensors come in."""
    yield model
    for child in model.children():
        if not _has_convolutions(child):
            continue
        if isinstance(child, (torch.nn.ModuleList, torch.nn.ModuleDict)):
            yield from (part for part in child.children() if _has_convolutions(part))
        else:
            yield child


def accelerate(model: torch.nn.Module, *, upsample_folding: str = "exact",
               probe: bool = True, quality: str = "fast", group: Any = None,
               gather: bool = True, compile: bool = False) -> torch.nn.Module:
    """Let Convoy run the convolutions and norms of `model`, in place; returns the model.

    Calls run through the model's own forward(). Its tensors lie in channels-last memory from the
    first convolution on; norm + activation, convolution + bias + activation + residual, padding +
    convolution, nearest-2× upsampling + convolution and frames from a causal cache become one call
    each, whatever the modules are called. A batch norm in evaluation mode goes into the weight of
    the convolution before it: a second copy of that weight. Weights stay where they are:
    state_dict() is unchanged, and changes of a weight are seen.

    upsample_folding: "exact", or "fast" (convoy.torch.conv2d). probe: on a GPU, measure each shape
    once against PyTorch, at its first call, and leave to PyTorch what is quicker there; and a whole
    call that is short or that the host binds: it is made both ways at its first time. (One that
    changes what the model holds is made once, and tried on a twin that shares the weights.)
    (`convoy.graphed` takes the host's time away; under it calls are accelerated.)

    quality: "fast" rounds once where several steps became one call, and so errs less than the model
    did; "exact" rounds 16-bit numbers wherever the model's own steps do: after convolution, bias,
    activation and sum, with norms apart from their activations and batch norms from their
    convolutions. Both give the same bits in each call; but where the first call finds that an
    output is wanted beside what it was fused into, the ones after it no longer fuse it.

    group: a process group of torch.distributed over whose ranks the height of each picture is cut.
    All ranks make the same calls with the same inputs; each gets the whole output, or with
    gather=False its own rows. Pictures with too few rows are computed by every rank. Raises
    Unsupported, in the call, for a function that may mix rows and is no attention.

    compile: let calls that the host binds be made under PyTorch's compiler with
    `convoy.dynamo_backend`, where a trial at the first call of a shape finds that quicker, with the
    same bits: 1 to 15 s more, of tracing; nothing is compiled to machine code. Calls that the
    compiler does not take in one piece, and those that change what the model, or a tensor in a list
    that it is given, holds, stay accelerated. Needs probe; not together with a group.

    Functions under torch.compile that the model calls run uncompiled.
    Calls that want gradients, run under autocast, are traced (torch.compile, torch.export,
    torch.jit.trace) or watched by a TorchDispatchMode are PyTorch's own; torch.jit.script takes no
    accelerated model (its hooks), but a restored one.
    `convoy.report(model)` tells what was taken over, and why the rest was not; `convoy.restore`
    undoes it. A model that writes to its input in place writes to a copy. Raises
    InvalidArgument where `model` is no module, has no convolution, or is or holds a compiled one.
    """
    check_options(upsample_folding, quality)
    if compile and (group is not None or not probe):
        given = "a group" if group is not None else "probe=False"
        raise InvalidArgument(f"compile=True is not legal with {given}; nearest: torch.compile("
                              "model, backend=convoy.dynamo_backend)")
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgument(f"model is a {type(model).__name__}; legal: a torch.nn.Module")
    if isinstance(model, torch.jit.ScriptModule):
        raise InvalidArgument(
            f"{type(model).__name__} is compiled by TorchScript, which does not let what it calls "
            "be replaced; legal: a model that is not; nearest: the module that was compiled")
    if not _has_convolutions(model):
        raise InvalidArgument(
            f"{type(model).__name__} has no convolution (torch.nn.Conv1d, Conv2d, Conv3d, ...); "
            "legal: a model with at least one"
        )
    for name, part in model.named_modules():
        if hasattr(part, "_orig_mod") or not isinstance(
                part._compiled_call_impl, (type(None), _compiled_call.CompiledCall)):
            raise InvalidArgument(
                f"{name or 'model'} is compiled by torch.compile, which does not let what it calls "
                "be replaced; legal: a model that is not; nearest: the module that was compiled")
    restore(model)
    shards = None
    if group is not None:
        from ._shard import Shards

        shards = Shards(model, group, gather)
        shards = shards if shards.count > 1 else None
    session = Session(model, upsample_folding, probe, quality, shards, compile=compile)
    _helpers.replace(model)
    handles = _Handles()
    for module in dict.fromkeys(_entries_of(model)):
        handles.append(module.register_forward_pre_hook(
            functools.partial(_entries.before, session), with_kwargs=True))
        handles.append(module.register_forward_hook(
            functools.partial(_entries.after, session), with_kwargs=True, always_call=True))
    model.__dict__[MARK] = session, handles
    return model


def restore(model: torch.nn.Module) -> torch.nn.Module:
    """Undo `accelerate`; returns the model. With the last accelerated model goes what was replaced
    in PyTorch. A model that was not accelerated stays as it is."""
    session, handles = model.__dict__.pop(MARK, (None, ()))
    for handle in handles:
        handle.remove()
    _helpers.put_back(model)
    _compiled_call.remove(model)
    tidy(model)
    if session is not None:
        session.forget_derived()
        unwatch(session)
    return model


def refresh(model: torch.nn.Module) -> torch.nn.Module:
    """Let the model's weights be read anew, after writes that are not seen: those through a
    `weight.data` that was asked for before a call, those to the memory itself (another framework's
    view of it, another process's, its storage), those to a buffer's .data, those of
    torch.distributed (broadcast, reductions, scatter) to a weight itself, those of a CUDA graph
    that is replayed, and those to weights that were made under torch.inference_mode(). All others
    are seen without it. Returns the model."""
    _calls.forget(model.parameters())
    if MARK in model.__dict__:
        model.__dict__[MARK][0].forget_derived()
    return model


def report(model: torch.nn.Module) -> Report:
    """What `accelerate` took over of `model` in the calls so far. Raises InvalidArgument where it
    was not accelerated."""
    if MARK not in model.__dict__:
        raise InvalidArgument("the model is not accelerated; legal: convoy.accelerate(model) first")
    return model.__dict__[MARK][0].report()
