#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the compiler says of the Blackwell kernels, for a machine without the GPU.

    scripts/sm100_evidence.py [--build build/default] [--only 2sm_256x256] [--markdown FILE]

Compiles every instance that CMake generated from src/kernels/sm100/instances.txt to a cubin and
reports, for both entry points: registers, stack, spills, local and shared memory; and from the SASS
the instructions of the hot loops along the path that plain tiles take:
  load      per atom (a swizzle span of the reduction: one activation and one filter copy)
  mma       per atom (4 MMAs with 128-byte, 2 with 64-byte swizzle)
  epilogue  per step of an output tile, and per output element of a thread

Needs nvcc 13, cuobjdump and nvdisasm: on PATH, in /usr/local/cuda, in .deps/cuda-tools (where
scripts/bootstrap.sh --sass puts them) or named by NVCC and CUOBJDUMP; --no-sass does without the
last two. Exit status 1 where a kernel spills or uses local memory, 2 where a tool is missing.
"""
import argparse
import heapq
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
ARCHITECTURE = "sm_100f"
COLUMNS = 32  # of an output tile, in every instance


class Function:
    """Basic blocks of one kernel's SASS."""

    def __init__(self, text):
        self.instructions = []
        for line in text.splitlines():
            match = re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?);?\s*/\*", line)
            if match:
                self.instructions.append((int(match[1], 16), match[2].strip()))
        self._index = {address: i for i, (address, _) in enumerate(self.instructions)}
        self._blocks()

    @staticmethod
    def _branch(text):
        """(target, conditional) of a branch, else None."""
        match = re.search(r"\bBRA\S*\s+(?:(!?U?P\w+),\s*)?(?:`\()?(0x[0-9a-f]+)", text)
        if not match:
            return None
        return int(match[2], 16), text.startswith("@") or match[1] is not None

    def _blocks(self):
        leaders = {0}
        for i, (_, text) in enumerate(self.instructions):
            branch = self._branch(text)
            if branch:
                leaders.add(self._index[branch[0]])
            if branch or re.search(r"\b(EXIT|RET|BRX)\b", text):
                leaders.add(i + 1)
        starts = sorted(l for l in leaders if l < len(self.instructions))
        ends = starts[1:] + [len(self.instructions)]
        self.blocks = list(zip(starts, ends))
        of = {start: b for b, (start, _) in enumerate(self.blocks)}
        self.successors = [[] for _ in self.blocks]
        self.predecessors = [[] for _ in self.blocks]
        for b, (_, end) in enumerate(self.blocks):
            text = self.instructions[end - 1][1]
            branch = self._branch(text)
            follows = not re.match(r"(EXIT|RET|BRX)\b", text)
            if branch:
                self.successors[b].append(of[self._index[branch[0]]])
                follows = branch[1]
            if follows and end in of:
                self.successors[b].append(of[end])
            for s in self.successors[b]:
                self.predecessors[s].append(b)

    def find(self, pattern):
        """Blocks that hold an instruction like this."""
        return [b for b, (start, end) in enumerate(self.blocks)
                if any(re.search(pattern, text) for _, text in self.instructions[start:end])]

    def weight(self, block):
        start, end = self.blocks[block]
        return end - start

    def loop_of(self, block):
        """Smallest natural loop that holds a block: (header, blocks)."""
        best = None
        for latch, successors in enumerate(self.successors):
            for header in successors:
                if header > latch:
                    continue
                body, stack = {header}, [latch]
                while stack:
                    b = stack.pop()
                    if b not in body:
                        body.add(b)
                        stack.extend(self.predecessors[b])
                if block in body and (best is None or len(body) < len(best[1])):
                    best = header, body
        return best

    def path(self, start, goal, within):
        """Fewest instructions from a block to another, both counted; None where there is no way."""
        queue, seen = [(self.weight(start), start)], set()
        while queue:
            cost, block = heapq.heappop(queue)
            if block == goal:
                return cost
            if block in seen:
                continue
            seen.add(block)
            for successor in self.successors[block]:
                if successor in within:
                    heapq.heappush(queue, (cost + self.weight(successor), successor))
        return None

    def round_trip(self, patterns, beside=None):
        """Fewest instructions of one iteration of an innermost loop that passes blocks with all
        patterns in turn; a pattern written twice asks for two blocks. `beside`: what else the loop
        holds, to tell it from others."""
        loops = [self.loop_of(block) for block in self.find(patterns[0])]
        loops = [loop for loop in loops if loop and all(
            set(self.find(p)) & loop[1] for p in [*patterns, beside or patterns[0]])]
        if not loops:
            return None
        return self._shortest_round(patterns, min(loops, key=lambda loop: len(loop[1])))

    def _shortest_round(self, patterns, loop):
        header, body = loop
        stops, used = [], {}
        for pattern in patterns:
            blocks = [b for b in self.find(pattern) if b in body]
            nth = used[pattern] = used.get(pattern, -1) + 1
            repeated = patterns.count(pattern) > 1 and len(blocks) > 1
            stops.append([blocks[min(nth, len(blocks) - 1)]] if repeated else blocks)
        costs = {header: 0}
        for candidates in [*stops, [header]]:
            reached = {}
            for goal in candidates:
                if goal not in body:
                    continue
                for start, cost in costs.items():
                    if start == goal and goal != header:
                        reached[goal] = min(reached.get(goal, 1 << 30), cost)
                        continue
                    # A path counts its first block; it was counted when it was reached.
                    firsts = [s for s in self.successors[start] if s in body] if goal == header else [start]
                    for first in firsts:
                        length = self.path(first, goal, body)
                        if length is None:
                            continue
                        if goal == header:
                            extra = length - self.weight(header)
                        else:
                            extra = length - (self.weight(start) if start != header or cost else 0)
                        reached[goal] = min(reached.get(goal, 1 << 30), cost + extra)
            costs = reached
            if not costs:
                return None
        return min(costs.values())


