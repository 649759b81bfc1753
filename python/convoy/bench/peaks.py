# SPDX-License-Identifier: Apache-2.0
"""Peaks of memory and bytes that copies write, of the autoencoders of diffusers at full size,
counted on meta tensors: no GPU, no weights, seconds. Eager's peaks are those of PyTorch's allocator
on an H200 but for cuDNN's workspaces; of Convoy's kernels the outputs count, not their workspaces.

    python -m convoy.bench peaks [CLASS...] [--parts decode,encode]
"""

import argparse
import contextlib
import copy
import dataclasses
import unittest.mock
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import convoy

from .. import _entries, _layout, _session
from . import vae_models


@dataclasses.dataclass
class Count:
    """Bytes: peak, of all storages that live at once; copied, written by copies."""

    peak: int = 0
    copied: int = 0


class _Tracker(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count, self._live, self._known = Count(), 0, set()

    def _gone(self, key, size):
        self._known.discard(key)
        self._live -= size

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if not isinstance(tensor, torch.Tensor):
                continue
            if func.overloadpacket.__name__ in ("copy_", "clone", "cat", "_to_copy"):
                self.count.copied += tensor.nbytes
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key not in self._known:
                self._known.add(key)
                self._live += size
                self.count.peak = max(self.count.peak, self._live)
                weakref.finalize(storage, self._gone, key, size)
        return out


def _conv(self, node, x, cache, residual):
    x = self.convert(x)
    for other in (cache, residual):
        if other is not None:
            self.convert(other)
    return _layout.empty_inner(node.shape, x)


def _norm(self, node, x):
    return torch.empty_like(self.convert(x))


def _attention(query, key, value, *arguments, **keywords):
    return torch.empty((*query.shape[:-1], value.shape[-1]), dtype=query.dtype,
                       device=query.device)


@contextlib.contextmanager
def _on_meta():
    """Kernels that only allocate what they return."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (_session.Session, "conv", _conv), (_session.Session, "norm", _norm),
            (_entries, "refusal", lambda module, given: ""),
            (_layout, "_wide_devices", {"cuda", "meta"}),
            (torch.nn.functional, "scaled_dot_product_attention", _attention),
        ):
            stack.enter_context(unittest.mock.patch.object(owner, name, value))
        yield


def counted(vae, part):
    """(PyTorch's Count, the accelerated model's)."""
    import diffusers

    with torch.device("meta"):
        model = getattr(diffusers, vae.class_name)(**vae.full)
    model = model.to(device="meta", dtype=torch.bfloat16).eval()
    shape = vae.latent
    if part == "encode":
        *frames, height, width = map(int, vae.size.split("x"))
        shape = (shape[0], 3, *((frames or [1]) if len(shape) == 5 else ()), height, width)
    given, found = torch.empty(shape, device="meta", dtype=torch.bfloat16), []
    with torch.no_grad(), _on_meta():
        for accelerated in (False, True):
            run = copy.deepcopy(model)
            if accelerated:
                convoy.accelerate(run)
            with _Tracker() as tracker:
                out = (vae_models.encoded(run, given) if part == "encode"
                       else vae_models.decoded(run, given, vae.keywords))
                found.append(tracker.count)
                del out
    return tuple(found)


def main(words):
    parser = argparse.ArgumentParser(prog="python -m convoy.bench peaks", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("classes", nargs="*", metavar="CLASS",
                        help="of " + ", ".join(vae_models.BY_NAME) + "; all, if none is given")
    parser.add_argument("--parts", default="decode,encode", help="of decode, encode")
    options = parser.parse_args(words)
    for name in options.classes:
        if name not in vae_models.BY_NAME:
            parser.error(f"CLASS: no {name!r}; legal: {', '.join(vae_models.BY_NAME)}")
    if set(options.parts.split(",")) - {"decode", "encode"}:
        parser.error(f"--parts: no {options.parts!r}; legal: of decode, encode")
    print(f"{'name':10s} {'part':7s} {'GB eager':>9s} {'convoy':>7s} {'ratio':>6s} "
          f"{'copied':>7s} {'convoy':>7s}")
    for part in options.parts.split(","):
        for name in options.classes or vae_models.BY_NAME:
            plain, ours = counted(vae_models.BY_NAME[name], part)
            print(f"{name:10s} {part:7s} {plain.peak / 1e9:9.2f} {ours.peak / 1e9:7.2f} "
                  f"{ours.peak / plain.peak:6.2f} {plain.copied / 1e9:7.2f} "
                  f"{ours.copied / 1e9:7.2f}", flush=True)
    return 0
