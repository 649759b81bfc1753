# SPDX-License-Identifier: Apache-2.0
"""convoy.accelerate: what a model may do to its tensors, by name; what it hands out, and who else
sees its tensors: TorchScript, traces, counters."""

import collections
import copy
import dataclasses
import functools
import operator
import types
import unittest
from unittest import mock

import convoy
import numpy
import torch
import torch.nn.functional as F
from support import use_test_device
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import flex_attention
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.flop_counter import FlopCounterMode

use_test_device()


class Doubled(torch.autograd.Function):
    """Hands memory to code of its own, which knows nothing of strides."""

    @staticmethod
    def forward(ctx, x):
        assert x.is_contiguous()
        return torch.frombuffer((x * 2).numpy().tobytes(), dtype=x.dtype).reshape(x.shape)


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)


@torch.jit.script
def scripted(x):
    return x * torch.sigmoid(x) + x.mean()


@torch.jit.script
def scripted_writer(values: list[torch.Tensor]):
    values[0].mul_(2).add_(1)
    return values[0]


class Doubler(nn.Module):
    def forward(self, x):
        return x * 2


scripted_module = torch.jit.script(Doubler())


def _written_by_script(model, x):
    y = model.a(x)
    flat, kept = y.view(2, 8, 63), y + 1
    z = scripted_writer([y])
    return model.b(z) + y, flat, kept


Pair = collections.namedtuple("Pair", "first second")


def written(write):
    """A program that writes to a tensor it has made, and reads it by other names too."""

    def program(model, x):
        y = model.a(x)
        other = y
        made = write(y)
        return model.b(y), y + other, *(() if made is None else (made + 0.0,))

    return program


def _in_place(y, name, value):
    return getattr(operator, name)(y, value)


def _moved(y):
    h = y.permute(0, 2, 3, 1).contiguous()
    h += 5
    return h.reshape(-1, 8)


def _copied_by_reshape(y):
    h = y.permute(0, 2, 3, 1).reshape(-1, 8)
    h += 5
    return h


def _part_of_a_clone(y):
    made = y.clone()
    made[:, :3] *= 2
    return made


def _clone_of_a_split(y):
    parts, made = y.reshape(2, 2, 4, 7, 9), y.clone()
    y.mul_(2)
    return made - parts.flatten(1, 2)


def _there_and_back(y):
    made = y.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    y.mul_(2)
    return made


def _there_and_back_written(y):
    made = y.permute(0, 2, 3, 1).contiguous()
    parts = made.unbind(3)
    made.permute(0, 3, 1, 2).mul_(2)
    return made.mean(3) + parts[0]


def _norm_seen_twice(y):
    norm = F.group_norm(y, 2)
    seen = norm.permute(0, 2, 3, 1)
    norm.mul_(2)
    return seen


def _assigned(y):
    y.data = y.data * 2


def _flat_and_source(y):
    flat, rows = y.flatten(1), y.reshape(-1, 9)
    y[:, 3] = 5
    rows[7].sub_(2)
    return flat


def _norm_and_flat(y):
    norm = F.group_norm(y, 2)
    norm.flatten(1)[:, ::3].mul_(2)
    return norm


def _seen_by_as_strided(y):
    seen = y.as_strided((5,), (7,))
    y.mul_(2)
    seen[1:3] += 1
    return seen


def _windows(model, x):
    """As numpy's users write it."""
    y = model.a(x)
    n, c, h, w = y.stride()
    return y.as_strided((2, 8, 5, 7, 3, 3), (n, c, h, w, h, w)).amax((-2, -1))


def _order_in_memory(model, x):
    y = model.a(x)
    assert y.is_contiguous() and not y.mT.is_contiguous() and y[:, 1:].storage_offset() == 63
    return y, torch.tensor([*y.stride(), y.stride(1), *y.movedim(1, -1).stride()])


def _as_complex(model, x):
    y = model.a(x)[..., :8].reshape(2, 8, 7, 4, 2)
    return torch.view_as_real(torch.view_as_complex(y.contiguous()) * 1j)


@torch.library.custom_op("convoy_test::silu", mutates_args=())
def _operator(x: torch.Tensor, factor: float) -> torch.Tensor:
    """Of another library's, with a name of PyTorch's; it takes memory for dense."""
    assert x.is_contiguous() or x.mT.is_contiguous()
    made = torch.frombuffer((x * factor).cpu().numpy().tobytes(), dtype=x.dtype)
    return made.reshape(x.shape).to(x.device)


