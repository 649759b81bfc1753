# SPDX-License-Identifier: Apache-2.0
"""convoy.accelerate(model, group=...): autoencoders of diffusers, small and on the CPU, over ranks
that are processes joined by gloo, against the same model on one rank."""

import contextlib
import datetime
import gc
import os
import pathlib
import tempfile
import traceback
import unittest
import unittest.mock
from typing import ClassVar

import convoy
import torch
import torch.distributed as dist
import torch.multiprocessing
from convoy import _peers as _peers_module
from convoy.bench import vae_models
from support import error, needs_diffusers


def _rank(rank, count, folder, body, arguments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank,
                            world_size=count, timeout=datetime.timedelta(seconds=60))
    try:
        found = body(rank, *arguments)
    except Exception as fault:
        found = f"{type(fault).__name__}: {fault}\n{traceback.format_exc()}"
    with open(os.path.join(folder, f"rank{rank}"), "w") as file:
        file.write(found or "")
    # NOTE: not after a fault: the other ranks may wait for something else.
    if not found:
        dist.barrier()
    dist.destroy_process_group()


def over(count, body, *arguments):
    """What body(rank, *arguments) says on each of `count` ranks; "" where nothing is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (count, folder, body, arguments), nprocs=count)
        return [pathlib.Path(folder, f"rank{rank}").read_text() for rank in range(count)]


# Of a call: 20 convolutions of a chunk of frames read other rows; margins that have room for the
# rows of several layers are filled once for them.
_EXCHANGES = {("wan21", "decode"): 42}


def _autoencoder(rank, name, part, height, gather=True):
    """What is wrong with one model's output over all ranks."""
    vae = vae_models.BY_NAME[name]
    model = vae.make(small=True)
    torch.manual_seed(3)
    given = torch.randn(vae.small_latent) if part == "decode" else (
        torch.rand(vae.small_sample) * 2 - 1)
    given = given.repeat(*(1,) * (given.dim() - 2), height, 1)
    given = given + 0.1 * torch.randn(given.shape)

    def run():
        if part == "decode":
            return vae_models.decoded(model, given, vae.small_keywords)
        return vae_models.encoded(model, given)

    with torch.no_grad():
        expected = run()
        convoy.accelerate(model, group=dist.group.WORLD, gather=gather)
        got = run()
        again = run()
    exchanges = model.__dict__["_convoy_session"][0].shards.exchanges
    most = _EXCHANGES.get((name, part))
    if most is not None and exchanges != 2 * most:
        return f"{name}: {exchanges / 2} exchanges a call, not {most}"
    report = convoy.report(model)
    if report.left_calls:
        return f"{name}: not cut: {report.left_calls}"
    if not torch.equal(got, again):
        return f"{name}: another result at the second call"
    if not gather:
        count = dist.get_world_size()
        rows = expected.shape[-2] // count
        expected = expected.narrow(-2, rank * rows, rows)
    if got.shape != expected.shape or error(got, expected) > 2e-5:
        return f"{name}: {tuple(got.shape)} against {tuple(expected.shape)}, error " + (
            f"{error(got, expected):.2e}" if got.shape == expected.shape else "-")
    return ""


def _decoders(rank, names, height):
    """Decodes and, of some, encodes."""
    faults = []
    for name, part in names:
        faults.append(_autoencoder(rank, name, part, height))
    return "; ".join(fault for fault in faults if fault)


def _own_rows(rank):
    return _autoencoder(rank, "flux", "decode", 2, gather=False)