def run(command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stderr}")
    return result.stdout + result.stderr


def find_tool(name):
    named = os.environ.get(name.upper())
    places = [name, f"/usr/local/cuda/bin/{name}", ROOT / ".cuda/bin" / name,
              ROOT / ".deps/cuda-tools/nvidia/cu13/bin" / name]
    return named or next((found for place in places if (found := shutil.which(place))), None)


def require_tools(with_sass):
    for name in ["nvcc", "cuobjdump", "nvdisasm"] if with_sass else ["nvcc"]:
        if find_tool(name) is None:
            source = ("scripts/bootstrap.sh" if name == "nvcc" else
                      "scripts/bootstrap.sh --sass (PyPI: nvidia-cuda-cuobjdump, "
                      "nvidia-cuda-nvdisasm), or leave the SASS out with --no-sass")
            print(f"no {name} on PATH, in /usr/local/cuda/bin, .cuda or .deps/cuda-tools; "
                  f"get it with {source}", file=sys.stderr)
            sys.exit(2)


def disassemble(cubin):
    tool = find_tool("cuobjdump")
    environment = dict(os.environ)
    environment["PATH"] += os.pathsep + str(pathlib.Path(find_tool("nvdisasm")).parent)
    text = subprocess.run([tool, "-sass", cubin], capture_output=True, text=True, env=environment)
    if text.returncode != 0:
        sys.exit(f"{tool}: {text.stderr.strip()}")
    parts = re.split(r"\n\s*Function : (\S+)\n", text.stdout)
    return {name: Function(body) for name, body in zip(parts[1::2], parts[2::2])}