@torch.library.custom_op("convoy_test::double", mutates_args=("x",))
def _writing_operator(x: torch.Tensor) -> None:
    assert x.is_contiguous()
    x.mul_(2)


def _operators(model, x):
    y = model.a(x)
    flat, waiting = y.view(-1), F.interpolate(y, scale_factor=2)
    _writing_operator(y)
    return (model.b(torch.ops.convoy_test.silu(y, 3.0)), _operator(y, 2.0), flat, model.b(waiting),
            _operator(y.mT, 2.0))


def _other_weights(model, x):
    """One convolution, with one weight after the other."""
    kept, made = copy.deepcopy(model.a.state_dict()), []
    for factor in (2, 3):
        model.a.weight.mul_(factor)
        model.a.bias.data = model.a.bias * factor
        made.append(model.a(x))
    model.a.load_state_dict(kept)
    made.append(model.a(x))
    model.a.weight.data.neg_()
    made.append(model.a(x) + F.group_norm(x, 2, model.a.bias))
    model.a.bias[0] = 3
    model.a.load_state_dict(kept)
    return made


def _weights_in_lists(model, x):
    """One convolution, whose weights are written to as optimizers do: many tensors at once."""
    kept, made = copy.deepcopy(model.a.state_dict()), []
    weights = [model.a.weight, model.a.bias]
    before = [w.clone() for w in weights]
    made.append(model.a(x))
    torch._foreach_mul_(weights, 2.0)
    made.append(model.a(x) + F.group_norm(x, 2, model.a.bias))
    torch._foreach_copy_([w.detach() for w in weights], before)
    made.append(model.a(x))
    for w in weights:
        w.grad = torch.ones_like(w)
    torch.optim.AdamW(weights, 0.1, foreach=True).step()
    made.append(model.a(x))
    torch.optim.SGD(weights, 0.1, fused=True).step()
    made.append(model.a(x))
    for w in weights:
        w.grad = None
    model.a.load_state_dict(kept)
    return made


def _wrapping_tensors_in_lists(model, x):
    y, made = model.a(x), TwoTensor(torch.ones(3), torch.zeros(3))
    torch._foreach_add_([made], 1.0)
    return y, made.a, made.b


def _other_biases(model, x):
    """Each a tensor of its own, where the one before it was."""
    numbers, made = numpy.zeros(8, numpy.float32), []
    for i in range(3):
        numbers[:] = i
        bias = torch.from_numpy(numbers).to(x.device)
        made.append(F.conv_transpose2d(x, model.a.weight, bias))
    return made


def _entries_of_itself(model, x):
    y = model.a(x)[:1]
    y.narrow(2, 0, 1)[None, ..., :1][0:1] = y[:, :, :1, :1]
    return y


def _memory_used_again(model, x):
    """Filters and factors in memory that the next ones go into."""
    weight, factor, made = torch.empty(8, 8, 1, 1), torch.ones(8), []
    for i in range(1, 3):
        weight.copy_(model.c[:, :, i]), factor.fill_(i)
        made.append(F.conv2d(x, weight, factor))
        made.append(F.normalize(x, dim=1) * factor.view(8, 1, 1))
        made.append(F.group_norm(x, 2, factor, factor))
    return made


def _on_a_buffer(model, x):
    total = torch.ones(x.shape)
    y = model.a(x) + total
    total += 3
    return model.b(y), total


def _streamed(model, x):
    """A rolling cache of the model's own, written to before the convolution reads it."""
    cache, out = torch.zeros(2, 8, 1, 9), []
    for row in x.split(1, 2):
        taken = torch.cat([cache, model.a(row)], 2)
        cache.copy_(taken[:, :, -1:])
        out.append(model.b(taken))
    return torch.cat(out, 2)


def _streamed_frames(model, x):
    cache, out = torch.zeros(1, 8, 2, 7, 9), []
    for frame in x.reshape(1, 8, 2, 7, 9).split(1, 2):
        taken = torch.cat([cache, frame * 2], 2)
        cache.copy_(taken[:, :, -2:])
        out.append(F.conv3d(taken, model.c))
    return torch.cat(out, 2)


def _noised(model, x):
    y = model.a(x)
    noise = torch.randn_like(y) + torch.empty_like(y).normal_() + F.dropout(y, 0.5, True)
    noise = noise + torch.rand_like(y) + torch.bernoulli(y.sigmoid())
    return noise + y.new_empty(y.shape).uniform_()


def _autocast(model, x):
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return model.b(F.silu(model.a(x)))


def _gradient(model, x):
    y = model.a(x)
    with torch.enable_grad():
        y = y.detach().requires_grad_()
        return torch.autograd.grad(model.b(y).square().sum(), y)[0]