def _refusals(rank):
    """What cannot be cut says so, on every rank."""
    group = dist.group.WORLD

    class Flips(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
            self.how = None

        def forward(self, x):
            return self.how(self.conv(x))

    model = convoy.accelerate(Flips(), group=group)
    x = torch.randn(1, 3, 12, 5)
    known = (
        (lambda y: y.flip(2), "flip may mix the rows"),
        (lambda y: y.mean((2, 3)), "mean may mix the rows"),
        (lambda y: y[:, :, 1:], "an index along the height"),
        (lambda y: torch.nn.functional.avg_pool2d(y, 2), "avg_pool2d may mix"),
        (lambda y: torch.cat((y, y), 2), "cat along the height"),
        (lambda y: torch.nn.functional.conv2d(y, torch.ones(4, 4, 3, 3)), "padding that keeps"),
        (lambda y: torch.nn.functional.conv2d(y, torch.ones(4, 4, 9, 9), padding=4), "a margin of"),
    )
    with torch.no_grad():
        for model.how, words in known:
            try:
                model(x)
                return f"not refused: {words}"
            except convoy.Unsupported as fault:
                if words not in str(fault):
                    return f"{words} is not in: {fault}"
        # Too few rows: every rank computes all.
        model.how = lambda y: y
        whole = torch.nn.functional.conv2d(x[:, :, :1], model.conv.weight, model.conv.bias,
                                           padding=1)
        if error(model(x[:, :, :1]), whole) > 1e-5:
            return "wrong where nothing is cut"
        if not any("too few" in reason for reason in convoy.report(model).left_calls):
            return "the report does not say that a call was not cut"
        try:
            model(torch.randn(1, 3, 12, 5 + rank))
            return "shapes that differ were taken"
        except convoy.InvalidArgument as fault:
            if "rank 1 calls Flips" not in str(fault):
                return str(fault)
    return ""


@needs_diffusers
class OverRanks(unittest.TestCase):
    def test_models_of_every_kind_on_two(self):
        models = [(name, "decode") for name in ("flux", "wan21", "hunyuan", "ltx", "temporal")]
        self.assertEqual(over(2, _decoders, [*models, ("wan21", "encode")], 2), [""] * 2)

    def test_uneven_rows_on_three(self):
        models = [("flux", "decode"), ("wan22", "decode"), ("flux", "encode")]
        self.assertEqual(over(3, _decoders, models, 3), [""] * 3)

    def test_own_rows_alone(self):
        self.assertEqual(over(2, _own_rows), [""] * 2)


_real_inboxes = _peers_module._Inboxes


class _FakeInboxes:
    """The library's peers where there are no GPUs: who says what to whom is tested."""

    refusal: ClassVar[dict] = {}  # The rank that refuses, by step.
    destroyed = 0

    def __init__(self, rank, count, capacity, timeout_ms):
        self.rank, self.capacity, self.captured = rank, capacity, False
        self._may("make")

    def __del__(self):
        type(self).destroyed += 1

    def _may(self, step):
        if self.refusal.get(step) == self.rank:
            raise convoy.Unsupported(f"no {step} here")

    def handle(self):
        return b"handle of %d" % self.rank

    def connect(self, handles):
        assert handles == [b"handle of 0", b"handle of 1"], handles
        self._may("connect")

    def try_out(self, timeout_ms):
        self._may("try_out")

    def late(self):
        return None


def _peers(rank):
    """Whether all ranks decide alike, and what they say."""
    device = torch.device("cuda", 0)

    def patched(capturing=False):
        stack = contextlib.ExitStack()
        stack.enter_context(unittest.mock.patch.dict(os.environ, {"CONVOY_PEER_MEMORY": "1"}))
        for target, name, value in (
            (torch.cuda, "device", lambda device: contextlib.nullcontext()),
            (torch.cuda, "synchronize", lambda device: None),
            (torch.cuda, "is_current_stream_capturing", lambda: capturing),
            (_peers_module, "_Inboxes", _FakeInboxes),
        ):
            stack.enter_context(unittest.mock.patch.object(target, name, value))
        return stack

    for step, refuser in (("make", 0), ("connect", 1), ("try_out", 1), ("switch", 1)):
        _FakeInboxes.refusal = {step: refuser}
        peers = _peers_module.Peers(None, rank, 2)
        words = f"rank {refuser}: no {step} here"
        with patched(), unittest.mock.patch.dict(os.environ):
            if step == "switch":
                words = "rank 1: CONVOY_PEER_MEMORY is 0"
                os.environ["CONVOY_PEER_MEMORY"] = "0" if rank == refuser else "1"
            if peers.ready(device, 100) or peers.ready(device, 100):
                return f"{step}: refused by rank {refuser}, and ready"
        if peers.refusal != words or peers.how() != f"torch.distributed ({words})":
            return f"{step}: {peers.refusal!r}, {peers.how()!r}"

    _FakeInboxes.refusal, _FakeInboxes.destroyed = {}, 0
    peers = _peers_module.Peers(None, rank, 2)
    with patched(capturing=True):
        if peers.ready(device):
            return "made inboxes in a capture"
    with patched():
        if not peers.ready(device, 100) or peers.how() != "peer memory":
            return f"not ready: {peers.how()}"
        if peers.ready(torch.device("cpu")) or peers.ready(device, 1, tensors=5):
            return "ready for what does not go this way"
    with patched(capturing=True):
        if not peers.ready(device, 1 << 20) or peers.ready(device, (1 << 20) + 1):
            return "wrong in a capture"
    with patched():
        if not peers.ready(device, (1 << 20) + 1) or not peers.ready(device, 5 << 20):
            return "not ready for more"
        gc.collect()
        # The first is a graph's, the second nobody's.
        capacities = [inboxes.capacity for inboxes in peers._inboxes]
        if capacities != [1 << 20, 5 << 20] or _FakeInboxes.destroyed != 1:
            return f"capacities {capacities}, {_FakeInboxes.destroyed} destroyed"
    if torch.cuda.is_available():
        return ""
    # The library itself has no GPU here, and says so.
    peers = _peers_module.Peers(None, rank, 2)
    with patched(), unittest.mock.patch.object(_peers_module, "_Inboxes", _real_inboxes):
        if peers.ready(device) or not peers.refusal.startswith("rank 0: "):
            return f"not refused without a GPU: {peers.refusal!r}"
    return ""


def _silent(rank):
    """A run that exchanges nothing computes with numbers, all of them."""
    from convoy.bench.shards import silence

    vae = vae_models.BY_NAME["flux"]
    torch.manual_seed(4)  # The same weights on every rank.
    model = convoy.accelerate(vae.make(small=True), group=dist.group.WORLD, probe=False)
    given = torch.randn(vae.small_latent).repeat(1, 1, 2, 1)
    torch.use_deterministic_algorithms(True)  # NOTE: then new memory is filled with NaN.
    with torch.no_grad():
        real = vae_models.decoded(model, given, vae.small_keywords)
        with silence():
            silent = vae_models.decoded(model, given, vae.small_keywords)
    if not silent.isfinite().all():
        return "not all are numbers"
    if torch.equal(real, silent):
        return "rows were exchanged"
    if convoy.report(model).exchange != "torch.distributed":
        return f"the report says {convoy.report(model).exchange!r}"
    return ""


class PeerMemory(unittest.TestCase):
    def test_ranks_decide_alike(self):
        self.assertEqual(over(2, _peers), [""] * 2)

    def test_too_many_ranks(self):
        peers = _peers_module.Peers(None, 0, 9)
        self.assertFalse(peers.ready(torch.device("cuda", 0)))
        self.assertEqual(peers.refusal, "9 ranks; legal: up to 8")

    def test_switch(self):
        off = "CONVOY_PEER_MEMORY is 0"
        for value, words in (("0", off), ("1", ""), ("", ""), (None, "")):
            with unittest.mock.patch.dict(os.environ):
                os.environ.pop("CONVOY_PEER_MEMORY", None)
                if value is not None:
                    os.environ["CONVOY_PEER_MEMORY"] = value
                self.assertEqual(_peers_module.switched_off(), words)

    def test_pieces(self):
        def piece(tensor):
            (move,) = _peers_module._moves([(3, tensor)])
            self.assertEqual((move.peer, move.data), (3, tensor.data_ptr()))
            return move.bytes, move.count, move.pitch

        x = torch.zeros(2, 3, 10, 4, 8, dtype=torch.float16)  # Frames, rows, columns, channels.
        row = 4 * 8 * 2
        self.assertEqual(piece(x[:, :, 2:5]), (3 * row, 6, 10 * row))
        self.assertEqual(piece(x[:1, :, 2:5]), (3 * row, 3, 10 * row))
        self.assertEqual(piece(x[1, 1, 9:]), (row, 1, row))
        self.assertEqual(piece(x), (x.nbytes, 1, x.nbytes))
        self.assertEqual(piece(x[..., :3])[:2], (6, 2 * 3 * 10 * 4))
        with self.assertRaisesRegex(convoy.InvalidArgument, "not pieces of one pitch"):
            piece(x[:, :2, 2:5])

    @needs_diffusers
    def test_silent_runs_compute_with_numbers(self):
        self.assertEqual(over(2, _silent), [""] * 2)


class Refusals(unittest.TestCase):
    def test_every_rank_says_why(self):
        self.assertEqual(over(2, _refusals), [""] * 2)

    def test_no_process_group(self):
        with self.assertRaisesRegex(convoy.InvalidArgument, "init_process_group"):
            convoy.accelerate(torch.nn.Conv2d(3, 4, 3), group=object())


if __name__ == "__main__":
    unittest.main()
