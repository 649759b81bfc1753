# SPDX-License-Identifier: Apache-2.0
"""What one exchange between neighbours costs, and one gather, by size: by peer memory and by
torch.distributed (NCCL), called one by one and in a CUDA graph, in turns.

    torchrun --nproc-per-node 2 -m convoy.bench.exchange --csv exchange.csv
    torchrun --nproc-per-node 2 -m convoy.bench.exchange --device cpu      (gloo, to try this)

Each rank sends `bytes` to the rank before it and the rank behind it; by torch.distributed that is
one all_to_all_single of packed rows, without the copies that pack them. A gather brings every
rank's `bytes` to all. Times are microseconds of one in a row of many, on the slowest rank; gbps:
bytes from one rank to the next over the time in a graph. apart: a put, and then a take.
"""

import argparse
import datetime
import os
import statistics
import time

import torch
import torch.distributed as dist

from .. import _native as native
from .._peers import Peers
from .rows import csv_file, save
from .shards import captured

SIZES = tuple(1 << n for n in (*range(8, 27),))
WAYS = ("peers", "apart", "nccl")
FIELDS = ("what", "bytes", "ranks", "peers_us", "apart_us", "nccl_us", "peers_graph_us",
          "apart_graph_us", "nccl_graph_us", "peers_gbps", "nccl_gbps", "right", "rounds", "note")


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", help="bytes, e.g. 256,65536; by default 256 to 64 Mi")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--row", type=int, default=20, help="exchanges of one measurement")
    parser.add_argument("--csv", type=csv_file)
    parser.add_argument("--no-graphs", action="store_true")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    return parser.parse_args()


class Exchange:
    """Rows for the ranks beside this one and from them."""

    what = "exchange"

    def __init__(self, peers, device, nbytes):
        self.peers, self.device = peers, device
        beside = [r for r in (peers.rank - 1, peers.rank + 1) if 0 <= r < peers.count]
        self.sent = torch.zeros(len(beside), nbytes, dtype=torch.uint8, device=device)
        self.received = torch.zeros_like(self.sent)
        for rank, row in zip(beside, self.sent):
            row.copy_(_pattern(nbytes, peers.rank, rank))
        self.expected = torch.stack([_pattern(nbytes, r, peers.rank) for r in beside])
        self.counts = [nbytes if r in beside else 0 for r in range(peers.count)]
        self.moves = [list(zip(beside, rows)) for rows in (self.sent, self.received)]
        self.can_peers = peers.ready(device, -(-nbytes // 256) * 256)

    def run(self, way):
        if way == "nccl":
            dist.all_to_all_single(self.received.view(-1), self.sent.view(-1), self.counts,
                                   self.counts)
        elif way == "peers":
            self.peers.exchange(*self.moves, native.PEERS_BOTH, self.device)
        else:
            self.peers.exchange(*self.moves, native.PEERS_PUT, self.device)
            self.peers.exchange([], self.moves[1], native.PEERS_TAKE, self.device)


class Gather:
    """Every rank's bytes."""

    what = "gather"

    def __init__(self, peers, device, nbytes):
        self.peers = peers
        self.sent = _pattern(nbytes, peers.rank, 0).to(device)
        self.received = torch.zeros(peers.count * nbytes, dtype=torch.uint8, device=device)
        self.expected = torch.cat([_pattern(nbytes, r, 0) for r in range(peers.count)])
        self.can_peers = peers.gathers(self.sent)

    def run(self, way):
        if way == "nccl":
            dist.all_gather_into_tensor(self.received, self.sent)
        else:
            self.peers.all_gather(self.sent, self.received)


def _pattern(nbytes, source, target):
    return (torch.arange(nbytes, dtype=torch.int64) * 37 + 11 * source + 5 * target).to(torch.uint8)


class Clock:
    """The slowest rank's microseconds."""

    def __init__(self, device):
        self.device = device

    def wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def microseconds(self, run, count):
        dist.barrier()
        self.wait()
        begin = time.perf_counter()
        run()
        self.wait()
        spent = torch.tensor([(time.perf_counter() - begin) / count * 1e6], dtype=torch.float64,
                             device=self.device)
        dist.all_reduce(spent, dist.ReduceOp.MAX)
        return spent.item()


def measured(work, clock, nbytes, options):
    """The row of one size."""
    ways = [way for way in WAYS if way == "nccl" or (
        work.can_peers and (way == "peers" or work.what == "exchange"))]
    row = {"what": work.what, "bytes": nbytes, "ranks": work.peers.count,
           "rounds": options.rounds, "right": 1, "note": work.peers.how()}
    # NOTE: long ones are not repeated as often, so that all sizes take as long.
    count = max(options.row * (1 << 20) // max(nbytes, 1 << 20), 3)
    runs = {}
    for way in ways:
        work.received.zero_()
        work.run(way)
        clock.wait()
        row["right"] &= int(torch.equal(work.received.cpu(), work.expected))

        def many(way=way):
            for _ in range(count):
                work.run(way)

        runs[f"{way}_us"] = many
        if clock.device.type == "cuda" and not options.no_graphs:
            replay, _ = captured(many)
            work.received.zero_()
            replay()
            clock.wait()
            row["right"] &= int(torch.equal(work.received.cpu(), work.expected))
            runs[f"{way}_graph_us"] = replay
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(options.rounds):
        for name, run in runs.items():
            times[name].append(clock.microseconds(run, count))
    row.update({name: statistics.median(spent) for name, spent in times.items()})
    for way in ("peers", "nccl"):
        spent = row.get(f"{way}_graph_us", row.get(f"{way}_us"))
        if spent:
            row[f"{way}_gbps"] = nbytes / spent / 1e3
    return row


def main():
    options = arguments()
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo",
                            timeout=datetime.timedelta(seconds=60))
    rank, count = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", torch.cuda.current_device()) if options.device == "cuda" else (
        torch.device("cpu"))
    if rank == 0:
        what = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
        print(f"{what} x {count}, PyTorch {torch.__version__}")
    dist.barrier()
    peers, clock, rows = Peers(None, rank, count), Clock(device), []
    for nbytes in map(int, options.sizes.split(",")) if options.sizes else SIZES:
        for kind in (Exchange, Gather):
            row = measured(kind(peers, device, nbytes), clock, nbytes, options)
            right = torch.tensor([row["right"]], device=device)
            dist.all_reduce(right, dist.ReduceOp.MIN)
            row["right"] = right.item()
            rows.append(row)
            if rank == 0:
                print(", ".join(f"{key} {row[key]:.4g}" if isinstance(row[key], float)
                                else f"{key} {row[key]}" for key in FIELDS if key in row),
                      flush=True)
                if options.csv:
                    save(options.csv, FIELDS, rows)
    dist.destroy_process_group()
    if not all(row["right"] for row in rows):
        raise SystemExit("exchange: what came is not what was sent")


if __name__ == "__main__":
    main()