def _of_weights(model, x):
    y = model.a(x)
    weights = torch.stack([model.a.weight, model.b.weight])
    return torch.vmap(lambda weight: F.conv2d(y, weight, padding=1))(weights)


def _slope(model, x):
    y = model.a(x)
    return torch.func.jvp(lambda t: model.b(F.silu(t)), (y,), (torch.ones_like(x),))[1]


def _compiled(model, x):
    """With torch.compile around a function, a method and what is made in the call."""
    gate = torch.compile(lambda t, u: F.silu(t) * u, backend="aot_eager")
    y = _gated(model.a(x), model.b(x))
    return _gated(y, x=y), gate(y, model.a(y)), _gated(torch.ones(2), torch.ones(2))


@torch.compile(backend="aot_eager", fullgraph=True)
def _gated(y, x):
    return torch.tanh(y) * torch.sigmoid(x) + 1


def _flex_attention(model, x):
    query = model.a(x).flatten(2).mT[:, None]
    attend = torch.compile(flex_attention, backend="aot_eager", fullgraph=True)
    made = attend(query, query, model.b(x).flatten(2).mT[:, None])
    return model.a(made[:, 0].mT.reshape(x.shape))


def _parameter(model, x):
    return torch.nn.Parameter(model.a(x), requires_grad=False) * 2


def _tagged(model, x):
    y = model.a(x)
    y.scale, y.requires_grad = 3, False
    return y * y.scale


# What a model may do to its tensors, by name. Each is a function of the model and its input.
PROGRAMS = {
    **{f"{name} {value}": written(functools.partial(_in_place, name=name, value=value))
       for name, value in (("iadd", 2), ("isub", 2), ("imul", 2), ("itruediv", 2), ("ipow", 2),
                           ("imod", 2), ("ifloordiv", 0.5))},
    "narrow": written(lambda y: y.narrow(1, 0, 3).mul_(2)),
    "select": written(lambda y: y.select(1, 0).zero_()),
    "unbind": written(lambda y: y.unbind(1)[0].add_(5)),
    "diagonal": written(lambda y: y.diagonal(dim1=2, dim2=3).fill_(3)),
    "data": written(lambda y: y.data.mul_(2)),
    "data, assigned": written(_assigned),
    "view_as": written(lambda y: y.view_as(y).mul_(2)),
    "mT": written(lambda y: y.mT.mul_(2)),
    "tensor_split": written(lambda y: y.tensor_split(2, 1)[0].mul_(2)),
    "out": written(lambda y: torch.mul(y, 2, out=y)),
    "_foreach": written(lambda y: torch._foreach_mul_([y], 2.0)[0]),
    "transpose_": lambda model, x: model.a(x).transpose_(2, 3) + 0,
    "view(-1)": written(lambda y: y.view(-1).__setitem__(slice(None, None, 7), 3)),
    "contiguous of permute": written(_moved),
    "reshape of permute": written(_copied_by_reshape),
    "contiguous of slice": written(lambda y: y[:, :3].contiguous().mul_(3)),
    "contiguous of chunk": written(lambda y: y.chunk(2, 1)[0].contiguous().mul_(3)),
    "part of a clone": written(_part_of_a_clone),
    "clone of what was split": written(_clone_of_a_split),
    "there and back": written(_there_and_back),
    "there and back, written": written(_there_and_back_written),
    "cat of one": written(lambda y: torch.cat([y])[:, :3].mul_(2)),
    "contiguous of expand": written(lambda y: y[:, :1].expand(y.shape).contiguous().mul_(2)),
    "contiguous of mT": written(lambda y: y.mT.contiguous().mul_(2)),
    "a norm in other axes": written(_norm_seen_twice),
    "times 1": written(lambda y: (y * 1).mul_(3)),
    "plus 0": written(lambda y: (y + 0).mul_(3)),
    "pad by 0": written(lambda y: F.pad(y, (0, 0, 0, 0)).mul_(3)),
    "interpolate by 1": written(lambda y: F.interpolate(y, scale_factor=1).mul_(3)),
    "mark_dirty": written(Doubling.apply),
    "a buffer": _on_a_buffer,
    "a rolling cache": _streamed,
    "a rolling cache of frames": _streamed_frames,
    "as_strided": lambda model, x: model.a(x).as_strided((2, 3), (1, 2)),
    "view(dtype)": lambda model, x: model.a(x).view(torch.int32),
    "flattened, and its source written to": written(_flat_and_source),
    "a norm, flattened and written to": written(_norm_and_flat),
    "contiguous of tensor_split": written(lambda y: y.tensor_split(2, 1)[0].contiguous().mul_(3)),
    "ravel": written(lambda y: y.ravel()[::7].mul_(2)),
    "reshape_as": written(lambda y: y.reshape_as(torch.empty(16, 63)).mul_(2)),
    "view_as of another shape": written(lambda y: y.view_as(torch.empty(16, 63)).mul_(2)),
    "contiguous in another order": written(
        lambda y: y.contiguous(memory_format=torch.channels_last).mul_(2)),
    "to another order": written(lambda y: y.to(memory_format=torch.channels_last).mul_(2)),
    "windows": _windows,
    "as_strided, written to": written(lambda y: y.as_strided((2, 5), (504, 7)).fill_(3)),
    "as_strided of a part, written to": written(
        lambda y: y[:, 2:].as_strided((2, 3), (504, 9), 70).mul_(3)),
    "what as_strided is of, written to": written(_seen_by_as_strided),
    "order in memory": _order_in_memory,
    "complex numbers": _as_complex,
    "a number": lambda model, x: (model.a(x).mean().flatten(),
                                  F.normalize(model.a(x).mean(), dim=0)),
    "powers, each another": lambda model, x: model.a(x).abs() ** torch.arange(9.0),
    "operators of other libraries": _operators,
    "other weights": _other_weights,
    "weights in lists": _weights_in_lists,
    "tensors that wrap others, in lists": _wrapping_tensors_in_lists,
    "other biases": _other_biases,
    "entries of itself": _entries_of_itself,
    "cat of nothing": lambda model, x: torch.cat([model.a(x).flatten()[:0]] * 2) + 1,
    "memory that is used again": _memory_used_again,
    "numpy's numbers": lambda model, x: numpy.float32(2) * model.a(x) / numpy.int64(3),
    "powers and remainders": lambda model, x: +(5 % (2 ** model.a(x))),
    "torch.Tensor": lambda model, x: torch.Tensor(model.a(x)),
    "Parameter": _parameter,
    "attributes": _tagged,
    "a function in TorchScript": lambda model, x: model.b(scripted(model.a(x))),
    "a module in TorchScript": lambda model, x: model.b(scripted_module(model.a(x))),
    "TorchScript that writes": _written_by_script,
    "a function of its own": lambda model, x: model.b(Doubled.apply(model.a(x))),
    "vmap": lambda model, x: torch.vmap(lambda t: t * 2)(model.a(x)),
    "vmap of weights": _of_weights,
    "jvp": _slope,
    "gradients within": _gradient,
    "torch.compile within": _compiled,
    "flex_attention": _flex_attention,
    "autocast within": _autocast,
    "random numbers": _noised,
    "results in results": lambda model, x: {
        "a": Pair(model.a(x), [{"b": model.b(x)}]), "c": {"d": model.a(x)}, "e": model.a(x).max(1)},
}


