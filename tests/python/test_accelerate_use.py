# SPDX-License-Identifier: Apache-2.0
"""convoy.accelerate: what a user may ask of it and do with the model."""

import copy
import pickle
import unittest

import convoy
import torch
import torch.nn.functional as F
from convoy import _trial
from support import Accelerated, Block, error


class Use(Accelerated):
    def test_quality(self):
        model = Block().eval().bfloat16()
        x = self.x.bfloat16()
        with torch.no_grad():
            exact, fast = (convoy.accelerate(copy.deepcopy(model), quality=quality)
                           for quality in ("exact", "fast"))
            wide = copy.deepcopy(model).float()(x.float())
            self.assertLess(error(fast(x), wide), error(exact(x), wide))
            self.assertLess(error(exact(x), model(x)), error(fast(x), model(x)))
        kinds = [sorted(part.operation for part in convoy.report(m).taken) for m in (exact, fast)]
        self.assertIn("group_norm", kinds[0])
        self.assertIn("group_norm + silu", kinds[1])
        with self.assertRaisesRegex(convoy.InvalidArgument, "legal: fast, exact"):
            convoy.accelerate(model, quality="best")
        with self.assertRaisesRegex(convoy.InvalidArgument, "upsample_folding = 'fast'"):
            convoy.accelerate(model, quality="exact", upsample_folding="fast")

    def test_state_and_restore(self):
        model = Block().eval()
        names, convolve = list(model.state_dict()), model.conv1.weight
        with torch.no_grad():
            expected = model(self.x)
            self.assertIs(convoy.accelerate(model), model)
            model(self.x)
            self.assertEqual(list(model.state_dict()), names)
            for changed in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
                torch.testing.assert_close(changed(self.x), expected, rtol=1e-5, atol=1e-5)
            convolve.mul_(2)
            torch.testing.assert_close(
                model(self.x), convoy.restore(copy.deepcopy(model))(self.x), rtol=1e-5, atol=1e-5)
            other = Block().eval()
            model.load_state_dict(other.state_dict())
            torch.testing.assert_close(model(self.x), other(self.x), rtol=1e-5, atol=1e-5)
            convoy.restore(model)
            self.assertTrue(torch.equal(model(self.x), other(self.x)))
        self.assertFalse(model._forward_hooks or model._forward_pre_hooks)
        with self.assertRaisesRegex(convoy.InvalidArgument, "not accelerated"):
            convoy.report(model)

    def test_copies_after_a_part_was_replaced(self):
        parts = [torch.nn.Conv2d(16, 16, 3), torch.nn.Conv2d(16, 16, 1)]
        model = convoy.accelerate(torch.nn.Sequential(*parts).eval())
        kept = model[1]
        with torch.no_grad():
            model(self.x)
            del parts
            model[0] = torch.nn.Identity()  # Nobody holds the one before: its hooks are gone.
            model[1] = copy.deepcopy(kept)  # The one before stays.
            expected = model(self.x)
            for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)),
                           copy.deepcopy(copy.deepcopy(model))):
                torch.testing.assert_close(copied(self.x), expected, rtol=1e-5, atol=1e-5)
                convoy.restore(copied)
                self.assertFalse(copied._forward_hooks or copied._forward_pre_hooks)
        convoy.restore(model)
        self.assertFalse(model._forward_hooks or kept._forward_hooks)

    def test_threads_types_and_modes(self):
        import concurrent.futures

        model = Block().eval()
        inputs = [torch.randn(1, 16, 8 + i % 3, 10) for i in range(12)]
        with torch.no_grad():
            expected = [model(x) for x in inputs]
        convoy.accelerate(model)

        def run(x):
            with torch.inference_mode():
                return model(x).clone()

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for got, right in zip(pool.map(run, inputs), expected):
                torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-5)
        with torch.no_grad():
            compiled = torch.compile(model, backend="eager")
            torch.testing.assert_close(compiled(inputs[0]), expected[0], rtol=1e-5, atol=1e-5)
            half = model.half()(inputs[0].half())
            self.assertEqual(half.dtype, torch.float16)
            torch.testing.assert_close(half.float(), expected[0], rtol=2e-2, atol=2e-2)
            # Rounded weights; a keyword; no batch at all.
            model.float()
            torch.testing.assert_close(model(x=inputs[0]), expected[0], rtol=1e-2, atol=1e-2)
            self.assertEqual(model(torch.empty(0, 16, 8, 8)).shape, (0, 16, 8, 8))

    def test_double_is_pytorchs(self):
        self.same(Block().double(), self.x.double(), bound=1e-12)

    def test_what_is_left_to_pytorch(self):
        model = convoy.accelerate(Block())
        x = self.x.requires_grad_()
        model(x).sum().backward()
        self.assertIsNotNone(x.grad)
        self.assertIsNotNone(model.conv1.weight.grad)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            self.assertEqual(model(self.x).shape, self.x.shape)
            forward_ad = torch.autograd.forward_ad
            with forward_ad.dual_level():
                y = model(forward_ad.make_dual(self.x, self.x))
                self.assertIsNotNone(forward_ad.unpack_dual(y).tangent)
        reasons = " ".join(convoy.report(model).left_calls)
        self.assertIn("forward-mode", reasons)
        self.assertIn("torch.no_grad()", reasons)
        self.assertIn("autocast", reasons)
        with torch.no_grad(), self.assertRaisesRegex(RuntimeError, "input of shape .1, 15, 8, 8"):
            model(torch.randn(1, 15, 8, 8))

    def test_errors(self):
        with self.assertRaisesRegex(convoy.InvalidArgument, "legal: a torch.nn.Module"):
            convoy.accelerate(lambda x: x)
        with self.assertRaisesRegex(convoy.InvalidArgument, "has no convolution"):
            convoy.accelerate(torch.nn.Linear(3, 3))
        with self.assertRaisesRegex(convoy.InvalidArgument, "legal: exact, fast"):
            convoy.accelerate(Block(), upsample_folding="quick")
        for compiled in (torch.compile(Block()), torch.nn.Sequential(torch.compile(Block()))):
            with self.assertRaisesRegex(convoy.InvalidArgument, "is compiled by torch.compile"):
                convoy.accelerate(compiled)
        compiled = torch.nn.Sequential(Block())
        compiled[0].compile()
        with self.assertRaisesRegex(convoy.InvalidArgument, "^0 is compiled by torch.compile"):
            convoy.accelerate(compiled)

    def test_what_a_model_holds_after_a_call(self):
        class Holds(torch.nn.Module):
            """As restoration models keep their mean, and streams what came before."""

            def __init__(self):
                super().__init__()
                self.conv = torch.nn.Conv2d(1, 1, 3, padding=1)
                self.other = torch.nn.Conv2d(1, 1, 1)
                self.register_buffer("ema", torch.zeros(1))
                self.mean, self.log, self.box = torch.zeros(1), [], {}
                self.kept = self.waits = self.waits_too = torch.zeros(1)

            def forward(self, x):
                self.mean = self.mean.type_as(x)
                y = self.conv(x - self.mean) + self.kept + self.waits + self.waits_too
                self.ema = 0.9 * self.ema + y.mean()
                self.kept, self.waits = y.clone(), F.relu(self.other(y))
                self.waits_too = self.other(x)
                self.log.append(y)
                self.box = {"both": (y, x)}
                return y, y.clone(), y * 1

        plain = Holds().eval()
        model = convoy.accelerate(copy.deepcopy(plain))
        x, own = torch.randn(2, 1, 6, 7), torch.randn(2, 1, 6, 7)
        own.copy_(x)

        def tensors():
            return (model.mean, model.kept, model.waits, model.log[0], *model.box["both"])

        with torch.no_grad():
            for i in range(3):
                results, expected = model(own), plain(x)
                self.assertEqual(len({t.data_ptr() for t in results}), 3)
                for got, want in zip(results, expected):
                    torch.testing.assert_close(got, want)
                    got.mul_(i + 2)  # The caller may write to what he has.
                    want.mul_(i + 2)
                own.add_(1)
                x.add_(1)
                self.assertIs(type(model.state_dict()["ema"]), torch.Tensor)
            torch.testing.assert_close(model.ema, plain.ema)
            log = model.log
            with _trial._settled("plain"):  # As where the host binds.
                for got, want in zip(model(own), plain(x)):
                    self.assertIs(type(got), torch.Tensor)
                    torch.testing.assert_close(got, want)
            self.assertEqual({type(t) for t in tensors()}, {torch.Tensor})
            self.assertIs(model.log, log)
            model(own), plain(x)
        model.mean = model.mean.detach()
        result = model(own)[0]  # With gradients.
        self.assertIs(type(result), torch.Tensor)
        self.assertTrue(result.requires_grad)
        with torch.no_grad():
            model(own)
            convoy.restore(model)
            self.assertEqual({type(t) for t in tensors()}, {torch.Tensor})
            self.assertEqual({type(t) for t in model(own)}, {torch.Tensor})


if __name__ == "__main__":
    unittest.main()
