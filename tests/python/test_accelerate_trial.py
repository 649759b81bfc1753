# SPDX-License-Identifier: Apache-2.0
"""convoy.accelerate: what is slower than PyTorch is found out, and left to it."""

import contextlib
import copy
import gc
import pickle
import unittest
import unittest.mock
import weakref

import convoy
import torch
import torch.nn.functional as F
from convoy import _compiled, _deferred, _entries, _trial
from support import Accelerated, Block, clock, measured


class Trial(Accelerated):
    def test_what_is_slower_is_left(self):
        block = Block().eval()
        for ways, kernels in (({"fused": 5.0, "unfused": 7.0, "pytorch": 2.0}, {"pytorch"}),
                              ({"pytorch": 2.0}, {"pytorch"}),  # Convoy's could not run.
                              ({"fused": 2.0, "unfused": 7.0, "pytorch": 5.0}, None),
                              ({"fused": 2.0}, None)):  # PyTorch's could not.
            def spent(given, device, ways=ways):
                return {name: ways[name] for name in given if name in ways}

            with self.subTest(ways), measured(spent):
                report = self.same(copy.deepcopy(block), self.x)
                parts = report.left if kernels else report.taken
                self.assertEqual(sorted(part.name for part in parts), ["conv1", "conv2", "norm"])
                self.assertEqual(len(report.left) + len(report.taken), 3)
                if kernels:
                    self.assertIn("left to PyTorch: conv1 conv2d + padding + relu [2, 16, 8, 10]: "
                                  "PyTorch is quicker here: 2 µs", str(report))

    @unittest.skipUnless(torch.cuda.is_available(), "no CUDA device")
    def test_each_shape_is_measured_on_a_gpu(self):
        model, x = Block().eval().cuda().bfloat16(), self.x.cuda().bfloat16()
        with torch.no_grad():
            expected = model(x)
            convoy.accelerate(model)
            torch.testing.assert_close(model(x), expected, rtol=5e-2, atol=5e-2)
            report = convoy.report(model)
            for part in report.taken + report.left:
                # A norm and its convolution in one call, beside both apart: each of these the
                # quicker one of Convoy's and PyTorch's.
                self.assertTrue(part.microseconds.keys() & {"pytorch", "apart"}, part)
                self.assertLess(0, min(part.microseconds.values()))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = model(x)
            x.normal_()
            graph.replay()
            with _trial.accelerated():
                torch.testing.assert_close(y, model(x), rtol=0, atol=0)

    def trial(self, model, x, plain, accelerated, host=1.0):
        """(outputs of two calls of the accelerated model, how often its forward() was called, its
        report), where calls take this many ms, and the host this share of them."""
        calls, forward = [], model.forward

        def counted(*args):
            calls.append(_trial.settled())
            return forward(*args)

        model.forward = counted
        convoy.accelerate(model)
        with measured(milliseconds=clock(plain, accelerated, host)), torch.no_grad():
            outputs = model(x), model(x)
        report = convoy.report(model)
        del model.forward
        return outputs, calls, report

    def test_calls_that_the_host_binds(self):
        block = Block().eval()
        with torch.no_grad():
            expected = block(self.x)
        tried = [None, "accelerated", "plain"] + ["plain"] * 3 + ["accelerated"] * 3
        for plain, accelerated, host, calls, is_plain in (
            (4.0, 6.0, 1.0, [*tried, "plain"], True),
            (4.0, 3.9, 1.0, [*tried, "plain"], True),  # Within what clocks tell.
            (4.0, 3.0, 1.0, [*tried, None], False),
            (4.0, 6.0, 0.6, [*tried, "plain"], True),  # The GPU does, and not for long.
            (400.0, 600.0, 1.0, [*tried, "plain"], True),
            (400.0, 600.0, 0.6, [None, "accelerated", None], False),  # The GPU does.
        ):
            with self.subTest(plain=plain, accelerated=accelerated, host=host):
                model = copy.deepcopy(block)
                outputs, made, report = self.trial(model, self.x, plain, accelerated, host)
                self.assertEqual(made, calls)
                self.assertTrue(torch.equal(*outputs))
                torch.testing.assert_close(outputs[0], expected, rtol=1e-4, atol=1e-5)
                self.assertEqual(torch.equal(outputs[0], expected), is_plain)
                if is_plain:
                    (reason, count), = report.left_calls.items()
                    self.assertIn(f"{accelerated:.2f} ms accelerated, {plain:.2f} ms", reason)
                    self.assertEqual("the host binds" in reason, host == 1.0)
                    self.assertEqual(count, 1)
                    with _trial.accelerated(), torch.no_grad():
                        self.assertFalse(torch.equal(model(self.x), expected))
                    self.assertIsNone(_trial.settled())
                else:
                    self.assertFalse(report.left_calls)

    def test_a_result_is_what_was_written_to(self):
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = torch.nn.Conv2d(16, 16, 1)

            def forward(self, x):
                y = F.silu(x, inplace=True)
                return self.conv(y), y

        model = Net().eval()
        with torch.no_grad():
            expected = model(self.x.clone())
            for plain, accelerated in ((4.0, 6.0), (6.0, 4.0)):
                outputs, _, _ = self.trial(copy.deepcopy(model), self.x.clone(), plain, accelerated)
                torch.testing.assert_close(outputs[0], expected, rtol=1e-5, atol=1e-5)

    def test_inputs_that_are_written_to_through_a_view(self):
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = torch.nn.Conv2d(1, 16, 1)

            def forward(self, x):
                torch.as_strided(x, x.shape, x.stride()).mul_(0.5)
                return self.conv(x)

        model, x, plain_x = Net().eval(), *self.x[:, :1].clone().repeat(2, 1, 1, 1, 1)
        with torch.no_grad():
            expected = model(plain_x), model(plain_x)  # Each call halves it.
            outputs, calls, _ = self.trial(copy.deepcopy(model), x, 4.0, 6.0)
        torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(x, plain_x)
        self.assertEqual(calls, [None, None])

    def test_calls_with_hooks_are_made_once(self):
        """What a hook writes to is nobody's to put back."""
        block, seen = Block().eval(), []
        self.assertEqual(len(self.trial(block, self.x, 4.0, 6.0)[1]), 10)
        for register in (block.norm.register_forward_hook, block.conv2.register_forward_pre_hook):
            seen.clear()
            with register(lambda part, *given: seen.append(part)):
                calls = self.trial(convoy.restore(block), self.x, 4.0, 6.0)[1]
            self.assertEqual((len(calls), len(seen)), (2, 2))
        torch.nn.utils.spectral_norm(block.conv1)  # PyTorch's own hooks are the model's.
        self.assertFalse(_trial.has_hooks(convoy.accelerate(block)))

    def test_calls_of_which_convoy_runs_nothing(self):
        model = convoy.accelerate(copy.deepcopy(Block()).eval())
        with measured(lambda ways, device: {"pytorch": 1.0}), torch.no_grad():
            for _ in range(3):
                model(self.x)
        self.assertEqual(convoy.report(model).left_calls, {"Convoy runs nothing of it": 2})

    def test_calls_that_change_a_model_are_tried_on_a_twin(self):
        class Keeps(Block):
            def __init__(self):
                super().__init__()
                self.count, self.kept = 0, [torch.zeros(2, 16, 8, 10)]
                self.inner = torch.nn.ModuleDict({"same": self.conv1})
                self.register_buffer("mean", torch.zeros(1))

            def forward(self, x):
                self.count += 1
                self.mean += 1
                ways.append(_trial.settled())
                self.kept.append(super().forward(x + self.kept[-1]))
                return self.kept[-1]

        for plain, accelerated, last in ((4.0, 6.0, "plain"), (6.0, 4.0, None)):
            ways, own = [], Keeps().eval()
            with (self.subTest(last), torch.no_grad(),
                  measured(milliseconds=clock(plain, accelerated))):
                expected = [own(self.x) for _ in range(3)]
                own.count, own.kept = 0, own.kept[:1]
                own.mean.zero_()
                ways.clear()
                model = convoy.accelerate(own)
                got = [model(self.x) for _ in range(3)]
                self.assertEqual(ways[1:3], ["accelerated", "plain"])
                self.assertEqual((ways[0], ways[-2:]), (None, [last] * 2))
                self.assertEqual((model.count, len(model.kept), model.mean.item()), (3, 4, 3))
                for ours, theirs in zip(got, expected):
                    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
                left = convoy.report(model).left_calls
                self.assertEqual(list(left.values()), [2] if last else [])

    def test_who_has_no_twin(self):
        block = Block().eval()
        twin = _trial.twin_of(block)
        self.assertIsNot(twin.conv1, block.conv1)
        self.assertIs(twin.conv1.weight, block.conv1.weight)
        looped = [0]
        looped.append(looped)
        for value in (object(), block.forward, lambda: block, looped,
                      torch.empty(1).expand(_trial._MOST_BYTES)):
            holder = copy.deepcopy(block)
            holder.held = value
            with self.subTest(type(value)), contextlib.suppress(RecursionError):
                self.assertIsNone(_trial.twin_of(holder))
        block.forward = block.forward
        self.assertIsNone(_trial.twin_of(block))

    def test_calls_that_change_a_model_are_made_once(self):
        class Keeps(Block):
            def __init__(self, change):
                super().__init__()
                self.count, self.frames, self.change = 0, [None, [None]], change
                self.register_buffer("mean", torch.zeros(1))

            def forward(self, x):
                self.change(self)
                return super().forward(x)

        def counts(model):
            model.count += 1

        for change in (counts, lambda m: m.mean.add_(1), lambda m: m.frames.append(1),
                       lambda m: m.frames[1].append(1),
                       lambda m: m.frames[1].__setitem__(0, torch.ones(1))):
            _, calls, report = self.trial(Keeps(change).eval(), self.x, 4.0, 6.0)
            self.assertEqual(calls, [None, None])
            self.assertFalse(report.left_calls)

        class Caches(Block):
            def forward(self, x, cache=None):
                if cache is not None:
                    cache.append(x)
                return super().forward(x)

        cache, timed = [], unittest.mock.Mock()
        model = convoy.accelerate(Caches().eval())
        with measured(milliseconds=timed), torch.no_grad():
            model(self.x, cache)
        self.assertEqual((len(cache), timed.called), (1, False))

    def test_what_a_left_call_can_meet(self):
        """Stand-ins in a list of the model are tensors where a call that is left can read them, and
        stay as they are where it cannot: no copy is made of them."""
        class Caches(Block):
            def forward(self, x, cache):
                cache[0] = self.conv1(x)[:, :, -2:].clone()
                return super().forward(x)

        class Last(torch.nn.Conv2d):
            held = ()

            def forward(self, x, more=()):
                for items in (self.held, more):
                    x = x + sum(item.view(-1).mean() for item in items)
                return super().forward(x)

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.encoder, self.last, self.cache = Caches(), Last(16, 8, 1), [None]

            def encode(self, x, shows=False):
                x = self.encoder(x, self.cache)
                self.met = type(self.cache[0])
                x = self.last(x, self.cache) if shows else self.last(x)
                return x, type(self.cache[0])

        refusal = _entries.refusal
        for how in ("hidden", "given", "held"):
            plain = Model().eval()
            if how == "held":
                plain.last.held = plain.cache
            model = convoy.accelerate(copy.deepcopy(plain))
            with self.subTest(how), torch.no_grad(), unittest.mock.patch.object(
                    _entries, "refusal", lambda module, given: (
                        "left" if module is model.last else refusal(module, given))):
                for _ in range(2):
                    got, kind = model.encode(self.x, how == "given")
                    self.assertIs(model.met, _deferred.Deferred)
                    self.assertIs(kind, _deferred.Deferred if how == "hidden" else torch.Tensor)
                    torch.testing.assert_close(got, plain.encode(self.x, how == "given")[0],
                                               rtol=1e-4, atol=1e-4)
                self.assertEqual(convoy.report(model).left_calls, {"left": 2})

    def test_a_trial_leaves_no_trace(self):
        class Noisy(Block):
            def forward(self, x):
                if x.shape[0] == 1:
                    raise ValueError("one")
                return super().forward(F.dropout(x.mul_(0.5), 0.5, True))

        model, x = Noisy().eval(), self.x.clone()
        torch.manual_seed(5)
        self.trial(model, x, 4.0, 6.0)
        left = torch.rand(1)
        torch.manual_seed(5)
        for _ in range(2):
            F.dropout(self.x, 0.5, True)
        self.assertEqual(torch.rand(1), left)
        torch.testing.assert_close(x, self.x * 0.5)  # By the second call, which is PyTorch's.
        for one in (x[:1], x[:1]):
            with torch.no_grad(), self.assertRaisesRegex(ValueError, "one"):
                model(one)
            self.assertIsNone(_trial.settled())

    def test_an_interrupted_call_leaves_no_trace(self):
        class Stops(Block):
            stop = False

            def forward(self, x):
                if self.stop:
                    raise KeyboardInterrupt
                return super().forward(x)

        own = torch.tensor
        for is_plain in (True, False):
            with self.subTest(is_plain=is_plain):
                plain, model = Stops().eval(), Stops().eval()
                if is_plain:
                    self.trial(model, self.x, 4.0, 6.0)
                else:
                    convoy.accelerate(model)
                after = convoy.accelerate(copy.deepcopy(plain))
                with measured(), torch.no_grad():
                    model.stop = True
                    with self.assertRaises(KeyboardInterrupt):
                        model(self.x)
                    model.stop = False
                    with unittest.mock.patch.object(
                            _trial, "_milliseconds",
                            lambda run, device: (run(), 1.0, 900.0)):  # The GPU binds it.
                        for _ in range(2):
                            self.assertFalse(torch.equal(after(self.x), plain(self.x)))
                    self.assertFalse(convoy.report(after).left_calls)
                    model(self.x)
                    self.assertIsNone(_trial.settled())
                    self.assertIs(torch.tensor, own)