@dataclasses.dataclass(frozen=True)
class Frozen:
    first: torch.Tensor
    second: torch.Tensor


@dataclasses.dataclass(slots=True)
class Slotted:
    first: torch.Tensor
    rest: list


class Holder:
    __slots__ = ("tensor",)

    def __init__(self, tensor):
        self.tensor = tensor


class Program(nn.Module):
    def __init__(self, run):
        super().__init__()
        self.a, self.b = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.c, self.run = nn.Parameter(torch.randn(8, 8, 3, 1, 1)), run

    def forward(self, x):
        return self.run(self, x)


def leaves(value):
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


class Programs(unittest.TestCase):
    def test_a_model_may_do_to_its_tensors_what_it_likes(self):
        x = torch.randn(2, 8, 7, 9)
        for name, run in PROGRAMS.items():
            if torch.get_default_device().type != "cpu" and name == "a function of its own":
                continue  # It is written for memory of the CPU.
            with self.subTest(name):
                self.check(run, x)

    def test_results_are_what_they_were(self):
        def results(model, x):
            y, holder = model.a(x), types.SimpleNamespace(numbers=numpy, seen=[])
            holder.seen.append(holder)  # Of which nothing is to be written, however often.
            return y, y, Frozen(y, y + 1), Slotted(y * 2, [y]), holder

        model = convoy.accelerate(Program(results), probe=False)
        with torch.no_grad():
            first, second, frozen, slotted, _ = model(torch.randn(2, 8, 7, 9))
        self.assertIs(first, second)
        self.assertIs(first, frozen.first)
        self.assertIs(first, slotted.rest[0])
        for tensor in (first, frozen.second, slotted.first):
            self.assertIs(type(tensor), torch.Tensor)

    def test_results_of_any_kind(self):
        class Listed(list):
            pass

        def results(model, x):
            y = model.a(x)
            return (collections.deque([y, y + 1]), {y + 2}, frozenset((y + 3,)), Listed((y + 4,)),
                    Holder(y + 5), collections.defaultdict(list, {"a": [y + 6, {y + 7}]}))

        def tensors(found):
            deque, some, frozen, listed, holder, named = found
            return [*deque, *some, *frozen, *listed, holder.tensor, named["a"][0], *named["a"][1]]

        x = torch.randn(2, 8, 7, 9)
        model = Program(results).eval()
        with torch.no_grad():
            expected = model(x)
            got = convoy.accelerate(model, probe=False)(x)
        self.assertEqual([*map(type, got)], [*map(type, expected)])
        for ours, theirs in zip(tensors(got), tensors(expected), strict=True):
            self.assertIs(type(ours), torch.Tensor)
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)

    def test_a_model_may_be_a_generator(self):
        def steps(model, x):
            heard = []
            try:
                while len(heard) < 3:
                    x = model.b(F.silu(model.a(x)))
                    try:
                        heard.append((yield x, {"half": x / 2}))
                    except ValueError:
                        heard.append("error")
                return x * 2, heard
            finally:
                model.ended += 1

        def listened(model, x):
            generator, made = model(x), []
            made += leaves(next(generator))
            made[0].mul_(3)  # It is the caller's.
            made += leaves(generator.send("a"))
            made += leaves(generator.throw(ValueError))
            with self.assertRaises(StopIteration) as end:
                generator.send("b")
            self.assertEqual(end.exception.value[1], ["a", "error", "b"])
            left = model(x)
            next(left)
            left.close()
            return [*made, end.exception.value[0]]

        x, model = torch.randn(2, 8, 7, 9), Program(steps).eval()
        model.ended = 0
        with torch.no_grad():
            expected = listened(model, x)
            convoy.accelerate(model, probe=False)
            for _ in range(2):
                for got, want in zip(listened(model, x), expected, strict=True):
                    self.assertIs(type(got), torch.Tensor)
                    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        self.assertEqual(model.ended, 6)
        self.assertGreater(len(convoy.report(model).taken), 1)

    def test_compiled_and_native_code_meet_no_stand_in(self):
        """TorchScript's kernels on a GPU take addresses without asking, as native extensions do."""
        def run(model, x):
            y = model.a(x)
            with torch._C.DisableTorchFunctionSubclass(), self.assertRaisesRegex(
                    RuntimeError, "data pointer"):
                torch.Tensor.data_ptr(y)
            return scripted_module(scripted_writer([scripted(y)]))

        model = convoy.accelerate(Program(run), probe=False)
        calls = torch._C.ScriptFunction.__call__, torch._C.ScriptMethod.__call__
        with torch.no_grad(), mock.patch("convoy._deferred.dispatched") as dispatched:
            model(torch.randn(2, 8, 7, 9))
        dispatched.assert_not_called()
        self.assertEqual(calls, (torch._C.ScriptFunction.__call__, torch._C.ScriptMethod.__call__))

    def test_who_traces_or_counts_sees_pytorch(self):
        model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()).eval()
        x = torch.randn(2, 3, 7, 9)
        with torch.no_grad():
            expected = convoy.accelerate(model, probe=False)(x)
            traced = torch.jit.trace(model, (x,))
            graph = make_fx(model)(x)
            for found in (traced(x), graph(x)):
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            self.assertIn("batch_norm", str(graph.code))
            with FlopCounterMode(display=False) as counter:
                model(x)
            self.assertEqual(counter.get_total_flops(), 2 * 2 * 3 * 8 * 9 * 7 * 9)
            self.assertTrue(copy.deepcopy(model).to("meta")(x.to("meta")).is_meta)
        report = convoy.report(model)
        self.assertIn("torch.jit.trace or a TorchDispatchMode", str(report))

    def check(self, run, x):
        torch.manual_seed(0)
        model, results = Program(run).eval(), []
        for accelerated in (False, True, True):
            if accelerated:
                convoy.accelerate(model, probe=False)
            torch.manual_seed(1)
            with torch.no_grad():
                results.append(leaves(model(x.clone())))
        for got in results[1:]:
            self.assertEqual(len(got), len(results[0]))
            for ours, theirs in zip(got, results[0]):
                self.assertIs(type(ours), type(theirs))
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    unittest.main()
