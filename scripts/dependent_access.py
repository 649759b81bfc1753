#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether the compiler keeps what griddepcontrol.wait guards behind it.

    scripts/dependent_access.py [--build build/default] [--only TEXT ...]

A kernel that may begin before the one in front of it has ended touches no global memory before it
waits (docs/kernels-sm100.md, "The rules of the chip"). Compiles generated instances of the Hopper
and Blackwell kernels whose name holds TEXT (one of each unless said) and follows every path of
their SASS from the entry: none may reach a load, store, atomic or bulk copy of global memory
without an ACQBULK (griddepcontrol.wait) on its way. Prefetches of tensor maps are parameters:
UTMACCTL is allowed.

Needs nvcc, cuobjdump and nvdisasm, found as scripts/sm100_evidence.py finds them. Exit status 1
where an access comes too early or a kernel never waits, 77 where a tool is missing.
"""
import argparse
import pathlib
import re
import sys
import tempfile

import sm100_evidence as evidence

ARCHITECTURES = {"sm90": "sm_90a", "sm100": "sm_100f"}
USUAL = ["fprop_128x64_w2_c1x1_runs_pingpong", "bf16_2sm_256x128_c2x1_halo"]
ACCESS = re.compile(
    r"(LDG|LDGSTS|STG|LD|ST|ATOMG?|REDG?|UTMALDG|UTMASTG|UTMAREDG|UTMAPF|UBLK\w+)(\.|$)")


def successors(instructions, index, at):
    """Where the warp may be after instruction `at`; too many rather than too few."""
    text = instructions[at][1]
    predicated, plain = re.match(r"(@!?U?P\w+\s+)?(.*)", text).groups()
    opcode = plain.split()[0]
    targets = []
    if opcode.split(".")[0] in ("BRA", "JMP", "CALL", "BRX", "WARPSYNC"):
        target = re.search(r"\b0x[0-9a-f]+\b", plain)
        if target and int(target[0], 16) in index:
            targets.append(index[int(target[0], 16)])
    ends = opcode in ("EXIT", "RET") or (opcode in ("BRA", "BRA.U") and re.fullmatch(
        r"\S+\s+(`\()?0x[0-9a-f]+\)?", plain))
    if (predicated or not ends) and at + 1 < len(instructions):
        targets.append(at + 1)
    return targets


def early_accesses(instructions):
    """(whether a path waits, accesses that a path reaches without waiting)."""
    index = {address: i for i, (address, _) in enumerate(instructions)}
    waits, early, seen, open_ = False, [], {0}, [0]
    while open_:
        at = open_.pop()
        text = instructions[at][1]
        if text.startswith("ACQBULK"):  # Unpredicated.
            waits = True
            continue
        plain = re.sub(r"^@!?U?P\w+\s+", "", text)
        if ACCESS.match(plain.split()[0]):
            early.append(at)
        for after in successors(instructions, index, at):
            if after not in seen:
                seen.add(after)
                open_.append(after)
    return waits, sorted(early)


def check(source, folder):
    cubin = pathlib.Path(folder) / (source.stem + ".cubin")
    architecture = f"-arch={ARCHITECTURES[source.parent.parent.name]}"
    nvcc = [architecture if word.startswith("-arch=") else word for word in evidence.nvcc()]
    evidence.run([*nvcc, "-cubin", "-o", cubin, source])
    bad = 0
    for name, function in evidence.disassemble(cubin).items():
        found = re.search(r"run_with_residual|conv2d_fprop_run|conv_\w+?_kernel", name)
        entry = found[0] if found else name
        waits, early = early_accesses(function.instructions)
        if not waits:
            print(f"{source.stem}, {entry}: no way leads to an ACQBULK")
        for at in early[:4]:
            address, text = function.instructions[at]
            print(f"{source.stem}, {entry}: {text} at {address:#x} comes before ACQBULK")
        if len(early) > 4:
            print(f"{source.stem}, {entry}: and {len(early) - 4} more")
        bad += not waits or bool(early)
        print(f"{source.stem}, {entry}: {len(function.instructions)} instructions, "
              f"{'FAILED' if not waits or early else 'ok'}", flush=True)
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default=evidence.ROOT / "build/default")
    parser.add_argument("--only", nargs="+", default=USUAL,
                        help="instances whose name holds one of these")
    arguments = parser.parse_args()
    tools = ("nvcc", "cuobjdump", "nvdisasm")
    missing = [tool for tool in tools if evidence.find_tool(tool) is None]
    if missing:
        print(f"no {', '.join(missing)}; get the disassembler with scripts/bootstrap.sh --sass")
        return 77
    sources = sorted(path for path in arguments.build.glob("**/sm*/instances/*.cu")
                     if path.parent.parent.name in ARCHITECTURES
                     and any(text in path.name for text in arguments.only))
    if not sources:
        sys.exit(f"no generated instances of {' '.join(arguments.only)} under {arguments.build}; "
                 "configure the build first")
    with tempfile.TemporaryDirectory() as folder:
        return 1 if sum(check(source, folder) for source in sources) else 0


if __name__ == "__main__":
    sys.exit(main())