def shared_bytes(config):
    """Dynamic shared memory, as smem.cuh lays it out: (stages, bytes) without and with a
    residual. Computed by a small program, so that the header stays the one source."""
    program = f"""
#include <cstdio>
#include "kernels/sm100/instance.cuh"
{config}
int main() {{
  constexpr auto c = convoy::sm100::kConfig;
  constexpr auto p = convoy::sm100::pack(c);
  std::printf("%d %zu %d %zu\\n", c.pipeline_stages(false),
              sizeof(convoy::sm100::Conv2dSmem<p.tiles, p.pipeline, false>),
              c.pipeline_stages(true),
              sizeof(convoy::sm100::Conv2dSmem<p.tiles, p.pipeline, true>));
}}
"""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "shared.cu"
        source.write_text(program)
        run([*nvcc(), "-o", f"{folder}/shared", source])
        a, b, c, d = run([f"{folder}/shared"]).split()
    return (int(a), int(b)), (int(c), int(d))


def nvcc():
    return [find_tool("nvcc"), "-std=c++20", "-O3", "-arch=sm_100f", "--expt-relaxed-constexpr",
            f"-I{ROOT}/src", f"-I{ROOT}/include"]


def configuration_text(source):
    """The configuration of a generated instance as `kConfig`, in a namespace of its own."""
    body = re.search(r"constexpr auto kConfig\w*( = .*?\}\(\);)", source.read_text(), re.S)
    if not body:
        sys.exit(f"{source}: no `constexpr auto kConfig...`, as CMake generates it")
    return f"namespace convoy::sm100 {{\nconstexpr auto kConfig{body[1]}\n}}"


def examine(source, folder, with_sass):
    cubin = pathlib.Path(folder) / (source.stem + ".cubin")
    log = run([*nvcc(), "-cubin", "-Xptxas", "-v", "-o", cubin, source])
    functions = disassemble(cubin) if with_sass else {}
    (stages, bytes_run), (stages_residual, bytes_residual) = shared_bytes(configuration_text(source))
    rows = []
    for part in log.split("Compiling entry function '")[1:]:
        name = part.split("'")[0]
        residual = "run_with_residual" in name
        stack, stores, loads = map(int, re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
            part).groups())
        row = {
            "kernel": source.stem,
            "entry": "run_with_residual" if residual else "run",
            "registers": int(re.search(r"Used (\d+) registers", part)[1]),
            "stack": stack, "spills": stores + loads,
            "stages": stages_residual if residual else stages,
            "shared": bytes_residual if residual else bytes_run,
        }
        function = functions.get(name)
        if function:
            row["sass"] = len(function.instructions)
            # The epilogue-load warp has such copies too, but none of rank 5. Halo and resident
            # kernels have one copy an atom, which nothing tells from that warp's.
            if source.stem.endswith("_runs"):
                row["load"] = function.round_trip(
                    [r"UTMALDG\.4D\.IM2COL", r"UTMALDG\.4D(?!\.IM2COL)"], beside=r"UTMALDG\.5D")
            row["mma"] = function.round_trip([r"UTCHMMA"] * 4)
            row["epilogue"] = function.round_trip([r"LDTM", r"STS\.128", r"UTMASTG\.4D"])
            if row["epilogue"]:
                row["per element"] = f"{row['epilogue'] / COLUMNS:.1f}"
        rows.append(row)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/default")
    parser.add_argument("--only", default="", help="instances whose name holds this")
    parser.add_argument("--markdown", type=pathlib.Path, help="write the table here too")
    parser.add_argument("--no-sass", action="store_true", help="only what ptxas says")
    arguments = parser.parse_args()
    require_tools(not arguments.no_sass)
    sources = sorted(p for p in arguments.build.glob("**/sm100/instances/*.cu")
                     if arguments.only in p.name)
    if not sources:
        sys.exit(f"no generated instances under {arguments.build}; configure the build first")
    columns = ["kernel", "entry", "registers", "stack", "spills", "stages", "shared", "sass", "load",
               "mma", "epilogue", "per element"]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    print("\n".join(lines), flush=True)
    bad = False
    with tempfile.TemporaryDirectory() as folder:
        for source in sources:
            for row in examine(source, folder, not arguments.no_sass):
                line = "| " + " | ".join(str(row.get(c, "")) for c in columns) + " |"
                lines.append(line)
                print(line, flush=True)
                bad |= row["stack"] != 0 or row["spills"] != 0
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(lines) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