class Doubts(Block):
    """Of what its compiler cannot tell."""

    def forward(self, x):
        y = super().forward(x)
        return y * 2 if y.sum().item() > 0 else y


class Kinds(Block):
    def forward(self, x, twice=False, name=None):
        y = super().forward(x)
        return {"y": y * 2 if twice else y, "letters": len(name or "")}


class UnderCompiler(Accelerated):
    """accelerate(compile=True). NOTE: it is the compiler that takes these tests their time."""

    def setUp(self):
        super().setUp()
        torch._dynamo.reset()
        self.took = {"plain": 5.0, "accelerated": 4.0, None: 1.0}
        self.host = 1.0

        def timed(run, device):
            took = self.took[_trial.settled()]
            return run(), took * self.host, took

        clocks = measured(milliseconds=timed)
        clocks.__enter__()
        self.addCleanup(clocks.__exit__, None, None, None)
        no_grad = torch.no_grad()
        no_grad.__enter__()
        self.addCleanup(no_grad.__exit__, None, None, None)

    def calls(self, model, *inputs, **named):
        """(The result, how many of two calls were the compiler's.)"""
        before = convoy.report(model).compiled_calls
        results = [model(*inputs, **named) for _ in range(2)]
        torch.testing.assert_close(*results, rtol=0, atol=0)
        return results[0], convoy.report(model).compiled_calls - before

    def test_what_is_quickest(self):
        block = Block().eval()
        expected = convoy.accelerate(copy.deepcopy(block), probe=False)(self.x)
        for took, host, count in ((1.0, 1.0, 1), (3.95, 1.0, 0), (9.0, 1.0, 0), (1.0, 0.3, 1),
                                  (1.0, 0.1, 0)):
            with self.subTest(took=took, host=host):
                self.took[None], self.host = took, host
                model = convoy.accelerate(copy.deepcopy(block), compile=True)
                y, made = self.calls(model, self.x)
                self.assertEqual(made, count)
                self.assertTrue(torch.equal(y, expected))
                report = convoy.report(model)
                self.assertEqual("\nunder PyTorch's compiler: 1 whole calls" in str(report),
                                 made > 0)
                self.assertEqual(list(report.not_compiled), [
                    f"Block: {took:.2f} ms, 4.00 without it"] if took > 2 else [])
        self.took.update({"plain": 500.0, "accelerated": 400.0, None: 300.0})
        self.host = 0.3  # Too long to be made by PyTorch's own operators, and not bound.
        model = convoy.accelerate(copy.deepcopy(block), compile=True)
        del self.took["plain"]
        self.assertEqual(self.calls(model, self.x)[1], 1)

    def test_changes_are_seen(self):
        model = convoy.accelerate(Block().eval(), compile=True)
        self.assertEqual(self.calls(model, self.x)[1], 1)
        for change in (
            lambda m: m.conv1.weight.mul_(2),
            lambda m: setattr(m, "conv1", torch.nn.Conv2d(16, 16, 3, padding=1)),
            lambda m: m.norm.bias.add_(1),
            lambda m: m.conv2.register_forward_hook(lambda part, given, y: y + 1),
        ):
            change(model)
            expected = copy.deepcopy(model)
            convoy.restore(expected)
            torch.testing.assert_close(model(self.x), expected(self.x), rtol=1e-4, atol=1e-5)
            self.assertEqual(self.calls(model, self.x)[1], 2)

    def test_what_the_compiler_does_not_take(self):
        for kind in (Doubts, Block):
            block = kind().eval()
            expected = block(self.x)
            model = convoy.accelerate(block, compile=True)
            if kind is Block:
                with unittest.mock.patch.object(_trial, "_same", lambda a, b: False):
                    y, made = self.calls(model, self.x)
            else:
                y, made = self.calls(model, self.x)
            self.assertEqual(made, 0)
            (reason, count), = convoy.report(model).not_compiled.items()
            self.assertEqual(count, 1)
            self.assertRegex(reason, "Block: it gives other numbers" if kind is Block
                             else "Doubts: .*[Uu]nsupported|Doubts: .*[Dd]ata-dependent")
            self.assertIn(f"not under PyTorch's compiler: 1 whole calls: {reason}",
                          str(convoy.report(model)))
            torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
            self.assertGreater(sum(part.calls for part in convoy.report(model).taken), 5)

    def test_other_arguments(self):
        block = Kinds().eval()
        expected = convoy.accelerate(copy.deepcopy(block), probe=False)
        model = convoy.accelerate(block, compile=True)
        for made, named in ((1, {}), (2, {"twice": True}), (2, {"twice": True, "name": "a"}),
                            (1, {"name": ["a"]}), (0, {"name": {"a": 1}})):
            y, count = self.calls(model, self.x, **named)
            self.assertEqual(count, made)
            torch.testing.assert_close(y, expected(self.x, **named), rtol=0, atol=0)
        self.assertEqual(self.calls(model, self.x[:, :, :5])[1], 1)

    def test_lists_that_a_call_writes_to(self):
        """As decoders of videos have them: a cache for each convolution, and how many there are."""
        class Chunks(Block):
            in_place = False

            def forward(self, x, cache, count):
                before = cache[count[0]]
                cache[count[0]] = x[:, :, -2:].clone()
                count[0] += 1
                y = super().forward(x)
                if before is None:
                    return y
                if self.in_place:
                    cache[3].add_(1)
                return y + torch.cat((before, y[:, :, 2:]), 2)

        def run(model):
            kept, results = [None, None, 3, torch.zeros(2)], []
            for _ in range(4):
                count = [0]
                results += [model(self.x, kept, count), model(self.x * 2, kept, count=count)]
                self.assertEqual((count, kept[2]), ([2], 3))
            return results, [torch.as_tensor(value) for value in kept]

        for in_place, count in ((False, 4), (True, 0)):
            with self.subTest(in_place=in_place):
                block = Chunks().eval()
                block.in_place = in_place
                expected = run(block)
                model = convoy.accelerate(block, compile=True)
                torch.testing.assert_close(run(model), expected, rtol=1e-4, atol=1e-4)
                self.assertEqual(convoy.report(model).compiled_calls, count)
                with _trial.accelerated():  # Stand-ins are in the lists, then tensors again.
                    torch.testing.assert_close(run(model), expected, rtol=1e-4, atol=1e-4)
                torch.testing.assert_close(run(model), expected, rtol=1e-4, atol=1e-4)

    def test_how_results_and_what_lists_hold_lie_in_memory(self):
        """Results as PyTorch's; the next call's frames as Convoy reads them, without a copy."""
        class Chunks(Block):
            def forward(self, x, cache):
                y = super().forward(x)
                cache[0], cache[1] = y[:, :, -2:].clone(), y
                return y + 1, (y,)

        block, cache, by_pytorch = Chunks().eval(), [None, None], [None, None]
        expected = block(self.x, by_pytorch)
        model = convoy.accelerate(block, compile=True)
        for _ in range(3):
            y, (z,) = model(self.x, cache)
        self.assertGreater(convoy.report(model).compiled_calls, 0)
        torch.testing.assert_close((y, (z,), cache), (*expected, by_pytorch), rtol=1e-4, atol=1e-4)
        for made, theirs in zip((y, z), (expected[0], *expected[1])):
            self.assertEqual(made.stride(), theirs.stride())
        self.assertTrue(cache[0].is_contiguous(memory_format=torch.channels_last))
        self.assertIs(cache[1], z)

    def test_numbers_that_are_new_in_each_call(self):
        class Scaled(Block):
            def forward(self, x, factor, factors=()):
                return super().forward(x) * factor * (factors[0] if factors else 1.0)

        block = Scaled().eval()
        expected = convoy.accelerate(copy.deepcopy(block), probe=False)
        for lists, traced in ((False, 5), (True, 8)):
            torch._dynamo.reset()
            model = convoy.accelerate(copy.deepcopy(block), compile=True)
            with (self.subTest(lists=lists),
                  unittest.mock.patch("convoy._compiled.compiled",
                                      side_effect=_compiled.compiled) as backend):
                for i in range(12):
                    numbers = (1.5, [1.0 + i]) if lists else (1.0 + i,)
                    torch.testing.assert_close(model(self.x, *numbers), expected(self.x, *numbers),
                                               rtol=1e-5, atol=1e-5)
                self.assertEqual(backend.call_count, traced)

    def test_the_compiler_may_give_up_later(self):
        class Later(Kinds):
            def forward(self, x, twice=False, name=None):
                if name == "b":
                    torch._dynamo.graph_break()
                return super().forward(x, twice, name)

        model = convoy.accelerate(Later().eval(), compile=True)
        y, count = self.calls(model, self.x)
        self.assertEqual(count, 1)
        again, count = self.calls(model, self.x, name="b")
        self.assertEqual(count, 0)
        torch.testing.assert_close(again["y"], y["y"], rtol=0, atol=0)

    def test_who_else_calls(self):
        model = convoy.accelerate(torch.nn.Sequential(Block(), Block()).eval(), compile=True)
        y, _ = self.calls(model, self.x)
        copied = pickle.loads(pickle.dumps(model))
        self.assertIsNone(copied._compiled_call_impl)
        self.assertEqual(self.calls(copied, self.x)[1], 1)
        self.assertIsNone(_trial.twin_of(model)._compiled_call_impl)
        before = convoy.report(model).compiled_calls
        with torch.enable_grad():  # PyTorch's own.
            self.assertTrue(model(self.x).requires_grad)
        with _trial.accelerated():
            self.assertTrue(torch.equal(model(self.x), y))
        self.assertEqual(convoy.report(model).compiled_calls, before)
        own = torch.compile(model, backend="eager")
        torch.testing.assert_close(own(self.x), y, rtol=1e-4, atol=1e-5)
        convoy.accelerate(model)
        self.assertIsNone(model._compiled_call_impl)
        self.assertEqual(self.calls(model, self.x)[1], 0)

    def test_memory_goes_with_the_model(self):
        model = convoy.accelerate(Block().eval(), compile=True)
        self.calls(model, self.x)
        gc.collect()
        gone = weakref.ref(model.conv1.weight)
        gc.disable()
        self.addCleanup(gc.enable)
        del model
        self.assertIsNone(gone())

    def test_refusals(self):
        for named, message in ((dict(probe=False), "not legal with probe=False"),
                               (dict(group=object()), "not legal with a group")):
            with self.assertRaisesRegex(convoy.InvalidArgument, message):
                convoy.accelerate(Block(), compile=True, **named)


if __name__ == "__main__":
    unittest.main()
